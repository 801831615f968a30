"""Finds the programs of environments, such as .venv/bin/torchrun, so that stand-ins can cover them."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator

# Both patterns match only from the start of a word. Otherwise a trace of long words would take minutes.
# _BIN_FOLDER matches .venv/bin in .venv/bin/torchrun. _PATH matches each path, which may be an environment.
_BIN_FOLDER = re.compile(r"(?<![\w.+@~/-])[\w.+@~/-]*/bin(?=[/:\"'\s;]|$)", re.ASCII)
_PATH = re.compile(r"(?<![\w.+@/}~-])/?(?:[\w.+@-]+/)*[\w.+@-]+", re.ASCII)
_PYTHON = re.compile(r"(?:python|pypy)[\d.]*")
_MAX_FOLDERS = 400  # folders of one text, or in one folder, that are searched for programs
_MAX_WORDS = 4000  # words of a text that each pattern looks at


def named_bin_folders(text: str, folder: str) -> Iterator[str]:
    """Yield the folders of programs that a text names.

    The text has the path of such a folder, for example .venv/bin, or the path of its environment, for example
    .venv. A relative path begins in `folder`.
    """
    seen: set[str] = set()
    for pattern, suffix in ((_BIN_FOLDER, ""), (_PATH, "/bin")):
        for _, match in zip(range(_MAX_WORDS), pattern.finditer(text), strict=False):
            path = match[0]
            # A word without a slash counts as an environment only if it ends in "env".
            if pattern is _PATH and "/" not in path and not path.endswith("env"):
                continue
            bin_folder = os.path.normpath(os.path.join(folder, path + suffix))  # noqa: PTH118 - an absolute path wins
            if bin_folder not in seen and len(seen) < _MAX_FOLDERS:
                seen.add(bin_folder)
                yield bin_folder


def bin_folders(folder: str) -> Iterator[str]:
    """Yield the paths FOLDER/bin and FOLDER/*/bin, and FOLDER/envs/*/bin for environments of conda.

    The folders named bin may be missing.
    """
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


def programs_in(folders: Iterable[str], names: Collection[str]) -> Iterator[str]:
    """Yield the paths of the programs in some folders that have one of `names`, and of each Python there."""
    for folder in dict.fromkeys(folders):
        try:
            file_names = os.listdir(folder)  # noqa: PTH208 - names
        except OSError:
            continue
        yield from (f"{folder}/{name}" for name in file_names if name in names or _PYTHON.fullmatch(name))
