"""Submits a sweep as job arrays, one after the other, and writes the sweep's points into its run folder."""

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

# A function that submits one array. It takes the array's submission, further options of sbatch, and the
# arguments of the script.
SubmitArray = Callable[[Submission, tuple[str, ...], tuple[str, ...]], SubmittedRun]


def submit_arrays(
    submission: Submission,
    arrays: Sequence[SweepArray],
    throttle: int | None,
    submit_array: SubmitArray,
    runs: list[SubmittedRun],
) -> None:
    """Submit the arrays of a sweep, and add each submitted array to `runs`.

    If Slurm refuses an array because the user would have too many jobs, its two halves are submitted instead.

    `throttle` is the greatest number of tasks of the sweep that may run at once; None without a limit. Slurm
    applies such a limit to each array, so each array then waits until the array before it has ended.

    Raises SbatchgenError if an array can't be submitted. If earlier arrays were submitted, the error also
    names the points that are not submitted.
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
            runs.append(submit_array(replace(submission, record=record), tuple(options), arguments))
        except SbatchgenError as error:
            if isinstance(error, TooManyJobsError) and len(array.indices) > 1:
                waiting[:1] = array.halves()
                continue
            if not runs:
                raise
            points = [unsent.first_point + index for unsent in waiting for index in unsent.indices]
            what = f"{len(points):,} points are not submitted: {numbers_as_text(points)}"
            fix = f"later: sbatchgen resubmit {runs[0].record.run}"
            raise type(error)([*error.problems, Problem(what, fix=fix)]) from error
        del waiting[0]


@contextlib.contextmanager
def keep_points(sweep: Sweep, submission: Submission, runs: Sequence[SubmittedRun]) -> Iterator[None]:
    """Write the points of a sweep into its run folder before the context, which submits the arrays.

    If the context ends without a submitted array in `runs`, the new file is removed. Raises DocumentError if
    the folder already holds a sweep with other points.
    """
    assert submission.run_dir  # noqa: S101 - each Slurm job has a run folder
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
