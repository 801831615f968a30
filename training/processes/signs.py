"""The signs of life of a run: new files and text in its folder and its log, and its first step.

Lines and files of the watcher of the ranks do not count.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping
from pathlib import Path

from training.files import CHECKPOINTS, LOCK
from training.processes import proc

WATCHER_PREFIX = "hang: "  # the start of each line of the watcher
FOLDER, REPORT = "stacks", "hang.json"  # the folder and the file of the watcher in the run folder
MAX_FILES = 256  # the largest number of files in the run folder that a look visits
MAX_READ_BYTES = 1 << 16  # of the new text in a log, at each look
FIRST_STEPS = 2  # so many lines of steps, or records of metrics, show that the training has begun
# Names of files in the run folder: logs, and files to which each step may add a record.
_LOG_NAME = re.compile(r"log|.*\.(?:log|out|err|txt)$|.*\.(?:log|out|err)\.\d+$")
_METRICS_NAME = re.compile(r"events|metrics|.*tfevents|.*\.(?:jsonl|csv)$")
# Such as "step 12", and a rate such as "3.1 it/s".
_STEP_NUMBER = re.compile(r"(?i)\b(?:step|iter\w*|batch|epoch|loss)\b\D{0,12}\d")
_RATE = re.compile(r"(?i)\d\s?(?:it/s|s/it|samples/s)")
# The text before the rate in a progress bar of steps. Bars of loading or preparing have other words.
_STEP_BAR = re.compile(r"(?i)^(?:\[\w+\]:)?[^a-z]*$|\b(?:step|iter|epoch|train|batch|loss)")


class Signs:
    """The signs of life of a run, by repeated looks at its files."""

    def __init__(self, run_dir: Path, environ: Mapping[str, str]) -> None:
        self._run_dir = run_dir
        self._logs = [Path("/proc/self/fd/1"), Path("/proc/self/fd/2"), *_job_log(environ)]
        self._known_files: dict[str, tuple[int, ...]] = {}
        self._program_logs: dict[str, int] = {}
        # The first look only notes the files: with FIRST_STEPS it counts no lines of an earlier start.
        self._steps = FIRST_STEPS
        self.look()
        self._steps = 0
        # The first line of each kind about steps, from the name of the number on, such as "step 12 loss 3".
        # The key is the text up to the number, without digits, such as "[main] step ".
        self._first_lines: dict[str, str] = {}

    @property
    def has_begun(self) -> bool:
        """Whether the first step is over, by printed steps or written metrics."""
        return self._steps >= FIRST_STEPS

    def look(self) -> bool:
        """Look at the log and the run folder; return whether anything is new since the last look."""
        is_new = False
        for path in self._logs:
            is_new |= self._has_grown(str(path), path)
        paths = [*(self._run_dir / CHECKPOINTS).glob("*"), *self._run_dir.glob("*")]
        for path in paths[:MAX_FILES]:
            with contextlib.suppress(OSError):
                is_new |= path.name not in (REPORT, FOLDER, LOCK) and self._is_new(path)
        return is_new

    def programs_have_printed(self) -> bool:
        """Return whether another program of the job, such as a server, has printed since the last call."""
        sizes = {}
        for path in (self._run_dir / "programs").glob("*.log"):
            with contextlib.suppress(OSError):
                sizes[path.name] = path.stat().st_size
        before, self._program_logs = self._program_logs, sizes
        return any(size > before.get(name, size) for name, size in sizes.items())

    def _is_new(self, path: Path) -> bool:
        """Return whether a file of the run folder has changed since the last look."""
        status = path.lstat()
        if _LOG_NAME.match(path.name):
            return self._has_grown(str(path), path)
        version = (status.st_ino, status.st_size, status.st_mtime_ns)
        before = self._known_files.get(str(path))
        self._known_files[str(path)] = version
        self._steps += bool(before and version[1] > before[1] and _METRICS_NAME.match(path.name))
        return before != version

    def _has_grown(self, name: str, path: Path) -> bool:
        """Return whether a log has new lines that the watcher did not print; count the lines of steps."""
        with contextlib.suppress(OSError, ValueError):
            status = path.stat()
            if not os.path.isfile(path):  # noqa: PTH113 - a pipe, or a terminal
                return False
            before = self._known_files.get(name, (0,))[0]
            self._known_files[name] = (status.st_size,)
            if status.st_size == before:
                return False
            with path.open("rb") as file:
                file.seek(max(before if status.st_size > before else 0, status.st_size - MAX_READ_BYTES))
                text = file.read(MAX_READ_BYTES).decode(errors="replace")
            lines = [line for line in re.split(r"[\r\n]+", text) if line.strip()]
            if not self.has_begun:
                for line in lines:
                    self._steps += self._steps_of(line)
            return any(WATCHER_PREFIX not in line for line in lines)
        return False

    def _steps_of(self, line: str) -> int:
        """Return how many steps a line shows.

        A line with a rate counts as a step. Two lines that differ only in their numbers show that steps have
        begun. A line of the configuration, such as `batch size 32`, does not count, because its numbers never
        change.
        """
        rate, step = _RATE.search(line), _STEP_NUMBER.search(line)
        if rate and _STEP_BAR.search(line[: rate.start()]):
            return 1
        if not step:
            return 0
        kind, from_name = re.sub(r"\d", "", line[: step.end()]), line[step.start() :]
        is_unchanged = self._first_lines.setdefault(kind, from_name) == from_name
        return 0 if is_unchanged else FIRST_STEPS


def _job_log(environ: Mapping[str, str]) -> list[Path]:
    """Return the log of the job as a list, if the job's script runs on this node; else [].

    The output of this process may be a pipe to srun, which writes the log.
    """
    job = f"SLURM_JOB_ID={environ.get('SLURM_JOB_ID', '')}"
    for pid in proc.processes():
        if proc.program(pid) == "slurm_script" and job in proc.read(pid, "environ").split("\0"):
            with contextlib.suppress(OSError):
                return [Path(os.readlink(f"/proc/{pid}/fd/1"))]  # noqa: PTH115 - Python 3.7
    return []
