"""The faults of a job's programs, such as a circle of needs, for which there is no resolved job."""

import re
from collections.abc import Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter

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

MAX_PROGRAMS = 64  # programs of a job, each replica counted; each gets a port
# $SERVER_HOST or ${SERVER_PORT}: a variable of a program in older releases, without today's prefix.
_OLD_VARIABLE = re.compile(r"\$\{?([A-Z][A-Z0-9_]*)_(HOSTS?|PORT)\b")


_Fault = tuple[str, str, str]  # the flat key that is wrong, such as "programs.server.needs"; why; and a fix


def refuse_faults(programs: Sequence[WrittenProgram], layers: Sequence[Layer]) -> None:
    """Raise CommandLineError with all faults of the programs."""
    places = {key: place for layer in layers for key, place in layer.places.items()}
    faults = [
        *_joint_faults(programs, layers),
        *(fault for program in programs for fault in _program_faults(program, programs)),
    ]
    faults += (fault for program in programs for fault in _old_variable_faults(program, programs, layers))
    if faults:
        # A key that is not written, such as `needs`, has the place of the key above it.
        at = {key: places.get(key) or places.get(key.rpartition(".")[0], "programs") for key, *_ in faults}
        raise CommandLineError([Problem(what, at[key], fix) for key, what, fix in faults])


def _joint_faults(programs: Sequence[WrittenProgram], layers: Sequence[Layer]) -> Iterator[_Fault]:
    """Yield the faults that concern several programs or the whole job."""
    instances = sum(int(program.spec.replicas or 1) for program in programs)
    if instances > MAX_PROGRAMS:
        yield "programs", f"{instances} programs, and a job has at most {MAX_PROGRAMS}", "join some of them"
    mains = [program.name for program in programs if program.spec.main]
    for name in mains[1:]:
        yield f"{KEY_PREFIX}{name}.main", f"{mains[0]} and {name} are both main", "keep one: it ends the job"
    if circle := _circle({program.name: program.spec.needs for program in programs}):
        what = f"{' needs '.join(circle)}: none of them can start"
        yield f"{KEY_PREFIX}{circle[0]}.needs", what, "remove one need"
    written = {
        key: value for layer in layers if layer.level >= Level.PROJECT for key, value in layer.values.items()
    }
    nodes = max(program.first_node + all_nodes(program) for program in programs)
    if written.get("options.nodes", nodes) != nodes:
        yield "options.nodes", f"{written['options.nodes']} nodes, and the programs have {nodes}", "remove it"
    all_name_gpus = all(program.spec.gpus is not None for program in programs)
    if "gpu" in (written.get("options.gres") or "") and all_name_gpus:
        yield "options.gres", "each program names its gpus: the job's gres has no effect", "remove the GPUs"
    for option in ("array", "ntasks_per_node", "gpus", "gpus_per_task"):
        if f"options.{option}" in written:
            what = f"a job with several programs has no {option}"
            yield f"options.{option}", what, "remove it: each program has its share"


def _program_faults(program: WrittenProgram, programs: Sequence[WrittenProgram]) -> Iterator[_Fault]:
    """Yield the faults of one program, such as names of unknown programs."""
    names, key = [other.name for other in programs], f"{KEY_PREFIX}{program.name}"
    for other in program.spec.needs:
        if other not in names:
            what = f"{program.name} needs '{other}', which is not a program"
            yield f"{key}.needs", what, did_you_mean(other, names)
    if beside := program.spec.beside:
        on_nodes = [other.name for other in programs if other is not program and not other.spec.beside]
        if beside not in on_nodes:
            what = f"{program.name} runs beside '{beside}', which has no nodes here"
            yield f"{key}.beside", what, did_you_mean(beside, on_nodes)
    replicas, nodes = int(program.spec.replicas or 1), int(program.spec.nodes or 1)
    if replicas % nodes and nodes % replicas:
        what = f"{replicas} replicas on {nodes} nodes: they have not all the same share"
        fix = f"set replicas to a multiple of {nodes}, as {nodes * (replicas // nodes + 1)}"
        yield f"{key}.replicas", what, fix
    for named, fact in _named_facts(program.spec):
        if named and named not in names:
            near = nearest(named, names) or names[0]
            yield key, f"{{{named}.{fact}}} names no program of this job", f"write {{{near}.{fact}}}"
            continue
        owner = next(other for other in programs if other.name == (named or program.name))
        if owner is not program and owner.spec.replicas and fact in ("host", "port", "replica"):
            what = f"{{{named}.{fact}}} is of one of {owner.spec.replicas} replicas"
            yield key, what, f"write {{{named}.urls}} for all of them, or {{{named}.urls[@]}} for a word each"
        if fact == "replica" and not owner.spec.replicas:
            yield key, f"{{{fact}}} is the number of a replica", "add replicas: N"


def _old_variable_faults(
    program: WrittenProgram, programs: Sequence[WrittenProgram], layers: Sequence[Layer]
) -> Iterator[_Fault]:
    """Yield a fault for each variable of an older release, such as SERVER_HOST without a prefix.

    Variables got the prefix because a program may read SERVER_HOST as a setting of its own. A variable that
    the job itself sets is not a fault.
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
                yield f"{KEY_PREFIX}{program.name}", what, fix


def _circle(needs: Mapping[str, Sequence[str]]) -> list[str]:
    """Return a circle of programs that need each other, such as [a, b, a]; [] without a circle."""
    try:
        TopologicalSorter(needs).prepare()
    except CycleError as error:
        # reversed, so that each program needs the next one; without the first name, which is also the last
        circle: list[str] = error.args[1][:0:-1]
        first = circle.index(next(name for name in needs if name in circle))  # starts as the job lists them
        return [*circle[first:], *circle[: first + 1]]
    return []


def _named_facts(spec: ProgramSpec) -> Iterator[tuple[str, str]]:
    """Yield program and fact for each fact that the texts of a program name; "" is the program itself."""
    for text in texts_of(spec):
        yield from ((match[1] or "", match[2]) for match in FACT_PATTERN.finditer(text))
