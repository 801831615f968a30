"""A script with its review. `rendered` and `finished` make a submission; `sbatch` and `local` start its jobs.

A chain is for clusters where a job may not requeue itself: its jobs continue one training, one after the
other. A job of a chain starts after all earlier jobs have ended without success. When a job has completed,
Slurm removes the later jobs. Each job depends on all earlier jobs. A job that depended on the last job alone
would start after Slurm has removed that job, which has not completed either (seen on Slurm 22.05.8 and
26.05.5). After a failure the script cancels the waiting jobs of its chain: squeue shows their Command, and
their keys start with the same word. If job 1 fails before job 2 is submitted, job 2 starts, and fails too.
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
    review: Review
    about: Record  # the record that will be kept
    snapshot: Snapshot | None = None  # the copy of its code that is still to be made
    # Returns what is wrong if another job uses its run folder; None where that is fine
    queued: Callable[[], Problem | None] | None = None


def log_folders(script: Script, folder: Path, name: str) -> tuple[Path, ...]:
    """Return the folders of a script's logs, of which Slurm makes none: sbatch(1), "filename pattern".

    Raises DocumentError if the name of a folder is known only after the job has started.
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
    """Return the options of sbatch for the job after these jobs; the first job waits for `dependency`."""
    if not before:
        return (f"--dependency={dependency}",) if dependency else ()
    first = dependency if "?" not in dependency else ""  # "any of" and "all of" can't be mixed: sbatch(1)
    waits = ",".join(filter(None, (first, f"afternotok:{':'.join(before)}")))
    return (f"--dependency={waits}", "--kill-on-invalid-dep=yes")


def completion(run: RunState, point: str = "") -> str:
    """Return the dependency of a job that waits until a training is complete; "" without Slurm.

    `point` is the number of a point of a sweep, or of an element of an array. Its last job counts.
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
