"""Gives sbatch the reviewed bytes of a script, in an environment without SBATCH_*, and keeps the records."""

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

# Texts in sbatch's answers. This one names a limit of the number of jobs: "QOSMaxSubmitJobPerUserLimit".
_JOB_COUNT_LIMIT = re.compile(r"(?:Assoc|QOS)\w*Submit|MaxSubmitJobs")
# A limit of any kind
_ANY_LIMIT = re.compile(r"\(job submit limit, user's size and/or time limits\)")
# The name of any limit, such as "QOSMaxGRESPerUser". If Slurm names none, it may be one of jobs.
_LIMIT_NAME = re.compile(r"\b(?:Assoc|QOS)[A-Z]\w+")


class TooManyJobsError(SlurmError):
    """The user or the account has as many jobs as a limit allows; a guess if Slurm names no limit."""


@frozen()
class SubmittedRun:
    """A job that Slurm has accepted."""

    accepted: Accepted  # the answer of sbatch
    record: Record
    run_dir: Path
    in_index: bool  # whether the index has the run

    def hint(self, verbs: str) -> str:
        """Return a note that says how to find the run again; `verbs` names commands for it."""
        if self.in_index:
            return f"note: run {self.record.run}; see sbatchgen {verbs}"
        return f"note: to enter the run into the index: sbatchgen status --scan {word(str(self.run_dir))}"


def refuse_past_budget(submission: Submission, environment: Mapping[str, str]) -> None:
    """Raise BudgetError if the jobs of a submission may take more than a budget has left; charge nothing.

    If there is a budget, a job on this machine is refused, because no budget counts what it takes.
    """
    if submission.local:
        if search_path.find("sbatch", environment) and allowances(environment):
            what = "--profile local trains on this machine, and a budget counts jobs of Slurm alone"
            raise BudgetError.of(what, fix="name the profile of the cluster: --profile NAME")
        return
    request = submission.review.request
    env, _ = client.submit_environment(environment)
    if debit := _debit("", submission, submission.options, env, tasks=request.jobs if request else 0):
        debit.enter(keep=False)


def _debit(
    key: str, submission: Submission, options: tuple[str, ...], env: Mapping[str, str], *, tasks: int = 0
) -> Debit | None:
    """Return the charge of a submission to its budgets; None without a budget, as for most users."""
    if not (limits := allowances(env)):
        return None
    from sbatchgen.jobs.budget.debit import Debit

    return Debit(key, limits, submission.script, options, environment=env, tasks=tasks)


@contextlib.contextmanager
def reserve_run_folder(
    submission: Submission, environment: Mapping[str, str], note: Note
) -> Iterator[tuple[Submission, int | None]]:
    """Make the folders of a submission, and lock its run folder against other submissions.

    If a killed command has left a job in the folder without a record, the job gets its record.

    Yields:
        The submission with its run folder and the commit of its code; the descriptor of the lock.

    Raises:
        SlurmError: Slurm can't be asked for the jobs of the run folder.
        BudgetError: The jobs may take more than a budget has left.
        DocumentError: A folder can't be made, another user can write it, or a job uses it since the review.
    """
    refuse_past_budget(submission, environment)
    run_dir = submission.run_dir
    if not run_dir:  # a finished script has no run folder yet
        name = f"{run_name(submission.record.name)}-{new_key()}"
        run_dir = run_index.index_file(environment).parent / "runs" / name
    make_log_folders(submission, note)
    run_folder.make(run_dir)
    record = submission.record
    record = replace(record, code=record.code or code_in(Path(record.folder)))
    waits = partial(note, f"note: another sbatchgen is submitting into {run_dir}: waiting for it")
    locked = files.locked(run_dir / run_folder.LOCK, run_folder.LOCK_S, waits)
    with run_folder.only_owner_writes(), locked as lock:
        if pending := records.submitting(run_dir):
            _record_pending(run_dir, pending, environment)
        if submission.folder_conflict and (problem := submission.folder_conflict()):
            raise DocumentError([problem])
        yield replace(submission, run_dir=run_dir, record=record), lock


