"""Why a run failed: what Slurm, its log and its run folder say of it."""

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypedDict

from sbatchgen.base.errors import Problem, SlurmError
from sbatchgen.base.frozen import frozen
from sbatchgen.base.machine.trust import user_name
from sbatchgen.base.quoting import ALSO, fix_lines, one_line, word
from sbatchgen.base.units import Duration, mebibytes, seconds
from sbatchgen.check.script.script import JobScript
from sbatchgen.check.script.trainer_source import WELL_KNOWN
from sbatchgen.jobs.runs import life, process, program_states
from sbatchgen.jobs.runs.events import STATUS
from sbatchgen.jobs.runs.failure import (
    Asks,
    Failure,
    crash,
    failures,
    look_bad,
    merged,
    raised_at,
    text_of,
    unexplained,
    until_slurm,
)
from sbatchgen.jobs.runs.index import LOST, RunJob
from sbatchgen.jobs.runs.job_log import last_start, newest_logs
from sbatchgen.jobs.runs.overview import headline
from sbatchgen.jobs.runs.plain_job import PlainJob, again
from sbatchgen.jobs.runs.points import FAILED
from sbatchgen.jobs.runs.program_states import ProgramState
from sbatchgen.jobs.runs.progress import Progress, read_progress
from sbatchgen.jobs.runs.record import Record, point_numbers, records
from sbatchgen.jobs.runs.remedy import Case, at_hand, within_nodes, without
from sbatchgen.jobs.runs.status import ERRORS, RunState, before, is_local, submission
from sbatchgen.jobs.runs.submitted_scripts import forgets, parsed
from sbatchgen.jobs.slurm.accounting import accounting
from sbatchgen.jobs.slurm.queue import SlurmJob, key_of, queue
from sbatchgen.jobs.slurm.state import reason

_NO_FAILURE = ("COMPLETED", "REVOKED", LOST)
MOST = 3  # causes that people are shown
LINES = 20_000  # of a log that are read, from its end
SHOWN = 300  # characters of a line of the log
_EXIT_STATUS = re.compile(r"FAILED [1-9]\d*:0")
_WAITS = "most often a process waits for another that has ended, or for a file or the network"
_WHERE = (
    "sbatchgen logs {run} --lines 20 shows where" + ALSO
    + "sbatchgen exec {run} -- top -b -n 1 shows whether it computes" + ALSO
)  # fmt: skip
_STILL = _WHERE + "if it does not continue: sbatchgen cancel {run}, then sbatchgen resume {run}"
_STILL_PLAIN = _WHERE + "if it does not continue: scancel {id}"
_MAY_CONTINUE = "starts it again, which continues if it loads its checkpoint"
_AGAIN = re.compile(r"sbatchgen resume \S+((?: --[\w-]+ [^\s,;]+)*)")
_SILENT = "let the script show each command: set -x after its directives"
_PRINTS_NOTHING = "{trainer} has printed nothing: let it print what it does, or start it by hand"
_EXPORTS = re.compile(r"sbatchgen resume \S+ --env ([^\s,;]+)")
_OF_SLURM = re.compile(r"sbatchgen resume \S+ --(?:mem|time|exclude|gpus-per-node)\b|sacct|--mem\b")
SETUP_ENDS = "set +eu "  # what a script of sbatchgen says after a setup that sets options of bash


class LogLine(TypedDict):
    """A line of a log, with its number from 1."""

    line: int
    says: str


@frozen(kw_only=True)
class Diagnosis:
    """The end of a run, and its likely causes."""

    run: str  # its name
    job: str = ""  # the id of an older job that all this is about; "" for the newest
    failed: bool
    says: str  # what its newest job does, or how it ended
    fix: str = ""  # what to do if it waits
    log: str = ""  # the log that was read, or the script or status.json if only that says something; or ""
    causes: Sequence[Failure] = ()  # what most likely happened, the likeliest first
    lines: Sequence[LogLine] = ()  # without a known cause: the last that look like an error
    problems: Sequence[Problem] = ()  # why something could not be read


