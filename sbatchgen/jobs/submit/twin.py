"""Refuses to submit a job whose twin still waits or runs.

The twin of a submission is a job that does the same work, from the same folder, and has not ended. A user who
types a command twice, or has not seen its answer, would submit the job a second time.

Two jobs do the same work if they have the same script and options. Two jobs that sbatchgen has rendered also
do the same work if they differ only in the job's name, and in paths that contain the name. A copied job file
gives such a job.

A user may want a second run. A submission is not refused if its command line has --job-name or --run-dir, or
if a variable or a settings file that the script or the trainer names has changed. For example, the command
SEED=2 sbatchgen submit job.sh changes SEED for a script that names SEED.
"""

import contextlib
import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from sbatchgen.base import files
from sbatchgen.base.errors import CommandLineError, SlurmError
from sbatchgen.jobs.runs import record as records
from sbatchgen.jobs.runs import submitted_scripts
from sbatchgen.jobs.runs.index import Index, RunJob
from sbatchgen.jobs.runs.record import Record
from sbatchgen.jobs.slurm.client import submit_environment
from sbatchgen.jobs.slurm.queue import key_of, squeue_jobs
from sbatchgen.jobs.submit.submission import Submission

# The keys of values that are the job's name, or contain it by default.
_KEYS_WITH_NAME = ("run_dir", "snapshot_dir", "--job-name", "--output", "--error")
_KEYS_OF_SECOND_RUN = ("run_dir", "--job-name")  # a user who wants a second run types one of these
_MAX_JOBS = 200  # the newest waiting and running jobs, whose records are read
WAIT_S = 180.0  # seconds to wait for the lock, because sbatch itself tries again for two minutes
_LOCK_FILES = 16  # the number of lock files; two submissions of the same work lock the same file
# The number of characters of a record's checksum of variables, which may hold a password. The checksum is too
# short to show whether a guessed password is right.
_CHECKSUM_LENGTH = 4
MAX_TEXT = 1 << 20  # bytes of a file whose text is searched for names
MAX_SETTINGS = 100  # settings files that are read
_SETTINGS_FILE = re.compile(rb"(?<![\w./-])[\w./-]{1,200}\.(?:ya?ml|json|toml|ini|cfg|sh)\b")  # "conf/a.yaml"
_VARIABLE_NAME = re.compile(rb"[A-Za-z_][A-Za-z_0-9]*")
# The variables that decide which Python runs, and which modules Python finds
_PYTHON_VARIABLES = {"CONDA_PREFIX", "LOADEDMODULES", "PYTHONPATH", "VIRTUAL_ENV"}
# The variables that a shell sets by itself. Some programs give each of their shells a new folder in PATH.
_SHELL_VARIABLES = {"_", "OLDPWD", "PATH", "PWD", "SHLVL"}


class _Twin(NamedTuple):
    """A job that does the same work as a submission."""

    job_id: str
    common_parts: str  # what both have in common, in words


@contextlib.contextmanager
def refuse_twins(
    submissions: Sequence[Submission], index: Index | None, environment: Mapping[str, str]
) -> Iterator[None]:
    """Raise CommandLineError if a submission has a twin; otherwise lock its work while the context lasts.

    The lock keeps other commands from submitting the same job at the same time. Without an index no other
    jobs are known, and nothing is refused.
    """
    with contextlib.ExitStack() as locks:
        if not index:
            yield
            return
        for file in sorted({_lock_file(submission, index) for submission in submissions}):
            with contextlib.suppress(OSError):  # a twin that is already submitted is found without the lock
                locks.enter_context(files.locked(file, WAIT_S))
        for submission in submissions:
            if twin := _find_twin(submission, index, environment):
                what = f"job {twin.job_id} is the same {twin.common_parts}, and has not ended"
                fix = "look at it: sbatchgen status; to submit it once more: --again"
                raise CommandLineError.of(what, fix=fix)
        yield


def _lock_file(submission: Submission, index: Index) -> Path:
    """Return the lock file of a submission; submissions of the same work have the same file."""
    work = _work_bytes(submission.record) or submission.script
    number = hashlib.sha256(work).digest()[0] % _LOCK_FILES
    return index.file.with_name(f"submit-{number:02}.lock")


