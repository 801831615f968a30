"""How far the trainings of ended runs were: read once from their folders, and kept beside the index.

It is a cache, as the index is: without the file, all is read again. Who writes last wins.
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
MAX_BYTES = 256 << 20


class KeptProgress:
    """The progress of runs that have ended, by the key of their last job."""

    def __init__(self, index: Path) -> None:
        self._file = index.with_name(NAME)
        self._known: dict[str, Any] = {}
        self._is_new = False
        with contextlib.suppress(OSError, ValueError, RecursionError):
            known = json.loads(files.read_own(self._file, MAX_BYTES))
            self._known = known if isinstance(known, dict) else {}

    def progress(self, run: Run, jobs: Sequence[RunJob]) -> tuple[bool, Progress | None]:
        """Return whether the progress of a run is known, and the progress; None if no training wrote any."""
        kept: Any = self._known.get(jobs[-1].key) if _has_ended(jobs) else None
        with contextlib.suppress(TypeError, ValueError):
            folder, values = kept
            return folder == run.where, None if values is None else Progress(**values)
        return False, None

    def keep(self, run: Run, jobs: Sequence[RunJob], progress: Progress | None) -> None:
        """Keep the progress of a run, if all its jobs have ended."""
        if _has_ended(jobs):
            self._known[jobs[-1].key] = [run.where, progress and _values(progress)]
            self._is_new = True

    def save(self) -> None:
        """Write new entries; on a full disk the folders are read again the next time."""
        if self._is_new:
            with contextlib.suppress(OSError):
                files.put(self._file, json.dumps(self._known).encode(), mode=files.PRIVATE)


def _has_ended(jobs: Sequence[RunJob]) -> bool:
    return bool(jobs) and all(job.ended for job in jobs)


def _values(progress: Progress) -> Mapping[str, Any]:
    return {field.name: getattr(progress, field.name) for field in dataclasses.fields(progress)}
