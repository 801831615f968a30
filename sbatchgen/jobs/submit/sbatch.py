"""Submits a reviewed script with sbatch, and records the job in its run folder and in the index of runs.

sbatch gets the bytes that the user has reviewed. Its environment has no SBATCH_* variables, because they
would override the directives of the script.
"""

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
from sbatchgen.jobs.submit.attempt import Accepted, LostError, Note, call_sbatch
from sbatchgen.jobs.submit.submission import Submission
from sbatchgen.jobs.submit.twin import surroundings_checksum

if TYPE_CHECKING:
    from sbatchgen.jobs.budget.debit import Debit

# sbatch often names the limit that a job exceeds, and then describes all limits in one general message:
#     sbatch: error: QOSMaxSubmitJobPerUserLimit
#     sbatch: error: Batch job submission failed: Job violates accounting/QOS policy (job submit limit, ...)
_LIMIT_NAME = re.compile(r"\b(?:Assoc|QOS)[A-Z]\w+")  # "QOSMaxGRESPerUser"
_JOB_COUNT_LIMIT = re.compile(r"(?:Assoc|QOS)\w*Submit|MaxSubmitJobs")  # "QOSMaxSubmitJobPerUserLimit"
_GENERAL_MESSAGE = re.compile(r"\(job submit limit, user's size and/or time limits\)")


class TooManyJobsError(SlurmError):
    """The user or the account already has as many jobs as a limit allows.

    If sbatch prints only the general message about limits, this error is a guess.
    """


@frozen()
class SubmittedRun:
    """A job that Slurm has accepted, with its run."""

    accepted: Accepted  # the answer of sbatch
    record: Record
    run_dir: Path
    is_in_index: bool  # whether the index has the run

    def note_on_run(self, commands: str) -> str:
        """Return a note with the name of the run and the `commands` that take it, such as "status, logs"."""
        if self.is_in_index:
            return f"note: run {self.record.run}; see sbatchgen {commands}"
        return f"note: to enter the run into the index: sbatchgen status --scan {word(str(self.run_dir))}"


def refuse_past_budget(submission: Submission, environment: Mapping[str, str]) -> None:
    """Raise BudgetError if the jobs of a submission may take more than a budget has left.

    The function only checks: `submit` charges the budgets. A job on this machine is refused if the user has
    both a budget and sbatch, because a budget counts only Slurm jobs.
    """
    if submission.local:
        if search_path.find("sbatch", environment) and allowances(environment):
            what = "--profile local trains on this machine, and a budget counts only Slurm jobs"
            raise BudgetError.of(what, fix="name the profile of the cluster: --profile NAME")
        return
    request = submission.review.request
    sbatch_environment, _ = client.submit_environment(environment)
    tasks = request.jobs if request else 0
    if debit := _debit("", submission, submission.options, sbatch_environment, tasks=tasks):
        debit.enter(only_check=True)


def _debit(
    key: str,
    submission: Submission,
    options: tuple[str, ...],
    sbatch_environment: Mapping[str, str],
    *,
    tasks: int = 0,
) -> Debit | None:
    """Return the debit that charges a submission to the user's budgets; None for a user without a budget.

    `key` is the key of the job's record. `tasks` is the number of jobs and array tasks, if a chain or a sweep
    has more than the script's array.
    """
    if not (limits := allowances(sbatch_environment)):
        return None
    from sbatchgen.jobs.budget.debit import Debit

    return Debit(key, limits, submission.script, options, environment=sbatch_environment, tasks=tasks)


@contextlib.contextmanager
def reserve_run_folder(
    submission: Submission, environment: Mapping[str, str], note: Note
) -> Iterator[tuple[Submission, int | None]]:
    """Make the folders of a submission, and lock its run folder while the context lasts.

    The lock keeps other submissions out of the run folder. If an earlier submit command was killed before it
    recorded its job in the folder, the job gets its record now.

    Yields:
        The submission with its run folder and the commit of its code; the descriptor of the lock file.

    Raises:
        SlurmError: Slurm does not say whether it has a job of the run folder.
        BudgetError: The jobs may take more than a budget has left.
        DocumentError: A folder can't be made, another user can write into the run folder, or another job has
            begun to use the run folder since the review.
    """
    refuse_past_budget(submission, environment)
    run_dir = submission.run_dir
    if not run_dir:  # a finished script gets its run folder here
        name = f"{run_name(submission.record.name)}-{new_key()}"
        run_dir = run_index.index_file(environment).parent / "runs" / name
    make_log_folders(submission, note)
    run_folder.make_run_folder(run_dir)
    record = submission.record
    record = replace(record, code=record.code or code_in(Path(record.folder)))
    note_waiting = partial(note, f"note: another sbatchgen is submitting into {run_dir}: waiting for it")
    locked = files.locked(run_dir / run_folder.LOCK_FILE, run_folder.MAX_LOCK_WAIT_S, note_waiting)
    with run_folder.only_owner_writes(), locked as lock:
        if pending := records.read_submitting(run_dir):
            _settle_pending_record(run_dir, pending, environment)
        if submission.find_conflict and (problem := submission.find_conflict()):
            raise DocumentError([problem])
        yield replace(submission, run_dir=run_dir, record=record), lock


