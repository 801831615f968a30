"""Rules about variables of the environment: names that Slurm does not set, missing exports, wrong values.

Other modules of rules use the names of variables in `VARIABLES`, which variables.txt lists by kind.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from functools import lru_cache
from itertools import islice

from sbatchgen.base.errors import nearest
from sbatchgen.check.bash import Body
from sbatchgen.check.executables.program import LAUNCHERS, MODULES, SHELLS
from sbatchgen.check.executables.word_table import rows
from sbatchgen.check.rules.rule import Hit, Rules
from sbatchgen.check.script.launches import Launch, slurm_variable_number
from sbatchgen.check.script.script import JobScript

RULES: Rules[JobScript] = Rules()

# A kind of variables, such as "slurm" -> their names, or items NAME=VALUES for kinds that `values_of` reads.
VARIABLES = {kind: words.split() for kind, words in rows(__file__, "variables.txt")}


def values_of(kind: str) -> dict[str, list[str]]:
    """Return the variables of a kind whose items are NAME=VALUE,VALUE, each with its values."""
    pairs = (item.split("=") for item in VARIABLES[kind])
    return {name: values.split(",") for name, values in pairs}


SLURM_VARIABLES = frozenset(f"SLURM_{name}" for name in VARIABLES["slurm"])
NAMES_MAX = 200  # names of a script that are compared with names of Slurm
LONGEST = 60  # the most characters of a name that is compared
# Variables that some sites set, here without underscores. Other sites write the same names with underscores.
_SITE_SLURM_NAMES = frozenset(
    ("SLURMTMPDIR", "SLURMNODEFILE", "SLURMWORKINGDIR", "SLURMSCRATCH", "SLURMSCRATCHDIR")
)
_GROUP_SUFFIX = re.compile(r"_(?:HET|PACK)_GROUP_\d+$")  # the end of a variable in a heterogeneous job
# A variable of another scheduler -> the variable of Slurm.
SCHEDULER_VARIABLES = {name: value for name, (value,) in values_of("others").items()}
CHILD_VARIABLES = frozenset(VARIABLES["read-by-children"])  # read by the programs that a script starts
_CHILD_PREFIXES = tuple(VARIABLES["read-by-beginning"])  # the starts of further such names
_RANK_VARIABLES = frozenset(("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE"))
# The name of a launcher in a value. A part of a path does not count.
_LAUNCHER_NAME = re.compile(
    rf"(?<![\w/.-])(?:{'|'.join(map(re.escape, (*MODULES, *sorted(LAUNCHERS))))})(?![\w/.-])"
)


@RULES.add("SB421", "warning", "a variable that Slurm never sets", words=("SLURM",))
def _misnamed_variables(script: JobScript) -> Iterator[Hit]:
    uses = script.first_uses(lambda name: name.startswith("SLURM"))
    for use in islice(uses, NAMES_MAX):
        if fix := _intended_variable(use.name):
            yield Hit(script.at_start(use), f"Slurm does not set {use.name}: it is empty", fix)


@lru_cache(maxsize=1024)
def _intended_variable(name: str) -> str:
    """Return the variable of Slurm that is meant by a wrong name, with its $.

    The result is "" if Slurm or a site may set a variable of this name, or if no variable has a similar name.
    """
    is_known = (
        not SLURM_VARIABLES.isdisjoint((name, _GROUP_SUFFIX.sub("", name)))
        or name.replace("_", "") in _SITE_SLURM_NAMES
    )
    if is_known or len(name) > LONGEST:
        return ""
    # The longest variable of Slurm at the start of the name: SLURM_JOB_ID of $SLURM_JOB_ID_.
    for end in range(len(name) - 1, len("SLURM_"), -1):
        if name[end] == "_" and name[:end] in SLURM_VARIABLES:
            if name[end:] == "_":  # the underscore belongs to the text after the variable
                return f"${{{name[:end]}}}_"
            break
    # Variables with the same words in another order, such as SLURM_JOB_ARRAY_ID.
    reordered = sorted(
        known for known in SLURM_VARIABLES if sorted(known.split("_")) == sorted(name.split("_"))
    )
    nearest_name = reordered[0] if reordered else nearest(name, sorted(SLURM_VARIABLES), 0.87)
    return f"${nearest_name}" if nearest_name else ""


@RULES.add("SB423", "warning", "a variable that is set but not exported")
def _unexported_variables(script: JobScript) -> Iterator[Hit]:
    body = script.body
    if any(option.name == "allexport" and option.is_on for option in body.shell_options):
        return
    exported = {word for command in script.named("export", "declare") for word in command.arguments}
    yield from _unexported_to_tasks(script, exported)
    exported |= {assignment.name for assignment in body.assignments if assignment.is_exported}
    # Variables that need no export. A variable that the script expands may be meant for the script alone.
    internal = {use.name for use in body.variable_uses}
    if not _RANK_VARIABLES.isdisjoint(script.assigned_names):
        has_python = re.search(r"(?m)^[^#\n]*(?:python|torch|\btrain)", script.text)
        has_launcher = any(launch.launcher for launch in script.launches) or _has_launcher_in_value(body)
        if not has_python or has_launcher:
            internal |= _RANK_VARIABLES  # MPI ignores these variables, and launchers set them
    launch_offsets = [launch.command.at for launch in script.launches if not launch.is_helper]
    for assignment in body.assignments:
        name, context = assignment.name, assignment.context
        is_plain = not (
            assignment.is_prefix or assignment.setter or context.function or context.in_substitution
        )
        is_for_children = name in CHILD_VARIABLES or name.startswith(_CHILD_PREFIXES)
        if not is_plain or name in exported or name in internal or not is_for_children:
            continue
        if launch_offsets and launch_offsets[-1] > assignment.at:
            exported.add(name)  # one hit for each name
            short_value = re.fullmatch(r"[\w./:-]{1,40}", assignment.value or "")
            what = f"{name} is not exported: the programs that the script starts do not see it"
            fix = f"export {name}={short_value[0] if short_value else '...'}"
            yield Hit(script.at_start(assignment), what, fix)


def _has_launcher_in_value(body: Body) -> bool:
    """Return whether a variable holds the name of a launcher, so that a command may be $LAUNCHER train.py."""
    return any(
        _LAUNCHER_NAME.search(assignment.word.text) for assignment in body.assignments if assignment.word
    )


def _unexported_to_tasks(script: JobScript, export_words: Collection[str]) -> Iterator[Hit]:
    """Find unexported variables in a text that tasks expand: a string in single quotes or a here-document.

    `export_words` are the words after export and declare.
    """
    # Variables that tasks may see, and those that a command such as `for` sets.
    exported = {
        assignment.name
        for assignment in script.body.assignments
        if assignment.is_exported or assignment.is_prefix or assignment.setter not in ("", "read")
    }
    for launch, text in _texts_of_tasks(script):
        set_in_task = {name for pair in _TASK_ASSIGNMENT.findall(text) for name in pair}
        for name in dict.fromkeys(_USED_VARIABLE.findall(_NOT_EXPANDED.sub("", text))):
            earlier = [
                assignment
                for assignment in script.body.assignments_of(name)
                if assignment.at < launch.command.at
            ]
            if earlier and name not in exported | set_in_task | {*export_words}:
                what = f"{name} is not exported: ${name} is empty in the tasks of srun"
                yield Hit(script.at_start(earlier[-1]), what, f"export {name}")


def _texts_of_tasks(script: JobScript) -> Iterator[tuple[Launch, str]]:
    """Yield the texts that the shell of a task expands, and not the batch shell, each with its launch."""
    for launch in script.steps:
        command = launch.command
        shell = next((tool for tool in launch.tools if tool.name in SHELLS), None)
        for tool in launch.tools:
            option = tool.option("command") if tool.name in SHELLS else None
            string = option.value_word.text if option and option.value_word else ""
            if re.fullmatch(r"'[^']*'", string):  # in '...'"$NAME"'...' the batch shell expands $NAME
                yield launch, string
        if not shell or "command" in shell.options:
            continue
        for redirect in command.redirects:
            delimiter = redirect.target
            if delimiter and redirect.operator.startswith("<<") and delimiter.is_quoted:  # <<'END'
                following = command.source.text[delimiter.end :].partition("\n")[2]
                end = re.compile(rf"^\t*{re.escape(delimiter.text[1:-1])}$", re.MULTILINE).search(following)
                yield launch, following[: end.start()] if end else ""


# Parts of a task's text that its shell does not expand: an escaped $, comments, and texts in single quotes.
_NOT_EXPANDED = re.compile(r"(?m)\\\$|^\s*#.*$|(?<=\s)'[^'\n]*'(?=\s)")
# $NAME or ${NAME}, without an operator.
_USED_VARIABLE = re.compile(r"(?<!\$)\$(?:\{(?=\w+\}))?([A-Za-z_]\w*)")
# A place where the text of the task itself sets a variable: NAME=, for NAME, read NAME.
_TASK_ASSIGNMENT = re.compile(
    r"\b([A-Za-z_]\w*)(?:\[[^\]\n]*\])?\+?="
    r"|\b(?:for|read|local|mapfile|declare)[ \t]+(?:-\w+[ \t]+)*([A-Za-z_]\w*)"
)


@RULES.add("SB424", "warning", "a variable of another scheduler", words=(*SCHEDULER_VARIABLES,))
def _scheduler_variables(script: JobScript) -> Iterator[Hit]:
    # A script that tests a scheduler's name or variable is for several schedulers.
    tests_scheduler = _SCHEDULERS & {word.lower() for word in script.tested_words}
    if tests_scheduler or any(map(SCHEDULER_VARIABLES.get, script.tested_words)):
        return
    for use in script.first_uses(SCHEDULER_VARIABLES.get):
        if use.name in script.tested_words:
            continue
        what = f"Slurm does not set {use.name}: it is empty"
        if script.lines[use.line - 1].lstrip().startswith("cd "):
            what += ", so cd goes to the home folder"
        yield Hit(script.at_start(use), what, f"${SCHEDULER_VARIABLES[use.name]}")


_SCHEDULERS = frozenset(("pbs", "torque", "sge", "uge", "lsf"))


@RULES.add("SB425", "warning", "a WORLD_SIZE that is not the number of processes", words=("WORLD_SIZE",))
def _world_size(script: JobScript) -> Iterator[Hit]:
    for launch in script.trainings:
        tasks = launch.tasks
        if not launch.runs_rank_per_task or not tasks:
            continue
        earlier = [
            assignment
            for assignment in script.body.assignments_of("WORLD_SIZE")
            if assignment.at < launch.command.end
        ]
        inherited = [
            assignment
            for assignment in earlier
            if (
                assignment in launch.command.prefix_assignments
                if assignment.is_prefix
                else assignment.is_exported
            )
        ]
        value = (inherited[-1].value or "") if inherited else ""
        if re.fullmatch(r"\d{1,5}", value) and int(value) != tasks and not inherited[-1].context.in_branch:
            what = f"WORLD_SIZE={value}, but srun starts {tasks} processes: they do not form one group"
            what += ": they wait for the others" if int(value) > tasks else ""
            has_all_tasks = slurm_variable_number("SLURM_NTASKS", script.resources) == tasks
            fix = f"WORLD_SIZE={'$SLURM_NTASKS' if has_all_tasks else tasks}"
            yield Hit(script.at_start(inherited[-1]), what, fix)
        return


@RULES.add(
    "SB431",
    "warning",
    "a variable of Slurm that the script overwrites",
    source="sbatch(1)",
    words=("SLURM_",),
    report="https://github.com/CoBrALab/qbatch/pull/239",
)
def _overwritten_variables(script: JobScript) -> Iterator[Hit]:
    """Find an assignment of a number to SLURM_ARRAY_TASK_ID or SLURM_CPUS_PER_TASK."""
    # From 23.11 on, srun compares SLURM_CPUS_PER_TASK with the CPUs of the job.
    cpus, compares_cpus = script.resources.cpus_per_task, script.release >= "23.11"
    for assignment in script.body.assignments:
        value = assignment.value or ""
        is_plain = (
            assignment.context.is_top_level
            and not assignment.is_prefix
            and assignment.setter in ("", "export")
        )
        if not is_plain or not value.isdecimal():
            continue
        at = script.at_start(assignment)
        if assignment.name == "SLURM_ARRAY_TASK_ID" and script.array_tasks > 1:
            what = f"all {script.array_tasks} tasks of the array get the index {value} here: they do the same"
            yield Hit(at, what, "remove it: Slurm sets it")
        elif assignment.name == "SLURM_CPUS_PER_TASK" and cpus and compares_cpus and int(value) != cpus:
            step = next((launch.step for launch in script.steps if launch.command.at > assignment.at), None)
            if step and not {"cpus-per-task", "cpus-per-gpu"} & step.options.keys():
                what = f"srun compares SLURM_CPUS_PER_TASK={value} with the {cpus} CPUs of the job, and ends"
                yield Hit(at, what, f"srun --cpus-per-task={value}, and no SLURM_CPUS_PER_TASK")
