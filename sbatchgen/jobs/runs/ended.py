"""A cache of the progress of ended runs, in a file next to the index, so that `status` is fast.

An ended run does not change any more, so its folder is read only once. Without the file, all folders are read
again. If several commands write the file, the entries of the last one remain.
"""

import contextlib
import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from sbatchgen.base import files
from sbatchgen.jobs.runs.index import Run, RunJob
from sbatchgen.jobs.runs.progress import Progress

CACHE_FILE = "ended.json"
MAX_BYTES = 256 << 20  # the largest file that is read


class CacheEntry(NamedTuple):
    """What the cache knows about a run."""

    progress: Progress | None  # None if the training wrote no progress


class ProgressCache:
    """The progress of ended runs, by the key of a run's last job."""

    def __init__(self, index: Path) -> None:
        self._file = index.with_name(CACHE_FILE)
        self._entries: dict[str, Any] = {}
        self._has_changed = False
        with contextlib.suppress(OSError, ValueError, RecursionError):
            entries = json.loads(files.read_own(self._file, MAX_BYTES))
            self._entries = entries if isinstance(entries, dict) else {}

    def entry(self, run: Run, jobs: Sequence[RunJob]) -> CacheEntry | None:
        """Return the entry of a run with these jobs; None if the cache has none."""
        entry: Any = self._entries.get(jobs[-1].key) if _has_ended(jobs) else None
        with contextlib.suppress(TypeError, ValueError):
            folder, values = entry
            progress = None if values is None else Progress(**values)
            return CacheEntry(progress) if folder == run.path else None
        return None

    def add(self, run: Run, jobs: Sequence[RunJob], progress: Progress | None) -> None:
        """Add the progress of a run, if all its jobs have ended."""
        if _has_ended(jobs):
            self._entries[jobs[-1].key] = [run.path, progress and _fields_by_name(progress)]
            self._has_changed = True

    def save(self) -> None:
        """Write the file if there are new entries; an error such as a full disk is ignored."""
        if self._has_changed:
            with contextlib.suppress(OSError):
                files.put(self._file, json.dumps(self._entries).encode(), mode=files.PRIVATE)


def _has_ended(jobs: Sequence[RunJob]) -> bool:
    """Return whether a run with these jobs has ended."""
    return bool(jobs) and all(job.ended for job in jobs)


def _fields_by_name(progress: Progress) -> Mapping[str, Any]:
    """Return the fields of a progress, for JSON."""
    return {field.name: getattr(progress, field.name) for field in dataclasses.fields(progress)}
