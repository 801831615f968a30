"""sbatch gets the bytes that were reviewed, in a clean environment: SBATCH_* would override the script."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from sbatchgen import files
from sbatchgen.errors import DocumentError, SbatchgenError, SlurmError
from sbatchgen.runs import code, scripts
from sbatchgen.runs import record as records
from sbatchgen.runs.index import Index
from sbatchgen.runs.index import place as index_place
from sbatchgen.runs.record import Record
from sbatchgen.slurm import command
from sbatchgen.slurm.refusal import Answer, Asked, Refusal, refusals, understand
from sbatchgen.slurm.submission import folder_name
from sbatchgen.submit.attempt import ELSEWHERE, Accepted, LostError, Note, ask
from sbatchgen.submit.submission import Submission

TEST_TIMEOUT_S = 60.0
_TOO_MANY = re.compile(r"(?:Assoc|QOS)\w*Submit|MaxSubmitJobs")
_OVER_A_LIMIT = re.compile(r"\(job submit limit, user's size and/or time limits\)")
_LIMIT = re.compile(r"\b(?:Assoc|QOS)[A-Z]\w+")
_NOT_IN_NAMES = re.compile(r"[^\w.+-]+")


class TooManyJobsError(SlurmError):
    """The user or account has as many jobs as a limit allows; most likely so where Slurm names no limit."""


@dataclass(frozen=True)
class SubmittedRun:
    """A job that Slurm has accepted, and the run that it is of."""

    accepted: Accepted
    record: Record
    run_dir: Path


def submit(
    submission: Submission,
    environment: Mapping[str, str],
    *,
    index: Index | None,
    keep_env: bool,
    note: Note,
    options: tuple[str, ...] = (),
    arguments: tuple[str, ...] = (),
) -> SubmittedRun:
    """Submit. Print the id before anything else can fail, then `keep` the record.

    Args:
        submission: What.
        environment: The user's.
        index: The index of runs; None if it can't be used.
        keep_env: Whether sbatch sees SBATCH_* and SLURM_*.
        note: Tells the user about it.
        options: Options of sbatch that are not in the script, as of a dependency.
        arguments: Those of the script.

    Raises:
        SlurmError: Slurm refused, or can't be asked.
        DocumentError: A folder can't be made or written into.
    """
    env, leaks = (dict(environment), []) if keep_env else command.submit_environment(environment)
    if leaks:
        note(f"note: removed from the environment of sbatch, would change the job: {', '.join(leaks)}")
    make_folders(submission, note)
    key = secrets.token_hex(8)
    about = replace(submission.about, key=key, submitted=time.time())
    if run_dir := submission.run_dir:
        files.put(run_dir / submission.name, submission.script)
    else:  # a finished script names no run folder
        run_dir = index_place(environment).parent / "runs" / f"{run_name(about.name)}-{about.key}"
    with _copied(submission):
        index, name = begin(index, about, run_dir, note)
        with _private(submission.script, submission.name, key) as script, _entered(index, key, note):
            asked, given = ("sbatch", "--parsable", *options, str(script)), submission.asked.get("clusters")
            clusters = env.get("SBATCH_CLUSTERS") or (given.value if given else "")
            refused = partial(refusal, submission.asked)
            accepted = ask(asked, env, refused, note, arguments=arguments, clusters=clusters)
    if index:
        with noted(note):
            index.accepted(key, accepted.job, accepted.cluster)
    return SubmittedRun(
        accepted, replace(about, run=name, job=accepted.job, cluster=accepted.cluster), run_dir
    )


def keep(submission: Submission, done: SubmittedRun, *, note: Note) -> None:
    """Keep script and record in the run folder, and print what sbatch said; the job runs without that."""
    job = done.record.job
    try:
        done.run_dir.mkdir(parents=True, exist_ok=True)
        scripts.keep(done.run_dir, job, submission.script)
        records.keep(
            done.run_dir, replace(done.record, code=done.record.code or code.look(Path(done.record.folder)))
        )
    except OSError as error:
        note(f"note: can't keep the script of job {job} in {done.run_dir}: {error.strerror}")
    if done.accepted.says:
        note(done.accepted.says)


def run_name(name: str) -> str:
    """A job's name as the name of a run: one word, of letters that need no quoting."""
    return _NOT_IN_NAMES.sub("-", name).strip("-.") or "job"


