"""Asks sacct(1) for jobs in Slurm's database, also for jobs that ended long ago.

Callers ask `queue` first, because not every site has a database, and because the controller knows more about
a job that has not ended. For a requeued job, the database has one row for each of its starts.
"""

import os
import re
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone

from sbatchgen.base.frozen import frozen
from sbatchgen.base.units import Memory
from sbatchgen.jobs.slurm.client import cluster_option, query
from sbatchgen.jobs.slurm.fields import (
    gpus_in_tres,
    read_count,
    read_limit,
    read_pairs,
    read_seconds,
    read_text,
    read_time,
)
from sbatchgen.jobs.slurm.queue import SlurmJob, folder_prefix, job_of_row, new_separator, table_rows
from sbatchgen.jobs.slurm.state import state_named

# Our name of a field -> its name in `sacct --format`. All releases since 20.11 have these fields, but only
# releases since 21.08 have SubmitLine.
_COMMON_FIELDS = {
    "id": "JobID",
    "used": "ElapsedRaw",
    "limit": "TimelimitRaw",
    "nodes": "NNodes",
    "submitted": "SubmitLine",
}
_FIELDS = _COMMON_FIELDS | {
    "state": "State",
    "reason": "Reason",
    "start": "Start",
    "end": "End",
    "node_list": "NodeList",
    "exit_status": "ExitCode",
    "eligible": "Eligible",
}
# With --noconvert, sacct prints MaxRSS in bytes and the memory of AllocTRES in MiB (sacct/print.c).
_USAGE_FIELDS = _COMMON_FIELDS | {
    "tres": "AllocTRES",
    "tasks": "NTasks",
    "memory": "MaxRSS",
    "cpu": "TotalCPU",
}
_ANY_JOB_FIELDS = _FIELDS | {"user": "User", "name": "JobName", "folder": "WorkDir", "submit_time": "Submit"}
_FIELDS_KEPT_BY_REQUEUE = ("user", "name", "folder", "submitted")  # equal in all starts of the same job
REQUEUED = "put back into the queue"  # how a start ended, in words, if `scontrol requeue` ended it
# The error of sacct before 21.08: 'sacct: error: Invalid field requested: "SubmitLine"'
_NO_SUBMIT_LINE = re.compile(r"Invalid field requested:? *\"?SubmitLine")
_NO_DATABASE = re.compile(r"accounting storage is disabled|Problem talking to the database")


@frozen(kw_only=True)
class JobUsage:
    """The resources that one start of a job had and used; None for unknown values."""

    job: str = ""  # the id of the job, or of the whole array
    task: str = ""  # the index of the task if the job is an array: "3"
    used_s: int = 0  # how many seconds the job ran
    limit_s: int | None = None  # the time limit in seconds
    nodes: int = 1  # the number of allocated nodes
    cpus: int | None = None  # allocated CPUs on all nodes together
    gpus: int | None = None  # allocated GPUs on all nodes together; None if Slurm does not count GPUs
    memory_mib: int | None = None  # allocated memory on each node
    cpu_s: int | None = None  # CPU time in seconds of all processes that have ended
    # The most memory that was in use on a node. Slurm only knows the most of each task, so this is the sum
    # for tasks that all had their most at the same time.
    memory_bytes: int | None = None


def sacct_jobs(
    jobs: Mapping[str, str], since: datetime, environment: Mapping[str, str], *, cluster: str = ""
) -> list[SlurmJob] | None:
    """Return jobs of the user from the database; None if no database answers.

    `jobs` maps the id of each job to the key of its submission, because Slurm may have given the same id to
    an older job. Jobs that ended before `since` are excluded. A requeued job has the state of its last start.
    Raises SlurmError if sacct fails.
    """
    options = [*cluster_option(cluster), "--allocations", "--duplicates"]
    rows = _sacct_rows(jobs, since, environment, _FIELDS, options)
    if rows is None:
        return None
    starts_by_id: dict[str, list[dict[str, str]]] = {}
    for row in rows:
        if row["state"] != "RESIZING":  # the row ends at a change of the job's size, and the start continues
            starts_by_id.setdefault(row["id"], []).append(row)
    return [_job_of_starts(starts) for starts in starts_by_id.values()]


def sacct_jobs_of_anyone(
    ids: Sequence[str], environment: Mapping[str, str]
) -> list[tuple[SlurmJob, Mapping[str, str]]] | None:
    """Return the newest job with each of these ids, of any user, and its row with `_ANY_JOB_FIELDS`.

    Return None if no database answers. Raises SlurmError if sacct fails.
    """
    # The second day of 1970, which is after the start of 1970 in every time zone.
    beginning = datetime.fromtimestamp(86400, timezone.utc)
    options = ["--allocations", "--duplicates"]
    rows = _sacct_rows(dict.fromkeys(ids, ""), beginning, environment, _ANY_JOB_FIELDS, options)
    if rows is None:
        return None
    starts_by_id: dict[str, list[dict[str, str]]] = {}
    for row in rows:
        starts = starts_by_id.setdefault(row["id"], [])
        if starts and any(starts[-1].get(name) != row.get(name) for name in _FIELDS_KEPT_BY_REQUEUE):
            starts.clear()  # the earlier rows belong to another job that had this id
        starts.append(row)
    return [(_job_of_starts(starts), starts[-1]) for starts in starts_by_id.values()]


