"""Errors that a user can fix, and the exit status of each.

    SbatchgenError
    |- CommandLineError   2  the command line does not make sense
    |- DocumentError      3  a profile, job, template or script is wrong
    |- FitError           4  the job does not fit the cluster
    `- SlurmError         5  Slurm refused, or cannot be reached

An OSError of a file ends with 3 as well. A traceback (exit status 1) is always a bug of sbatchgen.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple


class Problem(NamedTuple):
    """What is wrong, where it was written (`file:line` or a flag), and how to fix it."""

    what: str
    at: str = ""
    fix: str = ""


def told(text: str) -> Problem | None:
    """The problem in an error of the trainer or a job script: "error: WHAT; at: PLACE; fix: WHAT TO TYPE"."""
    import re

    match = re.fullmatch(r"error: (.+?)(?:; at: (.+?))?(?:; fix: (.+))?", text, re.DOTALL)
    return Problem(*match.groups("")) if match else None


class SbatchgenError(Exception):
    """Problems that a user can fix; all that were found, not only the first."""

    exit_status = 1

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(problem.what for problem in self.problems))

    @classmethod
    def of(cls, what: str, *, at: str = "", fix: str = "") -> SbatchgenError:
        """The error of a single problem."""
        return cls([Problem(what, at, fix)])


class CommandLineError(SbatchgenError):
    """The command line does not make sense."""

    exit_status = 2


class DocumentError(SbatchgenError):
    """A profile, job, template or script is wrong."""

    exit_status = 3


class FitError(SbatchgenError):
    """The job does not fit the cluster."""

    exit_status = 4


class SlurmError(SbatchgenError):
    """Slurm refused, or cannot be reached."""

    exit_status = 5


_FIXES = {
    errno.EACCES: "see who may use it: ls -ld {}",
    errno.EPERM: "see who may use it: ls -ld {}",
    errno.ENOSPC: "make room there",
    errno.EDQUOT: "make room there",
    errno.EROFS: "use a folder that you can write into",
}


def of_file(error: OSError) -> Problem | None:
    """An error of the system about a file; None if it names no file."""
    if not isinstance(error.filename, (str, bytes)):
        return None
    import shlex

    name = os.fsdecode(error.filename)
    fix = _FIXES.get(error.errno or 0, "")
    return Problem(f"{name}: {error.strerror}", fix=fix.format(shlex.quote(name)))


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A fix that names the nearest known word, or lists all of them."""
    return _nearest(word, tuple(sorted(known)))


@lru_cache(maxsize=256)  # a script may hold the same mistake a thousand times
def _nearest(word: str, names: tuple[str, ...]) -> str:
    import difflib  # only on the way to an error: keeps `render` fast

    near = difflib.get_close_matches(word, names, n=1, cutoff=0.6)
    if near:
        return f"did you mean '{near[0]}'?"
    return f"known: {', '.join(names)}" if names else ""
