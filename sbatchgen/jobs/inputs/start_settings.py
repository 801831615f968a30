"""The keys that set how jobs start, in a profile, in each of its partitions and modes, and in a job."""

import re
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Literal

from sbatchgen.base.keys import described, make_record, record
from sbatchgen.base.texts import DirectiveLine, EnvName, EnvValue, Preflight, StepOption
from sbatchgen.base.units import Argument, Count, Port, ShellPath, Text
from sbatchgen.check.cluster_facts import StartFacts
from sbatchgen.jobs.inputs.options import SbatchOptions
from sbatchgen.jobs.modes import Launcher, StarterName
from sbatchgen.jobs.runtimes import RUNTIMES, RuntimeName
from sbatchgen.jobs.runtimes.base import NoFacts, Runtime

GpuRequest = Literal["gpus_per_node", "gres", "gpus_per_task", "gpus", "none"]
list_key = partial(described, extended=True)  # a key with a list; `KEY+` adds to the list of lower layers
# Keys with lines of shell, in the order in which the script runs the lines.
SETUPS = ("setup_before_modules", "setup", "setup_per_node", "setup_after_runtime", "setup_per_task")
_INTERFACE = r"[^\s/,^=]{1,15}"  # a network interface, such as "ib0"; Linux's IFNAMSIZ limits its length

# Keys of `network` that become variables of the training. The key is the variable's name in lower case.
NETWORK_VARIABLES = ("nccl_socket_ifname", "gloo_socket_ifname", "nccl_ib_hca")


@record
class Network:
    """How processes on several nodes find each other."""

    nccl_socket_ifname: Text | None = described(
        "NCCL_SOCKET_IFNAME: interface for NCCL, or ^docker,lo for all but these."
    )
    gloo_socket_ifname: Text | None = described("GLOO_SOCKET_IFNAME: interface for gloo.")
    nccl_ib_hca: Text | None = described("NCCL_IB_HCA: InfiniBand adapters for NCCL.")
    port_base: Port | None = described(
        "First port for jobs. [default: 7000 ports below the ports that the kernel gives to any program]"
    )
    port_count: Count = described("How many ports jobs share, from port_base on.", make=lambda: Count(10000))

    def faults(self) -> Iterator[tuple[str, str, str]]:
        """Yield values that contradict each other: the key, what is wrong, and a fix."""
        max_count = Port.LAST - (self.port_base or 0) + 1
        if self.port_base and self.port_count > max_count:
            what = f"{self.port_count} ports from {self.port_base} on end above the last port, {Port.LAST}"
            yield "port_count", what, f"write port_count: {max_count}, or less"
        for name in (self.gloo_socket_ifname or "").split(","):  # only NCCL knows ^ (all but) and = (exactly)
            if name and not re.fullmatch(_INTERFACE, name):
                what = f"gloo needs names of network interfaces, but '{name}' is not such a name"
                yield "gloo_socket_ifname", what, "name the interfaces, such as ib0 or ib0,ib1"


# The fields of the record Runtimes, one for each runtime with settings: attribute, type and key.
_RUNTIME_FIELDS = [
    (runtime.attribute, runtime.Facts, described(runtime.title, make=runtime.Facts, key=runtime.name))
    for runtime in RUNTIMES.values()
    if runtime.Facts is not NoFacts
]
_RUNTIMES_DOCSTRING = "Where a Python with torch comes from, by runtime."
Runtimes: Any = make_record("Runtimes", _RUNTIMES_DOCSTRING, _RUNTIME_FIELDS, __name__)

_Visibility = Literal["node", "task"]
_VISIBILITY_KEY = described(
    "The GPUs that a task sees: all GPUs of the node, or only its own GPU, as device 0. [default: node]"
)


@record
class StartSettings:
    """Settings of jobs that may differ by partition and also by launcher."""

    env: Mapping[EnvName, EnvValue] = described(
        "Variables of the job, in order; the job expands ${NAME} in their values.", make=dict
    )
    options: SbatchOptions = described("Options of sbatch.", make=SbatchOptions)
    step: Mapping[StepOption, Text] = described(
        "Options of srun, by their long names: true for one without a value, false to leave one out.",
        make=dict,
    )
    gpu_visibility: _Visibility | None = _VISIBILITY_KEY


