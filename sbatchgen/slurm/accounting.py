"""What Slurm's database keeps of jobs, also of those that ended long ago: sacct(1).

Not every site has one, and the controller knows more of a job that has not ended: ask queue.py first.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from sbatchgen.slurm import slurm_job
from sbatchgen.slurm.command import query
from sbatchgen.slurm.slurm_job import SlurmJob

# Fields of sacct --format in all releases since 20.11, and those that came with 21.08 and 24.11.
_FIELDS = {
    "id": "JobID",
    "state": "State",
    "reason": "Reason",
    "submit": "Submit",
    "start": "Start",
    "end": "End",
    "used": "ElapsedRaw",
    "limit": "TimelimitRaw",
    "nodes": "NNodes",
    "node_list": "NodeList",
    "exit_status": "ExitCode",
    "steps_exit_status": "DerivedExitCode",
    "name": "JobName",
}
_LATER_FIELDS = {"submit_line": "SubmitLine", "restarts": "Restarts"}
_UNREACHABLE = re.compile(r"accounting storage is disabled|Problem talking to the database")


@dataclass(frozen=True, kw_only=True)
class JobInAccounting(SlurmJob):
    """A job as sacct knows it; `reason` is why it waited last, also after it has started and ended.

    Attributes:
        cancelled_by: The id of the user who cancelled it; None if nobody did.
        steps_exit_code: The highest exit code of its steps.
        submit_line: The sbatch command line that submitted it; None before Slurm 21.08.
        restarts: How often it was requeued; None before Slurm 24.11.
    """

    cancelled_by: int | None
    steps_exit_code: int
    submit_line: str | None
    restarts: int | None


def accounting(
    jobs: Iterable[int | str], since: datetime, environment: Mapping[str, str], *, runs: bool = False
) -> list[JobInAccounting] | None:
    """These jobs, if they were there after that time; None if there is no database, or it does not answer.

    With `runs`, every run of a requeued job, not only the last one.

    Raises:
        SlurmError: sacct can't be started, or fails in another way.
    """
    ids = ",".join(map(str, jobs))
    if not ids:
        return []
    known = query(["sacct", "--helpformat"], environment)
    if known.status is None:
        return None
    fields = _FIELDS | {name: field for name, field in _LATER_FIELDS.items() if field in known.out.split()}
    between = slurm_job.separator()
    arguments = [
        "sacct",
        "--allocations",
        f"--jobs={ids}",
        f"--starttime={since.astimezone():%Y-%m-%dT%H:%M:%S}",
    ]
    arguments += [
        "--noheader",
        "--parsable",
        f"--delimiter={between}",
        f"--format={','.join(fields.values())}",
    ]
    answer = query([*arguments, *(["--duplicates"] if runs else [])], environment)
    if answer.status is None or _UNREACHABLE.search(answer.err):
        return None
    if answer.failure:
        raise answer.error
    return [_job(row) for row in slurm_job.rows(answer.out, between, [*fields])]


def _job(row: Mapping[str, str]) -> JobInAccounting:
    by = row["state"].partition(" by ")[2]
    minutes = row["limit"]
    return JobInAccounting(
        **slurm_job.common(row),
        used_s=slurm_job.count(row["used"]),
        limit_s=60 * int(minutes) if minutes.isdecimal() else None,
        cancelled_by=int(by) if by.isdecimal() else None,
        steps_exit_code=slurm_job.exit_status(row["steps_exit_status"])[0],
        submit_line=row.get("submit_line"),
        restarts=slurm_job.count(row["restarts"]) if "restarts" in row else None,
    )
