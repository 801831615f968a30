"""A chain: jobs that continue one training, one after the other, where a job may not requeue itself.

A job starts once all before it have ended, none of them with success. When one has completed, Slurm removes
the others: that needs nothing of the job. Each names all before it: if it named the last alone, it would
start after one that Slurm has removed, which has not completed either (seen on Slurm 22.05.8 and 26.05.5).
After a failure, the script cancels those that wait: squeue shows their Command, and their keys start with the
same word. If a job fails before the next job is submitted, that job starts, and fails too.
"""

from collections.abc import Sequence

from sbatchgen.runs import record
from sbatchgen.runs.index import LOST
from sbatchgen.runs.points import numbers
from sbatchgen.runs.status import RunState, is_local
from sbatchgen.sbatch.array import indices


def options(before: Sequence[str], dependency: str) -> tuple[str, ...]:
    """Return the options of sbatch for the job after these; the first one waits for `dependency`."""
    if not before:
        return (f"--dependency={dependency}",) if dependency else ()
    first = dependency if "?" not in dependency else ""  # "any of" and "all of" can't be mixed: sbatch(1)
    waits = ",".join(filter(None, (first, f"afternotok:{':'.join(before)}")))
    return (f"--dependency={waits}", "--kill-on-invalid-dep=yes")


def completion(run: RunState, point: str = "") -> str:
    """Return the dependency of a job that waits until a training is complete; "" without Slurm.

    `point` is one of a sweep, or an element of an array: its last job counts.
    """
    if point:
        known = [each for each in record.records(run.run.folder) if int(point) in numbers(each, each.array)]
        return f"afterok:{known[-1].job}_{int(point) - known[-1].first}" if known else ""
    jobs = [job for job in run.jobs if not job.ended] or [job for job in (run.last,) if job]
    jobs = [job for job in jobs if job.state != LOST]  # Slurm may have given its id to another job
    if any(is_local(job) for job in jobs):
        return ""
    ids: list[str] = []
    sweeps = False
    for job in (job for job in jobs if job.id):
        submission = record.read_record(run.run.folder, job.id)
        tasks = indices(submission.array) if submission and submission.one_training else None
        ids += [f"{job.id}_{task}" for span in tasks for task in span] if tasks else [job.id]
        sweeps |= submission is not None and submission.command[1:2] == ("sweep",)
    return ("," if sweeps else "?").join(f"afterok:{id_}" for id_ in ids)
