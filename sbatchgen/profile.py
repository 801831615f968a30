"""Facts of a cluster, owned by the people who run it: the schema of a profile.

The records of this module, of `job` and of `options` are not frozen, and have no comparison: what dataclasses
generates for that would be a fifth of what `render` takes beyond its libraries. Nobody changes them.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from sbatchgen.errors import did_you_mean
from sbatchgen.job import GpuRequest, Launcher, RuntimeName
from sbatchgen.options import NAMES, SbatchOptions
from sbatchgen.units import Count, Duration, EnvName, Memory, Port, Release, ShellPath, Text, Word

_INTERFACE = re.compile(r"[^\s/,^=]{1,15}")  # of Linux: IFNAMSIZ


@dataclass(kw_only=True, eq=False, repr=False)
class Partition:
    """What a job may ask for in one partition, per node where a name says so; None is "not known"."""

    time_max: Duration | None = None
    time_default: Duration | None = None
    nodes: Text | None = None  # host names, as n[1-16]
    nodes_max: Count | None = None
    nodes_min: Count | None = None
    cpus_per_node: Count | None = None
    cpus_per_gpu: Count | None = None
    threads_per_core: Count | None = None
    gpus_per_node: int | None = None
    gpu_type: Text | None = None
    gpu_types: Mapping[Text, int] = field(
        default_factory=dict
    )  # GPUs of a node by type, where there are several
    gpus_typed: bool = (
        True  # False: gres.conf gives the GPUs no type, so that a job that names one never fits
    )
    mem_per_node: Memory | None = None
    mem_per_cpu_default: Memory | None = None
    mem_per_cpu_max: Memory | None = None
    shards_per_gpu: Count | None = None
    features: tuple[Text, ...] = ()
    accounts: tuple[Text, ...] = ()  # that may use it; empty: any
    qos: tuple[Text, ...] = ()
    state: Literal["up", "down", "drain", "inactive"] = "up"
    exclusive: bool = False  # OverSubscribe=EXCLUSIVE: whole nodes, whatever was asked for
    reservation_only: bool = False
    options: SbatchOptions = field(default_factory=SbatchOptions)

    def faults(self) -> Iterator[tuple[str, str, str]]:
        """What is wrong with values that are right one by one: the key, what, and a fix."""
        gpus, types = self.gpus_per_node, self.gpu_types
        if gpus is not None and gpus < 0:
            yield "gpus_per_node", f"{gpus} GPUs on a node", "write 0 or more"
        elif gpus is not None and types and sum(types.values()) != gpus:
            what = f"gpu_types name {sum(types.values())} GPUs, gpus_per_node {gpus}"
            yield "gpu_types", what, "make the two agree"
        for low, high in (
            ("time_default", "time_max"),
            ("nodes_min", "nodes_max"),
            ("mem_per_cpu_default", "mem_per_cpu_max"),
        ):
            least, most = getattr(self, low), getattr(self, high)
            if least is not None and most is not None and least > most:
                yield low, f"{least} is more than {high} {most}", f"write {low}: {most}, or less"
        time, most = self.options.time, self.time_max
        if time is not None and most is not None and time > most:
            yield "options", f"time {time} is more than time_max {most}", f"write time: {most}, or less"


@dataclass(kw_only=True, eq=False, repr=False)
class Network:
    """How processes on several nodes find each other."""

    nccl_socket_ifname: Text | None = None
    gloo_socket_ifname: Text | None = None
    nccl_ib_hca: Text | None = None
    port_base: Port = field(default_factory=lambda: Port(20000))  # ephemeral ports start at 32768
    port_count: Count = field(default_factory=lambda: Count(10000))

    def faults(self) -> Iterator[tuple[str, str, str]]:
        """What is wrong with values that are right one by one: the key, what, and a fix."""
        most = Port.LAST - self.port_base + 1
        if self.port_count > most:
            what = f"{self.port_count} ports from {self.port_base} on go beyond the last one, {Port.LAST}"
            yield "port_count", what, f"write port_count: {most}, or less"
        for name in (self.gloo_socket_ifname or "").split(","):  # NCCL alone knows ^ and =
            if name and not _INTERFACE.fullmatch(name):
                what = f"gloo takes names of interfaces, and '{name}' is none"
                yield "gloo_socket_ifname", what, "name them, as ib0 or ib0,ib1"


@dataclass(kw_only=True, eq=False, repr=False)
class Conda:
    """A conda installation (`root`) and the environment to activate, by name or by path."""

    root: ShellPath | None = None
    env: ShellPath | None = None


@dataclass(kw_only=True, eq=False, repr=False)
class Venv:
    """A virtual environment."""

    path: ShellPath | None = None


@dataclass(kw_only=True, eq=False, repr=False)
class Apptainer:
    """An image, what is bound into it (SRC or SRC:DST), and the flag that gives it the GPUs."""

    image: ShellPath | None = None
    binds: tuple[ShellPath, ...] = ()
    gpu_flag: Text = field(default_factory=lambda: Text("--nv"))


@dataclass(kw_only=True, eq=False, repr=False)
class Enroot:
    """An image for Enroot through pyxis, what is mounted into it, and the folder to start in."""

    image: ShellPath | None = None
    mounts: tuple[ShellPath, ...] = ()
    workdir: ShellPath | None = None


@dataclass(kw_only=True, eq=False, repr=False)
class Runtimes:
    """The ways to bring a Python with torch; each may be set up or not."""

    conda: Conda = field(default_factory=Conda)
    venv: Venv = field(default_factory=Venv)
    apptainer: Apptainer = field(default_factory=Apptainer)
    enroot: Enroot = field(default_factory=Enroot)


@dataclass(kw_only=True, eq=False, repr=False)
class Paths:
    """Where data sets, run folders and the bundled training package lie on this cluster."""

    data: ShellPath | None = None
    runs: ShellPath | None = None
    code: ShellPath | None = None


@dataclass(kw_only=True, eq=False, repr=False)
class Qos:
    """Limits of a quality of service on one job."""

    time_max: Duration | None = None
    nodes_max: int | None = None
    gpus_max: int | None = None
    cpus_max: int | None = None
    deny_on_limit: bool = False  # refused at once, where other jobs would wait for ever


@dataclass(kw_only=True, eq=False, repr=False)
class Limits:
    """What slurm.conf says for all partitions; None is "not known"."""

    enforce_part_limits: Literal["no", "any", "all"] | None = None
    max_array_size: int | None = None
    max_array_tasks: int | None = None
    several_gpus_per_sharing_job: bool = False  # SelectTypeParameters=MULTIPLE_SHARING_GRES_PJ


@dataclass(kw_only=True, eq=False, repr=False)
class Profile:
    """A cluster. `setup` lines are shell, run as they stand; everything else is data.

    `policies` gives rules the severity that they have here, by their ids, as SB228: error.
    """

    name: Text
    url: Text
    checked: Text
    contact: Text | None = None
    description: Text | None = None
    slurm: Release | None = None
    scheduler: Literal["slurm", "none", "env"] = "slurm"
    partitions: Mapping[Text, Partition] = field(default_factory=dict)
    default_partition: Text | None = None
    limits: Limits = field(default_factory=Limits)
    qos: Mapping[Text, Qos] = field(default_factory=dict)
    gres_types: tuple[Text, ...] = ()
    licenses: tuple[Text, ...] = ()
    plugin_options: tuple[Text, ...] = ()  # of sbatch, from the site's plugins; name= for one with a value
    policies: Mapping[Text, Literal["error", "warning", "info", "off"]] = field(default_factory=dict)
    gpu_request: GpuRequest = "gpus_per_node"
    modules: tuple[Text, ...] = ()
    setup: tuple[Text, ...] = ()
    env: Mapping[EnvName, Word] = field(default_factory=dict)
    network: Network = field(default_factory=Network)
    runtime: RuntimeName = "host"
    launcher: Launcher = "torchrun"
    runtimes: Runtimes = field(default_factory=Runtimes)
    paths: Paths = field(default_factory=Paths)
    options: SbatchOptions = field(default_factory=SbatchOptions)
    modes: Mapping[Literal["cpu", "single", "dataparallel", "ddp"], SbatchOptions] = field(
        default_factory=dict
    )
    template: Text | None = None
    required: tuple[Text, ...] = ()
    omit: tuple[Text, ...] = ()
    extra_options: Mapping[Text, Text] = field(default_factory=dict)

    def faults(self) -> Iterator[tuple[str, str, str]]:
        """What is wrong with values that are right one by one: the key, what, and a fix."""
        for key in ("required", "omit"):
            for name in getattr(self, key):
                if name not in NAMES:
                    yield key, f"'{name}' is no option", did_you_mean(name, NAMES)
        default = self.default_partition
        if default and self.partitions and default not in self.partitions:
            fix = did_you_mean(default, self.partitions)
            yield "default_partition", f"there is no partition '{default}' here", fix