def is_failed(state: RunState) -> bool:
    """Whether its newest job, a point of its sweep, or its training is known to have failed."""
    if state.sweep:
        return FAILED in state.sweep.counts
    job = state.last
    return job is not None and job.ended and (job.says == ERRORS or _failed(job.state, job, state.progress))


def diagnose(state: RunState, environment: Mapping[str, str], task: str = "", asked: str = "") -> Diagnosis:
    """Say what happened to a run; of an array or a sweep to one task, or to the first that failed.

    `asked` is the id of the job of a sweep that is meant, if a point has run in several.
    """
    run, says = state.run.name, headline(state)
    if state.sweep:
        bad = [str(number) for number in state.sweep.counts.get(FAILED, ())]
        task = task or next(iter(bad), "")
        is_older = _job_of(state, task, asked) != _job_of(state, task)
        if task not in bad and not is_older:
            return Diagnosis(run=run, failed=False, says=f"point {task} has not failed" if task else says)
    job, record = _job_of(state, task, asked)
    if job is None:
        return Diagnosis(run=run, failed=False, says=says)
    rows, problems = _rows_of(state, job, environment)
    in_turn = bool(record and record.one_training)
    row = _row(rows, task, record.first if record else 0, in_turn=in_turn)
    row = state.plain.row if state.plain else row
    task = task or (row.task if row else "")
    logs = _logs(state, record, task)
    folder = state.run.folder / task if task.isdecimal() and not in_turn else state.run.folder
    training = state.progress if state.plain or state.job else read_progress(folder)
    name, ended = (row.state.name, row.state.ended) if row else (job.state, job.ended)
    failed = ended and _failed(name, job, training)
    hidden = not failed and ended and next(filter(None, map(crash, logs.values())), None)
    causes: Sequence[Failure] = ()
    if failed or hidden or (ended and not name):  # Slurm has forgotten it: the log alone may say why
        causes = _causes(state, job, row, record, folder=folder, training=training, logs=logs)
        causes = _in_turn(causes, state, record, row, logs=logs, folder=folder, task=task)
        causes = [*_typed(causes, state, record, row, environment)]
        failed = failed or bool(hidden or causes)
    if task:
        what = "point" if state.sweep else "task"
        says = f"{what} {task} of job {job.id} {row.state.words if row else 'ended'}"
    if failed and name in _NO_FAILURE and not (hidden and ERRORS in says):
        says += f", {ERRORS}" if hidden else ", but its training failed"
    if restarted := state.restarted or (row.before if row else ""):
        says += f"; the start before: {restarted}"
    log = next((path for path, lines in logs.items() if crash(lines)), "")
    log = log or next((path for path, lines in logs.items() if lines), next(iter(logs), ""))
    waits = [row for row in state.now[:1] if row.state.name == "PENDING" and not failed]
    fix = reason(waits[0].reason, waits[0].id).fix if waits else ""
    if state.quiet:
        both = sorted((says, state.quiet), key=lambda text: not text.startswith(life.HANGS))
        still = _STILL_PLAIN.format(id=state.plain.id, run=run) if state.plain else _STILL.format(run=run)
        says, fix = "; ".join(both), still
    bad_lines = look_bad(logs.get(log, ())) if failed and not causes else ()
    return Diagnosis(
        run=run,
        job=state.job,
        failed=failed,
        says=_with_details(says, row, training),
        fix=fix or (_of_silence(record, logs, causes) if failed else ""),
        log=next((cause.file for cause in causes if cause.file), log),
        causes=causes,
        lines=[LogLine(line=number, says=text) for number, text in bad_lines],
        problems=problems,
    )


def _in_turn(
    causes: Sequence[Failure],
    state: RunState,
    record: Record | None,
    row: SlurmJob | None,
    *,
    logs: Mapping[str, Sequence[tuple[int, str]]],
    folder: Path,
    task: str,
) -> Sequence[Failure]:
    """Return causes, the likeliest first."""
    if record:
        causes = _stood_still(causes, record, row, folder, task)
    causes = [*_of_program(state.failed_program, causes, logs, state.run.name)]
    return _hung(causes, row, folder)


