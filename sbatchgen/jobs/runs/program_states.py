"""Finds the states and the logs of the programs of a job that has several programs.

The job script writes a line into a file of the run folder whenever a program starts, is ready or ends.
"""

import contextlib
import os
import re
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from sbatchgen.base import files
from sbatchgen.base.frozen import frozen
from sbatchgen.base.texts import ProgramName

FOLDER, STATES = "programs", "state"  # a folder in the run folder, and the file in it with the states
JOB_MARK = "job"  # a line with this name marks a start of the job; no program has this name
MAX_BYTES = 64 << 10  # bytes at the end of the file of states that are read
# A line of the file of states, such as "2026-01-31 08:00:00+0100 worker.3 failed on n1 ended with 137"
_STATE_LINE = re.compile(
    r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:[+-]\d{4})?) ([a-z0-9-]+)(\.\d{1,3})? "
    r"(starts|ready|late|ended|failed)(?: (.{1,500}))?\s*"
)
# The name of a program's log, with the number of its task: "worker.3.0.log"
_LOG = re.compile(r"([a-z0-9-]+(?:\.\d{1,3})?)\.(\d{1,9})\.log")
OPTIONAL_SUFFIX = " (optional)"  # the last words about an end that the job survives
_FAILED_ON = re.compile(r"on (\S+) (.+)")  # where a program failed, and how: "on n1 ended with 137"


@frozen(kw_only=True)
class ProgramState:
    """A program in the last state that the script of its job has reported."""

    name: str  # the program's name; for a replica with its number, such as "worker.3"
    state: str  # "starts", "ready", "late" (not ready in time, which the job survives), "ended" or "failed"
    since: float  # when it came into this state, in seconds since 1970
    nodes: str  # the nodes on which it failed; "" for any other state
    why: str  # how it ended, such as "with 0", or why it failed, such as "ended with 137"; "" otherwise

    @property
    def says(self) -> str:
        """Its end in words, such as "server on n1 ended with 137"."""
        where = f" on {self.nodes}" if self.nodes else ""
        return f"{self.name}{where} {self.why if self.state == 'failed' else f'{self.state} {self.why}'}"


def read_programs(run_dir: Path, since: float) -> list[ProgramState]:
    """Return the programs of the last start of a job, in the order in which they started.

    Programs with no report after `since`, in seconds since 1970, are excluded. A job with one program reports
    nothing.
    """
    data, by_name = b"", dict[str, ProgramState]()
    with contextlib.suppress(OSError):
        data = files.read_run_file(run_dir / FOLDER / STATES, MAX_BYTES, from_end=True)
    for match in filter(None, map(_STATE_LINE.fullmatch, data.decode("utf-8", "replace").split("\n"))):
        timestamp, name, number, state, why = match.groups("")
        if name == JOB_MARK:
            by_name = {}
            continue
        with contextlib.suppress(ValueError, OverflowError):
            began_s = _seconds_since_1970(timestamp)
            failed_on = _FAILED_ON.fullmatch(why) if state == "failed" else None
            nodes, why = failed_on.groups() if failed_on else ("", why)
            name = f"{ProgramName.parse(name)}{number}"
            by_name[name] = ProgramState(name=name, state=state, since=began_s, nodes=nodes, why=why)
    return [state for state in by_name.values() if state.since >= since]


def _seconds_since_1970(timestamp: str) -> float:
    """Return the time in a line of states in seconds since 1970.

    Scripts of version 0.3.0 wrote it without a time zone. Such a time is local.
    """
    without_zone = "%Y-%m-%d %H:%M:%S"
    zone = "%z" if len(timestamp) > len("2026-01-31 00:00:00") else ""
    return datetime.strptime(timestamp, without_zone + zone).timestamp()  # noqa: DTZ007 - see above


def program_that_ended_job(programs: Sequence[ProgramState]) -> ProgramState | None:
    """Return the program whose failure ended the job; None if no program failed.

    A program in the state "failed" is preferred. The main program is never in this state: it only reports how
    it ended.
    """
    failed = [program for program in programs if program.state == "failed"]
    required = [program for program in programs if not program.why.endswith(OPTIONAL_SUFFIX)]
    ended = [program for program in required if program.state == "ended" and program.why != "with 0"]
    return next(iter([*failed, *ended]), None)


def logs(run_dir: Path) -> dict[str, list[Path]]:
    """Return the logs of the programs by their names, one for each task; the main program has none."""
    by_program: dict[str, list[tuple[int, Path]]] = {}
    with contextlib.suppress(OSError), os.scandir(run_dir / FOLDER) as entries:
        for entry in entries:
            match = _LOG.fullmatch(entry.name)
            if match and entry.is_file(follow_symlinks=False):
                by_program.setdefault(match[1], []).append((int(match[2]), Path(entry.path)))
    return {name: [path for _, path in sorted(several)] for name, several in sorted(by_program.items())}
