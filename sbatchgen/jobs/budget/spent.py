"""What ended jobs took, as squeue and sacct say. The charge of a job that neither knows is kept."""

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
from sbatchgen.jobs.slurm.queue import SlurmJob, key_of, queue

LOST_S = 900.0  # after which a submission without an id is no more on its way


def standings(environment: Mapping[str, str]) -> list[Standing]:
    """Return the rest of each budget that holds here, with the present use from Slurm."""
    if not (limits := allowances(environment)):
        return []
    with ledger.changing() as charges:
        reconcile(charges, environment)
        return [ledger.standing(file, its, charges) for file, its in limits.items()]


def reconcile(charges: Charges, environment: Mapping[str, str]) -> None:
    """Charge ended jobs with the use that Slurm reports."""
    with contextlib.suppress(SlurmError):
        seen = _free_ended(charges, environment)
        open_ = {each.job: each for each in charges.values() if each.job and not each.at_once | each.known}
        if not open_:
            return
        since = datetime.fromtimestamp(min(each.when for each in open_.values()) - 3600).astimezone()
        keys = {job: each.key for job, each in open_.items()}
        known = accounting.accounting(keys, since, environment)
        used = accounting.usage(keys, since, environment) if known is not None else None
        for job, each in open_.items():
            if used is None or known is None:
                rows, starts = _by_controller(seen.get(each.key, []))
            else:
                rows = [row for row in known if str(row.job) == job]
                starts = [start for start in used if start.job == job]
            if _tasks(rows) >= each.tasks and all(row.state.ended for row in rows):
                charges[each.key] = _charged(each, starts)


def _free_ended(charges: Charges, environment: Mapping[str, str]) -> dict[str, list[SlurmJob]]:
    """Note which jobs have ended; return the jobs that the controller knows, by their keys."""
    seen: dict[str, list[SlurmJob]] = {}
    for row in queue(environment):
        seen.setdefault(key_of(row.command), []).append(row)
    for key, each in charges.items():
        rows = seen.get(key, [])
        job = each.job or (str(rows[0].job) if rows else "")
        ended = bool(job or time.time() > each.when + LOST_S) and all(row.state.ended for row in rows)
        charges[key] = each._replace(job=job, at_once=0 if ended else each.at_once)
    return seen


def _by_controller(rows: list[SlurmJob]) -> tuple[list[SlurmJob], list[JobUsage]]:
    """Return jobs with their starts as the controller knows them: only the last start of each job."""
    rows = [] if any(row.restarts for row in rows) else rows
    return rows, [JobUsage(used_s=row.used_s) for row in rows]


def _tasks(rows: Sequence[SlurmJob]) -> int:
    return sum(sum(map(len, indices(row.task) or ())) or 1 for row in rows)


def _charged(each: Charge, starts: Sequence[JobUsage]) -> Charge:
    """Return the charge with what its starts took."""
    gpus = sum((each.gpus if its.gpus is None else its.gpus) * its.used_s for its in starts)
    cpus = sum((each.cpus if its.cpus is None else its.cpus) * its.used_s for its in starts)
    return each._replace(gpu_hours=gpus / 3600, cpu_hours=cpus / 3600, known=True)
