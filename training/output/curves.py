"""Curves for TensorBoard, if it is installed: the numbers of some events, as records of its event files.

SummaryWriter of torch.utils.tensorboard is not used: it writes from a thread, but loader processes are
forked, and its error on a full disk cannot be caught. The format is TensorBoard's own, see
tensorboard/summary/writer/record_writer.py and tensorboard/compat/proto/event.proto.
"""

from __future__ import annotations

import importlib.util
import io
import os
import socket
import time
import warnings
from typing import Any

FOLDER = "tensorboard"
TAGS = {
    "train": {
        "loss": "loss/train",
        "accuracy": "accuracy/train",
        "lr": "lr",
        "samples_per_s": "samples_per_s",
    },
    "epoch": {"loss": "loss/validation", "accuracy": "accuracy/validation", "top5": "top5/validation"},
}


class Curves:
    """Makes records for one event file. TensorBoard is imported by `begin`."""

    def __init__(self) -> None:
        self.name = ""  # of the file, in the run folder; empty: no curves
        self._api: Any = None

    def begin(self, step: int) -> bytes:
        """The first records of a start at `step`; they hide what earlier starts have of later steps.

        Empty if TensorBoard is not installed. A broken installation may raise any exception.
        """
        if importlib.util.find_spec("tensorboard") is None:
            return b""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from tensorboard.compat.proto import (  # type: ignore[import-not-found,import-untyped,unused-ignore]
                event_pb2,
                summary_pb2,
            )
            from tensorboard.summary.writer.record_writer import (  # type: ignore[import-not-found,import-untyped,unused-ignore]
                RecordWriter,
            )

        self._api = (event_pb2, summary_pb2.Summary, RecordWriter)
        # TensorBoard reads the files of a folder in the order of their names
        began = f"{time.time():017.6f}.{socket.gethostname()}.{os.getpid()}"
        self.name = f"{FOLDER}/events.out.tfevents.{began}"
        log = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
        # hides records of this step or later (tensorboard's plugin_event_accumulator.py)
        return self._record(file_version="brain.Event:2") + self._record(step=step + 1, session_log=log)

    def record(self, kind: str, facts: dict[str, Any]) -> bytes:
        """The record of an event; empty if the event has no curves."""
        if not self.name or kind not in TAGS:
            return b""
        summary = self._api[1](
            value=[
                {"tag": tag, "simple_value": facts[name]} for name, tag in TAGS[kind].items() if name in facts
            ]
        )
        return self._record(step=facts["step"], summary=summary)

    def _record(self, **fields: Any) -> bytes:
        event_pb2, _, writer = self._api
        buffer = io.BytesIO()
        writer(buffer).write(event_pb2.Event(wall_time=time.time(), **fields).SerializeToString())
        return buffer.getvalue()
