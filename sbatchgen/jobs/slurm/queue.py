"""Asks squeue(1) for the jobs that Slurm's controller knows: they wait, run, or ended a few minutes ago.

The controller forgets a job some time after its end: MinJobAge in slurm.conf(5), by default 5 minutes. For
older jobs, `accounting` asks Slurm's database.

A job that sbatchgen submits has a key, which is part of the path of its script. squeue shows this path as the
Command of the job, so `find_job` finds a job whose id is not known.
"""

import contextlib
import re
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from sbatchgen.base import files
from sbatchgen.base.frozen import frozen
from sbatchgen.base.machine.temporary import temporary_folder, usual_place
from sbatchgen.jobs.slurm.client import cluster_option, query
from sbatchgen.jobs.slurm.fields import read_count, read_exit_status, read_seconds, read_text, read_time
from sbatchgen.jobs.slurm.state import State, state_named

# Our name of a field -> its name in `squeue --Format`. All releases since 20.11 have these fields.
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
    "dependency": "Dependency",
    "planned": "SchedNodes",
    "eligible": "EligibleTime",
}
# The error that squeue prints if the controller knows none of the jobs that --jobs names.
_NO_SUCH_JOB = re.compile(r"^slurm_load_jobs error: Invalid job id specified$", re.MULTILINE)
_ID = re.compile(r"([0-9]+)(?:_(.+)|\+[0-9]+)?")  # "4711", "4711_3", "4711_[5-9%2]" or "4711+0"
# sbatch gets each script in a new folder, such as /tmp/sbatchgen-1f9c0a2b-x7: this prefix, the key of the
# submission, and random characters.
_FOLDER_PREFIX = "sbatchgen-"
# The key "1f9c0a2b" in the path "/tmp/sbatchgen-1f9c0a2b-x7/ddp"
_KEY = re.compile(rf"(.*?)/{_FOLDER_PREFIX}([0-9a-f]+)-[^/\s]*/[^/]", re.DOTALL)


@frozen(kw_only=True)
class SlurmJob:
    """A job, a task of an array, or all waiting tasks of an array, from squeue or sacct."""

    id: str  # as Slurm's commands print and take it: "4711", "4711_3", "4711_[5-9%2]", "4711+0"
    base_id: int  # the id of the job, or of the whole array: 4711
    task: str  # the index of an array's task: "3", or "[5-9%2]" for tasks that wait; "" without an array
    state: State
    # Slurm's name of the reason why the job waits, such as "Priority"; "None" if it does not wait. sacct
    # gives the last reason why the job waited.
    reason: str
    # The start and the end in local time. For a job that has not started or ended, they are Slurm's forecast;
    # None if not known.
    start: datetime | None
    end: datetime | None
    used_s: int  # how many seconds the job has run
    limit_s: int | None  # the time limit in seconds; None if the job has no limit, or the limit is not known
    nodes: int  # the number of nodes
    node_list: str  # "n[1-4]"; "" before nodes are allocated
    exit_code: int  # the exit code of the script; 0 before the end
    signal: int  # the signal that ended the script; 0 without one
    restarts: int = 0  # how often the job was requeued
    # Of a requeued job: in words, how its start before the last one ended. Only sacct knows it.
    last_end: str = ""
    eligible: datetime | None = None  # since when no dependency, --begin or hold keeps the job from starting
    cancelled_by: int | None = None  # the id of the user who cancelled the job; only sacct knows it
    # Only squeue knows these values.
    dependency: str = ""  # the jobs that must end before: "afterok:4711(unfulfilled)"
    planned: str = ""  # the nodes on which Slurm plans to start a waiting job
    command: str = ""  # the path of the script; "" if the script came from stdin


