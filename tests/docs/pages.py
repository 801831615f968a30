"""The pages that people read, and what they show: commands with their output, files, YAML."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.conftest import REPOSITORY

PAGES = [
    REPOSITORY / "README.md",
    REPOSITORY / "CONTRIBUTING.md",
    REPOSITORY / "templates/SKILL.md",
    *sorted((REPOSITORY / "docs").rglob("*.md")),
]
_FENCED = re.compile(
    r"^(?:<!-- file: (?P<file>\S+) -->\n)?```(?P<kind>\w+)\n(?P<text>.*?)^```$|^<!-- run: (?P<run>.*?) -->$",
    re.MULTILINE | re.DOTALL,
)
_NAMED = re.compile(r"# (\S+\.ya?ml)\b")
_INDENTED = re.compile(r"^(?: {4}| {7})(?:\$ )?(?=\S)((?:.*\\\n)*.*)", re.MULTILINE)


@dataclass(frozen=True)
class Shown:
    """A command of a ```console block, and what is shown as its output; `...` stands for anything."""

    command: str
    output: str

    def fits(self, printed: str) -> bool:
        """Whether that is what the command has printed."""
        return re.fullmatch(re.escape(self.output).replace(r"\.\.\.", ".*?"), printed, re.DOTALL) is not None


@dataclass(frozen=True)
class Block:
    """A fenced block.

    Attributes:
        kind: The word after ```; "run" of a command that a reader does not see.
        file: Its file's name, if it is one.
        text: What is in it.
    """

    kind: str
    file: str
    text: str

    @property
    def shown(self) -> list[Shown]:
        """The commands of a ```console block."""
        commands = re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", self.text, re.MULTILINE)
        return [Shown(command, output) for command, output in commands]


def blocks(page: Path) -> Iterator[Block]:
    """The fenced blocks of a page, in their order."""
    for match in _FENCED.finditer(page.read_text()):
        if match["run"]:
            yield Block("run", "", match["run"])
        else:
            named = _NAMED.match(match["text"]) if match["kind"] == "yaml" else None
            yield Block(match["kind"], match["file"] or (named[1] if named else ""), match["text"])


def commands(page: Path) -> Iterator[list[str]]:
    """The words of every command that a page tells people to type: in indented blocks, consoles and `code`."""
    text = page.read_text()
    plain = _FENCED.sub("", text)
    lines = [*_INDENTED.findall(plain), *re.findall(r"`(sbatchgen [^`]*)`", plain)]
    lines += [shown.command for block in blocks(page) if block.kind == "console" for shown in block.shown]
    for line in lines:
        try:
            words = shlex.split(line.replace("\\\n", " ").replace("\\|", "|"), comments=True)
            words = [re.sub(r"^~(?=/)", "/home/me", word) for word in words]  # as a shell does
        except ValueError:  # half of a code block
            continue
        ends = [at for at, word in enumerate(words) if word in {"&&", "|", ">", "2>&1"}]
        for start, end in zip([0, *(end + 1 for end in ends)], [*ends, len(words)], strict=True):
            if words[start:end]:
                yield words[start:end]
