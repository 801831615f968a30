"""Slurm's plan of jobs that wait, and what is ahead of them."""

import os
from collections.abc import Iterator, Mapping

from sbatchgen.base.quoting import counted
from sbatchgen.jobs.resolved.resolved_job import ResolvedJob
from sbatchgen.jobs.slurm.client import answer_if_any
from sbatchgen.jobs.slurm.fields import count
from sbatchgen.jobs.starts.moment import ClusterMoment, QueuedJob
from sbatchgen.jobs.starts.prospect import Prospect, iso

_TERMS = {"A": "age", "F": "fair share", "J": "size", "P": "partition", "Q": "QOS"}  # by letters of sprio


def plans(job: ResolvedJob, moment: ClusterMoment, environment: Mapping[str, str]) -> Iterator[Prospect]:
    """Yield Slurm's plan of the user's jobs of this name that wait, and what is ahead of each."""
    waiting = [each for each in moment.jobs if each.state == "PENDING" and each.name == job.options.job_name]
    waiting = [each for each in waiting if each.user == os.getuid()]
    terms = _terms(moment, environment) if waiting and not moment.is_late else {}
    for each in waiting:
        planned = each.start if each.planned else None
        time_s = int((each.end - each.start).total_seconds()) if each.end and each.start else None
        where = (
            f"Slurm plans its start for job {each.id}" if planned else f"job {each.id} has no planned start"
        )
        reason = f" ({each.reason})" if each.reason not in ("Priority", "Resources", "None") else ""
        yield Prospect(
            kind="plan",
            partition=",".join(each.partitions),
            nodes=each.nodes,
            gpus=each.gpus,
            time_s=time_s,
            start=iso(planned) if planned else None,
            end=iso(each.end) if planned and each.end else None,
            gpu_hours=round(each.gpus * (time_s or 0) / 3600, 2),
            says=f"{where}{reason}; {ahead(each, moment)}{terms.get(each.id.partition('_')[0], '')}",
            job=each.id,
        )


def _terms(moment: ClusterMoment, environment: Mapping[str, str]) -> dict[str, str]:
    """Return what the priority of each job of the user's is made of; nothing where Slurm computes none."""
    if not moment.settings.get("PriorityType", "").endswith("multifactor"):
        return {}
    form = "%i " + " ".join(f"%{letter}" for letter in _TERMS)
    printed = answer_if_any(["sprio", "--noheader", f"--user={os.getuid()}", f"--format={form}"], environment)
    terms: dict[str, str] = {}
    for job, *values in map(str.split, (printed or "").splitlines()):
        named = [(name, count(value)) for name, value in zip(_TERMS.values(), values, strict=False)]
        shown = ", ".join(f"{name} {value}" for name, value in named if value)
        terms[job] = f"; its priority is of {shown}" if shown else ""
    return terms


def ahead(job: QueuedJob, moment: ClusterMoment) -> str:
    """Return how many waiting jobs go before a job, and their GPUs."""
    before = [
        each
        for each in moment.jobs
        if each.waits_for_nodes and each.rank < job.rank and {*each.partitions} & {*job.partitions}
    ]
    gpus = sum(each.gpus * each.tasks for each in before)
    return (
        f"ahead of it wait {counted(sum(each.tasks for each in before), 'job')} with {counted(gpus, 'GPU')}"
    )
