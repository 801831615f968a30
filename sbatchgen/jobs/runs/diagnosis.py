"""The diagnosis of a run, for `diagnose`: why it failed, or why it waits or stands still.

The facts come from Slurm, from the run's logs and from its run folder.
"""

from collections.abc import Mapping, Sequence
from typing import TypedDict

from sbatchgen.base.errors import Problem
from sbatchgen.base.frozen import frozen
from sbatchgen.base.machine.trust import user_name
from sbatchgen.base.quoting import ALSO, fix_lines, one_line
from sbatchgen.jobs.runs import stall
from sbatchgen.jobs.runs.causes import likely_causes
from sbatchgen.jobs.runs.failure import (
    Failure,
    crash_line,
    suspicious_lines,
)
from sbatchgen.jobs.runs.fix_for_run import fixes_for_run
from sbatchgen.jobs.runs.job_end import NO_FAILURE, JobEnd, has_failed, job_to_diagnose, read_end
from sbatchgen.jobs.runs.overview import headline
from sbatchgen.jobs.runs.points import FAILED
from sbatchgen.jobs.runs.progress import Progress
from sbatchgen.jobs.runs.seen_jobs import ENDED_WITH_ERRORS
from sbatchgen.jobs.runs.status import RunState
from sbatchgen.jobs.slurm.queue import SlurmJob
from sbatchgen.jobs.slurm.state import explain_reason

MAX_CAUSES = 3  # causes in the text for people; JSON has all
MAX_SHOWN_CHARS = 300  # characters of a log's line that are shown
# Fixes for a run that stands still
_SHOW_STALL = (
    "sbatchgen logs {run} --lines 20 shows where" + ALSO
    + "sbatchgen exec {run} -- top -b -n 1 shows whether it computes" + ALSO
)  # fmt: skip
_END_STALL = _SHOW_STALL + "if it does not continue: sbatchgen cancel {run}, then sbatchgen resume {run}"
_END_STALL_OF_PLAIN = _SHOW_STALL + "if it does not continue: scancel {id}"
# Fixes for a run that has printed nothing, for a finished script and for the user's own trainer
_TRACE_SCRIPT = "let the script show each command: set -x after its directives"
_TRAINER_SILENT = "{trainer} has printed nothing: let it print what it does, or start it by hand"


class LogLine(TypedDict):
    """A line of a log, with its number from 1."""

    line: int
    says: str


@frozen(kw_only=True)
class Diagnosis:
    """What a run does or how it ended, with the likely causes of a failure and fixes."""

    run: str  # the name of the run
    job: str = ""  # the id of the diagnosed job if it is an older one; "" for the newest job
    failed: bool
    says: str  # what the job does, or how it ended
    fix: str = ""  # what to do if the job waits, stands still or has printed nothing
    log: str = ""  # the file that shows the cause: a log, the script or status.json; "" without such a file
    causes: Sequence[Failure] = ()  # what most likely happened, the likeliest first
    lines: Sequence[LogLine] = ()  # if no cause is known: the last lines that look like an error
    problems: Sequence[Problem] = ()  # why something could not be read


def is_failed(state: RunState) -> bool:
    """Return whether a run is known to have failed: its newest job, its training, or a point of its sweep."""
    if state.sweep:
        return FAILED in state.sweep.numbers_by_state
    job = state.last_job
    if job is None or not job.ended:
        return False
    return job.says == ENDED_WITH_ERRORS or has_failed(job.state, job, state.progress)


def diagnose(state: RunState, environment: Mapping[str, str], task: str = "", job_id: str = "") -> Diagnosis:
    """Return what happened to a run; for an array or a sweep, to a task or a point.

    `task` is the task or the point, or "" for the first that failed. Several jobs may have run a point:
    `job_id` is the id of the job to diagnose, or "" for the newest.
    """
    run, says = state.run.name, headline(state)
    if state.sweep:
        failed_points = [str(number) for number in state.sweep.numbers_by_state.get(FAILED, ())]
        task = task or next(iter(failed_points), "")
        is_older_job = job_to_diagnose(state, task, job_id) != job_to_diagnose(state, task)
        if task not in failed_points and not is_older_job:
            return Diagnosis(run=run, failed=False, says=f"point {task} has not failed" if task else says)
    job, record = job_to_diagnose(state, task, job_id)
    if job is None:
        return Diagnosis(run=run, failed=False, says=says)
    end = read_end(state, job, record, task, environment)
    has_hidden_crash = not end.is_failure and end.has_ended and any(map(crash_line, end.logs.values()))
    is_forgotten = end.has_ended and not end.state_name  # by Slurm; but the log may show a cause
    may_have_causes = end.is_failure or has_hidden_crash or is_forgotten
    causes = [*fixes_for_run(likely_causes(end), end, environment)] if may_have_causes else []
    failed = end.is_failure or has_hidden_crash or bool(causes)
    says = _end_in_words(end, says, is_failure=failed, has_hidden_crash=has_hidden_crash)
    fix = "" if failed else _fix_for_wait(state)
    if state.standstill:  # the text about a hanging rank comes first
        texts = sorted((says, state.standstill), key=lambda text: not text.startswith(stall.HANGS_PREFIX))
        says, fix = "; ".join(texts), _fix_for_stall(state)
    log = _log_to_show(end)
    bad_lines = suspicious_lines(end.logs.get(log, ())) if failed and not causes else ()
    return Diagnosis(
        run=run,
        job=state.job,
        failed=failed,
        says=_with_details(says, end.row, end.training),
        fix=fix or (_fix_for_silence(end, causes) if failed else ""),
        log=next((cause.file for cause in causes if cause.file), log),
        causes=causes,
        lines=[LogLine(line=number, says=text) for number, text in bad_lines],
        problems=end.problems,
    )


