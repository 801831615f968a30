"""The errors that end a run, and its exit statuses."""

from __future__ import annotations

import contextlib
import sys

DONE = 0
FAILED = 1
NOT_FINITE = 3
PREEMPTED = 75  # EX_TEMPFAIL in sysexits.h: stopped and saved, can be started again


class UserError(Exception):
    """An error that the user can fix; shown as one line, without a traceback.

    Args:
        what: What is wrong, with the value in question.
        at: The file, variable or host.
        fix: Something to type.
        shared: Every process of the run raises the same error, so only rank 0 prints it.
    """

    status = FAILED

    def __init__(self, what: str, *, at: str = "", fix: str = "", shared: bool = False) -> None:
        parts = [what, f"at: {at}" if at else "", f"fix: {fix}" if fix else ""]
        super().__init__("; ".join(part for part in parts if part))
        self.shared = shared


class FolderError(UserError):
    """The run folder belongs to another job or cannot be written: nothing is recorded in it."""


class RankError(UserError):
    """An error of this process alone, which prints it."""


class NotFiniteError(Exception):
    """The loss or a weight became infinite or NaN; nothing is saved after this."""

    shared, status = True, NOT_FINITE  # as of a UserError


def one_line(error: BaseException) -> str:
    """The error's text in one line, with the type's name unless the error is one of these."""
    text = " ".join(str(error).split())[:500]
    return text if isinstance(error, (UserError, NotFiniteError)) else f"{type(error).__name__}: {text}"


def complain(line: str) -> None:
    """Print a line on stderr, from any process; a full disk or a closed pipe is ignored."""
    with contextlib.suppress(OSError):
        print(line, file=sys.stderr, flush=True)
