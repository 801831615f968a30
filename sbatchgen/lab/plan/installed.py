"""The programs of environments, such as .venv/bin/torchrun, which stand-ins cover in the sandbox."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator

# The patterns match only from the start of a word, or a trace of long words would take minutes.
# _BIN matches .venv/bin in .venv/bin/torchrun. _PATH matches any path, because an environment may be there.
_BIN = re.compile(r"(?<![\w.+@~/-])[\w.+@~/-]*/bin(?=[/:\"'\s;]|$)", re.ASCII)
_PATH = re.compile(r"(?<![\w.+@/}~-])/?(?:[\w.+@-]+/)*[\w.+@-]+", re.ASCII)
_PYTHON = re.compile(r"(?:python|pypy)[\d.]*")
_MAX_FOLDERS = 400  # folders in a text, or in a folder, that are looked at
_MAX_WORDS = 4000  # words of a text that are looked at, for each pattern


def folders_of(text: str, folder: str) -> Iterator[str]:
    """Yield the folders of programs that a text names, by their paths or by paths of environments.

    `folder` is the folder of relative paths.
    """
    seen: set[str] = set()
    for pattern, suffix in ((_BIN, ""), (_PATH, "/bin")):
        for _, match in zip(range(_MAX_WORDS), pattern.finditer(text), strict=False):
            path = match[0]
            if suffix and "/" not in path and not path.endswith("env"):
                continue  # a path of an environment has a slash or ends in "env"
            program = os.path.normpath(os.path.join(folder, path + suffix))  # noqa: PTH118 - an absolute path wins
            if program not in seen and len(seen) < _MAX_FOLDERS:
                seen.add(program)
                yield program


def bin_folders(folder: str) -> Iterator[str]:
    """Yield the path of bin in a folder, in each folder there, and in the environments of conda there."""
    try:
        with os.scandir(folder) as entries:
            names = [
                entry.name for entry, _ in zip(entries, range(_MAX_FOLDERS), strict=False) if entry.is_dir()
            ]
    except OSError:
        return
    yield f"{folder}/bin"
    yield from (f"{folder}/{name}/bin" for name in names)
    if "envs" in names:
        yield from bin_folders(f"{folder}/envs")


def programs_of(folders: Iterable[str], names: Collection[str]) -> Iterator[str]:
    """Yield the paths of the programs in folders whose names are in `names`, and of each Python there."""
    for folder in dict.fromkeys(folders):
        try:
            listed = os.listdir(folder)  # noqa: PTH208 - names
        except OSError:
            continue
        yield from (f"{folder}/{name}" for name in listed if name in names or _PYTHON.fullmatch(name))
