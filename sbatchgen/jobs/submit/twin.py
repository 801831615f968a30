"""The twin of a submission: a job that does the same work, from the same folder, and has not ended.

A user who has lost an answer, or who types a command twice, would submit the job once more. Two jobs do the
same work if they have the same script and options. Two rendered jobs also do the same work if only the name
of the job and the places that follow from the name differ, as in a copied job file.

A second run on purpose is not refused. Its command line has --job-name or --run-dir, or it differs in a
variable or a settings file that the script or the trainer names. For example, SEED=2 sbatchgen submit job.sh
sets another value of SEED.
"""

import contextlib
import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from sbatchgen.base import files
from sbatchgen.base.errors import CommandLineError, SlurmError
from sbatchgen.jobs.runs import record as records
from sbatchgen.jobs.runs import submitted_scripts
from sbatchgen.jobs.runs.index import Index, RunJob
from sbatchgen.jobs.runs.record import Record
from sbatchgen.jobs.slurm.client import submit_environment
from sbatchgen.jobs.slurm.queue import key_of, queue
from sbatchgen.jobs.submit.submission import Submission

_NAME_VALUES = (
    "run_dir",
    "snapshot_dir",
    "--job-name",
    "--output",
    "--error",
)  # values that follow from the name
_SECOND_RUN = ("run_dir", "--job-name")  # a user who wants a second run types one of these
_MAX_JOBS = 200  # jobs whose records are read: the newest that wait or run
WAIT_S = 180.0  # seconds to wait for the lock; sbatch itself tries again for two minutes
_LOCKS = 16  # the number of lock files; two submissions of the same work share one
_SHORT_SUM = 4  # characters of a checksum of variables: too few to show that a guessed password is right
MAX_TEXT = 1 << 20  # bytes of a file whose text is searched for names
MAX_SETTINGS = 100  # settings files that are read
# The names of settings files, such as "conf/train.yaml"
_SETTINGS = re.compile(rb"(?<![\w./-])[\w./-]{1,200}\.(?:ya?ml|json|toml|ini|cfg|sh)\b")
_NAME = re.compile(rb"[A-Za-z_][A-Za-z_0-9]*")
# The variables that decide which Python runs, and which modules Python finds
_PYTHON_VARIABLES = {"CONDA_PREFIX", "LOADEDMODULES", "PYTHONPATH", "VIRTUAL_ENV"}
# The variables that a shell sets by itself. Some programs give each of their shells a new folder in PATH.
_SHELL_VARIABLES = {"_", "OLDPWD", "PATH", "PWD", "SHLVL"}


@contextlib.contextmanager
def refuse_twins(
    submissions: Sequence[Submission], index: Index | None, environment: Mapping[str, str]
) -> Iterator[None]:
    """Refuse submissions that have a twin, and let no other command submit the same job until the end.

    Raises CommandLineError for a twin. Without an index no other jobs are known.
    """
    with contextlib.ExitStack() as locks:
        if not index:
            yield
            return
        for file in sorted({_lock(submission, index) for submission in submissions}):
            with contextlib.suppress(OSError):  # even without the lock, a twin that has a job is found
                locks.enter_context(files.locked(file, WAIT_S))
        for submission in submissions:
            if twin := find_twin(submission, index, environment):
                job_id, common = twin
                fix = "look at it: sbatchgen status; to submit it once more: --again"
                raise CommandLineError.of(f"job {job_id} is the same {common}, and has not ended", fix=fix)
        yield


def _lock(submission: Submission, index: Index) -> Path:
    """Return the lock file of a submission, which follows from its work."""
    work = _work_bytes(submission.record) or submission.script
    number = hashlib.sha256(work).digest()[0] % _LOCKS
    return index.file.with_name(f"submit-{number:02}.lock")


