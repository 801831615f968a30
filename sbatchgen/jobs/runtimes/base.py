"""The interface of a runtime, with defaults for all methods, and the base class of container runtimes."""

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
# Folders whose paths only the running job knows
_FOLDERS_OF_JOB = ("$PWD", "$RUN_DIR", "$DATA_DIR", "$CODE_DIR")
# Returns a path of the job as a path on this machine; None if a variable in it is not set.
FindLocal = Callable[[ShellPath], Path | None]
# By vendor, the variables that select the GPUs which a process sees. AMD's second to fourth variable select
# among the GPUs that the first leaves, which have new numbers then, so two variables may together hide all
# GPUs. Source: rocm.docs.amd.com, "GPU isolation techniques".
MASKS = {
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
        def slurm(self) -> bool: ...
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
        def option_env(self, tool: Tool, option: ToolOption) -> None: ...
        def option_list(self, tool: Tool, option: ToolOption) -> list[str]: ...
        def lose(self, what: str, *names: str) -> None: ...
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
    kind: Any  # its type
    field: Any  # its field, made by `described`
    fact: str  # the key of `Facts` that has its default


class ImageTool(NamedTuple):
    """A command of a container program that prepares an image, for `sbatchgen image VERB`."""

    verb: str  # the VERB
    words: tuple[str, ...]  # the words of the command before the new file and the source
    scratch: tuple[str, str]  # the variables for its temporary folder and for its cache
    uri: Callable[[str], str]  # makes the command's argument from a source; raises CommandLineError
    older: str = ""  # the program's earlier name, which is used if PATH has no program of the newer name


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

    name: str  # what users write
    title: str  # the help of its key in profiles
    Facts: type = NoFacts  # the record of its keys in profiles, below `runtimes.NAME`
    keys: tuple[Key, ...] = ()  # its keys in jobs
    # The job key without which it can't start. If a job names no runtime, this key chooses one.
    requires: Requirement | None = None
    # The bash function that sets it up, from the file of this name in templates/mechanics; or ""
    function = ""
    # The commands that start a program in it, by their names in the table of programs: "uv run"
    starts: tuple[str, ...] = ()
    srun_option = ""  # the option of srun that starts it, or ""
    is_container = False  # whether the training runs in a container
    mounts_own = False  # whether the script, not the runtime, mounts the folders of the run in its container
    may_use_modules = False  # whether packages of modules may reach it by PYTHONPATH
    finds_user_packages = True  # whether its Python finds packages in ~/.local unless PYTHONNOUSERSITE is set
    needs_slurm = ""  # why it needs Slurm, or ""
    one_line_values = ""  # why values of variables may have no line breaks; "" if they may
    mount_options = ""  # the options that may follow SRC:DST: in a mount, as a regular expression
    removes_slowly = False  # whether removing its container may take longer than a job has left after SIGTERM
    image_tools: tuple[ImageTool, ...] = ()  # its commands that prepare an image
    enter = ""  # shell code that runs its arguments in the job's container, in a Slurm step; or ""
    unset: ClassVar[Mapping[str, Any]] = {}  # values of its template variables in jobs of other runtimes
    image_ending = ""  # the ending of image files that only this runtime can start, or ""

    def __str__(self) -> str:
        return self.name

    @property
    def attribute(self) -> str:
        """The name of the runtime as an attribute of Python."""
        return self.name.replace("-", "_")

    def needs(self, facts: Any) -> Requirement | None:
        """Return the job key that the runtime requires with this profile."""
        return self.requires

    def variables(self, job: RuntimeJob, folder_variable: str, exported: Sequence[str]) -> dict[str, Any]:
        """Return the template's variables for a job of this runtime; other jobs have the values in `unset`.

        `folder_variable` is the name of the bash variable with the folder of submission. `exported` are the
        names of the variables that the training must get.
        """
        return {}

    def assignments(self, job: RuntimeJob, folder_variable: str) -> Iterator[str]:
        """Yield lines of bash that set the variables which its function reads.

        `folder_variable` is the name of the bash variable with the folder of submission.
        """
        yield from ()

    def setup_commands(self, job: RuntimeJob, mounted: Sequence[str]) -> Iterator[str]:
        """Yield the lines of bash that set up the runtime; a container mounts the `mounted` folders."""
        if self.function:
            yield self.function

    def exports(self, job: RuntimeJob) -> dict[str, str]:
        """Return the variables that the runtime adds to the training, with their values."""
        return {}

    def computed_words(self, job: RuntimeJob) -> dict[str, str]:
        """Return variables of the training whose values bash computes in the job, as words of bash."""
        return {}

    def directives(self, job: RuntimeJob) -> Mapping[str, str]:
        """Return the options of sbatch that the runtime adds, with their values, by long name."""
        return {}

    def own_exports(self, job: RuntimeJob) -> tuple[str, ...]:
        """Return variables that only the runtime's program reads, as words of `export`: "NAME=value"."""
        return ()

    def command(self, job: RuntimeJob, exported: Sequence[str], mounted: Sequence[str]) -> Iterator[str]:
        """Yield the lines of the command that starts the training in the runtime.

        The training must get the variables named in `exported`. A container must see the `mounted` folders:
        SRC or SRC:DST, each as text for double quotes.
        """
        yield from ()

    def environment_changes(self, job: RuntimeJob) -> list[str]:
        """Return arguments for `env` inside the container, which change variables there."""
        return []

    def faults(self, job: RuntimeJob) -> Iterator[KeyFault]:
        """Yield the faults of the job's keys that don't depend on the cluster."""
        yield from ()

    def unsaved(self, job: RuntimeJob) -> KeyFault | None:
        """Return why the trainer may fail to save a checkpoint at a preemption; None if it can save."""
        return None

    def unmountable(self, path: str) -> str:
        """Return why a container can't mount a path; "" if it can."""
        return ""

    def missing(self, job: RuntimeJob, find_local: FindLocal) -> Iterator[KeyFault]:
        """Yield a fault for each needed file that this machine lacks; compute nodes may have the file."""
        yield from ()

    def activation(self, command: Command, draft: ScriptDraft) -> dict[str, str] | None:
        """Return the keys of `Facts` if a command of an old script activates this runtime; None otherwise."""
        return None

    def tool(self, launch: ScriptLaunch) -> Tool | None:
        """Return the tool of an old script's launch that starts this runtime; None without one."""
        for tool in launch.tools:
            by_srun = tool.name == "srun" and self.srun_option and tool.option(self.srun_option)
            if tool.name in self.starts or by_srun:
                return tool
        return None

    def adopt(self, draft: ScriptDraft, launch: ScriptLaunch, tool: Tool) -> dict[str, Any]:
        """Return the keys of `Facts` that the `tool` of an old script's launch gives."""
        return {}


def job_key(help_text: str, *, metavar: str, after: str = "runtime", common: bool = True, **more: str) -> Any:
    """Return the field of a job key; the help shows its flag after the flag of the key `after`."""
    return described(help_text, metavar=metavar, group="Runtime", common=common, after=after, **more)


def path_key(name: str, fact: str, metavar: str, help_text: str, *, common: bool = False) -> Key:
    """Return a job key that holds a path; `fact` is the key of `Facts` with its default."""
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
    mounts_own = True
    only_names_images = False  # whether its images are always names, never files

    def assignments(self, job: RuntimeJob, folder_variable: str) -> Iterator[str]:
        """Yield the assignment of the image."""
        if image := job.software.get("image"):
            word = (
                quoting.path(absolute(image, folder_variable)) if self.is_file(image) else quoting.word(image)
            )
            yield f"IMAGE={word}"

    def setup_commands(self, job: RuntimeJob, mounted: Sequence[str]) -> Iterator[str]:
        """Yield the call of the function with the folders whose paths only the running job knows."""
        yield " ".join([self.function, *(f'"{folder}"' for folder in mounted if folder in _FOLDERS_OF_JOB)])

    def is_file(self, image: str) -> bool:
        """Return whether the image is a file; other images are a name or the address of a registry."""
        return not self.only_names_images and "://" not in image

    def missing(self, job: RuntimeJob, find_local: FindLocal) -> Iterator[KeyFault]:
        """Yield a fault for an image file that does not exist, or is empty, as after a failed pull."""
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
    """Yield a fault for a path that does not exist, if this machine can tell.

    If the folder of an absolute path does not exist either, only compute nodes may have this file system.
    """
    file = find_local(path)
    if file and (file.parent.is_dir() or path[0] not in "/$") and not file.exists():
        yield KeyFault(key, f"there is no {noun} {file}", f"{fix}: --{key.replace('_', '-')}")


def container_keys(mounts: str) -> tuple[Key, ...]:
    """Return the job keys of a container runtime; `mounts` is the key of its `Facts` for mounts."""
    binds = Key("binds", tuple[ShellPath, ...] | None, BINDS, mounts)
    return Key("image", ShellPath | None, IMAGE, "image"), binds


def env_in_container(job: RuntimeJob, exported: Sequence[str]) -> Iterator[str]:
    """Yield an `env` command for containers that start in the image's folder with the image's variables.

    The command changes to the job's folder, and sets the `exported` variables. Variables from the submitting
    shell are excluded, because they may be secrets, and other users can read command lines.
    """
    secrets = {name for name, value in job.env.items() if value is None}
    assignments = (f'{name}="${name}"' for name in exported if name not in secrets)
    yield from quoting.packed(['env --chdir="$PWD"', *assignments])


def sourced_file(command: Command, draft: ScriptDraft) -> tuple[str, int]:
    """Return the file that `source FILE ARGUMENTS` reads, and the number of arguments; else ("", 0)."""
    if command.name not in ("source", ".") or len(command.words) < 2:
        return "", 0
    word, body = command.words[1], draft.body
    file = draft.file(word, body)
    is_relative = not (draft.path(word, body) or "").startswith(("/", "$"))
    if file is None or (is_relative and draft.folder != SUBMIT_DIR):  # the script has changed its folder
        return "", 0
    return file, len(command.words) - 2


def inherits_variable(job: RuntimeJob, name: str) -> bool:
    """Return whether a job gets a variable, or a part of its value, from the shell that submits it."""
    if name not in job.env:
        return False
    value = job.env[name]
    return value is None or name in VARIABLE.findall(value)


def absolute(path: str, folder_variable: str) -> ShellPath:
    """Return a path in bash; a relative path counts from the folder in the variable `folder_variable`."""
    return ShellPath(
        path if path.startswith(("/", "${")) else f"${{{folder_variable}}}/{path.removeprefix('./')}"
    )


def from_submit_folder(path: str, job: RuntimeJob) -> str:
    """Return a path or name; with a snapshot, a relative path still counts from the folder of submission."""
    return absolute(path, "SLURM_SUBMIT_DIR") if job.snapshot_dir and job.slurm and "/" in path else path
