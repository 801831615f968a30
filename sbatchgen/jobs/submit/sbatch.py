"""sbatch gets the bytes that were reviewed, in a clean environment: SBATCH_* would override the script."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from sbatchgen.base import files
from sbatchgen.base.errors import BudgetError, DocumentError, SbatchgenError, SlurmError
from sbatchgen.base.frozen import frozen
from sbatchgen.base.machine import search_path
from sbatchgen.base.quoting import word
from sbatchgen.jobs.budget.allowance import allowances
from sbatchgen.jobs.runs import index as run_index
from sbatchgen.jobs.runs import record as records
from sbatchgen.jobs.runs import run_folder, shown_starts, submitted_scripts
from sbatchgen.jobs.runs.index import Index
from sbatchgen.jobs.runs.record import Record, code_in, run_name
from sbatchgen.jobs.runs.snapshot import Snapshot
from sbatchgen.jobs.slurm import client
from sbatchgen.jobs.slurm.queue import find_job, new_key, private_script
from sbatchgen.jobs.slurm.refusal import OptionSource, refusals
from sbatchgen.jobs.submit.attempt import Accepted, LostError, Note, ask
from sbatchgen.jobs.submit.submission import Submission
from sbatchgen.jobs.submit.twin import surroundings

if TYPE_CHECKING:
    from sbatchgen.jobs.budget.debit import Debit

_TOO_MANY = re.compile(r"(?:Assoc|QOS)\w*Submit|MaxSubmitJobs")
_OVER_A_LIMIT = re.compile(r"\(job submit limit, user's size and/or time limits\)")
_LIMIT = re.compile(r"\b(?:Assoc|QOS)[A-Z]\w+")


class TooManyJobsError(SlurmError):
    """The user or the account has as many jobs as a limit allows; a guess if Slurm names no limit."""


@frozen()
class SubmittedRun:
    """A job that Slurm has accepted, its record, its folder, and whether the index has the run."""

    accepted: Accepted
    record: Record
    run_dir: Path
    listed: bool

    def hint(self, verbs: str) -> str:
        """Say how to find the run again; the verbs are the commands for it."""
        if self.listed:
            return f"note: run {self.record.run}; see sbatchgen {verbs}"
        return f"note: to enter the run into the index: sbatchgen status --scan {word(str(self.run_dir))}"


def refuse_past_budget(submission: Submission, environment: Mapping[str, str]) -> None:
    """Raise BudgetError if all jobs of a submission may take more than is left; charge nothing yet.

    A job on this machine is refused if a budget holds: Slurm does not count a training on a login node.
    """
    if submission.local:
        if search_path.find("sbatch", environment) and allowances(environment):
            what = "--profile local trains on this machine, and a budget counts jobs of Slurm alone"
            raise BudgetError.of(what, fix="name the profile of the cluster: --profile NAME")
        return
    asked = submission.review.request
    env, _ = client.submit_environment(environment)
    if debit := _debit("", submission, submission.options, env, tasks=asked.jobs if asked else 0):
        debit.enter(keep=False)


def _debit(
    key: str, submission: Submission, options: tuple[str, ...], env: Mapping[str, str], *, tasks: int = 0
) -> Debit | None:
    """Return a submission before the budgets that hold; None where no budget holds, as for most users."""
    if not (limits := allowances(env)):
        return None
    from sbatchgen.jobs.budget.debit import Debit

    return Debit(key, limits, submission.script, options, environment=env, tasks=tasks)


@contextlib.contextmanager
def reserved(
    submission: Submission, environment: Mapping[str, str], note: Note
) -> Iterator[tuple[Submission, int | None]]:
    """Make the folders of a submission, and keep other submissions out of its run folder.

    A job that a killed command has left there without a record gets its record.

    Yields:
        The submission, with a run folder and what git says of its code; the descriptor of the lock.

    Raises:
        SlurmError: Slurm can't be asked for the jobs of the run folder.
        BudgetError: Its jobs may take more than is left.
        DocumentError: A folder can't be made, somebody else can write it, or a job uses it since the review.
    """
    refuse_past_budget(submission, environment)
    run_dir = submission.run_dir
    if not run_dir:  # a finished script names none
        name = f"{run_name(submission.about.name)}-{new_key()}"
        run_dir = run_index.place(environment).parent / "runs" / name
    make_log_folders(submission, note)
    run_folder.make(run_dir)
    about = submission.about
    about = replace(about, code=about.code or code_in(Path(about.folder)))
    waits = partial(note, f"note: another sbatchgen is submitting into {run_dir}: waiting for it")
    locked = files.locked(run_dir / run_folder.LOCK, run_folder.LOCK_S, waits)
    with run_folder.only_owner_writes(), locked as lock:
        if pending := records.submitting(run_dir):
            _settle(run_dir, pending, environment)
        if submission.queued and (problem := submission.queued()):
            raise DocumentError([problem])
        yield replace(submission, run_dir=run_dir, about=about), lock


def _settle(run_dir: Path, pending: Record, environment: Mapping[str, str]) -> None:
    """Give the job of a command that was killed its record and script, if Slurm has accepted the job."""
    for cluster in pending.cluster.split(","):
        if job := find_job(pending.key, environment, cluster=cluster):
            with contextlib.suppress(OSError):
                script = run_dir / (Path(pending.script).name or submitted_scripts.NEWEST)
                text = files.read_own(script, submitted_scripts.MAX_BYTES)
                submitted_scripts.keep(run_dir, str(job.job), text)
            records.keep(run_dir, replace(pending, job=str(job.job), cluster=cluster))
            return
    records.drop(run_dir)


def submit(
    submission: Submission,
    options: tuple[str, ...] = (),
    arguments: tuple[str, ...] = (),
    *,
    lock: int | None,
    environment: Mapping[str, str],
    index: Index | None,
    note: Note,
    keep_env: bool = False,
    key: str = "",
) -> SubmittedRun:
    """Submit a job as `reserved` yields it, and keep its script and its record.

    `options` of sbatch are not in the script, as a dependency; the script gets `arguments`. sbatch
    holds the `lock` of the run folder until it has ended, and sees SBATCH_* and SLURM_* with `keep_env`.
    Raises SlurmError if Slurm refuses or can't be asked, OSError if the run folder can't be written.
    """
    env, leaks = (dict(environment), []) if keep_env else client.submit_environment(environment)
    if leaks:
        note(f"note: removed from the environment of sbatch, would change the job: {', '.join(leaks)}")
    run_dir = submission.run_dir
    assert run_dir  # noqa: S101 - `reserved` has made it
    about = replace(submission.about, key=key or new_key(), submitted=time.time())
    about = replace(about, surroundings=surroundings(submission, environment))
    debit = _debit(about.key, submission, (*submission.options, *options), env)
    given = submission.asked.get("clusters")
    clusters = env.get("SBATCH_CLUSTERS") or (given.value if given else "")
    files.put(run_dir / submission.name, submission.script, mode=files.PRIVATE)
    copied = submission.snapshot if submission.snapshot and not submission.snapshot.place.exists() else None
    if copied:
        copied.copy()
    entry = IndexEntry(index, about, run_dir, note)
    about = replace(about, run=entry.name)
    with (
        _taken_back(entry, debit, run_dir, copied, note),
        private_script(submission.script, submission.name, about.key) as script,
    ):
        if debit:
            debit.enter()
        records.begin(run_dir, replace(about, cluster=clusters))
        asked = ("sbatch", "--parsable", *submission.options, *options, str(script))
        refused = partial(refusal, submission.asked)
        accepted = ask(asked, env, refused, note, arguments=arguments, clusters=clusters, lock=lock)
    if debit:
        debit.change(job=accepted.job)
    entry.change(Index.accepted, accepted.job, accepted.cluster)
    about = replace(about, job=accepted.job, cluster=accepted.cluster)
    try:
        try:  # the script first: no command that is killed leaves a record without its script
            submitted_scripts.keep(run_dir, about.job, submission.script)
        finally:
            records.keep(run_dir, about)
    except OSError as error:
        note(f"note: can't keep the script of job {about.job} in {run_dir}: {error.strerror}")
    shown_starts.submitted(environment, about)
    return SubmittedRun(accepted, about, run_dir, listed=entry.index is not None)


@contextlib.contextmanager
def _taken_back(
    entry: IndexEntry, debit: Debit | None, run_dir: Path, copied: Snapshot | None, note: Note
) -> Iterator[None]:
    """Remove the charge, record, index entry and snapshot of a submission that made no job."""
    try:
        yield
    except (LostError, KeyboardInterrupt) as error:  # there may be a job
        entry.change(Index.lost)
        if isinstance(error, KeyboardInterrupt):
            note("note: the job may have been submitted: sbatchgen status shows whether it is in the queue")
        raise
    except BaseException:
        if debit:
            debit.change()
        records.drop(run_dir)
        entry.change(Index.refused)
        if copied:
            shutil.rmtree(copied.place, ignore_errors=True)
        raise


def open_index(environment: Mapping[str, str], note: Note) -> Index | None:
    """Return the index of runs; None if the index can't be used, as a submission needs no index."""
    with _noted(note):
        return Index(run_index.place(environment), note)
    return None