def squeue_jobs(
    environment: Mapping[str, str], jobs: Iterable[int | str] | None = None, *, cluster: str = ""
) -> list[SlurmJob]:
    """Return the jobs that a cluster's controller knows, the newest last.

    `jobs` has the ids of the jobs to return; None stands for all jobs of the user. Raises SlurmError if
    squeue can't be started, does not end in time, or fails.
    """
    ids = None if jobs is None else ",".join(map(str, jobs))
    if ids == "":  # squeue would return all jobs
        return []
    which_jobs = "--me" if ids is None else f"--jobs={ids}"
    separator = new_separator()
    format_ = ",".join(f"{field}:{separator}" for field in _FIELDS.values())
    options = ["--all", "--states=all", which_jobs, "--noheader", f"--Format={format_}"]
    answer = query(["squeue", *cluster_option(cluster), *options], environment)
    if answer.status and _NO_SUCH_JOB.search(answer.err):
        return []
    if answer.failure:
        raise answer.error
    jobs_found = [
        job_of_row(
            row,
            used_s=read_seconds(row["used"]) or 0,
            limit_s=read_seconds(row["limit"]),
            restarts=read_count(row["restarts"]),
            command=read_text(row["command"]),
            dependency=read_text(row["dependency"]),
            planned=read_text(row["planned"]),
            eligible=read_time(row["eligible"]),
        )
        for row in table_rows(answer.out, separator, [*_FIELDS])
    ]
    return sorted(jobs_found, key=lambda job: job.base_id)


def find_job(key: str, environment: Mapping[str, str], *, cluster: str = "") -> SlurmJob | None:
    """Return the job of the submission with this key; None if the controller knows no such job.

    Raises SlurmError like `squeue_jobs`.
    """
    return next(
        (job for job in squeue_jobs(environment, cluster=cluster) if key_of(job.command) == key), None
    )


def new_separator() -> str:
    """Return a new text that separates the values in the output of squeue or sacct.

    Users choose some of the values, such as the path of a script. The separator is random, so no value can
    contain it.
    """
    return f"\x1f{secrets.token_hex(8)}\x1f"


def table_rows(printed: str, separator: str, names: Sequence[str]) -> Iterator[dict[str, str]]:
    """Yield the rows of a table that squeue or sacct has printed, as mappings from the columns' names.

    A separator follows each value. The lines can't be counted, because values such as the path of a script
    may contain line breaks. The first column is an id, which has no line break. Lines before an id are not
    part of the table: a site's wrapper of squeue may print them.
    """
    values = printed.split(separator)
    for start in range(0, len(values) - len(names), len(names)):
        first_value, *others = values[start : start + len(names)]
        id_ = first_value.rpartition("\n")[2]
        yield dict(zip(names, [id_, *others], strict=True))


def job_of_row(row: Mapping[str, str], **further: Any) -> SlurmJob:
    """Return the job in a row of squeue or sacct.

    `further` has the attributes that only one of these commands prints, or that they print differently.
    """
    id_match = _ID.fullmatch(row["id"])
    exit_code, signal = read_exit_status(row["exit_status"])
    return SlurmJob(
        id=row["id"],
        base_id=read_count(id_match[1]) if id_match else 0,
        task=(id_match[2] or "") if id_match else "",
        state=state_named(row["state"]),
        reason=row["reason"],
        start=read_time(row["start"]),
        end=read_time(row["end"]),
        nodes=read_count(row["nodes"]),
        node_list=read_text(row["node_list"]),
        exit_code=exit_code,
        signal=signal,
        **further,
    )


def new_key() -> str:
    """Return a random key for a submission, so that no other submission has the same key.

    A chain has one such key, and the keys of all its jobs start with it.
    """
    return secrets.token_hex(8)


def folder_prefix(key: str) -> str:
    """Return the start of the name of the folder in which the submission with this key has its script."""
    return f"{_FOLDER_PREFIX}{key}-"


def key_of(command: str) -> str:
    """Return the submission's key in the Command of a job; "" for a job that sbatchgen did not submit."""
    match = _KEY.match(command)
    # After a blank it is an argument of another script, unless the blank is in the path of TMPDIR.
    is_script = match and (not re.search(r"\s", match[1]) or match[1] == usual_place())
    return match[2] if match and is_script else ""


@contextlib.contextmanager
def private_script(script: bytes, name: str, key: str) -> Iterator[Path]:
    """Write a script for sbatch into a new folder that only this user can enter, and yield its path.

    sbatch opens the script by its path. In the run folder, another submission might have replaced the script
    by then. `key` becomes part of the path. `name` is the name of the file, which Slurm takes for the job's
    name if the script sets none.
    """
    with temporary_folder(folder_prefix(key)) as private_folder:
        path = private_folder / name
        files.put(path, script)
        yield path
