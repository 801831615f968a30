"""Runtime enroot: a container of Enroot, which pyxis, a plugin of Slurm, starts.

A hook of Enroot gives GPUs of NVIDIA to the container, as some variables say. Sources: the READMEs of Enroot
and pyxis.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from sbatchgen.base import quoting
from sbatchgen.base.errors import CommandLineError
from sbatchgen.base.keys import described, record
from sbatchgen.base.units import ShellPath, Text
from sbatchgen.jobs.runtimes import base

VISIBLE_GPUS = "NVIDIA_VISIBLE_DEVICES"  # the variable with the GPUs that Enroot's hook gives to a container
CAPABILITIES = "NVIDIA_DRIVER_CAPABILITIES"  # the variable with the parts of the driver that the hook mounts
# Variables with folders for caches. Users export them in their shells, but a container may lack the folders.
CACHES = ("HF_HOME", "MPLCONFIGDIR", "TORCH_HOME", "TRITON_CACHE_DIR", "WANDB_DIR", "XDG_CACHE_HOME")
WORKDIR_OF_IMAGE = "image"  # the value of the key `workdir` that stands for the image's own working folder
_SCRATCH = ("ENROOT_TEMP_PATH", "ENROOT_CACHE_PATH")  # the variables for temporary files and for the cache
_URI = re.compile(r"[a-z][a-z0-9+.-]*://")  # the start of an address such as "docker://pytorch/pytorch"
_BASH_CHARACTERS = re.compile(r'[$`"]')  # characters that are special to bash within double quotes


@record
class Enroot:
    """An image for Enroot, its mounts, and the folder in which the training starts."""

    image: ShellPath | None = described("The image, a .sqsh file or an address.")
    source: Text | None = described("The address that `sbatchgen image import` gets the file from.")
    mounts: tuple[ShellPath, ...] = described("Mounts, SRC or SRC:DST.", ())
    workdir: ShellPath | None = described(
        "The folder to start in; by default that of submission. `image`: the one that the image names."
    )


# Runs a command in the job's container on this node; without such a container, on the node itself.
# `enroot list -f` prints the processes of all containers. The line of a container's first process begins with
# the name of the container, and the other lines with the process id.
_ENTER_SCRIPT = """
for pid in $(enroot list -f 2>/dev/null | awk '{ print $2 ~ /^[0-9]+$/ ? $2 : $1 }'); do
    grep -qsxz "SLURM_JOB_ID=$SLURM_JOB_ID" "/proc/$pid/environ" && exec enroot exec "$pid" "$@"
