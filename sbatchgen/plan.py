"""Everything decided about a job on a cluster, and where each value is from. `resolve` makes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import IntEnum
from typing import Any

from sbatchgen.job import JobSpec, Launcher, Mode, RuntimeName
from sbatchgen.options import NAMES, SbatchOptions
from sbatchgen.profile import Partition, Profile
from sbatchgen.units import Resume, ShellPath


class Source(IntEnum):
    """Who said a value; the higher wins."""

    DEFAULT = 0
    PROFILE = 1
    PARTITION = 2
    PROJECT = 3
    JOB = 4
    COMMAND_LINE = 5


@dataclass(frozen=True)
class Origin:
    """Where a value was written: a layer, and a `file:line`, a flag, or the rule it follows from."""

    source: Source
    where: str


BY_DEFAULT = Origin(Source.DEFAULT, "default")


@dataclass(frozen=True)
class Layer:
    """What one source says: "options.nodes" -> 4, each with its place."""

    source: Source
    values: Mapping[str, Any]
    places: Mapping[str, str]


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Plan:
    """A job on a cluster, everything decided. Counts are per node where the name says so."""

    profile: Profile
    partition: Partition
    mode: Mode
    launcher: Launcher | None
    runtime: RuntimeName
    options: SbatchOptions
    extra_options: Mapping[str, str]
    gpus_per_node: int
    shards: int
    nproc_per_node: int
    name: str
    trainer: str | None
    args: tuple[str, ...]
    env: Mapping[str, str]
    data: ShellPath
    run_dir: ShellPath
    resume: Resume
    max_restarts: int
    requeue_on_timeout: bool
    requeue_on_node_fail: bool
    image: ShellPath | None
    conda_env: ShellPath | None
    venv: ShellPath | None
    binds: tuple[ShellPath, ...]
    template: str
    origins: Mapping[str, Origin]
    overridden: Mapping[str, tuple[tuple[Any, Origin], ...]]

    @property
    def slurm(self) -> bool:
        """Whether Slurm runs the job; otherwise it is plain bash."""
        return self.profile.scheduler == "slurm"

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return self.options.nodes or 1

    @property
    def stoppable(self) -> bool:
        """Whether the job may end before the training does, which then goes on in a later one."""
        return self.resume != "off"

    @property
    def asks_to_stop(self) -> bool:
        """Whether the script asks the trainer to stop and save before the job ends."""
        return self.stoppable and not (self.requeue_on_timeout and self.slurm)

    @property
    def restartable(self) -> bool:
        """Whether the job asks to be started again when it was stopped before its end."""
        return self.slurm and self.stoppable and self.max_restarts > 0

    def origin(self, key: str) -> Origin:
        """Where a value is from; `key` as in "options.nodes" or "runtime"."""
        return self.origins.get(key, BY_DEFAULT)


def layer(source: Source, spec: JobSpec, places: Mapping[str, str]) -> Layer:
    """What a job spec says, flat."""
    values: dict[str, Any] = {}
    for field in fields(JobSpec):
        value = getattr(spec, field.name)
        if field.name == "options":
            values |= option_values(value)
        elif field.name == "lint":
            continue  # of scripts as they stand, not of the job
        elif isinstance(value, Mapping):
            values |= {f"{field.name}.{key}": item for key, item in value.items()}
        elif value is not None:
            values[field.name] = value
    return Layer(source, values, places)


def option_values(options: SbatchOptions) -> dict[str, Any]:
    """The options that are set: "options.nodes" -> 4."""
    return {_KEYS[name]: value for name, value in vars(options).items() if value is not None}


_KEYS = {name: f"options.{name}" for name in NAMES}


def gpu_count(request: str) -> int:
    """The number in a GPU request of the form [type:]count[,...]; a word alone is one GPU."""
    counts = [item.rsplit(":", 1)[-1] for item in request.split(",")]
    return sum(int(count) if count.isdecimal() else 1 for count in counts)
