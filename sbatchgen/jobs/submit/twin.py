"""The twin of a submission: a job with the same bytes and options, from the same folder, that has not ended.

Who has lost an answer, or types a command twice, would submit the job once more.
"""

import contextlib
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from sbatchgen.base import files
from sbatchgen.base.errors import CommandLineError, SlurmError
from sbatchgen.jobs.runs import record as records
from sbatchgen.jobs.runs import submitted_scripts
from sbatchgen.jobs.runs.index import Index, RunJob
from sbatchgen.jobs.slurm.queue import key_of, queue
from sbatchgen.jobs.submit.submission import Submission

WAIT_S = 180.0  # for the lock: sbatch itself tries again for two minutes
_LOCKS = 16  # files of locks: the same job has the same lock, and few others have it too


@contextlib.contextmanager
def refused(
    submissions: Sequence[Submission], index: Index | None, environment: Mapping[str, str]
) -> Iterator[None]:
    """Refuse submissions that have a twin, and let no other command submit the same until the end.

    Raises CommandLineError. Without an index nothing is known of other jobs.
    """
    with contextlib.ExitStack() as held:
        if not index:
            yield
            return
        for file in sorted({_lock(each, index) for each in submissions}):
            with contextlib.suppress(OSError):  # without the lock, the twin of a minute ago is found
                held.enter_context(files.locked(file, WAIT_S))
        for submission in submissions:
            if job := find(submission, index, environment):
                what = f"job {job} is the same script with the same options, and has not ended"
                fix = "look at it: sbatchgen status; to submit it once more: --again"
                raise CommandLineError.of(what, fix=fix)
        yield


def _lock(submission: Submission, index: Index) -> Path:
    number = hashlib.sha256(submission.script).digest()[0] % _LOCKS
    return index.file.with_name(f"submit-{number:02}.lock")


def find(submission: Submission, index: Index, environment: Mapping[str, str]) -> str:
    """Return the id of the twin; "" without any."""
    folders = {run.name: run.folder for run in index.runs()}
    name = records.run_name(submission.about.name)
    live = (job for job in index.jobs() if not job.ended and job.run.startswith(name))
    alike = {job.key for job in live if _is_alike(job, folders[job.run], submission)}
    with contextlib.suppress(SlurmError):  # what submits will say why Slurm does not answer
        for row in queue(environment) if alike else ():
            if key_of(row.command) in alike and not row.state.ended:
                return str(row.job)
    return ""


def _is_alike(job: RunJob, folder: Path, submission: Submission) -> bool:
    """Return whether a job has the bytes and the options; one without an id is of a command that was killed.

    In the run folder of the submission itself, `sbatch.reserved` finds such a job, and keeps its record.
    """
    about = submission.about
    if not job.id and folder == submission.run_dir:
        return False
    record = records.read_record(folder, job.id) if job.id else records.submitting(folder)
    if not record or (record.folder, record.options) != (about.folder, about.options):
        return False
    newest = Path(record.script).name or submitted_scripts.NEWEST
    script = submitted_scripts.path(folder, job.id) if job.id else folder / newest
    with contextlib.suppress(OSError):
        return files.read_own(script, submitted_scripts.MAX_BYTES) == submission.script
    return False
