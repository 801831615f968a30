"""The prospects of a job: when each of its shapes would start. `when` prints a row for each shape."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Literal

from sbatchgen.base.frozen import frozen

Kind = Literal["hole", "plan", "bound"]


@frozen(kw_only=True)
class Prospect:
    """A shape of a job, and when it would start; times are ISO 8601."""

    kind: Kind  # "hole": free nodes; "plan": Slurm's plan for a waiting job; "bound": sbatch --test-only
    partition: str
    nodes: int
    gpus: int  # GPUs on all nodes
    time_s: int | None  # the time limit in seconds
    start: str | None  # when the job starts; None if it is not known
    end: str | None  # when the training ends, or else the time limit; None if it is not known
    gpu_hours: float
    needs_s: float | None = None  # seconds that the training still needs with these GPUs; None if not known
    starts: int = 1  # how often the job starts until the training ends, if that is known
    options: tuple[str, ...] = ()  # the options that make this shape of the job, as words
    argv: tuple[str, ...] = ()  # the command that submits the shape; empty for a job that waits
    says: str  # in words, why the job starts then, and what is not known
    job: str = ""  # the id of a job that waits; "" for a shape


@frozen(kw_only=True)
class Prospects:
    """What `when` prints."""

    time: str  # when Slurm was asked
    rows: Sequence[Prospect]
    out: Mapping[str, str]  # why there is no row, by partition
    notes: Sequence[str]  # facts that may change the starts


def order(row: Prospect) -> tuple[bool, bool, str, bool, float]:
    """Return the sort key of a row: rows that end the training come first, by their ends.

    The other rows follow by their starts, and rows without a known start come last.
    """
    is_piece = bool(row.needs_s and row.time_s and row.needs_s > row.time_s and row.starts == 1)
    ends_training = row.needs_s is not None and not is_piece
    at = (row.end if ends_training else row.start) or ""
    return not row.start, not ends_training, at, row.kind != "hole", -row.gpu_hours


def iso(at: datetime) -> str:
    """Return a time as ISO 8601, with seconds."""
    return at.isoformat(timespec="seconds")


def clock(at: datetime, now: datetime) -> str:
    """Return a time for people: "14:05", with its day if it is more than 20 hours ahead."""
    return f"{at:%H:%M}" if at - now < timedelta(hours=20) else f"{at:%a %d %b %H:%M}"
