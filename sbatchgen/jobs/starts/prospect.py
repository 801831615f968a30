"""Defines the output of `when`: the prospects of a job, which say when each shape of the job would start.

A shape is the job in one partition, with a number of nodes and a time limit. `when` prints a row for each.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Literal

from sbatchgen.base.frozen import frozen

# How a start is known: nodes are free now ("hole"), Slurm has planned the start of a waiting job ("plan"), or
# `sbatch --test-only` gives a rough bound ("bound").
Kind = Literal["hole", "plan", "bound"]


@frozen(kw_only=True)
class Prospect:
    """A shape of a job, and when it would start; times are ISO 8601."""

    kind: Kind
    partition: str
    nodes: int  # the number of nodes
    gpus: int  # GPUs on all nodes together
    time_s: int | None  # the time limit in seconds; None if not known
    start: str | None  # when the job starts; None if not known
    # When the training ends or, if this is not known, when the time limit ends; None if the start is not
    # known
    end: str | None
    gpu_hours: float  # the most that the job may take
    needs_s: float | None = None  # seconds that the training still needs with these GPUs; None if not known
    starts: int = 1  # how many starts of the job the training needs; 1 if not known
    options: tuple[str, ...] = ()  # the words of the options that make this shape of the job
    argv: tuple[str, ...] = ()  # the command that submits the shape; empty for a waiting job
    says: str  # in words, why the job starts then, and what is not known
    job: str = ""  # the id of a waiting job; "" for a shape that is not submitted


@frozen(kw_only=True)
class Prospects:
    """What `when` prints."""

    time: str  # when Slurm was asked
    rows: Sequence[Prospect]
    out: Mapping[str, str]  # a partition in which the job can't start now -> the reason in words
    notes: Sequence[str]  # facts that may change the starts, in words


def sort_key(row: Prospect) -> tuple[bool, bool, str, bool, float]:
    """Return the key by which rows are sorted.

    Rows that complete the training come first, in the order of their ends. Other rows follow in the order of
    their starts. Rows without a known start come last.
    """
    is_only_a_piece = bool(row.needs_s and row.time_s and row.needs_s > row.time_s and row.starts == 1)
    completes_training = row.needs_s is not None and not is_only_a_piece
    time = (row.end if completes_training else row.start) or ""
    return not row.start, not completes_training, time, row.kind != "hole", -row.gpu_hours


def iso_text(time: datetime) -> str:
    """Return a time as ISO 8601, with seconds."""
    return time.isoformat(timespec="seconds")


def clock_text(time: datetime, now: datetime) -> str:
    """Return a time for people, such as "14:05"; with its day if it is more than 20 hours ahead."""
    return f"{time:%H:%M}" if time - now < timedelta(hours=20) else f"{time:%a %d %b %H:%M}"
