"""Defines what a runtime is: the source of a job's Python, such as a virtual environment or a container.

`Runtime` has a default for each attribute and method, and `ContainerRuntime` has more of them for containers.
The functions below them help the modules of runtimes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

from sbatchgen.base import quoting
from sbatchgen.base.keys import described, record
from sbatchgen.base.units import VARIABLE, ShellPath
from sbatchgen.jobs.modes import Mode

if TYPE_CHECKING:
    from sbatchgen.check.bash import Command as Command  # noqa: PLC0414 - for the modules of runtimes
    from sbatchgen.check.bash import Word
    from sbatchgen.check.bash.body import Body
    from sbatchgen.check.bash.chain import Tool as Tool  # noqa: PLC0414
    from sbatchgen.check.bash.chain import ToolOption

SUBMIT_DIR = "${SLURM_SUBMIT_DIR}"
# Bash variables of the script whose values only the running job knows
_FOLDERS_OF_JOB = ("$PWD", "$RUN_DIR", "$DATA_DIR", "$CODE_DIR")
# A function that returns a path of the job as a path on this machine; None if a variable in it is not set.
FindLocal = Callable[[ShellPath], Path | None]
# The vendor of GPUs -> the variables that select which GPUs a process sees. AMD's second, third and fourth
# variable select from the GPUs that the first has selected, and count these from 0 again. So two variables
# may together hide all GPUs. Source: rocm.docs.amd.com, "GPU isolation techniques".
GPU_VARIABLES = {
    "nvidia": ("CUDA_VISIBLE_DEVICES",),
    "intel": ("ZE_AFFINITY_MASK",),
    "amd": ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL"),
}


if TYPE_CHECKING:

    class _Job(Protocol):
        """The attributes of a `ResolvedJob` that runtimes read."""

        @property
        def mode(self) -> Mode: ...
        @property
        def uses_slurm(self) -> bool: ...
        @property
        def gpu_vendor(self) -> str: ...
        @property
        def gpus_per_node(self) -> int: ...
        @property
        def shards(self) -> int: ...
        @property
        def launcher(self) -> str | None: ...
        @property
        def nproc_per_node(self) -> int: ...
        @property
        def runtime(self) -> Runtime: ...
        @property
        def software(self) -> Mapping[str, Any]: ...
        @property
        def facts(self) -> Any: ...
        @property
        def env(self) -> Mapping[str, str | None]: ...
        @property
        def snapshot_dir(self) -> ShellPath | None: ...

    class _Draft(Protocol):
        """The attributes and methods that runtimes use of the `Draft` which `adopt` makes of a script."""

        job: dict[str, Any]
        profile: dict[str, Any]
        folder: str | None

        @property
        def body(self) -> Body: ...
        def path(self, word: Word, body: Body) -> str | None: ...
        def file(self, word: Word, body: Body) -> str | None: ...
        def option_path(self, tool: Tool, option: ToolOption, *, file: bool = False) -> str | None: ...
        def adopt_env_option(self, tool: Tool, option: ToolOption) -> None: ...
        def option_paths(self, tool: Tool, option: ToolOption) -> list[str]: ...
        def lose(self, reason: str, *names: str) -> None: ...
        def note(self, text: str) -> None: ...

    class _Launch(Protocol):
        """The attributes that runtimes read of the `Launch` of a training in a script."""

        @property
        def tools(self) -> tuple[Tool, ...]: ...
        @property
        def program(self) -> Tool: ...

    RuntimeJob = _Job
    ScriptDraft = _Draft
    ScriptLaunch = _Launch
else:  # protocols take time to make, and only type checkers need them
    RuntimeJob = ScriptDraft = ScriptLaunch = Command = Tool = Any


class Key(NamedTuple):
    """A job key that belongs to a runtime."""

    name: str
    kind: Any  # the type of its value
    field: Any  # its dataclass field, made by `described`
    fact: str  # the key of the runtime's `Facts` whose value is its default


class ImageTool(NamedTuple):
    """A command of a container program that prepares an image, for `sbatchgen image VERB`."""

    verb: str  # the VERB, such as "pull"
    words: tuple[str, ...]  # the command; the new file and the source follow as its last two arguments
    scratch: tuple[str, str]  # the names of its variables for a temporary folder and for a cache
    uri: Callable[[str], str]  # turns the user's source into the command's argument; raises CommandLineError
    older: str = ""  # an older name of the program, which is used if PATH does not have the first name


class Requirement(NamedTuple):
    """A job key without which a runtime can't start."""

    key: str
    what: str  # its value in words: "an image"
    flag: str  # its flag with an example of a value: "--image FILE.sif"


