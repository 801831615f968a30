"""The modes of jobs, the launchers and their programs. They decide which processes a job starts.

A new mode is one more row of MODES, and a new program that starts tasks is one more row of STARTERS.
"""

from typing import TYPE_CHECKING, Literal

from sbatchgen.base.frozen import frozen


@frozen(kw_only=True, eq=False)
class Mode:
    """The shape of a job: how many processes it starts, and on which GPUs and nodes."""

    name: str  # the word that users write, such as "ddp"
    title: str = ""  # the processes in the words of the script's comment; "" if the launcher decides them
    gpus: int | None = None  # how many GPUs it uses on a node; None for all GPUs of the job
    processes: int | None = 1  # how many processes it starts on each node; None for one per GPU
    nodes: int = 1  # the default number of nodes; more than 1 if a job of the mode may have several nodes
    flag: str = ""  # the flag with which the bundled trainer runs in this mode; "" if it needs none
    launchers: tuple[str, ...] = ()  # the launchers that can start its processes; () for a single process

    def __str__(self) -> str:
        return self.name

    @property
    def several_nodes(self) -> bool:
        """Whether a job of the mode may have several nodes."""
        return self.nodes > 1

    @property
    def several_processes(self) -> bool:
        """Whether a job of the mode has a group of processes, which a launcher starts."""
        return self.processes is None

    @property
    def replicates(self) -> bool:
        """Whether the only process has a replica of the model on each GPU."""
        return self.gpus is None and self.processes == 1 and not self.several_nodes

    @property
    def as_group(self) -> str:
        """The options that start the single process of the mode as a group of ranks, in mode ddp."""
        size = " --nproc-per-node 1" * (self.gpus == 0) + " --gpus-per-node 1" * (self.gpus == 1)
        return f"--set mode=ddp --nodes 1{size}"

    @property
    def uses_gpus(self) -> bool:
        """Whether a job of the mode may use a GPU."""
        return self.gpus != 0


@frozen(kw_only=True, eq=False)
class Starter:
    """A program that starts a task for each process, if the launcher is srun."""

    name: str  # the word that users write
    command: str  # the command in bash that starts the tasks of the allocation, in the order of the nodes
    ranks: str  # the training package's value of --launcher, with which the tasks find their ranks


# ibrun is a program of the centre TACC. It starts the MPI of the loaded module. mpirun of Open MPI, Intel MPI
# and MPICH reads the number of tasks on each node from Slurm's variables (mpirun(1), "Slurm").
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
# The mode of a job's program that is not a trainer: one task on each of its nodes, with its GPUs of the node
COMMAND = Mode(name="command", title="a command", nodes=2)
if TYPE_CHECKING:
    ModeName = str
    Launcher = str
    StarterName = str
else:
    ModeName = Literal[tuple(MODES)]
    Launcher = Literal[LAUNCHERS]
    StarterName = Literal[tuple(STARTERS)]
