"""A script with its review: `rendered` and `finished` make it, `sbatch` and `local` send it, also as a chain.

A chain is of jobs that continue one training, one after the other, where a job may not requeue itself.

A job starts once all before it have ended, none of them with success. When one has completed, Slurm removes
the others: that needs nothing of the job. Each names all before it: if it named the last alone, it would
start after one that Slurm has removed, which has not completed either (seen on Slurm 22.05.8 and 26.05.5).
After a failure, the script cancels those that wait: squeue shows their Command, and their keys start with the
same word. If a job fails before the next job is submitted, that job starts, and fails too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sbatchgen.base.errors import DocumentError, Problem
from sbatchgen.base.frozen import frozen
from sbatchgen.check.sbatch.array import indices
from sbatchgen.check.sbatch.reader import Script
from sbatchgen.jobs.review.review import Review
from sbatchgen.jobs.runs import record
from sbatchgen.jobs.runs.index import LOST
from sbatchgen.jobs.runs.record import Record
from sbatchgen.jobs.runs.snapshot import Snapshot
from sbatchgen.jobs.slurm.refusal import OptionSource

if TYPE_CHECKING:
    from sbatchgen.jobs.runs.status import RunState


@frozen(kw_only=True)
class Submission:
    """A script about to be submitted."""

    script: bytes
    name: str  # of its file
    asked: Mapping[str, OptionSource]  # its options by long name
    log_folders: tuple[Path, ...]
    run_dir: Path | None  # its run folder, or the part of its path that is known; None for a finished script
    local: bool  # whether bash runs it here
    # What sbatch gets on its command line, over the script's own, as "--mem=64G"
    options: tuple[str, ...] = ()
    jobs: int = 1  # how many jobs of it continue one training, one after the other
    review: Review  # what people see
    about: Record  # what its record will say
    snapshot: Snapshot | None = None  # the copy of its code that is still to be made
    # Returns what is wrong if another job uses its run folder; None where that is fine
    queued: Callable[[], Problem | None] | None = None


def log_folders(script: Script, folder: Path, name: str) -> tuple[Path, ...]:
    """Return the folders of a script's logs, of which Slurm makes none: sbatch(1), "filename pattern".

    Raises DocumentError if the name of one is known only once the job runs.
    """
    folders = []
    for component in script.components:
        options = {name: option.value or "" for name, option in component.options.items()}
        for option in ("output", "error"):
            parent = options.get(option, "").rpartition("/")[0]
            if not parent:
                continue
            known = parent.replace("%%", "\0").replace("%x", name)
            if "%" in known:
                what = f"the log folder '{parent}' is known only once the job runs: it can't be made before"
                raise DocumentError.of(what, fix="use patterns like %j in the name of the file only")
            folders.append(folder / options.get("chdir", "") / known.replace("\0", "%"))
    return tuple(folders)


def options_of_chain(before: Sequence[str], dependency: str) -> tuple[str, ...]:
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
    from sbatchgen.jobs.runs.seen_jobs import is_local  # the page has none of its modules

    if point:
        known = [
            each
            for each in record.records(run.run.folder)
            if int(point) in record.point_numbers(each, each.array)
        ]
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
