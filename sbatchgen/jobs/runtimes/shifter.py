"""Runtime shifter: a container of Shifter, the program of NERSC.

A directive of sbatch names the image, which Shifter prepares on each node before the script starts. Source:
doc/command/shifter.rst and doc/wlm/slurm.rst of NERSC/shifter, and NERSC/sc25-dl-tutorial.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sbatchgen.base import quoting
from sbatchgen.base.keys import described, record
from sbatchgen.base.units import Argument, ShellPath
from sbatchgen.jobs.runtimes import base


@record
class Shifter:
    """An image of Shifter, and mounts in addition to those of the site."""

    image: ShellPath | None = described("The image, as `shifterimg images` shows it.")
    volumes: tuple[ShellPath, ...] = described("Mounts, SRC:DST.", ())
    flags: tuple[Argument, ...] = described("Other flags of the program, as --clearenv.", ())


class ShifterRuntime(base.ContainerRuntime):
    """A container of Shifter, the program of NERSC."""

    name = "shifter"
    title = "Shifter."
    Facts = Shifter
    has_only_named_images = True
    keys = base.container_keys("volumes")
    requires = base.Requirement("image", "an image", "--image NAME")
    function = "check_shifter"
    starts = ("shifter",)
    mounts_run_folders = False  # the site mounts its file systems in each container
    needs_slurm = "gets its image by an option of sbatch"
    mount_options = r"ro|perNodeCache=[^:,;]+"

    def assignments(self, job: base.RuntimeJob, folder_variable: str) -> Iterator[str]:
        """Yield nothing, because a directive names the image."""
        yield from ()

    def directives(self, job: base.RuntimeJob) -> Mapping[str, str]:
        """Return the option for the image, which Shifter prepares on all nodes before the script starts."""
        image = job.software.get("image")
        return {"image": str(image)} if image else {}

    def command(self, job: base.RuntimeJob, exported: Sequence[str], mounted: Sequence[str]) -> Iterator[str]:
        """Yield `shifter` with the job's mounts only, because the site mounts its own file systems."""
        binds = [
            quoting.path(base.path_in_bash(bind, "PWD"))[1:-1] for bind in job.software.get("binds") or ()
        ]
        pairs = (path if ":" in path else f"{path}:{path}" for path in binds)
        volumes = (f'--volume="{pair}"' for pair in pairs)
        yield from quoting.packed(["shifter", *map(quoting.value, job.facts.flags), *volumes])
        yield from base.env_in_container(job, exported)

    def faults(self, job: base.RuntimeJob) -> Iterator[base.KeyFault]:
        """Yield a fault for an image that is a path or has a variable, which sbatch would not expand."""
        image = str(job.software.get("image") or "")
        if image.startswith(("/", ".", "$")) or "${" in image:
            what = f"'{image}' is not the name of an image of Shifter"
            yield base.KeyFault("image", what, "write it as `shifterimg images` shows it")

    def why_unmountable(self, path: str) -> str:
        """Return why Shifter can't mount a path; "" if it can."""
        return "Shifter would split it at the semicolon" if ";" in path else ""

    def adopt(self, draft: base.ScriptDraft, launch: base.ScriptLaunch, tool: base.Tool) -> dict[str, Any]:
        """Return the image and volumes of an old script's command and directives, as keys of `Facts`."""
        directives = draft.job.get("extra_options", {})
        keys: dict[str, Any] = {"image": directives.pop("image", None)}
        volumes = [volume for volume in directives.pop("volume", "").split(";") if volume]
        for option in tool.uses:
            if option.name == "image":
                keys["image"] = option.value
            elif option.name == "volume":
                path = draft.option_path(tool, option)
                volumes += path.split(";") if path else []
            elif option.name == "module" and option.value:
                draft.job.setdefault("extra_options", {})["module"] = option.value
            elif option.name == "env":
                draft.adopt_env_option(tool, option)
            else:
                draft.lose(f"--{option.name} of shifter")
        if not keys["image"]:
            del keys["image"]
            draft.lose("the script does not say which image is started")
        return {**keys, "volumes": volumes} if volumes else keys


RUNTIME = ShifterRuntime()