@contextlib.contextmanager
def open_index(environment: Mapping[str, str], note: Note) -> Iterator[Index | None]:
    """The index of runs; None if it can't be used, which is no reason not to submit."""
    with contextlib.ExitStack() as opened:
        index = None
        with noted(note):
            index = opened.enter_context(contextlib.closing(Index(index_place(environment))))
        yield index


@contextlib.contextmanager
def _copied(submission: Submission) -> Iterator[None]:
    """Take the snapshot, unless an earlier job has it, and remove it again if there will be no job."""
    snapshot = submission.snapshot
    if snapshot is None or snapshot.place.exists():
        yield
        return
    snapshot.take()
    try:
        yield
    except (LostError, KeyboardInterrupt):  # there may be a job
        raise
    except BaseException:
        shutil.rmtree(snapshot.place, ignore_errors=True)
        raise


def begin(index: Index | None, about: Record, run_dir: Path, note: Note) -> tuple[Index | None, str]:
    """Enter a submission into the index, and give the run's name; the index is None if it can't be used."""
    name = run_name(about.name)
    if index:
        with noted(note):
            return index, index.begin(about.key, run_dir, name, shared=about.shared).name
    return None, name


@contextlib.contextmanager
def noted(note: Note) -> Iterator[None]:
    """Turn an error of the index into a warning: the job is what matters."""
    try:
        yield
    except DocumentError as error:
        for problem in error.problems:
            note(f"warning: {problem.what}\n  fix: {problem.fix}")


@contextlib.contextmanager
def _entered(index: Index | None, key: str, note: Note) -> Iterator[None]:
    """Keep the index right, whatever becomes of a submission."""
    try:
        yield
    except (LostError, KeyboardInterrupt) as error:
        if index:
            with noted(note):
                index.lost(key)
        if isinstance(error, KeyboardInterrupt):
            note("note: the job may have been submitted: sbatchgen status shows whether it is in the queue")
        raise
    except BaseException:
        if index:
            with noted(note):
                index.refused(key)
        raise


def refusal(asked: Mapping[str, Asked], answer: command.Output) -> SbatchgenError:
    """The error for an answer of sbatch that refuses a job with these options."""
    if answer.status is None:
        return SlurmError.of(answer.failure, fix="try again later")
    unnamed = _OVER_A_LIMIT.search(answer.err) and not _LIMIT.search(answer.err)
    kind = TooManyJobsError if unnamed or _TOO_MANY.search(answer.err) else SlurmError
    return kind(one.problem for one in refusals(answer.status, answer.err or answer.out, asked))


def ask_slurm(script: bytes, name: str, asked: Mapping[str, Asked], environment: Mapping[str, str]) -> Answer:
    """What the live Slurm says of a script: `sbatch --test-only`, which uses up a job id."""
    env, _ = command.submit_environment(environment)
    try:
        with _private(script, name, secrets.token_hex(8)) as file:
            words = ["sbatch", "--test-only", str(file)]
            answer = command.run(words, env, timeout=TEST_TIMEOUT_S, elsewhere=ELSEWHERE)
        if answer.status is None:
            raise SlurmError.of(answer.failure, fix="try again later")
    except SlurmError as error:
        problem = error.problems[0]
        return Answer(accepted=False, says="", refusals=(Refusal(says=problem.what, fix=problem.fix),))
    return understand(answer.status, answer.err or answer.out, asked)


def make_folders(submission: Submission, note: Note) -> None:
    """Make the folders of the logs and of the run.

    Raises:
        DocumentError: One can't be made.
    """
    fix = "name a folder that you can write into: --run-dir, or --output for the log"
    for folder in (*submission.log_folders, *([submission.run_dir] if submission.run_dir else [])):
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            what = f"can't make the folder {folder}: {error.strerror}"
            raise DocumentError.of(what, fix=fix) from error
        if folder != Path("/dev") and not os.access(folder, os.W_OK | os.X_OK):  # a log may be /dev/null
            note(f"note: can't write into {folder}: a job that can't write its log fails without a message")


@contextlib.contextmanager
def _private(script: bytes, name: str, key: str) -> Iterator[Path]:
    """The script in a folder that only this user can enter, and that no other submission has.

    Others may write to the run folder, or submit from it at the same moment, and sbatch opens the script by
    its name. The name stays: a job without one is called after its script.
    """
    try:
        private = tempfile.TemporaryDirectory(prefix=folder_name(key))
    except OSError as error:
        what = f"can't make a folder for temporary files: {error.strerror}"
        raise DocumentError.of(what, fix="export TMPDIR=FOLDER, one that you can write into") from error
    with private as folder:
        path = Path(folder) / name
        files.put(path, script)
        yield path
