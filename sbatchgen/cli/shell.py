"""The command shell: a shell, or another command, in the environment of a job."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sbatchgen.base.errors import CommandLineError, SlurmError
from sbatchgen.cli.jobs import JobCommand, job_folder, request_of
from sbatchgen.cli.output import BUDGET, YES, note, put
from sbatchgen.cli.submit import DRY_RUN, show_and_confirm

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sbatchgen.jobs.runs.record import Record
    from sbatchgen.jobs.slurm.queue import SlurmJob
    from sbatchgen.jobs.submit.submission import Submission

_POLL_S, _MAX_POLL_S = 1.0, 10.0  # seconds between two questions to Slurm: at first, and at most
# The values of `how` in `shell`, each with its option.
_FLAGS = {"jupyter": "--jupyter", "config": "--ssh-config", "relay": "--relay"}
_CONNECTION_LOST = 255  # exit status of srun if it could not connect


def _parse_keep(_: click.Context, __: click.Parameter, value: str) -> int:
    """Return the seconds of --keep, 0 if it is not there; raise CommandLineError for a wrong value."""
    from sbatchgen.base.units import Period

    try:
        return int(Period.parse(value)) if value else 0
    except ValueError as error:
        raise CommandLineError.of(str(error), at="--keep", fix="--keep 30m") from error


@click.command(cls=JobCommand, usage="JOB|RUN [OPTIONS] [-- COMMAND]")
@YES
@DRY_RUN
@BUDGET
@click.option(
    "--keep",
    metavar="TIME",
    default="",
    callback=_parse_keep,
    help="Keep the nodes this long after the last terminal has gone, as 30m.",
)
@click.option(
    "--jupyter",
    "how",
    flag_value="jupyter",
    help="Start Jupyter on the node, and say how to reach the server.",
)
@click.option(
    "--ssh-config", "how", flag_value="config", help="Print the lines of ~/.ssh/config for the shell RUN."
)
@click.option(
    "--debug",
    type=click.IntRange(0),
    is_flag=False,
    flag_value=0,
    metavar="[RANK]",
    help="Stop this rank of train, by default 0, at breakpoint() and at a crash, with pdb in this terminal.",
)
@click.option("--relay", "how", flag_value="relay", help="Be the ProxyCommand of an ssh to the shell RUN.")
@click.pass_obj
def shell(
    command: tuple[str, ...],
    /,
    job: str,
    *,
    yes: bool,
    dry_run: bool,
    keep: int,
    how: str | None,
    debug: int | None,
    **job_options: Any,
) -> None:
    """Open a shell on the first node of a job, with the environment of the job.

    In the shell, train starts the training, and train --epochs 1 adds arguments. Ctrl-D gives the nodes back.
    A command after -- runs in place of a shell, as in: sbatchgen shell ddp -- train --epochs 1. Without
    --time a shell has an hour. With --keep a lost connection does not end the job: sbatchgen shell RUN
    opens another shell there.
    """
    from sbatchgen.lab.shell import remote

    if how and command:
        raise CommandLineError.of(f"there is no command beside {_FLAGS[how]}", fix=f"leave {command[0]} out")
    if debug is not None:
        if how or not _on_terminal():
            where = f"with {_FLAGS[how]}" if how else "here"
            what = f"--debug needs a terminal, and there is no terminal {where}"
            raise CommandLineError.of(what, fix="leave --debug out")
        os.environ["SBATCHGEN_DEBUG"] = str(debug)
    live = _find_session(job)
    if live and how == "config":
        _queue_row(live)  # raises if the job has ended
        put(remote.host_block(live, _own_program()))
        return
    if live:
        row = _wait_until_running(live, is_abandoned=_input_is_closed if how == "relay" else None)
        sys.exit(_attach(row, live, command, how, first=False))
    if how in ("config", "relay"):
        fix = "name the run of a shell; see your runs: sbatchgen status"
        raise CommandLineError.of(f"there is no shell named {job}", fix=fix)
    summary, submission = _submission(job, job_options, debug)
    if how and submission.local:
        fix = "leave --jupyter out, and start jupyter lab in the shell"
        raise CommandLineError.of("--jupyter needs a node of Slurm", fix=fix)
    if not show_and_confirm([submission.review], summary, yes=yes or dry_run, dry_run=dry_run):
        return
    sys.exit(_run_locally(submission, command) if submission.local else _run(submission, keep, command, how))


def _own_program() -> Path:
    """Return the path of sbatchgen with which this command was started."""
    path = Path(sys.argv[0]).absolute()
    return path.with_name("sbatchgen") if path.name == "__main__.py" else path


def _on_terminal() -> bool:
    """Return whether stdin, stdout and stderr are a terminal."""
    return all(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr))


def _submission(job: str, job_options: dict[str, Any], debug: int | None) -> tuple[str, Submission]:
    """Return the submission of a session in a job, after its summary for the question whether to submit."""
    from sbatchgen.jobs.review.screen import in_short
    from sbatchgen.jobs.submit.rendered import submission_of_job
    from sbatchgen.lab.shell import session

    training = request_of(job, (), job_options)
    options = job_options
    if training.resolved.slurm:
        options = session.session_options(job_options, training.resolved.profile)
    request = request_of(job, (), options)
    session.refuse_rank(request.resolved, debug)
    base = submission_of_job(request, os.environ, job_folder(), ask_squeue=True)
    submission = session.session_submission(training, request, base, os.environ)
    return in_short(submission.review), submission


def _find_session(name: str) -> Record | None:
    """Return the record of the newest session of a named run; None if the name is not a session's."""
    from sbatchgen.cli.output import current_folder
    from sbatchgen.jobs.runs.record import records
    from sbatchgen.jobs.submit import sbatch
    from sbatchgen.lab.shell import session

    index = sbatch.open_index(os.environ, note)
    runs = index.find(name, current_folder()) if index else []
    submissions = records(runs[0].folder) if len(runs) == 1 else []
    return submissions[-1] if submissions and session.is_session(submissions[-1]) else None


