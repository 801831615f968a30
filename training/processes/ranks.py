"""The rank and the world size of a process, from the variables of torchrun, srun or mpirun.

The module also makes these variables for the processes that `--launcher spawn` starts.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping
from typing import NamedTuple

from training.errors import UserError

# The variables that each launcher sets.
TORCHRUN = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
SRUN = ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS")
# In this order: Open MPI, Intel MPI and MPICH (Hydra), and MVAPICH2. mpirun or a site's ibrun sets them.
# Sources: mpirun(1) of Open MPI 5; the guides of Intel MPI and MVAPICH2.
COMM_WORLD_NAMES = ("RANK", "LOCAL_RANK", "SIZE", "LOCAL_SIZE")
MPI = (
    tuple(f"OMPI_COMM_WORLD_{name}" for name in COMM_WORLD_NAMES),
    ("PMI_RANK", "MPI_LOCALRANKID", "PMI_SIZE", "MPI_LOCALNRANKS"),
    tuple(f"MV2_COMM_WORLD_{name}" for name in COMM_WORLD_NAMES),
)
MEETING = ("MASTER_ADDR", "MASTER_PORT")  # where the ranks meet: the address of rank 0
MEETING_FIX = "export MASTER_ADDR=(first host of the job) MASTER_PORT=(a free port) before srun"


class Place(NamedTuple):
    """The place of this process: `rank` of `size` in the run, `local_rank` of `local_size` on its node."""

    launcher: str = "none"
    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1


def detect(environ: Mapping[str, str], launcher: str) -> Place:
    """Return the place of this process by the variables of `launcher`.

    With "auto" the variables decide on the launcher. Without any launcher, the process is the only one.
    Raises UserError if a variable is missing or wrong.
    """
    # LOCAL_RANK is needed too, because some platforms set RANK and WORLD_SIZE for nodes.
    if launcher == "torchrun" or (launcher == "auto" and all(environ.get(name) for name in TORCHRUN)):
        require_variables(environ, TORCHRUN, fix="start with: torchrun ... -m training")
        return _place("torchrun", environ, TORCHRUN, _number(environ, "LOCAL_WORLD_SIZE", default=1))
    if launcher == "mpi":
        names = next((names for names in MPI if environ.get(names[0])), MPI[0])
        require_variables(environ, names, fix="start with: mpirun python -m training --launcher mpi")
        return _place("mpi", environ, names, _number(environ, names[3]))
    if launcher == "srun" or (launcher == "auto" and all(environ.get(name) for name in SRUN)):
        require_variables(environ, SRUN, fix="start with: srun python -m training")
        is_step = environ.get("SLURM_STEP_ID", "").isdecimal()  # negative in a batch script
        if launcher == "srun" or is_step or tasks(environ) > 1:
            return _place("srun", environ, SRUN, _node_tasks(environ))
    return Place()


def tasks(environ: Mapping[str, str]) -> int:
    """Return the number of tasks of the Slurm step or the job; 1 without SLURM_NTASKS."""
    return _number(environ, "SLURM_NTASKS", default=1)


def spawn_environments(
    environ: Mapping[str, str], processes: int, *, nodes: int = 0, node: int = 0
) -> list[dict[str, str]]:
    """Return the environment of each process that `--launcher spawn` starts on node `node` of `nodes`.

    If `nodes` is 0, Slurm's variables decide on both.
    """
    # This process may have RANK, LOCAL_RANK and WORLD_SIZE, because pyxis sets them. They are replaced.
    if not nodes:
        step_nodes = "SLURM_STEP_NUM_NODES" if "SLURM_STEP_NUM_NODES" in environ else "SLURM_NNODES"
        nodes = _number(environ, step_nodes, default=1)
        node = _number(environ, "SLURM_NODEID") if nodes > 1 else 0
    if nodes > 1:
        require_variables(environ, MEETING, fix=MEETING_FIX)
    shared = {**environ, "WORLD_SIZE": str(nodes * processes), "LOCAL_WORLD_SIZE": str(processes)}
    if nodes == 1:  # an address that a container image may have set is replaced
        with socket.socket() as probe:
            probe.bind(("localhost", 0))
            shared["MASTER_ADDR"], shared["MASTER_PORT"] = "localhost", str(probe.getsockname()[1])
    return [{**shared, "RANK": str(node * processes + i), "LOCAL_RANK": str(i)} for i in range(processes)]


def usable_cpus() -> int:
    """Return the number of CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _place(launcher: str, environ: Mapping[str, str], names: tuple[str, ...], local_size: int) -> Place:
    """Return the place of this process; `names` are the variables of rank, local rank and size.

    Raises UserError if a number is wrong, or if several processes have no address for their rendezvous.
    """
    rank, local_rank, size = (_number(environ, name) for name in names[:3])
    if not rank < size:
        raise UserError(f"{names[0]}={rank} is not below {names[2]}={size}", at="environment")
    if size > 1:
        require_variables(environ, MEETING, fix=MEETING_FIX)
    return Place(launcher, rank, size, local_rank, max(local_size, 1))


def _node_tasks(environ: Mapping[str, str]) -> int:
    """Return the number of the Slurm step's tasks on this node; 1 if it is not known.

    SLURM_STEP_TASKS_PER_NODE has the numbers. For example, "4(x2),3" is two nodes with 4, and one with 3.
    """
    counts: list[int] = []
    for count, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", environ.get("SLURM_STEP_TASKS_PER_NODE", "")):
        counts += [int(count)] * int(times or 1)
    node = _number(environ, "SLURM_NODEID", default=0)
    return counts[node] if node < len(counts) else 1


def require_variables(environ: Mapping[str, str], names: tuple[str, ...], *, fix: str) -> None:
    """Raise UserError if one of these variables is missing or empty."""
    missing = [name for name in names if not environ.get(name)]
    if missing:
        raise UserError(f"{' and '.join(missing)} not set", at="environment", fix=fix)


def _number(environ: Mapping[str, str], name: str, *, default: int | None = None) -> int:
    """Return the number in a variable; raise UserError if it is not a number."""
    text = environ.get(name, "" if default is None else str(default))
    if not text.isdecimal():
        raise UserError(f"{name} is {text!r}, not a number", at="environment")
    return int(text)
