"""Defines a submission, which is a script with its review, and the dependencies between submitted jobs.

`rendered` and `finished` make submissions; `sbatch` and `local` start their jobs.

A chain is for clusters where a job may not requeue itself. Its jobs continue one training, one after the
other. Each job starts after all earlier jobs have ended without success. When a job has completed the
training, Slurm removes the later jobs.

Each job depends on all earlier jobs. If job 3 depended only on job 2, it would start after job 1 has
completed the training: Slurm then removes job 2, and a removed job has not completed (seen on 22.05.8 and
26.05.5).

After a failure the script cancels the waiting jobs of its chain. It finds them in squeue by their Command,
which contains their keys: all keys of a chain start with the same word. If job 1 fails before job 2 is
submitted, the script can't cancel job 2, which then starts and fails.
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
    option_sources: Mapping[str, OptionSource]  # all its options of sbatch by their long names
    log_folders: tuple[Path, ...]  # the folders of its logs, which must exist before the job starts
    # The run folder. If only the running job knows its name, the known part of the path; None for a finished
    # script, whose run folder is made when it is submitted.
    run_dir: Path | None
    local: bool  # whether bash runs the script on this machine, without Slurm
    # Further options for the command line of sbatch, such as "--mem=64G", which override the script's own
    options: tuple[str, ...] = ()
    jobs: int = 1  # the number of jobs in its chain
    review: Review
    record: Record  # the record that will be kept, still without the id of the job
    snapshot: Snapshot | None = None  # the snapshot of the code that will be made
    # A function that returns a problem if another job uses the run folder; None if jobs may share the folder
    find_conflict: Callable[[], Problem | None] | None = None


def log_folders(script: Script, folder: Path, name: str) -> tuple[Path, ...]:
    """Return the folders of a script's logs, which Slurm before 23.02 does not make.

    `name` is the name of the job, which replaces %x in a path. Raises DocumentError if a folder has another
    pattern of sbatch, such as %j, because only the running job knows its value.
    """
    folders = []
    for component in script.components:
        options = {name: option.value or "" for name, option in component.options.items()}
        for option in ("output", "error"):
            parent = options.get(option, "").rpartition("/")[0]
            if not parent:
                continue
            filled = parent.replace("%%", "\0").replace("%x", name)  # "%%" stands for a percent sign
            if "%" in filled:
                what = f"the log folder '{parent}' is known only once the job runs: it can't be made before"
                raise DocumentError.of(what, fix="use patterns like %j in the name of the file only")
            folders.append(folder / options.get("chdir", "") / filled.replace("\0", "%"))
    return tuple(folders)


def options_of_chain(earlier_jobs: Sequence[str], dependency: str) -> tuple[str, ...]:
    """Return the options of sbatch for the next job of a chain.

    `earlier_jobs` has the ids of the chain's jobs so far. `dependency` is the value of --dependency that the
    user has given for the chain, or "".
    """
    if not earlier_jobs:
        return (f"--dependency={dependency}",) if dependency else ()
    # sbatch does not allow "?" (any of these conditions) and "," (all of them) in the same dependency. A
    # later job may drop the user's dependency, because the first job of the chain has waited for it.
    kept = dependency if "?" not in dependency else ""
    conditions = ",".join(filter(None, (kept, f"afternotok:{':'.join(earlier_jobs)}")))
    return (f"--dependency={conditions}", "--kill-on-invalid-dep=yes")


def after_completion(run: RunState, point: str = "") -> str:
    """Return the dependency of a job that waits until the training of a run is complete.

    `point` is the number of a sweep's point, or of an array's element; the job then waits for the last job of
    this point. Return "" for a run without Slurm, and for a point that no job has run.
    """
    # The page in the browser imports this module, and lacks modules that `seen_jobs` imports.
    from sbatchgen.jobs.runs.seen_jobs import is_local

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
    jobs = [job for job in jobs if job.state != LOST]  # Slurm may have given the id of a lost job to another
    if any(is_local(job) for job in jobs):
        return ""
    ids: list[str] = []
    has_sweep = False
    for job in (job for job in jobs if job.id):
        submission = record.read_record(run.run.folder, job.id)
        tasks = indices(submission.array) if submission and submission.is_one_training else None
        ids += [f"{job.id}_{task}" for span in tasks for task in span] if tasks else [job.id]
        has_sweep |= submission is not None and submission.command[1:2] == ("sweep",)
    # All jobs of a sweep must complete (","). In a chain, one completed job completes the training ("?").
    return ("," if has_sweep else "?").join(f"afterok:{id_}" for id_ in ids)
