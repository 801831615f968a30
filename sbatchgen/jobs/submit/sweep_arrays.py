"""Submits the arrays of a sweep, one after the other, and writes its points into the run folder."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from sbatchgen.base import files
from sbatchgen.base.errors import DocumentError, Problem, SbatchgenError
from sbatchgen.base.quoting import numbers_as_text
from sbatchgen.jobs.resolved.sweep import Sweep, SweepArray
from sbatchgen.jobs.runs.points import POINTS_FILE
from sbatchgen.jobs.submit.sbatch import SubmittedRun, TooManyJobsError
from sbatchgen.jobs.submit.submission import Submission

# Submits an array: its submission, options of sbatch, arguments of the script.
Send = Callable[[Submission, tuple[str, ...], tuple[str, ...]], SubmittedRun]


def submit(
    submission: Submission,
    arrays: Sequence[SweepArray],
    throttle: int | None,
    send: Send,
    runs: list[SubmittedRun],
) -> None:
    """Submit the arrays; halve an array while Slurm refuses it because the user would have too many jobs.

    `throttle` limits the elements that run at once. The arrays then start one after the other, because Slurm
    applies this limit to each array. Submitted arrays are added to `runs`. Raises SbatchgenError if an array
    can't be submitted; after the first array the error also names the remaining points.
    """
    waiting = list(arrays)
    while waiting:
        array = waiting[0]
        text = array.text(throttle)
        options = [] if array == arrays[0] else [f"--array={text}"]
        if throttle and runs:
            options.append(f"--dependency=afterany:{runs[-1].record.job}")
        record = replace(submission.record, array=text, first=array.first_point)
        # The script adds this number to the index of its task, which gives the number of its point.
        arguments = (str(array.first_point),) if array.first_point else ()
        try:
            runs.append(send(replace(submission, record=record), tuple(options), arguments))
        except SbatchgenError as error:
            if isinstance(error, TooManyJobsError) and len(array.indices) > 1:
                waiting[:1] = array.halves()
                continue
            if not runs:
                raise
            rest = [left.first_point + index for left in waiting for index in left.indices]
            what = f"{len(rest):,} points are not submitted: {numbers_as_text(rest)}"
            fix = f"later: sbatchgen resubmit {runs[0].record.run}"
            raise type(error)([*error.problems, Problem(what, fix=fix)]) from error
        del waiting[0]


@contextlib.contextmanager
def keep_points(sweep: Sweep, submission: Submission, runs: Sequence[SubmittedRun]) -> Iterator[None]:
    """Write the points into the run folder, and remove them at the end if no array was submitted.

    Raises DocumentError if the folder has a sweep with other points.
    """
    assert submission.run_dir  # noqa: S101 - a job of Slurm has one
    file, text = submission.run_dir / POINTS_FILE, sweep.as_csv().encode()
    try:
        is_new, is_same = False, files.read_own(file, len(text) + 1) == text
    except FileNotFoundError:
        files.put(file, text)
        is_new = is_same = True
    if not is_same:
        what = f"{submission.run_dir} holds a sweep with other points"
        raise DocumentError.of(what, at=str(file), fix="start another: --job-name NAME, or --run-dir PATH")
    try:
        yield
    finally:
        if is_new and not runs:
            file.unlink(missing_ok=True)