def _settle_pending_record(run_dir: Path, pending: Record, environment: Mapping[str, str]) -> None:
    """Complete the record that a killed submit command has left, or remove it.

    If Slurm has accepted the job, the record gets the job's id, and the script is kept. If Slurm has no such
    job, the record is removed.
    """
    for cluster in pending.cluster.split(","):
        if job := find_job(pending.key, environment, cluster=cluster):
            with contextlib.suppress(OSError):  # the record matters more than the script
                script = run_dir / (Path(pending.script).name or submitted_scripts.NEWEST_SCRIPT)
                text = files.read_own(script, submitted_scripts.MAX_BYTES)
                submitted_scripts.keep_script(run_dir, str(job.base_id), text)
            records.write_accepted(run_dir, replace(pending, job=str(job.base_id), cluster=cluster))
            return
    records.remove_submitting(run_dir)


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

    sbatch gets further `options`, such as a dependency, and the script gets `arguments`. With `keep_env`,
    sbatch also gets the user's SBATCH_* and SLURM_* variables. sbatch holds the descriptor `lock` open until
    it has ended. Without a `key`, the submission gets a new key.

    Raises SlurmError if Slurm refuses or does not answer, OSError if the run folder can't be written.
    """
    sbatch_environment, removed = (
        (dict(environment), []) if keep_env else client.submit_environment(environment)
    )
    if removed:
        names = ", ".join(removed)
        note(f"note: removed from the environment of sbatch, because they would change the job: {names}")
    run_dir = submission.run_dir
    assert run_dir  # noqa: S101 - `reserve_run_folder` has made it
    record = replace(submission.record, key=key or new_key(), submitted=time.time())
    record = replace(record, surroundings=surroundings_checksum(submission, environment))
    debit = _debit(record.key, submission, (*submission.options, *options), sbatch_environment)
    option = submission.option_sources.get("clusters")
    clusters = sbatch_environment.get("SBATCH_CLUSTERS") or (option.value if option else "")
    files.put(run_dir / submission.name, submission.script, mode=files.PRIVATE)
    # The first job of a chain or a sweep makes the snapshot, which the later jobs also use.
    snapshot = submission.snapshot
    new_snapshot = snapshot if snapshot and not snapshot.copy_folder.exists() else None
    if new_snapshot:
        new_snapshot.copy()
    entry = IndexEntry(index, record, run_dir, note)
    record = replace(record, run=entry.name)
    with (
        _undone_on_failure(entry, debit, run_dir, new_snapshot, note),
        private_script(submission.script, submission.name, record.key) as script,
    ):
        if debit:
            debit.enter()
        records.write_submitting(run_dir, replace(record, cluster=clusters))
        command = ("sbatch", "--parsable", *submission.options, *options, str(script))
        error_of = partial(refusal_error, submission.option_sources)
        accepted = call_sbatch(
            command, sbatch_environment, error_of, note, arguments=arguments, clusters=clusters, lock=lock
        )
    if debit:
        debit.update_or_remove(job=accepted.job)
    entry.change(Index.accept, accepted.job, accepted.cluster)
    record = replace(record, job=accepted.job, cluster=accepted.cluster)
    _keep_script_and_record(run_dir, submission.script, record, note)
    shown_starts.keep_submission(environment, record)
    return SubmittedRun(accepted, record, run_dir, is_in_index=entry.index is not None)


def _keep_script_and_record(run_dir: Path, script: bytes, record: Record, note: Note) -> None:
    """Keep the script and the record of a submitted job in its run folder."""
    job_place = f"of job {record.job} in {run_dir}"
    try:  # The script comes first, so that a killed command never leaves a record without its script.
        with _errors_as_notes(f"can't keep the script {job_place}", note):
            submitted_scripts.keep_script(run_dir, record.job, script)
    finally:
        with _errors_as_notes(f"can't keep the record {job_place}", note):
            records.write_accepted(run_dir, record)


@contextlib.contextmanager
def _undone_on_failure(
    entry: IndexEntry, debit: Debit | None, run_dir: Path, new_snapshot: Snapshot | None, note: Note
) -> Iterator[None]:
    """Remove the charge, the record, the index entry and the snapshot of a job that Slurm did not accept.

    If Slurm may have accepted the job, they stay, and the index marks the job as lost.
    """
    try:
        yield
    except (LostError, KeyboardInterrupt) as error:  # Slurm may have accepted the job
        entry.change(Index.mark_lost)
        if isinstance(error, KeyboardInterrupt):
            note("note: the job may have been submitted: sbatchgen status shows whether it is in the queue")
        raise
    except BaseException:
        if debit:
            debit.update_or_remove()  # without fields, it removes the charge
        records.remove_submitting(run_dir)
        entry.change(Index.remove)
        if new_snapshot:
            shutil.rmtree(new_snapshot.copy_folder, ignore_errors=True)
        raise


@contextlib.contextmanager
def _errors_as_notes(what: str, note: Note) -> Iterator[None]:
    """Print an error of a file as a note, because the job is already submitted."""
    try:
        yield
    except OSError as error:
        note(f"note: {what}: {error.strerror}")


def open_index(environment: Mapping[str, str], note: Note) -> Index | None:
    """Return the index of runs; None if it can't be opened, because a job can be submitted without it."""
    with _errors_as_warnings(note):
        return Index(run_index.index_file(environment), note)
    return None


