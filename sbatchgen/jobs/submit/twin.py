"""The twin of a submission: a job that does the same work, from the same folder, and has not ended.

A user who has lost an answer, or who types a command twice, would submit the job once more. Two jobs do the
same work if they have the same script and options. Two rendered jobs also do the same work if only the name
of the job and the places that follow from the name differ, as in a copied job file.

Three things make a second run, which is not refused: --job-name or --run-dir on the command line; another
value of a variable that the script or the trainer names, as in SEED=2 sbatchgen submit job.sh; an edit of a
settings file that the script or the trainer names.
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

_PLACES = ("run_dir", "snapshot_dir", "--job-name", "--output", "--error")  # the values that name a run
_SECOND_RUN = ("run_dir", "--job-name")  # typed by a user who wants a second run
_MAX_JOBS = 200  # the newest jobs that wait or run: only their records are read
WAIT_S = 180.0  # for the lock: sbatch itself tries again for two minutes
_LOCKS = 16  # the number of lock files: the same job has the same lock
_SHORT_SUM = 4  # characters of a checksum of values: too few to guess a password from
MAX_TEXT = 1 << 20  # bytes of a file whose text is searched for names
MAX_SETTINGS = 100  # files
_SETTINGS = re.compile(rb"(?<![\w./-])[\w./-]{1,200}\.(?:ya?ml|json|toml|ini|cfg|sh)\b")
_NAME = re.compile(rb"[A-Za-z_][A-Za-z_0-9]*")
# The variables that decide which Python runs, and which modules Python finds
_PYTHON_VARIABLES = {"CONDA_PREFIX", "LOADEDMODULES", "PYTHONPATH", "VIRTUAL_ENV"}
# The variables that a shell sets by itself. Some programs give each of their shells a new folder in PATH.
_SHELL_VARIABLES = {"_", "OLDPWD", "PATH", "PWD", "SHLVL"}


@contextlib.contextmanager
def refused(
    submissions: Sequence[Submission], index: Index | None, environment: Mapping[str, str]
) -> Iterator[None]:
    """Refuse submissions that have a twin, and let no other command submit the same job until the end.

    Raises CommandLineError for a twin. Without an index other jobs are not known.
    """
    with contextlib.ExitStack() as held:
        if not index:
            yield
            return
        for file in sorted({_lock(each, index) for each in submissions}):
            with contextlib.suppress(OSError):  # without the lock, the twin of a minute ago is found
                held.enter_context(files.locked(file, WAIT_S))
        for submission in submissions:
            if twin := find(submission, index, environment):
                job, same = twin
                fix = "look at it: sbatchgen status; to submit it once more: --again"
                raise CommandLineError.of(f"job {job} is the same {same}, and has not ended", fix=fix)
        yield


def _lock(submission: Submission, index: Index) -> Path:
    work = _work(submission.about) or submission.script
    number = hashlib.sha256(work).digest()[0] % _LOCKS
    return index.file.with_name(f"submit-{number:02}.lock")


def find(submission: Submission, index: Index, environment: Mapping[str, str]) -> tuple[str, str] | None:
    """Return the id of the twin, and in words what is the same; None without a twin."""
    folders = {run.name: run.folder for run in index.runs()}
    live = [job for job in index.jobs() if not job.ended][-_MAX_JOBS:]
    if not live:  # the usual case, in which no file has to be read
        return None
    sees = surroundings(submission, environment)
    alike = {job.key: same for job in live if (same := _same(job, folders[job.run], submission, sees))}
    with contextlib.suppress(SlurmError):  # the submission will say why Slurm does not answer
        for row in queue(environment) if alike else ():
            if key_of(row.command) in alike and not row.state.ended:
                return str(row.job), alike[key_of(row.command)]
    return None


def _same(job: RunJob, folder: Path, submission: Submission, sees: str) -> str:
    """Return what a job has in common with a submission; "" if it does other work or `sees` other settings.

    A job without an id is of a command that was killed. In the run folder of the submission itself,
    `sbatch.reserved` finds such a job, and keeps its record.
    """
    about = submission.about
    if not job.id and folder == submission.run_dir:
        return ""
    record = records.read_record(folder, job.id) if job.id else records.submitting(folder)
    ours = (about.folder, about.options, sees)
    if not record or (record.folder, record.options, record.surroundings) != ours:
        return ""
    if about.reads != record.reads and about.reads and record.reads:  # the trainer was edited meanwhile
        return ""
    by_hand = any(each.name in _SECOND_RUN and each.by == "command line" for each in about.values)
    if not by_hand and record.version == about.version and (work := _work(about)) and work == _work(record):
        return f"job in {folder}, with the same trainer, arguments and resources"
    newest = Path(record.script).name or submitted_scripts.NEWEST
    script = submitted_scripts.path(folder, job.id) if job.id else folder / newest
    with contextlib.suppress(OSError):
        if files.read_own(script, submitted_scripts.MAX_BYTES) == submission.script:
            return "script with the same options"
    return ""


def _work(about: Record) -> bytes:
    """Return the work of a rendered job as bytes, whatever its run folder; b"" if the work is not known.

    The work of a sweep is not known: only the script has its points.
    """
    values = {each.name: each.value for each in about.values if each.name not in _PLACES}
    own = any(name.endswith("trainer") for name in values)  # of a program too
    if about.command[1:2] != ("render",) or (own and not about.reads):
        return b""
    return repr((about.folder, sorted(values.items()), about.reads)).encode("utf-8", "surrogateescape")


def surroundings(submission: Submission, environment: Mapping[str, str]) -> str:
    """Return a checksum of the variables and settings files that a script and its trainer name.

    sbatch passes all variables on to a job, and a loop may submit one script with a seed in each of them.
    """
    folder, script = Path(submission.about.folder), submission.script
    if submission.about.command:  # which names the file of the job
        script = submitted_scripts.without_command(script.decode()).encode()
    texts = [script, *_texts(folder / row.partition(" ")[2] for row in submission.about.reads)]
    names = {name.decode() for text in texts for name in _NAME.findall(text)} | _PYTHON_VARIABLES
    settings = {name.decode() for text in texts for name in _SETTINGS.findall(text)}
    passed = submit_environment(environment)[0]
    its = sorted((name, passed[name]) for name in names - _SHELL_VARIABLES if name in passed)
    sums = hashlib.sha256(repr(its).encode("utf-8", "surrogateescape"))
    for text in _texts(folder / name for name in sorted(settings)[:MAX_SETTINGS]):
        sums.update(hashlib.sha256(text).digest())
    return sums.hexdigest()[:_SHORT_SUM]


def _texts(paths: Iterable[Path]) -> Iterator[bytes]:
    """Yield the contents of files; leave out those that can't be read or are too large for a text."""
    for path in paths:
        with contextlib.suppress(OSError):
            yield files.read_file(path, MAX_TEXT)
