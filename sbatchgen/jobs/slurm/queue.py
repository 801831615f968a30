"""Asks squeue(1) for the jobs that Slurm's controller knows: they wait, run, or ended a few minutes ago.

The controller forgets an ended job after the site's MinJobAge (slurm.conf(5)), 5 minutes by default;
accounting.py asks for older jobs. A job of sbatchgen is found by the folder of its script, which squeue shows
as Command.
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
from sbatchgen.jobs.slurm.fields import count, exit_status, seconds, text, time
from sbatchgen.jobs.slurm.state import State, state

# Fields of squeue --Format, by our names: all releases since 20.11 have them.
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
# squeue's error if the controller knows none of the named jobs.
_NONE_KNOWN = re.compile(r"^slurm_load_jobs error: Invalid job id specified$", re.MULTILINE)
_ID = re.compile(r"([0-9]+)(?:_(.+)|\+[0-9]+)?")  # "4711", "4711_3", "4711_[5-9%2]" or "4711+0"
_FOLDER_PREFIX = "sbatchgen-"  # the start of the name of a script's folder; the key of the submission follows
# The key in a script's path: "/tmp/sbatchgen-1f9c0a2b-x7/ddp". Arguments of the script may follow.
_KEY = re.compile(rf"(.*?)/{_FOLDER_PREFIX}([0-9a-f]+)-[^/\s]*/[^/]", re.DOTALL)


@frozen(kw_only=True)
class SlurmJob:
    """A job, a task of an array, or all waiting tasks of an array, from squeue or sacct."""

    id: str  # as Slurm's commands take and print it: "4711", "4711_3", "4711_[5-9%2]", "4711+0"
    job: int  # the id of the job, or of the whole array
    task: str  # "3", "[5-9%2]" for tasks that wait, or "" if the job is not an array
    state: State
    # Slurm's name of the reason why it waits; "None" without one. From sacct: why it waited last
    reason: str
    # In local time; Slurm's forecast for a job that waits or runs; None if not known
    start: datetime | None
    end: datetime | None
    used_s: int  # how many seconds it has run
    limit_s: int | None  # its time limit in seconds; None if it has none, or it is not known
    nodes: int
    node_list: str  # "n[1-4]"; "" before nodes are allocated
    exit_code: int  # the exit code of its script; 0 before the end
    signal: int  # the signal that ended its script; 0 without one
    restarts: int = 0  # how often it was requeued
    before: str = ""  # how the start before ended, in words, if it was requeued; known to sacct only
    dependency: str = ""  # what it waits for: "afterok:4711(unfulfilled)"; known to squeue only
    planned: str = ""  # the nodes that Slurm plans for a job that waits; known to squeue only
    eligible: datetime | None = None  # when its dependencies, --begin and holds were fulfilled
    command: str = ""  # the path of its script; "" if it came from stdin; known to squeue only
    cancelled_by: int | None = None  # the id of the user who cancelled it; known to sacct only


def queue(
    environment: Mapping[str, str], jobs: Iterable[int | str] | None = None, *, cluster: str = ""
) -> list[SlurmJob]:
    """Return the jobs with these ids that a cluster's controller knows, the newest last.

    Without ids, return all jobs of the user.

    Raises SlurmError if squeue can't be started, does not end in time, or fails.
    """
    ids = None if jobs is None else ",".join(map(str, jobs))
    if ids == "":
        return []
    which = "--me" if ids is None else f"--jobs={ids}"
    delimiter = separator()
    fields = ",".join(f"{field}:{delimiter}" for field in _FIELDS.values())
    shown = ["--all", "--states=all", which, "--noheader", f"--Format={fields}"]
    answer = query(["squeue", *cluster_option(cluster), *shown], environment)
    if answer.status and _NONE_KNOWN.search(answer.err):
        return []
    if answer.failure:
        raise answer.error
    jobs_found = [
        as_job(
            row,
            used_s=seconds(row["used"]) or 0,
            limit_s=seconds(row["limit"]),
            restarts=count(row["restarts"]),
            command=text(row["command"]),
            dependency=text(row["dependency"]),
            planned=text(row["planned"]),
            eligible=time(row["eligible"]),
        )
        for row in rows(answer.out, delimiter, [*_FIELDS])
    ]
    return sorted(jobs_found, key=lambda job: job.job)


def find_job(key: str, environment: Mapping[str, str], *, cluster: str = "") -> SlurmJob | None:
    """Return the job of the submission with this key; None without one; raise SlurmError like `queue`."""
    return next((job for job in queue(environment, cluster=cluster) if key_of(job.command) == key), None)


def separator() -> str:
    """Return a random separator of values, so that no user can put it into the path of a script."""
    return f"\x1f{secrets.token_hex(8)}\x1f"


def rows(printed: str, delimiter: str, names: Sequence[str]) -> Iterator[dict[str, str]]:
    """Yield the rows of a table by the `names` of its columns; a delimiter follows each value.

    A line break follows each row, but values such as the path of a script may also have line breaks. The
    first value is an id, which has none: text in the lines before it comes from a site's own wrapper.
    """
    values = printed.split(delimiter)
    for first in range(0, len(values) - len(names), len(names)):
        row = values[first : first + len(names)]
        yield dict(zip(names, [row[0].rpartition("\n")[2], *row[1:]], strict=True))


def as_job(row: Mapping[str, str], **further: Any) -> SlurmJob:
    """Return a job from a row of squeue or sacct; `further` has attributes that the two print differently."""
    id_ = _ID.fullmatch(row["id"])
    exit_code, signal = exit_status(row["exit_status"])
    return SlurmJob(
        id=row["id"],
        job=count(id_[1]) if id_ else 0,
        task=(id_[2] or "") if id_ else "",
        state=state(row["state"]),
        reason=row["reason"],
        start=time(row["start"]),
        end=time(row["end"]),
        nodes=count(row["nodes"]),
        node_list=text(row["node_list"]),
        exit_code=exit_code,
        signal=signal,
        **further,
    )


def new_key() -> str:
    """Return a key that no other submission has; the keys of a chain's jobs start with such a key."""
    return secrets.token_hex(8)


def folder_name(key: str) -> str:
    """Return the start of the name of a script's folder, for the key of its submission."""
    return f"{_FOLDER_PREFIX}{key}-"


def key_of(command: str) -> str:
    """Return the key in a job's Command; "" for a job that sbatchgen did not submit."""
    match = _KEY.match(command)
    # After a blank it is an argument of another script, unless the blank is in the path of TMPDIR.
    is_script = match and (not re.search(r"\s", match[1]) or match[1] == usual_place())
    return match[2] if match and is_script else ""


@contextlib.contextmanager
def private_script(script: bytes, name: str, key: str) -> Iterator[Path]:
    """Write the script into a new folder that only this user can enter, and yield the path of the script.

    sbatch opens the script by its name, and in the run folder another user or submission might replace it.
    `name` is the name of the script's file, which Slurm takes for the job's name if the script sets none.
    """
    with temporary_folder(folder_name(key)) as private:
        path = private / name
        files.put(path, script)
        yield path
