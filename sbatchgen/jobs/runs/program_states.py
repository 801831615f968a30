"""The programs of a run with several programs: their states, which the job script writes, and their logs."""

import contextlib
import os
import re
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from sbatchgen.base import files
from sbatchgen.base.frozen import frozen
from sbatchgen.base.texts import ProgramName

FOLDER, STATES = "programs", "state"  # a folder in the run folder, and the file of states in it
START = "job"  # the name with which the script marks the start of the job; no program has it
MOST_BYTES = 64 << 10  # bytes at the end of the file of states that are read
# A line of the file of states, such as "2026-01-31 08:00:00+0100 worker.3 failed on n1 ended with 137"
_LINE = re.compile(
    r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:[+-]\d{4})?) ([a-z0-9-]+)(\.\d{1,3})? "
    r"(starts|ready|late|ended|failed)(?: (.{1,500}))?\s*"
)
_LOG = re.compile(r"([a-z0-9-]+(?:\.\d{1,3})?)\.(\d{1,9})\.log")
OPTIONAL = " (optional)"  # the words after an end that the job survives
_NODES = re.compile(r"on (\S+) (.+)")  # where a program failed, and how: "on n1 ended with 137"


@frozen(kw_only=True)
class ProgramState:
    """A program in the last state that the script of its job has reported."""

    name: str  # its name; a replica has its number after it, as in worker.3
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
        data = files.read_run_file(run_dir / FOLDER / STATES, MOST_BYTES, from_end=True)
    for match in filter(None, map(_LINE.fullmatch, data.decode("utf-8", "replace").split("\n"))):
        clock, name, number, state, why = match.groups("")
        if name == START:
            by_name = {}
            continue
        with contextlib.suppress(ValueError, OverflowError):
            began = _seconds(clock)
            where = _NODES.fullmatch(why) if state == "failed" else None
            nodes, why = where.groups() if where else ("", why)
            name = f"{ProgramName.parse(name)}{number}"
            by_name[name] = ProgramState(name=name, state=state, since=began, nodes=nodes, why=why)
    return [state for state in by_name.values() if state.since >= since]


def _seconds(clock: str) -> float:
    """Return a node's time in seconds since 1970; a time without a zone, as 0.3.0 wrote it, is local."""
    without_zone = "%Y-%m-%d %H:%M:%S"
    zone = "%z" if len(clock) > len("2026-01-31 00:00:00") else ""
    return datetime.strptime(clock, without_zone + zone).timestamp()  # noqa: DTZ007 - see above


def program_that_ended_job(programs: Sequence[ProgramState]) -> ProgramState | None:
    """Return the program whose failure ended the job; None if no program failed.

    The main program only reports how it ended, so it comes after programs that report a failure.
    """
    failed = [program for program in programs if program.state == "failed"]
    required = [program for program in programs if not program.why.endswith(OPTIONAL)]
    ended = [program for program in required if program.state == "ended" and program.why != "with 0"]
    return next(iter([*failed, *ended]), None)


def logs(run_dir: Path) -> dict[str, list[Path]]:
    """Return the logs of each program by its name, a log for each task; the main program has none."""
    by_program: dict[str, list[tuple[int, Path]]] = {}
    with contextlib.suppress(OSError), os.scandir(run_dir / FOLDER) as entries:
        for entry in entries:
            match = _LOG.fullmatch(entry.name)
            if match and entry.is_file(follow_symlinks=False):
                by_program.setdefault(match[1], []).append((int(match[2]), Path(entry.path)))
    return {name: [path for _, path in sorted(several)] for name, several in sorted(by_program.items())}
