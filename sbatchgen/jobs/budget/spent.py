"""Updates the charges of ended jobs with the use that squeue and sacct report.

Without a report, a charge stays as it is.
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

LOST_S = 900.0  # seconds after which a submission without an id has failed


def standings(environment: Mapping[str, str]) -> list[Standing]:
    """Return what is left of each budget that applies, after asking Slurm for the present use."""
    if not (limits := allowances(environment)):
        return []
    with ledger.locked_charges() as charges:
        update_ended(charges, environment)
        return [ledger.standing(file, allowance, charges) for file, allowance in limits.items()]


def update_ended(charges: Charges, environment: Mapping[str, str]) -> None:
    """Replace the charges of ended jobs by the use that Slurm reports; keep the others."""
    with contextlib.suppress(SlurmError):
        rows_by_key = _clear_at_once_of_ended(charges, environment)
        ended = {
            charge.job: charge
            for charge in charges.values()
            if charge.job and not charge.at_once and not charge.known
        }
        if not ended:
            return
        since = datetime.fromtimestamp(min(charge.when for charge in ended.values()) - 3600).astimezone()
        keys = {job: charge.key for job, charge in ended.items()}
        all_rows = accounting.sacct_jobs(keys, since, environment)
        all_starts = accounting.job_usages(keys, since, environment) if all_rows is not None else None
        for job, charge in ended.items():
            if all_starts is None or all_rows is None:  # no database answers
                rows, starts = _by_controller(rows_by_key.get(charge.key, []))
            else:
                rows = [row for row in all_rows if str(row.base_id) == job]
                starts = [start for start in all_starts if start.job == job]
            if not _is_complete(rows, rows_by_key.get(charge.key, []), charge.tasks):
                continue
            charges[charge.key] = _with_use(charge, starts)


def _clear_at_once_of_ended(charges: Charges, environment: Mapping[str, str]) -> dict[str, list[SlurmJob]]:
    """Set `at_once` of ended jobs to 0; return squeue's rows of all jobs, by the keys of the submissions."""
    rows_by_key: dict[str, list[SlurmJob]] = {}
    for row in squeue_jobs(environment):
        rows_by_key.setdefault(key_of(row.command), []).append(row)
    for key, charge in charges.items():
        rows = rows_by_key.get(key, [])
        job = charge.job or (str(rows[0].base_id) if rows else "")
        was_submitted_or_failed = bool(job) or time.time() > charge.when + LOST_S
        has_ended = was_submitted_or_failed and all(row.state.ended for row in rows)
        charges[key] = charge._replace(job=job, at_once=0 if has_ended else charge.at_once)
    return rows_by_key


def _is_complete(rows: Sequence[SlurmJob], seen: Sequence[SlurmJob], tasks: int) -> bool:
    """Return whether the rows have the end of all tasks of a job.

    `seen` has squeue's rows. slurmdbd hears of a task later: until then, a cancelled array counts the task as
    one that never ran, in a row such as 4711_[0-9].
    """
    ran = {row.task for row in seen if row.used_s}
    has_all = _count_tasks(rows) >= tasks and ran <= {row.task for row in rows}
    return has_all and all(row.state.ended for row in rows)


def _by_controller(rows: list[SlurmJob]) -> tuple[list[SlurmJob], list[JobUsage]]:
    """Return squeue's rows and their starts; nothing for a requeued job, whose first starts squeue lacks."""
    rows = [] if any(row.restarts for row in rows) else rows
    return rows, [JobUsage(used_s=row.used_s) for row in rows]


def _count_tasks(rows: Sequence[SlurmJob]) -> int:
    return sum(sum(map(len, indices(row.task) or ())) or 1 for row in rows)


def _with_use(charge: Charge, starts: Sequence[JobUsage]) -> Charge:
    """Return the charge with the hours that its starts took, as Slurm has counted them."""
    gpus = sum((charge.gpus if start.gpus is None else start.gpus) * start.used_s for start in starts)
    cpus = sum((charge.cpus if start.cpus is None else start.cpus) * start.used_s for start in starts)
    return charge._replace(gpu_hours=gpus / 3600, cpu_hours=cpus / 3600, known=True)
