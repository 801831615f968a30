"""Rules about how jobs are submitted: scripts that call sbatch or salloc, dependencies and the environment.

Sources: bash(1), PIPELINES and SHELL BUILTIN COMMANDS; sbatch(1), --wrap and --export.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING

from sbatchgen.check.executables.program import programs
from sbatchgen.check.rules.rule import Hit, Rules
from sbatchgen.check.rules.statuses import PIPE_FILTERS
from sbatchgen.check.sbatch.option_table import specs, variables
from sbatchgen.check.script.script import JobScript

if TYPE_CHECKING:
    from sbatchgen.check.bash import Command, Word

RULES: Rules[JobScript] = Rules()

# Commands such as `export`, whose status hides the status of a $( ) among their words.
_STATUS_HIDERS = programs("hides-status")
# Variables that Slurm sets in a job only.
_JOB_VARIABLE = re.compile(
    r"SLURM_(?:ARRAY_\w+|JOB_?ID|JOB_NODELIST|NODELIST|PROCID|LOCALID|NODEID|N\w*|CPUS\w*|GPUS\w*)"
)
# Variables that srun sets in a step, and that other sruns read as options.
_STEP_VARIABLES = ("SLURM_CPU_BIND", "SLURM_CPU_BIND_LIST", "SLURM_CPU_BIND_TYPE", "SLURM_TRES_PER_TASK")


@RULES.add(
    "SB903",
    "warning",
    "a refused submission that goes unnoticed",
    source="bash(1)",
    words=("sbatch",),
    report="https://github.com/StormSurgeLive/asgs/issues/1744",
)
def _unnoticed_refusal(script: JobScript) -> Iterator[Hit]:
    for command in script.named("sbatch"):
        # Without set -e, the script continues after any failure. A condition sees the status of sbatch.
        if not script.body.is_option_on("errexit", command.line) or command.context.is_tested:
            continue
        hider = _status_hider(script, command)
        if hider:
            what = f"set -e sees the status of {hider}, not of sbatch: a refused job does not end the script"
            fix = "set -o pipefail"
            if hider in _STATUS_HIDERS:
                fix = "id=$(sbatch --parsable FILE) on a line of its own"
            yield Hit(script.at_word(command), what, fix)


def _status_hider(script: JobScript, command: Command) -> str:
    """Return the name of the command whose status bash sees in place of sbatch's; "" without such a command.

    It is the last command of a pipe, as in sbatch FILE | tee, or the command around a $(sbatch FILE).
    """
    if not command.context.in_substitution:
        pipe = command.pipe
        is_last = pipe is None or command.stage == len(pipe.stages) - 1
        if pipe is None or is_last or script.body.is_option_on("pipefail", command.line):
            return ""
        last = pipe.stages[-1][-1].name
        return last if last in PIPE_FILTERS else ""
    commands_around = (other for other in script.named(*_STATUS_HIDERS) if other.at < command.at < other.end)
    return next((other.name for other in commands_around), "")


@RULES.add(
    "SB904",
    "warning",
    "an option that does not hold what is meant",
    source="sbatch(1)",
    words=("exp", "wrap"),
    report="https://github.com/NVIDIA/TensorRT-LLM/pull/12370",
)
def _lost_values(script: JobScript) -> Iterator[Hit]:
    yield from _lost_values_of_sbatch(script)
    exports = [(script.at_value("export"), script.option("export"))]
    for step in (launch.step for launch in script.steps if launch.step):
        exports += [
            (script.at_option_of(option), step.text_of(option))
            for option in step.uses
            if option.name == "export"
        ]
    yield from (Hit(at, *texts) for at, value in exports if (texts := _texts_about_cut(value)))


def _lost_values_of_sbatch(script: JobScript) -> Iterator[Hit]:
    """Find a lost value in the --wrap or --export of an sbatch that the script calls."""
    for command in script.named("sbatch"):
        words = (*command.words[1:], None)
        for word, following in pairwise(words):
            name, equals, _ = word.text.partition("=") if word else ("", "", "")
            value = word if equals else following  # --wrap=VALUE or --wrap VALUE
            if value and name == "--wrap" and script.submits:
                yield from _variable_expanded_early(script, value)
            elif value and name == "--export":
                yield from _cut_export(script, value, following if value is word else None)


def _variable_expanded_early(script: JobScript, wrapped: Word) -> Iterator[Hit]:
    """Find a variable of the job in the string of --wrap that the submitting shell already expands."""
    for name in wrapped.variables:
        if _JOB_VARIABLE.fullmatch(name) and name not in script.assigned_names:
            what = f"${name} is expanded here, where it is empty, and not in the job"
            yield Hit(script.at_word(wrapped), what, f"\\${name}, or single quotes around the string")
            return


def _cut_export(script: JobScript, word: Word, following: Word | None) -> Iterator[Hit]:
    """Find an --export that ends at a blank, or in which a value ends at a comma.

    `following` is the word after --export=VALUE. It is None for --export VALUE, where `word` is the value.
    """
    value = script.body.text_of(word).removeprefix("--export=")
    if value.endswith(",") and following is not None and "=" in following.text:
        what = f"--export ends at the blank: sbatch takes {following.text} for the script"
        yield Hit(script.at_word(following), what, f"{word.text}{following.text}, without a blank", "error")
        return
    if texts := _texts_about_cut(value):
        yield Hit(script.at_word(word), *texts)


def _texts_about_cut(export: str) -> tuple[str, str] | None:
    """Return the message and the fix for an --export with a comma in a value; None for other values.

    In NAME=1,2 the value of NAME is 1, and 2 is not the name of a variable.
    """
    for item, next_item in pairwise(export.strip("\"'").split(",")):
        is_name = re.match(r"[A-Za-z_]\w*(?:=|$)", next_item)
        if "=" in item and "$" not in next_item and not is_name:
            name, _, left = item.partition("=")
            what = f"--export cuts values at commas: {name} is '{left}', without '{next_item}'"
            return what, f"export {name}=... on a line before it, and --export=ALL"
    return None


@RULES.add(
    "SB905",
    "warning",
    "variables of another job's step",
    source="srun(1)",
    report="https://github.com/nebius/soperator/pull/2316",
)
def _step_variables(script: JobScript) -> Iterator[Hit]:
    names = [
        name for name in _STEP_VARIABLES if name in script.environment and name not in script.assigned_names
    ]
    if names:
        what = f"{names[0]} in the environment comes from the step of this shell: the job's steps obey it"
        yield Hit(script.at(1), what, f"env -u {' -u '.join(names)} sbatch {script.file}")


@RULES.add(
    "SB906",
    "warning",
    "a dependency that does not wait for the end",
    source="sbatch(1)",
    words=("after",),
    report="https://github.com/flux-framework/flux-core/pull/7571",
)
def _after_the_start(script: JobScript) -> Iterator[Hit]:
    """Find after:ID in a dependency, where afterok:ID is meant.

    In after:ID+MINUTES, and for jobs that use a server or a monitor, after is right.
    """
    what = "after: waits until the other job has begun, not until it has ended: both may run at once"
    fix = "afterok:ID with --kill-on-invalid-dep=yes, or afterany:ID"
    if _AFTER.search(script.option("dependency")) and not _names_servers(script.text):
        yield Hit(script.at_value("dependency"), what, fix)
    submissions = script.named("sbatch")
    if _names_servers(" ".join(script.lines[command.line - 1] + command.text for command in submissions)):
        return
    for command in submissions:
        for word in command.words[1:]:
            texts = (word.text, *(script.body.text_of(part) for part in script.body.expand(word)))
            if any(map(_AFTER.search, texts)):
                yield Hit(script.at_word(word), what, fix)


def _names_servers(text: str) -> bool:
    """Return whether a text names servers or workers, whose jobs are meant to run at the same time."""
    return bool(_SERVER_NAME.search(_WORKER_COUNT.sub("", text)))


@RULES.add(
    "SB907",
    "warning",
    "a variable that sbatch does not read",
    source="sbatch(1)",
    words=("SBATCH_",),
    report="https://github.com/mila-iqia/cluv/pull/71",
)
def _unread_variables(script: JobScript) -> Iterator[Hit]:
    if not script.named("sbatch"):
        return
    names_in_script = {use.name for use in script.body.variable_uses}
    option_by_variable = dict(variables(script.slurm))  # the variables that sbatch reads
    for assignment in script.body.assignments:
        name, reaches_sbatch = assignment.name, assignment.is_exported or assignment.is_prefix
        option = (
            name.removeprefix("SBATCH_").lower().replace("_", "-")
        )  # gpus-per-node of SBATCH_GPUS_PER_NODE
        is_used = name in names_in_script or name in option_by_variable
        if not reaches_sbatch or not name.startswith("SBATCH_") or is_used:
            continue
        if option in specs(script.slurm):
            variable = next((known for known, other in option_by_variable.items() if other == option), "")
            what = f"sbatch does not read {name}: the job runs without it"
            yield Hit(script.at_start(assignment), what, variable or f"sbatch --{option}=...")


@RULES.add(
    "SB908",
    "warning",
    "an allocation that stays",
    source="salloc(1)",
    words=("salloc",),
    report="https://github.com/SemiAnalysisAI/InferenceX/pull/1016",
)
def _kept_allocation(script: JobScript) -> Iterator[Hit]:
    for command in script.named("salloc"):
        if "--no-shell" in command.arguments and "scancel" not in script.text:
            what = "salloc --no-shell returns at once: the nodes stay with the job until its time limit, "
            what += "also when the script has ended"
            yield Hit(script.at_command(command), what, "trap 'scancel $JOB_ID' EXIT")


# The start of after:ID, without +MINUTES after the ID.
_AFTER = re.compile(r"(?:^|[,?=\"'])after:(?![^,?]*\+\d)")
# A text that names a server, a worker or the like.
_SERVER_NAME = re.compile(
    r"(?i)serv(?:e|er|ing)(?![a-z])|server|monitor|client|worker|watch|tunnel|coordinator|scheduler"
    r"|(?<![a-z])ray(?![a-z])"
)
# The number of a data loader's workers, such as num_workers. These workers are no servers.
_WORKER_COUNT = re.compile(r"(?i)(?:n|num|number|max)[-_]?(?:of[-_])?workers|workers(?==| \d)")
