"""The modes: which processes a job starts. A new mode is one more row here, and a section of its page."""

from typing import TYPE_CHECKING, Literal

from sbatchgen.base.frozen import frozen


@frozen(kw_only=True, eq=False)
class Mode:
    """The shape of a job."""

    name: str  # what users write
    title: str = ""  # what starts, as the script's comment says it; "" where the launcher decides that
    gpus: int | None = None  # GPUs of a node that it uses; None for all that the job has
    processes: int | None = 1  # processes on each node; None for one per GPU
    nodes: int = 1  # the nodes of a job that names no number; more than one only where `several_nodes`
    flag: str = ""  # the flag of the bundled trainer that chooses it, or ""
    launchers: tuple[str, ...] = ()  # the launchers that can start its processes; none for a single process

    def __str__(self) -> str:
        return self.name

    @property
    def several_nodes(self) -> bool:
        """Whether a job of the mode may have several nodes."""
        return self.nodes > 1

    @property
    def several_processes(self) -> bool:
        """Whether its processes form a group, which a launcher starts."""
        return self.processes is None

    @property
    def replicates(self) -> bool:
        """Whether its only process has a replica of the model on each GPU."""
        return self.gpus is None and self.processes == 1 and not self.several_nodes

    @property
    def as_group(self) -> str:
        """The options by which its only process is started as a group of ranks, in mode ddp."""
        size = " --nproc-per-node 1" * (self.gpus == 0) + " --gpus-per-node 1" * (self.gpus == 1)
        return f"--set mode=ddp --nodes 1{size}"

    @property
    def uses_gpus(self) -> bool:
        """Whether a job of the mode may use a GPU."""
        return self.gpus != 0


@frozen(kw_only=True, eq=False)
class Starter:
    """A program that starts the tasks of launcher srun, one for each process. A new program is a row here."""

    name: str  # what users write
    command: str  # as bash has it; its tasks are those of the allocation, in the order of nodes
    ranks: str  # how tasks know their ranks: the flag --launcher of the training package


# ibrun: TACC's, which starts the MPI that is loaded. mpirun of Open MPI, Intel MPI and MPICH takes the tasks
# of each node from Slurm's variables (mpirun(1), "Slurm").
STARTERS = {
    starter.name: starter
    for starter in (
        Starter(name="srun", command="srun", ranks="srun"),
        Starter(name="ibrun", command="ibrun", ranks="mpi"),
        Starter(name="mpirun", command='mpirun -n "$SLURM_NTASKS"', ranks="mpi"),
    )
}
AGENTS = ("torchrun", "ft_launcher")  # one on each node, with the same options
LAUNCHERS = ("torchrun", "srun", "spawn", "ft_launcher")
MODES = {
    mode.name: mode
    for mode in (
        Mode(name="cpu", title="one process", gpus=0),
        Mode(name="single", title="one process", gpus=1),
        Mode(name="dataparallel", title="one process with all GPUs", flag="--dataparallel"),
        Mode(name="ddp", processes=None, nodes=2, launchers=LAUNCHERS),
    )
}
# A program of a job that is not a trainer: one task on each of its nodes, with all GPUs that it has there.
COMMAND = Mode(name="command", title="a command", nodes=2)
if TYPE_CHECKING:
    ModeName = str
    Launcher = str
    StarterName = str
else:
    ModeName = Literal[tuple(MODES)]
    Launcher = Literal[LAUNCHERS]
    StarterName = Literal[tuple(STARTERS)]
