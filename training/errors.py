"""What can go wrong, and the exit status the job script sees for it."""

from __future__ import annotations

DONE = 0
FAILED = 1
NOT_FINITE = 3
PREEMPTED = 75  # EX_TEMPFAIL in sysexits.h: stopped, saved, worth starting again


class UserError(Exception):
    """Something the person who started the run can put right; shown as one line, without a traceback.

    Args:
        what: What is wrong, with the value in question.
        at: The file, variable or host.
        fix: Something to type.
        shared: Every process of the run raises the same, so that rank 0 alone need say it.
    """

    def __init__(self, what: str, *, at: str = "", fix: str = "", shared: bool = False) -> None:
        parts = [what, f"at: {at}" if at else "", f"fix: {fix}" if fix else ""]
        super().__init__("; ".join(part for part in parts if part))
        self.shared = shared


class FolderError(UserError):
    """The run folder is another job's or takes no writes: nothing is noted in it, not even this failure."""


class NotFiniteError(Exception):
    """The loss or a weight became infinite or NaN; nothing is saved after this."""


def one_line(error: BaseException) -> str:
    """The reason to show in a status file: with the type's name, unless the text is one of ours."""
    text = " ".join(str(error).split())[:500]
    return text if isinstance(error, (UserError, NotFiniteError)) else f"{type(error).__name__}: {text}"
