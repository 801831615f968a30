"""The containers that a script starts, by directives, by srun or by Apptainer."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from sbatchgen.bash import Command, Word
from sbatchgen.bash.chain import Tool
from sbatchgen.finding import Place
from sbatchgen.job.known_options import PYXIS_NAMES
from sbatchgen.job.launches import APPTAINER, LAUNCHERS, Launch

IMAGE_FILE = re.compile(r"\.(?:sqsh|squashfs|sif)$")
PULLED = re.compile(r"(?:docker|oras|library|shub)://")


@dataclass(frozen=True, kw_only=True)
class Container:
    """A container that a script starts.

    Attributes:
        pyxis: Whether it is one of Enroot through pyxis; else it is Apptainer's or Singularity's.
        image: The image; expansions that can't be followed stay as they are written. "" without one.
        at: Where the image, or else the container's first option, is given.
        options: Its options: the value, if the text gives it, and the place. The last of each counts.
        several: All values of each option.
        command: What starts it; None where a directive does.
        inside: The tools that run in it.
    """

    pyxis: bool
    image: str
    at: Place
    options: Mapping[str, tuple[str, Place]]
    several: Mapping[str, tuple[str, ...]]
    command: Command | None = None
    inside: tuple[Tool, ...] = ()

    @property
    def registry(self) -> bool:
        """Whether the image is pulled from a registry."""
        if not self.image or self.image.startswith("$"):
            return False
        if not self.pyxis:
            return PULLED.match(self.image) is not None
        return self.image[0] not in "./~" and not IMAGE_FILE.search(self.image)

    @property
    def trains(self) -> bool:
        """Whether Python runs in it."""
        return any(tool.name == "python" or tool.name in LAUNCHERS for tool in self.inside)


def containers(
    options: Mapping[str, tuple[str, Place]],
    launches: Iterable[Launch],
    place: Callable[[Word | Command], Place],
) -> Iterator[Container]:
    """All containers of a script.

    Args:
        options: Value and place of each option in its directives.
        launches: What it starts.
        place: Returns the place of a word or a command of its body.
    """
    given = {name: value for name, value in options.items() if name in PYXIS_NAMES}
    if given:
        image, at = given.get("container-image", ("", next(iter(given.values()))[1]))
        several = {name: (value,) for name, (value, _) in given.items()}
        yield Container(pyxis=True, image=image, at=at, options=given, several=several)
    for launch in launches:
        for index, tool in enumerate(launch.tools):
            if tool.name == "srun" or tool.name in APPTAINER:
                yield from _container(place, launch.command, tool, launch.tools[index + 1 :])


def _container(
    place: Callable[[Word | Command], Place], command: Command, tool: Tool, inside: tuple[Tool, ...]
) -> Iterator[Container]:
    pyxis = tool.name == "srun"
    options: dict[str, tuple[str, Place]] = {}
    several: dict[str, tuple[str, ...]] = {}
    for option in tool.given:
        if pyxis and option.name not in PYXIS_NAMES:
            continue
        value = option.value
        if value is None:
            word = option.own_word(tool.body)
            value = tool.body.text_of(word) if word else ""
        options[option.name] = value, place(option.word)
        several[option.name] = (*several.get(option.name, ()), value)
    if pyxis and not options:
        return
    if pyxis:
        image, at = options.get("container-image", ("", next(iter(options.values()))[1]))
    elif tool.operands:
        image, at = tool.body.text_of(tool.operands[0]), place(tool.operands[0])
    else:
        return
    yield Container(
        pyxis=pyxis, image=image, at=at, options=options, several=several, command=command, inside=inside
    )