def _typed(
    causes: Sequence[Failure],
    state: RunState,
    record: Record | None,
    row: SlurmJob | None,
    environment: Mapping[str, str],
) -> Iterator[Failure]:
    """Yield causes with fixes as they are typed for this run, on this machine."""
    for cause in causes:
        if record is None:
            yield cause
            continue
        case = Case(run=state.run.name, record=record, row=row, environment=environment)
        known = at_hand(cause, case)
        if state.plain:
            script, to_type = state.plain.script, _to_type_plain(known, state.plain)
        else:
            folder = state.run.folder
            script, to_type = parsed(folder, record.job), _to_type(known, record, folder)
        yield within_nodes(to_type, script, environment)


def _of_silence(record: Record | None, logs: Mapping[str, Any], causes: Sequence[Failure]) -> str:
    """Return what to do about a trainer of one's own that ended without a word; "" in other cases."""
    trainer = record.value("trainer") if record else ""
    is_silent = logs and not any(logs.values()) and not causes
    return _PRINTS_NOTHING.format(trainer=trainer) if trainer and is_silent else ""


def _job_of(state: RunState, task: str, asked: str = "") -> tuple[RunJob | None, Record | None]:
    """Return the newest job, or the newest or the asked one with a point of a sweep, and its record."""
    if task.isdecimal() and state.sweep:
        jobs = {job.id: job for job in state.jobs}
        each = [
            record
            for record in reversed(records(state.run.folder))
            if record.job in jobs and int(task) in point_numbers(record, record.array)
        ]
        chosen = [record for record in each if record.job == asked] or each
        if chosen:
            return jobs[chosen[0].job], chosen[0]
    return state.last, submission(state, state.last.id) if state.last else None


def _row(rows: Sequence[SlurmJob], task: str, first: int, *, in_turn: bool) -> SlurmJob | None:
    """Return a task's row; without a task, that of the first that failed, or of a chain the last that ran."""
    if task.isdecimal():
        return next((row for row in rows if row.task == str(int(task) - first)), None)
    if in_turn and (ran := [row for row in rows if row.node_list or row.used_s]):
        return max(ran, key=lambda row: row.start.timestamp() if row.start else 0)
    bad = (row for row in rows if row.state.ended and row.state.name not in _NO_FAILURE)
    return next(bad, rows[-1] if rows else None)


def _failed(name: str, job: RunJob, training: Progress | None) -> bool:
    """Whether a job that has ended in a state has failed, or its training says that it has."""
    return (bool(name) and name not in _NO_FAILURE) or _says_failed(training, job)


def _says_failed(training: Progress | None, job: RunJob) -> bool:
    return bool(training and training.state == "failed" and (training.time or 0) >= job.submitted)


def _causes(
    state: RunState,
    job: RunJob,
    row: SlurmJob | None,
    record: Record | None,
    *,
    folder: Path,
    training: Progress | None,
    logs: Mapping[str, Sequence[tuple[int, str]]],
) -> Sequence[Failure]:
    run = state.run
    if row:
        how = f"{row.state.name} {row.exit_code}:{row.signal}"
    else:
        status = process.exit_status(run.folder, job.id) if is_local(job) else None
        how = f"{job.state} {status or 0}:0" if job.state else ""
    script = state.plain.script if state.plain else parsed(run.folder, job.id)
    asked = script.resources if script else None
    if asked and "exclusive" in asked:  # whole nodes come with their GPUs
        asked = None
    has_gpus = bool(asked.gpu_count or asked.shards) if asked else None
    mode = record.of_mode if record and not record.script else None
    asks = Asks(
        has_gpus=has_gpus,
        is_script=bool(record and (record.script or not job.key)),
        as_group=mode.as_group if mode and not mode.several_processes else "",
    )
    by_slurm = bool(how) and not how.startswith("FAILED")
    each = [
        [*_placed(failures(how, lines, run.name, asks), lines, path, by_slurm=by_slurm)]
        for path, lines in logs.items()
    ]
    if causes := merged(each or [failures(how, (), run.name, asks)]):
        return causes
    if training and _says_failed(training, job):
        why = training.reason
        failure = Failure(cause="own-words", rank="own", means=why, fix="", says=why)
        causes = failures("", [(0, why)], run.name) or ([failure] if why else [])
        return [replace(cause, file=str(folder / STATUS)) for cause in causes]
    is_empty = logs and not any(logs.values())
    return _in_setup(script) if script and is_empty and _EXIT_STATUS.fullmatch(how) else ()