done
echo "sbatchgen exec: no container of Enroot found on $(hostname): on the node itself" >&2
exec "$@"
"""


def _uri_of(source: str) -> str:
    """Return the URI of an image, such as docker://nvcr.io#nvidia/pytorch.

    The "#" after the registry is needed by older releases of Enroot.

    Raises CommandLineError if the source is a file, or is not a URI.
    """
    scheme, _, rest = source.rpartition("://")
    if not scheme and (source.startswith(("/", "./", "../", "~")) or source.endswith((".tar", ".tar.gz"))):
        what = f"'{source}' is a file: Enroot imports from registries, Docker and Podman"
        fix = "load it into Podman, and import it from there: podman:// and the name that podman load prints"
        raise CommandLineError.of(what, fix=fix)
    if scheme and not _URI.match(source):
        raise CommandLineError.of(f"'{source}' is not a URI", fix="write it as docker://pytorch/pytorch")
    registry, slash, name = rest.partition("/")
    if scheme in ("", "docker") and slash and "#" not in rest and ("." in registry or ":" in registry):
        rest = f"{registry}#{name}"
    return f"{scheme or 'docker'}://{rest}"


# Options of pyxis in old scripts that `adopt` may drop, because they change neither mounts nor command.
_PYXIS_OPTIONS = "container-remap-root no-container-remap-root container-readonly no-container-entrypoint"
PYXIS_OPTIONS = tuple(_PYXIS_OPTIONS.split())


class EnrootRuntime(base.ContainerRuntime):
    """A container of Enroot, started by pyxis."""

    name = "enroot"
    title = "Enroot, through pyxis."
    Facts = Enroot
    keys = base.container_keys("mounts")
    requires = base.Requirement("image", "an image", "--image FILE.sqsh")
    function = "check_enroot"
    srun_option = "container-image"
    needs_slurm = "is started by pyxis, a plugin of Slurm"
    why_one_line_values = "Enroot would take its lines for variables"
    finds_user_packages = False  # the home folder is not mounted
    # Options of mount(8) that are joined by "+" (README of NVIDIA/pyxis), and x-create=dir of Enroot
    mount_options = (
        r"(?:(?:ro|rw|r?bind|r?private|r?slave|r?shared|no(?:suid|dev|exec)|x-create=\w+)(?:\+|$))+"
    )
    removes_slowly = True  # 41 s were measured with a small image
    enter_script = _ENTER_SCRIPT
    image_tools = (base.ImageTool("import", ("enroot", "import", "--output"), _SCRATCH, _uri_of),)

    def is_file(self, image: str) -> bool:
        """Return whether pyxis takes the image for the path of a file."""
        return image.startswith(("/", ".", "${"))

    values_in_other_jobs: ClassVar[Mapping[str, Any]] = {"pyxis": False, "gives_cuda": False, "caches": ()}

    def variables(
        self, job: base.RuntimeJob, folder_variable: str, exported: Sequence[str]
    ) -> dict[str, Any]:
        """Return the runtime's variables of templates.

        With `gives_cuda`, the script asks the hook for the parts of the driver that CUDA needs, unless the
        image asks for them. `caches` are the variables of the submitting shell that the script unsets.
        """
        image = job.software.get("image") or ""
        gives_cuda = self._needs_hook(job) and self.is_file(image) and CAPABILITIES not in job.env
        caches = tuple(name for name in CACHES if not base.inherits_variable(job, name))
        return {"pyxis": True, "gives_cuda": gives_cuda, "caches": caches}

    def setup_commands(self, job: base.RuntimeJob, mounted: Sequence[str]) -> Iterator[str]:
        """Yield the call of the function, whose arguments are all mounts."""
        yield " \\\n        ".join(quoting.packed([self.function, *(f'"{mount}"' for mount in mounted)]))

    def _needs_hook(self, job: base.RuntimeJob) -> bool:
        """Return whether the job's GPUs need the hook; those of AMD do not, as they are devices in /dev."""
        return job.mode.uses_gpus and job.gpu_vendor == "nvidia"

    def exports(self, job: base.RuntimeJob) -> dict[str, str]:
        """Return the variables that Enroot's hook reads."""
        exports = {}
        if not self.computed_words(job):  # "all" would fail on a node without NVIDIA's tools
            exports[VISIBLE_GPUS] = "all" if self._needs_hook(job) else "void"
        if self._needs_hook(job) and not self.is_file(job.software.get("image") or ""):
            exports[CAPABILITIES] = "compute,utility"  # the variables of an image in a registry are not known
        return exports

    def exports_for_program(self, job: base.RuntimeJob) -> tuple[str, ...]:
        """Return the variable with which Enroot replaces a container that an earlier start has left."""
        return ("ENROOT_FORCE_OVERRIDE=yes",)

    def computed_words(self, job: base.RuntimeJob) -> dict[str, str]:
        """Return the variable that gives GPUs to the container of a job that does not request GPUs.

        An option on the command line of sbatch may request them. Slurm then sets CUDA_VISIBLE_DEVICES in the
        job, and the variable becomes "all".
        """
        may_get_gpus = job.mode.uses_gpus and not (job.gpus_per_node or job.shards)
        sets_variable = may_get_gpus and job.gpu_vendor != "amd" and VISIBLE_GPUS not in job.env
        return {VISIBLE_GPUS: '"${CUDA_VISIBLE_DEVICES:+all}"'} if sets_variable else {}

    def command(self, job: base.RuntimeJob, exported: Sequence[str], mounted: Sequence[str]) -> Iterator[str]:
        """Yield the options that pyxis adds to srun."""
        folder = job.facts.workdir
        workdir = quoting.path(base.path_in_bash(folder, "PWD")) if folder else '"$PWD"'  # as a word of bash
        option = "" if folder == WORKDIR_OF_IMAGE else f" --container-workdir={workdir}"
        yield f'--container-image="$IMAGE"{option} --no-container-mount-home'
        # Without PWD, the trainer would start in the folder that the image names.
        names = exported if folder else (*exported, "PWD")
        yield f'--container-env="{",".join(names)}"'
        pairs = ",".join(path if ":" in path else f"{path}:{path}" for path in mounted)
        yield f'--container-mounts="{pairs}"'

    def environment_changes(self, job: base.RuntimeJob) -> list[str]:
        """Return the assignment of a HOME that programs can write into; the image's home is read-only."""
        has_home = "HOME" in job.env or "${HOME}" in (job.software.get("binds") or ())
        return [f'HOME="{"$HOME" if has_home else "$RUN_DIR"}"']

    def faults(self, job: base.RuntimeJob) -> Iterator[base.KeyFault]:
        """Yield a fault for a file of Apptainer, and for a file that pyxis takes for a registry address."""
        image = job.software.get("image") or ""
        if image.endswith((".sif", ".def")):
            what = f"'{image}' is a file of Apptainer, not of Enroot"
            fix = "use --runtime apptainer, or import the image from its registry"
            yield base.KeyFault("image", what, fix)
        if image.endswith(".sqsh") and not self.is_file(image):
            what = f"pyxis takes '{image}' for the address of a registry, not for a file"
            yield base.KeyFault("image", what, f"write ./{image}, or the absolute path")

    def why_unmountable(self, path: str) -> str:
        """Return why pyxis can't mount a path; "" if it can."""
        special = _BASH_CHARACTERS.search(path)
        return f"pyxis writes it into a bash script, where {special[0]} is special" if special else ""

    def adopt(self, draft: base.ScriptDraft, launch: base.ScriptLaunch, tool: base.Tool) -> dict[str, Any]:
        """Return the image, mounts and working folder of an old script's srun, as keys of `Facts`."""
        keys: dict[str, Any] = {}
        for option in tool.uses:
            if option.name == "container-image":
                if image := draft.option_path(tool, option, file=True):
                    is_bare_name = image.endswith(".sqsh") and not self.is_file(image)
                    keys["image"] = f"./{image}" if is_bare_name else image
            elif option.name == "container-mounts":
                keys["mounts"] = draft.option_paths(tool, option)
            elif option.name == "container-workdir":
                keys["workdir"] = draft.option_path(tool, option)
            elif option.name.removeprefix("no-").startswith("container-") and option.name not in (
                "container-env",  # all that the script exports gets in
                "container-mount-home",
                "no-container-mount-home",
                *PYXIS_OPTIONS,
            ):
                draft.lose(f"--{option.name} of srun")
        if tool.option("container-mount-home"):
            keys["mounts"] = [*keys.get("mounts", []), "${HOME}"]
        return {"workdir": WORKDIR_OF_IMAGE} | keys


RUNTIME = EnrootRuntime()
