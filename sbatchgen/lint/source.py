"""Where scripts come from: files, folders, stdin, and the examples of Markdown documents.

Nothing larger than MAX_BYTES is read, and only regular files are: a pipe may never end.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from sbatchgen.errors import DocumentError, Problem
from sbatchgen.files import read_file
from sbatchgen.finding import Finding, Place
from sbatchgen.inputs.mistaken import mistaken

MAX_BYTES = 4 << 20  # slurmctld takes no larger script, unless max_script_size says so (slurm.conf(5))
STDIN = "-"
SCRIPTS = (".slurm", ".sbatch")  # names of scripts wherever they are
PERHAPS = (".sh", ".bash", ".job", ".sub", ".cmd", "")  # of these, the files with directives
DOCUMENTS = (".md", ".markdown")
OTHERS = (".py", ".yaml", ".yml")
_DIRECTIVE = re.compile(rb"^#SBATCH", re.MULTILINE)
# Fences of CommonMark, also within quotes and lists; the text after backticks holds no backtick.
_FENCE = re.compile(r"(?P<indent>[ \t>]*)(?P<mark>`{3,}(?=[^`]*$)|~{3,})[ \t]*(?P<language>[\w+.-]*)")
_ANNOTATION = re.compile(r"[ \t]+(?:#[ \t]*)?\(\d{1,2}\)!?[ \t]*$")  # of MkDocs, as "# (2)!"
_SHELL = ("", "bash", "sh", "shell", "zsh", "slurm", "sbatch", "console", "text")


@dataclass(frozen=True, kw_only=True)
class Source:
    """A script and where it is.

    Attributes:
        file: The file's name, as the user wrote it.
        data: The script.
        line: The line of the file in which it starts, from 1.
        indents: Of an example of a document, the characters before each of its lines.
    """

    file: str
    data: bytes
    line: int = 1
    indents: tuple[int, ...] = ()

    @property
    def text(self) -> str:
        """The script; bytes that are not UTF-8 are surrogates."""
        return self.data.decode("utf-8", "surrogateescape")

    def indent(self, number: int) -> int:
        """How many characters of the document are before a line of the script, counted from 0."""
        return self.indents[number] if 0 <= number < len(self.indents) else 0

    def moved(self, finding: Finding) -> Finding:
        """Return the finding with its place in the file; without edits in a document."""
        if not self.indents:
            return finding
        old = finding.place
        at = self.indent(old.line - 1)
        line, column = old.line + self.line - 1, old.column + at
        place = Place(f"{self.file}:{line}:{column}", line, column, old.end + at if old.end else 0)
        return finding._replace(place=place, problem=finding.problem._replace(at=place.text), edits=())


def files(names: Sequence[str], complain: Callable[[Problem], None]) -> Iterator[str]:
    """Yield the files of these names, each once; of a folder, the scripts in it at any depth, by name.

    Args:
        names: Files, folders, or - for stdin.
        complain: Called with a problem for each folder that can't be read.
    """
    seen: set[str] = set()
    for name in names:
        is_file = name == STDIN or not os.path.isdir(name)  # noqa: PTH112 - a name stays as it was given
        for file in (name,) if is_file else _scripts(name, complain):
            if file not in seen:
                seen.add(file)
                yield file


def _scripts(folder: str, complain: Callable[[Problem], None]) -> Iterator[str]:
    def closed(error: OSError) -> None:
        complain(Problem(f"can't read the folder {error.filename}: {error.strerror}"))

    # Links to folders are not followed, so there is no loop.
    for where, folders, names in os.walk(folder, onerror=closed):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            path = os.path.join(where, name)  # noqa: PTH118
            suffix = os.path.splitext(name)[1]  # noqa: PTH122
            if name.startswith("."):
                continue
            if suffix in SCRIPTS or (suffix in PERHAPS and _has_directives(path)):
                yield path


def _has_directives(path: str) -> bool:
    try:
        return _DIRECTIVE.search(read_file(Path(path), 1 << 16)) is not None
    except OSError:
        return False


def sources(name: str) -> list[Source]:
    """Read the scripts of a file: one, or those of a Markdown document.

    Raises:
        DocumentError: It can't be read, is not a regular file, is too large, or is something else.
    """
    if name.endswith(OTHERS) and (problem := mistaken(name, "script", "lint")):
        raise DocumentError([problem])
    source = whole(name)
    return list(examples(source)) if name.endswith(DOCUMENTS) else [source]


def whole(name: str) -> Source:
    """Read a file as a script, whatever its name; raises DocumentError as `sources` does."""
    shown = "<stdin>" if name == STDIN else name
    try:
        limit = MAX_BYTES + 1
        data = sys.stdin.buffer.read(limit) if name == STDIN else read_file(Path(name), limit)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        why = error.strerror if isinstance(error, OSError) else error
        raise DocumentError.of(f"can't read {shown}: {why}") from error
    if len(data) > MAX_BYTES:
        what = f"{shown} is larger than {MAX_BYTES >> 20} MiB, and slurmctld takes no such script by default"
        raise DocumentError.of(what, fix="keep the data in a file of its own")
    return Source(file=shown, data=data)


def examples(document: Source) -> Iterator[Source]:
    """Yield the fenced blocks of a document that hold directives; an open one ends with the document."""
    opened: re.Match[str] | None = None
    start = 0
    block: list[str] = []
    # Carriage returns at the ends of a document's lines are the document's, not the script's.
    lines = document.text.replace("\r\n", "\n").removesuffix("\n").split("\n")
    for number, line in enumerate([*lines, None], start=1):
        match = _FENCE.match(line) if line is not None else None
        if opened is None:
            if match:
                opened, start, block = match, number + 1, []
        elif line is None or (
            match and match["mark"].startswith(opened["mark"]) and not line[match.end("mark") :].strip()
        ):
            yield from _example(document.file, block, start, opened)
            opened = None
        else:
            block.append(line)


def _example(name: str, block: Sequence[str], start: int, opened: re.Match[str]) -> Iterator[Source]:
    """Yield the script of a block, if it is one; a missing `#!` is put before it."""
    if opened["language"].lower() not in _SHELL:
        return
    indents = [_indent(line, len(opened["indent"])) for line in block]
    bare = (_ANNOTATION.sub("", line) if "#SBATCH" in line else line for line in block)
    text = "".join(f"{line[indent:]}\n" for line, indent in zip(bare, indents, strict=True))
    script = text.encode("utf-8", "surrogateescape")
    if not _DIRECTIVE.search(script):
        return
    if not script.startswith(b"#!"):
        script, indents, start = b"#!/bin/bash\n" + script, [0, *indents], start - 1
    yield Source(file=name, data=script, line=start, indents=tuple(indents))


def _indent(line: str, width: int) -> int:
    """Return how much of a line is before the script: as much as before the fence, or as there is."""
    before = line[:width]
    return len(before) if not before.strip(" \t>") else len(before) - len(before.lstrip(" \t>"))
