"""The resolved job: all values of a job on a cluster, with their origins. `resolve` makes it from layers."""

from __future__ import annotations

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
GPU_CPUS = "gpu_cpus"  # a value of --cpu-bind that stands for the CPUs in the partition's key gpu_cpus
# Options whose values a ResourceRequest has unchanged, under the same names.
_COPIED_OPTIONS = "ntasks ntasks_per_node cpus_per_task mem mem_per_cpu mem_per_gpu time time_min".split()  # noqa: SIM905
SNAPSHOT_CODE = ".sbatchgen/code"  # the folder of the training package in a snapshot of the code


def runs_one_by_one(array: str) -> bool:
    """Return whether the tasks of --array run one after the other, as in 0-9%1, and continue one training."""
    return array.endswith("%1")


@frozen(kw_only=True, eq=False)
class Share:
    """The nodes, GPUs and CPUs of a program in its job.

    `nodes`, `gpus_per_node` and `cpus_per_node` are the share of one replica, if the program has replicas.
    """

    name: ProgramName
    is_main: bool  # whether the job ends when the program ends
    first_node: int  # the number of its first node in the job, counted from 0
    nodes: int
    shares_node: bool  # whether other programs or replicas run on its first node
    tasks_per_node: int  # Slurm's tasks
    gpus_per_node: int
    cpus_per_node: int  # 0 for all CPUs of the node
    gpu_option: Literal["", "gpus-per-node", "gres"]  # srun's option for GPUs; "" in a job without GPUs
    preset: str = ""  # a service that runs on each of its nodes next to its command: "ray" or ""
    replicas: int = 0  # how often it runs; 0 without replicas
    replicas_per_node: int = 1
    beside: str = ""  # the name of the program whose nodes, GPUs and CPUs it also uses; or ""

    @property
    def instances(self) -> int:
        """The number of times that the program runs."""
        return self.replicas or 1

    @property
    def all_nodes(self) -> int:
        """The number of the program's nodes, all replicas together."""
        return self.instances // self.replicas_per_node * self.nodes

    @property
    def bash_names(self) -> tuple[str, ...]:
        """The name of each instance in the script: "server", or "worker.0" and so on for replicas."""
        return tuple(f"{self.name}.{number}" for number in range(self.replicas)) or (self.name,)

    @property
    def bash_name(self) -> str:
        """The name of an instance in the bash function that starts it; a replica's number is argument 1."""
        return f"{self.name}.$1" if self.replicas else self.name


class NamedList(NamedTuple):
    """A list of hosts, ports or addresses that a text names, such as {server.urls[@]}."""

    program: str  # "server"
    fact: str  # "urls"
    suffix: str  # "[@]" if each item becomes an argument of its own, else ""


@frozen(kw_only=True, eq=False)
class JobProgram:
    """One of several programs of a job."""

    job: ResolvedJob  # the program as a job of its own, with the same share
    share: Share
    spec: ProgramSpec  # as the user wrote it
    ready: Ready  # its texts have {env:host} and {env:port} for the host and port that the script probes
    lists: tuple[NamedList, ...] = ()  # lists about this program that any program of the job names

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

    `settings` are the profile's settings of how jobs start, merged with the partition's and the job's.
    `step` has options of the srun that starts the training: "true" for a flag, "false" to leave it out.
    `software` has the values of a runtime's keys that are set, such as `image`.
    `gpus_per_node` also counts GPUs that the cluster gives to jobs without a request for GPUs.
    `passed_over` has the partitions that sbatchgen did not choose, each with the reason; it is {} if the user
    names a partition.
    `origins` has the origin of each value, by flat key such as "options.nodes". `overridden` has the values
    of lower layers with their origins, the highest layer first.
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
    # All programs of a job with several; the job itself then has the values of its main program.
    programs: tuple[JobProgram, ...] = ()
    share: Share | None = None  # the program's share, if this is a program resolved as a job of its own
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
        """The variables that extend the container's value, each with the texts before and after that value.

        For example, "PATH" -> ("/opt/bin:", "") for the variable PATH=/opt/bin:${PATH}.
        """
        if not self.runtime.is_container:
            return {}
        parts = {name: (value or "").split(f"${{{name}}}") for name, value in self.env.items()}
        return {name: (texts[0], texts[1]) for name, texts in parts.items() if len(texts) == 2}

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
        """The number of GPUs that all programs together use on the node where they use the most."""
        shares = [program.share for program in self.programs if not program.share.beside]
        nodes = range(max(share.first_node + share.all_nodes for share in shares))
        return max(
            sum(
                share.gpus_per_node * share.replicas_per_node
                for share in shares
                if 0 <= node - share.first_node < share.all_nodes
            )
            for node in nodes
        )

    @property
    def main(self) -> ResolvedJob:
        """The job's main program as a job of its own; the job itself if it has only one program."""
        return next((program.job for program in self.programs if program.share.is_main), self)

    @property
    def fits_no_partition(self) -> bool:
        """Whether the user has named no partition, and the job can't run in any."""
        return bool(self.passed_over) and self.partition_name in ("", *self.passed_over)

    @property
    def inherited(self) -> tuple[str, ...]:
        """The names of the variables whose values come from the shell that submits."""
        return tuple(name for name, value in self.env.items() if value is None)

    @property
    def code(self) -> str | None:
        """The folder that holds the training package; None for the package that sbatchgen brings."""
        in_snapshot = f"{self.snapshot_dir}/{SNAPSHOT_CODE}" if self.snapshot_dir and self.slurm else None
        return self.profile.paths.code or in_snapshot

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
    def never_asks_for_restart(self) -> bool:
        """Whether `resume` is off only because the job's own trainer never asks for a restart."""
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
        """Whether the jobs of a chain, or the tasks of an array, continue one training in turn."""
        has_several_jobs = self.chain > 1 or runs_one_by_one(self.options.array or "")
        return self.slurm and self.stoppable and has_several_jobs and not self.sweep

    @property
    def restartable(self) -> bool:
        """Whether the training continues when the job is stopped: after a requeue, or in the next job."""
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
        """Return long name, text and flat key of each option of sbatch."""
        directives = []
        for name, value in vars(self.options).items():
            long, key = LONG_NAMES[name], f"options.{name}"
            if name == "requeue" and value is False:  # of other options, False gives no directive
                directives.append(("no-requeue", "", key))
            elif value is not None and value is not False:
                directives.append((long, "" if value is True else str(value), key))
        for name, text in self.extra_options.items():
            directives.append((name, "" if text == "true" else str(text), f"extra_options.{name}"))
        for name, text in self.runtime.directives(self).items():
            if name not in self.extra_options:
                directives.append((name, text, name))
        return directives
