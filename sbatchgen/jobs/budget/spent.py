"""Replaces the charges of ended jobs in the ledger by the use that squeue and sacct report.

Without a report, a charge stays: it is the most that the job may have taken.
"""

import contextlib
import time
from collections.abc import Mapping, Sequence
from datetime import datetime

from sbatchgen.base.errors import SlurmError
from sbatchgen.check.sbatch.array import indices
from sbatchgen.jobs.budget import ledger
from sbatchgen.jobs.budget.allowance import allowances
from sbatchgen.jobs.budget.ledger import Charge, Charges, Standing
from sbatchgen.jobs.slurm import accounting
from sbatchgen.jobs.slurm.accounting import JobUsage
from sbatchgen.jobs.slurm.queue import SlurmJob, key_of, squeue_jobs

MAX_SUBMIT_S = 900.0  # a submission that has no id after so many seconds has failed


def standings(environment: Mapping[str, str]) -> list[Standing]:
    """Return what is left of each budget that applies, after asking Slurm which jobs have ended."""
    if not (limits := allowances(environment)):
        return []
    with ledger.locked_charges() as charges:
        update_ended(charges, environment)
        return [ledger.standing_of_budget(file, allowance, charges) for file, allowance in limits.items()]


def update_ended(charges: Charges, environment: Mapping[str, str]) -> None:
    """Replace the charges of ended jobs by the use that Slurm reports; keep the others.

    The charges stay unchanged if Slurm does not answer.
    """
    with contextlib.suppress(SlurmError):
        rows_by_key = _rows_of_squeue(environment)
        _enter_ids_and_ends(charges, rows_by_key)
        ended = {
            charge.job: charge
            for charge in charges.values()
            if charge.job and not charge.tasks_at_once and not charge.is_reported
        }
        if not ended:
            return
        since = datetime.fromtimestamp(min(charge.submitted for charge in ended.values()) - 3600).astimezone()
        keys = {job: charge.key for job, charge in ended.items()}
        all_rows = accounting.sacct_jobs(keys, since, environment)
        all_starts = accounting.job_usages(keys, since, environment) if all_rows is not None else None
        for job, charge in ended.items():
            if all_starts is None or all_rows is None:  # no database answers
                rows, starts = _use_by_controller(rows_by_key.get(charge.key, []))
            else:
                rows = [row for row in all_rows if str(row.base_id) == job]
                starts = [start for start in all_starts if start.job == job]
            if not _is_complete(rows, rows_by_key.get(charge.key, []), charge.tasks):
                continue
            charges[charge.key] = _with_use(charge, starts)


def _rows_of_squeue(environment: Mapping[str, str]) -> dict[str, list[SlurmJob]]:
    """Return squeue's rows of all jobs, by the keys of their submissions; raises SlurmError."""
    rows_by_key: dict[str, list[SlurmJob]] = {}
    for row in squeue_jobs(environment):
        rows_by_key.setdefault(key_of(row.command), []).append(row)
    return rows_by_key


def _enter_ids_and_ends(charges: Charges, rows_by_key: Mapping[str, Sequence[SlurmJob]]) -> None:
    """Enter missing ids of jobs into the charges, and set `tasks_at_once` of ended jobs to 0."""
    for key, charge in charges.items():
        rows = rows_by_key.get(key, [])
        job = charge.job or (str(rows[0].base_id) if rows else "")
        was_submitted_or_failed = bool(job) or time.time() > charge.submitted + MAX_SUBMIT_S
        has_ended = was_submitted_or_failed and all(row.state.ended for row in rows)
        charges[key] = charge._replace(job=job, tasks_at_once=0 if has_ended else charge.tasks_at_once)


def _is_complete(rows: Sequence[SlurmJob], queue_rows: Sequence[SlurmJob], tasks: int) -> bool:
    """Return whether sacct's rows of a job have the ends of all its tasks.

    slurmdbd learns of a task later than the controller. Until then, sacct shows a task of a cancelled array
    as if it had never run, in a row such as 4711_[0-9]. So each task that ran, as squeue shows, must have its
    own row.
    """
    ran = {row.task for row in queue_rows if row.used_s}
    has_all = _count_tasks(rows) >= tasks and ran <= {row.task for row in rows}
    return has_all and all(row.state.ended for row in rows)


def _use_by_controller(rows: list[SlurmJob]) -> tuple[list[SlurmJob], list[JobUsage]]:
    """Return squeue's rows of a job and their starts, if no database answers.

    Return nothing for a job that was requeued, because squeue does not show its earlier starts.
    """
    rows = [] if any(row.restarts for row in rows) else rows
    return rows, [JobUsage(used_s=row.used_s) for row in rows]


def _count_tasks(rows: Sequence[SlurmJob]) -> int:
    """Return how many tasks have these rows; a row such as 4711_[0-9] has several."""
    return sum(sum(map(len, indices(row.task) or ())) or 1 for row in rows)


def _with_use(charge: Charge, starts: Sequence[JobUsage]) -> Charge:
    """Return a charge with the hours that the starts of its job took by Slurm's report."""
    gpu_s = sum((charge.gpus if start.gpus is None else start.gpus) * start.used_s for start in starts)
    cpu_s = sum((charge.cpus if start.cpus is None else start.cpus) * start.used_s for start in starts)
    return charge._replace(gpu_hours=gpu_s / 3600, cpu_hours=cpu_s / 3600, is_reported=True)
