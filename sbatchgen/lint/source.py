"""Where scripts come from: files, folders, stdin, and the examples of Markdown documents.

Nothing larger than MAX_BYTES is read, and nothing that is no regular file is opened: a pipe may never end.
"""

from __future__ import annotations

import os
import re
import stat
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from sbatchgen.errors import DocumentError

MAX_BYTES = 4 << 20  # slurmctld takes no larger script, unless max_script_size says so (slurm.conf(5))
STDIN = "-"
SCRIPTS = (".slurm", ".sbatch")  # names of scripts wherever they are
PERHAPS = (".sh", ".bash", ".job", ".sub", ".cmd", "")  # of these, the files with directives
DOCUMENTS = (".md", ".markdown")
_DIRECTIVE = re.compile(rb"^#SBATCH", re.MULTILINE)
_FENCE = re.compile(r"^(?P<indent>[ \t>]*)(?P<mark>`{3,}|~{3,})[ \t]*(?P<language>[\w+.-]*)")
_SHELL = ("", "bash", "sh", "shell", "slurm", "sbatch", "console", "text")


@dataclass(frozen=True, kw_only=True)
class Source:
    """A script and where it stands.

    Attributes:
        file: The file's name, as it was given.
        data: The script.
        line: The line of the file in which it starts, from 1.
        indent: Characters before each of its lines in the file.
        example: Whether it is one of a document's. Where that left the `#!` out, it was put before.
    """

    file: str
    data: bytes
    line: int = 1
    indent: int = 0
    example: bool = False

    @property
    def text(self) -> str:
        """The script; bytes that are no UTF-8 are surrogates."""
        return self.data.decode("utf-8", "surrogateescape")


def files(names: Sequence[str]) -> Iterator[str]:
    """The files that these names stand for; of a folder, the scripts in it at any depth, by name."""
    for name in names:
        if name == STDIN or not os.path.isdir(name):  # noqa: PTH112 - a name stays as it was given
            yield name
        else:
            yield from _scripts(name)


def _scripts(folder: str) -> Iterator[str]:
    for where, folders, names in os.walk(folder):  # links to folders are not followed, so there is no loop
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            path = os.path.join(where, name)  # noqa: PTH118
            suffix = os.path.splitext(name)[1]  # noqa: PTH122
            if suffix in SCRIPTS or (suffix in PERHAPS and _has_directives(path)):
                yield path


def _has_directives(path: str) -> bool:
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # noqa: PTH116
            return False
        with open(path, "rb") as file:  # noqa: PTH123
            return _DIRECTIVE.search(file.read(1 << 16)) is not None
    except OSError:
        return False


def sources(name: str) -> Iterator[Source]:
    """The scripts of a file: one, or those of a Markdown document.

    Raises:
        DocumentError: It can't be read, is no regular file, or is too large for a script.
    """
    data = _stdin() if name == STDIN else _content(name)
    shown = "<stdin>" if name == STDIN else name
    if name.endswith(DOCUMENTS):
        yield from _examples(shown, data)
    else:
        yield Source(file=shown, data=data)


def _stdin() -> bytes:
    data = sys.stdin.buffer.read(MAX_BYTES + 1)
    _limit("<stdin>", data)
    return data


def _content(name: str) -> bytes:
    path = Path(name)
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise DocumentError.of(f"{name} is no regular file", fix="give a script")
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        why = error.strerror if isinstance(error, OSError) else error
        raise DocumentError.of(f"can't read {name}: {why}") from error
    _limit(name, data)
    return data


def _limit(name: str, data: bytes) -> None:
    if len(data) > MAX_BYTES:
        what = f"{name} is larger than {MAX_BYTES >> 20} MiB, and slurmctld takes no such script by default"
        raise DocumentError.of(what, fix="keep the data in a file of its own")


def _examples(name: str, data: bytes) -> Iterator[Source]:
    """The fenced blocks of a Markdown document that hold directives."""
    fence, start, indent = "", 0, 0
    block: list[str] = []
    shell = False
    for number, line in enumerate(data.decode("utf-8", "surrogateescape").split("\n"), start=1):
        match = _FENCE.match(line)
        if not fence and match:
            fence, start, indent = match["mark"], number + 1, len(match["indent"])
            shell, block = match["language"].lower() in _SHELL, []
        elif match and match["mark"].startswith(fence) and not match["language"]:
            text = "\n".join([*block, ""]).encode("utf-8", "surrogateescape")
            if shell and _DIRECTIVE.search(text):
                added = 0 if text.startswith(b"#!") else 1
                text = b"#!/bin/bash\n" * added + text
                yield Source(file=name, data=text, line=start - added, indent=indent, example=True)
            fence = ""
        elif fence:
            block.append(line[indent:])
