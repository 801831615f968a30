"""The output of rank 0: log lines, events.jsonl for programs, status.json for the job script, and curves."""

import contextlib
import errno
import importlib.util
import json
import os
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from training.errors import FolderError, complain, one_line
from training.files import open_regular, own_folder, parse, reachable, read_small, replace

STATUS = "status.json"
EVENTS = "events.jsonl"
MAX_EVENTS_BYTES, MAX_EVENT_BYTES = 1 << 28, 1 << 16  # the most that is read of all events, and of one event
CURVES = "tensorboard"  # the folder of the curves
FLUSH_S = 10  # seconds between two writes of curves; a killed run loses the points since the last write
# The kinds of events with curves, and the endings of the curves' tags, such as loss/validation.
CURVE_EVENTS = {"train": "train", "epoch": "validation", "evaluation": "validation"}
# Keys of those events that have no curve.
NO_CURVES = {"event", "time", "epoch", "step", "samples", "train_loss", "slow", "confusion", "weights"}
# Keys of "train" events that only describe training steps. Their tags have no ending.
TRAINING_TAGS = {"lr", "samples_per_s", "grad_norm", "step_s", "data_wait", "gpu_allocated_bytes"}


@dataclass(kw_only=True, slots=True)
class Log:
    """The output of rank 0. On the other ranks each call does nothing."""

    run_dir: Path
    speaks: bool  # whether this is rank 0
    records: bool = True  # whether rank 0 writes files in the run folder
    began: float = field(default_factory=time.time)  # when this process started
    failing: set[str] = field(default_factory=set)  # files whose last write failed
    curves: Any = None  # TensorBoard's writer; None without curves
    # The functions that get the events, by their names in --log-to.
    trackers: dict[str, Callable[[dict[str, Any]], object]] = field(default_factory=dict)
    event_lock: Any = field(default_factory=threading.RLock)  # the writer's thread also adds events

    def say(self, line: str) -> None:
        """Print a line on stdout, without buffering."""
        if self.speaks:
            with contextlib.suppress(OSError):  # on a full disk or a closed pipe the line is lost
                print(line, flush=True)

    def event(self, kind: str, **facts: Any) -> None:
        """Add a line to events.jsonl: {"event": kind, ..., "time": seconds since 1970}."""
        with self.event_lock:  # trackers get the events in the order of the file
            event = {"event": kind, **facts, **_now()}
            line = json.dumps(event) + "\n"
            self._try_write(EVENTS, lambda path: append(path, line.encode()))
            if self.curves and kind in CURVE_EVENTS:
                with self._guard_curves():
                    _draw(self.curves, event)
            for name, tracker in [*self.trackers.items()]:
                with self._guard_tracker(name):
                    tracker(json.loads(line))  # a copy, which it may change

    def note(self, line: str) -> None:
        """Print a line about checkpoints, and add it to the events."""
        self.say(line)
        self.event("checkpoint", text=line)

    def start_curves(self, *, step: int) -> None:
        """Start TensorBoard's curves after `step`, and hide later steps of earlier starts."""
        with self._guard_curves(), warnings.catch_warnings():
            if not self.speaks or importlib.util.find_spec("tensorboard") is None:
                return
            warnings.simplefilter("ignore")
            from torch.utils.tensorboard import SummaryWriter

            own_folder(self.run_dir, CURVES)
            folder = str((self.run_dir / CURVES).absolute())
            self.curves = SummaryWriter(folder, purge_step=step + 1, flush_secs=FLUSH_S)  # type: ignore[no-untyped-call,unused-ignore]

    def end(self) -> None:
        """Close the curves and the trackers."""
        if self.curves:
            with self._guard_curves():
                self.curves.close()
        for name, tracker in [*self.trackers.items()]:
            with self._guard_tracker(name):
                getattr(tracker, "close", lambda: None)()
        self.trackers.clear()

    @contextlib.contextmanager
    def _guard_tracker(self, name: str) -> Iterator[None]:
        """Let no tracker end the run. A tracker that fails gets no more events."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - whatever the user's function raises
            self.trackers.pop(name, None)
            self.say(f"No more events for --log-to {name} ({one_line(error)}): training continues")

    @contextlib.contextmanager
    def _guard_curves(self) -> Iterator[None]:
        """Let neither a broken TensorBoard nor a full disk end the run."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - whatever a broken package raises
            self.curves = None
            self.say(f"No curves for TensorBoard ({one_line(error)}): training continues")

    def status(
        self, state: str, *, step: int, epoch: int, checkpoint: str | None, reason: str | None = None
    ) -> None:
        """Replace status.json by one line with the arguments in this order.

        The state stays "failed" if another process has failed since this process started.
        """
        old = read_status(reachable(self.run_dir)) if self.speaks and state == "running" else {}
        if old.get("state") == "failed" and float(old.get("time") or 0) > self.began:
            return
        facts = {"state": state, "step": step, "epoch": epoch, "checkpoint": checkpoint, "reason": reason}
        self.write(STATUS, facts | _now())

    def write(self, name: str, value: dict[str, Any], *, indent: int | None = None) -> None:
        """Replace a JSON file in the run folder."""
        self._try_write(name, lambda path: write_json(path, value, indent=indent))

    def _try_write(self, name: str, write: Callable[[Path], None]) -> None:
        """Write a file of the run folder; print a failure once, and continue the run."""
        if not (self.speaks and self.records):
            return
        try:
            write(reachable(self.run_dir) / name)
            self.failing.discard(name)
        except OSError as error:
            if name not in self.failing:
                self.say(f"Cannot write {self.run_dir / name} ({one_line(error)}): training continues")
            self.failing.add(name)


