"""Keeps the scripts that were submitted from a run folder, and tells what another start would lose.

`job.slurm` is the newest rendered script, which sbatch may have refused. Job 4711 runs `job-4711.slurm`. The
files are replaced, never changed, because bash reads a script while it runs. Only the user can read them,
because they have the values of variables.
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
from sbatchgen.jobs.judge.trainer import MAY_OVERWRITE, checkpoint_fault
from sbatchgen.jobs.runs.record import Record, read_record, records

NEWEST_SCRIPT = "job.slurm"  # the file of the newest rendered script
# Jobs with an equal script share its file if the script has at least this many bytes. A sweep of thousands of
# points has such a script, and is submitted in several arrays.
MIN_SHARED_BYTES = 64 << 10
MAX_BYTES = 4 << 20  # bytes of a script that are read; by default slurmctld takes no larger script
# The comment with the command: "# sbatchgen 0.3.0 (755da3ae2b89): sbatchgen render ddp"
_PROVENANCE = re.compile(r"^# (?:Rendered by )?sbatchgen \d.*$", re.MULTILINE)


@frozen()
class SubmittedScript:
    """A script as it was submitted."""

    job: str  # the job's id; in a run without Slurm, the time of its start
    time: str  # when it was submitted: "2026-11-20 21:38"
    file: Path  # the file of the script
    script: str  # the text of the script


def script_file(run_dir: Path, job: str) -> Path:
    """Return the file with the script of a job."""
    return run_dir / f"job-{job}.slurm"


def keep_script(run_dir: Path, job: str, script: bytes) -> Path:
    """Write the script of a job into the run folder, and return its file; raises OSError.

    A large script is stored once, and every job that runs it has a hard link to the file.
    """
    file = script_file(run_dir, job)
    if len(script) < MIN_SHARED_BYTES or not _link_to_equal_script(file, script):
        files.put(file, script, mode=files.PRIVATE)
    return file


def _link_to_equal_script(file: Path, script: bytes) -> bool:
    """Make `file` a hard link to the newest script of another job, if that script is equal to `script`.

    Return whether the link was made.
    """
    with contextlib.suppress(OSError):  # the file system may have no hard links
        for other in files.oldest_first(file.parent.glob("job-*.slurm"))[-1:]:
            if other != file and files.read_own(other, len(script) + 1) == script:
                os.link(other, file)
                return True
    return False


def parsed_script(run_dir: Path, job: str) -> JobScript | None:
    """Return the parsed script of a job, with the options of its submission; None if it can't be read."""
    file, record = script_file(run_dir, job), read_record(run_dir, job)
    with contextlib.suppress(OSError):
        text = files.read_own(file, MAX_BYTES).decode("utf-8", "surrogateescape")
        return JobScript(file=str(file), text=with_options(text, record.options if record else ()))
    return None


def newest_script(run_dir: Path) -> SubmittedScript | None:
    """Return the newest script that was submitted from a run folder and can be read; None without one."""
    for record in reversed(records(run_dir)):
        file = script_file(run_dir, record.job)
        with contextlib.suppress(OSError):
            script = files.read_own(file, MAX_BYTES).decode("utf-8", "replace")
            when = datetime.fromtimestamp(record.submitted, timezone.utc).astimezone()
            return SubmittedScript(record.job, when.strftime("%Y-%m-%d %H:%M"), file, script)
    return None


def without_command(script: str) -> str:
    """Return a rendered script without the command in its comment; two commands may render one script."""
    return _PROVENANCE.sub("# sbatchgen", script, count=1)


def difference(before: SubmittedScript, script: str) -> str:
    """Return a unified diff from a submitted script to `script`; "" if they are equal.

    The commands in the comments of rendered scripts are not compared.
    """
    import difflib

    old, new = map(without_command, (before.script, script))
    names = (f"job {before.job}, {before.time}", "now")
    lines = difflib.unified_diff(old.split("\n"), new.split("\n"), *names, n=1, lineterm="")
    return "".join(f"{line}\n" for line in lines)


@frozen()
class Loss:
    """What another start of a trainer would lose."""

    says: str  # the loss in words: the trainer saves nothing, or never loads the checkpoint that it saves
    lines_that_load: str = ""  # lines that would load the checkpoint; "" if the trainer saves nothing

    def fix(self) -> str:
        """Return the fix, with the lines that load the checkpoint; "" if the trainer saves nothing."""
        if not self.lines_that_load:
            return ""
        return f"load the checkpoint at the start of the trainer{self.lines_that_load}"

    def lines(self) -> Iterator[str]:
        """Yield the loss and its fix, as lines that are added to the fix of another problem."""
        yield self.says
        yield from filter(None, [self.fix()])


def loss_on_restart(record: Record, run_dir: Path) -> Loss | None:
    """Return what another start of a job's trainer would lose; None if the trainer may resume."""
    script = parsed_script(run_dir, record.job) if record.script else None
    if script:
        return loss_of_script(script, Path(record.folder))
    code = record.code.snapshot if record.code else ""
    return _loss_of_trainer(record.value("trainer"), Path(record.folder, code or record.value("--chdir")))


def loss_of_script(script: JobScript, folder: Path) -> Loss | None:
    """Return what another start of a finished script's trainings would lose; None if they may resume."""
    working = folder / script.option("chdir")
    losses = (_loss_of_trainer(launch.program.name, working) for launch in script.trainings)
    return next(filter(None, losses), None)


def _loss_of_trainer(trainer: str, folder: Path) -> Loss | None:
    """Return what another start of a trainer in a folder would lose; None if it may resume, or is unknown."""
    source = read_trainer(trainer, folder) if trainer else None
    if source is None or not (fault := checkpoint_fault(trainer, source)):
        return None
    never_loads = source.never_loads
    says = f"{fault}: it begins at the first step{MAY_OVERWRITE * never_loads}"
    return Loss(says, source.lines_that_load * never_loads)
