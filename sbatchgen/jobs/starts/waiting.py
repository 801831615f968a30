"""Tells when Slurm plans to start the user's waiting jobs, and how many jobs are ahead of them.

`when` shows a row for each waiting job that has the name of the job in question.
"""

import os
from collections.abc import Iterator, Mapping, Sequence

from sbatchgen.base.quoting import counted
from sbatchgen.jobs.resolved.resolved_job import ResolvedJob
from sbatchgen.jobs.slurm.client import answer_if_any
from sbatchgen.jobs.slurm.fields import read_count
from sbatchgen.jobs.starts.moment import ClusterMoment, QueuedJob
from sbatchgen.jobs.starts.prospect import Prospect, iso_text

# Slurm's priority of a job is a sum of terms. The letter in `sprio --format` -> the term in words.
_PRIORITY_TERMS = {"A": "age", "F": "fair share", "J": "size", "P": "partition", "Q": "QOS"}


def plans_of_waiting_jobs(
    job: ResolvedJob, moment: ClusterMoment, environment: Mapping[str, str]
) -> Iterator[Prospect]:
    """Yield a row for each waiting job of the user that has the name of `job`, with Slurm's plan for it."""
    waiting_jobs = [
        queued
        for queued in moment.jobs
        if queued.state == "PENDING" and queued.user == os.getuid() and queued.name == job.options.job_name
    ]
    priorities = _priorities_in_words(moment, environment) if waiting_jobs and not moment.is_late else {}
    for waiting in waiting_jobs:
        planned_start = waiting.start if waiting.planned_nodes else None
        id_, time_s = waiting.id, None
        if waiting.end and waiting.start:
            time_s = int((waiting.end - waiting.start).total_seconds())
        says = f"Slurm plans its start for job {id_}" if planned_start else f"job {id_} has no planned start"
        if waiting.reason not in ("Priority", "Resources", "None"):
            says += f" ({waiting.reason})"
        says += f"; {jobs_ahead(waiting, moment)}{priorities.get(id_.partition('_')[0], '')}"
        yield Prospect(
            kind="plan",
            partition=",".join(waiting.partitions),
            nodes=waiting.nodes,
            gpus=waiting.gpus,
            time_s=time_s,
            start=iso_text(planned_start) if planned_start else None,
            end=iso_text(waiting.end) if planned_start and waiting.end else None,
            gpu_hours=round(waiting.gpus * (time_s or 0) / 3600, 2),
            says=says,
            job=id_,
        )


def _priorities_in_words(moment: ClusterMoment, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the priorities of the user's waiting jobs by the jobs' ids, each as the end of a row's text.

    Such an end is "; its priority is of age 1000, QOS 500". sprio prints these terms. Return {} if Slurm does
    not compute priorities from terms.
    """
    if not moment.settings.get("PriorityType", "").endswith("multifactor"):
        return {}
    format_ = "%i %r " + " ".join(f"%{letter}" for letter in _PRIORITY_TERMS)
    command = ["sprio", "--noheader", f"--user={os.getuid()}", f"--format={format_}"]
    rows = [line.split() for line in (answer_if_any(command, environment) or "").splitlines()]
    # Job id -> its terms in words -> the partitions with these terms. sprio prints a row for each partition.
    partitions_by_terms: dict[str, dict[str, list[str]]] = {}
    for job_id, partition, *values in (row for row in rows if len(row) > 1):
        terms = zip(_PRIORITY_TERMS.values(), map(read_count, values), strict=False)
        words = ", ".join(f"{name} {value}" for name, value in terms if value)
        partitions_by_terms.setdefault(job_id, {}).setdefault(words, []).append(partition)
    return {job_id: _priority_in_words(by_terms) for job_id, by_terms in partitions_by_terms.items()}


def _priority_in_words(partitions_by_terms: Mapping[str, Sequence[str]]) -> str:
    """Return a job's priority as the end of a text, for each partition if they differ; "" without terms."""
    if len(partitions_by_terms) == 1:
        return "".join(f"; its priority is of {words}" for words in partitions_by_terms if words)
    texts = [f"of {words or 'nothing'} in {', '.join(names)}" for words, names in partitions_by_terms.items()]
    return f"; its priority is {'; '.join(texts)}"


def jobs_ahead(job: QueuedJob, moment: ClusterMoment) -> str:
    """Return in words how many waiting jobs are ahead of a job in its partitions, and their GPUs."""
    rivals = [
        other
        for other in moment.jobs
        if other.waits_for_nodes and other.rank < job.rank and {*other.partitions} & {*job.partitions}
    ]
    job_count = sum(rival.tasks for rival in rivals)
    gpu_count = sum(rival.gpus * rival.tasks for rival in rivals)
    return f"ahead of it wait {counted(job_count, 'job')} with {counted(gpu_count, 'GPU')}"
