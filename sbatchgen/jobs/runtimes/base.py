"""What a runtime says of itself, and what runtimes of containers have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

from sbatchgen.base import quoting
from sbatchgen.base.keys import described, record
from sbatchgen.base.units import VARIABLE, ShellPath
from sbatchgen.jobs.modes import Mode

if TYPE_CHECKING:
    from sbatchgen.check.bash import Command as Command  # noqa: PLC0414 - which runtimes name
    from sbatchgen.check.bash import Word
    from sbatchgen.check.bash.body import Body
    from sbatchgen.check.bash.chain import Tool as Tool  # noqa: PLC0414
    from sbatchgen.check.bash.chain import ToolOption

SUBMIT_DIR = "${SLURM_SUBMIT_DIR}"
FOLDERS = ("$PWD", "$RUN_DIR", "$DATA_DIR", "$CODE_DIR")  # known by name only where the job runs
# A path as it is on this machine; None where a variable in it is not set.
Here = Callable[[ShellPath], Path | None]
# By which a process sees some GPUs of the node. For AMD the others choose, by new numbers, among those that
# the first leaves: two of them may hide all. Source: rocm.docs.amd.com, "GPU isolation techniques".
MASKS = {
    "nvidia": ("CUDA_VISIBLE_DEVICES",),
    "intel": ("ZE_AFFINITY_MASK",),
    "amd": ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL"),
}


if TYPE_CHECKING:

    class _Job(Protocol):
        """What a runtime may ask of a `ResolvedJob`."""

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
        """What a runtime may ask of the `Draft` of a job that `adopt` makes of a script."""

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

    class _Launch(Protocol):
        """What a runtime may ask of the `Launch` of the training."""

        @property
        def tools(self) -> tuple[Tool, ...]: ...
        @property
        def program(self) -> Tool: ...

    RuntimeJob = _Job
    ScriptDraft = _Draft
    ScriptLaunch = _Launch
else:  # it takes time to make protocols, which no program needs at run time
    RuntimeJob = ScriptDraft = ScriptLaunch = Command = Tool = Any


class Key(NamedTuple):
    """A key of a job: its name, type and `described` field, and the key of `Facts` that gives its default."""

    name: str
    kind: Any
    field: Any
    fact: str


class ImageTool(NamedTuple):
    """A command that prepares an image."""

    verb: str  # of `sbatchgen image VERB`
    words: tuple[str, ...]  # what starts it, before the new file and the source
    scratch: tuple[str, str]  # the variables that name its folders for parts of an image, and for its cache
    uri: Callable[[str], str]  # returns its argument for a source; raises CommandLineError
    older: str = ""  # the program's earlier name, which is used where only that is on PATH


class Requirement(NamedTuple):
    """A job key without which a runtime can't start: the key, what it is, and the flag that sets it."""

    key: str
    what: str
    flag: str


class KeyFault(NamedTuple):
    """What is wrong with a key of a job, and a fix."""

    key: str
    what: str
    fix: str


@record
class NoFacts:
    """A profile says nothing about this runtime."""


