"""What a run tells: lines for people on stdout, events for programs, and one status line for the job script.

On a terminal people also get a live line (see bar), and TensorBoard its curves (see curves). Only rank 0
speaks. Nothing else in the package prints.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from training.errors import one_line
from training.files import opened, read_small, replace
from training.output.bar import Bar
from training.output.curves import Curves

STATUS = "status.json"
EVENTS = "events.jsonl"
# A log on a full disk, or a reader that has gone, is no reason to end: what is said is then lost.
LOST = contextlib.suppress(OSError)


@dataclass(frozen=True, kw_only=True, slots=True)
class Log:
    """Where rank 0 writes; on the other ranks every call does nothing."""

    run_dir: Path
    speaks: bool
    records: bool = True  # False: lines alone, the run folder is not touched
    failing: set[str] = field(default_factory=set)  # files that could not be written the last time
    bar: Bar = field(default_factory=Bar)
    curves: Curves = field(default_factory=Curves)

    def say(self, line: str) -> None:
        """One line on stdout, at once: a log that lags is no help when the job hangs."""
        if self.speaks:
            with LOST:
                self.bar.say(line)

    @contextlib.contextmanager
    def live(self, title: str, *, total: int, done: int = 0) -> Iterator[None]:
        """A live line meanwhile, where stdout is a terminal: `done` of `total` images."""
        if self.speaks:
            with LOST:
                self.bar.begin(title, total=total, done=done)
        try:
            yield
        finally:
            with LOST:
                self.bar.end()

    def event(self, kind: str, **facts: Any) -> None:
        """One line in events.jsonl: {"event": kind, ..., "time": seconds since 1970}."""
        line = json.dumps({"event": kind, **facts, "time": round(time.time(), 3)}) + "\n"
        self._record(EVENTS, lambda path: _append(path, line.encode()))
        self._draw(lambda: self.curves.record(kind, facts))

    def draw(self, *, step: int) -> None:
        """From here on, give TensorBoard the curves too; the run goes on from `step`."""
        if self.speaks and self.records:
            self._draw(lambda: self.curves.begin(step))

    def _draw(self, make: Callable[[], bytes]) -> None:
        """Add records to the curves; a package that is broken is no reason to lose the training either."""
        try:
            records = make()
        except Exception as error:  # noqa: BLE001 - whatever a broken package raises
            self.curves.name = ""
            self.say(f"No curves for TensorBoard ({one_line(error)}): going on")
            return
        if records:
            self._record(self.curves.name, lambda path: _append_in_folder(path, records))

    def status(
        self, state: str, *, step: int, epoch: int, checkpoint: str | None, reason: str | None = None
    ) -> None:
        """Replace status.json: one line, keys in this order, for job scripts with a regular expression."""
        facts = {"state": state, "step": step, "epoch": epoch, "checkpoint": checkpoint, "reason": reason}
        self.write(STATUS, facts | {"time": round(time.time(), 3)})

    def write(self, name: str, value: dict[str, Any], *, indent: int | None = None) -> None:
        """Replace a JSON file in the run folder."""
        self._record(name, lambda path: write_json(path, value, indent=indent))

    def _record(self, name: str, write: Callable[[Path], None]) -> None:
        """Write a file; a full disk is no reason to lose the training, but is said once."""
        if not (self.speaks and self.records):
            return
        try:
            write(self.run_dir / name)
        except OSError as error:
            if name not in self.failing:
                self.say(f"Cannot write {self.run_dir / name} ({one_line(error)}): going on")
            self.failing.add(name)
        else:
            self.failing.discard(name)


def complain(line: str) -> None:
    """One line on stderr, from whichever process it concerns."""
    with LOST:
        print(line, file=sys.stderr, flush=True)


def write_json(path: Path, value: dict[str, Any], *, indent: int | None = None) -> None:
    """Replace a JSON file as a whole."""
    replace(path, f"{json.dumps(value, indent=indent)}\n".encode())


def _append(path: Path, data: bytes) -> None:
    """Add a line or a record, or nothing: half of one would spoil the next one."""
    with os.fdopen(opened(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY), "ab", buffering=0) as file:
        before = file.seek(0, os.SEEK_END)
        if file.write(data) != len(data):
            file.truncate(before)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _append_in_folder(path: Path, data: bytes) -> None:
    path.parent.mkdir(exist_ok=True)
    _append(path, data)


def mark_failed(run_dir: Path, reason: str, status: int) -> None:
    """Set the state to failed, keeping step, epoch and checkpoint; any process may.

    The exit status goes in as well, as "exit": torchrun ends with 1 whatever its processes end with.

    The first to fail knows why; those it takes along only know that somebody is gone. So a failure stays as
    it is. Best effort: the folder may be what failed.
    """
    try:
        known = read_status(run_dir)
        if known.get("state") != "failed":
            old = {name: known.get(name) for name in ("step", "epoch", "checkpoint")}
            facts = {
                "state": "failed",
                "step": old["step"] or 0,
                "epoch": old["epoch"] or 0,
                "checkpoint": old["checkpoint"],
            }
            run_dir.mkdir(parents=True, exist_ok=True)
            write_json(
                run_dir / STATUS, facts | {"reason": reason, "time": round(time.time(), 3), "exit": status}
            )
    except OSError as error:
        complain(f"cannot write {run_dir / STATUS}: {error}")


def read_status(run_dir: Path) -> dict[str, Any]:
    """What status.json says; nothing if there is none."""
    try:
        known = json.loads(read_small(run_dir / STATUS))
    except (OSError, ValueError, RecursionError):
        return {}
    return known if isinstance(known, dict) else {}


def read_events(run_dir: Path) -> Iterator[dict[str, Any]]:
    """The events so far, without lines that are broken; none if there is no file."""
    with contextlib.suppress(OSError), os.fdopen(opened(run_dir / EVENTS, os.O_RDONLY), "rb") as file:
        for line in file:
            with contextlib.suppress(ValueError, RecursionError):
                event = json.loads(line)
                if isinstance(event, dict):
                    yield event


def duration(seconds: float) -> str:
    """Such as 0:01:05 or 30:00:00."""
    minutes, second = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{second:02}"
