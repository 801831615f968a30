"""A shape of a job, and when it would start."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Literal

from sbatchgen.base.frozen import frozen

Kind = Literal["hole", "plan", "bound"]


@frozen(kw_only=True)
class Prospect:
    """A shape of a job, and when it would start; times are ISO 8601."""

    kind: Kind
    partition: str
    nodes: int
    gpus: int  # GPUs of all nodes
    time_s: int | None  # the time limit
    start: str | None
    end: str | None  # when the training ends, or else its time limit
    gpu_hours: float
    needs_s: float | None = None  # what the training still needs with these GPUs; None if it is not known
    starts: int = 1  # how often the job starts until the training ends, if that is known
    options: tuple[str, ...] = ()  # what makes this shape of the job, as words
    argv: tuple[str, ...] = ()  # the command that submits the shape; empty for a job that waits
    says: str  # why, and what is not known
    job: str = ""  # the id of a job that waits


@frozen(kw_only=True)
class Prospects:
    """What `when` prints."""

    time: str
    rows: Sequence[Prospect]
    out: Mapping[str, str]  # why other shapes are not among the rows, by partition
    notes: Sequence[str]


def order(row: Prospect) -> tuple[bool, bool, str, bool, float]:
    """Return what rows are sorted by: first those that are known to end the training, by their ends."""
    is_piece = bool(row.needs_s and row.time_s and row.needs_s > row.time_s and row.starts == 1)
    ends = row.needs_s is not None and not is_piece
    at = (row.end if ends else row.start) or ""
    return not row.start, not ends, at, row.kind != "hole", -row.gpu_hours


def iso(at: datetime) -> str:
    """Return a time as ISO 8601, with seconds."""
    return at.isoformat(timespec="seconds")


def clock(at: datetime, now: datetime) -> str:
    """Return a time as people read it: with its day unless it is within the day."""
    return f"{at:%H:%M}" if at - now < timedelta(hours=20) else f"{at:%a %d %b %H:%M}"