def _end_in_words(end: JobEnd, run_headline: str, *, is_failure: bool, has_hidden_crash: bool) -> str:
    """Return in words how a job or a task ended; the words about a job begin with the headline of its run.

    A crash is hidden if the job continued after a program crashed, and ended with status 0.
    """
    says = run_headline
    if end.task:
        unit = "point" if end.state.sweep else "task"
        says = f"{unit} {end.task} of job {end.job.id} {end.row.state.words if end.row else 'ended'}"
    if is_failure and end.state_name in NO_FAILURE and not (has_hidden_crash and ENDED_WITH_ERRORS in says):
        says += f", {ENDED_WITH_ERRORS}" if has_hidden_crash else ", but its training failed"
    if restarted := end.state.previous_end or (end.row.last_end if end.row else ""):
        says += f"; the start before: {restarted}"
    return says


def _with_details(says: str, row: SlurmJob | None, training: Progress | None) -> str:
    """Return the words `says` with more facts.

    These are a failed task's signal or exit status, the user who cancelled the job, and which rank is slow.
    """
    if row and row.state.name == "FAILED" and row.task:
        says += f", signal {row.signal}" if row.signal else f", exit status {row.exit_code}"
    if row and row.cancelled_by is not None:
        says = says.replace(row.state.words, f"{row.state.words} by {user_name(row.cancelled_by)}", 1)
    return says + (f"; slow: {training.slow}" if training and training.slow else "")


def _fix_for_wait(state: RunState) -> str:
    """Return a fix for the reason why a run waits; "" if the run does not wait."""
    waiting = [row for row in state.queue_rows[:1] if row.state.name == "PENDING"]
    return explain_reason(waiting[0].reason, waiting[0].id).fix if waiting else ""


def _fix_for_stall(state: RunState) -> str:
    """Return a fix for a run that stands still."""
    if state.plain:
        return _END_STALL_OF_PLAIN.format(id=state.plain.id, run=state.run.name)
    return _END_STALL.format(run=state.run.name)


def _log_to_show(end: JobEnd) -> str:
    """Return the first log that shows a crash, else the first with lines, else the first; "" without logs."""
    with_crash = [path for path, lines in end.logs.items() if crash_line(lines)]
    with_lines = [path for path, lines in end.logs.items() if lines]
    return next(iter([*with_crash, *with_lines, *end.logs]), "")


def _fix_for_silence(end: JobEnd, causes: Sequence[Failure]) -> str:
    """Return a fix for a user's own trainer that ended without printing anything; "" in other cases."""
    trainer = end.record.value("trainer") if end.record else ""
    is_silent = end.logs and not any(end.logs.values()) and not causes
    return _TRAINER_SILENT.format(trainer=trainer) if trainer and is_silent else ""


def as_text(diagnosis: Diagnosis) -> str:
    """Return the lines of a diagnosis for people: the state, then each cause with its place and fix."""
    run, log = diagnosis.run, diagnosis.log
    lines = [f"{run}: {diagnosis.says}"]
    if not diagnosis.failed:
        lines += fix_lines(diagnosis.fix, indent=2)
        return "".join(f"{one_line(line)}\n" for line in lines)
    shown = [cause for cause in diagnosis.causes if cause.rank != "effect"]
    if all(cause.rank == "limit" for cause in shown):  # no other cause is known, so an effect is a hint
        shown += [cause for cause in diagnosis.causes if cause.rank == "effect"][:1]
    shown = shown[:MAX_CAUSES]
    for number, cause in enumerate(shown):
        lines.append(f"{'or' if number else 'most likely'}: {cause.means}")
        if cause.says:
            lines.append(f"  at:  {_place(cause.file or log, cause.line)}: {cause.says[:MAX_SHOWN_CHARS]}")
        lines += fix_lines(cause.fix, indent=2)
    if not shown:
        silence = f"; its log is empty: {log}" if log else ""
        lines.append("no known cause" + ("; of its log:" if diagnosis.lines else silence))
        lines += [
            f"  {_place(log, line['line'])}: {line['says'][:MAX_SHOWN_CHARS]}" for line in diagnosis.lines
        ]
        shows = f"sbatchgen {'logs' if log else 'status'} {diagnosis.job or run} shows more"
        lines += fix_lines(shows if diagnosis.lines or not log else diagnosis.fix or _TRACE_SCRIPT, indent=2)
    return "".join(f"{one_line(line)}\n" for line in lines)


def _place(path: str, line: int) -> str:
    return f"{path}:{line}" if line else path
