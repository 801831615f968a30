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
    table = PROGRAMS.get(name, PROGRAMS["mpirun"])  # -n of ibrun is -n of mpirun
    options = {option: value for option, value, *_ in read_options(command, at, table)[0]}
    placing, total, per_node = (
        [options[option] for option in table.roles[role] if option in options]
        for role in ("PLACE", "PROCESSES", "EACH")
    )
    if placing:  # an option such as --host chooses the nodes, and this module does not read its value
        return {}
    slots = (number_of(per_node[0]),) * len(grant.nodes) if per_node else grant.tasks
    remaining = number_of(total[0]) if total else sum(slots)
    if remaining > sum(slots):
        return {}  # Open MPI refuses so many processes, and Hydra begins again at the first node
    counts = {}
    for node, node_slots in zip(grant.nodes, slots, strict=True):
        if count := min(node_slots, remaining):
            counts[node] = count
            remaining -= count
    return counts
