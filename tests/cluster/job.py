"""A job as `scontrol show job` prints it."""

from __future__ import annotations

import re
from itertools import zip_longest

# States that a job does not leave (JOB STATE CODES in squeue(1))
TERMINAL = frozenset(
    [
        "BOOT_FAIL",
        "CANCELLED",
        "COMPLETED",
        "DEADLINE",
        "FAILED",
        "NODE_FAIL",
        "OUT_OF_MEMORY",
        "PREEMPTED",
        "TIMEOUT",
    ]
)

# Fields whose value runs to the end of the line, whatever is in it
FREE = ("JobName", "Command", "WorkDir", "StdErr", "StdIn", "StdOut", "Comment", "AdminComment")

_FIELD = re.compile(r"(?:^|(?<= ))([A-Z][A-Za-z_]*(?:[:/][A-Za-z][A-Za-z:/]*)?)=")


def parse_jobs(text: str) -> list[dict[str, str]]:
    """The records in the output of `scontrol show job`, without -o: only the lines tell a value's end."""
    return [_parse(block) for block in text.strip().split("\n\n") if "JobId=" in block]


def _parse(block: str) -> dict[str, str]:
    record: dict[str, str] = {}
    for line in block.splitlines():
        fields = list(_FIELD.finditer(line.strip()))
        for field, following in zip_longest(fields, fields[1:]):
            name, rest = field[1], line.strip()[field.end() :]
            if name in FREE:
                record[name] = rest
                break
            end = following.start() - field.end() if following else len(rest)
            record[name] = rest[:end].strip()
    return record
