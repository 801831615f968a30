"""The scripts that were submitted in a run folder, each in a file named after its job.

`job.slurm` is the newest one, which may have been refused. `job-4711.slurm` is what job 4711 runs; its time
is that of the submission. Files are replaced, never changed: bash reads a script while it runs it. Only their
user reads them: they hold the values of variables.
"""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from sbatchgen import files
from sbatchgen.job.script import JobScript

MAX_BYTES = 4 << 20  # slurmctld takes no larger script by default
_PROVENANCE = re.compile(r"^# (?:Rendered by )?sbatchgen \d.*$", re.MULTILINE)


@dataclass(frozen=True)
class Submitted:
    """A script as it was submitted.

    Attributes:
        job: The job's id; of a run without Slurm, the time of its start.
        time: When it was submitted, as in "2026-11-20 21:38".
        file: Where the script is.
        script: The script.
    """

    job: str
    time: str
    file: Path
    script: str


def path(run_dir: Path, job: str) -> Path:
    """The file with the script of a job."""
    return run_dir / f"job-{job}.slurm"


def keep(run_dir: Path, job: str, script: bytes) -> Path:
    """Keep the script of a job, and give its file.

    Raises:
        OSError: It can't be written.
    """
    file = path(run_dir, job)
    files.put(file, script, mode=files.PRIVATE)
    return file


def parsed(run_dir: Path, job: str) -> JobScript | None:
    """The script of a job, for what it asks and says; None if it can't be read."""
    file = path(run_dir, job)
    try:
        text = files.read_own(file, MAX_BYTES).decode("utf-8", "surrogateescape")
    except OSError:
        return None
    return JobScript(file=str(file), text=text)


def last(run_dir: Path) -> Submitted | None:
    """The newest script that was submitted in a run folder, if there is one that can be read."""
    for time, file in sorted(_kept(run_dir), reverse=True):
        try:
            script = files.read_own(file, MAX_BYTES).decode("utf-8", "replace")
            when = datetime.fromtimestamp(time, timezone.utc).astimezone()
        except (OSError, ValueError, OverflowError):  # the latter two: the year is out of range
            continue
        return Submitted(file.stem.removeprefix("job-"), when.strftime("%Y-%m-%d %H:%M"), file, script)
    return None


def _kept(run_dir: Path) -> list[tuple[float, Path]]:
    """The scripts of a run folder with their times; none if it can't be read."""
    found = []
    with contextlib.suppress(OSError):
        for file in run_dir.glob("job-*.slurm"):
            with contextlib.suppress(OSError):
                found.append((file.lstat().st_mtime, file))
    return found


def difference(before: Submitted, script: str) -> str:
    """How a script differs from one that was submitted, as a unified diff; "" if it does not.

    The comment that says how the script was rendered does not count.
    """
    import difflib

    old, new = (_PROVENANCE.sub("# sbatchgen", text, count=1) for text in (before.script, script))
    names = (f"job {before.job}, {before.time}", "now")
    lines = difflib.unified_diff(old.split("\n"), new.split("\n"), *names, n=1, lineterm="")
    return "".join(f"{line}\n" for line in lines)
