"""The arrays of a sweep, submitted one after the other."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from sbatchgen.base import files
from sbatchgen.base.errors import DocumentError, Problem, SbatchgenError
from sbatchgen.base.quoting import numbers_as_text
from sbatchgen.jobs.resolved.sweep import Sweep, SweepArray
from sbatchgen.jobs.runs.points import POINTS
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
    """Submit the arrays; split an array in halves while it exceeds the number of jobs that a user may have.

    With a throttle the arrays start one after the other, because Slurm limits the elements of one array only.
    Submitted arrays are added to `runs`. Raises SbatchgenError if an array could not be submitted; after the
    first array the error names the points that are left.
    """
    waiting = list(arrays)
    while waiting:
        array = waiting[0]
        text = array.text(throttle)
        options = [] if array == arrays[0] else [f"--array={text}"]
        if throttle and runs:
            options.append(f"--dependency=afterany:{runs[-1].record.job}")
        about = replace(submission.about, array=text, first=array.first)
        first = (str(array.first),) if array.first else ()
        try:
            runs.append(send(replace(submission, about=about), tuple(options), first))
        except SbatchgenError as error:
            if isinstance(error, TooManyJobsError) and len(array.indices) > 1:
                waiting[:1] = array.halves()
                continue
            if not runs:
                raise
            rest = [left.first + index for left in waiting for index in left.indices]
            what = f"{len(rest):,} points are not submitted: {numbers_as_text(rest)}"
            fix = f"later: sbatchgen resubmit {runs[0].record.run}"
            raise type(error)([*error.problems, Problem(what, fix=fix)]) from error
        del waiting[0]


@contextlib.contextmanager
def kept_points(sweep: Sweep, submission: Submission, runs: Sequence[SubmittedRun]) -> Iterator[None]:
    """Write the points into the run folder; if no array has been submitted, remove them again.

    Raises DocumentError if the folder holds another sweep.
    """
    assert submission.run_dir  # noqa: S101 - a job of Slurm has one
    file, text = submission.run_dir / POINTS, sweep.as_csv().encode()
    try:
        new, same = False, files.read_own(file, len(text) + 1) == text
    except FileNotFoundError:
        files.put(file, text)
        new = same = True
    if not same:
        what = f"{submission.run_dir} holds a sweep with other points"
        raise DocumentError.of(what, at=str(file), fix="start another: --job-name NAME, or --run-dir PATH")
    try:
        yield
    finally:
        if new and not runs:
            file.unlink(missing_ok=True)
