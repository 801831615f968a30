"""Defines the resolved job: a job on a cluster with every value decided, and with the origin of each value.

`resolve` makes it from the layers of a profile and a job. Rules judge it, and a script is rendered from it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from sbatchgen.base.finding import Place
from sbatchgen.base.frozen import cached_property, frozen
from sbatchgen.base.texts import ProgramName
from sbatchgen.base.units import Resume, ShellPath
from sbatchgen.check.sbatch.gres import gpu_amounts, gres_amounts
from sbatchgen.check.script.resource_request import ResourceRequest
from sbatchgen.jobs.inputs.job_file import ProgramSpec, Ready
from sbatchgen.jobs.inputs.layers import BY_DEFAULT, Level, Origin
from sbatchgen.jobs.inputs.options import GPU_OPTIONS, LONG_NAMES, SbatchOptions
from sbatchgen.jobs.inputs.profile import Partition, Profile
from sbatchgen.jobs.inputs.start_settings import JobSettings
from sbatchgen.jobs.modes import COMMAND, STARTERS, Mode, Starter
from sbatchgen.jobs.runtimes.base import Runtime

if TYPE_CHECKING:
    from sbatchgen.jobs.resolved.sweep import Sweep

BY_PROGRAMS = "the programs together"  # the origin of options that follow from the shares of all programs
GPU_CPUS = "gpu_cpus"  # the value of --cpu-bind for the CPUs that the partition's key `gpu_cpus` lists
# Options that a ResourceRequest has with the same names and values.
_COPIED_OPTIONS = "ntasks ntasks_per_node cpus_per_task mem mem_per_cpu mem_per_gpu time time_min".split()  # noqa: SIM905
SNAPSHOT_CODE = ".sbatchgen/code"  # the folder of the training package in a snapshot of the code


def runs_one_by_one(array: str) -> bool:
    """Return whether the tasks of an array run one after the other, as in --array=0-9%1.

    Such tasks continue one training.
    """
    return array.endswith("%1")


@frozen(kw_only=True, eq=False)
class Share:
    """The nodes, GPUs and CPUs of a program in a job of several programs.

    If the program has replicas, `nodes`, `gpus_per_node` and `cpus_per_node` are the share of one replica.
    """

    name: ProgramName
    is_main: bool  # whether the job ends when the program ends
    first_node: int  # the index of the program's first node among the nodes of the job
    nodes: int  # the number of nodes
    shares_node: bool  # whether other programs or replicas run on the program's first node
    tasks_per_node: int  # Slurm's tasks
    gpus_per_node: int
    cpus_per_node: int  # 0 for all CPUs of the node
    # The option with which srun requests GPUs for the program; "" in a job without GPUs
    gpu_option: Literal["", "gpus-per-node", "gres"]
    preset: str = ""  # "ray" if the program runs in a Ray cluster that the script starts on its nodes, or ""
    replicas: int = 0  # the number of replicas; 0 for a program without replicas
    replicas_per_node: int = 1
    # The program on whose nodes this program runs, with the same GPUs (the key `beside`); "" without one
    beside_program: str = ""

    @property
    def instances(self) -> int:
        """The number of replicas; 1 for a program without replicas."""
        return self.replicas or 1

    @property
    def all_nodes(self) -> int:
        """The number of nodes on which the program runs, all replicas together."""
        return self.instances // self.replicas_per_node * self.nodes

    @property
    def bash_names(self) -> tuple[str, ...]:
        """The names of the instances in the script: "server", or "worker.0" and so on for replicas."""
        return tuple(f"{self.name}.{number}" for number in range(self.replicas)) or (self.name,)

    @property
    def bash_name(self) -> str:
        """The name of an instance within the bash function that starts it.

        The function gets the number of a replica as its first argument, so the name of a replica is
        "worker.$1".
        """
        return f"{self.name}.$1" if self.replicas else self.name


class NamedList(NamedTuple):
    """A list of a program's hosts, ports or addresses that a text names, such as {server.urls[@]}."""

    program: str  # "server"
    fact: str  # "urls"
    suffix: str  # "[@]" if each item of the list becomes an argument of its own; otherwise ""


@frozen(kw_only=True, eq=False)
class JobProgram:
    """One of several programs of a job."""

    job: ResolvedJob  # the program, resolved as a job of its own that has only the program's share
    share: Share
    spec: ProgramSpec  # the program as the user wrote it
    # The signs that the program is ready. In their texts, {env:host} and {env:port} stand for the host and
    # the port that the script probes.
    ready: Ready
    lists: tuple[NamedList, ...] = ()  # the lists of this program's facts that texts of the job name

    @property
    def name(self) -> ProgramName:
        """The program's name in the job."""
        return self.share.name

    def has_runtime_of(self, job: ResolvedJob) -> bool:
        """Return whether the program runs in the same environment or image as a job."""
        return (self.job.runtime, self.job.software) == (job.runtime, job.software)


