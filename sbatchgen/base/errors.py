"""Errors that a user can fix, and the exit status of each.

    SbatchgenError
    |- CommandLineError           2  the command line does not make sense
    |- DocumentError              3  a profile, job, template or script is wrong
    |  `- NoSandboxError          3  this machine allows no sandbox
    |     `- NestedSandboxError   8  sbatchgen runs in a sandbox already
    |- FitError                   4  the job does not fit the cluster
    |- SlurmError                 5  Slurm refused, or cannot be reached
    `- BudgetError                7  the job may take more than the budget leaves

An OSError of a file also ends the command with 3. A plan that reaches its limit ends with 6, without an
error. A traceback (exit status 1) is always a bug of sbatchgen.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple


class Problem(NamedTuple):
    """A mistake: its description, its place (`file:line` or a flag), and its fix."""

    what: str
    at: str = ""
    fix: str = ""


def parse_error_line(text: str) -> Problem | None:
    """Return the problem in a line "error: WHAT; at: PLACE; fix: FIX" of a trainer or job script, or None."""
    import re

    match = re.fullmatch(r"error: (.+?)(?:; at: (.+?))?(?:; fix: (.+))?", text, re.DOTALL)
    return Problem(*match.groups("")) if match else None


class SbatchgenError(Exception):
    """All problems that a command found in its input. The user can fix each of them."""

    exit_status = 1

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(problem.what for problem in self.problems))

    @classmethod
    def of(cls, what: str, *, at: str = "", fix: str = "") -> SbatchgenError:
        """Return an error with a single problem."""
        return cls([Problem(what, at, fix)])


class CommandLineError(SbatchgenError):
    """A command line that does not make sense."""

    exit_status = 2


class DocumentError(SbatchgenError):
    """A mistake in a profile, job, template or script."""

    exit_status = 3


class NoSandboxError(DocumentError):
    """A machine that allows no sandbox for a script."""


class NestedSandboxError(NoSandboxError):
    """A process inside a sandbox, where a second sandbox can't start."""

    exit_status = 8


class FitError(SbatchgenError):
    """A job that does not fit the cluster."""

    exit_status = 4


LIMIT_STATUS = 6  # exit status of a plan that reached its limit and is incomplete


class SlurmError(SbatchgenError):
    """A refusal by Slurm, or a Slurm that does not answer."""

    exit_status = 5


class BudgetError(SbatchgenError):
    """A job that may take more than the budget leaves, or a budget that can't be read."""

    exit_status = 7


# The fixes for errors of files; {} is the file, or the nearest existing folder above it.
_FIXES = {
    errno.EACCES: "see who may use it: ls -ld {}",
    errno.EPERM: "see who may use it: ls -ld {}",
    errno.ENOSPC: "make room there",
    errno.EDQUOT: "make room there",
    errno.EROFS: "use a folder that you can write into",
    errno.ENOENT: "see what is there: ls {}",
    errno.EEXIST: "it is a file: name another folder",
    errno.ENOTDIR: "a part of the path is a file: name another path",
}


def file_problem(error: OSError) -> Problem | None:
    """Return an OSError as a problem with its file; None if the error names no file."""
    if not isinstance(error.filename, (str, bytes)):
        return None
    import shlex

    name = os.fsdecode(error.filename)
    fix = _FIXES.get(error.errno or 0, "")
    existing = name
    while not os.path.lexists(existing) and existing not in (os.sep, "."):
        existing = os.path.dirname(existing) or "."  # noqa: PTH120 - Path would change the name
    return Problem(f"{name}: {error.strerror}", fix=fix.format(shlex.quote(existing)))


def near_file(name: str) -> str:
    """Return a fix with the existing file whose name is nearest to a missing file's name, or ""."""
    folder, slash, last = name.rpartition("/")
    try:
        near = nearest(last, os.listdir(folder + slash or "."))  # noqa: PTH208 - as in `file_problem`
    except (OSError, ValueError):
        return ""
    return f"did you mean '{folder}{slash}{near}'?" if near and near != last else ""


def did_you_mean(word: str, known: Iterable[str], likeness: float = 0.6) -> str:
    """Return a fix with the nearest known word, or with all known words if no word is near."""
    names = sorted(known)
    near = nearest(word, names, likeness)
    return f"did you mean '{near}'?" if near else f"known: {', '.join(names)}" if names else ""


def nearest(word: str, known: Iterable[str], likeness: float = 0.6) -> str:
    """Return the known word nearest to a word, or "" if their likeness (0 to 1) is below `likeness`."""
    return _nearest(word, tuple(known), likeness)


@lru_cache(maxsize=256)  # a script may hold the same mistake a thousand times
def _nearest(word: str, known: tuple[str, ...], likeness: float) -> str:
    import difflib  # late, because only errors need the module: `render` stays fast

    return next(iter(difflib.get_close_matches(word, known, n=1, cutoff=likeness)), "")
