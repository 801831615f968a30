"""enroot: an image for Enroot, started by pyxis, a plugin of Slurm. Source: the READMEs of both."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from sbatchgen.base import quoting
from sbatchgen.base.errors import CommandLineError
from sbatchgen.base.keys import described, record
from sbatchgen.base.units import ShellPath, Text
from sbatchgen.jobs.runtimes import base

NVIDIA = "NVIDIA_VISIBLE_DEVICES"  # the variable by which Enroot's hook gives GPUs to a container
CAPABILITIES = "NVIDIA_DRIVER_CAPABILITIES"  # the variable by which the hook chooses libraries of the driver
# Folders of caches that people export in their shells; in a container they may not be there.
CACHES = ("HF_HOME", "MPLCONFIGDIR", "TORCH_HOME", "TRITON_CACHE_DIR", "WANDB_DIR", "XDG_CACHE_HOME")
OF_IMAGE = "image"  # the working folder that the image names
_SCRATCH = ("ENROOT_TEMP_PATH", "ENROOT_CACHE_PATH")
_URI = re.compile(r"[a-z][a-z0-9+.-]*://")
_BASH_CHARACTERS = re.compile(r'[$`"]')  # in double quotes


@record
class Enroot:
    """An image for Enroot through pyxis, its mounts, and the folder to start in."""

    image: ShellPath | None = described("The image, a .sqsh file or an address.")
    source: Text | None = described("The address that `sbatchgen image import` gets the file from.")
    mounts: tuple[ShellPath, ...] = described("Mounts, SRC or SRC:DST.", ())
    workdir: ShellPath | None = described(
        "The folder to start in; by default that of submission. `image`: the one that the image names."
    )


# A container's first line in Enroot's list has its name before a process, the others have none.
_ENTER = """
for pid in $(enroot list -f 2>/dev/null | awk '{ print $2 ~ /^[0-9]+$/ ? $2 : $1 }'); do
    grep -qsxz "SLURM_JOB_ID=$SLURM_JOB_ID" "/proc/$pid/environ" && exec enroot exec "$pid" "$@"
done
echo "sbatchgen exec: no container of Enroot found on $(hostname): on the node itself" >&2
exec "$@"
"""


def _source(source: str) -> str:
    """Return a URI with # after the registry, as older releases of Enroot need."""
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


# Options of pyxis that change nothing of what is mounted or started.
_PYXIS_OPTIONS = "container-remap-root no-container-remap-root container-readonly no-container-entrypoint"
OF_PYXIS = tuple(_PYXIS_OPTIONS.split())


