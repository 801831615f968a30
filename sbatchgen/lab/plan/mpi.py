"""Computes how many processes a launcher of MPI starts on each node of a job.

A node has a slot for each of its tasks. The launcher fills the slots in the order of the nodes. Sources:
mpirun(1) of Open MPI 4.1, mpiexec of MPICH's Hydra, and TACC's guide to ibrun.
"""

from collections.abc import Mapping, Sequence

from sbatchgen.check.executables.command_options import program_name, read_options
from sbatchgen.check.executables.program import PROGRAMS, programs
from sbatchgen.lab.plan.batch_job import Grant
from sbatchgen.lab.plan.step_tasks import number_of

_LAUNCHERS = programs("mpi") | {"ibrun"}


def processes_on_nodes(command: Sequence[str], grant: Grant) -> Mapping[str, int]:
    """Return the number of processes that a launcher of MPI starts on each node; {} if it is not known."""
    name, at = program_name(command, _LAUNCHERS)
    if name not in _LAUNCHERS or ":" in command:
        return {}
    program = PROGRAMS.get(name, PROGRAMS["mpirun"])  # ibrun has the option -n of mpirun
    options = {option: value for option, value, *_ in read_options(command, at, program)[0]}
    # The values of options such as --host, of options such as -n, and of options such as --npernode.
    place_values, count_values, node_count_values = (
        [options[option] for option in program.roles[role] if option in options]
        for role in ("PLACE", "PROCESSES", "EACH")
    )
    if place_values:  # --host chooses the nodes, and this module does not read its value
        return {}
    slots = grant.tasks
    if node_count_values:
        slots = (number_of(node_count_values[0]),) * len(grant.nodes)
    remaining = number_of(count_values[0]) if count_values else sum(slots)
    if remaining > sum(slots):
        return {}  # Open MPI refuses so many processes, and Hydra begins again at the first node
    counts = {}
    for node, node_slots in zip(grant.nodes, slots, strict=True):
        if count := min(node_slots, remaining):
            counts[node] = count
            remaining -= count
    return counts