def _find_twin(submission: Submission, index: Index, environment: Mapping[str, str]) -> _Twin | None:
    """Return the twin of a submission; None without a twin, or if Slurm does not answer."""
    unended_jobs = [job for job in index.jobs() if not job.ended][-_MAX_JOBS:]
    if not unended_jobs:  # the usual case, in which no file has to be read
        return None
    folders = {run.name: run.folder for run in index.runs()}
    # Another command may have removed a run from the index since its jobs were read.
    unended_jobs = [job for job in unended_jobs if job.run in folders]
    checksum = surroundings_checksum(submission, environment)
    common_by_key: dict[str, str] = {}  # the key of each possible twin -> what it has in common, in words
    for job in unended_jobs:
        if common_parts := _common_parts(job, folders[job.run], submission, checksum):
            common_by_key[job.key] = common_parts
    with contextlib.suppress(SlurmError):  # the submission then reports why Slurm does not answer
        if common_by_key:
            for queued_job in squeue_jobs(environment):
                key = key_of(queued_job.command)
                if key in common_by_key and not queued_job.state.ended:
                    return _Twin(str(queued_job.base_id), common_by_key[key])
    return None


def _common_parts(job: RunJob, folder: Path, submission: Submission, checksum: str) -> str:
    """Return in words what a job has in common with a submission; "" if the job does other work.

    `checksum` is what `surroundings_checksum` returns for the submission.
    """
    new = submission.record
    # A job has no id if its submit command was killed. If the job is in the run folder of this submission,
    # `reserve_run_folder` finds it and completes its record.
    if not job.id and folder == submission.run_dir:
        return ""
    old = records.read_record(folder, job.id) if job.id else records.read_submitting(folder)
    if not old or (old.folder, old.options, old.surroundings) != (new.folder, new.options, checksum):
        return ""
    if new.reads != old.reads and new.reads and old.reads:  # the trainer was edited since
        return ""
    is_second_run = any(
        value.name in _KEYS_OF_SECOND_RUN and value.by == "command line" for value in new.values
    )
    work = _work_bytes(new)
    if not is_second_run and old.version == new.version and work and work == _work_bytes(old):
        return f"job in {folder}, with the same trainer, arguments and resources"
    newest = Path(old.script).name or submitted_scripts.NEWEST_SCRIPT
    script = submitted_scripts.script_file(folder, job.id) if job.id else folder / newest
    with contextlib.suppress(OSError):
        if files.read_own(script, submitted_scripts.MAX_BYTES) == submission.script:
            return "script with the same options"
    return ""


def _work_bytes(record: Record) -> bytes:
    """Return bytes that are equal for two rendered jobs that do the same work; b"" if the work is not known.

    The bytes hold the job's values and the checksums of its trainer, without values that contain its name.
    The work is not known for a finished script, for a trainer whose files can't be read, and for a sweep,
    because only the script of a sweep has the points.
    """
    values = {value.name: value.value for value in record.values if value.name not in _KEYS_WITH_NAME}
    # The key of a trainer is "trainer", or ends so if the trainer is one of several programs.
    has_own_trainer = any(name.endswith("trainer") for name in values)
    is_rendered = record.command[1:2] == ("render",)
    if not is_rendered or (has_own_trainer and not record.reads):
        return b""
    return repr((record.folder, sorted(values.items()), record.reads)).encode("utf-8", "surrogateescape")


def surroundings_checksum(submission: Submission, environment: Mapping[str, str]) -> str:
    """Return a checksum of the variables and settings files that a script and its trainer name.

    Two submissions of the same script may do different work, because sbatch passes variables to the job. For
    example, a loop may submit the script with a new SEED each time.
    """
    folder, script = Path(submission.record.folder), submission.script
    if submission.record.command:  # the script of a copied job file differs only in this command
        script = submitted_scripts.without_command(script.decode()).encode()
    trainer_files = (folder / row.partition(" ")[2] for row in submission.record.reads)
    texts = [script, *_contents(trainer_files)]
    names = {name.decode() for text in texts for name in _VARIABLE_NAME.findall(text)} | _PYTHON_VARIABLES
    settings_files = {name.decode() for text in texts for name in _SETTINGS_FILE.findall(text)}
    sbatch_environment, _ = submit_environment(environment)
    variables = sorted(
        (name, sbatch_environment[name]) for name in names - _SHELL_VARIABLES if name in sbatch_environment
    )
    checksum = hashlib.sha256(repr(variables).encode("utf-8", "surrogateescape"))
    for text in _contents(folder / name for name in sorted(settings_files)[:MAX_SETTINGS]):
        checksum.update(hashlib.sha256(text).digest())
    return checksum.hexdigest()[:_CHECKSUM_LENGTH]


def _contents(paths: Iterable[Path]) -> Iterator[bytes]:
    """Yield the contents of files; skip files that can't be read or are too large."""
    for path in paths:
        with contextlib.suppress(OSError):
            yield files.read_file(path, MAX_TEXT)
