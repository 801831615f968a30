"""The processes that a launcher of MPI starts on the nodes of a job, by the tasks of each node.

Sources: mpirun(1) of Open MPI 4.1 (a node has a slot for each task; slots are filled in the order of nodes),
mpiexec of MPICH's Hydra, and TACC's guide to ibrun.
"""

from collections.abc import Mapping, Sequence

from sbatchgen.check.executables.command_options import program_name, read_options
from sbatchgen.check.executables.program import PROGRAMS, programs
from sbatchgen.lab.plan.batch_job import Grant
from sbatchgen.lab.plan.step_tasks import number_of

_LAUNCHERS = programs("mpi") | {"ibrun"}


def processes_on_nodes(command: Sequence[str], held: Grant) -> Mapping[str, int]:
    """Return how many processes a command of MPI starts on each node; {} if the options hide the number."""
    name, at = program_name(command, _LAUNCHERS)
    if name not in _LAUNCHERS or ":" in command:
        return {}
    table = PROGRAMS.get(name, PROGRAMS["mpirun"])  # -n of ibrun is -n of mpirun
    options = {option: value for option, value, *_ in read_options(command, at, table)[0]}
    places, asked, each = (
        [options[option] for option in table.roles[role] if option in options]
        for role in ("PLACE", "PROCESSES", "EACH")
    )
    if places:
        return {}
    slots = (number_of(each[0]),) * len(held.nodes) if each else held.tasks
    left = number_of(asked[0]) if asked else sum(slots)
    if left > sum(slots):
        return {}  # Open MPI refuses the number; Hydra starts again at the first node
    counts = {}
    for node, slot in zip(held.nodes, slots, strict=True):
        if count := min(slot, left):
            counts[node], left = count, left - count
    return counts
