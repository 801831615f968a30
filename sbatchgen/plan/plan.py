"""Everything decided about a job on a cluster, and where each value is from. `resolve` makes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sbatchgen.inputs.job import Launcher, Mode, RuntimeName
from sbatchgen.inputs.layers import BY_DEFAULT, Origin
from sbatchgen.inputs.options import SbatchOptions
from sbatchgen.inputs.profile import Partition, Profile
from sbatchgen.units import Resume, ShellPath


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


def gpu_count(request: str) -> int:
    """The number in a GPU request of the form [type:]count[,...]; a word alone is one GPU."""
    counts = [item.rsplit(":", 1)[-1] for item in request.split(",")]
    return sum(int(count) if count.isdecimal() else 1 for count in counts)
