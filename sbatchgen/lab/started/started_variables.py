"""Rules about values in a plan that are empty, have several lines, or differ from the profile.

An empty value is reported only if the script computes it from facts of Slurm alone. Any other value may be
empty only in the plan.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from sbatchgen.check.bash import Assignment
from sbatchgen.check.executables.program import LAUNCHERS, PROGRAMS, commands, programs
from sbatchgen.check.rules import environment, rendezvous, unset_variables
from sbatchgen.check.rules.rule import Hit, Rules
from sbatchgen.lab.plan.dry_run import DryRun
from sbatchgen.lab.plan.missing import option_of
from sbatchgen.lab.plan.overlaps import may_lack_values
from sbatchgen.lab.plan.started import Step, options_of_srun

RULES: Rules[DryRun] = Rules()

_NCCL = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html"
_CONTAINERS = commands("container")
_NO_IMAGES = commands("launcher", "interpreter", "shell")  # names of programs, which can't be images
# Options of launchers that have a value, and those whose value must be a single line.
_VALUE_OPTIONS = {name for launcher in LAUNCHERS for name in PROGRAMS[launcher].values}
_ONE_LINE_OPTIONS = {"nodelist", "nproc-per-node"} | {
    name
    for launcher in LAUNCHERS
    for role in ("NODES", "RANK", "PORT", "HOST")
    for name in PROGRAMS[launcher].roles.get(role, ())
}
_COMPUTING_PROGRAMS = programs("computes")  # programs such as expr, whose output follows from their arguments


@RULES.add_for_dry_run(environment.RULES, "SB408")
def _variable_without_option(plan: DryRun) -> Iterator[Hit]:
    for step, name, variable, _ in _empty_options(plan):
        option = option_of(variable) if variable not in plan.batch_environment else ""
        if option in plan.script.options:
            what = f"{name} has no value: {variable} is empty, because Slurm {plan.script.slurm} "
            what += "does not set it"
            value = "$SLURM_GPUS_ON_NODE" if "GPUS" in variable else f"with the value of --{option}"
            yield Hit(plan.at(step.line), what, f"{name} {value}")
        elif option:
            what = f"{name} has no value: {variable} is empty, because the job has no --{option}"
            yield Hit(plan.at(step.line), what, f"add #SBATCH --{option}=...")


@RULES.add_for_dry_run(unset_variables.RULES, "SB335")
def _empty_value(plan: DryRun) -> Iterator[Hit]:
    fix = "print the variable before this line, and see what sets it"
    for step in plan.steps:
        for name, value in bad_node_options(plan, step):
            if not value:
                what = f"srun {name} has no value: the variable in it is empty here"
                yield Hit(plan.at(step.line), what, fix)
    for step, name, variable, _ in _empty_options(plan):
        if variable in plan.batch_environment or not option_of(variable):
            what = f"{name} has no value: {variable} is empty here"
            yield Hit(plan.at(step.line), what, f"print {variable} before this line, and see what sets it")
    yield from _container_without_image(plan)


def _container_without_image(plan: DryRun) -> Iterator[Hit]:
    """Find containers that lack an image, and so use the next word as the image."""
    if may_lack_values(plan, with_variables=False) or any(plan.script.named("module", "ml")):
        return  # a module may set the variable of the image
    for step in plan.steps:
        for image in (process.container for process in step.processes):
            # If no word is left for the image, the plan has the program's own name as the image.
            lacks_image = image in _CONTAINERS and not (image == "shifter" and "image" in plan.script.options)
            if lacks_image or image in _NO_IMAGES:
                what = (
                    f"{image} has no image" if lacks_image else f"the container takes '{image}' for its image"
                )
                fix = "print the variable of the image before this line"
                yield Hit(plan.at(step.line), f"{what}: the variable before it is empty", fix)
                break


@RULES.add_for_dry_run(rendezvous.RULES, "SB331", "warning")
def _value_of_several_lines(plan: DryRun) -> Iterator[Hit]:
    nodes = (
        (step, f"srun {name}", value) for step in plan.steps for name, value in bad_node_options(plan, step)
    )
    options = ((step, name, value) for step, name, _, value in _bad_options(plan))
    for step, name, value in (*nodes, *options):
        if "\n" in value.strip():
            first, second = value.strip().split("\n")[:2]
            what = f"{name} has a value of several lines: '{first}', then '{second}'"
            fix = "nodes=($(scontrol show hostnames ...)), without quotes, is an array"
            yield Hit(plan.at(step.line), what, fix)


@RULES.add("SB428", "info", "an interface with another name than in the profile", source=_NCCL)
def _other_interface(plan: DryRun) -> Iterator[Hit]:
    settings = (plan.profile, *plan.profile.partitions.values())
    for step in plan.steps:
        env = step.processes[0].env if step.processes else {}
        for variable in sorted({name for part in settings for name in part.interfaces}):
            value = env.get(variable) or ""
            known_values = {part.interfaces[variable] for part in settings if variable in part.interfaces}
            # NCCL reads ^eth0 as all other interfaces, and =eth0 as exactly this interface.
            if not value or value[0] in "^=" or any(known[0] in "^=" for known in known_values):
                continue
            known_names = [name for known in known_values for name in known.split(",")]
            if known_names and not all(_matches_interface(name, known_names) for name in value.split(",")):
                expected = " or ".join(sorted(known_values))
                what = f"{variable} is {value}, but the profile '{plan.profile.name}' says {expected}"
                yield Hit(plan.at(step.line), what, f"{variable}={min(known_values)}")


def _matches_interface(name: str, others: Sequence[str]) -> bool:
    """Return whether a name begins with one of `others`, or one of `others` begins with the name.

    For NCCL, the beginning of a name stands for all interfaces with this beginning.
    """
    return any(name.startswith(other) or other.startswith(name) for other in others)


def bad_node_options(plan: DryRun, step: Step) -> Iterator[tuple[str, str]]:
    """Yield srun's options for nodes and tasks that are empty or have several lines, and their values."""
    if not step.is_srun:
        return
    for option, value, at, _ in options_of_srun(step.command):
        is_empty = not value and not may_lack_values(plan)
        if option in ("nodelist", "nodes", "ntasks") and (is_empty or "\n" in value.strip()):
            yield step.command[at].partition("=")[0], value


