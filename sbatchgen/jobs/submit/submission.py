"""A submission: a script with its review, and the dependencies of the jobs of a chain.

`rendered` and `finished` make submissions; `sbatch` and `local` start their jobs.

A chain is for clusters where a job may not requeue itself. Its jobs continue one training, one after the
other. A job of a chain starts after all earlier jobs have ended without success. When a job has completed,
Slurm removes the later jobs.

Each job depends on all earlier jobs. If a job depended only on the job before it, it would start once Slurm
has removed that job, because a removed job has not completed (seen on Slurm 22.05.8 and 26.05.5).

After a failure the script cancels the waiting jobs of its chain. It finds them by their Command in squeue,
which has their keys: all keys of a chain start with the same word. If job 1 fails before job 2 is submitted,
job 2 still starts, and fails.
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
    name: str  # the name of its file
    option_sources: Mapping[str, OptionSource]  # all its options by their long names
    log_folders: tuple[Path, ...]  # the folders of its logs, which must exist before it starts
    run_dir: Path | None  # its run folder, or the part of its path that is known; None for a finished script
    local: bool  # whether bash runs the script on this machine, without Slurm
    # Further options for the command line of sbatch, such as "--mem=64G", which override the script's own
    options: tuple[str, ...] = ()
    jobs: int = 1  # the number of jobs in its chain
    review: Review
    record: Record  # the record that will be kept
    snapshot: Snapshot | None = None  # the copy of its code that is still to be made
    # Returns a problem if another job uses its run folder; None if jobs may share the folder
    folder_conflict: Callable[[], Problem | None] | None = None


def log_folders(script: Script, folder: Path, name: str) -> tuple[Path, ...]:
    """Return the folders of a script's logs, which Slurm does not make: sbatch(1), "filename pattern".

    `name` is the name of the job. Raises DocumentError if only the running job knows the name of a folder.
    """
    folders = []
    for component in script.components:
        options = {name: option.value or "" for name, option in component.options.items()}
        for option in ("output", "error"):
            parent = options.get(option, "").rpartition("/")[0]
            if not parent:
                continue
            filled = parent.replace("%%", "\0").replace("%x", name)
            if "%" in filled:
                what = f"the log folder '{parent}' is known only once the job runs: it can't be made before"
                raise DocumentError.of(what, fix="use patterns like %j in the name of the file only")
            folders.append(folder / options.get("chdir", "") / filled.replace("\0", "%"))
    return tuple(folders)


def options_of_chain(before: Sequence[str], dependency: str) -> tuple[str, ...]:
    """Return the options of sbatch for the next job of a chain; the first job waits for `dependency`.

    `before` has the ids of the earlier jobs.
    """
    if not before:
        return (f"--dependency={dependency}",) if dependency else ()
    # "?" stands for "any of", "," for "all of". sbatch does not allow both in one dependency.
    kept = dependency if "?" not in dependency else ""
    conditions = ",".join(filter(None, (kept, f"afternotok:{':'.join(before)}")))
    return (f"--dependency={conditions}", "--kill-on-invalid-dep=yes")


def after_completion(run: RunState, point: str = "") -> str:
    """Return the dependency of a job that waits until a training is complete; "" without Slurm.

    `point` is the number of a point of a sweep, or of an element of an array; its last job counts.
    """
    from sbatchgen.jobs.runs.seen_jobs import is_local  # the page lacks the modules that this one imports

    if point:
        with_point = [
            submitted
            for submitted in record.records(run.run.folder)
            if int(point) in record.point_numbers(submitted, submitted.array)
        ]
        if not with_point:
            return ""
        return f"afterok:{with_point[-1].job}_{int(point) - with_point[-1].first}"
    jobs = [job for job in run.jobs if not job.ended] or [job for job in (run.last_job,) if job]
    jobs = [job for job in jobs if job.state != LOST]  # Slurm may have given the id to another job
    if any(is_local(job) for job in jobs):
        return ""
    ids: list[str] = []
    has_sweep = False
    for job in (job for job in jobs if job.id):
        submission = record.read_record(run.run.folder, job.id)
        tasks = indices(submission.array) if submission and submission.is_one_training else None
        ids += [f"{job.id}_{task}" for span in tasks for task in span] if tasks else [job.id]
        has_sweep |= submission is not None and submission.command[1:2] == ("sweep",)
    # All jobs of a sweep must complete. In a chain, one job completes the training.
    return ("," if has_sweep else "?").join(f"afterok:{id_}" for id_ in ids)