def _run(submission: Submission, keep: int, command: tuple[str, ...], how: str | None) -> int:
    """Submit a session, open its shell, and return the shell's exit status.

    `keep` is the seconds for which the job stays after its last terminal; with 0 it ends with the shell.
    """
    from sbatchgen.jobs.slurm import client
    from sbatchgen.jobs.submit import sbatch
    from sbatchgen.lab.shell import session

    index = sbatch.open_index(os.environ, note)
    with sbatch.reserve_run_folder(submission, os.environ, note) as (ready, lock):
        script_args = (str(keep),)
        run = sbatch.submit(ready, (), script_args, lock=lock, environment=os.environ, index=index, note=note)
    record, row = run.record, None
    if keep:
        note(f"note: run {record.run}, job {record.job}; another shell there: sbatchgen shell {record.run}")
    try:
        with contextlib.nullcontext() if keep else _end_at_hang_up():
            row = _wait_until_running(record)
        status = _attach(row, record, command, how, first=True)
    except BaseException:
        if not (keep and row):
            client.answer_if_any(["scancel", record.job], os.environ)
        raise
    # A session that was opened ends by itself, and other terminals may be in it.
    if status == _CONNECTION_LOST and not keep and not session.was_opened(record):
        client.answer_if_any(["scancel", record.job], os.environ)
    return status


@contextlib.contextmanager
def _end_at_hang_up() -> Iterator[None]:
    """End the command if its terminal is closed while the job waits, so that the job is cancelled.

    A running session gets the signal itself. After an error the old handler is not set again, because a
    second signal must not end the command before the job is cancelled.
    """
    import signal

    def end(number: int, _: object) -> None:
        signal.signal(number, signal.SIG_IGN)  # both the terminal and its shell may send the signal
        sys.exit(128 + number)

    old_handler = signal.getsignal(signal.SIGHUP)
    if old_handler is not signal.SIG_IGN:  # nohup ignores the signal
        signal.signal(signal.SIGHUP, end)
    yield
    signal.signal(signal.SIGHUP, old_handler)


def _attach(row: SlurmJob, record: Record, command: tuple[str, ...], how: str | None, *, first: bool) -> int:
    """Connect this terminal to a running session; return the exit status of its shell or command."""
    from sbatchgen.check.sbatch.hostlist import hosts
    from sbatchgen.jobs.slurm.client import run_here, submit_environment
    from sbatchgen.lab.shell import remote, session

    node = hosts(row.node_list)[0]
    if how == session.RELAY:
        command = ("serve_ssh", str(remote.private_key_folder(os.environ)))
    elif how == session.JUPYTER:
        command = ("serve_jupyter", *remote.forwarding_commands(record, node, _own_program()))
    tty = _on_terminal() and how != session.RELAY
    words = session.srun_command(
        record.job, node, command, has_tty=tty, is_first=first, how=how or session.CONNECT
    )
    environment, _ = submit_environment(os.environ)
    status = run_here(words, environment)
    if status and (why := session.why_ended(record)):
        raise SlurmError.of(f"job {record.job} has ended before its shell: {why}", at=record.log)
    return status


def _input_is_closed() -> bool:
    """Return whether the other end of stdin is closed, for example because the user has ended ssh."""
    import select

    poll = select.poll()
    poll.register(0, 0)  # no event is asked for, because poll always reports hang-ups
    return any(event & select.POLLHUP for _, event in poll.poll(0))


def _wait_until_running(record: Record, *, is_abandoned: Callable[[], bool] | None = None) -> SlurmJob:
    """Wait until a job runs, and return its row of squeue; raise SlurmError if the job has ended.

    Exit if `is_abandoned` returns True, because no user waits for the job any more.
    """
    pause, reason = _POLL_S, "None"
    while True:
        row = _queue_row(record)
        if row.state.name == "RUNNING" and row.node_list:
            return row
        if row.reason != reason:
            reason = row.reason
            note(f"note: job {record.job} waits ({reason})")
        time.sleep(pause)
        if is_abandoned and is_abandoned():
            sys.exit(_CONNECTION_LOST)
        pause = min(_MAX_POLL_S, 1.5 * pause)


def _queue_row(record: Record) -> SlurmJob:
    """Return squeue's row of a session's job; raise SlurmError if the job has ended."""
    from sbatchgen.jobs.slurm.queue import queue
    from sbatchgen.lab.shell.session import why_ended

    row = next(iter(queue(os.environ, [record.job])), None)
    if row is None or row.state.ended or row.state.name == "COMPLETING":
        why = why_ended(record) or "there is no shell any more"
        fix = f"sbatchgen diagnose {record.job}"
        raise SlurmError.of(f"job {record.job} has ended: {why}", at=record.log, fix=fix)
    return row


def _run_locally(submission: Submission, command: tuple[str, ...]) -> int:
    """Open the shell of a job without Slurm on this machine; return its exit status."""
    from sbatchgen.jobs.slurm.client import run_here, submit_environment
    from sbatchgen.jobs.slurm.queue import new_key, private_script
    from sbatchgen.jobs.submit import sbatch

    sbatch.refuse_past_budget(submission, os.environ)
    with private_script(submission.script, submission.name, new_key()) as script:
        environment, _ = submit_environment(os.environ)
        return run_here(["bash", str(script), *command], environment)
