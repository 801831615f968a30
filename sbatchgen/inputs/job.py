"""What a user wants to run: the schema of a job YAML, and of sbatchgen.yaml."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from sbatchgen.inputs.options import SbatchOptions, described
from sbatchgen.units import Argument, Count, EnvName, Resume, ShellPath, Text

Mode = Literal["cpu", "single", "dataparallel", "ddp"]
Launcher = Literal["torchrun", "srun", "spawn"]
RuntimeName = Literal["host", "venv", "conda", "apptainer", "enroot"]
GpuRequest = Literal["gpus_per_node", "gres", "gpus_per_task", "none"]

MODES: tuple[Mode, ...] = get_args(Mode)
LAUNCHERS: tuple[Launcher, ...] = get_args(Launcher)
RUNTIMES: tuple[RuntimeName, ...] = get_args(RuntimeName)


@dataclass(kw_only=True, eq=False, repr=False)
class LintSpec:
    """Rules that are off or have another severity, by id or the start of one, as SB4."""

    disable: tuple[Text, ...] = described("Rules that are off, by id or the start of one.", make=tuple)
    severity: Mapping[Text, Literal["error", "warning", "info"]] = described(
        "Severity of rules, by id or the start of one.", make=dict
    )


@dataclass(kw_only=True, eq=False, repr=False)
class JobSpec:
    """Everything a job may set; None is "not set here". Values are data, never shell."""

    profile: Text | None = described("Profile of the cluster.", metavar="NAME|FILE", group="Job", common=True)
    mode: Mode | None = described("cpu, single, dataparallel or ddp.")
    launcher: Launcher | None = described("How the processes of mode ddp start.", group="Launch", common=True)
    runtime: RuntimeName | None = described("Where Python comes from.", group="Runtime", common=True)
    image: ShellPath | None = described(
        "Container image, a file or a registry address.", metavar="IMAGE", group="Runtime", common=True
    )
    conda_env: ShellPath | None = described(
        "Conda environment, by name or path.", metavar="NAME|PATH", group="Runtime", common=True
    )
    venv: ShellPath | None = described("Virtual environment.", metavar="PATH", group="Runtime", common=True)
    gpu_request: GpuRequest | None = described("How the script asks for GPUs.", group="Launch")
    nproc_per_node: int | None = described("Processes on each node (mode ddp).", metavar="N", group="Launch")
    run_dir: ShellPath | None = described(
        "Run folder: checkpoints, status, log. [default: runs/NAME]",
        metavar="PATH",
        group="Training",
        common=True,
    )
    data: ShellPath | None = described(
        "Data set.", flag="--data-dir", metavar="PATH", group="Training", common=True
    )
    resume: Resume | None = described(
        "Resume from the newest checkpoint, not at all, or from a file.",
        metavar="auto|off|FILE",
        group="Training",
        common=True,
    )
    max_restarts: int | None = described(
        "How often the job may requeue itself before its time limit.", metavar="N", group="Training"
    )
    chain: Count | None = described(
        "Jobs that continue the training one after the other, where jobs may not requeue themselves.",
        metavar="N",
        group="Training",
        common=True,
    )
    trainer: Text | None = described(
        "Your own program instead of the bundled trainer.",
        metavar="FILE|MODULE",
        group="Training",
        common=True,
    )
    args: tuple[Argument, ...] | None = described("Arguments of the trainer.")
    snapshot_dir: ShellPath | None = described(
        "Copy of the code to run, as submit --snapshot makes it.", metavar="PATH", group="Training"
    )
    template: Text | None = described("Template of the script.", metavar="NAME", group="Job")
    binds: tuple[ShellPath, ...] | None = described(
        "Folder to mount in the container.", flag="--bind", metavar="SRC[:DST]", group="Runtime", common=True
    )
    env: Mapping[EnvName, Argument | None] = described(
        "Environment variable of the job; without =VALUE, that of the shell that submits.",
        make=dict,
        metavar="NAME[=VALUE]",
        group="Training",
        common=True,
    )
    requeue_on_timeout: bool | None = described(
        "Requeue the job at its time limit, for a trainer that resumes by itself.", group="Training"
    )
    requeue_on_node_fail: bool | None = described(
        "When a node fails, wait until Slurm notices it and requeues the job.", group="Training"
    )
    options: SbatchOptions = described("Options of sbatch.", make=SbatchOptions)
    extra_options: Mapping[Text, Text] = described(
        "Other options of sbatch, by their long names; true for one without a value.",
        make=dict,
    )
    lint: LintSpec = described("Settings of lint.", make=LintSpec)
