"""The scripts that were submitted in a run folder, each in a file named after its job, and their trainers.

`job.slurm` is the newest one, which may have been refused. `job-4711.slurm` is what job 4711 runs. Files
are replaced, never changed: bash reads a script while it runs it. Only their user reads them: they hold the
values of variables.
"""

import contextlib
import os
import re
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path

from sbatchgen.base import files
from sbatchgen.base.frozen import frozen
from sbatchgen.check.script.more_options import with_options
from sbatchgen.check.script.script import JobScript
from sbatchgen.check.script.trainer_source import read_trainer
from sbatchgen.jobs.judge.trainer import OVERWRITES, forgets_all
from sbatchgen.jobs.runs.record import Record, read_record, records

NEWEST = "job.slurm"  # the file of the newest rendered one
LARGE = 64 << 10  # bytes: of a sweep with thousands of points, which is submitted in several arrays
MAX_BYTES = 4 << 20  # slurmctld takes no larger script by default
_PROVENANCE = re.compile(r"^# (?:Rendered by )?sbatchgen \d.*$", re.MULTILINE)


@frozen()
class Submitted:
    """A script as it was submitted."""

    job: str  # the job's id; of a run without Slurm, the time of its start
    time: str  # when it was submitted, as in "2026-11-20 21:38"
    file: Path  # where the script is
    script: str


def path(run_dir: Path, job: str) -> Path:
    """Return the file with the script of a job."""
    return run_dir / f"job-{job}.slurm"


def keep(run_dir: Path, job: str, script: bytes) -> Path:
    """Keep the script of a job, and return its file; raises OSError.

    A large one is stored once, whatever the number of jobs that run it: each has a hard link to it.
    """
    file = path(run_dir, job)
    if len(script) < LARGE or not _linked(file, script):
        files.put(file, script, mode=files.PRIVATE)
    return file


def _linked(file: Path, script: bytes) -> bool:
    """Make a file a link to that of another job with the same script; return whether there is one."""
    with contextlib.suppress(OSError):  # as on a file system without hard links
        others = sorted(file.parent.glob("job-*.slurm"), key=lambda other: -other.stat().st_mtime)
        for other in others[:1]:
            if other != file and files.read_own(other, len(script) + 1) == script:
                os.link(other, file)
                return True
    return False


def parsed(run_dir: Path, job: str) -> JobScript | None:
    """Return the parsed script of a job, with the options of its submission; None if it can't be read."""
    file, record = path(run_dir, job), read_record(run_dir, job)
    with contextlib.suppress(OSError):
        text = files.read_own(file, MAX_BYTES).decode("utf-8", "surrogateescape")
        return JobScript(file=str(file), text=with_options(text, record.options if record else ()))
    return None


def last(run_dir: Path) -> Submitted | None:
    """Return the newest script that was submitted in a run folder and can be read."""
    for record in reversed(records(run_dir)):
        file = path(run_dir, record.job)
        with contextlib.suppress(OSError):
            script = files.read_own(file, MAX_BYTES).decode("utf-8", "replace")
            when = datetime.fromtimestamp(record.submitted, timezone.utc).astimezone()
            return Submitted(record.job, when.strftime("%Y-%m-%d %H:%M"), file, script)
    return None


def without_command(script: str) -> str:
    """Return a rendered script without the command that rendered it, which is in a comment."""
    return _PROVENANCE.sub("# sbatchgen", script, count=1)


def difference(before: Submitted, script: str) -> str:
    """Return how a script differs from one that was submitted, as a unified diff; "" if it does not.

    The comment that says how the script was rendered does not count.
    """
    import difflib

    old, new = map(without_command, (before.script, script))
    names = (f"job {before.job}, {before.time}", "now")
    lines = difflib.unified_diff(old.split("\n"), new.split("\n"), *names, n=1, lineterm="")
    return "".join(f"{line}\n" for line in lines)


@frozen()
class Loss:
    """What another start of a trainer would lose."""

    says: str  # that it saves nothing, or never loads what it saves
    lines_that_load: str = ""  # lines that would load, if it saves

    def fix(self) -> str:
        """Return what to do, with the lines below."""
        return f"load the checkpoint at the start of the trainer{self.lines_that_load}" * bool(
            self.lines_that_load
        )

    def lines(self) -> Iterator[str]:
        """Yield what belongs below the fix of something else."""
        yield self.says
        yield from filter(None, [self.fix()])


def forgets(record: Record, run_dir: Path) -> Loss | None:
    """Return what another start of a submission's trainer would lose; None if it may resume."""
    script = parsed(run_dir, record.job) if record.script else None
    if script:
        return script_forgets(script, Path(record.folder))
    code = record.code.snapshot if record.code else ""
    return _forgets(record.value("trainer"), Path(record.folder, code or record.value("--chdir")))


def script_forgets(script: JobScript, folder: Path) -> Loss | None:
    """Return what another start of a finished script's trainings would lose; None if they may resume."""
    working = folder / script.option("chdir")
    each = (_forgets(launch.program.name, working) for launch in script.trainings)
    return next(filter(None, each), None)


def _forgets(trainer: str, folder: Path) -> Loss | None:
    source = read_trainer(trainer, folder) if trainer else None
    if source is None or not (says := forgets_all(trainer, source)):
        return None
    loses = source.never_loads
    return Loss(f"{says}: it begins at the first step{OVERWRITES * loses}", source.lines_that_load * loses)
