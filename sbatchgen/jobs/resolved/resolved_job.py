"""The resolved job: all values of a job on a cluster, with their origins. `resolve` makes it from layers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import TYPE_CHECKING, Any, Literal

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

TOGETHER = "the programs together"  # the origin of options that follow from the shares of several programs
GPU_CPUS = "gpu_cpus"  # a value of --cpu-bind that stands for the CPUs in the partition's key gpu_cpus
# Options that a resource request has under the same names.
_NUMBERS = "ntasks ntasks_per_node cpus_per_task mem mem_per_cpu mem_per_gpu time time_min".split()  # noqa: SIM905
SNAPSHOT_CODE = ".sbatchgen/code"  # the folder of the training package in a snapshot of the code


def one_at_a_time(array: str) -> bool:
    """Return whether the tasks of an array run one after the other, and so continue one training."""
    return array.endswith("%1")


@frozen(kw_only=True, eq=False)
class Share:
    """The share of a program in its job: its nodes from `first` on, and the GPUs and CPUs of each node.

    The nodes, GPUs and CPUs of a program with replicas are those of each replica.
    """

    name: ProgramName
    main: bool  # whether the job ends when the program ends
    first: int  # the number of its first node in the job
    nodes: int
    shared: bool  # whether other programs run on its first node
    tasks: int  # number of Slurm's tasks on each of its nodes
    gpus: int  # number of GPUs on each of its nodes
    cpus: int  # number of CPUs on each of its nodes; 0 for all of them
    gpus_option: Literal["", "gpus-per-node", "gres"]  # srun's option for GPUs; "" in a job without GPUs
    preset: str = ""  # a service that runs on each of its nodes next to its command, such as "ray"; or ""
    replicas: int = 0  # how often it runs; 0 without replicas
    on_node: int = 1  # number of replicas on each of its nodes
    beside: str = ""  # the program whose nodes, GPUs and CPUs it also uses; or ""

    @property
    def instances(self) -> int:
        """The number of times that the program runs."""
        return self.replicas or 1

    @property
    def all_nodes(self) -> int:
        """The number of its nodes, all replicas together."""
        return self.instances // self.on_node * self.nodes

    @property
    def words(self) -> tuple[str, ...]:
        """The names of the program in the script, as words of bash: "server", or "worker.3" for a replica."""
        return tuple(f"{self.name}.{number}" for number in range(self.replicas)) or (self.name,)

    @property
    def own_word(self) -> str:
        """The name of the program in the bash function that starts it; a replica's number is argument 1."""
        return f"{self.name}.$1" if self.replicas else self.name


@frozen(kw_only=True, eq=False)
class JobProgram:
    """One of several programs of a job."""

    job: ResolvedJob  # the program as a job of its own, with the same share
    share: Share
    spec: ProgramSpec  # as the user wrote it
    ready: Ready  # its texts have {env:host} and {env:port} for the host and port that the script probes
    # Lists of its facts that the job's programs name: its name, the fact, and "[@]" for a word each, or "".
    lists: tuple[tuple[str, str, str], ...] = ()

    @property
    def name(self) -> ProgramName:
        """The program's name in the job."""
        return self.share.name

    def has_runtime_of(self, job: ResolvedJob) -> bool:
        """Return whether the program runs in the same environment or image as the main program."""
        return (self.job.runtime, self.job.software) == (job.runtime, job.software)


