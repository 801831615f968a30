"""Refuses a job whose programs contradict each other, for example because they need each other in a circle.

These faults are errors, not findings of rules, because such a job can't be resolved.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import NamedTuple

from sbatchgen.base.errors import CommandLineError, Problem, did_you_mean, nearest
from sbatchgen.base.texts import ProgramName
from sbatchgen.jobs.inputs.job_file import ProgramSpec
from sbatchgen.jobs.inputs.layers import Layer, Level
from sbatchgen.jobs.inputs.start_settings import SETUPS
from sbatchgen.jobs.resolved.written_programs import (
    FACT_PATTERN,
    KEY_PREFIX,
    WrittenProgram,
    all_nodes,
    texts_of,
)

MAX_PROGRAMS = 64  # the most programs and replicas of a job, because each gets a port
# A variable of a program as older releases named it, without the prefix: "$SERVER_HOST" or "${SERVER_PORT}"
_OLD_VARIABLE = re.compile(r"\$\{?([A-Z][A-Z0-9_]*)_(HOSTS?|PORT)\b")


class _Fault(NamedTuple):
    """A fault of the programs of a job."""

    key: str  # the flat key that is wrong, such as "programs.server.needs"
    what: str
    fix: str


def refuse_faults(programs: Sequence[WrittenProgram], layers: Sequence[Layer]) -> None:
    """Raise CommandLineError with all faults of the programs."""
    places = {key: place for layer in layers for key, place in layer.places.items()}
    faults = [
        *_joint_faults(programs, layers),
        *(fault for program in programs for fault in _program_faults(program, programs)),
    ]
    faults += (fault for program in programs for fault in _old_variable_faults(program, programs, layers))
    problems = []
    for fault in faults:
        # A key within a program has no place of its own, so the place of the program counts.
        at = places.get(fault.key) or places.get(fault.key.rpartition(".")[0], "programs")
        problems.append(Problem(fault.what, at, fault.fix))
    if problems:
        raise CommandLineError(problems)


def _joint_faults(programs: Sequence[WrittenProgram], layers: Sequence[Layer]) -> Iterator[_Fault]:
    """Yield the faults that concern several programs or the whole job."""
    instances = sum(int(program.spec.replicas or 1) for program in programs)
    if instances > MAX_PROGRAMS:
        yield _Fault(
            "programs", f"{instances} programs, and a job has at most {MAX_PROGRAMS}", "join some of them"
        )
    mains = [program.name for program in programs if program.spec.main]
    for name in mains[1:]:
        yield _Fault(
            f"{KEY_PREFIX}{name}.main", f"{mains[0]} and {name} are both main", "keep one: it ends the job"
        )
    if circle := _circle({program.name: program.spec.needs for program in programs}):
        what = f"{' needs '.join(circle)}: none of them can start"
        yield _Fault(f"{KEY_PREFIX}{circle[0]}.needs", what, "remove one need")
    written = {
        key: value for layer in layers if layer.level >= Level.PROJECT for key, value in layer.values.items()
    }
    nodes = max(program.first_node + all_nodes(program) for program in programs)
    if written.get("options.nodes", nodes) != nodes:
        yield _Fault(
            "options.nodes", f"{written['options.nodes']} nodes, and the programs have {nodes}", "remove it"
        )
    all_name_gpus = all(program.spec.gpus is not None for program in programs)
    if "gpu" in (written.get("options.gres") or "") and all_name_gpus:
        yield _Fault(
            "options.gres", "each program names its gpus: the job's gres has no effect", "remove the GPUs"
        )
    for option in ("array", "ntasks_per_node", "gpus", "gpus_per_task"):
        if f"options.{option}" in written:
            what = f"a job with several programs has no {option}"
            yield _Fault(f"options.{option}", what, "remove it: each program has its share")


def _program_faults(program: WrittenProgram, programs: Sequence[WrittenProgram]) -> Iterator[_Fault]:
    """Yield the faults of one program, such as names of unknown programs."""
    names, key = [other.name for other in programs], f"{KEY_PREFIX}{program.name}"
    for other in program.spec.needs:
        if other not in names:
            what = f"{program.name} needs '{other}', which is not a program"
            yield _Fault(f"{key}.needs", what, did_you_mean(other, names))
    if beside := program.spec.beside:
        on_nodes = [other.name for other in programs if other is not program and not other.spec.beside]
        if beside not in on_nodes:
            what = f"{program.name} runs beside '{beside}', which has no nodes here"
            yield _Fault(f"{key}.beside", what, did_you_mean(beside, on_nodes))
    replicas, nodes = int(program.spec.replicas or 1), int(program.spec.nodes or 1)
    if replicas % nodes and nodes % replicas:
        what = f"{replicas} replicas on {nodes} nodes: they have not all the same share"
        fix = f"set replicas to a multiple of {nodes}, as {nodes * (replicas // nodes + 1)}"
        yield _Fault(f"{key}.replicas", what, fix)
    for named, fact in _named_facts(program.spec):  # `named` is "" for a fact of the program itself
        if named and named not in names:
            near = nearest(named, names) or names[0]
            what = f"{{{named}.{fact}}} names no program of this job"
            yield _Fault(key, what, f"write {{{near}.{fact}}}")
            continue
        owner = next(other for other in programs if other.name == (named or program.name))
        if owner is not program and owner.spec.replicas and fact in ("host", "port", "replica"):
            what = f"{{{named}.{fact}}} is of one of {owner.spec.replicas} replicas"
            yield _Fault(
                key, what, f"write {{{named}.urls}} for all of them, or {{{named}.urls[@]}} for a word each"
            )
        if fact == "replica" and not owner.spec.replicas:
            yield _Fault(key, f"{{{fact}}} is the number of a replica", "add replicas: N")


def _old_variable_faults(
    program: WrittenProgram, programs: Sequence[WrittenProgram], layers: Sequence[Layer]
) -> Iterator[_Fault]:
    """Yield a fault for each variable of an older release, such as SERVER_HOST without a prefix.

    The variables have a prefix now, because a program may read SERVER_HOST as a setting of its own. A
    variable that the job itself sets is not a fault.
    """
    names_by_variable = {other.name.variable_part: other.name for other in programs}  # "SERVER" -> "server"
    texts = [*texts_of(program.spec)]
    values = {key: value for layer in layers for key, value in layer.values.items()}
    setup_lines = [line for name in SETUPS for line in values.get(name) or ()]
    for text in texts:
        for match in _OLD_VARIABLE.finditer(text):
            start, fact = match.groups()
            old, name = f"{start}_{fact}", names_by_variable.get(start)
            is_set = any(f"{old}=" in other for other in (*texts, *setup_lines))
            is_set = is_set or old in program.spec.env or f"env.{old}" in values
            if name and not is_set:
                what = f"the job has no variable {old}: those of programs begin with {ProgramName.PREFIX}"
                fix = f"write {{{name}.{fact.lower()}}}, or ${name.variable}_{fact} where a shell reads it"
                yield _Fault(f"{KEY_PREFIX}{program.name}", what, fix)


def _circle(needs: Mapping[str, Sequence[str]]) -> list[str]:
    """Return a circle of programs in which each needs the next, such as [a, b, a]; [] without a circle."""
    try:
        TopologicalSorter(needs).prepare()
    except CycleError as error:
        # The error has a list such as [a, b, a], in which each program is needed by the next. Reversed, each
        # program needs the next. The repeated name is removed.
        circle: list[str] = error.args[1][:0:-1]
        first_in_job = next(name for name in needs if name in circle)
        start = circle.index(first_in_job)
        return [*circle[start:], *circle[: start + 1]]
    return []


def _named_facts(spec: ProgramSpec) -> Iterator[tuple[str, str]]:
    """Yield the program and the fact for each fact that the texts of a program name: {server.host}, {port}.

    The program is "" if the text names only the fact.
    """
    for text in texts_of(spec):
        yield from ((match[1] or "", match[2]) for match in FACT_PATTERN.finditer(text))
