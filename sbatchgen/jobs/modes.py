"""The modes of a job, which decide the processes that it starts. A new mode is one more row of MODES."""

from typing import TYPE_CHECKING, Literal

from sbatchgen.base.frozen import frozen


@frozen(kw_only=True, eq=False)
class Mode:
    """The shape of a job."""

    name: str  # what users write
    title: str = ""  # the processes in the words of the script's comment; "" if the launcher decides them
    gpus: int | None = None  # GPUs that it uses on a node; None for all GPUs of the job
    processes: int | None = 1  # processes on each node; None for one per GPU
    nodes: int = 1  # default number of nodes; more than one if a job of the mode may have several nodes
    flag: str = ""  # the flag of the bundled trainer that chooses the mode, or ""
    launchers: tuple[str, ...] = ()  # the launchers that can start its processes; () for a single process

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
        """Command-line options that start its single process as a group of ranks, in mode ddp."""
        size = " --nproc-per-node 1" * (self.gpus == 0) + " --gpus-per-node 1" * (self.gpus == 1)
        return f"--set mode=ddp --nodes 1{size}"

    @property
    def uses_gpus(self) -> bool:
        """Whether a job of the mode may use a GPU."""
        return self.gpus != 0


@frozen(kw_only=True, eq=False)
class Starter:
    """A program that starts one task per process for launcher srun. A new program is a row of STARTERS."""

    name: str  # what users write
    command: str  # its command in bash; it starts the tasks of the allocation, in the order of the nodes
    ranks: str  # the training package's value of --launcher, by which tasks find their ranks


# ibrun is TACC's program, and starts the MPI of the loaded module. mpirun of Open MPI, Intel MPI and MPICH
# reads the number of tasks on each node from Slurm's variables (mpirun(1), "Slurm").
STARTERS = {
    starter.name: starter
    for starter in (
        Starter(name="srun", command="srun", ranks="srun"),
        Starter(name="ibrun", command="ibrun", ranks="mpi"),
        Starter(name="mpirun", command='mpirun -n "$SLURM_NTASKS"', ranks="mpi"),
    )
}
AGENTS = ("torchrun", "ft_launcher")  # launchers with one agent on each node; both have the same options
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
# The mode of a program that is not a trainer: one task on each of its nodes, with all its GPUs there.
COMMAND = Mode(name="command", title="a command", nodes=2)
if TYPE_CHECKING:
    ModeName = str
    Launcher = str
    StarterName = str
else:
    ModeName = Literal[tuple(MODES)]
    Launcher = Literal[LAUNCHERS]
    StarterName = Literal[tuple(STARTERS)]