def _record_pending(run_dir: Path, pending: Record, environment: Mapping[str, str]) -> None:
    """Keep the record and the script of a job whose command was killed, if Slurm has accepted the job.

    Otherwise remove the pending record.
    """
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
    """Submit a job that `reserve_run_folder` has yielded, and keep its script and its record.

    sbatch gets further `options`, such as a dependency; the script gets `arguments`. sbatch holds the `lock`
    of the run folder until it has ended, and sees SBATCH_* and SLURM_* with `keep_env`.
    Raises SlurmError if Slurm refuses or can't be asked, OSError if the run folder can't be written.
    """
    env, removed = (dict(environment), []) if keep_env else client.submit_environment(environment)
    if removed:
        note(f"note: removed from the environment of sbatch, would change the job: {', '.join(removed)}")
    run_dir = submission.run_dir
    assert run_dir  # noqa: S101 - `reserve_run_folder` has made it
    record = replace(submission.record, key=key or new_key(), submitted=time.time())
    record = replace(record, surroundings=surroundings(submission, environment))
    debit = _debit(record.key, submission, (*submission.options, *options), env)
    option = submission.option_sources.get("clusters")
    clusters = env.get("SBATCH_CLUSTERS") or (option.value if option else "")
    files.put(run_dir / submission.name, submission.script, mode=files.PRIVATE)
    # The later jobs of a chain or a sweep find the copy that the first job has made.
    new_copy = submission.snapshot if submission.snapshot and not submission.snapshot.place.exists() else None
    if new_copy:
        new_copy.copy()
    entry = IndexEntry(index, record, run_dir, note)
    record = replace(record, run=entry.name)
    with (
        _undone_on_failure(entry, debit, run_dir, new_copy, note),
        private_script(submission.script, submission.name, record.key) as script,
    ):
        if debit:
            debit.enter()
        records.begin(run_dir, replace(record, cluster=clusters))
        command = ("sbatch", "--parsable", *submission.options, *options, str(script))
        error_of = partial(refusal, submission.option_sources)
        accepted = ask(command, env, error_of, note, arguments=arguments, clusters=clusters, lock=lock)
    if debit:
        debit.change(job=accepted.job)
    entry.change(Index.accept, accepted.job, accepted.cluster)
    record = replace(record, job=accepted.job, cluster=accepted.cluster)
    where = f"of job {record.job} in {run_dir}"
    try:  # the script first: a killed command never leaves a record without its script
        with _errors_as_notes(f"can't keep the script {where}", note):
            submitted_scripts.keep(run_dir, record.job, submission.script)
    finally:
        with _errors_as_notes(f"can't keep the record {where}", note):
            records.keep(run_dir, record)
    shown_starts.keep_submission(environment, record)
    return SubmittedRun(accepted, record, run_dir, in_index=entry.index is not None)


@contextlib.contextmanager
def _undone_on_failure(
    entry: IndexEntry, debit: Debit | None, run_dir: Path, new_copy: Snapshot | None, note: Note
) -> Iterator[None]:
    """Remove the charge, record, index entry and snapshot of a submission if it made no job."""
    try:
        yield
    except (LostError, KeyboardInterrupt) as error:  # the job may exist
        entry.change(Index.mark_lost)
        if isinstance(error, KeyboardInterrupt):
            note("note: the job may have been submitted: sbatchgen status shows whether it is in the queue")
        raise
    except BaseException:
        if debit:
            debit.change()
        records.drop(run_dir)
        entry.change(Index.remove)
        if new_copy:
            shutil.rmtree(new_copy.place, ignore_errors=True)
        raise


@contextlib.contextmanager
def _errors_as_notes(what: str, note: Note) -> Iterator[None]:
    """Print an error of a file as a note, because the job is already submitted."""
    try:
        yield
    except OSError as error:
        note(f"note: {what}: {error.strerror}")


def open_index(environment: Mapping[str, str], note: Note) -> Index | None:
    """Return the index of runs; None if the index can't be used, because a submission needs no index."""
    with _errors_as_warnings(note):
        return Index(run_index.index_file(environment), note)
    return None


@contextlib.contextmanager
def _errors_as_warnings(note: Note) -> Iterator[None]:
    """Print an error of the index as a warning, because the job is submitted even without the index."""
    try:
        yield
    except DocumentError as error:
        for problem in error.problems:
            note(f"warning: {problem.what}")
            note(f"  fix: {problem.fix}")


class IndexEntry:
    """The entry of a submission in the index; if the index can't be used, the entry does nothing."""

    def __init__(self, index: Index | None, record: Record, run_dir: Path, note: Note) -> None:
        self.index: Index | None = None  # None if the index can't be used
        self.name, self._key, self._note = run_name(record.name), record.key, note
        with _errors_as_warnings(note):
            if index:
                self.name = index.begin(record.key, run_dir, self.name, shared=record.shared).name
                self.index = index

    def change(self, method: Callable[..., None], *values: str) -> None:
        """Call a method of the index, such as `Index.accept`, for this submission."""
        with _errors_as_warnings(self._note):
            if self.index:
                method(self.index, self._key, *values)


def refusal(options: Mapping[str, OptionSource], answer: client.Output) -> SbatchgenError:
    """Return the error for an answer of sbatch that refuses a job; `options` are the options of the job."""
    if answer.status is None:
        return SlurmError.of(answer.failure, fix="try again later")
    is_unnamed = _ANY_LIMIT.search(answer.err) and not _LIMIT_NAME.search(answer.err)
    kind = TooManyJobsError if is_unnamed or _JOB_COUNT_LIMIT.search(answer.err) else SlurmError
    return kind(row.problem for row in refusals(answer.status, answer.err or answer.out, options))


def make_log_folders(submission: Submission, note: Note) -> None:
    """Make the folders of the logs, because Slurm makes none; raise DocumentError if one can't be made."""
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