class KeyFault(NamedTuple):
    """A fault in the value of a job key."""

    key: str
    what: str  # what is wrong
    fix: str


@record
class NoFacts:
    """The facts of a runtime that has no keys in profiles."""


class Runtime:
    """The source of a job's Python. A subclass defines only the attributes and methods that it needs."""

    name: str  # the name that users write, such as "venv"
    title: str  # the help of its key in profiles
    Facts: type = NoFacts  # the class of its settings in profiles, below `runtimes.NAME`
    keys: tuple[Key, ...] = ()  # its keys in jobs
    # The job key without which the runtime can't start. In a job that names no runtime, this key chooses it.
    requires: Requirement | None = None
    # The bash function that sets up the runtime, from the file of this name in templates/mechanics; or ""
    function = ""
    # The commands that start a program in the runtime, by their names in programs.txt, such as "uv run"
    starts: tuple[str, ...] = ()
    srun_option = ""  # the option of srun that starts the runtime, such as "container-image"; or ""
    is_container = False  # whether the training runs in a container
    # Whether the script mounts the folders of the run in the container. Otherwise the runtime does so itself.
    mounts_run_folders = False
    may_use_modules = False  # whether Python may get packages of environment modules by PYTHONPATH
    finds_user_packages = True  # whether Python finds packages in ~/.local unless PYTHONNOUSERSITE is set
    needs_slurm = ""  # why the runtime needs Slurm, or ""
    why_one_line_values = ""  # why values of variables can't have line breaks; "" if they can
    mount_options = ""  # a regular expression for the options that may follow SRC:DST: in a mount
    # Whether removing the container may take longer than the time that a job has after SIGTERM
    removes_slowly = False
    image_tools: tuple[ImageTool, ...] = ()  # the commands that prepare an image
    # A bash script that runs its arguments in the job's container, as a Slurm step in the running job; or ""
    enter_script = ""
    # The runtime's variables of templates, with their values in jobs of other runtimes
    values_in_other_jobs: ClassVar[Mapping[str, Any]] = {}
    image_ending = ""  # the ending of image files that only this runtime can start, or ""

    def __str__(self) -> str:
        return self.name

    @property
    def attribute(self) -> str:
        """The name of the runtime as a Python identifier: "podman_hpc" for podman-hpc."""
        return self.name.replace("-", "_")

    def needs(self, facts: Any) -> Requirement | None:
        """Return the job key that the runtime requires with these settings of the profile."""
        return self.requires

    def variables(self, job: RuntimeJob, folder_variable: str, exported: Sequence[str]) -> dict[str, Any]:
        """Return the runtime's variables of templates; jobs of others have those in `values_in_other_jobs`.

        `folder_variable` is the name of the bash variable that holds the folder of submission. `exported` has
        the names of the variables that the training must get.
        """
        return {}

    def assignments(self, job: RuntimeJob, folder_variable: str) -> Iterator[str]:
        """Yield lines of bash that set the variables which the runtime's `function` reads.

        `folder_variable` is the name of the bash variable that holds the folder of submission.
        """
        yield from ()

    def setup_commands(self, job: RuntimeJob, mounted: Sequence[str]) -> Iterator[str]:
        """Yield the lines of bash that set up the runtime; a container mounts the `mounted` folders."""
        if self.function:
            yield self.function

    def exports(self, job: RuntimeJob) -> dict[str, str]:
        """Return the variables that the training gets from the runtime, with their values."""
        return {}

    def computed_words(self, job: RuntimeJob) -> dict[str, str]:
        """Return variables of the training whose values bash computes in the job.

        Each value is a word of bash, such as "${CUDA_VISIBLE_DEVICES:+all}" in double quotes.
        """
        return {}

    def directives(self, job: RuntimeJob) -> Mapping[str, str]:
        """Return the options of sbatch that the runtime adds, by their long names, with their values."""
        return {}

    def exports_for_program(self, job: RuntimeJob) -> tuple[str, ...]:
        """Return the variables that only the runtime's own program reads, as words such as "NAME=value"."""
        return ()

    def command(self, job: RuntimeJob, exported: Sequence[str], mounted: Sequence[str]) -> Iterator[str]:
        """Yield the lines of the command that starts the training in the runtime.

        `exported` has the names of the variables that the training must get. `mounted` has the folders that a
        container must see: SRC or SRC:DST, each as a text for double quotes.
        """
        yield from ()

    def environment_changes(self, job: RuntimeJob) -> list[str]:
        """Return the arguments of an `env` command in the container, which change variables there."""
        return []

    def faults(self, job: RuntimeJob) -> Iterator[KeyFault]:
        """Yield the faults in the values of the job's keys; no fault depends on the cluster."""
        yield from ()

    def fault_of_saving(self, job: RuntimeJob) -> KeyFault | None:
        """Return why the trainer may fail to save a checkpoint when it is preempted; None if it can save."""
        return None

    def why_unmountable(self, path: str) -> str:
        """Return why a container can't mount a path; "" if it can."""
        return ""

    def missing_files(self, job: RuntimeJob, find_local: FindLocal) -> Iterator[KeyFault]:
        """Yield a fault for each needed file that does not exist here, although nodes may have the file."""
        yield from ()

    def facts_of_command(self, command: Command, draft: ScriptDraft) -> dict[str, str] | None:
        """Return the settings that a command of an old script gives, as keys of `Facts`.

        Return None if the command does not activate this runtime. `adopt` puts the settings into a profile.
        """
        return None

    def tool(self, launch: ScriptLaunch) -> Tool | None:
        """Return the tool in an old script's launch that starts this runtime; None without such a tool."""
        for tool in launch.tools:
            by_srun = tool.name == "srun" and self.srun_option and tool.option(self.srun_option)
            if tool.name in self.starts or by_srun:
                return tool
        return None

    def adopt(self, draft: ScriptDraft, launch: ScriptLaunch, tool: Tool) -> dict[str, Any]:
        """Return the settings that the `tool` in an old script's launch gives, as keys of `Facts`."""
        return {}


