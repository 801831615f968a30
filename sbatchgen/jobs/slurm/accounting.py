"""Asks sacct(1) for jobs in Slurm's database, also for jobs that ended long ago.

Callers ask queue.py first, because not every site has a database, and the controller knows more about a job
that has not ended.
"""

import os
import re
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone

from sbatchgen.base.frozen import frozen
from sbatchgen.base.units import Memory
from sbatchgen.jobs.slurm.client import cluster_option, query
from sbatchgen.jobs.slurm.fields import read_count, gpus_in_tres, read_limit, read_pairs, read_seconds, read_text, read_time
from sbatchgen.jobs.slurm.queue import SlurmJob, as_job, folder_name, rows, separator
from sbatchgen.jobs.slurm.state import state

# Fields of sacct --format, by our names. All releases since 20.11 have them, SubmitLine since 21.08.
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
# --noconvert leaves MaxRSS in bytes, and the memory of a TRES in MiB (sacct/print.c).
_USAGE_FIELDS = _COMMON_FIELDS | {
    "tres": "AllocTRES",
    "tasks": "NTasks",
    "memory": "MaxRSS",
    "cpu": "TotalCPU",
}
_ANY_JOB_FIELDS = _FIELDS | {"user": "User", "name": "JobName", "folder": "WorkDir", "submit_time": "Submit"}
_FIELDS_KEPT_BY_REQUEUE = ("user", "name", "folder", "submitted")
REQUEUED = "put back into the queue"  # in words, how a start ends by `scontrol requeue`
_NO_SUBMIT_LINE = re.compile(r"Invalid field requested:? *\"?SubmitLine")  # Slurm has the field since 21.08
_UNREACHABLE = re.compile(r"accounting storage is disabled|Problem talking to the database")


@frozen(kw_only=True)
class JobUsage:
    """The resources that a job had and used from one start to its end; None for unknown values."""

    job: str = ""  # the id of the job, or of the whole array
    task: str = ""  # the index of the task if the job is an array: "3"
    used_s: int = 0  # the seconds that the job ran
    limit_s: int | None = None  # the time limit
    nodes: int = 1  # allocated nodes
    cpus: int | None = None  # allocated CPUs on all nodes
    gpus: int | None = None  # allocated GPUs on all nodes; None if Slurm does not count them
    memory_mib: int | None = None  # allocated memory of each node
    cpu_s: int | None = None  # CPU time of all processes that have ended
    # The largest use on a node, if all its tasks had their largest use at the same time
    memory_bytes: int | None = None


def accounting(
    jobs: Mapping[str, str], since: datetime, environment: Mapping[str, str], *, cluster: str = ""
) -> list[SlurmJob] | None:
    """Return these jobs of the user; None if no database answers; raise SlurmError if sacct fails.

    `jobs` has ids, each with the key of its submission, because other jobs may have had the same id. Jobs
    that ended before `since` are excluded. A requeued job has the state of its last start.
    """
    options = [*cluster_option(cluster), "--allocations", "--duplicates"]
    printed = _rows(jobs, since, environment, _FIELDS, options)
    if printed is None:
        return None
    starts_by_id: dict[str, list[dict[str, str]]] = {}
    for row in printed:
        if row["state"] != "RESIZING":  # a job that is resized continues the same start with other nodes
            starts_by_id.setdefault(row["id"], []).append(row)
    return [_job(starts) for starts in starts_by_id.values()]


def any_accounting(
    ids: Sequence[str], environment: Mapping[str, str]
) -> list[tuple[SlurmJob, Mapping[str, str]]] | None:
    """Return the newest jobs with these ids, of any user, each with the fields `_ANY_JOB_FIELDS` of its row.

    Return None if no database answers; raise SlurmError if sacct fails.
    """
    epoch = datetime.fromtimestamp(86400, timezone.utc)  # a day later, so that no time zone leads before 1970
    options = ["--allocations", "--duplicates"]
    printed = _rows(dict.fromkeys(ids, ""), epoch, environment, _ANY_JOB_FIELDS, options)
    if printed is None:
        return None
    starts_by_id: dict[str, list[dict[str, str]]] = {}
    for row in printed:
        starts = starts_by_id.setdefault(row["id"], [])
        if starts and any(starts[-1].get(name) != row.get(name) for name in _FIELDS_KEPT_BY_REQUEUE):
            starts.clear()  # the earlier rows belong to another job that had this id
        starts.append(row)
    return [(_job(starts), starts[-1]) for starts in starts_by_id.values()]