def find_twin(submission: Submission, index: Index, environment: Mapping[str, str]) -> tuple[str, str] | None:
    """Return the id of the twin, and the common parts in words; None without a twin."""
    live = [job for job in index.jobs() if not job.ended][-_MAX_JOBS:]
    if not live:  # the usual case, in which no file has to be read
        return None
    folders = {run.name: run.folder for run in index.runs()}
    live = [job for job in live if job.run in folders]  # another command may change the index meanwhile
    checksum = surroundings(submission, environment)
    by_key: dict[str, str] = {}  # what each candidate has in common, by the key of the job
    for job in live:
        if common := _common_parts(job, folders[job.run], submission, checksum):
            by_key[job.key] = common
    with contextlib.suppress(SlurmError):  # the submission reports why Slurm does not answer
        for row in queue(environment) if by_key else ():
            if key_of(row.command) in by_key and not row.state.ended:
                return str(row.job), by_key[key_of(row.command)]
    return None


def _common_parts(job: RunJob, folder: Path, submission: Submission, checksum: str) -> str:
    """Return in words what a job has in common with a submission; "" if the job does other work.

    `checksum` is the submission's checksum of its surroundings.
    """
    new = submission.record
    # The command that submitted a job without an id was killed. If the job is in the run folder of this new
    # submission, `reserve_run_folder` finds it.
    if not job.id and folder == submission.run_dir:
        return ""
    old = records.read_record(folder, job.id) if job.id else records.read_submitting(folder)
    if not old or (old.folder, old.options, old.surroundings) != (new.folder, new.options, checksum):
        return ""
    if new.reads != old.reads and new.reads and old.reads:  # the trainer was edited meanwhile
        return ""
    is_second = any(value.name in _SECOND_RUN and value.by == "command line" for value in new.values)
    if (
        not is_second
        and old.version == new.version
        and (work := _work_bytes(new))
        and work == _work_bytes(old)
    ):
        return f"job in {folder}, with the same trainer, arguments and resources"
    newest = Path(old.script).name or submitted_scripts.NEWEST_SCRIPT
    script = submitted_scripts.script_file(folder, job.id) if job.id else folder / newest
    with contextlib.suppress(OSError):
        if files.read_own(script, submitted_scripts.MAX_BYTES) == submission.script:
            return "script with the same options"
    return ""


def _work_bytes(record: Record) -> bytes:
    """Return the work of a rendered job as bytes, without its name and run folder; b"" if it is not known.

    The work of a sweep is not known, because only the script has its points.
    """
    values = {value.name: value.value for value in record.values if value.name not in _NAME_VALUES}
    # The trainer may be that of the job, or of one of its programs.
    has_own_trainer = any(name.endswith("trainer") for name in values)
    if record.command[1:2] != ("render",) or (has_own_trainer and not record.reads):
        return b""
    return repr((record.folder, sorted(values.items()), record.reads)).encode("utf-8", "surrogateescape")


def surroundings(submission: Submission, environment: Mapping[str, str]) -> str:
    """Return a checksum of the variables and settings files that a script and its trainer name.

    sbatch passes all variables to a job, and a loop may submit the same script with a new SEED each time.
    """
    folder, script = Path(submission.record.folder), submission.script
    if submission.record.command:  # the command names the job file, which may be a copy
        script = submitted_scripts.without_command(script.decode()).encode()
    texts = [script, *_texts(folder / row.partition(" ")[2] for row in submission.record.reads)]
    names = {name.decode() for text in texts for name in _NAME.findall(text)} | _PYTHON_VARIABLES
    settings = {name.decode() for text in texts for name in _SETTINGS.findall(text)}
    passed = submit_environment(environment)[0]
    variables = sorted((name, passed[name]) for name in names - _SHELL_VARIABLES if name in passed)
    checksum = hashlib.sha256(repr(variables).encode("utf-8", "surrogateescape"))
    for text in _texts(folder / name for name in sorted(settings)[:MAX_SETTINGS]):
        checksum.update(hashlib.sha256(text).digest())
    return checksum.hexdigest()[:_SHORT_SUM]


def _texts(paths: Iterable[Path]) -> Iterator[bytes]:
    """Yield the contents of files; skip files that can't be read or are too large."""
    for path in paths:
        with contextlib.suppress(OSError):
            yield files.read_file(path, MAX_TEXT)
