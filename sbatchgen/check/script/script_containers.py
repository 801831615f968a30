"""Finds the containers that a script starts: with pyxis, by directives or srun, or with Apptainer."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from sbatchgen.base.finding import Place
from sbatchgen.base.frozen import cached_property, frozen
from sbatchgen.check.bash import Command, Word
from sbatchgen.check.bash.chain import Tool
from sbatchgen.check.executables.program import LAUNCHERS, programs
from sbatchgen.check.script.known_options import PYXIS_NAMES
from sbatchgen.check.script.launches import Launch

IMAGE_FILE = re.compile(r"\.(?:sqsh|squashfs|sif)$")  # the end of the name of an image in a file
REGISTRY_SCHEME = re.compile(r"(?:docker|oras|library|shub)://")  # the start of an image in a registry
_APPTAINER = programs("apptainer")


class OptionUse(NamedTuple):
    """An option with which a container starts."""

    name: str
    value: str
    at: Place


@frozen()
class Container:
    """A container that a script starts."""

    image: str  # "" without an image; a variable with an unknown value stays as it is written
    at: Place  # the place of the image; without an image, the place of the container's first option
    uses: Sequence[OptionUse]  # each use of an option, in the order of the text
    command: Command | None = None  # the command that starts the container; None for a directive
    inner_tools: tuple[Tool, ...] = ()  # the tools that run in the container
    is_pyxis: bool = (
        False  # whether pyxis starts the container, with Enroot; otherwise Apptainer or Singularity
    )

    @cached_property
    def options(self) -> Mapping[str, tuple[str, Place]]:
        """The value and the place of each option, in its last use."""
        return {use.name: (use.value, use.at) for use in self.uses}

    @property
    def is_pulled(self) -> bool:
        """Whether the start of the container pulls the image from a registry."""
        if not self.image or self.image.startswith("$"):
            return False
        if not self.is_pyxis:
            return REGISTRY_SCHEME.match(self.image) is not None
        return self.image[0] not in "./~" and not IMAGE_FILE.search(self.image)

    @property
    def trains(self) -> bool:
        """Whether Python runs in the container."""
        return any(tool.name == "python" or tool.name in LAUNCHERS for tool in self.inner_tools)


def containers(
    options: Mapping[str, tuple[str, Place]],
    launches: Iterable[Launch],
    place: Callable[[Word | Command], Place],
) -> Iterator[Container]:
    """Yield the containers that a script starts.

    `options` are those of directives, each with its value and place. `place` returns the place of a word.
    """
    yield from _pyxis_container([OptionUse(name, value, at) for name, (value, at) in options.items()])
    for launch in launches:
        for index, tool in enumerate(launch.tools):
            inner_tools = launch.tools[index + 1 :]
            if tool.name == "srun":
                yield from _pyxis_container(_option_uses(tool, place), launch.command, inner_tools)
            elif tool.name in _APPTAINER and tool.operands:
                image = tool.operands[0]
                name, uses = tool.body.text_of(image), _option_uses(tool, place)
                yield Container(name, place(image), uses, command=launch.command, inner_tools=inner_tools)


def _option_uses(tool: Tool, place: Callable[[Word | Command], Place]) -> list[OptionUse]:
    """Return the options of a tool in its command."""
    return [OptionUse(option.name, tool.text_of(option), place(option.word)) for option in tool.uses]


def _pyxis_container(
    uses: Iterable[OptionUse], command: Command | None = None, inner_tools: tuple[Tool, ...] = ()
) -> Iterator[Container]:
    """Yield the container that sbatch or srun starts, if an option of pyxis is among its options."""
    pyxis_uses = [use for use in uses if use.name in PYXIS_NAMES]
    if pyxis_uses:
        images = [use for use in pyxis_uses if use.name == "container-image"]
        image, at = (images[-1].value, images[-1].at) if images else ("", pyxis_uses[0].at)
        yield Container(image, at, pyxis_uses, command, inner_tools, is_pyxis=True)