def _job(starts: Sequence[Mapping[str, str]]) -> SlurmJob:
    """Return a job from the rows of its starts, the oldest first."""
    row, before = starts[-1], ""
    if len(starts) > 1:
        end, nodes = state(starts[-2]["state"]), read_text(starts[-2]["node_list"])
        before = (REQUEUED if end.name == "REQUEUED" else end.words) + f" ({nodes})" * bool(nodes)
    return as_job(
        row,
        used_s=read_count(row["used"]),
        limit_s=_limit_s(row),
        restarts=len(starts) - 1,
        before=before,
        cancelled_by=read_limit(row["state"].partition(" by ")[2]),
        eligible=read_time(row["eligible"]),
    )


def usage(
    jobs: Mapping[str, str], since: datetime, environment: Mapping[str, str], *, cluster: str = ""
) -> list[JobUsage] | None:
    """Return the allocated and used resources of every start of these jobs that has run.

    The arguments, and the cases of None and SlurmError, are those of `accounting`.
    """
    options = [*cluster_option(cluster), "--duplicates", "--noconvert"]
    printed = _rows(jobs, since, environment, _USAGE_FIELDS, options)
    if printed is None:
        return None
    starts_with_steps: list[tuple[dict[str, str], list[dict[str, str]]]] = []
    for row in printed:  # a start, and after it its Slurm steps, such as 4711.0
        if "." not in row["id"]:
            starts_with_steps.append((row, []))
        elif starts_with_steps:
            _, steps = starts_with_steps[-1]
            steps.append(row)
    return [_usage(start, steps) for start, steps in starts_with_steps if read_count(start["used"])]


def _rows(
    jobs: Mapping[str, str],
    since: datetime,
    environment: Mapping[str, str],
    fields: Mapping[str, str],
    options: Sequence[str],
) -> list[dict[str, str]] | None:
    """Return the rows of sacct for these jobs, by our names of fields; None if no database answers.

    `options` are further options of sacct. Rows of other submissions with the same ids are excluded.
    """
    if not jobs:
        return []
    delimiter = separator()
    user = [f"--user={os.geteuid()}"] if all(jobs.values()) else []  # the key "" stands for anybody's job
    arguments = [f"--jobs={','.join(jobs)}", *user, *options]
    arguments += [f"--starttime={since.astimezone():%Y-%m-%dT%H:%M:%S}", "--noheader", "--parsable"]
    arguments += [f"--delimiter={delimiter}", f"--format={','.join(fields.values())}"]
    answer = query(["sacct", *arguments], environment)
    if answer.status and _NO_SUBMIT_LINE.search(answer.err):
        fewer_fields = {name: field for name, field in fields.items() if name != "submitted"}
        return _rows(jobs, since, environment, fewer_fields, options)
    if answer.status is None or _UNREACHABLE.search(answer.err):
        return None
    if answer.failure:
        raise answer.error
    is_wanted, chosen = False, []
    for row in rows(answer.out, delimiter, [*fields]):
        if "." not in row["id"]:  # a job; its Slurm steps follow, and are chosen with it
            id_, submit_line = row["id"], row.get("submitted", "")
            key = jobs.get(id_, jobs.get(re.split(r"[_+]", id_)[0]))
            has_key = key is not None and (not key or folder_name(key) in submit_line)
            is_wanted = not submit_line or has_key
        chosen += [row] if is_wanted else []
    return chosen


def _limit_s(row: Mapping[str, str]) -> int | None:
    minutes = read_limit(row["limit"])
    return None if minutes is None else 60 * minutes


def _usage(start: Mapping[str, str], steps: Sequence[Mapping[str, str]]) -> JobUsage:
    """Return the usage of a start from its row and the rows of its Slurm steps."""
    tres = read_pairs(start["tres"].split(","))
    nodes = max(read_count(start["nodes"]), 1)
    try:
        mib_on_node = Memory.parse(tres["mem"]) // nodes
    except ValueError:
        mib_on_node = 0
    bytes_by_step = {}  # memory on a node: the memory of the largest task, times the most tasks on a node
    for step in steps:
        tasks_on_node = -(-read_count(step["tasks"]) // max(read_count(step["nodes"]), 1))
        bytes_by_step[step["id"]] = read_count(step["memory"]) * max(tasks_on_node, 1)
    # The script's own step, JOB.batch, runs beside all others. Other steps may run one after the other.
    batch = sum(size for step, size in bytes_by_step.items() if step.endswith(".batch"))
    largest = max((size for step, size in bytes_by_step.items() if not step.endswith(".batch")), default=0)
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
        memory_bytes=batch + largest or None,
    )
