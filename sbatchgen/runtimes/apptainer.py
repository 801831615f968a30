"""apptainer: an image for Apptainer, or for Singularity where it has that name."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sbatchgen import quoting
from sbatchgen.errors import CommandLineError
from sbatchgen.keys import described
from sbatchgen.runtimes.base import (
    ContainerRuntime,
    ImageTool,
    Requirement,
    RuntimeJob,
    ScriptDraft,
    ScriptLaunch,
    container_keys,
)
from sbatchgen.units import ShellPath, Text

if TYPE_CHECKING:
    from sbatchgen.bash.chain import Tool

_URI = re.compile(r"[a-z][a-z0-9+.-]*://")
_STARTS = tuple(f"{program} {verb}" for program in ("apptainer", "singularity") for verb in ("exec", "run"))


@dataclass(kw_only=True, eq=False, repr=False)
class Apptainer:
    """An image for Apptainer, its bind mounts, and the flag that gives it the GPUs."""

    image: ShellPath | None = described("The image, a .sif file or an address.")
    source: Text | None = described("The address that `sbatchgen image pull` gets the file from.")
    binds: tuple[ShellPath, ...] = described("Bind mounts, SRC or SRC:DST.", ())
    gpu_flag: Text = described("The flag that gives it the GPUs.", make=lambda: Text("--nv"))


def _source(source: str) -> str:
    """Return a URI as it is, and a path that can't be an option."""
    if _URI.match(source):
        return source
    path = Path(source).absolute()
    if not path.exists():
        raise CommandLineError.of(f"no file or folder {path}", fix="a URI starts as docker://")
    return str(path)


class ApptainerRuntime(ContainerRuntime):
    """See the module."""

    name = "apptainer"
    title = "Apptainer."
    Facts = Apptainer
    keys = container_keys("binds")
    requires = Requirement("image", "an image", "--image FILE.sif")
    part = "runtime/image.sh.j2"
    programs = ("apptainer", "singularity")
    image_tools = tuple(
        ImageTool(verb, ("apptainer", verb), ("APPTAINER_TMPDIR", "APPTAINER_CACHEDIR"), _source)
        for verb in ("pull", "build")
    )

    def variables(self, job: RuntimeJob, here: str, exported: Sequence[str]) -> dict[str, Any]:
        """Return the lines of variables that must win over the image's own."""
        del here
        return {"twin_lines": quoting.packed(exported) if job.runtime is self else ()}

    def own_exports(self, job: RuntimeJob) -> tuple[str, ...]:
        """Keep Apptainer from evaluating the values of APPTAINERENV_ variables."""
        del job
        return ("APPTAINER_NO_EVAL=1",)

    def command(self, job: RuntimeJob, exported: Sequence[str], mounted: Sequence[str]) -> Iterator[str]:
        """Yield `apptainer exec` with its mounts."""
        del exported
        flag = job.facts.gpu_flag if job.mode.uses_gpus else ""
        flags = f" {quoting.word(flag)}" if flag else ""
        yield f'apptainer exec{flags} --pwd "$PWD" --bind "{",".join(mounted)}" "$IMAGE"'

    def tool(self, launch: ScriptLaunch) -> "Tool | None":
        """Return apptainer exec or run, or singularity's."""
        return next((tool for tool in launch.tools if tool.name in _STARTS), None)

    def adopt(self, draft: ScriptDraft, launch: ScriptLaunch, tool: "Tool") -> dict[str, Any]:
        """Return image, binds and the GPU flag."""
        del launch
        flags = {option.name for option in tool.given} & {"nv", "rocm"}
        keys: dict[str, Any] = {}
        if tool.name.endswith(" run"):
            draft.lose(f"{tool.name}: what the image starts is not known; write exec")
        image = draft.file(tool.operands[0], tool.body) if tool.operands else None
        if image is None:
            draft.lose("the script does not say which image is started")
        else:
            keys["image"] = image
        binds: list[str] = []
        for option in tool.given:
            if option.name == "bind":
                binds += draft.option_list(tool, option)
            elif option.name not in flags:
                draft.lose(f"--{option.name} of {tool.name}")
        if binds:
            keys["binds"] = binds
        if draft.job["mode"] != "cpu" and flags != {"nv"}:
            keys["gpu_flag"] = f"--{min(flags)}" if flags else ""
        return keys


RUNTIME = ApptainerRuntime()