@record
class PlaceSettings:
    """Settings that each place may have: profile, partition, mode, sbatchgen.yaml, job, command line.

    A later place in this order wins. Mappings are merged key by key. A list replaces the list of earlier
    places, and `KEY+` adds to that list. A field here is a key in all places: the resolved job has its value
    as `resolved.settings.KEY`, and `explain` shows where it was written.
    """

    directives: tuple[DirectiveLine, ...] = list_key(
        "Lines at the head of the script that other programs read, as '#DW jobdw ...' (burst buffers).", ()
    )
    modules: tuple[Text, ...] = list_key("Modules to load, in order; use PATH adds a folder of modules.", ())
    module_start: Literal["purge", "reset", "keep"] | None = described(
        "What to do with modules that are loaded already. [default: purge, if modules are given]"
    )
    setup_before_modules: tuple[Text, ...] = list_key(
        "Lines of shell to run before the modules are loaded.", ()
    )
    setup: tuple[Text, ...] = list_key("Lines of shell to run before the runtime is set up.", ())
    setup_per_node: tuple[Text, ...] = list_key(
        "Lines of shell that run once on each node, before the runtime is set up.", ()
    )
    setup_after_runtime: tuple[Text, ...] = list_key("Lines of shell to run once the runtime is set up.", ())
    setup_per_task: tuple[Text, ...] = list_key(
        "Lines of shell that run in each task of the training's step, before its program.", ()
    )
    preflight: Preflight | bool | None = described(
        "Check each node and GPU before the training; exclude: start again without bad nodes.",
        group="Launch",
        metavar="true|false|exclude",
    )
    starter: StarterName | None = described(
        "The program that starts the tasks of launcher srun. Only srun uses `step`. [default: srun]"
    )
    python: ShellPath | None = described("Command that starts Python: a name or a path. [default: python3]")
    user_packages: bool | None = described(
        "Whether Python finds what pip install --user has installed. [default: false, without PYTHONUSERBASE]"
    )
    master_addr: Text | None = described(
        "Command that prints the address of the first node, where it runs. [default: the node's name]"
    )
    network: Network = described("How processes on several nodes find each other.", make=Network)
    gpu_visibility: _Visibility | None = _VISIBILITY_KEY
    runtimes: Runtimes = described("Where a Python with torch comes from.", make=Runtimes)

    def facts(self, runtime: Runtime) -> Any:
        """Return the settings of a runtime as a record of its class `Facts`; None if it has no settings."""
        return getattr(self.runtimes, runtime.attribute, None)


@record
class ModeSettings(SbatchOptions, PlaceSettings):
    """Settings of one mode."""

    step: Mapping[StepOption, Text] = described("Options of srun, by their long names.", make=dict)


@record
class LauncherSettings(StartSettings):
    """Settings of one launcher."""

    args: tuple[Argument, ...] = described("Arguments of torchrun, as --tee=3.", ())

    def faults(self) -> Iterator[tuple[str, str, str]]:
        """Yield values that contradict each other: the key, what is wrong, and a fix."""
        yield from _partition_fault("options", self.options)


def _partition_fault(key: str, options: SbatchOptions) -> Iterator[tuple[str, str, str]]:
    """Yield a fault if options name a partition, but hold only for one launcher or for jobs with GPUs."""
    if options.partition:
        yield key, "a partition can't be chosen here", "write modes: {ddp: {partition: NAME}}"


@record
class JobSettings(StartSettings, PlaceSettings, StartFacts):
    """Settings that decide how jobs start, in a profile and in each of its partitions."""

    gpu_request: GpuRequest | None = described("How jobs ask for GPUs. [default: gpus_per_node]")
    runtime: RuntimeName | None = described(
        "Where Python comes from, unless the job says otherwise. [default: host]"
    )
    launcher: Launcher | None = described(
        "How processes start, unless the job says otherwise. [default: torchrun]"
    )
    gpu_options: SbatchOptions = described("Options of sbatch for jobs with GPUs.", make=SbatchOptions)
    launchers: Mapping[Launcher, LauncherSettings] = described(
        "Settings of jobs with one launcher.", make=dict
    )

    @property
    def job_env(self) -> Iterator[tuple[str, str]]:
        """Names and values of the variables that jobs may get, also those for only one launcher."""
        for settings in (self, *self.launchers.values()):
            yield from ((str(name), str(value)) for name, value in settings.env.items())

    @property
    def job_qos(self) -> str:
        """The quality of service of a job that sbatchgen renders; "" for Slurm's default."""
        return str(self.options.qos or "")

    @property
    def interfaces(self) -> Mapping[str, str]:
        """Names of network interfaces and adapters, by variable: "NCCL_SOCKET_IFNAME" -> "ib0"."""
        by_variable = {key.upper(): getattr(self.network, key) for key in NETWORK_VARIABLES}
        return {variable: str(names) for variable, names in by_variable.items() if names}

    def faults(self) -> Iterator[tuple[str, str, str]]:
        """Yield values that contradict each other: the key, what is wrong, and a fix."""
        yield from _partition_fault("gpu_options", self.gpu_options)