def job_key(help_text: str, *, metavar: str, after: str = "runtime", common: bool = True, **more: str) -> Any:
    """Return the dataclass field of a job key; the help shows its flag after that of the key `after`."""
    return described(help_text, metavar=metavar, group="Runtime", common=common, after=after, **more)


def path_key(name: str, fact: str, metavar: str, help_text: str, *, common: bool = False) -> Key:
    """Return a job key whose value is a path; `fact` is the key of `Facts` with its default."""
    return Key(name, ShellPath | None, job_key(help_text, metavar=metavar, common=common), fact)


IMAGE = job_key("Container image, a file or a registry address.", metavar="IMAGE")
BINDS = job_key(
    "Folder to mount; in a file, [] removes all.",
    flag="--bind",
    metavar="SRC[:DST[:OPTIONS]]",
    after="template",
)


class ContainerRuntime(Runtime):
    """A runtime that starts the training in a container."""

    is_container = True
    mounts_run_folders = True
    has_only_named_images = False  # whether its images are always names, never files

    def assignments(self, job: RuntimeJob, folder_variable: str) -> Iterator[str]:
        """Yield the assignment of the bash variable IMAGE."""
        if image := job.software.get("image"):
            word = (
                quoting.path(path_in_bash(image, folder_variable))
                if self.is_file(image)
                else quoting.word(image)
            )
            yield f"IMAGE={word}"

    def setup_commands(self, job: RuntimeJob, mounted: Sequence[str]) -> Iterator[str]:
        """Yield the call of the function, with the folders whose paths only the running job knows."""
        yield " ".join([self.function, *(f'"{folder}"' for folder in mounted if folder in _FOLDERS_OF_JOB)])

    def is_file(self, image: str) -> bool:
        """Return whether the image is a file. Other images are a name, or an address in a registry."""
        return not self.has_only_named_images and "://" not in image

    def missing_files(self, job: RuntimeJob, find_local: FindLocal) -> Iterator[KeyFault]:
        """Yield a fault for an image file that does not exist, or that is empty after a failed pull."""
        image = job.software.get("image")
        if image and self.is_file(image):
            yield from path_faults(
                "image", image, find_local, "image", "prepare it (sbatchgen image), or name another"
            )
            file = find_local(image)
            if file and file.is_file() and not file.stat().st_size:
                what = f"the image {file} is empty"
                yield KeyFault("image", what, "remove the file, and prepare the image")


