"""What a user wants to run: the schema of a job YAML and, as a lower layer, of sbatchgen.yaml."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from sbatchgen.options import SbatchOptions
from sbatchgen.units import EnvName, Resume, ShellPath, Text, Word

Mode = Literal["cpu", "single", "dataparallel", "ddp"]
Launcher = Literal["torchrun", "srun", "spawn"]
RuntimeName = Literal["host", "venv", "conda", "apptainer", "enroot"]
GpuRequest = Literal["gpus_per_node", "gres", "gpus_per_task", "none"]

MODES: tuple[Mode, ...] = ("cpu", "single", "dataparallel", "ddp")
LAUNCHERS: tuple[Launcher, ...] = ("torchrun", "srun", "spawn")
RUNTIMES: tuple[RuntimeName, ...] = ("host", "venv", "conda", "apptainer", "enroot")


@dataclass(kw_only=True, eq=False, repr=False)
class LintSpec:
    """Rules that are off, or of another severity, each by its id or the start of it, as SB4."""

    disable: tuple[Text, ...] = ()
    severity: Mapping[Text, Literal["error", "warning", "info"]] = field(default_factory=dict)


@dataclass(kw_only=True, eq=False, repr=False)
class JobSpec:
    """Everything a job may say; None is "not said here". Values are data, never shell."""

    profile: Text | None = None
    mode: Mode | None = None
    launcher: Launcher | None = None
    runtime: RuntimeName | None = None
    template: Text | None = None
    options: SbatchOptions = field(default_factory=SbatchOptions)
    extra_options: Mapping[Text, Text] = field(default_factory=dict)
    gpu_request: GpuRequest | None = None
    nproc_per_node: int | None = None
    trainer: Text | None = None
    args: tuple[Word, ...] | None = None
    env: Mapping[EnvName, Word] = field(default_factory=dict)
    data: ShellPath | None = None
    run_dir: ShellPath | None = None
    resume: Resume | None = None
    max_restarts: int | None = None
    requeue_on_timeout: bool | None = None
    requeue_on_node_fail: bool | None = None
    image: ShellPath | None = None
    conda_env: ShellPath | None = None
    venv: ShellPath | None = None
    binds: tuple[ShellPath, ...] | None = None
    lint: LintSpec = field(default_factory=LintSpec)