def _placed(
    causes: Sequence[Failure], log: Sequence[tuple[int, str]], path: str, *, by_slurm: bool
) -> Iterator[Failure]:
    """Yield causes with their log and where they were raised; an exception that none explains too."""
    for cause in causes:
        place = raised_at(log, cause.line) if cause.line else ""
        means = f"{cause.means} ({place})" if place else cause.means
        yield replace(cause, means=means, file=path * bool(cause.says))
    number, says = unexplained(until_slurm(log) if by_slurm else log) or (0, "")
    place = raised_at(log, number) if number else ""
    if place and all(cause.rank in ("effect", "limit") for cause in causes):
        fix = "the lines above it in the log show how the program came there"
        about = {"means": f"{says} ({place})", "fix": fix, "says": says, "file": path}
        yield Failure(cause="exception", rank="cause", line=number, **about)


def _logs(state: RunState, record: Record | None, task: str) -> dict[str, list[tuple[int, str]]]:
    """Return the ends of the newest logs; of the program that failed, as the others complain of its end."""
    program = state.failed_program
    paths = program_states.logs(state.run.folder).get(program.name) if program else None
    paths = paths or (newest_logs(record, task) if record else [])
    return {str(path): last_start(path, LINES) for path in paths}


def _of_program(
    program: ProgramState | None,
    causes: Sequence[Failure],
    logs: Mapping[str, Sequence[tuple[int, str]]],
    run: str,
) -> Iterator[Failure]:
    """Yield the causes that the logs of the program that failed show; without any, how it ended."""
    if program is None or program.state != "failed":
        yield from causes
        return
    its_end = f"{program.name} on "  # as the script says it in the log of the job
    others = [cause for cause in causes if cause.rank not in ("effect", "limit")]
    known = [cause for cause in others if not cause.means.startswith(its_end)]
    for cause in known:
        yield replace(cause, means=f"{program.says}: {cause.means}")
    if not known:
        fix = f"sbatchgen logs {run} --program {program.name} shows what it did"
        if program.why.startswith("was not ready"):
            key = f"programs.{program.name.partition('.')[0]}.ready"
            fix += f"{ALSO}if it needs more time: within: under {key}"
            fix += f"{ALSO}if only its first node answers: hosts: first under {key}" * ("," in program.nodes)
        path = next((path for path, lines in logs.items() if lines), "")
        line, says = next(iter(look_bad(logs[path])[-1:]), (0, "")) if path else (0, "")
        about = {"means": program.says, "fix": fix, "says": says, "file": path}
        yield Failure(cause="program", rank="own", line=line, **about)


def _to_type(cause: Failure, record: Record, run_dir: Path) -> Failure:
    """Return a cause with its fix as this run takes it: of a sweep, a finished script, without Slurm."""
    cause = _hidden(cause, record)
    fix = _not_copied(cause, record) or cause.fix
    cause = replace(cause, means=cause.means.replace(f"({record.folder}/", "(", 1))
    if script := parsed(run_dir, record.job):
        fix = _with_more(fix, script)
    if record.process:  # of Slurm nothing more can be asked for
        fix = without(fix, _OF_SLURM)
    elif record.command[1:2] == ("sweep",):
        fix = fix.replace("sbatchgen resume ", "sbatchgen resubmit ")
    elif record.script:
        name = Path(record.script).name
        fix = _EXPORTS.sub(rf"export \1 in {name}, and submit it again", fix)
    if record.of_mode and not record.of_mode.uses_gpus:
        fix = fix.replace("--gpus-per-node 1", "--set mode=single")
    trainer = record.value("trainer") or Path(record.script).name
    if not trainer or not re.search("sbatchgen res(?:ume|ubmit)", fix):
        return replace(cause, fix=fix)
    loss = forgets(record, run_dir)
    again = f"starts {trainer} again" + ", which continues if it loads its checkpoint" * (not loss)
    fix = fix.replace("continues from the last checkpoint", again)
    return replace(cause, fix=ALSO.join(filter(None, (fix, *(loss.lines() if loss else ())))))