def _job_of_starts(starts: Sequence[Mapping[str, str]]) -> SlurmJob:
    """Return a job from the rows of its starts, the oldest first."""
    row, last_end = starts[-1], ""
    if len(starts) > 1:
        end, nodes = state_named(starts[-2]["state"]), read_text(starts[-2]["node_list"])
        last_end = (REQUEUED if end.name == "REQUEUED" else end.words) + f" ({nodes})" * bool(nodes)
    return job_of_row(
        row,
        used_s=read_count(row["used"]),
        limit_s=_limit_s(row),
        restarts=len(starts) - 1,
        last_end=last_end,
        cancelled_by=read_limit(row["state"].partition(" by ")[2]),
        eligible=read_time(row["eligible"]),
    )


def job_usages(
    jobs: Mapping[str, str],
    since: datetime,
    environment: Mapping[str, str],
    *,
    cluster: str = "",
    with_unstarted: bool = False,
) -> list[JobUsage] | None:
    """Return the allocated and used resources of every start of these jobs that has run.

    With `with_unstarted`, the list also has jobs that have not run, with a time of 0. The other arguments are
    those of `sacct_jobs`. Like that function, this one returns None if no database answers,
    and raises SlurmError if sacct fails.
    """
    options = [*cluster_option(cluster), "--duplicates", "--noconvert"]
    rows = _sacct_rows(jobs, since, environment, _USAGE_FIELDS, options)
    if rows is None:
        return None
    starts_with_steps: list[tuple[dict[str, str], list[dict[str, str]]]] = []
    for row in rows:  # the row of a start, such as 4711, is followed by its Slurm steps, such as 4711.0
        if "." not in row["id"]:
            starts_with_steps.append((row, []))
        elif starts_with_steps:
            _, steps = starts_with_steps[-1]
            steps.append(row)
    usages = [_usage_of_start(start, steps) for start, steps in starts_with_steps]
    return [usage for usage in usages if usage.used_s or with_unstarted]


def _sacct_rows(
    jobs: Mapping[str, str],
    since: datetime,
    environment: Mapping[str, str],
    fields: Mapping[str, str],
    options: Sequence[str],
) -> list[dict[str, str]] | None:
    """Return the rows that sacct prints for these jobs, as mappings from our names of fields.

    `jobs` maps ids to keys of submissions; the key "" stands for any job with the id, of any user. Rows of
    other submissions with the same id are excluded. `options` are further options of sacct. Return None if no
    database answers.
    """
    if not jobs:
        return []
    separator = new_separator()
    user = [f"--user={os.geteuid()}"] if all(jobs.values()) else []
    arguments = [f"--jobs={','.join(jobs)}", *user, *options]
    arguments += [f"--starttime={since.astimezone():%Y-%m-%dT%H:%M:%S}", "--noheader", "--parsable"]
    arguments += [f"--delimiter={separator}", f"--format={','.join(fields.values())}"]
    answer = query(["sacct", *arguments], environment)
    if answer.status and _NO_SUBMIT_LINE.search(answer.err):
        fewer_fields = {name: field for name, field in fields.items() if name != "submitted"}
        return _sacct_rows(jobs, since, environment, fewer_fields, options)
    if answer.status is None or _NO_DATABASE.search(answer.err):
        return None
    if answer.failure:
        raise answer.error
    is_wanted, wanted_rows = False, []
    for row in table_rows(answer.out, separator, [*fields]):
        if "." not in row["id"]:  # a job; the rows of its Slurm steps follow, and are wanted with the job
            id_, submit_line = row["id"], row.get("submitted", "")
            key = jobs.get(id_, jobs.get(re.split(r"[_+]", id_)[0]))  # of the task "4711_3", or of "4711"
            has_key = key is not None and (not key or folder_prefix(key) in submit_line)
            is_wanted = not submit_line or has_key
        wanted_rows += [row] if is_wanted else []
    return wanted_rows


def _limit_s(row: Mapping[str, str]) -> int | None:
    """Return the time limit in seconds; None without a limit, for which sacct prints UNLIMITED."""
    minutes = read_limit(row["limit"])
    return None if minutes is None else 60 * minutes


def _usage_of_start(start: Mapping[str, str], steps: Sequence[Mapping[str, str]]) -> JobUsage:
    """Return the resources that a start had and used, from its row and the rows of its Slurm steps."""
    tres = read_pairs(start["tres"].split(","))
    nodes = max(read_count(start["nodes"]), 1)
    try:
        mib_on_node = Memory.parse(tres["mem"]) // nodes
    except ValueError:
        mib_on_node = 0
    bytes_by_step = {}  # memory on a node: the memory of the largest task, times the most tasks on a node
    for step in steps:
        tasks_on_node = -(-read_count(step["tasks"]) // max(read_count(step["nodes"]), 1))  # rounded up
        bytes_by_step[step["id"]] = read_count(step["memory"]) * max(tasks_on_node, 1)
    # The script's own step, JOB.batch, runs during all other steps, and so its memory is added. The other
    # steps may run one after the other, and so the largest counts.
    batch_bytes = sum(size for step, size in bytes_by_step.items() if step.endswith(".batch"))
    other_sizes = (size for step, size in bytes_by_step.items() if not step.endswith(".batch"))
    largest_bytes = max(other_sizes, default=0)
    job, _, task = start["id"].partition("+")[0].partition("_")
    return JobUsage(
        job=job,
        task=task,
        used_s=read_count(start["used"]),
        limit_s=_limit_s(start),
        nodes=nodes,
        cpus=read_count(tres["cpu"]) or None,
        gpus=gpus_in_tres(tres) or None,
        memory_mib=mib_on_node or None,
        cpu_s=read_seconds(start["cpu"].partition(".")[0]) or None,
        memory_bytes=batch_bytes + largest_bytes or None,
    )
