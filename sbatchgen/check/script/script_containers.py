"""The containers that a script starts by directives, with srun or with Apptainer."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from sbatchgen.base.finding import Place
from sbatchgen.base.frozen import cached_property, frozen
from sbatchgen.check.bash import Command, Word
from sbatchgen.check.bash.chain import Tool
from sbatchgen.check.executables.program import LAUNCHERS, programs
from sbatchgen.check.script.known_options import PYXIS_NAMES
from sbatchgen.check.script.launches import Launch

IMAGE_FILE = re.compile(r"\.(?:sqsh|squashfs|sif)$")
REGISTRY_SCHEME = re.compile(r"(?:docker|oras|library|shub)://")
_APPTAINER = programs("apptainer")
Use = tuple[str, str, Place]  # the name, the value and the place of an option


@frozen()
class Container:
    """A container that a script starts."""

    image: str  # the image, "" without an image; expansions with unknown values stay as written
    at: Place  # the place of the image; without an image, of the container's first option
    uses: Sequence[Use]  # each use of an option, in order
    command: Command | None = None  # the command that starts the container; None for a directive
    inside: tuple[Tool, ...] = ()  # the tools that run in the container
    pyxis: bool = False  # whether pyxis starts the container with Enroot, not Apptainer or Singularity

    @cached_property
    def options(self) -> Mapping[str, tuple[str, Place]]:
        """The value and the place of each option; the last use counts."""
        return {name: (value, at) for name, value, at in self.uses}

    @property
    def is_pulled(self) -> bool:
        """Whether the start of the container pulls the image from a registry."""
        if not self.image or self.image.startswith("$"):
            return False
        if not self.pyxis:
            return REGISTRY_SCHEME.match(self.image) is not None
        return self.image[0] not in "./~" and not IMAGE_FILE.search(self.image)

    @property
    def trains(self) -> bool:
        """Whether Python runs in the container."""
        return any(tool.name == "python" or tool.name in LAUNCHERS for tool in self.inside)


def containers(
    options: Mapping[str, tuple[str, Place]],
    launches: Iterable[Launch],
    place: Callable[[Word | Command], Place],
) -> Iterator[Container]:
    """Yield the containers of a script's options and launches; `place` returns the place of a word."""
    yield from _pyxis_container([(name, value, at) for name, (value, at) in options.items()])
    for launch in launches:
        for index, tool in enumerate(launch.tools):
            inside = launch.tools[index + 1 :]
            if tool.name == "srun":
                yield from _pyxis_container(_uses(tool, place), launch.command, inside)
            elif tool.name in _APPTAINER and tool.operands:
                image = tool.operands[0]
                name, uses = tool.body.text_of(image), _uses(tool, place)
                yield Container(name, place(image), uses, command=launch.command, inside=inside)


def _uses(tool: Tool, place: Callable[[Word | Command], Place]) -> list[Use]:
    """Return the options of a tool as uses."""
    return [(option.name, tool.text_of(option), place(option.word)) for option in tool.uses]


def _pyxis_container(
    uses: Iterable[Use], command: Command | None = None, inside: tuple[Tool, ...] = ()
) -> Iterator[Container]:
    """Yield the container of an sbatch or srun, if its options have an option of pyxis."""
    used = [use for use in uses if use[0] in PYXIS_NAMES]
    if used:
        images = [use for use in used if use[0] == "container-image"]
        _, image, at = images[-1] if images else ("", "", used[0][2])
        yield Container(image, at, used, command, inside, pyxis=True)
