"""sweep, resubmit: many trainings that differ in some arguments."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sbatchgen.cli.jobs import JobCommand, request_of
from sbatchgen.cli.output import YES, ask, completed_runs, failure_of, here, note, put, say, show_review
from sbatchgen.cli.submit import SNAPSHOT, SNAPSHOT_FILE, last_record, snapshot_of
from sbatchgen.errors import CommandLineError, SlurmError

if TYPE_CHECKING:
    from sbatchgen.plan.plan import Plan
    from sbatchgen.plan.request import Request
    from sbatchgen.plan.sweep import Sweep, SweepArray
    from sbatchgen.submit.sbatch import SubmittedRun
    from sbatchgen.submit.submission import Submission

Submit = Callable[..., "SubmittedRun"]  # `sbatch.submit` with the index and the lock
# Chooses points of a sweep by their numbers.
Choice = Callable[["Sweep"], Iterable[int]]


@click.command(cls=JobCommand)
@click.option(
    "--param",
    "params",
    metavar="NAME=VALUES",
    multiple=True,
    help="A flag of the trainer and its values, as lr=0.1,0.01.",
)
@click.option(
    "--file", "file", metavar="CSV", help="A file of points: flags in the first line, then a point a line."
)
@click.option(
    "--random",
    "most",
    metavar="N",
    type=click.IntRange(min=1),
    help="Only N of all combinations, chosen at random.",
)
@click.option("--seed", type=int, default=0, help="Seed of --random.", show_default=True)
@click.option("--throttle", metavar="N", type=click.IntRange(min=1), help="Run at most N points at a time.")
@SNAPSHOT
@SNAPSHOT_FILE
@YES
@click.option("--dry-run", is_flag=True, help="Review only.")
@click.pass_obj
def sweep(args: tuple[str, ...], /, job: str, **given: Any) -> None:
    """Train a job with many values of its arguments.

    Each combination of the values is a point: an element of an array, with a run folder of its own, as in:
    sbatchgen sweep single --param lr=0.1,0.01 --param batch-size=64,128
    """
    run_sweep(args, job, given)


def run_sweep(args: tuple[str, ...], job: str, given: dict[str, Any], choice: Choice | None = None) -> None:
    """Review a sweep, ask, and submit its arrays; of its points those that are chosen."""
    from sbatchgen.plan.request import with_sweep
    from sbatchgen.plan.sweep import parts

    options = {
        name: given.pop(name) for name in ("params", "file", "most", "seed", "throttle", "yes", "dry_run")
    }
    options["snapshot"] = snapshot_of(given)
    points = _points(options)
    chosen = list(choice(points) if choice else range(len(points.points)))
    if not chosen:
        note("note: no point to submit: all are done, or in the queue")
        return
    if given.get("array"):
        raise CommandLineError.of(
            "a sweep makes its own array", at="--array", fix="leave it out; see --throttle"
        )
    given["array"] = "0"  # until its length is known
    request = request_of(job, args, given)
    several = parts(chosen, _most_tasks(request.plan))
    carried = len(several) > 1 or several[0].first > 0
    points = dataclasses.replace(points, chosen=len(chosen), carried=carried)
    request = with_sweep(request, points, several[0].text(options["throttle"]), _words(options))
    _submit(request, points, several, options, new=choice is None)


def _points(options: dict[str, Any]) -> Sweep:
    """The points that the options of a sweep give."""
    from sbatchgen.plan.sweep import grid, read_points

    params, file, most = options["params"], options["file"], options["most"]
    if bool(params) == bool(file) or (file and most):
        what = "give the points by --param, with or without --random, or by --file"
        raise CommandLineError.of(what, fix="as in: --param lr=0.1,0.01 --param batch-size=64,128")
    return read_points(Path(file)) if file else grid(params, most, options["seed"])


def _most_tasks(plan: Plan) -> int:
    """How many elements an array may have: as the live cluster says, else the profile."""
    from sbatchgen.rules.placement import MAX_ARRAY_SIZE
    from sbatchgen.slurm.config import array_limits, config

    if not plan.slurm:
        what = f"a sweep is an array of Slurm, and profile '{plan.profile.name}' has none"
        raise CommandLineError.of(what, fix="name a profile of a cluster: --profile NAME")
    limits = plan.profile.limits
    known = [one for one in (limits.max_array_size, limits.max_array_tasks) if one]
    return min(array_limits(config(os.environ)).values() or known, default=MAX_ARRAY_SIZE)


def _words(options: dict[str, Any]) -> list[str]:
    """The options that gave the points."""
    words = [word for text in options["params"] for word in ("--param", text)]
    words += ["--file", options["file"]] if options["file"] else []
    words += ["--random", str(options["most"]), "--seed", str(options["seed"])] if options["most"] else []
    words += ["--throttle", str(options["throttle"])] if options["throttle"] else []
    return words


def _submit(
    request: Request, points: Sweep, several: list[SweepArray], options: dict[str, Any], *, new: bool
) -> None:
    from sbatchgen.review.review import folded
    from sbatchgen.review.screen import in_short
    from sbatchgen.submit import sbatch
    from sbatchgen.submit.rendered import of_job

    submission = of_job(request, os.environ, here(), ask_squeue=new, snapshot=options["snapshot"])
    show_review(folded(submission.review), sys.stderr)
    if failure := failure_of(submission.review.findings):
        sys.exit(failure.exit_status)
    if options["dry_run"]:
        return
    arrays = f" in {len(several)} arrays" if len(several) > 1 else ""
    ask(f"{in_short(submission.review)}: {points.chosen:,} points{arrays}", yes=options["yes"])
    index = sbatch.open_index(os.environ, note)
    with sbatch.reserved(submission, os.environ, note) as (reserved, lock):
        _send_all(
            reserved, points, several, options["throttle"], partial(sbatch.submit, index=index, lock=lock)
        )


def _send_all(
    submission: Submission,
    points: Sweep,
    several: list[SweepArray],
    throttle: int | None,
    submit: Submit,
) -> None:
    """Submit the arrays of a sweep, and say which points are left."""
    from sbatchgen.plan.sweep import numbers_as_text
    from sbatchgen.runs.points import POINTS
    from sbatchgen.submit import sweep as sending

    run_dir = submission.run_dir
    assert run_dir  # noqa: S101 - a job of Slurm has one
    made = sending.keep_points(points, run_dir)

    def send(one: Submission, options: tuple[str, ...], arguments: tuple[str, ...]) -> SubmittedRun:
        done = submit(one, os.environ, keep_env=False, note=note, options=options, arguments=arguments)
        put(done.record.job)
        if done.accepted.says:
            note(done.accepted.says)
        return done

    try:
        done = sending.submit(submission, several, throttle, send)
    except BaseException:
        if made:
            (run_dir / POINTS).unlink(missing_ok=True)
        raise
    name = done.runs[0].record.run
    note(done.runs[0].hint(f"status {name}, cancel, resubmit"))
    if done.why:
        rest = [part.first + one for part in done.rest for one in part.indices]
        for problem in done.why.problems:
            say(problem, "error")
        what = f"{len(rest):,} points are not submitted: {numbers_as_text(rest)}"
        raise SlurmError.of(what, fix=f"later: sbatchgen resubmit {name}")


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("run", metavar="RUN", shell_complete=completed_runs)
@click.argument("options", metavar="[OPTIONS OF SWEEP]", nargs=-1, type=click.UNPROCESSED)
@click.option("--failed", is_flag=True, help="Only points that ran and failed.")
@click.option("--points", "only", metavar="LIST", default="", help="Only these points, as 3,17-19.")
@YES
@click.pass_obj
def resubmit(
    args: tuple[str, ...], /, run: str, *, options: tuple[str, ...], failed: bool, only: str, yes: bool
) -> None:
    """Submit the unfinished points of a sweep again.

    Points that wait or run are left alone. Options change the job, as in: sbatchgen resubmit lr --failed
    --time 8:00:00. The bundled trainer continues from its last good checkpoint.
    """
    from sbatchgen.cli.runs import state_of
    from sbatchgen.runs import points
    from sbatchgen.sbatch.array import indices

    asked = {one for several in indices(only) or () for one in several}
    if only and not asked:
        raise CommandLineError.of(f"'{only}' is not a list of points", at="--points", fix="write 3,17-19")
    state, problems = state_of(run)
    if problems:
        raise SlurmError(problems)
    if state.sweep is None:
        what = f"run {state.run.name} is not a sweep"
        raise CommandLineError.of(what, fix=f"sbatchgen resume {state.run.name}")
    chosen = [
        one.number
        for one in state.sweep.points
        if not one.live
        and (one.number in asked if only else one.state != points.DONE)
        and (not failed or one.state in (points.FAILED, points.STOPPED))
    ]
    before = state.sweep
    last = last_record(state.run)

    def choice(now: Sweep) -> list[int]:
        if (now.names, now.points) != (before.names, tuple(one.values for one in before.points)):
            what = f"the points of run {state.run.name} have changed since"
            raise CommandLineError.of(what, fix="submit another sweep: --job-name NAME")
        return chosen

    words, old_args = last.typed
    agreed = ("--yes",) if yes else ()
    given = (*words, *options, *agreed)
    trainer_args = (*old_args, *args)
    with sweep.make_context("sweep", [*given], obj=trainer_args) as context:
        run_sweep(trainer_args, context.params.pop("job"), context.params, choice)
