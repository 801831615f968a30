"""The command sweep: it submits many trainings that differ in some arguments.

`resubmit` submits some of these trainings again, with `run_sweep`.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sbatchgen.base.errors import CommandLineError, SbatchgenError
from sbatchgen.cli import submit
from sbatchgen.cli.jobs import SNAPSHOT, SNAPSHOT_FILE, JobCommand, pop_snapshot_files, request_of, review_of
from sbatchgen.cli.output import BUDGET, FORMAT, YES, current_folder, note

if TYPE_CHECKING:
    from sbatchgen.jobs.resolved.request import Request
    from sbatchgen.jobs.resolved.resolved_job import ResolvedJob
    from sbatchgen.jobs.resolved.sweep import Sweep, SweepArray
    from sbatchgen.jobs.submit.sbatch import SubmittedRun
    from sbatchgen.jobs.submit.submission import Submission

# A function that chooses points of a sweep to submit, and returns their numbers.
ChoosePoints = Callable[["Sweep"], Iterable[int]]


@click.command(cls=JobCommand)
@click.option(
    "--param",
    "params",
    metavar="NAME=VALUES",
    multiple=True,
    help="A parameter and its values, as lr=0.1,0.01; with --random also a range, as lr=0.01:0.1 or "
    "lr=log:1e-4:0.1. The trainer gets --lr=VALUE. If an argument or --env has {lr}, VALUE replaces it.",
)
@click.option(
    "--file",
    metavar="CSV",
    type=click.Path(),
    help="Read the points from a file: the names in the first line, and a point in each other line.",
)
@click.option(
    "--random",
    "random_count",
    metavar="N",
    type=click.IntRange(min=1),
    help="Submit only N points, chosen at random.",
)
@click.option("--seed", metavar="N", type=int, default=0, help="Seed of --random.", show_default=True)
@click.option("--throttle", metavar="N", type=click.IntRange(min=1), help="Run at most N points at a time.")
@SNAPSHOT
@SNAPSHOT_FILE
@YES
@submit.DRY_RUN
@submit.REVIEWED
@BUDGET
@FORMAT
@click.pass_obj
def sweep(args: tuple[str, ...], /, job: str, **job_options: Any) -> None:
    """Train a job with many values of its arguments.

    Each combination of the values is a point, which is an element of an array and has its own run folder. For
    example: sbatchgen sweep single --param lr=0.1,0.01 --param batch-size=64,128
    """
    run_sweep(args, job, job_options)


def run_sweep(
    args: tuple[str, ...], job: str, job_options: dict[str, Any], choose: ChoosePoints | None = None
) -> None:
    """Review a sweep, ask the user, and submit its points in job arrays.

    With `choose`, only the points that it returns are submitted. `resubmit` chooses points so.
    """
    from sbatchgen.jobs.resolved.request import with_sweep
    from sbatchgen.jobs.resolved.sweep import divide_into_arrays, grid, read_points

    option_names = (
        "params", "file", "random_count", "seed", "throttle", "yes", "dry_run", "reviewed", "form",
    )  # fmt: skip
    options = {name: job_options.pop(name) for name in option_names}
    options["snapshot"] = pop_snapshot_files(job_options)
    params, file, random_count = options["params"], options["file"], options["random_count"]
    if bool(params) == bool(file) or (file and random_count):
        what = "give the points by --param, with or without --random, or by --file"
        raise CommandLineError.of(what, fix="as in: --param lr=0.1,0.01 --param batch-size=64,128")
    new_sweep = read_points(Path(file)) if file else grid(params, random_count, options["seed"])
    chosen = list(choose(new_sweep) if choose else range(len(new_sweep.points)))
    if not chosen:
        note("note: no point to submit: all are done, or in the queue")
        submit.put_submitted(options["form"], [], [])
        return
    if job_options.get("array"):
        fix = "leave --array out; --throttle limits how many points run at a time"
        raise CommandLineError.of("a sweep makes its own array", at="--array", fix=fix)
    job_options["array"] = "0"  # a placeholder: the arrays depend on the cluster, which the request names
    request = request_of(job, args, job_options)
    arrays = divide_into_arrays(chosen, _max_tasks(request.resolved))
    # Each task looks up its point. In a single array that begins with point 0, the index of a task is the
    # number of its point. In other arrays, a task adds its index to the number of the array's first point.
    gets_first_point = len(arrays) > 1 or arrays[0].first_point > 0
    new_sweep = dataclasses.replace(
        new_sweep, submitted_points=len(chosen), gets_first_point=gets_first_point
    )
    # The options of the sweep in the recorded command. `resubmit` reads the points from them again.
    words = [word for text in params for word in ("--param", text)]
    words += ["--file", file] if file else []
    words += ["--random", str(random_count), "--seed", str(options["seed"])] if random_count else []
    words += ["--throttle", str(options["throttle"])] if options["throttle"] else []
    options["throttle"] = _throttle_within_budgets(options["throttle"], len(chosen), len(arrays))
    request = with_sweep(request, new_sweep, arrays[0].text(options["throttle"]), words)
    _submit_arrays(request, new_sweep, arrays, options, is_new=choose is None)


def _max_tasks(resolved: ResolvedJob) -> int:
    """Return how many tasks an array may have, by the limits of the live cluster, or else of the profile."""
    from sbatchgen.check.rules.limits import MAX_ARRAY_SIZE
    from sbatchgen.jobs.slurm.config import array_limits, config

    if not resolved.uses_slurm:
        what = f"a sweep needs Slurm job arrays; profile '{resolved.profile.name}' has no Slurm"
        raise CommandLineError.of(what, fix="name a profile of a cluster: --profile NAME")
    limits = resolved.profile.limits
    limits_of_profile = [limit for limit in (limits.max_array_size, limits.max_array_tasks) if limit]
    return min(array_limits(config(os.environ)).values() or limits_of_profile, default=MAX_ARRAY_SIZE)


def _throttle_within_budgets(throttle: int | None, point_count: int, array_count: int) -> int | None:
    """Return how many points of each array may run at a time; None if nothing limits them.

    The number is `throttle`, as typed, or less if a budget allows fewer jobs.
    """
    from sbatchgen.jobs.budget.spent import standings

    for standing in standings(os.environ):
        if standing.jobs is None:
            continue
        # At least one: if the budget leaves no job, the submission is refused later.
        max_by_budget = max(int(standing.jobs) // array_count, 1)
        if max_by_budget < min(throttle or point_count, point_count):
            why = f"the budget {standing.file} leaves {standing.jobs} jobs"
            note(f"note: at most {max_by_budget} points run at a time: {why}")
            throttle = max_by_budget
    return throttle


def _submit_arrays(
    request: Request, new_sweep: Sweep, arrays: list[SweepArray], options: dict[str, Any], *, is_new: bool
) -> None:
    """Review a sweep, ask the user, and submit its arrays.

    `options` has the options of the command `sweep` that do not describe the job. `is_new` is whether the
    sweep is submitted for the first time. Its run folder must then have no waiting or running job.
    """
    from sbatchgen.jobs.review.review import folded
    from sbatchgen.jobs.review.screen import in_short
    from sbatchgen.jobs.submit import sbatch
    from sbatchgen.jobs.submit.rendered import submission_of_job

    submission = submission_of_job(
        request, os.environ, current_folder(), ask_squeue=is_new, snapshot=options["snapshot"]
    )
    form, reviews = options["form"], [review_of(submission)]
    array_note = f" in {len(arrays)} arrays" if len(arrays) > 1 else ""
    summary = f"{in_short(submission.review)}: {new_sweep.submitted_points:,} points{array_note}"
    submit.exit_with_json_errors(form, reviews)
    confirm_options = {name: options[name] for name in ("yes", "dry_run", "reviewed")}
    if not submit.show_and_confirm([*map(folded, reviews)], summary, **confirm_options):
        sbatch.refuse_past_budget(submission, os.environ)
        submit.put_submitted(form, [], reviews)
        return
    runs: list[SubmittedRun] = []
    try:
        _submit_to_slurm(submission, new_sweep, arrays, options["throttle"], runs)
    except SbatchgenError as error:
        if runs:
            submit.put_submitted(form, runs, reviews, refused=error)
        raise
    finally:
        if runs:
            with submit.ids_on_stderr(form):
                submit.show_submitted(runs, f"status {runs[0].record.run}, cancel, resubmit")
    submit.put_submitted(form, runs, reviews)


def _submit_to_slurm(
    submission: Submission,
    new_sweep: Sweep,
    arrays: list[SweepArray],
    throttle: int | None,
    runs: list[SubmittedRun],
) -> None:
    """Submit the arrays of a sweep, and add each submitted array to `runs`.

    The points are written into the run folder first, where later commands such as `status` read them.
    """
    from sbatchgen.jobs.submit import sbatch, sweep_arrays

    index = sbatch.open_index(os.environ, note)
    with (
        sbatch.reserve_run_folder(submission, os.environ, note) as (reserved, lock),
        sweep_arrays.keep_points(new_sweep, reserved, runs),
    ):
        submit_array = partial(sbatch.submit, lock=lock, environment=os.environ, index=index, note=note)
        sweep_arrays.submit_arrays(reserved, arrays, throttle, submit_array, runs)
