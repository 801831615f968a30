"""Finds the folders that .pth files add to Python's search path, for example for editable packages.

A rehearsal shows these folders to the job, because the job's Python needs the packages in them.
"""

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

from sbatchgen.base import files

_MAX_BYTES = 1 << 16  # bytes of a file that are read
_IMPORT = re.compile(r"import\s+(\w+)\s*(?:$|;)")  # import __editable___mytools_finder; ...
_QUOTED_PATH = re.compile(r"['\"](/[^'\"\n]+)['\"]")


def added_folders(python: Path) -> Iterator[str]:
    """Yield the folders that .pth files add.

    `python` is an environment or a folder of packages. A line of a .pth file is a path, or imports a module
    next to the file. The module of an editable package has its paths in quotes.
    """
    for folder in (python, *python.glob("lib/python3*/site-packages")):
        lines = [line for file in sorted(folder.glob("*.pth")) for line in _text(file).splitlines()]
        for line in lines:
            if match := _IMPORT.match(line):
                yield from _QUOTED_PATH.findall(_text(folder / f"{match[1]}.py"))
            elif line.strip() and not line.startswith(("#", "import")):
                yield str(folder / line.strip())


def _text(file: Path) -> str:
    """Return the start of a file; "" if the file can't be read."""
    with contextlib.suppress(OSError):
        return files.read_start(file, _MAX_BYTES).decode(errors="replace")
    return ""