class Runtime:
    """The source of a job's Python. A runtime leaves out the attributes and methods that it does not need."""

    name: str  # what users write
    title: str  # what it is, for the keys of profiles
    Facts: type = NoFacts  # the record of its keys in profiles, below `runtimes.NAME`
    keys: tuple[Key, ...] = ()  # its keys in jobs
    # the job key that it can't do without, and that chooses it if no runtime is named
    requires: Requirement | None = None
    function = ""  # of the script, which sets it up: a file of templates/mechanics; or ""
    # what starts a program in it in scripts of others, as the table of programs names it: "uv run"
    starts: tuple[str, ...] = ()
    srun_option = ""  # the option of srun that starts it, or ""
    is_container = False  # whether the training runs in a container
    mounts_own = False  # whether the script mounts the folders of the run in its container
    may_use_modules = False  # whether packages of modules may reach it by PYTHONPATH
    finds_user_packages = True  # whether Python would find packages in ~/.local, were they not turned off
    needs_slurm = ""  # why it needs Slurm, or ""
    one_line_values = ""  # why values of variables may have no line breaks, or ""
    mount_options = ""  # what may follow SRC:DST: in a mount, as a regular expression
    removes_slowly = False  # whether to remove its containers may take longer than a job has left
    image_tools: tuple[ImageTool, ...] = ()  # its commands that prepare an image
    enter = ""  # shell that runs its arguments in the container of a job, in a step of that job; or ""
    unset: ClassVar[Mapping[str, Any]] = {}  # the variables of its function for jobs of other runtimes
    image_ending = ""  # how the names of images end that only this runtime starts, or ""

    def __str__(self) -> str:
        return self.name

    @property
    def attribute(self) -> str:
        """The name of the runtime as an attribute of Python."""
        return self.name.replace("-", "_")

    def needs(self, facts: Any) -> Requirement | None:
        """Return the job key that the runtime requires with this profile."""
        return self.requires

    def variables(self, job: RuntimeJob, here: str, exported: Sequence[str]) -> dict[str, Any]:
        """Return the variables of the template for a job of this runtime; other jobs have `unset`.

        The variable `here` holds the folder of submission; the training must get those of `exported`.
        """
        return {}

    def settings(self, job: RuntimeJob, here: str) -> Iterator[str]:
        """Yield the assignments that its function reads; the variable `here` as in `variables`."""
        yield from ()

    def starts_by(self, job: RuntimeJob, mounted: Sequence[str]) -> Iterator[str]:
        """Yield the commands of bash that set the runtime up; a container sees the `mounted` folders."""
        if self.function:
            yield self.function

    def exports(self, job: RuntimeJob) -> dict[str, str]:
        """Return variables of the training with their values."""
        return {}

    def words(self, job: RuntimeJob) -> dict[str, str]:
        """Return variables of the training whose values bash makes where the job runs, as words of bash."""
        return {}

    def directives(self, job: RuntimeJob) -> Mapping[str, str]:
        """Return options of sbatch that the runtime itself adds, by long name."""
        return {}

    def own_exports(self, job: RuntimeJob) -> tuple[str, ...]:
        """Return variables of the runtime's own program, as words of `export`."""
        return ()

    def command(self, job: RuntimeJob, exported: Sequence[str], mounted: Sequence[str]) -> Iterator[str]:
        """Yield the lines of the command that the training is started by.

        It must get the variables of `exported`; a container sees what is `mounted`: SRC or SRC:DST, each as
        text for double quotes.
        """
        yield from ()

    def environment_changes(self, job: RuntimeJob) -> list[str]:
        """Return the arguments of an `env` inside the container."""
        return []

    def faults(self, job: RuntimeJob) -> Iterator[KeyFault]:
        """Yield the faults of keys that no cluster can make right."""
        yield from ()

    def unsaved(self, job: RuntimeJob) -> KeyFault | None:
        """Return why a checkpoint that the trainer saves at a preemption may be lost."""
        return None

    def unmountable(self, path: str) -> str:
        """Return why a container can't mount a path, or ""."""
        return ""

    def missing(self, job: RuntimeJob, here: Here) -> Iterator[KeyFault]:
        """Yield the files that the job needs and this machine lacks; compute nodes may have the files."""
        yield from ()

    def activation(self, command: Command, draft: ScriptDraft) -> dict[str, str] | None:
        """Return the keys of `Facts` that a command of an old script gives; None for other commands."""
        return None

    def tool(self, launch: ScriptLaunch) -> Tool | None:
        """Return the tool of an old script's launch that is this runtime."""
        for tool in launch.tools:
            by_srun = tool.name == "srun" and self.srun_option and tool.option(self.srun_option)
            if tool.name in self.starts or by_srun:
                return tool
        return None

    def adopt(self, draft: ScriptDraft, launch: ScriptLaunch, tool: Tool) -> dict[str, Any]:
        """Return the keys of `Facts` that a tool of an old script gives."""
        return {}


def job_key(help_text: str, *, metavar: str, after: str = "runtime", common: bool = True, **more: str) -> Any:
    """Return the field of a job key, whose flag is shown after that of another key."""
    return described(help_text, metavar=metavar, group="Runtime", common=common, after=after, **more)