@frozen(kw_only=True, eq=False)
class ResolvedJob:
    """A job on a cluster with every value decided.

    The attributes without a comment are keys of job files.
    """

    profile: Profile
    partition: Partition
    partition_name: str
    mode: Mode
    launcher: str | None  # None for a mode without launchers
    runtime: Runtime
    settings: JobSettings  # how jobs start, as the profile, the partition and the job together set it
    # Options of the srun that starts the training. "true" stands for a flag, and "false" removes an option.
    step: Mapping[str, str]
    software: Mapping[str, Any]  # the keys of the runtime that the job or the profile sets, such as `image`
    options: SbatchOptions
    extra_options: Mapping[str, str]
    gpus_per_node: int  # the GPUs that the job gets on each node, even if it does not request GPUs
    nproc_per_node: int
    name: str  # the name of the job
    trainer: str | None  # None for the bundled trainer, or for a command
    args: tuple[str, ...]
    checkpoint: str | None
    resume_args: tuple[str, ...]
    metrics: str | None
    hang: str | None
    launcher_args: tuple[str, ...]
    env: Mapping[str, str | None]  # None for a variable that keeps its value from the shell that submits
    data: ShellPath
    run_dir: ShellPath
    resume: Resume
    max_restarts: int
    chain: int
    requeue_on_timeout: bool
    requeue_on_node_fail: bool
    snapshot_dir: ShellPath | None
    template: str
    origins: Mapping[str, Origin]  # a flat key, such as "options.nodes" -> the origin of its value
    # A flat key -> the values that a higher layer has overridden, with their origins; the highest layer first
    overridden: Mapping[str, tuple[tuple[Any, Origin], ...]]
    sweep: Sweep | None = None
    # The programs of a job with several programs. The job itself then has the values of its main program.
    programs: tuple[JobProgram, ...] = ()
    share: Share | None = None  # the share, if this is a program that is resolved as a job of its own
    # The partitions that sbatchgen did not choose -> the reasons; {} if the user has named a partition
    passed_over: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_command(self) -> bool:
        """Whether the job starts a command of the user instead of a trainer."""
        return self.mode is COMMAND

    @property
    def is_bundled(self) -> bool:
        """Whether the job starts the bundled trainer."""
        return self.trainer is None and not self.is_command

    @property
    def uses_slurm(self) -> bool:
        """Whether Slurm runs the job. Otherwise bash runs its script without Slurm."""
        return self.profile.scheduler == "slurm"

    @property
    def facts(self) -> Any:
        """The profile's settings of this job's runtime: an instance of the class that the runtime names."""
        return self.settings.facts(self.runtime)

    @property
    def gpu_vendor(self) -> str:
        """The maker of the GPUs: "nvidia", "amd" or "intel"."""
        return self.profile.gpu_vendor

    @property
    def gpu_visibility(self) -> str:
        """Which GPUs a task sees: all GPUs of its node ("node"), or only the GPUs of the task ("task")."""
        return self.settings.gpu_visibility or "node"

    @property
    def starter(self) -> Starter:
        """The program that starts the tasks of the training."""
        return STARTERS[(self.launcher == "srun" and self.settings.starter) or "srun"]

    @property
    def extended(self) -> dict[str, tuple[str, str]]:
        """The variables of `env` that extend the value which the variable has in the container.

        Each has the texts before and after this value. For example, PATH=/opt/bin:${PATH} gives "PATH" ->
        ("/opt/bin:", "").
        """
        if not self.runtime.is_container:
            return {}
        parts = {name: (value or "").split(f"${{{name}}}") for name, value in self.env.items()}
        return {name: (texts[0], texts[1]) for name, texts in parts.items() if len(texts) == 2}

    @property
    def hides_user_packages(self) -> bool:
        """Whether Python in the job does not find packages that pip install --user has installed."""
        is_shown = self.settings.user_packages
        return "PYTHONUSERBASE" not in self.env if is_shown is None else not is_shown

    @property
    def binds_to_gpu_cpus(self) -> bool:
        """Whether srun binds each task to the CPUs of its GPU. Only a job with all GPUs of a node can."""
        has_all_gpus = self.nproc_per_node == self.gpus_per_node == len(self.partition.gpu_cpus)
        return self.launcher == "srun" and has_all_gpus and self.step.get("cpu-bind") == GPU_CPUS

    @property
    def nodes(self) -> int:
        """The number of nodes."""
        return self.options.nodes or 1

    @property
    def jobs(self) -> tuple[ResolvedJob, ...]:
        """The job, and each of its programs as a job of its own."""
        return (self, *(program.job for program in self.programs))

    @property
    def gpus_of_programs(self) -> int:
        """The greatest number of GPUs that the programs together use on one node."""
        shares = [program.share for program in self.programs if not program.share.beside_program]
        gpus_by_node: Counter[int] = Counter()  # the index of a node -> its GPUs in use
        for share in shares:
            for node in range(share.first_node, share.first_node + share.all_nodes):
                gpus_by_node[node] += share.gpus_per_node * share.replicas_per_node
        return max(gpus_by_node.values())

    @property
    def main(self) -> ResolvedJob:
        """The job's main program as a job of its own; the job itself if it has only one program."""
        return next((program.job for program in self.programs if program.share.is_main), self)

    @property
    def fits_no_partition(self) -> bool:
        """Whether the job can't run in any partition, although the user lets sbatchgen choose one."""
        return bool(self.passed_over) and self.partition_name in ("", *self.passed_over)

    @property
    def inherited(self) -> tuple[str, ...]:
        """The names of the variables that keep their values from the shell that submits the job."""
        return tuple(name for name, value in self.env.items() if value is None)

    @property
    def code(self) -> str | None:
        """The folder that holds the package `training`; None for the package that sbatchgen brings."""
        in_snapshot = (
            f"{self.snapshot_dir}/{SNAPSHOT_CODE}" if self.snapshot_dir and self.uses_slurm else None
        )
        return self.profile.paths.code or in_snapshot

    @property
    def shards(self) -> int:
        """The number of GPU shards on each node."""
        return self.resources.shards

    @cached_property
    def placeholder_names(self) -> tuple[str, ...]:
        """The parameters of a sweep that have a placeholder such as {lr} in an argument or a variable."""
        texts = (*self.args, *filter(None, self.env.values()))
        return self.sweep.placeholder_names(texts) if self.sweep else ()

    @property
    def stoppable(self) -> bool:
        """Whether the training may be stopped and resumed later, in the same job or in another."""
        return self.resume != "off"

    @property
    def never_asks_for_restart(self) -> bool:
        """Whether `resume` is off only because the user's own trainer never asks for a restart."""
        return self.uses_slurm and not self.stoppable and self.origin("resume").level is Level.DEFAULT

    @property
    def gives_resume_args(self) -> bool:
        """Whether the trainer gets the arguments in `resume_args` once a checkpoint exists."""
        return self.stoppable and bool(self.checkpoint and self.resume_args)

    @property
    def asks_to_stop(self) -> bool:
        """Whether the script asks the trainer to save and stop before the job ends."""
        return self.stoppable and not (self.requeue_on_timeout and self.uses_slurm)

    @property
    def consecutive(self) -> bool:
        """Whether jobs of a chain, or tasks of an array, continue the same training one after the other."""
        has_several_jobs = self.chain > 1 or runs_one_by_one(self.options.array or "")
        return self.uses_slurm and self.stoppable and has_several_jobs and not self.sweep

    @property
    def restartable(self) -> bool:
        """Whether the training continues if the job is stopped: after a requeue, or in the next job."""
        return self.uses_slurm and self.stoppable and (self.max_restarts > 0 or self.consecutive)

    def origin(self, key: str) -> Origin:
        """Return the origin of a value; `key` is a flat key such as "options.nodes" or "runtime"."""
        return self.origins.get(key, BY_DEFAULT)

    @cached_property
    def directives(self) -> dict[str, str]:
        """The options of sbatch by their long names, in the order of the script; "" for a flag."""
        return {name: text for name, text, _ in self._directives()}

    @cached_property
    def resources(self) -> ResourceRequest:
        """The resources that the job requests from Slurm."""
        options = self.options
        copied: dict[str, Any] = {name: getattr(options, name) for name in _COPIED_OPTIONS}
        gpus: dict[str, Any] = {
            name: gpu_amounts(getattr(options, name)) for name in GPU_OPTIONS if name != "gres"
        }
        return ResourceRequest(
            options=self.directives,
            places={name: Place(str(self.origin(key))) for name, _, key in self._directives()},
            nodes_min=options.nodes,
            nodes_max=options.nodes,
            **copied,
            **gpus,
            gres=gres_amounts(options.gres or ""),
            default_partition=self.profile.default_partition or self.partition_name or None,
            processes_per_node=self.nproc_per_node,
        )

    def _directives(self) -> list[tuple[str, str, str]]:
        """Return the long name, the value as text and the flat key of each option of sbatch."""
        directives = []
        for name, value in vars(self.options).items():
            key = f"options.{name}"
            if name == "requeue" and value is False:  # other options have no directive for False
                directives.append(("no-requeue", "", key))
            elif value is not None and value is not False:
                directives.append((LONG_NAMES[name], "" if value is True else str(value), key))
        for name, text in self.extra_options.items():
            directives.append((name, "" if text == "true" else str(text), f"extra_options.{name}"))
        for name, text in self.runtime.directives(self).items():
            if name not in self.extra_options:
                directives.append((name, text, name))
        return directives
