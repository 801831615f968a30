"""Finds jobs by their ids, also jobs that sbatchgen did not submit and jobs of other users.

squeue tells the states of the jobs. scontrol(1) tells their files, because only scontrol replaces patterns
such as %j in the names of logs. If the controller has forgotten a job, sacct(1) may know its folder and its
command.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from sbatchgen.base.errors import SlurmError
from sbatchgen.base.frozen import frozen
from sbatchgen.jobs.slurm.accounting import sacct_jobs_of_anyone
from sbatchgen.jobs.slurm.client import answer_if_any, query
from sbatchgen.jobs.slurm.fields import read_text, read_time
from sbatchgen.jobs.slurm.queue import SlurmJob, squeue_jobs

# A line of scontrol's output with a path or a text, such as "   WorkDir=/home/me/training".
_FIELD = re.compile(r"^ *(UserId|SubmitTime|Command|SubmitLine|WorkDir|StdErr|StdOut)=(.*)$")
_MEMORY = re.compile(r"MinMemoryNode=(\d+[KMGT]?)\b")  # "MinMemoryNode=500M"
# An id of a job, of a task of an array, or of a part of a heterogeneous job: "4711", "4711_3", "4711+1".
JOB_ID = re.compile(r"([1-9][0-9]{0,9})(?:_([0-9]{1,7})|\+([0-9]{1,4}))?")


@frozen(kw_only=True)
class JobWithFiles:
    """A job or a task of an array, with its files; "" for unknown values."""

    row: SlurmJob  # the job as squeue or sacct prints it
    user: str = ""  # the name of its owner
    name: str = ""
    folder: str = ""  # the folder in which it runs, by default the folder of submission
    command: str = ""  # the path of its script, before Slurm 24.05 with the script's arguments
    submit_line: str = ""  # the command line of its submission, such as "sbatch --nodes=2 job.sh"
    # The path of its output, with each "%" doubled as in the value of --output; "" if only sacct knows the
    # job
    log: str = ""
    errors: str = ""  # the path of its stderr in the same form; "" if stderr is in the log
    memory: str = ""  # the requested memory on each node, such as "500M"
    submitted: datetime | None = None


def any_jobs(ids: Sequence[str], environment: Mapping[str, str]) -> list[JobWithFiles]:
    """Return the jobs with these ids that the controller or the database knows; of an array, all its tasks.

    Raises SlurmError if Slurm's commands are not installed here, or if the controller does not answer.
    """
    rows = squeue_jobs(environment, ids)
    found_ids = {str(row.base_id) for row in rows}
    fields = _fields_of_jobs([*found_ids], environment)
    jobs = [_any_job(row, fields.get(row.id, {})) for row in rows]
    jobs += _jobs_in_database([id_ for id_ in ids if id_ not in found_ids], environment)
    # The controller forgets the tasks of an array one by one, each MinJobAge seconds after the task's end.
    arrays = {str(row.base_id) for row in rows if row.task}
    tasks = _jobs_in_database([id_ for id_ in ids if id_ in arrays], environment)
    known_ids = {row.id for row in rows}
    jobs += [task for task in tasks if task.row.state.ended and task.row.id not in known_ids]
    if any(job.row.state.name == "CANCELLED" for job in jobs):
        jobs = [*_with_cancelling_users(jobs, environment)]
    return jobs


def my_jobs(environment: Mapping[str, str]) -> list[JobWithFiles]:
    """Return the jobs of the user that the controller knows, the oldest first.

    Raises SlurmError like `any_jobs`.
    """
    rows = squeue_jobs(environment)
    fields = _fields_of_jobs([*dict.fromkeys(str(row.base_id) for row in rows)], environment)
    return [_any_job(row, fields.get(row.id, {})) for row in rows]


def script_of(job: str, environment: Mapping[str, str]) -> str:
    """Return the script of a job of this user that the controller knows; "" for any other job."""
    return answer_if_any(["scontrol", "write", "batch_script", job, "-"], environment) or ""


def _fields_of_jobs(ids: Sequence[str], environment: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Return the fields that scontrol prints for each job; the key is the job's id as squeue prints it.

    The result may also have other jobs, because scontrol prints either one job or all jobs.
    """
    if not ids:
        return {}
    only_id = [ids[0]] if len(ids) == 1 else []
    output = query(["scontrol", "--all", "show", "job", *only_id], environment)
    return dict(_fields_by_id(output.out))


def _fields_by_id(printed: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the id of each job as squeue prints it, and the fields of the job in the output of scontrol.

    Users choose the names of jobs, and a name may contain line breaks and texts that look like fields. The
    real fields follow the name, so the last field with a name counts.
    """
    for block in re.split(r"^(?=JobId=)", printed, flags=re.MULTILINE):
        first_line = block.partition("\n")[0]
        ids_text, _, job_name = first_line.partition(" JobName=")
        ids = {
            name: match[1]
            for name in ("JobId", "ArrayJobId", "ArrayTaskId", "HetJobId", "HetJobOffset")
            if (match := re.search(rf"(?:^| ){name}=(\S+)", ids_text))
        }
        id_ = ids.get("JobId", "")
        if "ArrayJobId" in ids:
            id_ = f"{ids['ArrayJobId']}_{ids.get('ArrayTaskId', '')}"
        elif "HetJobId" in ids:
            id_ = f"{ids['HetJobId']}+{ids.get('HetJobOffset', '0')}"
        fields = {"JobName": job_name}
        for line in block.split("\n")[1:]:
            if match := _FIELD.match(line):
                fields[match[1]] = read_text(match[2])
        if memory := _MEMORY.search(block):
            fields["memory"] = memory[1]
        if id_:
            yield id_, fields


def _any_job(row: SlurmJob, fields: Mapping[str, str]) -> JobWithFiles:
    """Return a job from its row of squeue and its fields of scontrol."""
    log, errors = fields.get("StdOut", ""), fields.get("StdErr", "")
    return JobWithFiles(
        row=row,
        user=fields.get("UserId", "").partition("(")[0],
        name=fields.get("JobName", ""),
        folder=fields.get("WorkDir", ""),
        command=fields.get("Command", "") or row.command,
        submit_line=fields.get("SubmitLine", ""),
        log=log.replace("%", "%%"),
        errors=errors.replace("%", "%%") if errors != log else "",
        memory=fields.get("memory", ""),
        submitted=read_time(fields.get("SubmitTime", "").partition(" ")[0]),
    )


def _jobs_in_database(ids: Sequence[str], environment: Mapping[str, str]) -> list[JobWithFiles]:
    """Return the jobs with these ids that the database knows; no jobs if no database answers."""
    return [
        JobWithFiles(
            row=row,
            user=fields["user"],
            name=fields["name"],
            folder=read_text(fields["folder"]),
            submit_line=read_text(fields.get("submitted", "")),
            submitted=read_time(fields["submit_time"]),
        )
        for row, fields in sacct_jobs_of_anyone(ids, environment) or ()
    ]


def _with_cancelling_users(
    jobs: Sequence[JobWithFiles], environment: Mapping[str, str]
) -> Iterator[JobWithFiles]:
    """Yield the jobs; cancelled jobs get the user who cancelled them, whom only the database knows."""
    ids = [str(job.row.base_id) for job in jobs if job.row.state.name == "CANCELLED"]
    try:
        answers = sacct_jobs_of_anyone([*dict.fromkeys(ids)], environment) or ()
    except SlurmError:
        answers = ()
    users = {row.id: row.cancelled_by for row, _ in answers}
    for job in jobs:
        yield replace(job, row=replace(job.row, cancelled_by=users.get(job.row.id, job.row.cancelled_by)))
