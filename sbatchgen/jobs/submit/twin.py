"""The twin of a submission: a job that does the same work, from the same folder, and has not ended.

Who has lost an answer, or types a command twice, would submit the job once more. The same work is the same
script and options, or the same values of a rendered job with the same files of the trainer. Then only the
name of the job and the places that follow from it differ, as in a copied job file. Who types --job-name or
--run-dir wants a second run, as with another seed that the trainer draws, and is not refused. Nor is who
sets another value of a variable that the script or the trainer names, as in SEED=2 sbatchgen submit job.sh,
or edits a settings file that one of these names.
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

_PLACES = ("run_dir", "snapshot_dir", "--job-name", "--output", "--error")  # of a run
_TYPED = ("run_dir", "--job-name")  # by who wants another run
_MOST = 200  # jobs that wait or run, whose records are read: the newest
WAIT_S = 180.0  # for the lock: sbatch itself tries again for two minutes
_LOCKS = 16  # files of locks: the same job has the same lock, and few others have it too
_FEW = 4  # characters of a checksum of values: no password can be guessed from so few
MAX_TEXT = 1 << 20  # of a file, whose text is looked at
MOST_SETTINGS = 100  # files
_SETTINGS = re.compile(rb"(?<![\w./-])[\w./-]{1,200}\.(?:ya?ml|json|toml|ini|cfg|sh)\b")
_NAME = re.compile(rb"[A-Za-z_][A-Za-z_0-9]*")
# These decide which Python runs, and which modules that finds, whatever the script and the trainer name.
_ALWAYS = {"CONDA_PREFIX", "LOADEDMODULES", "PYTHONPATH", "VIRTUAL_ENV"}
# A shell sets these by itself, and some shells of programs have a new folder in PATH for each command.
_OF_SHELL = {"_", "OLDPWD", "PATH", "PWD", "SHLVL"}


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
    """Return the id of the twin and what is the same, None without any."""
    folders = {run.name: run.folder for run in index.runs()}
    live = [job for job in index.jobs() if not job.ended][-_MOST:]
    if not live:  # as mostly: no file is read for nothing
        return None
    sees = surroundings(submission, environment)
    alike = {job.key: same for job in live if (same := _same(job, folders[job.run], submission, sees))}
    with contextlib.suppress(SlurmError):  # what submits will say why Slurm does not answer
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
    by_hand = any(each.name in _TYPED and each.by == "command line" for each in about.values)
    if not by_hand and record.version == about.version and (work := _work(about)) and work == _work(record):
        return f"job in {folder}, with the same trainer, arguments and resources"
    newest = Path(record.script).name or submitted_scripts.NEWEST
    script = submitted_scripts.path(folder, job.id) if job.id else folder / newest
    with contextlib.suppress(OSError):
        if files.read_own(script, submitted_scripts.MAX_BYTES) == submission.script:
            return "script with the same options"
    return ""


def _work(about: Record) -> bytes:
    """Return what a rendered job does, wherever its run folder is; nothing if that is not known.

    A sweep has its points in its script alone.
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
    names = {name.decode() for text in texts for name in _NAME.findall(text)} | _ALWAYS
    settings = {name.decode() for text in texts for name in _SETTINGS.findall(text)}
    passed = submit_environment(environment)[0]
    its = sorted((name, passed[name]) for name in names - _OF_SHELL if name in passed)
    sums = hashlib.sha256(repr(its).encode("utf-8", "surrogateescape"))
    for text in _texts(folder / name for name in sorted(settings)[:MOST_SETTINGS]):
        sums.update(hashlib.sha256(text).digest())
    return sums.hexdigest()[:_FEW]


def _texts(paths: Iterable[Path]) -> Iterator[bytes]:
    """Yield what is in files, but for those that are no files, or too large for a text."""
    for path in paths:
        with contextlib.suppress(OSError):
            yield files.read_file(path, MAX_TEXT)
