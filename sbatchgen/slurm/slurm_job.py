"""What squeue and sacct both say of a job."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sbatchgen.slurm.printed import count, exit_status, text, time
from sbatchgen.slurm.state import State, state

_ID = re.compile(r"([0-9]+)(?:_(.+)|\+[0-9]+)?")


@dataclass(frozen=True, kw_only=True)
class SlurmJob:
    """A job, a task of an array, or all tasks of an array that still wait.

    Attributes:
        id: As Slurm's commands take and print it: "4711", "4711_3", "4711_[5-9%2]", "4711+0".
        job: The id of the job, or of the whole array.
        task: The task: "3", "[5-9%2]" for those that wait, or "" if the job is not an array.
        state: Its state.
        reason: Why it waits, or how it ended, as reason.py explains it; "None" if there is none.
        start, end: When, in local time; None if not known.
        used_s: How long it has run.
        limit_s: Its time limit; None if it has none, or it is not known.
        nodes: How many.
        node_list: Which: "n[1-4]"; "" if none are allocated.
        exit_code, signal: How its script ended; 0 and 0 before that.
    """

    id: str
    job: int
    task: str
    state: State
    reason: str
    start: datetime | None
    end: datetime | None
    used_s: int
    limit_s: int | None
    nodes: int
    node_list: str
    exit_code: int
    signal: int


def separator() -> str:
    """What stands between values: nobody can guess it, and put it into the path of a script."""
    return f"\x1f{secrets.token_hex(8)}\x1f"


def rows(printed: str, between: str, names: Sequence[str]) -> Iterator[dict[str, str]]:
    """The rows of a table in which the separator follows each value, and a line break each row.

    Line breaks in values are kept: the path of a script may hold some. The first value, an id, holds none,
    and what stands above it is of a site's own wrapper.
    """
    values = printed.split(between)
    for first in range(0, len(values) - len(names), len(names)):
        row = values[first : first + len(names)]
        yield dict(zip(names, [row[0].rpartition("\n")[2], *row[1:]], strict=True))


def common(row: Mapping[str, str]) -> dict[str, Any]:
    """The attributes of a `SlurmJob`, from a row with the values of the same names, and "exit_status"."""
    number = _ID.fullmatch(row["id"])
    exit_code, signal = exit_status(row["exit_status"])
    return {
        "id": row["id"],
        "job": count(number[1]) if number else 0,
        "task": (number[2] or "") if number else "",
        "state": state(row["state"]),
        "reason": row["reason"],
        "start": time(row["start"]),
        "end": time(row["end"]),
        "nodes": count(row["nodes"]),
        "node_list": text(row["node_list"]),
        "exit_code": exit_code,
        "signal": signal,
    }