class _BadOption(NamedTuple):
    """An option of a program whose value is empty or has several lines."""

    step: Step
    name: str
    variable: str  # the variable that is its value in the script
    value: str


def _empty_options(plan: DryRun) -> Iterator[_BadOption]:
    """Yield the options of programs whose value is empty."""
    return (option for option in _bad_options(plan) if not option.value)


def _bad_options(plan: DryRun) -> Iterator[_BadOption]:
    """Yield the options of programs whose value is empty or has several lines."""
    if may_lack_values(plan):
        return
    for step in plan.steps:
        names = set()  # names of options that were yielded for this step
        for words in dict.fromkeys(process.argv for process in step.processes):
            for word, next_word in zip(words, (*words[1:], ""), strict=True):
                name, equals, attached_value = word.partition("=")
                value = attached_value if equals else next_word
                is_empty = not value or (not equals and value.startswith("--"))
                is_one_line = name.lstrip("-").replace("_", "-") in _ONE_LINE_OPTIONS
                if not is_empty and not (is_one_line and "\n" in value.strip()):
                    continue
                if name.startswith("--") and name not in names and (variable := _variable_of(plan, name)):
                    names.add(name)
                    yield _BadOption(step, name, variable, "" if is_empty else value)


def _variable_of(plan: DryRun, option: str) -> str:
    """Return the variable that is the whole value of an option in the script.

    Returns "" if the value is anything else than a variable, or if the script does not compute the variable
    from facts of Slurm.
    """
    # A variable without quotes is the value of an option only if the option must have a value. Otherwise the
    # variable may hold further options.
    takes_value = option.lstrip("-").replace("_", "-") in _VALUE_OPTIONS
    before = r'(?:=|[ \t]+)"?' if takes_value else r'(?:="?|[ \t]+")'
    pattern = rf"{re.escape(option)}{before}\$\{{?(\w+)\}}?\"?(?=[\s\"']|$)"
    names = {*re.findall(pattern, plan.script.text)}
    name = names.pop() if len(names) == 1 else ""
    return name if _is_computed(plan, name) else ""


def _is_computed(plan: DryRun, name: str, depth: int = 4) -> bool:
    """Return whether a script computes a variable's value from facts of Slurm alone.

    A value may follow from another variable, and so on, through at most `depth` variables.
    """
    if name in plan.batch_environment or option_of(name) not in ("", "array"):
        return True
    assignments = [assignment for assignment in plan.script.body.assignments if assignment.name == name]
    is_needed = any(need.name == name for need in plan.needed)
    is_set_otherwise = any(part.value == "" or part.setter == "for" for part in assignments)
    if not assignments or not depth or is_needed or is_set_otherwise:
        return False
    return all(_is_computed_by(plan, assignment, depth) for assignment in assignments)


def _is_computed_by(plan: DryRun, assignment: Assignment, depth: int) -> bool:
    """Return whether an assignment computes its value from facts of Slurm alone."""
    text = assignment.source.text[assignment.at : assignment.end]
    span = range(assignment.at, assignment.end)
    commands_in_value = {command.name for command in plan.script.body.commands if command.at in span}
    variables = assignment.word.variables if assignment.word else ()
    if assignment.setter in ("read", "readarray", "mapfile", "getopts"):  # the value is the text after <<<
        line = assignment.source.text[assignment.at :].partition("\n")[0]
        variables = tuple(re.findall(r"<<<[^$]*\$\{?(\w+)", line))
        if not variables:
            return False
    if not commands_in_value <= _COMPUTING_PROGRAMS or re.search(r":-|:=|[<{]\(|\$\{?[*@#\d]", text):
        return False
    return all(other == assignment.name or _is_computed(plan, other, depth - 1) for other in variables)