def path_key(name: str, fact: str, metavar: str, help_text: str, *, common: bool = False) -> Key:
    """Return the key of a job that holds a path; `fact` is that of `Facts` with its default."""
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
    names_images = False  # whether it knows images by name alone

    def settings(self, job: RuntimeJob, here: str) -> Iterator[str]:
        """Yield the image."""
        if image := job.software.get("image"):
            word = quoting.path(absolute(image, here)) if self.is_file(image) else quoting.word(image)
            yield f"IMAGE={word}"

    def starts_by(self, job: RuntimeJob, mounted: Sequence[str]) -> Iterator[str]:
        """Yield the function with the folders whose names are known only where the job runs."""
        yield " ".join([self.function, *(f'"{folder}"' for folder in mounted if folder in FOLDERS)])

    def is_file(self, image: str) -> bool:
        """Return whether the image is a file, not the address of a registry or a name."""
        return not self.names_images and "://" not in image

    def missing(self, job: RuntimeJob, here: Here) -> Iterator[KeyFault]:
        """Yield an image that is a file and does not exist, or is empty as after a pull that failed."""
        image = job.software.get("image")
        if image and self.is_file(image):
            yield from lacking("image", image, here, "image", "prepare it (sbatchgen image), or name another")
            file = here(image)
            if file and file.is_file() and not file.stat().st_size:
                what = f"the image {file} is empty"
                yield KeyFault("image", what, "remove the file, and prepare the image")


def lacking(key: str, path: ShellPath, here: Here, noun: str, fix: str) -> Iterator[KeyFault]:
    """Yield a path of a job that does not exist, in a folder that does, or below the folder of submission."""
    file = here(path)
    if file and (file.parent.is_dir() or path[0] not in "/$") and not file.exists():
        yield KeyFault(key, f"there is no {noun} {file}", f"{fix}: --{key.replace('_', '-')}")


def container_keys(mounts: str) -> tuple[Key, ...]:
    """Return the job keys of a container; `mounts` is the key of its `Facts` that has its mounts."""
    binds = Key("binds", tuple[ShellPath, ...] | None, BINDS, mounts)
    return Key("image", ShellPath | None, IMAGE, "image"), binds


def inside(job: RuntimeJob, exported: Sequence[str]) -> Iterator[str]:
    """Yield an `env` for a container whose image overrides variables, and which starts in the image's folder.

    Values of the submitting shell may be secrets, which have no place in a command line.
    """
    secret = {name for name, value in job.env.items() if value is None}
    passed = (f'{name}="${name}"' for name in exported if name not in secret)
    yield from quoting.packed(['env --chdir="$PWD"', *passed])


def sourced(command: Command, draft: ScriptDraft) -> tuple[str, int]:
    """Return the file that `source FILE ARGUMENTS` reads, or "", and its number of arguments."""
    if command.name not in ("source", ".") or len(command.words) < 2:
        return "", 0
    word, body = command.words[1], draft.body
    file = draft.file(word, body)
    relative = not (draft.path(word, body) or "").startswith(("/", "$"))
    if file is None or (draft.folder != SUBMIT_DIR and relative):
        return "", 0
    return file, len(command.words) - 2


def keeps(job: RuntimeJob, name: str) -> bool:
    """Return whether a job takes a variable, or a part of its value, from the shell that submits it."""
    if name not in job.env:
        return False
    value = job.env[name]
    return value is None or name in VARIABLE.findall(value)


def absolute(path: str, here: str) -> ShellPath:
    """Return the path; a relative path counts from the folder in the variable `here`."""
    return ShellPath(path if path.startswith(("/", "${")) else f"${{{here}}}/{path.removeprefix('./')}")


def of_submission(path: str, job: RuntimeJob) -> str:
    """Return a path, or a name: for a job in a snapshot, paths still count from the folder of submission."""
    return absolute(path, "SLURM_SUBMIT_DIR") if job.snapshot_dir and job.slurm and "/" in path else path