def as_points(event: dict[str, Any]) -> dict[str, float]:
    """Return the numbers of an event by their curves' tags; empty for an event without curves."""
    kind = event["event"]
    if kind not in CURVE_EVENTS:
        return {}
    names = event.keys() - NO_CURVES - (set() if kind == "train" else TRAINING_TAGS)
    return {name if name in TRAINING_TAGS else f"{name}/{CURVE_EVENTS[kind]}": event[name] for name in names}


def _draw(curves: Any, event: dict[str, Any]) -> None:
    """Add the points of an event as one record, because TensorBoard's thread wakes for each record."""
    from tensorboard.compat.proto.summary_pb2 import Summary  # type: ignore[import-not-found,import-untyped,unused-ignore]

    points = [Summary.Value(tag=tag, simple_value=value) for tag, value in as_points(event).items()]
    curves.file_writer.add_summary(Summary(value=points), event["step"])


def write_json(path: Path, value: dict[str, Any], *, indent: int | None = None) -> None:
    """Replace a JSON file as a whole."""
    data = f"{json.dumps(value, indent=indent)}\n".encode()
    replace(path, lambda file: file.write(data))


def append(path: Path, data: bytes) -> None:
    """Add a whole line to a file or nothing, because half a line would make the next line unreadable.

    Raises OSError if the line can't be written.
    """
    with open_regular(path, "ab") as file:
        before = file.seek(0, os.SEEK_END)
        if file.write(data) != len(data):
            file.truncate(before)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def mark_failed(run_dir: Path, reason: str, status: int) -> None:
    """Set the state in status.json to failed, unless it is failed already; keep the progress.

    The file also gets the exit status, because torchrun hides it.
    """
    old = read_status(run_dir)
    if old.get("state") == "failed":
        return
    facts = {"state": "failed", **progress_of(old), "reason": reason, **_now(), "exit": status}
    try:
        own_folder(run_dir)
        write_json(run_dir / STATUS, facts)
    except (OSError, FolderError) as error:
        complain(f"cannot write {run_dir / STATUS}: {error}")


def _now() -> dict[str, float]:
    return {"time": round(time.time(), 3)}


def progress_of(status: dict[str, Any]) -> dict[str, Any]:
    """Return step, epoch and newest checkpoint of a status; 0, 0 and None if these are unknown."""
    step, epoch = status.get("step") or 0, status.get("epoch") or 0
    return {"step": step, "epoch": epoch, "checkpoint": status.get("checkpoint")}


def read_status(run_dir: Path) -> dict[str, Any]:
    """Return the contents of status.json; empty if the file is missing or unreadable."""
    with contextlib.suppress(OSError):
        return parse(read_small(run_dir / STATUS))
    return {}


def read_events(run_dir: Path) -> Iterator[dict[str, Any]]:
    """Yield the events in the last MAX_EVENTS_BYTES bytes of events.jsonl; skip broken lines."""
    with contextlib.suppress(OSError), open_regular(run_dir / EVENTS) as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - MAX_EVENTS_BYTES))
        while line := file.readline(MAX_EVENT_BYTES):
            if event := parse(line):
                yield event


def format_duration(seconds: float) -> str:
    """Return a time such as 0:01:05 or 30:00:00."""
    minutes, second = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{second:02}"