def _to_type_plain(cause: Failure, job: PlainJob) -> Failure:
    """Return a cause with its fix as a job of plain sbatch takes it: another sbatch, or a line."""
    record = job.record
    fix = _with_more(cause.fix, job.script) if job.script else cause.fix
    fix = _EXPORTS.sub(rf"export \1 in {Path(record.script).name or 'its script'}, and submit it again", fix)

    def command(match: re.Match[str]) -> str:
        words = match[1].split()
        options = [f"{name}={value}" for name, value in zip(words[::2], words[1::2], strict=True)]
        typed = again(job, options, Path.cwd()) if not job.owner else ""
        return typed or " ".join(["submit it again", *(["with", *options] if options else ())])

    fix = _AGAIN.sub(command, fix)
    means = cause.means.replace(f"({record.folder}/", "(", 1)
    return replace(cause, means=means, fix=fix.replace("continues from the last checkpoint", _MAY_CONTINUE))


def _with_more(fix: str, script: JobScript) -> str:
    """Return a fix with twice the memory and the time that a job had, in place of an example's."""
    mib, limit = mebibytes(script.option("mem")), seconds(script.option("time"))
    if mib:
        fix = fix.replace("--mem 64G", f"--mem {2 * mib}M" if mib % 512 else f"--mem {mib // 512}G")
    return fix.replace("--time 8:00:00", f"--time {Duration(2 * limit)}") if limit else fix


def _hidden(cause: Failure, record: Record) -> Failure:
    """Return the cause that an own file hides a package, if it lacks what the program wants of that."""
    lacks = re.match(r"AttributeError: module '(\w+)' has no attribute ", cause.says)
    name = lacks[1] if lacks else ""
    beside = Path(record.folder, record.value("trainer") or "script").parent
    if name not in WELL_KNOWN | sys.stdlib_module_names or not (beside / f"{name}.py").is_file():
        return cause
    known = text_of("own-module")
    return replace(cause, cause=known.cause, means=known.means.format(name), fix=known.fix.format(name))


def _not_copied(cause: Failure, record: Record) -> str:
    """Return the fix for a file that is missing since the snapshot lacks it; "" for another failure."""
    missing = re.match("there is no '([^/'][^']*)'", cause.means) if cause.cause == "file-missing" else None
    copied = record.code and record.code.snapshot
    if not missing or not copied or not Path(record.folder, name := missing[1]).exists():
        return ""
    again = f"sbatchgen resume {record.run} --snapshot --snapshot-file {word(name.partition('/')[0])}"
    return f"{again}{ALSO}the snapshot lacks the file, because git does not know it"


def _hung(causes: Sequence[Failure], row: SlurmJob | None, folder: Path) -> Sequence[Failure]:
    """Return the causes of a run, and first that it hung before its end, if its launcher says so."""
    if not (row and row.start and row.end):
        return causes
    says = life.hang(folder, row.start.timestamp(), row.end.timestamp())
    if not says:
        return causes
    fix = f"the stack of that rank, in {folder / 'stacks'}, shows how it came there"
    means, file = f"it hung: {says.removeprefix(life.HANGS)}", str(folder / life.HANG)
    hung = Failure(cause="hung", rank="cause", means=means, fix=fix, file=file)
    return [hung, *(cause for cause in causes if cause.rank not in ("limit", "effect"))]


def _stood_still(
    causes: Sequence[Failure], record: Record, row: SlurmJob | None, folder: Path, task: str
) -> Sequence[Failure]:
    """Return the causes of a run that a limit of time has ended: not that limit, if it stood still before."""
    is_limit = any(cause.rank == "limit" for cause in causes)
    if not (row and row.start and row.end and is_limit):
        return causes
    quiet = life.quiet_at_end(record, folder, row.start.timestamp(), row.end.timestamp(), task)
    if quiet is None:
        return causes
    means = f"it stood still until its time limit: {quiet.says}"
    fix = f"sbatchgen logs {record.run} --lines 20 shows where{ALSO}more time does not help: {_WAITS}"
    still = Failure(cause="stood-still", rank="cause", means=means, fix=fix)
    return [still, *(cause for cause in causes if cause.rank != "limit")]


