"""Runtime enroot: an image for Enroot, started by pyxis, a plugin of Slurm.

Source: the READMEs of Enroot and pyxis.
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
# Variables with folders of caches, which people export in their shells and a container may not have.
CACHES = ("HF_HOME", "MPLCONFIGDIR", "TORCH_HOME", "TRITON_CACHE_DIR", "WANDB_DIR", "XDG_CACHE_HOME")
WORKDIR_OF_IMAGE = "image"  # the value of `workdir` for the working folder that the image names
_SCRATCH = ("ENROOT_TEMP_PATH", "ENROOT_CACHE_PATH")  # the variables for temporary files and for the cache
_URI = re.compile(r"[a-z][a-z0-9+.-]*://")  # the start of an address: "docker://"
_BASH_CHARACTERS = re.compile(r'[$`"]')  # special characters in double quotes


@record
class Enroot:
    """An image for Enroot through pyxis, its mounts, and the folder to start in."""

    image: ShellPath | None = described("The image, a .sqsh file or an address.")
    source: Text | None = described("The address that `sbatchgen image import` gets the file from.")
    mounts: tuple[ShellPath, ...] = described("Mounts, SRC or SRC:DST.", ())
    workdir: ShellPath | None = described(
        "The folder to start in; by default that of submission. `image`: the one that the image names."
    )


# Runs a command in the job's container on this node, or without a container on the node itself. In the output
# of `enroot list -f`, the first line of a container has the container's name before the process id.
_ENTER = """
for pid in $(enroot list -f 2>/dev/null | awk '{ print $2 ~ /^[0-9]+$/ ? $2 : $1 }'); do
    grep -qsxz "SLURM_JOB_ID=$SLURM_JOB_ID" "/proc/$pid/environ" && exec enroot exec "$pid" "$@"
done
echo "sbatchgen exec: no container of Enroot found on $(hostname): on the node itself" >&2
exec "$@"
"""


def _uri_of(source: str) -> str:
    """Return the URI of an image, with # after the registry, which older releases of Enroot need.

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


