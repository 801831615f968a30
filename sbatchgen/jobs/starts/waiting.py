"""Slurm's plans for the user's waiting jobs, with the jobs that are ahead of them in the queue."""

import os
from collections.abc import Iterator, Mapping, Sequence

from sbatchgen.base.quoting import counted
from sbatchgen.jobs.resolved.resolved_job import ResolvedJob
from sbatchgen.jobs.slurm.client import answer_if_any
from sbatchgen.jobs.slurm.fields import count
from sbatchgen.jobs.starts.moment import ClusterMoment, QueuedJob
from sbatchgen.jobs.starts.prospect import Prospect, iso

# The terms of a priority, by the letters of sprio --format
_TERMS = {"A": "age", "F": "fair share", "J": "size", "P": "partition", "Q": "QOS"}


def plans_of_waiting_jobs(
    job: ResolvedJob, moment: ClusterMoment, environment: Mapping[str, str]
) -> Iterator[Prospect]:
    """Yield a row for each waiting job of the user that has the name of `job`, with Slurm's plan for it."""
    pending = [other for other in moment.jobs if other.state == "PENDING" and other.user == os.getuid()]
    pending = [other for other in pending if other.name == job.options.job_name]
    terms = _terms(moment, environment) if pending and not moment.is_late else {}
    for waiting in pending:
        planned = waiting.start if waiting.planned_nodes else None
        id_, time_s = waiting.id, None
        if waiting.end and waiting.start:
            time_s = int((waiting.end - waiting.start).total_seconds())
        where = f"Slurm plans its start for job {id_}" if planned else f"job {id_} has no planned start"
        reason = f" ({waiting.reason})" if waiting.reason not in ("Priority", "Resources", "None") else ""
        yield Prospect(
            kind="plan",
            partition=",".join(waiting.partitions),
            nodes=waiting.nodes,
            gpus=waiting.gpus,
            time_s=time_s,
            start=iso(planned) if planned else None,
            end=iso(waiting.end) if planned and waiting.end else None,
            gpu_hours=round(waiting.gpus * (time_s or 0) / 3600, 2),
            says=f"{where}{reason}; {jobs_ahead(waiting, moment)}{terms.get(id_.partition('_')[0], '')}",
            job=id_,
        )


def _terms(moment: ClusterMoment, environment: Mapping[str, str]) -> dict[str, str]:
    """Return in words the terms of each job's priority, by the ids of the user's jobs, from sprio.

    Return nothing if Slurm does not compute priorities from terms.
    """
    if not moment.settings.get("PriorityType", "").endswith("multifactor"):
        return {}
    form = "%i %r " + " ".join(f"%{letter}" for letter in _TERMS)
    printed = answer_if_any(["sprio", "--noheader", f"--user={os.getuid()}", f"--format={form}"], environment)
    rows = [line.split() for line in (printed or "").splitlines()]
    partitions: dict[str, dict[str, list[str]]] = {}  # by job and its terms in words: a row is of a partition
    for job, partition, *values in (row for row in rows if len(row) > 1):
        named = [(name, count(value)) for name, value in zip(_TERMS.values(), values, strict=False)]
        shown = ", ".join(f"{name} {value}" for name, value in named if value)
        partitions.setdefault(job, {}).setdefault(shown, []).append(partition)
    return {job: _terms_as_text(of_terms) for job, of_terms in partitions.items()}


def _terms_as_text(partitions: Mapping[str, Sequence[str]]) -> str:
    """Return the terms of a job's priority in words, by its `partitions` if they differ; "" without terms."""
    if len(partitions) == 1:
        return "".join(f"; its priority is of {shown}" for shown in partitions if shown)
    texts = [f"of {shown or 'nothing'} in {', '.join(names)}" for shown, names in partitions.items()]
    return f"; its priority is {'; '.join(texts)}"


def jobs_ahead(job: QueuedJob, moment: ClusterMoment) -> str:
    """Return in words how many waiting jobs are ahead of a job in its partitions, and their GPUs."""
    before = [
        other
        for other in moment.jobs
        if other.waits_for_nodes and other.rank < job.rank and {*other.partitions} & {*job.partitions}
    ]
    jobs, gpus = sum(other.tasks for other in before), sum(other.gpus * other.tasks for other in before)
    return f"ahead of it wait {counted(jobs, 'job')} with {counted(gpus, 'GPU')}"
