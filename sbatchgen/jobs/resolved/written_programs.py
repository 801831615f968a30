"""Reads the programs of a job as the user wrote them, and assigns nodes to them.

A text of a program may name facts of programs, such as {server.host}. `FACT_PATTERN` finds these facts.
"""

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from sbatchgen.base.texts import ProgramName
from sbatchgen.jobs.inputs.job_file import ProgramSpec
from sbatchgen.jobs.inputs.layers import Layer

KEY_PREFIX = "programs."  # the start of a program's flat key, such as "programs.server"
FACTS = ("host", "hosts", "port", "nodes", "urls", "replica")  # the facts of a program that texts may name
# "{port}", "{server.host}" or "{server.urls[@]}". With [@], each item of a list becomes an argument of its
# own.
FACT_PATTERN = re.compile(rf"(?<![{{$])\{{(?:([A-Za-z][\w-]*)\.)?({'|'.join(FACTS)})(\[@\])?\}}(?!\}})")


class WrittenProgram(NamedTuple):
    """A program as the user wrote it, with the nodes that it gets."""

    name: ProgramName
    spec: ProgramSpec
    first_node: int  # the index of its first node among the nodes of the job
    nodes: int  # the number of nodes of each replica
    shares_node: bool  # whether other programs or replicas run on its first node
    replicas_per_node: int = 1


def written_programs(layers: Sequence[Layer]) -> list[WrittenProgram]:
    """Return the programs of all layers with their nodes, in the order in which they are written.

    Each program with the key `nodes` gets nodes of its own; the main program gets the first of them. The
    programs without this key share the main program's first node. If the main program has no `nodes` either,
    they share one further node.
    """
    specs: dict[ProgramName, ProgramSpec] = {}
    for key, value in (item for layer in layers for item in layer.values.items()):
        if key.startswith(KEY_PREFIX):
            specs[ProgramName(key.removeprefix(KEY_PREFIX))] = value
    # Programs with `nodes` come first, and the main program is the first of them, as False sorts before True.
    order = sorted(specs, key=lambda name: (not specs[name].nodes, not specs[name].main))
    main = next((name for name in order if specs[name].main), ProgramName())
    next_node = 0
    first_nodes: dict[ProgramName, int] = {}  # a program with `nodes` -> the index of its first node
    for name in order:
        if nodes := specs[name].nodes:
            first_nodes[name], next_node = next_node, next_node + nodes
    shared_node = first_nodes.get(main, next_node)
    programs = [
        _on_nodes(name, spec, first_nodes.get(name, shared_node), has_own_nodes=name in first_nodes)
        for name, spec in specs.items()
    ]
    # Programs with neither `nodes` nor `beside` run on the main program's first node.
    main_shares_node = any(name not in first_nodes and not spec.beside for name, spec in specs.items())
    programs = [
        program._replace(shares_node=program.shares_node or (program.name == main and main_shares_node))
        for program in programs
    ]
    return [_on_nodes_of_other(program, programs) if program.spec.beside else program for program in programs]


def _on_nodes(
    name: ProgramName, spec: ProgramSpec, first_node: int, *, has_own_nodes: bool
) -> WrittenProgram:
    """Return a program on its nodes: its replicas are spread over its own nodes, or all on a shared node."""
    replicas, nodes = spec.replicas or 1, spec.nodes or 1
    replicas_per_node = max(1, replicas // nodes)
    return WrittenProgram(
        name,
        spec,
        first_node,
        nodes=max(1, nodes // replicas),
        shares_node=not has_own_nodes or replicas_per_node > 1,
        replicas_per_node=replicas_per_node,
    )


def _on_nodes_of_other(program: WrittenProgram, programs: Sequence[WrittenProgram]) -> WrittenProgram:
    """Return a program with the key `beside`, on all nodes of the program that this key names."""
    other = next((other for other in programs if other.name == program.spec.beside), None)
    if other is None:  # `refuse_faults` later reports the unknown name
        return program
    return program._replace(first_node=other.first_node, nodes=all_nodes(other), shares_node=False)


def main_program(programs: Sequence[WrittenProgram]) -> WrittenProgram:
    """Return the program with `main: true`; without such a program, the first."""
    return next((program for program in programs if program.spec.main), programs[0])


def all_nodes(program: WrittenProgram) -> int:
    """Return the number of nodes of a program, all its replicas together."""
    return program.nodes * max(1, int(program.spec.replicas or 1) // program.replicas_per_node)


def texts_of(spec: ProgramSpec) -> Iterator[str]:
    """Yield the texts of a program that may name facts: arguments, variables and `ready` signs."""
    yield from (*(spec.command or ()), *(spec.args or ()), *filter(None, spec.env.values()))
    yield from (getattr(spec.ready, name) for name in spec.ready.signs)
