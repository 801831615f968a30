"""Runtime apptainer: a container of Apptainer or Singularity, or of a site's wrapper of these programs.

Sources: apptainer.org/docs/user, "Bind Paths and Mounts", "GPU Support" and "Singularity Compatibility"; for
mount options pkg/util/bind of apptainer/apptainer; for wrappers docs.csc.fi/computing/containers/overview.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

from sbatchgen.base import quoting
from sbatchgen.base.errors import CommandLineError
from sbatchgen.base.keys import described, record
from sbatchgen.base.units import Argument, ShellPath, Text
from sbatchgen.jobs.runtimes import base

_URI = re.compile(r"[a-z][a-z0-9+.-]*://")  # the start of an address such as "docker://pytorch/pytorch"
_ARCHIVE = re.compile(r"(?:docker|oci)-archive:")  # the start of "docker-archive:PATH"
Program = Literal["apptainer", "singularity", "apptainer_wrapper", "singularity_wrapper"]
_WRAPPER_ENDING = "_wrapper"  # the end of each wrapper's name
_SCRATCH = ("APPTAINER_TMPDIR", "APPTAINER_CACHEDIR")  # the variables for temporary files and for the cache
# Flags that keep the host's variables out of the container: "--cleanenv", "-e" and "-C"
_CLEANING = re.compile(r"--cleanenv|--containall|-(?!-)\w*[eC]\w*")
# The flag for the GPUs of each vendor. Intel's GPUs need no flag, because they are in /dev/dri, which each
# container has.
GPU_FLAGS = {"nvidia": "--nv", "amd": "--rocm", "intel": ""}


@record
class Apptainer:
    """An image for Apptainer, its bind mounts, and the flag that gives it the GPUs."""

    command: Program = described(
        "The program; a wrapper gets image and flags in SING_IMAGE and SING_FLAGS, also from a module.",
        "apptainer",
    )
    verb: Literal["exec", "run"] = described("run starts the image's runscript, which starts Python.", "exec")
    image: ShellPath | None = described("The image, a .sif file or an address.")
    source: Text | None = described("The address that `sbatchgen image pull` gets the file from.")
    binds: tuple[ShellPath, ...] = described("Bind mounts, SRC, SRC:DST or SRC:DST:ro.", ())
    gpu_flag: Text | None = described("The flag that gives it the GPUs; by default --nv, for AMD --rocm.")
    flags: tuple[Argument, ...] = described("Other flags of the program, as --cleanenv.", ())


def _uri_or_path(source: str) -> str:
    """Return the source of an image as Apptainer reads it: a URI, or an absolute path.

    An archive of Docker gets the URI docker-archive:PATH. Raises CommandLineError for a missing file.
    """
    if _URI.match(source) or _ARCHIVE.match(source):
        return source
    path = Path(source).absolute()
    if not path.exists():
        raise CommandLineError.of(f"no file or folder {path}", fix="a URI starts as docker://")
    return f"docker-archive:{path}" if path.name.endswith((".tar", ".tar.gz", ".tgz")) else str(path)


def _uri_for_pull(source: str) -> str:
    """Return the URI of an image for `apptainer pull`.

    Raises CommandLineError for a path, unless it is an archive of Docker, which has a URI.
    """
    uri = _uri_or_path(source)
    if uri.startswith("/"):
        to = quoting.word(f"{Path(source).name.partition('.')[0] or 'image'}.sif")
        fix = f"sbatchgen image build {quoting.word(source)} --to {to}"
        raise CommandLineError.of(f"{source} is neither an address nor an archive of `docker save`", fix=fix)
    return uri


class ApptainerRuntime(base.ContainerRuntime):
    """A container of Apptainer or Singularity."""

    name = "apptainer"
    title = "Apptainer."
    Facts = Apptainer
    keys = base.container_keys("binds")
    requires = base.Requirement("image", "an image", "--image FILE.sif")
    function = "check_apptainer"
    starts = tuple(f"{program} {verb}" for program in get_args(Program) for verb in ("exec", "run"))
    image_ending = ".sif"
    mount_options = r"ro|rw|(?:image-src|id)=[^:,]+"
    image_tools = tuple(
        base.ImageTool(verb, ("apptainer", verb), _SCRATCH, uri, "singularity")
        for verb, uri in (("pull", _uri_for_pull), ("build", _uri_or_path))
    )

    values_in_other_jobs: ClassVar[Mapping[str, Any]] = {
        "twin_lines": (),
        "twins": "",
        "wrapper": False,
        "image_of_module": False,
    }

    def variables(
        self, job: base.RuntimeJob, folder_variable: str, exported: Sequence[str]
    ) -> dict[str, Any]:
        """Return the runtime's variables of templates.

        `twins` is text of bash that gives each exported variable a twin with a prefix. The twin
        APPTAINERENV_NAME overrides the variable NAME of the image.
        """
        twins = " ".join(f'"{prefix}ENV_$name=${{!name}}"' for prefix in self._prefixes(job))
        wrapper = _is_wrapper(job.facts)
        return {
            "twin_lines": quoting.packed(exported),
            "twins": twins,
            "wrapper": wrapper,
            "image_of_module": wrapper and not job.software.get("image"),
        }

    def setup_commands(self, job: base.RuntimeJob, mounted: Sequence[str]) -> Iterator[str]:
        """Yield the call of the function; a job that names no image first takes the image of a module."""
        if not job.software.get("image"):
            yield "IMAGE=$SING_IMAGE # of a module"
        yield from super().setup_commands(job, mounted)

    def _prefixes(self, job: base.RuntimeJob) -> tuple[str, ...]:
        """Return the prefixes of the program's variables: APPTAINER, and for Singularity also SINGULARITY."""
        return ("APPTAINER", *(["SINGULARITY"] if job.facts.command.startswith("singularity") else []))

    def needs(self, facts: Any) -> base.Requirement | None:
        """Return the requirement of an image; None for a wrapper, because a module may name the image."""
        return None if _is_wrapper(facts) else self.requires

    def exports_for_program(self, job: base.RuntimeJob) -> tuple[str, ...]:
        """Return the variable that keeps Apptainer from evaluating the values of APPTAINERENV_ variables."""
        return tuple(f"{prefix}_NO_EVAL=1" for prefix in self._prefixes(job))

    def command(self, job: base.RuntimeJob, exported: Sequence[str], mounted: Sequence[str]) -> Iterator[str]:
        """Yield `apptainer exec` with its mounts, or the wrapper with the variables that it reads."""
        facts, gpu_flag = job.facts, ""
        if job.mode.uses_gpus:
            gpu_flag = GPU_FLAGS[job.gpu_vendor] if facts.gpu_flag is None else facts.gpu_flag
        is_wrapper = _is_wrapper(facts)
        words = [quoting.word(gpu_flag)] if gpu_flag else []
        # The flags of a wrapper are written within the double quotes of SING_FLAGS, so their own are removed.
        words += [quoting.path(text)[1:-1] if is_wrapper else quoting.value(text) for text in facts.flags]
        flags = "".join(f" {word}" for word in words)
        if any(map(_CLEANING.fullmatch, facts.flags)):
            yield self._with_task_variables(job)
        binds = ",".join(mounted)
        if not is_wrapper:
            yield f'{facts.command} {facts.verb}{flags} --pwd "$PWD" --bind "{binds}" "$IMAGE"'
            return
        yield f'env SING_IMAGE="$IMAGE" SING_FLAGS="$SING_FLAGS{flags} --pwd $PWD --bind {binds}"'
        yield f"{facts.command} {facts.verb}"

    def _with_task_variables(self, job: base.RuntimeJob) -> str:
        """Return a command that passes the variables of a task, such as SLURM_PROCID, into the container.

        A flag such as --cleanenv keeps these variables out, and only the running task knows their values.
        """
        masks = " ".join(base.GPU_VARIABLES[job.gpu_vendor]) if job.mode.uses_gpus else ""
        names = f"for name in ${{!SLURM_@}} ${{!SBATCHGEN_@}} {masks}".rstrip()
        twins = " ".join(f'"{prefix}ENV_$name=${{!name}}"' for prefix in self._prefixes(job))
        return f"bash -c '{names}; do [[ ! -v $name ]] || export {twins}; done; exec \"$@\"' task"

    def faults(self, job: base.RuntimeJob) -> Iterator[base.KeyFault]:
        """Yield a fault for each mount and flag that a wrapper would split at blanks."""
        is_wrapper = _is_wrapper(job.facts)
        if not is_wrapper:
            return
        for flag in job.facts.flags:
            if re.search(r"\s", flag):
                what = f"'{flag}' can't be a flag: {job.facts.command} splits its flags at blanks"
                yield base.KeyFault("image", what, "write each flag on its own, as --env=A=1")
        for bind in job.software.get("binds") or ():
            if re.search(r"\s", bind):
                what = f"'{bind}' can't be mounted: {job.facts.command} splits its flags at blanks"
                yield base.KeyFault("binds", what, "mount a symbolic link with a plain name")

    def fault_of_saving(self, job: base.RuntimeJob) -> base.KeyFault | None:
        """Return the fault that SIGTERM may unmount a .sif image before the trainer has saved; or None."""
        image = job.software.get("image") or ""
        if not image.endswith(".sif") or {"APPTAINER_UNSQUASH", "SINGULARITY_UNSQUASH"} & job.env.keys():
            return None
        what = "without setuid, Apptainer mounts a .sif file by a process that SIGTERM ends: "
        what += "what the trainer imports while it saves may be gone"
        fix = (
            "--env APPTAINER_UNSQUASH=1 unpacks it into TMPDIR; or use a folder: `apptainer build --sandbox`"
        )
        return base.KeyFault("image", what, fix)

    def adopt(self, draft: base.ScriptDraft, launch: base.ScriptLaunch, tool: base.Tool) -> dict[str, Any]:
        """Return the program, image, bind mounts and flags of an old script's command, as keys of `Facts`."""
        gpu_flags = {option.name for option in tool.uses} & {"nv", "rocm"}
        command, _, verb = tool.name.partition(" ")
        keys: dict[str, Any] = {"command": command} if command != self.name else {}
        if verb != "exec":
            keys["verb"] = verb
        is_wrapper = command.endswith(_WRAPPER_ENDING)
        image = draft.file(tool.operands[0], tool.body) if tool.operands else None
        if image:
            keys["image"] = image
        elif not is_wrapper:
            draft.lose("the script does not say which image is started")
        if binds := list(_adopted_binds(draft, tool, keys)):
            keys["binds"] = binds
        if draft.job["mode"] != "cpu" and gpu_flags != {"nv"} and not is_wrapper:  # --nv is the default
            keys["gpu_flag"] = f"--{min(gpu_flags)}" if gpu_flags else ""
        return keys


