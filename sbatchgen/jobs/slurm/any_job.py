"""The facts of any job in Slurm, also of jobs that sbatchgen did not submit, and of other users' jobs.

The states come from squeue, and the files from scontrol(1), because only scontrol fills in the patterns in
the names of logs. If the controller has forgotten a job, sacct(1) may know its folder and command.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from sbatchgen.base.errors import SlurmError
from sbatchgen.base.frozen import frozen
from sbatchgen.jobs.slurm.accounting import any_accounting
from sbatchgen.jobs.slurm.client import answer_if_any, query
from sbatchgen.jobs.slurm.fields import read_text, read_time
from sbatchgen.jobs.slurm.queue import SlurmJob, queue

# A line of scontrol's output with a path or a text, such as "   WorkDir=/home/me/training".
_FIELD = re.compile(r"^ *(UserId|SubmitTime|Command|SubmitLine|WorkDir|StdErr|StdOut)=(.*)$")
_MEMORY = re.compile(r"MinMemoryNode=(\d+[KMGT]?)\b")  # "MinMemoryNode=500M"
# An id of a job, of a task of an array, or of a part of a heterogeneous job: "4711", "4711_3", "4711+1".
JOB_ID = re.compile(r"([1-9][0-9]{0,9})(?:_([0-9]{1,7})|\+([0-9]{1,4}))?")


@frozen(kw_only=True)
class AnyJob:
    """A job or a task of an array, with its files; "" for unknown values."""

    row: SlurmJob
    user: str = ""  # its owner
    name: str = ""
    folder: str = ""  # the folder in which it runs, by default the folder of submission
    command: str = ""  # its script, before 24.05 with the script's arguments
    line: str = ""  # the command line of its submission
    log: str = ""  # the file of its output, with % doubled as in patterns; "" if only sacct knows the job
    errors: str = ""  # the file of its stderr in the same form; "" if stderr is in the log
    memory: str = ""  # the memory that it asked for on each node, such as "500M"
    submitted: datetime | None = None


def any_jobs(ids: Sequence[str], environment: Mapping[str, str]) -> list[AnyJob]:
    """Return the jobs with these ids that the controller or the database knows; of an array, all tasks.

    Raises SlurmError if Slurm's commands are not here, or if the controller does not answer.
    """
    rows = queue(environment, ids)
    fields = _fields_of_jobs([*{str(row.job) for row in rows}], environment)
    jobs = [_job(row, fields.get(row.id, {})) for row in rows]
    found_ids = {str(row.job) for row in rows}
    jobs += _jobs_in_database([id_ for id_ in ids if id_ not in found_ids], environment)
    if any(job.row.state.name == "CANCELLED" for job in jobs):
        jobs = [*_with_cancelling_users(jobs, environment)]
    return jobs


def my_jobs(environment: Mapping[str, str]) -> list[AnyJob]:
    """Return the jobs of the user that the controller knows, the oldest first; raises SlurmError."""
    rows = queue(environment)
    fields = _fields_of_jobs([*dict.fromkeys(str(row.job) for row in rows)], environment)
    return [_job(row, fields.get(row.id, {})) for row in rows]


def script_of(job: str, environment: Mapping[str, str]) -> str:
    """Return the script of a user's job that the controller knows; "" for any other job."""
    return answer_if_any(["scontrol", "write", "batch_script", job, "-"], environment) or ""


def _fields_of_jobs(ids: Sequence[str], environment: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Return the fields that scontrol shows of these jobs, for each job by the id that squeue prints."""
    if not ids:
        return {}
    only_id = [ids[0]] if len(ids) == 1 else []  # scontrol can show one job, or all jobs
    output = query(["scontrol", "--all", "show", "job", *only_id], environment)
    return dict(_fields_by_id(output.out))


def _fields_by_id(printed: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the id of each job as squeue prints it, and the job's fields in the output of scontrol.

    A job's name may look like fields, even with line breaks. The name precedes the real fields, so the last
    field of each name counts.
    """
    for block in re.split(r"^(?=JobId=)", printed, flags=re.MULTILINE):
        first_line = block.partition("\n")[0]
        ids = {
            name: match[1]
            for name in ("JobId", "ArrayJobId", "ArrayTaskId", "HetJobId", "HetJobOffset")
            if (match := re.search(rf"(?:^| ){name}=(\S+)", first_line))
        }
        id_ = ids.get("JobId", "")
        if "ArrayJobId" in ids:
            id_ = f"{ids['ArrayJobId']}_{ids.get('ArrayTaskId', '')}"
        elif "HetJobId" in ids:
            id_ = f"{ids['HetJobId']}+{ids.get('HetJobOffset', '0')}"
        fields = {"JobName": first_line.partition("JobName=")[2]}
        for line in block.split("\n")[1:]:
            if match := _FIELD.match(line):
                fields[match[1]] = read_text(match[2])
        if memory := _MEMORY.search(block):
            fields["memory"] = memory[1]
        if id_:
            yield id_, fields


def _job(row: SlurmJob, fields: Mapping[str, str]) -> AnyJob:
    """Return a job from its row of squeue and its fields of scontrol."""
    log, errors = fields.get("StdOut", ""), fields.get("StdErr", "")
    return AnyJob(
        row=row,
        user=fields.get("UserId", "").partition("(")[0],
        name=fields.get("JobName", ""),
        folder=fields.get("WorkDir", ""),
        command=fields.get("Command", "") or row.command,
        line=fields.get("SubmitLine", ""),
        log=log.replace("%", "%%"),
        errors=errors.replace("%", "%%") if errors != log else "",
        memory=fields.get("memory", ""),
        submitted=read_time(fields.get("SubmitTime", "").partition(" ")[0]),
    )


def _jobs_in_database(ids: Sequence[str], environment: Mapping[str, str]) -> list[AnyJob]:
    """Return the jobs that the database still knows."""
    return [
        AnyJob(
            row=row,
            user=fields["user"],
            name=fields["name"],
            folder=read_text(fields["folder"]),
            line=read_text(fields.get("submitted", "")),
            submitted=read_time(fields["submit_time"]),
        )
        for row, fields in any_accounting(ids, environment) or ()
    ]


def _with_cancelling_users(jobs: Sequence[AnyJob], environment: Mapping[str, str]) -> Iterator[AnyJob]:
    """Yield the jobs; for cancelled jobs, add the user who cancelled them, as the database says."""
    ids = [str(job.row.job) for job in jobs if job.row.state.name == "CANCELLED"]
    try:
        answers = any_accounting([*dict.fromkeys(ids)], environment) or ()
    except SlurmError:
        answers = ()
    users = {row.id: row.cancelled_by for row, _ in answers}
    for job in jobs:
        yield replace(job, row=replace(job.row, cancelled_by=users.get(job.row.id, job.row.cancelled_by)))