@contextlib.contextmanager
def _noted(note: Note) -> Iterator[None]:
    """Turn an error of the index into a warning: the job is submitted without the index."""
    try:
        yield
    except DocumentError as error:
        for problem in error.problems:
            note(f"warning: {problem.what}")
            note(f"  fix: {problem.fix}")


class IndexEntry:
    """A submission in the index, and the name of its run; `index` is None if the index can't be used."""

    def __init__(self, index: Index | None, about: Record, run_dir: Path, note: Note) -> None:
        self.index: Index | None = None
        self.name, self._key, self._note = run_name(about.name), about.key, note
        with _noted(note):
            if index:
                self.name = index.begin(about.key, run_dir, self.name, shared=about.shared).name
                self.index = index

    def change(self, method: Callable[..., None], *values: str) -> None:
        """Call a method of the index, as `Index.accepted`, for this submission."""
        with _noted(self._note):
            if self.index:
                method(self.index, self._key, *values)


def refusal(asked: Mapping[str, OptionSource], answer: client.Output) -> SbatchgenError:
    """Return the error for an answer of sbatch that refuses a job with these options."""
    if answer.status is None:
        return SlurmError.of(answer.failure, fix="try again later")
    unnamed = _OVER_A_LIMIT.search(answer.err) and not _LIMIT.search(answer.err)
    kind = TooManyJobsError if unnamed or _TOO_MANY.search(answer.err) else SlurmError
    return kind(row.problem for row in refusals(answer.status, answer.err or answer.out, asked))


def make_log_folders(submission: Submission, note: Note) -> None:
    """Make the folders of the logs; raise DocumentError if a folder can't be made."""
    for log_folder in submission.log_folders:
        if log_folder == submission.run_dir:
            continue
        try:
            log_folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            what = f"can't make the folder {log_folder}: {error.strerror}"
            raise DocumentError.of(what, fix="name a folder that you can write into: --output") from error
        if log_folder != Path("/dev") and not os.access(log_folder, os.W_OK | os.X_OK):  # /dev/null
            why = "a job that can't write its log fails without a message"
            note(f"note: can't write into {log_folder}: {why}")
