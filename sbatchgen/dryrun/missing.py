"""What a script looked for and did not find: messages of bash and small programs, and tests that were false."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from typing import NamedTuple

_MOST = 40  # of one run
_OF_BASH = re.compile(
    r"script: line (\d+): (?:(cd|pushd|source|\.): )?(.+): (No such file or directory|Not a directory)"
)
_OF_OTHERS = re.compile(
    r"^(\w[\w.-]*): (?:cannot (?:access|stat|open|create regular file) |can't (?:read|open) |error: )?"
    "['\"\u2018]?([^'\"\u2019\n:]+)['\"\u2019]?(?: for reading)?: No such file or directory",
    re.MULTILINE,
)
_FOLDERS = frozenset(("ls", "find", "du", "cd", "pushd", "df"))
_TEST = re.compile(r"(?:^|[\s!(])-([defghrswxL])\s+('[^']*'|\"[^\"]*\"|[^\s)\]]+)")
_EXIT = re.compile(r"exit\b|die\b|return\b|kill\b|usage\b|echo\b|printf\b|cat\b|error|log|>&2|'?\[|test |! ")


class Need(NamedTuple):
    """What a script needs from outside.

    Attributes:
        kind: Of what kind it is.
        name: Its name or path; of arguments, how many.
        line: The line of the script that needs it first; 0 if it is not known.
    """

    kind: str
    name: str
    line: int


def missing(err: str, trace: Sequence[tuple[int, str]]) -> Iterator[Need]:
    """Return the files, folders and programs that a script did not find.

    Args:
        err: What it printed to stderr, with "script" for its path.
        trace: The commands that it ran, each with its line.
    """
    commands: dict[int, list[str]] = {}
    for line, command in trace:
        commands.setdefault(line, []).append(command)
    for match in [*_OF_BASH.finditer(err)][:_MOST]:
        line, path = int(match[1]), match[3]
        if is_path(path):
            yield Need(_kind(match[2] or "", path, commands.get(line, [])), path, line)
    for match in [*_OF_OTHERS.finditer(err)][:_MOST]:
        program, path = match[1], match[2].strip()
        if program != "script" and is_path(path):
            line = next((line for line, command in trace if path in command), 0)
            yield Need("folder" if program in _FOLDERS else _parent_or_file(program), path, line)


def is_path(path: str) -> bool:
    """Whether a text may be the path of a file that can be made."""
    return (
        bool(path)
        and len(path) < 1000
        and "\n" not in path
        and not path.startswith(("/dev/", "/proc/", "/sys/"))
    )


def _parent_or_file(program: str) -> str:
    return "file" if program not in ("tee", "touch", "mktemp") else "output"


def _kind(builtin: str, path: str, commands: Sequence[str]) -> str:
    if builtin in ("cd", "pushd"):
        return "folder"
    if builtin in ("source", "."):
        return "file"
    for command in commands:
        words = command.split()
        if words and words[0].strip("'") == path:
            return "program"
        if words and words[0] in ("source", ".") and path in command:
            return "file"
    return "output"  # of a redirection: its folder is missing, or it is read


def false_test(trace: Sequence[tuple[int, str]]) -> Need | None:
    """Return the file or folder whose test was the last before the script gave up."""
    import os

    for line, command in reversed(trace[-40:]):
        if not command.startswith(("[[ ", "'['", "[ ", "test ")):
            if _EXIT.match(command):
                continue
            return None
        for letter, quoted in reversed(_TEST.findall(command)):
            try:
                path = shlex.split(quoted)[0]
            except (ValueError, IndexError):
                continue
            if (is_path(path) and not os.path.isabs(path)) or is_path(path):  # noqa: PTH117
                return Need({"d": "folder", "x": "program"}.get(letter, "file"), path, line)
    return None
