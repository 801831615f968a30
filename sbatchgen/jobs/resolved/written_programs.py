"""The programs of a job as the user wrote them, each with its nodes, and the facts that their texts name."""

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from sbatchgen.base.texts import ProgramName
from sbatchgen.jobs.inputs.job_file import ProgramSpec
from sbatchgen.jobs.inputs.layers import Layer

KEY_PREFIX = "programs."  # of the flat key of a program: "programs.server"
FACTS = ("host", "hosts", "port", "nodes", "urls", "replica")  # facts of a program that any program may name
# {port}, {server.host} or {server.urls[@]}; [@] makes each word of a list an argument
FACT_PATTERN = re.compile(rf"(?<![{{$])\{{(?:([A-Za-z][\w-]*)\.)?({'|'.join(FACTS)})(\[@\])?\}}(?!\}})")


class WrittenProgram(NamedTuple):
    """A program as the user wrote it, with its nodes."""

    name: ProgramName
    spec: ProgramSpec
    first: int  # the number of its first node in the job
    nodes: int  # number of nodes of each replica
    shared: bool  # whether other programs or replicas run on its node
    on_node: int = 1  # number of replicas on each of its nodes


def written_programs(layers: Sequence[Layer]) -> list[WrittenProgram]:
    """Return the programs of all layers with their nodes, in the order in which they are written.

    Programs with `nodes` get the first nodes, the main program before the others. The rest share the first
    node of the main program, or one more node if the main program has no `nodes`.
    """
    specs: dict[ProgramName, ProgramSpec] = {}
    for key, value in (item for layer in layers for item in layer.values.items()):
        if key.startswith(KEY_PREFIX):
            specs[ProgramName(key.removeprefix(KEY_PREFIX))] = value
    order = sorted(specs, key=lambda name: (not specs[name].nodes, not specs[name].main))
    main = next((name for name in order if specs[name].main), ProgramName())
    next_node, first_nodes = 0, {}
    for name in order:
        if nodes := specs[name].nodes:
            first_nodes[name], next_node = next_node, next_node + nodes
    shared_node = first_nodes.get(main, next_node)
    programs = [
        _placed(name, spec, first_nodes.get(name, shared_node), own=name in first_nodes)
        for name, spec in specs.items()
    ]
    is_shared = any(name not in first_nodes and not spec.beside for name, spec in specs.items())
    programs = [
        program._replace(shared=program.shared or (program.name == main and is_shared))
        for program in programs
    ]
    return [_placed_beside(program, programs) if program.spec.beside else program for program in programs]


def _placed(name: ProgramName, spec: ProgramSpec, first: int, *, own: bool) -> WrittenProgram:
    """Return a program on its nodes, or on the node that it shares; its replicas are spread over the nodes.

    `first` is the number of the first node; `own` is whether other programs have no place there.
    """
    replicas, nodes = spec.replicas or 1, spec.nodes or 1
    on_node = max(1, replicas // nodes)
    nodes_each = max(1, nodes // replicas)
    return WrittenProgram(name, spec, first, nodes=nodes_each, shared=not own or on_node > 1, on_node=on_node)


def _placed_beside(program: WrittenProgram, programs: Sequence[WrittenProgram]) -> WrittenProgram:
    """Return a program that runs beside another program, with all nodes of that program."""
    other = next((other for other in programs if other.name == program.spec.beside), None)
    if other is None:  # an unknown program is refused elsewhere
        return program
    nodes = other.nodes * max(1, int(other.spec.replicas or 1) // other.on_node)
    return program._replace(first=other.first, nodes=nodes, shared=False)


def main_program(programs: Sequence[WrittenProgram]) -> WrittenProgram:
    """Return the main program: the one with `main`, or the first."""
    return next((program for program in programs if program.spec.main), programs[0])


def all_nodes(program: WrittenProgram) -> int:
    """Return the number of nodes of a program with all its replicas."""
    return program.nodes * max(1, int(program.spec.replicas or 1) // program.on_node)


def texts_of(spec: ProgramSpec) -> Iterator[str]:
    """Yield the texts of a program that may name facts: its arguments, variables and signs of being ready."""
    yield from (*(spec.command or ()), *(spec.args or ()), *filter(None, spec.env.values()))
    yield from (getattr(spec.ready, name) for name in spec.ready.signs)