class EnrootRuntime(base.ContainerRuntime):
    """See the module."""

    name = "enroot"
    title = "Enroot, through pyxis."
    Facts = Enroot
    keys = base.container_keys("mounts")
    requires = base.Requirement("image", "an image", "--image FILE.sqsh")
    function = "check_enroot"
    srun_option = "container-image"
    needs_slurm = "is started by pyxis, a plugin of Slurm"
    one_line_values = "Enroot would take its lines for variables"
    finds_user_packages = False  # the home folder is not mounted
    # of mount(8), with + between them (README of NVIDIA/pyxis), and Enroot's x-create=dir
    mount_options = (
        r"(?:(?:ro|rw|r?bind|r?private|r?slave|r?shared|no(?:suid|dev|exec)|x-create=\w+)(?:\+|$))+"
    )
    removes_slowly = True  # 41 s with a small image
    enter = _ENTER
    image_tools = (base.ImageTool("import", ("enroot", "import", "--output"), _SCRATCH, _source),)

    def is_file(self, image: str) -> bool:
        """Return whether pyxis takes the image for a path."""
        return image.startswith(("/", ".", "${"))

    unset: ClassVar[Mapping[str, Any]] = {"pyxis": False, "gives_cuda": False, "caches": ()}

    def variables(self, job: base.RuntimeJob, here: str, exported: Sequence[str]) -> dict[str, Any]:
        """Return whether pyxis starts the container, and which variables of the submitting shell stay out."""
        image = job.software.get("image") or ""
        gpus = self._on_nvidia(job) and self.is_file(image) and CAPABILITIES not in job.env
        caches = tuple(name for name in CACHES if not base.keeps(job, name))
        return {"pyxis": True, "gives_cuda": gpus, "caches": caches}

    def starts_by(self, job: base.RuntimeJob, mounted: Sequence[str]) -> Iterator[str]:
        """Yield the function with all mounts."""
        yield " \\\n        ".join(quoting.packed([self.function, *(f'"{mount}"' for mount in mounted)]))

    def _on_nvidia(self, job: base.RuntimeJob) -> bool:
        """Return whether the job uses GPUs that the hook gives; those of AMD are devices in /dev."""
        return job.mode.uses_gpus and job.gpu_vendor == "nvidia"

    def exports(self, job: base.RuntimeJob) -> dict[str, str]:
        """Return what Enroot's hook reads; "all" would fail on a node without NVIDIA's tools."""
        exports = {}
        if not self.words(job):
            exports[NVIDIA] = "all" if self._on_nvidia(job) else "void"
        if self._on_nvidia(job) and not self.is_file(job.software.get("image") or ""):
            exports[CAPABILITIES] = "compute,utility"  # what its image sets is not known before it runs
        return exports

    def own_exports(self, job: base.RuntimeJob) -> tuple[str, ...]:
        """Let Enroot replace a container that an earlier start has left on the node."""
        return ("ENROOT_FORCE_OVERRIDE=yes",)

    def words(self, job: base.RuntimeJob) -> dict[str, str]:
        """Return GPUs that only the command line of sbatch can ask for: the job itself asks for none."""
        unknown = job.mode.uses_gpus and not (job.gpus_per_node or job.shards)
        gives = unknown and job.gpu_vendor != "amd" and NVIDIA not in job.env
        return {NVIDIA: '"${CUDA_VISIBLE_DEVICES:+all}"'} if gives else {}

    def command(self, job: base.RuntimeJob, exported: Sequence[str], mounted: Sequence[str]) -> Iterator[str]:
        """Yield the options of srun that pyxis adds."""
        folder = job.facts.workdir
        workdir = quoting.path(base.absolute(folder, "PWD")) if folder else '"$PWD"'
        starts = "" if folder == OF_IMAGE else f" --container-workdir={workdir}"
        both = ",".join(path if ":" in path else f"{path}:{path}" for path in mounted)
        yield f'--container-image="$IMAGE"{starts} --no-container-mount-home'
        names = exported if folder else (*exported, "PWD")  # else it starts in the image's folder
        yield f'--container-env="{",".join(names)}"'
        yield f'--container-mounts="{both}"'

    def environment_changes(self, job: base.RuntimeJob) -> list[str]:
        """Return a home for caches: that of the image can't be written."""
        is_given = "HOME" in job.env or "${HOME}" in (job.software.get("binds") or ())
        return [f'HOME="{"$HOME" if is_given else "$RUN_DIR"}"']

    def faults(self, job: base.RuntimeJob) -> Iterator[base.KeyFault]:
        """Yield an image file that pyxis takes for a registry address, or that is Apptainer's."""
        image = job.software.get("image") or ""
        if image.endswith((".sif", ".def")):
            what = f"'{image}' is a file of Apptainer, not of Enroot"
            fix = "use --runtime apptainer, or import the image from its registry"
            yield base.KeyFault("image", what, fix)
        if image.endswith(".sqsh") and not self.is_file(image):
            what = f"pyxis takes '{image}' for the address of a registry, not for a file"
            yield base.KeyFault("image", what, f"write ./{image}, or the absolute path")

    def unmountable(self, path: str) -> str:
        """Return why pyxis can't mount a path."""
        special = _BASH_CHARACTERS.search(path)
        return f"pyxis writes it into a bash script, where {special[0]} is special" if special else ""

    def adopt(self, draft: base.ScriptDraft, launch: base.ScriptLaunch, tool: base.Tool) -> dict[str, Any]:
        """Return image, mounts and working folder."""
        keys: dict[str, Any] = {}
        for option in tool.given:
            if option.name == "container-image":
                if image := draft.option_path(tool, option, file=True):
                    taken_for_address = image.endswith(".sqsh") and not self.is_file(image)
                    keys["image"] = f"./{image}" if taken_for_address else image
            elif option.name == "container-mounts":
                keys["mounts"] = draft.option_list(tool, option)
            elif option.name == "container-workdir":
                keys["workdir"] = draft.option_path(tool, option)
            elif option.name.removeprefix("no-").startswith("container-") and option.name not in (
                "container-env",  # all that the script exports gets in
                "container-mount-home",
                "no-container-mount-home",
                *OF_PYXIS,
            ):
                draft.lose(f"--{option.name} of srun")
        if tool.option("container-mount-home"):
            keys["mounts"] = [*keys.get("mounts", []), "${HOME}"]
        return {"workdir": OF_IMAGE} | keys


RUNTIME = EnrootRuntime()
