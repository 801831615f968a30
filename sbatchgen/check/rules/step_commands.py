"""Rules about commands that start no program or a wrong one, and about options that a step can't have.

Sources: srun(1), "No command given to execute" and "applies to job allocations"; bash(1), EXPANSION; steps on
Slurm 22.05 and 26.05 (docs/design/slurm.md).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from sbatchgen.check.bash import Assignment
from sbatchgen.check.executables.program import SHELLS
from sbatchgen.check.rules.rule import Applies, Hit, Rules
from sbatchgen.check.rules.safety import ALWAYS_SET, SITE_VARIABLES
from sbatchgen.check.script.script import JobScript

RULES: Rules[JobScript] = Rules()

# With one of these options, srun needs no program.
_OPTIONS_WITHOUT_PROGRAM = frozenset(("version", "help", "usage", "test-only", "external-launcher"))
# Options of new jobs that people take for options of steps. Others do no harm in steps.
_JOB_OPTIONS = ("dependency", "begin")
_GRES_REFUSED_SINCE = "26.05"  # the first release that refuses --gres beside an inherited --gpus-per-node
# The start of a variable that Slurm, CUDA or MPI sets, or a parameter of the shell.
_SLURM_VARIABLE = re.compile(r"SLURM|SBATCH|SRUN|CUDA_|PMI|[0-9@*#?$!-]")


@RULES.add("SB332", "error", "srun without a program", source="srun(1)", words=("srun",))
def _no_program(script: JobScript) -> Iterator[Hit]:
    from sbatchgen.check.bash.chain import chain

    launch_commands = {id(launch.command) for launch in script.launches}
    for command in script.named("srun"):
        if id(command) in launch_commands:
            continue
        tools = chain(command, script.body)
        step = tools[0] if len(tools) == 1 and tools[0].name == "srun" else None
        if step is None or step.rest or _OPTIONS_WITHOUT_PROGRAM & step.options.keys():
            continue
        if any(word.variables or "$" in word.text or "`" in word.text for word in step.words[1:]):
            continue  # the value may hold a program
        following = next((other for other in script.commands if other.at > command.end), None)
        is_on_next_line = following is not None and following.line == command.end_line + 1
        fix = "end the line with a backslash" if is_on_next_line else "srun PROGRAM"
        yield Hit(script.at_command(command), "srun has no program to start: it fails at once", fix)


@RULES.add("SB333", "warning", "a command string that uses a variable that nothing sets")
def _incomplete_command(script: JobScript) -> Iterator[Hit]:
    if script.sources_commands:
        return  # a sourced file may set the variables
    assignment_of = {
        assignment.name: assignment
        for assignment in script.body.assignments
        if assignment.word and not assignment.is_append
    }
    reported: set[str] = set()
    for launch in script.launches:
        for name in (name for word in launch.command.words for name in word.variables):
            for missing in _unset_names(script, assignment_of.get(name)):
                if missing not in reported:
                    reported.add(missing)
                    what = f"{name} starts a program with ${missing}, which the script does not set: it is "
                    what += "empty unless the environment has it"
                    fix = f"set {missing} before {name}, or write ${{{missing}:?}}"
                    yield Hit(script.at_start(assignment_of[name]), what, fix)


def _unset_names(script: JobScript, assignment: Assignment | None) -> Iterator[str]:
    """Yield the variables in the value of an assignment such as CMD="python $MAIN" that nothing sets.

    Variables that Slurm or a site may set do not count.
    """
    pieces = assignment.word.pieces if assignment and assignment.word else ()
    if not any(" " in piece.text for piece in pieces if piece.kind == "text"):
        return  # a single word is usually a path
    if assignment and script.body.is_option_on("nounset", assignment.line):
        return  # bash ends at the unset variable, and names it
    for piece in pieces:
        is_known = piece.name in script.assigned_names | script.tested_words | ALWAYS_SET | SITE_VARIABLES
        if piece.kind == "variable" and not (is_known or piece.operator or _SLURM_VARIABLE.match(piece.name)):
            yield piece.name


@RULES.add(
    "SB351",
    "warning",
    "an option of srun that a step can't have",
    source="srun(1)",
    words=("srun",),
    report="https://github.com/NVIDIA/NVFlare/pull/5269",
)
def _job_options(script: JobScript) -> Iterator[Hit]:
    """Find options of new jobs in a step. Without directives, srun may allocate a job itself."""
    if not script.directive_lines:
        return
    for launch in script.steps:
        step = launch.step
        if step is None or "jobid" in step.options:
            continue
        for name in _JOB_OPTIONS:
            if option := step.option(name):
                what = f"srun --{name} is about new jobs: in a job the step starts at once"
                fix = f"sbatch --{name}=... another script, or sbatch --wait"
                yield Hit(script.at_option_of(option), what, fix)
        gres = step.option("gres")
        refuses_gres = "gpus-per-node" in script.options and script.slurm >= _GRES_REFUSED_SINCE
        if gres and refuses_gres and (gres.value or "").startswith("gpu"):
            what = f"Slurm {_GRES_REFUSED_SINCE} refuses this step: srun inherits --gpus-per-node, which "
            what += "excludes --gres=gpu"
            fix = f"srun --gpus-per-node={(gres.value or '').partition(':')[2] or 1}"
            yield Hit(script.at_option_of(gres), what, fix, "info" if script.is_release_assumed else None)


@RULES.add(
    "SB354",
    "warning",
    "a here-document that this shell expands",
    source="bash(1)",
    applies=Applies.ANY_TEXT,
    words=("<<",),
    report="https://github.com/BSC-ES/autosubmit/pull/2694",
)
def _expanded_heredoc(script: JobScript) -> Iterator[Hit]:
    if "<<" not in script.text:
        return
    for command in script.body.commands:
        if command.name not in {*SHELLS, "sbatch", "srun"}:
            continue
        for redirect in command.redirects:
            delimiter = redirect.target
            if delimiter is None or redirect.operator not in ("<<", "<<-"):
                continue
            if delimiter.is_quoted or "\\" in delimiter.text:
                continue  # bash does not expand the text
            text = re.split(rf"(?m)^\t*{re.escape(delimiter.text)}$", command.source.text[delimiter.end :])[0]
            for match in _ASSIGNMENT_IN_TEXT.finditer(text):
                name = match[1] or match[2]
                # Later in the text: $NAME or ${NAME}, without a backslash.
                is_used = re.search(rf"(?<!\\)\$(?:{name}\b|\{{{name}[:}}\[])", text[match.end() :])
                if is_used and name not in script.assigned_names and not name.endswith("PATH"):
                    what = f"this shell expands ${name} before {command.name} reads the text: it is empty "
                    what += "there"
                    yield Hit(script.at_command(command), what, f"<<'{delimiter.text}', or \\${name}")
                    return


# A line of a here-document that sets a variable: NAME=VALUE or for NAME in.
_ASSIGNMENT_IN_TEXT = re.compile(
    r"(?m)^[ \t]*(?:(?:export[ \t]+)?([A-Za-z_]\w*)=.*$|for[ \t]+([A-Za-z_]\w*)[ \t]+in\b.*$)"
)