@frozen(kw_only=True, eq=False)
class ResolvedJob:
    """A job on a cluster with every value decided.

    `settings` are the profile's settings of how jobs start, merged with the partition's and the job's.
    `step` has options of the srun that starts the training: "true" for a flag, "false" to leave it out.
    `software` has the values of the runtimes' job keys that are set, such as `image`.
    `gpus_per_node` is what the job gets, even if the cluster gives GPUs to jobs that request none.
    `passed_over` has the partitions that were not chosen, each with the reason, if the user named none.
    `origins` and `overridden` have the origin of each flat key's value, and the values that it overrode.
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
    programs: tuple[JobProgram, ...] = ()  # all programs of a job with several; the job is the main program
    share: Share | None = None  # the share of a program that is resolved as a job of its own
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
        """The profile's settings of this job's runtime, as the runtime's `Facts`."""
        return self.settings.facts(self.runtime)

    @property
    def gpu_vendor(self) -> str:
        """The maker of the GPUs: "nvidia" or "amd"."""
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
        """The variables that extend the container's value, each with the texts before and after it."""
        parts = {name: (value or "").split(f"${{{name}}}") for name, value in self.env.items()}
        inside = self.runtime.is_container
        return {name: (two[0], two[1]) for name, two in parts.items() if inside and len(two) == 2}

    @property
    def hides_user_packages(self) -> bool:
        """Whether Python does not find what pip install --user has installed."""
        shown = self.settings.user_packages
        return "PYTHONUSERBASE" not in self.env if shown is None else not shown

    @property
    def binds_to_gpu_cpus(self) -> bool:
        """Whether srun binds each task to the CPUs of its GPU; the job must have all GPUs of the node."""
        has_all_gpus = self.nproc_per_node == self.gpus_per_node == len(self.partition.gpu_cpus)
        return self.launcher == "srun" and has_all_gpus and self.step.get("cpu-bind") == GPU_CPUS

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
        """The largest number of GPUs that all programs together use on a node."""
        shares = [program.share for program in self.programs if not program.share.beside]
        nodes = range(max(share.first + share.all_nodes for share in shares))
        return max(
            sum(share.gpus * share.on_node for share in shares if 0 <= node - share.first < share.all_nodes)
            for node in nodes
        )

    @property
    def main(self) -> ResolvedJob:
        """Its main program as a job of its own; the job itself if it has only one program."""
        return next((program.job for program in self.programs if program.share.main), self)

    @property
    def fits_nowhere(self) -> bool:
        """Whether the user has named no partition, and the job can't run in any."""
        return bool(self.passed_over) and self.partition_name in ("", *self.passed_over)

    @property
    def inherited(self) -> tuple[str, ...]:
        """The names of the variables whose values come from the shell that submits."""
        return tuple(name for name, value in self.env.items() if value is None)

    @property
    def code(self) -> str | None:
        """The folder that holds the training package; None for the one that sbatchgen brings."""
        copy = f"{self.snapshot_dir}/{SNAPSHOT_CODE}" if self.snapshot_dir and self.slurm else None
        return self.profile.paths.code or copy

    @property
    def shards(self) -> int:
        """The number of GPU shards on each node."""
        return self.resources.shards

    @cached_property
    def placed(self) -> tuple[str, ...]:
        """The parameters of the sweep that have a placeholder in the job's arguments or variables."""
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
        """Return the origin of a value; `key` is a flat key such as "options.nodes" or "runtime"."""
        return self.origins.get(key, BY_DEFAULT)

    @cached_property
    def directives(self) -> dict[str, str]:
        """The options of sbatch by long name, as text, in the script's order; "" for a plain flag."""
        return {name: text for name, text, _ in self._directives()}

    @cached_property
    def resources(self) -> ResourceRequest:
        """The job's request to Slurm."""
        options = self.options
        numbers: dict[str, Any] = {name: getattr(options, name) for name in _NUMBERS}
        gpus: dict[str, Any] = {
            name: gpu_amounts(getattr(options, name)) for name in GPU_OPTIONS if name != "gres"
        }
        return ResourceRequest(
            options=self.directives,
            places={name: Place(str(self.origin(key))) for name, _, key in self._directives()},
            nodes_min=options.nodes,
            nodes_max=options.nodes,
            **numbers,
            **gpus,
            gres=gres_amounts(options.gres or ""),
            default_partition=self.profile.default_partition or self.partition_name or None,
            processes_per_node=self.nproc_per_node,
        )

    def _directives(self) -> list[tuple[str, str, str]]:
        """Return long name, text and flat key of each option of sbatch."""
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