def _in_setup(script: JobScript) -> list[Failure]:
    """Find the `set -e` of a profile's setup, which can end a script before it has printed anything."""
    means = "a command in the profile's setup failed: its `set -e` ends the script without a message"
    fix = "run the lines above that one on a node; with `set -x` in setup the log shows each command"
    return [
        Failure(cause="setup", rank="own", means=means, fix=fix, line=number, says=line, file=script.file)
        for number, line in enumerate(script.lines, 1)
        if line.startswith(SETUP_ENDS)
        and script.body.option_at("errexit", number)
        and "error" not in script.resources  # else stdout is elsewhere, and may not be empty
    ]


def _rows_of(
    state: RunState, job: RunJob, environment: Mapping[str, str]
) -> tuple[list[SlurmJob], list[Problem]]:
    if state.plain:
        return [*state.plain.rows], [Problem(each) for each in state.plain.problems]
    return _rows(job, environment)


def _rows(job: RunJob, environment: Mapping[str, str]) -> tuple[list[SlurmJob], list[Problem]]:
    """Return what Slurm says of a job that has ended; nothing if it has forgotten it."""
    known: list[SlurmJob] = []
    if is_local(job) or not job.id:
        return known, []
    try:
        rows = queue(environment, [job.id], cluster=job.cluster)
        known = [row for row in rows if key_of(row.command) == job.key]
        if not known or job.state == "CANCELLED":  # sacct alone says who it was
            known = accounting({job.id: job.key}, before([job]), environment, cluster=job.cluster) or known
    except SlurmError as error:
        return known, [*error.problems]
    return known, []


def _with_details(says: str, row: SlurmJob | None, training: Progress | None) -> str:
    if row and row.state.name == "FAILED" and row.task:
        says += f", signal {row.signal}" if row.signal else f", exit status {row.exit_code}"
    if row and row.cancelled_by is not None:
        says = says.replace(row.state.words, f"{row.state.words} by {user_name(row.cancelled_by)}", 1)
    return says + (f"; slow: {training.slow}" if training and training.slow else "")


def as_text(diagnosis: Diagnosis) -> str:
    """Return a diagnosis as people read it."""
    run, log = diagnosis.run, diagnosis.log
    lines = [f"{run}: {diagnosis.says}"]
    if not diagnosis.failed:
        lines += fix_lines(diagnosis.fix, indent=2)
        return "".join(f"{one_line(line)}\n" for line in lines)
    shown = [cause for cause in diagnosis.causes if cause.rank != "effect"]
    if all(cause.rank == "limit" for cause in shown):  # no more is known: what follows from others too
        shown += [cause for cause in diagnosis.causes if cause.rank == "effect"][:1]
    shown = shown[:MOST]
    for number, cause in enumerate(shown):
        lines.append(f"{'or' if number else 'most likely'}: {cause.means}")
        if cause.says:
            lines.append(f"  at:  {_place(cause.file or log, cause.line)}: {cause.says[:SHOWN]}")
        lines += fix_lines(cause.fix, indent=2)
    if not shown:
        empty = f"; its log is empty: {log}" if log else ""
        lines.append("no known cause" + ("; of its log:" if diagnosis.lines else empty))
        lines += [f"  {_place(log, each['line'])}: {each['says'][:SHOWN]}" for each in diagnosis.lines]
        shows = f"sbatchgen {'logs' if log else 'status'} {diagnosis.job or run} shows more"
        lines += fix_lines(shows if diagnosis.lines or not log else diagnosis.fix or _SILENT, indent=2)
    return "".join(f"{one_line(line)}\n" for line in lines)


def _place(path: str, line: int) -> str:
    return f"{path}:{line}" if line else path
