"""What a script starts: each launch with its step, its launcher and its program, and how many of them run.

    for launch in subject.processes.launches:  # srun --nodes=2 torchrun --nproc-per-node=4 train.py
        launch.step.name, launch.launcher.name, launch.program.name  # "srun", "torchrun", "train.py"
        launch.nodes(job), launch.tasks_per_node(job), launch.workers(job)  # 2, 1, 4

Sources: srun(1) and sbatch(1) of Slurm 22.05, OUTPUT ENVIRONMENT VARIABLES; torch/distributed/run.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from sbatchgen.bash.body import SHELLS, Body, string_body
from sbatchgen.bash.launch import Tool, ToolOption, chain
from sbatchgen.plan.resources import Amounts, Resources

if TYPE_CHECKING:
    from sbatchgen.bash import Command

LAUNCHERS = frozenset(("torchrun", "accelerate launch", "deepspeed"))
MPI = frozenset(("mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prterun"))
CONTAINERS = frozenset(("apptainer exec", "apptainer run", "singularity exec", "singularity run"))
_STARTERS = """
srun accelerate apptainer singularity python env exec command time timeout nohup setsid stdbuf nice ionice
numactl taskset conda uv nsys eval
"""
STARTERS = LAUNCHERS | MPI | SHELLS | frozenset(_STARTERS.split())
_HELPERS = """
[ awk cat chmod cp cut date dd df du echo enroot env false find free grep head hostname ib_write_bw id ip ls
lscpu mkdir module mv nproc nvidia-smi pip pkill printenv printf ps pwd rm rocm-smi rsync scontrol sed sleep
sort stat sync tail tar tee test touch tr true ulimit uname unzip venv wc which whoami
"""
HELPERS = frozenset(_HELPERS.split())
_HIDDEN = re.compile(r"torchrun|deepspeed|accelerate")  # as in python $(which torchrun)
_PYTHON = re.compile(r"python[\d.]*")
_SCRIPT = re.compile(r"\.(?:sh|bash|slurm|sbatch|job)$")
_ENVIRONMENT = re.compile(r"(?:activate|\.sh|rc|profile|env|setvars\S*)$")


@dataclass(frozen=True, kw_only=True)
class Launch:
    """A command that starts programs.

    Attributes:
        command: The command of the script.
        tools: What starts what, from the command on; the last is the program.
    """

    command: Command
    tools: tuple[Tool, ...]

    @cached_property
    def step(self) -> Tool | None:
        """The srun; None where the program runs in the batch script's own place."""
        return self._first(frozenset(("srun",)))

    @cached_property
    def launcher(self) -> Tool | None:
        """torchrun, accelerate launch or deepspeed, however they are called."""
        return self._first(LAUNCHERS)

    @cached_property
    def mpi(self) -> Tool | None:
        """The mpirun or mpiexec."""
        return self._first(MPI)

    @cached_property
    def container(self) -> Tool | None:
        """The command of a container that it passes through; not srun --container-image."""
        return self._first(CONTAINERS)

    @property
    def program(self) -> Tool:
        """What is started in the end."""
        return self.tools[-1]

    @cached_property
    def is_python(self) -> bool:
        """Whether the program is one of Python."""
        return any(tool.name == "python" or tool.name in LAUNCHERS for tool in self.tools)

    @cached_property
    def is_helper(self) -> bool:
        """Whether the program is a small one, such as hostname, that no training depends on."""
        name = self.program.name.rpartition("/")[2]
        return name in HELPERS or (
            self.launcher is None and "--version" in (w.text for w in self.program.rest)
        )

    @cached_property
    def is_training(self) -> bool:
        """Whether it starts a program of Python, in the place where the script's work is done."""
        code = next((tool for tool in self.tools if tool.name == "python"), None)
        inline = code is not None and code.option("c") is not None
        return self.is_python and not self.is_helper and not inline and not self.command.context.substitution

    @cached_property
    def is_native(self) -> bool:
        """Whether srun itself starts each process of a training."""
        if self.step is None or self.launcher or self.mpi or not self.is_training:
            return False
        return not _HIDDEN.search(self.program.words[0].text if self.program.words else "")

    @property
    def step_gpus(self) -> ToolOption | None:
        """The option of the step that gives it other GPUs than the job's."""
        names = ("gpus", "gpus-per-node", "gpus-per-task", "gres")
        return next((one for name in names if self.step and (one := self.step.option(name))), None)

    def nodes(self, job: Resources) -> int | None:
        """On how many nodes its first program starts; None where the text does not tell."""
        if self.step is None:
            return 1
        given = self.step.option("nodes")
        return number(given, self.step, job) if given else fixed_nodes(job)

    def tasks(self, job: Resources) -> int | None:
        """How many times the step starts its program; None where the text does not tell."""
        if self.step is None:
            return 1
        given = self.step.option("ntasks")
        if given:
            return number(given, self.step, job)
        nodes, each = self.nodes(job), self.step.option("ntasks-per-node")
        if each:
            count = number(each, self.step, job)
            return nodes * count if nodes is not None and count is not None else None
        if job.ntasks:
            return job.ntasks
        return nodes * (job.ntasks_per_node or 1) if nodes is not None else None

    def tasks_per_node(self, job: Resources) -> int | None:
        """Of the busiest node; None where the text does not tell."""
        if self.step is not None and (each := self.step.option("ntasks-per-node")):
            return number(each, self.step, job)
        tasks, nodes = self.tasks(job), self.nodes(job)
        return -(-tasks // max(nodes, 1)) if tasks is not None and nodes is not None else None

    def workers(self, job: Resources) -> int | None:
        """How many processes its launcher starts on a node; None where the text does not tell."""
        launcher = self.launcher
        if launcher is None:
            return None
        if launcher.name == "accelerate launch":
            total = number(launcher.option("num-processes"), launcher, job)
            machines = launcher.option("num-machines")
            alone = 1 if fixed_nodes(job) == 1 else None  # else a file of its own may tell
            nodes = number(machines, launcher, job) if machines else alone
            return -(-total // nodes) if total is not None and nodes else None
        given = launcher.option("num-gpus" if launcher.name == "deepspeed" else "nproc-per-node")
        return number(given, launcher, job) if given or launcher.name != "torchrun" else 1

    def _first(self, names: frozenset[str]) -> Tool | None:
        return next((tool for tool in self.tools if tool.name in names), None)


class Processes:
    """What a script starts.

    Attributes:
        body: Its body.
    """

    def __init__(self, body: Body) -> None:
        self.body = body

    @cached_property
    def launches(self) -> tuple[Launch, ...]:
        """The commands that start programs through others or with Python, in the order of the text."""
        return tuple(launch for command in self.body.commands for launch in _launches(command, self.body))

    @cached_property
    def trainings(self) -> tuple[Launch, ...]:
        """Those that start the work: programs of Python."""
        return tuple(launch for launch in self.launches if launch.is_training)

    @cached_property
    def steps(self) -> tuple[Launch, ...]:
        """Those with srun."""
        return tuple(launch for launch in self.launches if launch.step is not None)

    @cached_property
    def unseen(self) -> bool:
        """Whether the script starts others, or what a variable holds: there may be launches in them."""
        return any(_is_unseen(command, self.body) for command in self.body.commands) or any(
            _is_opaque(launch.program) for launch in self.launches if not launch.command.context.substitution
        )


def _launches(command: Command, body: Body) -> Iterator[Launch]:
    name = command.name
    if command.test or not (name in STARTERS or not name or _PYTHON.fullmatch(name)):
        return
    if name == "eval" and len(command.words) == 2:
        inner = string_body(body, command.words[1])
        for each in inner.commands:
            for launch in _launches(each, inner) if each.name != "eval" else ():
                if not each.context.substitution:
                    yield Launch(command=command, tools=launch.tools)
        return
    tools = chain(command, body)
    if tools and _starts(tools):
        yield Launch(command=command, tools=tools)


def _starts(tools: tuple[Tool, ...]) -> bool:
    """Whether tools start a program, and are not a word about one, a command of conda or the text of $( )."""
    if "describe" in tools[0].options:
        return False
    return (
        len(tools) > 1
        or tools[0].name == "python"
        or (_is_opaque(tools[0]) and not tools[0].name.startswith(("$(", "`")))
    )


def _is_opaque(program: Tool) -> bool:
    """Whether a program is a shell's script or what can't be followed."""
    name = program.name
    if name in SHELLS:
        return bool(program.rest) or program.option("command") is not None
    return name[:1] in '$`"' or "$" in name or bool(_SCRIPT.search(name))


def _is_unseen(command: Command, body: Body) -> bool:
    """Whether it runs another script in this shell or a new one."""
    name = command.name
    if name in ("source", "."):
        sourced = body.text_of(command.words[1]) if len(command.words) > 1 else ""
        return not _ENVIRONMENT.search(sourced)
    if name == "eval" and len(command.words) == 2:
        return not any(word.kind == "command" for word in command.words[1].pieces) and any(
            piece.kind == "variable" for piece in body.followed(command.words[1]).pieces
        )
    return name in ("make", "sbatch", "xargs", "parallel", "pdsh", "clush") or bool(_SCRIPT.search(name))


def fixed_nodes(job: Resources) -> int | None:
    """The nodes of a job; None where --nodes is a range."""
    return job.nodes if job.nodes_max in (None, job.nodes_min) else None


def number(option: ToolOption | None, tool: Tool, job: Resources) -> int | None:
    """The number that an option's value is, also as one of Slurm's variables; None where it can't be told."""
    if option is None:
        return None
    if option.value is not None:
        return int(option.value) if re.fullmatch(r"\d{1,9}", option.value, re.ASCII) else None
    return slurm_number(variable(option, tool), job)


def variable(option: ToolOption, tool: Tool) -> str:
    """The name of the variable that an option's value is; "" where it is something else."""
    word = option.value_word
    if word is None:
        return ""
    pieces = list(tool.body.followed(word).pieces)
    if word is option.word and pieces and re.fullmatch(r"--?[\w-]+=?", pieces[0].text):
        pieces = pieces[1:]
    if len(pieces) == 1 and pieces[0].kind == "variable" and not pieces[0].subscript:
        return pieces[0].name if pieces[0].operator in ("", ":-", ":?") else ""
    return ""


def slurm_number(name: str, job: Resources) -> int | None:
    """What a variable of Slurm holds in a job; None where it is not one, not set, or no plain number."""
    nodes = fixed_nodes(job)
    tasks = nodes * job.ntasks_per_node if nodes is not None and job.ntasks_per_node else None
    held = {
        "SLURM_NNODES": nodes,
        "SLURM_JOB_NUM_NODES": nodes,
        "SLURM_NTASKS": job.ntasks or tasks,
        "SLURM_NPROCS": job.ntasks or tasks,
        "SLURM_NTASKS_PER_NODE": job.ntasks_per_node,
        "SLURM_CPUS_PER_TASK": job.cpus_per_task,
        "SLURM_GPUS_ON_NODE": job.gpu_count or None,
        "SLURM_GPUS": _untyped(job.gpus),
        "SLURM_GPUS_PER_NODE": _untyped(job.gpus_per_node),
        "SLURM_GPUS_PER_TASK": _untyped(job.gpus_per_task),
    }
    return held.get(name)


def _untyped(asked: Amounts | None) -> int | None:
    """The number of a --gpus option that names no type: with one, the variable is no number."""
    return asked[0][1] if asked and len(asked) == 1 and not asked[0][0] else None