def path_faults(key: str, path: ShellPath, find_local: FindLocal, noun: str, fix: str) -> Iterator[KeyFault]:
    """Yield a fault for a path that does not exist.

    An absolute path may lack its folder too, because the file system may be only on
    the compute nodes. `noun` says in words what the path names.
    """
    file = find_local(path)
    if file and (file.parent.is_dir() or path[0] not in "/$") and not file.exists():
        yield KeyFault(key, f"there is no {noun} {file}", f"{fix}: --{key.replace('_', '-')}")


def container_keys(mounts: str) -> tuple[Key, ...]:
    """Return the keys that jobs have for a container; `mounts` is the key of `Facts` with its mounts."""
    binds = Key("binds", tuple[ShellPath, ...] | None, BINDS, mounts)
    return Key("image", ShellPath | None, IMAGE, "image"), binds


def env_in_container(job: RuntimeJob, exported: Sequence[str]) -> Iterator[str]:
    """Yield an `env` command for a container that starts in the image's folder with the image's variables.

    The command changes to the job's folder and sets the `exported` variables. It does not set variables that
    keep their values from the submitting shell. These may be secrets, and other users can read command lines.
    """
    inherited = {name for name, value in job.env.items() if value is None}
    assignments = (f'{name}="${name}"' for name in exported if name not in inherited)
    yield from quoting.packed(['env --chdir="$PWD"', *assignments])


def sourced_file(command: Command, draft: ScriptDraft) -> tuple[str, int]:
    """Return the file that a command such as `source FILE ARGUMENTS` reads, and the number of its arguments.

    Return ("", 0) for other commands, and if it is not known which file the script reads.
    """
    if command.name not in ("source", ".") or len(command.words) < 2:
        return "", 0
    word, body = command.words[1], draft.body
    file = draft.file(word, body)
    is_relative = not (draft.path(word, body) or "").startswith(("/", "$"))
    if file is None or (is_relative and draft.folder != SUBMIT_DIR):  # the script has changed its folder
        return "", 0
    return file, len(command.words) - 2


def inherits_variable(job: RuntimeJob, name: str) -> bool:
    """Return whether the value of a job's variable, or a part of it, comes from the shell that submits."""
    if name not in job.env:
        return False
    value = job.env[name]
    return value is None or name in VARIABLE.findall(value)


def path_in_bash(path: str, folder_variable: str) -> ShellPath:
    """Return a path for the script; a relative path counts from the folder in the bash `folder_variable`."""
    return ShellPath(
        path if path.startswith(("/", "${")) else f"${{{folder_variable}}}/{path.removeprefix('./')}"
    )


def from_submit_folder(path: str, job: RuntimeJob) -> str:
    """Return a path or a name; a relative path counts from the folder of submission.

    A job with a snapshot starts in the folder of the snapshot, so its relative paths get the other folder.
    """
    return (
        path_in_bash(path, "SLURM_SUBMIT_DIR")
        if job.snapshot_dir and job.uses_slurm and "/" in path
        else path
    )