# Options of pyxis that change neither the mounts nor the command, and so need no key.
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
    one_line_values = "Enroot would take its lines for variables"
    finds_user_packages = False  # the home folder is not mounted
    # options of mount(8), joined by + (README of NVIDIA/pyxis), and Enroot's x-create=dir
    mount_options = (
        r"(?:(?:ro|rw|r?bind|r?private|r?slave|r?shared|no(?:suid|dev|exec)|x-create=\w+)(?:\+|$))+"
    )
    removes_slowly = True  # 41 s were measured with a small image
    enter = _ENTER
    image_tools = (base.ImageTool("import", ("enroot", "import", "--output"), _SCRATCH, _uri_of),)

    def is_file(self, image: str) -> bool:
        """Return whether pyxis takes the image for the path of a file."""
        return image.startswith(("/", ".", "${"))

    unset: ClassVar[Mapping[str, Any]] = {"pyxis": False, "gives_cuda": False, "caches": ()}

    def variables(
        self, job: base.RuntimeJob, folder_variable: str, exported: Sequence[str]
    ) -> dict[str, Any]:
        """Return the template's variables.

        With `gives_cuda`, the script asks the hook for the parts of the driver that CUDA needs, if the image
        does not. `caches` are variables of the submitting shell that the script unsets.
        """
        image = job.software.get("image") or ""
        gives_cuda = self._needs_hook(job) and self.is_file(image) and CAPABILITIES not in job.env
        caches = tuple(name for name in CACHES if not base.inherits_variable(job, name))
        return {"pyxis": True, "gives_cuda": gives_cuda, "caches": caches}

    def setup_commands(self, job: base.RuntimeJob, mounted: Sequence[str]) -> Iterator[str]:
        """Yield the call of the function with all mounts."""
        yield " \\\n        ".join(quoting.packed([self.function, *(f'"{mount}"' for mount in mounted)]))

    def _needs_hook(self, job: base.RuntimeJob) -> bool:
        """Return whether the job uses GPUs that need the hook; GPUs of AMD are plain devices in /dev."""
        return job.mode.uses_gpus and job.gpu_vendor == "nvidia"

    def exports(self, job: base.RuntimeJob) -> dict[str, str]:
        """Return the variables that Enroot's hook reads."""
        exports = {}
        if not self.computed_words(job):  # "all" would fail on a node without NVIDIA's tools
            exports[VISIBLE_GPUS] = "all" if self._needs_hook(job) else "void"
        if self._needs_hook(job) and not self.is_file(job.software.get("image") or ""):
            exports[CAPABILITIES] = "compute,utility"  # the variables of an image in a registry are not known
        return exports

    def own_exports(self, job: base.RuntimeJob) -> tuple[str, ...]:
        """Return the variable that lets Enroot replace a container left on the node by an earlier start."""
        return ("ENROOT_FORCE_OVERRIDE=yes",)

    def computed_words(self, job: base.RuntimeJob) -> dict[str, str]:
        """Return the variable of the hook for a job that asks for no GPUs.

        The command line of sbatch may still give GPUs to the job, which Slurm then names in
        CUDA_VISIBLE_DEVICES.
        """
        may_get_gpus = job.mode.uses_gpus and not (job.gpus_per_node or job.shards)
        sets_variable = may_get_gpus and job.gpu_vendor != "amd" and VISIBLE_GPUS not in job.env
        return {VISIBLE_GPUS: '"${CUDA_VISIBLE_DEVICES:+all}"'} if sets_variable else {}

    def command(self, job: base.RuntimeJob, exported: Sequence[str], mounted: Sequence[str]) -> Iterator[str]:
        """Yield the options that pyxis adds to srun."""
        folder = job.facts.workdir
        workdir = quoting.path(base.absolute(folder, "PWD")) if folder else '"$PWD"'  # as a word of bash
        option = "" if folder == WORKDIR_OF_IMAGE else f" --container-workdir={workdir}"
        yield f'--container-image="$IMAGE"{option} --no-container-mount-home'
        names = exported if folder else (*exported, "PWD")  # without PWD it would start in the image's folder
        yield f'--container-env="{",".join(names)}"'
        pairs = ",".join(path if ":" in path else f"{path}:{path}" for path in mounted)
        yield f'--container-mounts="{pairs}"'

    def environment_changes(self, job: base.RuntimeJob) -> list[str]:
        """Return a HOME that can be written, for caches: the image's own home can't."""
        has_home = "HOME" in job.env or "${HOME}" in (job.software.get("binds") or ())
        return [f'HOME="{"$HOME" if has_home else "$RUN_DIR"}"']

    def faults(self, job: base.RuntimeJob) -> Iterator[base.KeyFault]:
        """Yield a fault for an image file that pyxis treats as a registry address, or that is Apptainer's."""
        image = job.software.get("image") or ""
        if image.endswith((".sif", ".def")):
            what = f"'{image}' is a file of Apptainer, not of Enroot"
            fix = "use --runtime apptainer, or import the image from its registry"
            yield base.KeyFault("image", what, fix)
        if image.endswith(".sqsh") and not self.is_file(image):
            what = f"pyxis takes '{image}' for the address of a registry, not for a file"
            yield base.KeyFault("image", what, f"write ./{image}, or the absolute path")

    def unmountable(self, path: str) -> str:
        """Return why pyxis can't mount a path; "" if it can."""
        special = _BASH_CHARACTERS.search(path)
        return f"pyxis writes it into a bash script, where {special[0]} is special" if special else ""

    def adopt(self, draft: base.ScriptDraft, launch: base.ScriptLaunch, tool: base.Tool) -> dict[str, Any]:
        """Return image, mounts and working folder of an old script's options of srun."""
        keys: dict[str, Any] = {}
        for option in tool.uses:
            if option.name == "container-image":
                if image := draft.option_path(tool, option, file=True):
                    is_bare_name = image.endswith(".sqsh") and not self.is_file(image)
                    keys["image"] = f"./{image}" if is_bare_name else image
            elif option.name == "container-mounts":
                keys["mounts"] = draft.option_list(tool, option)
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
