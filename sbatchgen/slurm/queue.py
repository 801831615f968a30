"""The jobs that Slurm's controller knows: those that wait or run, and those that ended a few minutes ago.

How long an ended job stays is the site's MinJobAge (slurm.conf(5)), 5 minutes by default; accounting.py asks
for older ones.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from sbatchgen.slurm import slurm_job
from sbatchgen.slurm.command import of_cluster, query
from sbatchgen.slurm.printed import count, seconds, text
from sbatchgen.slurm.slurm_job import SlurmJob
from sbatchgen.slurm.submission import key_of

# Fields of squeue --Format in all releases since 20.11.
_FIELDS = {
    "id": "JobArrayID",
    "state": "State",
    "reason": "Reason",
    "start": "StartTime",
    "end": "EndTime",
    "used": "TimeUsed",
    "limit": "TimeLimit",
    "nodes": "NumNodes",
    "node_list": "NodeList",
    "exit_status": "exit_code",
    "restarts": "RestartCnt",
    "command": "Command",
}
_NONE_KNOWN = re.compile(r"^slurm_load_jobs error: Invalid job id specified$", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class JobInQueue(SlurmJob):
    """A job as squeue knows it; `start` and `end` are what Slurm expects of one that waits or runs.

    Attributes:
        restarts: How often it was requeued.
        command: The path of its script; "" if it came from stdin. What is not UTF-8 in it is replaced.
    """

    restarts: int
    command: str


def queue(
    environment: Mapping[str, str], jobs: Iterable[int | str] | None = None, *, cluster: str = ""
) -> list[JobInQueue]:
    """These jobs, or all of the user, the newest last; those that the controller does not know are left out.

    They are of the cluster, or of that of this machine.

    Raises:
        SlurmError: squeue can't be started, does not end in time, or fails.
    """
    ids = None if jobs is None else ",".join(map(str, jobs))
    if ids == "":
        return []
    whose = "--me" if ids is None else f"--jobs={ids}"
    between = slurm_job.separator()
    fields = ",".join(f"{field}:{between}" for field in _FIELDS.values())
    arguments = [
        "squeue",
        *of_cluster(cluster),
        "--all",
        "--states=all",
        whose,
        "--noheader",
        f"--Format={fields}",
    ]
    answer = query(arguments, environment)
    if answer.status and _NONE_KNOWN.search(answer.err):
        return []
    if answer.failure:
        raise answer.error
    found = (_job(row) for row in slurm_job.rows(answer.out, between, [*_FIELDS]))
    return sorted(found, key=lambda one: one.job)


def find(key: str, environment: Mapping[str, str], *, cluster: str = "") -> JobInQueue | None:
    """The job of a submission of ours, by its key (submission.py).

    Raises:
        SlurmError: See `queue`.
    """
    return next((one for one in queue(environment, cluster=cluster) if key_of(one.command) == key), None)


def _job(row: Mapping[str, str]) -> JobInQueue:
    return JobInQueue(
        **slurm_job.common(row),
        used_s=seconds(row["used"]) or 0,
        limit_s=seconds(row["limit"]),
        restarts=count(row["restarts"]),
        command=text(row["command"]),
    )