@contextlib.contextmanager
def _errors_as_warnings(note: Note) -> Iterator[None]:
    """Print an error of the index as a warning, because a job can be submitted without the index."""
    try:
        yield
    except DocumentError as error:
        for problem in error.problems:
            note(f"warning: {problem.what}")
            note(f"  fix: {problem.fix}")


class IndexEntry:
    """The entry of a submission in the index of runs.

    If the index can't be used, no method does anything, and the run has the name of its job.
    """

    def __init__(self, index: Index | None, record: Record, run_dir: Path, note: Note) -> None:
        self.index: Index | None = None  # None if the index can't be used
        self.name, self._key, self._note = run_name(record.name), record.key, note
        with _errors_as_warnings(note):
            if index:
                self.name = index.begin(record.key, run_dir, self.name, shared=record.shared).name
                self.index = index

    def change(self, method: Callable[..., None], *values: str) -> None:
        """Call a method of the index that changes this entry, such as `Index.accept`, with its values."""
        with _errors_as_warnings(self._note):
            if self.index:
                method(self.index, self._key, *values)


def refusal_error(options: Mapping[str, OptionSource], answer: client.Output) -> SbatchgenError:
    """Return the error that tells the user why sbatch has refused a job.

    `options` are the options of the job; the error says where the refused option was written.
    """
    if answer.status is None:
        return SlurmError.of(answer.failure, fix="try again later")
    names_no_limit = _GENERAL_MESSAGE.search(answer.err) and not _LIMIT_NAME.search(answer.err)
    may_be_job_count = names_no_limit or _JOB_COUNT_LIMIT.search(answer.err)
    error_type = TooManyJobsError if may_be_job_count else SlurmError
    return error_type(row.problem for row in refusals(answer.status, answer.err or answer.out, options))


def make_log_folders(submission: Submission, note: Note) -> None:
    """Make the folders of the job's logs, because Slurm before 23.02 does not make them.

    Raises DocumentError if a folder can't be made; prints a note if it can't be written.
    """
    for log_folder in submission.log_folders:
        if log_folder == submission.run_dir:
            continue
        try:
            log_folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            what = f"can't make the folder {log_folder}: {error.strerror}"
            raise DocumentError.of(what, fix="name a folder that you can write into: --output") from error
        is_dev = log_folder == Path("/dev")  # a job may write to /dev/null, although /dev is not writable
        if not is_dev and not os.access(log_folder, os.W_OK | os.X_OK):
            why = "a job that can't write its log fails without a message"
            note(f"note: can't write into {log_folder}: {why}")
