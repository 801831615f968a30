"""A cache of the progress of ended runs, in a file next to the index.

An ended run does not change any more, so its folder is read only once. Without the file all folders are
read again. If several commands write the file, the last one wins.
"""

import contextlib
import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sbatchgen.base import files
from sbatchgen.jobs.runs.index import Run, RunJob
from sbatchgen.jobs.runs.progress import Progress

NAME = "ended.json"
MAX_BYTES = 256 << 20  # the largest file


class KeptProgress:
    """The progress of ended runs, by the key of a run's last job."""

    def __init__(self, index: Path) -> None:
        self._file = index.with_name(NAME)
        self._entries: dict[str, Any] = {}
        self._has_changed = False
        with contextlib.suppress(OSError, ValueError, RecursionError):
            entries = json.loads(files.read_own(self._file, MAX_BYTES))
            self._entries = entries if isinstance(entries, dict) else {}

    def progress(self, run: Run, jobs: Sequence[RunJob]) -> tuple[bool, Progress | None]:
        """Return whether the cache has a run, and the run's progress: None if its training wrote none."""
        entry: Any = self._entries.get(jobs[-1].key) if _has_ended(jobs) else None
        with contextlib.suppress(TypeError, ValueError):
            folder, values = entry
            return folder == run.path, None if values is None else Progress(**values)
        return False, None

    def keep(self, run: Run, jobs: Sequence[RunJob], progress: Progress | None) -> None:
        """Keep the progress of a run, if all its jobs have ended."""
        if _has_ended(jobs):
            self._entries[jobs[-1].key] = [run.path, progress and _values(progress)]
            self._has_changed = True

    def save(self) -> None:
        """Write the file if it has new entries; if the disk is full, the next command reads the folders."""
        if self._has_changed:
            with contextlib.suppress(OSError):
                files.put(self._file, json.dumps(self._entries).encode(), mode=files.PRIVATE)


def _has_ended(jobs: Sequence[RunJob]) -> bool:
    return bool(jobs) and all(job.ended for job in jobs)


def _values(progress: Progress) -> Mapping[str, Any]:
    return {field.name: getattr(progress, field.name) for field in dataclasses.fields(progress)}
