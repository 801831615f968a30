"""The signs of life of a run: what appears in its folder and its log, and whether its first step has come.

What the watcher of the ranks writes itself does not count.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping
from pathlib import Path

from training.files import CHECKPOINTS, LOCK
from training.processes import proc

OURS = "hang: "  # before each line of the watcher
FOLDER, REPORT = "stacks", "hang.json"  # what the watcher writes into the run folder
FILES = 256  # whose times are looked at
READ = 1 << 16  # bytes of what is new in a log
STEPS = 2  # lines of steps, or records of metrics, after which the first step has come
_LOG = re.compile(r"log|.*\.(?:log|out|err|txt)$|.*\.(?:log|out|err)\.\d+$")
_METRICS = re.compile(r"events|metrics|.*tfevents|.*\.(?:jsonl|csv)$")
_STEP = re.compile(r"(?i)\b(?:step|iter\w*|batch|epoch|loss)\b\D{0,12}\d")
_RATE = re.compile(r"(?i)\d\s?(?:it/s|s/it|samples/s)")
# before the rate in a bar of steps: a bar of what is loaded or prepared has other words
_OF_STEPS = re.compile(r"(?i)^(?:\[\w+\]:)?[^a-z]*$|\b(?:step|iter|epoch|train|batch|loss)")


class Signs:
    """The signs of life of a run, looked at again and again."""

    def __init__(self, run_dir: Path, environ: Mapping[str, str]) -> None:
        self._run_dir = run_dir
        self._outputs = [Path("/proc/self/fd/1"), Path("/proc/self/fd/2"), *_log_of_job(environ)]
        self._known: dict[str, tuple[int, ...]] = {}
        self._programs: dict[str, int] = {}
        self._steps = STEPS  # so that no step is counted that an earlier start of the run has left
        self.look()
        self._steps = 0
        self._first_lines: dict[str, str] = {}  # of steps: their starts without numbers, and what follows

    @property
    def has_begun(self) -> bool:
        """Whether the first step has come: steps have been printed, or metrics written."""
        return self._steps >= STEPS

    def look(self) -> bool:
        """Return whether anything has appeared since the last look."""
        is_new = False
        for path in self._outputs:
            is_new |= self._has_grown(str(path), path)
        paths = [*(self._run_dir / CHECKPOINTS).glob("*"), *self._run_dir.glob("*")]
        for path in paths[:FILES]:
            with contextlib.suppress(OSError):
                is_new |= path.name not in (REPORT, FOLDER, LOCK) and self._is_new(path)
        return is_new

    def of_programs(self) -> bool:
        """Return whether another program of the job has printed something since the last look."""
        sizes = {}
        for path in (self._run_dir / "programs").glob("*.log"):
            with contextlib.suppress(OSError):
                sizes[path.name] = path.stat().st_size
        before, self._programs = self._programs, sizes
        return any(size > before.get(name, size) for name, size in sizes.items())

    def _is_new(self, path: Path) -> bool:
        status = path.lstat()
        if _LOG.match(path.name):
            return self._has_grown(str(path), path)
        sign = (status.st_ino, status.st_size, status.st_mtime_ns)
        before = self._known.get(str(path))
        self._known[str(path)] = sign
        self._steps += bool(before and sign[1] > before[1] and _METRICS.match(path.name))
        return before != sign

    def _has_grown(self, name: str, path: Path) -> bool:
        """Return whether a log has new text other than the watcher's; it notes the lines of steps."""
        with contextlib.suppress(OSError, ValueError):
            status = path.stat()
            if not os.path.isfile(path):  # noqa: PTH113 - a pipe, or a terminal
                return False
            before = self._known.get(name, (0,))[0]
            self._known[name] = (status.st_size,)
            if status.st_size == before:
                return False
            with path.open("rb") as file:
                file.seek(max(before if status.st_size > before else 0, status.st_size - READ))
                text = file.read(READ).decode(errors="replace")
            lines = [line for line in re.split(r"[\r\n]+", text) if line.strip()]
            for line in lines if not self.has_begun else ():
                self._steps += self._steps_of(line)
            return any(OURS not in line for line in lines)
        return False

    def _steps_of(self, line: str) -> int:
        """Return how many steps a line shows.

        With the first that has other numbers than one like it, both count.

        A line of the configuration, such as `batch size 32`, comes once, or again with the same numbers.
        """
        rate, step = _RATE.search(line), _STEP.search(line)
        if rate and _OF_STEPS.search(line[: rate.start()]):
            return 1
        if not step:
            return 0
        start, rest = re.sub(r"\d", "", line[: step.end()]), line[step.start() :]
        return 0 if self._first_lines.setdefault(start, rest) == rest else STEPS


def _log_of_job(environ: Mapping[str, str]) -> list[Path]:
    """Return the log of a job whose script runs on this node: what srun's tasks print goes through a pipe."""
    job = f"SLURM_JOB_ID={environ.get('SLURM_JOB_ID', '')}"
    for pid in proc.processes():
        if proc.program(pid) == "slurm_script" and job in proc.read(pid, "environ").split("\0"):
            with contextlib.suppress(OSError):
                return [Path(os.readlink(f"/proc/{pid}/fd/1"))]  # noqa: PTH115 - Python 3.7
    return []
