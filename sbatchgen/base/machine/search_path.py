"""The programs of PATH that the command may start. Only this module searches for programs.

The folders of a user's PATH are trusted, because the user or the site has named them. Two kinds of entries
are ignored: an entry that depends on the current folder (such as "." or an empty entry), and a folder in
which everybody can add or replace a program.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from os.path import isfile
from pathlib import Path

from sbatchgen.base.errors import Problem
from sbatchgen.base.machine.ignored import how_to_trust, is_trusted, note_ignored_program
from sbatchgen.base.machine.trust import open_to_all
from sbatchgen.base.quoting import word

# Variables by which Linux loads libraries into every program: ld.so(8).
_LIBRARY_VARIABLES = ("LD_LIBRARY_PATH", "LD_PRELOAD", "LD_AUDIT")


def find(program: str, environment: Mapping[str, str], mode: int = os.X_OK) -> str:
    """Return the path by which a program is started, or ""; an ignored program is reported.

    With the mode os.F_OK the program need not be executable.
    """
    if "/" in program:
        return program if _is_program(program, mode) else ""
    for folder in _entries(environment):
        path = f"{folder or '.'}/{program}"
        if _is_program(path, mode):
            problem = _why_ignored(folder, path, environment)
            if problem is None:
                return path
            note_ignored_program(Path(path).absolute(), problem)
    return ""


def trusted_path(environment: Mapping[str, str]) -> str:
    """Return PATH without the ignored folders, for programs that start other programs."""
    folders = dict.fromkeys(_entries(environment))
    used = (folder for folder in folders if _why_ignored(folder, folder, environment) is None)
    return ":".join(used) or os.defpath  # an empty PATH would be the current folder


def cleaned(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without ignored folders in PATH and without relative folders of libraries.

    An entry of LD_LIBRARY_PATH that is empty or does not begin with / depends on the current folder. Linux
    loads libraries from such an entry before the system's libraries. Source: ld.so(8).
    """
    result = {**environment}
    if "PATH" in result:
        result["PATH"] = trusted_path(environment)
    for name in _LIBRARY_VARIABLES:
        if name in result:
            separators = "[:;]" if name == "LD_LIBRARY_PATH" else "[: ]"
            entries = re.split(separators, result.pop(name))
            if entries := [entry for entry in entries if _is_same_everywhere(entry, name)]:
                result[name] = ":".join(entries)
    return result


def _is_same_everywhere(entry: str, name: str) -> bool:
    """Return whether an entry of a variable means the same in every current folder.

    In LD_PRELOAD Linux searches the system's folders for a name without a slash.
    """
    is_searched_by_name = name != "LD_LIBRARY_PATH" and "/" not in entry
    return entry.startswith(("/", "$ORIGIN", "${ORIGIN}")) or (is_searched_by_name and bool(entry))


def in_shell(program: str, environment: Mapping[str, str]) -> str:
    """Return the path of the program that a shell with this environment would start, or "".

    The path is a fact about a job that gets this PATH. The program is never started here.
    """
    return shutil.which(program, path=environment.get("PATH", os.defpath)) or ""


@contextlib.contextmanager
def trusted_path_for_libraries() -> Iterator[None]:
    """Set PATH of os.environ, which libraries search, to the trusted folders until the end of the block."""
    old_path = os.environ.get("PATH")
    os.environ["PATH"] = trusted_path(os.environ)
    try:
        yield
    finally:
        if old_path is None:
            del os.environ["PATH"]
        else:
            os.environ["PATH"] = old_path


def _entries(environment: Mapping[str, str]) -> list[str]:
    """Return the folders of PATH; "" stands for the current folder."""
    return environment.get("PATH", os.defpath).split(":")


def _why_ignored(folder: str, path: str, environment: Mapping[str, str]) -> Problem | None:
    """Return why a program in a folder of PATH, or the whole folder, is ignored; None if it may be used."""
    if not folder.startswith("/"):
        entry = f"the entry '{folder}'" if folder else "an empty entry"
        what = f"ignored {path}: PATH has {entry}, which is another folder wherever you are"
        absolute = ":".join(entry for entry in _entries(environment) if entry.startswith("/"))
        return Problem(what, str(Path(path).absolute()), f"export PATH={word(absolute)}")
    # Whoever can write the folder of this Python can change sbatchgen itself, so the check would add nothing.
    if folder == f"{sys.prefix}/bin" or is_trusted(Path(folder), environment):
        return None
    reason = open_to_all(Path(path))
    if reason is None:
        return None
    fix = f"{reason.fix}, or " * bool(reason.fix) + how_to_trust(Path(folder), environment)
    return Problem(f"ignored {path} of PATH: it {reason.why}", path, fix)


def _is_program(path: str, mode: int) -> bool:
    """Return whether a path is a file that this user may use in the way `mode`, such as os.X_OK."""
    return isfile(path) and os.access(path, mode)  # noqa: PTH113 - Path raises in a folder that this user can't read