def _adopted_binds(draft: base.ScriptDraft, tool: base.Tool, keys: dict[str, Any]) -> Iterator[str]:
    """Yield the bind mounts of an old command; its flags go into `keys`, the rest into the draft."""
    for option in tool.uses:
        if option.name == "bind":
            yield from draft.option_paths(tool, option)
        elif option.name == "env":
            draft.adopt_env_option(tool, option)
        elif option.name in ("pwd", "cwd") and (folder := draft.option_path(tool, option)):
            if "$" in folder and folder != draft.folder:
                draft.lose(f"--{option.name} of {tool.name}: the folder is known only when the job runs")
            elif folder != draft.folder:
                lines = draft.profile.setdefault("setup_per_task", [])
                lines.insert(0, f"cd {quoting.path(folder)} || exit")
        elif option.name == "home" and draft.option_path(tool, option) == "${HOME}":
            continue  # the default
        elif option.value == "" and option.name not in ("nv", "rocm"):
            dashes = "-" if len(option.name) == 1 else "--"
            keys.setdefault("flags", []).append(f"{dashes}{option.name}")
        elif option.name not in ("nv", "rocm"):
            draft.lose(f"--{option.name} of {tool.name}")


def _is_wrapper(facts: Apptainer) -> bool:
    """Return whether the program is a site's wrapper, which reads SING_IMAGE and SING_FLAGS."""
    return facts.command.endswith(_WRAPPER_ENDING)


RUNTIME = ApptainerRuntime()
