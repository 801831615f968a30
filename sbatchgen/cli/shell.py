"""The command shell: it opens a shell, or runs a command, on the first node of a job.

A session is a job of Slurm that runs no training, but holds the nodes for shells of the user.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
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
# What a session can be used for in place of a shell, and the option that says so.
_OPTION_OF_USE = {"jupyter": "--jupyter", "config": "--ssh-config", "relay": "--relay"}
# Parameters of the command that also count for a session that was submitted earlier.
_SESSION_PARAMETERS = frozenset(("job", "yes", "dry_run", "budget", "use", "debug"))
_CONNECTION_LOST = 255  # exit status of srun if it could not connect


def _parse_keep(_: click.Context, __: click.Parameter, value: str) -> int:
    """Return the seconds of --keep, 0 without --keep; raise CommandLineError for a wrong value."""
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
    help="Keep the nodes for this time after the last terminal has closed, such as 30m.",
)
@click.option(
    "--jupyter",
    "use",
    flag_value="jupyter",
    help="Start Jupyter on the node, and say how to reach the server.",
)
@click.option(
    "--ssh-config", "use", flag_value="config", help="Print lines for ~/.ssh/config to reach the shell RUN."
)
@click.option(
    "--debug",
    type=click.IntRange(0),
    is_flag=False,
    flag_value=0,
    metavar="[RANK]",
    help="Open pdb here when this rank of train, by default 0, reaches breakpoint() or crashes.",
)
@click.option("--relay", "use", flag_value="relay", help="Act as the ProxyCommand of ssh to the shell RUN.")
@click.pass_obj
def shell(
    command: tuple[str, ...],
    /,
    job: str,
    *,
    yes: bool,
    dry_run: bool,
    keep: int,
    use: str | None,
    debug: int | None,
    **job_options: Any,
) -> None:
    """Open a shell on the first node of a job, with the environment of the job.

    In the shell, train starts the training, and train --epochs 1 adds arguments. Ctrl-D gives the nodes back.
    A command after -- runs in place of a shell, as in: sbatchgen shell ddp -- train --epochs 1. Without
    --time a shell has an hour. With --keep a lost connection does not end the job: sbatchgen shell RUN
    opens another shell there.
    """
    from sbatchgen.jobs.review.screen import in_short

    if use and command:
        what = f"{_OPTION_OF_USE[use]} takes no command"
        raise CommandLineError.of(what, fix=f"leave {command[0]} out")
    if debug is not None:
        if use or not _on_terminal():
            where = f"with {_OPTION_OF_USE[use]}" if use else "here"
            what = f"--debug needs a terminal, and there is no terminal {where}"
            raise CommandLineError.of(what, fix="leave --debug out")
        os.environ["SBATCHGEN_DEBUG"] = str(debug)  # srun passes the variable on to the session
    if session_record := _find_session(job):
        _use_session(session_record, command, use, dry_run=dry_run)
        return
    if use in ("config", "relay"):
        fix = "name the run of a shell; see your runs: sbatchgen status"
        raise CommandLineError.of(f"there is no shell named {job}", fix=fix)
    submission = _session_submission(job, job_options, debug)
    if use and submission.local:
        fix = "leave --jupyter out, and start jupyter lab in the shell"
        raise CommandLineError.of("--jupyter needs a node of Slurm", fix=fix)
    review = submission.review
    if not show_and_confirm([review], in_short(review), yes=yes, dry_run=dry_run):
        return
    if submission.local:
        sys.exit(_open_without_slurm(submission, command))
    sys.exit(_submit_and_open(submission, keep, command, use))


def _on_terminal() -> bool:
    """Return whether stdin, stdout and stderr are a terminal."""
    return all(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr))


def _session_submission(job: str, job_options: dict[str, Any], debug: int | None) -> Submission:
    """Return the submission of a session: a job that holds nodes for shells, and starts no training.

    `debug` is the rank of the training that pdb may stop, or None.
    """
    from sbatchgen.jobs.submit.rendered import submission_of_job
    from sbatchgen.lab.shell import session

    training_request = request_of(job, (), job_options)
    options = job_options
    if training_request.resolved.uses_slurm:
        options = session.session_options(job_options, training_request.resolved.profile)
    session_request = request_of(job, (), options)
    session.refuse_rank(session_request.resolved, debug)
    job_submission = submission_of_job(session_request, os.environ, job_folder(), ask_squeue=True)
    return session.session_submission(training_request, session_request, job_submission, os.environ)


def _find_session(name: str) -> Record | None:
    """Return the record of the newest job of run `name` if this job is a session; else None."""
    from sbatchgen.cli.output import current_folder
    from sbatchgen.jobs.runs.record import records
    from sbatchgen.jobs.submit import sbatch
    from sbatchgen.lab.shell import session

    index = sbatch.open_index(os.environ, note)
    runs = index.find(name, current_folder()) if index else []
    records_of_run = records(runs[0].folder) if len(runs) == 1 else []
    newest = records_of_run[-1] if records_of_run else None
    return newest if newest and session.is_session(newest) else None


def _use_session(record: Record, command: tuple[str, ...], use: str | None, *, dry_run: bool) -> None:
    """Use a session that was submitted earlier, and exit with the status of its shell or command.

    Raises CommandLineError for options of a job, because the session has its nodes and its time already.
    """
    from sbatchgen.base.machine import packages
    from sbatchgen.lab.shell import remote

    _refuse_job_options(record)
    if use == "config" or dry_run:
        row = _find_queue_row(record)  # raises if the job has ended
    if use == "config":
        put(remote.host_block(record, packages.own_command()))
        return
    if dry_run:
        what = f"this would use job {record.job} of run {record.run}, which is {row.state.name}"
        note(f"note: {what}, and submit no job")
        return
    is_abandoned = _input_is_closed if use == "relay" else None
    row = _wait_until_running(record, is_abandoned=is_abandoned)
    sys.exit(_attach(row, record, command, use, is_first=False))


def _refuse_job_options(record: Record) -> None:
    """Raise CommandLineError if the command has an option, such as --time, that only a new job can obey."""
    context = click.get_current_context()
    typed = [
        parameter.opts[0]
        for parameter in context.command.get_params(context)
        if parameter.name
        and parameter.name not in _SESSION_PARAMETERS
        and context.get_parameter_source(parameter.name) is click.core.ParameterSource.COMMANDLINE
    ]
    if typed:
        options = " and ".join(typed)
        what = f"shell {record.run} uses job {record.job}, which can't get another {options}"
        raise CommandLineError.of(what, fix=f"leave {options} out")


def _submit_and_open(submission: Submission, keep_s: int, command: tuple[str, ...], use: str | None) -> int:
    """Submit a session, open its shell, and return the shell's exit status.

    `keep_s` is how many seconds the job stays after the last terminal has closed. With 0, the job ends with
    the shell.
    """
    from sbatchgen.jobs.slurm import client
    from sbatchgen.jobs.submit import sbatch
    from sbatchgen.lab.shell import session

    index = sbatch.open_index(os.environ, note)
    with sbatch.reserve_run_folder(submission, os.environ, note) as (reserved, lock):
        script_args = (str(keep_s),)
        run = sbatch.submit(
            reserved, (), script_args, lock=lock, environment=os.environ, index=index, note=note
        )
    record, row = run.record, None
    if keep_s:
        note(f"note: run {record.run}, job {record.job}; another shell there: sbatchgen shell {record.run}")
    try:
        with contextlib.nullcontext() if keep_s else _exit_at_hang_up():
            row = _wait_until_running(record)
        status = _attach(row, record, command, use, is_first=True)
    except BaseException:
        is_kept = keep_s and row  # the session runs, and waits for the next terminal
        if not is_kept:
            client.answer_if_any(["scancel", record.job], os.environ)
        raise
    # A session to which a terminal has connected ends by itself, and other terminals may still use it.
    if status == _CONNECTION_LOST and not keep_s and not session.was_opened(record):
        client.answer_if_any(["scancel", record.job], os.environ)
    return status


@contextlib.contextmanager
def _exit_at_hang_up() -> Iterator[None]:
    """Exit if the terminal is closed while the job waits, so that the caller cancels the job.

    Once the session runs, it gets the hang-up too, and ends by itself. After an error the old handler is not
    set again, because a second signal must not end the command before the job is cancelled.
    """
    import signal

    def exit_at_signal(number: int, _: object) -> None:
        signal.signal(number, signal.SIG_IGN)  # both the terminal and its shell may send the signal
        sys.exit(128 + number)

    old_handler = signal.getsignal(signal.SIGHUP)
    ignores_hang_up = old_handler is signal.SIG_IGN  # the user has started the command with nohup
    if not ignores_hang_up:
        signal.signal(signal.SIGHUP, exit_at_signal)
    yield
    signal.signal(signal.SIGHUP, old_handler)


def _attach(
    row: SlurmJob, record: Record, command: tuple[str, ...], use: str | None, *, is_first: bool
) -> int:
    """Connect this terminal to a running session; return the exit status of its shell or command.

    `is_first` says that this command has submitted the session. The session waits for its first terminal.
    """
    from sbatchgen.base.machine import packages
    from sbatchgen.check.sbatch.hostlist import hosts
    from sbatchgen.jobs.slurm.client import run_here, submit_environment
    from sbatchgen.lab.shell import remote, session

    node = hosts(row.node_list)[0]
    if use == session.RELAY:
        command = ("serve_ssh", str(remote.private_key_folder(os.environ)))
    elif use == session.JUPYTER:
        command = ("serve_jupyter", *remote.forwarding_commands(record, node, packages.own_command()))
    has_tty = _on_terminal() and use != session.RELAY
    words = session.srun_command(
        record.job, node, command, has_tty=has_tty, is_first=is_first, mode=use or session.CONNECT
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
    stdin, no_events = 0, 0  # poll always reports hang-ups, even if no event is asked for
    poll.register(stdin, no_events)
    return any(event & select.POLLHUP for _, event in poll.poll(0))


def _wait_until_running(record: Record, *, is_abandoned: Callable[[], bool] | None = None) -> SlurmJob:
    """Wait until a job runs, and return its row of squeue; raise SlurmError if the job has ended.

    Exit if `is_abandoned` returns True, because no user waits for the job any more.
    """
    pause_s, reason = _POLL_S, "None"  # Slurm's reason for a job that does not wait is the word None
    while True:
        row = _find_queue_row(record)
        if row.state.name == "RUNNING" and row.node_list:
            return row
        if row.reason != reason:
            reason = row.reason
            note(f"note: job {record.job} waits ({reason})")
        time.sleep(pause_s)
        if is_abandoned and is_abandoned():
            sys.exit(_CONNECTION_LOST)
        pause_s = min(_MAX_POLL_S, 1.5 * pause_s)


def _find_queue_row(record: Record) -> SlurmJob:
    """Return squeue's row of a session's job; raise SlurmError if the job has ended."""
    from sbatchgen.jobs.slurm.queue import squeue_jobs
    from sbatchgen.lab.shell.session import why_ended

    row = next(iter(squeue_jobs(os.environ, [record.job])), None)
    if row is None or row.state.ended or row.state.name == "COMPLETING":
        why = why_ended(record) or "there is no shell any more"
        fix = f"sbatchgen diagnose {record.job}"
        raise SlurmError.of(f"job {record.job} has ended: {why}", at=record.log, fix=fix)
    return row


def _open_without_slurm(submission: Submission, command: tuple[str, ...]) -> int:
    """Open the shell of a job on this machine, which has no Slurm; return the shell's exit status."""
    from sbatchgen.jobs.slurm.client import run_here, submit_environment
    from sbatchgen.jobs.slurm.queue import new_key, private_script
    from sbatchgen.jobs.submit import sbatch

    sbatch.refuse_past_budget(submission, os.environ)
    with private_script(submission.script, submission.name, new_key()) as script:
        environment, _ = submit_environment(os.environ)
        return run_here(["bash", str(script), *command], environment)
