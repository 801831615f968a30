"""A resolved job: all values of a job on a cluster, with their origins. `resolve` makes resolved jobs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import TYPE_CHECKING, Any, Literal

from sbatchgen.base.finding import Place
from sbatchgen.base.frozen import cached_property, frozen
from sbatchgen.base.texts import ProgramName
from sbatchgen.base.units import Resume, ShellPath
from sbatchgen.check.sbatch.gres import requested, requested_gpus
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

TOGETHER = "the programs together"  # the origin of what several programs ask for
GPU_CPUS = "gpu_cpus"  # a value of --cpu-bind: the partition's key
# Options that a request for resources has as they are.
_NUMBERS = "ntasks ntasks_per_node cpus_per_task mem mem_per_cpu mem_per_gpu time time_min".split()  # noqa: SIM905
SNAPSHOT_CODE = ".sbatchgen/code"  # where a snapshot of the code has the training package


def one_at_a_time(array: str) -> bool:
    """Return whether the tasks of an array run one after the other, and are one training, not several."""
    return array.endswith("%1")


@frozen(kw_only=True, eq=False)
class Share:
    """The share of a program in its job: its nodes from `first` on, and the GPUs and CPUs of each node.

    The nodes, GPUs and CPUs of a program with replicas are those of each replica.
    """

    name: ProgramName
    main: bool  # whether the job ends when it does
    first: int
    nodes: int
    shared: bool  # whether others run on its first node
    tasks: int  # of Slurm on each of its nodes
    gpus: int
    cpus: int  # 0: all of its nodes
    gpus_option: Literal["", "gpus-per-node", "gres"]  # of srun, in a job with GPUs
    preset: str = ""  # what runs on each of its nodes beside its command, as ray
    replicas: int = 0  # how often it runs; 0 without replicas
    on_node: int = 1  # replicas on each of its nodes
    beside: str = ""  # the program whose nodes, GPUs and CPUs it uses too

    @property
    def instances(self) -> int:
        """The number of times that the program runs."""
        return self.replicas or 1

    @property
    def all_nodes(self) -> int:
        """The number of its nodes, with those of all replicas."""
        return self.instances // self.on_node * self.nodes

    @property
    def words(self) -> tuple[str, ...]:
        """The names of the program in the script, as words of bash; replicas have numbers, as worker.3."""
        return tuple(f"{self.name}.{number}" for number in range(self.replicas)) or (self.name,)

    @property
    def own_word(self) -> str:
        """The name of the program in its own start, in bash; a replica gets its number as an argument."""
        return f"{self.name}.$1" if self.replicas else self.name


@frozen(kw_only=True, eq=False)
class JobProgram:
    """One of several programs of a job."""

    job: ResolvedJob  # the program as a job of its own, with the same share
    share: Share
    spec: ProgramSpec  # as it is written
    ready: Ready  # its texts are as arguments have them, with {env:host} and {env:port} for what is asked
    lists: tuple[
        tuple[str, str, str], ...
    ] = ()  # of its facts that any program names: itself, urls, [@] or ""

    @property
    def name(self) -> ProgramName:
        """Its name in the job."""
        return self.share.name

    def has_runtime_of(self, job: ResolvedJob) -> bool:
        """Return whether the program runs in the same environment or image as the main program."""
        return (self.job.runtime, self.job.software) == (job.runtime, job.software)


@frozen(kw_only=True, eq=False)
class ResolvedJob:
    """A job on a cluster, everything decided. Counts are per node where the name says so.

    `settings` has how jobs start here: the profile's settings with those of the partition and the job.
    `step` has options of the srun that starts the training: "true" for one without a value, "false" for none.
    `software` has the values of the runtimes' job keys that are set.
    `gpus_per_node` is what the job gets, also where the cluster hands GPUs out without being asked.
    `passed_over` has the partitions that were not chosen, and why not, if the user has named no partition.
    """

    profile: Profile
    partition: Partition
    partition_name: str
    mode: Mode
    launcher: str | None
    runtime: Runtime
    settings: JobSettings
    step: Mapping[str, str]
    software: Mapping[str, Any]
    options: SbatchOptions
    extra_options: Mapping[str, str]
    gpus_per_node: int
    nproc_per_node: int
    name: str
    trainer: str | None
    args: tuple[str, ...]
    checkpoint: str | None
    resume_args: tuple[str, ...]
    metrics: str | None
    hang: str | None
    launcher_args: tuple[str, ...]
    env: Mapping[str, str | None]
    data: ShellPath
    run_dir: ShellPath
    resume: Resume
    max_restarts: int
    chain: int
    requeue_on_timeout: bool
    requeue_on_node_fail: bool
    snapshot_dir: ShellPath | None
    template: str
    origins: Mapping[str, Origin]
    overridden: Mapping[str, tuple[tuple[Any, Origin], ...]]
    sweep: Sweep | None = None
    programs: tuple[JobProgram, ...] = ()  # if it has several: all; the job is the main one
    share: Share | None = None  # of a program, which is a job of its own here
    passed_over: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_command(self) -> bool:
        """Whether the job starts a command instead of a trainer."""
        return self.mode is COMMAND

    @property
    def is_bundled(self) -> bool:
        """Whether the job starts the bundled trainer."""
        return self.trainer is None and not self.is_command

    @property
    def slurm(self) -> bool:
        """Whether Slurm runs the job; otherwise bash runs the script."""
        return self.profile.scheduler == "slurm"

    @property
    def facts(self) -> Any:
        """What the profile says of this job's runtime."""
        return self.settings.facts(self.runtime)

    @property
    def gpu_vendor(self) -> str:
        """Who made the GPUs: nvidia or amd."""
        return self.profile.gpu_vendor

    @property
    def gpu_visibility(self) -> str:
        """Which GPUs a task sees: all GPUs of its node ("node"), or only the GPUs of the task ("task")."""
        return self.settings.gpu_visibility or "node"

    @property
    def starter(self) -> Starter:
        """What starts the tasks of the training."""
        return STARTERS[(self.launcher == "srun" and self.settings.starter) or "srun"]

    @property
    def extended(self) -> dict[str, tuple[str, str]]:
        """The variables that extend a value of the container, with the texts before and after that value."""
        parts = {name: (value or "").split(f"${{{name}}}") for name, value in self.env.items()}
        inside = self.runtime.is_container
        return {name: (two[0], two[1]) for name, two in parts.items() if inside and len(two) == 2}

    @property
    def hides_user_packages(self) -> bool:
        """Whether Python does not find what pip install --user has installed."""
        wanted = self.settings.user_packages
        return "PYTHONUSERBASE" not in self.env if wanted is None else not wanted

    @property
    def binds_to_gpu_cpus(self) -> bool:
        """Whether each task is bound to the CPUs of its GPU, which the job has only with its whole node."""
        of_all = self.nproc_per_node == self.gpus_per_node == len(self.partition.gpu_cpus)
        return self.launcher == "srun" and of_all and self.step.get("cpu-bind") == GPU_CPUS

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return self.options.nodes or 1

    @property
    def jobs(self) -> tuple[ResolvedJob, ...]:
        """The job, and each of its programs as a job of its own."""
        return (self, *(program.job for program in self.programs))

    @property
    def gpus_of_programs(self) -> int:
        """The largest number of GPUs that the programs have on a node."""
        shares = [program.share for program in self.programs if not program.share.beside]
        nodes = range(max(share.first + share.all_nodes for share in shares))
        return max(
            sum(share.gpus * share.on_node for share in shares if 0 <= node - share.first < share.all_nodes)
            for node in nodes
        )

    @property
    def main(self) -> ResolvedJob:
        """Its main program, or the job itself if that is its only program."""
        return next((each.job for each in self.programs if each.share.main), self)

    @property
    def fits_nowhere(self) -> bool:
        """Whether the user has named no partition, and the job can't run in any."""
        return bool(self.passed_over) and self.partition_name in ("", *self.passed_over)

    @property
    def inherited(self) -> tuple[str, ...]:
        """The variables whose values are those of the shell that submits."""
        return tuple(name for name, value in self.env.items() if value is None)

    @property
    def code(self) -> str | None:
        """The folder that holds the training package, unless that is where sbatchgen is installed."""
        copied = f"{self.snapshot_dir}/{SNAPSHOT_CODE}" if self.snapshot_dir and self.slurm else None
        return self.profile.paths.code or copied

    @property
    def shards(self) -> int:
        """Shards of a GPU on each node."""
        return self.resources.shards

    @cached_property
    def placed(self) -> tuple[str, ...]:
        """The parameters of its sweep that have a placeholder in its arguments or variables."""
        texts = (*self.args, *filter(None, self.env.values()))
        return self.sweep.placed(texts) if self.sweep else ()

    @property
    def stoppable(self) -> bool:
        """Whether training may be interrupted and resumed in a later job."""
        return self.resume != "off"

    @property
    def never_asks(self) -> bool:
        """Whether the job is not resumed because its trainer never asks for a restart."""
        return self.slurm and not self.stoppable and self.origin("resume").level is Level.DEFAULT

    @property
    def gives_resume_args(self) -> bool:
        """Whether the trainer gets further arguments once a checkpoint exists."""
        return self.stoppable and bool(self.checkpoint and self.resume_args)

    @property
    def asks_to_stop(self) -> bool:
        """Whether the script asks the trainer to save and stop before the job ends."""
        return self.stoppable and not (self.requeue_on_timeout and self.slurm)

    @property
    def consecutive(self) -> bool:
        """Whether several jobs, of a chain or an array, continue one training one after the other."""
        several = self.chain > 1 or one_at_a_time(self.options.array or "")
        return self.slurm and self.stoppable and several and not self.sweep

    @property
    def restartable(self) -> bool:
        """Whether the training continues after a job that was stopped: requeued, or in the next job."""
        return self.slurm and self.stoppable and (self.max_restarts > 0 or self.consecutive)

    def origin(self, key: str) -> Origin:
        """Return where a value is from; `key` as in "options.nodes" or "runtime"."""
        return self.origins.get(key, BY_DEFAULT)

    @cached_property
    def directives(self) -> dict[str, str]:
        """The options of sbatch by long name, as text, in the script's order; "" for a plain flag."""
        return {name: text for name, text, _ in self._directives()}

    @cached_property
    def resources(self) -> ResourceRequest:
        """What the job asks Slurm for."""
        options = self.options
        asked: dict[str, Any] = {name: getattr(options, name) for name in _NUMBERS}
        asked |= {name: requested_gpus(getattr(options, name)) for name in GPU_OPTIONS if name != "gres"}
        return ResourceRequest(
            options=self.directives,
            places={name: Place(str(self.origin(key))) for name, _, key in self._directives()},
            nodes_min=options.nodes,
            nodes_max=options.nodes,
            **asked,
            gres=requested(options.gres or ""),
            default_partition=self.profile.default_partition or self.partition_name or None,
            processes_per_node=self.nproc_per_node,
        )

    def _directives(self) -> list[tuple[str, str, str]]:
        directives = []
        for name, value in vars(self.options).items():
            long, key = LONG_NAMES[name], f"options.{name}"
            if name == "requeue" and value is False:
                directives.append(("no-requeue", "", key))
            elif value is not None and value is not False:
                directives.append((long, "" if value is True else str(value), key))
        for name, text in self.extra_options.items():
            directives.append((name, "" if text == "true" else str(text), f"extra_options.{name}"))
        for name, text in self.runtime.directives(self).items():
            if name not in self.extra_options:
                directives.append((name, text, name))
        return directives
