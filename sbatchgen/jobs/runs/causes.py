"""The causes of a failure that the end of a job shows, the likeliest first."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from sbatchgen.base.quoting import ALSO
from sbatchgen.base.units import Duration, mebibytes, seconds
from sbatchgen.check.script.script import JobScript
from sbatchgen.jobs.runs import process, stall
from sbatchgen.jobs.runs.events import STATUS
from sbatchgen.jobs.runs.failure import (
    Asks,
    Failure,
    failures,
    look_bad,
    merged,
    raised_at,
    unexplained,
    until_slurm,
)
from sbatchgen.jobs.runs.fix_for_run import next_start
from sbatchgen.jobs.runs.job_end import JobEnd, says_failed
from sbatchgen.jobs.runs.program_states import ProgramState
from sbatchgen.jobs.runs.record import Record
from sbatchgen.jobs.runs.seen_jobs import is_local
from sbatchgen.jobs.runs.submitted_scripts import parsed

_EXIT_STATUS = re.compile(r"FAILED [1-9]\d*:0")
_WAITS = "most often a process waits for another that has ended, or for a file or the network"
SETUP_ENDS = "set +eu "  # a rendered script's line after a setup that sets options of bash


def likely_causes(end: JobEnd) -> Sequence[Failure]:
    """Return the causes of a failure, the likeliest first; none if the job has left no trace of them."""
    causes = _found(end)
    if end.record:
        causes = _stood_still(causes, end.record, end)
    causes = [*_of_program(end.state.failed_program, causes, end)]
    return _hung(causes, end)


def _found(end: JobEnd) -> Sequence[Failure]:
    """Return the causes that Slurm and the logs show; else the training's own words, or a silent setup."""
    run, how = end.state.run, _how(end)
    script = end.state.plain.script if end.state.plain else parsed(run.folder, end.job.id)
    asks = _asks(end, script)
    by_slurm = bool(how) and not how.startswith("FAILED")
    each = [
        [*_placed(failures(how, lines, run.name, asks), lines, path, by_slurm=by_slurm)]
        for path, lines in end.logs.items()
    ]
    if causes := merged(each or [failures(how, (), run.name, asks)]):
        return causes
    if end.training and says_failed(end.training, end.job):
        why = end.training.reason
        failure = Failure(cause="own-words", rank="own", means=why, fix="", says=why)
        causes = failures("", [(0, why)], run.name, _more(end, script)) or ([failure] if why else [])
        return [replace(cause, file=str(end.folder / STATUS)) for cause in causes]
    is_empty = end.logs and not any(end.logs.values())
    return _in_setup(script) if script and is_empty and _EXIT_STATUS.fullmatch(how) else ()


def _how(end: JobEnd) -> str:
    """Return how a job ended, as failures.yaml reads it: "FAILED 1:0"; "" if that is not known."""
    if end.row:
        return f"{end.row.state.name} {end.row.exit_code}:{end.row.signal}"
    status = process.exit_status(end.state.run.folder, end.job.id) if is_local(end.job) else None
    return f"{end.job.state} {status or 0}:0" if end.job.state else ""


def _asks(end: JobEnd, script: JobScript | None) -> Asks:
    """Return the parts of a job's request on which causes and fixes depend."""
    asked, record = script.resources if script else None, end.record
    if asked and "exclusive" in asked:  # whole nodes come with their GPUs
        asked = None
    mode = record.of_mode if record and not record.script else None
    no_gpus = record and record.of_mode and not record.of_mode.uses_gpus and not record.process
    return _more(end, script)._replace(
        has_gpus=bool(asked.gpu_count or asked.shards) if asked else None,
        is_script=bool(record and (record.script or not end.job.key)),
        as_group=mode.as_group if mode and not mode.several_processes else "",
        one_gpu="--set mode=single" if no_gpus else Asks().one_gpu,
    )


def _more(end: JobEnd, script: JobScript | None) -> Asks:
    """Return the request for the next time: twice the memory and twice the time of the script."""
    asks = Asks(resume=next_start(end))
    if script and (mib := mebibytes(script.option("mem"))):
        asks = asks._replace(memory=f"{2 * mib}M" if mib % 512 else f"{mib // 512}G")
    if script and (limit := seconds(script.option("time"))):
        asks = asks._replace(time=str(Duration(2 * limit)))
    return asks


def _placed(
    causes: Sequence[Failure], log: Sequence[tuple[int, str]], path: str, *, by_slurm: bool
) -> Iterator[Failure]:
    """Yield causes with their log and where they were raised, and an exception that no cause explains."""
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


def _stood_still(causes: Sequence[Failure], record: Record, end: JobEnd) -> Sequence[Failure]:
    """Return the causes of a run that a time limit has ended: not the limit if the run stood still before."""
    row = end.row
    is_limit = any(cause.rank == "limit" for cause in causes)
    if not (row and row.start and row.end and is_limit):
        return causes
    quiet = stall.stalled_at_end(record, end.folder, row.start.timestamp(), row.end.timestamp(), end.task)
    if quiet is None:
        return causes
    means = f"it stood still until its time limit: {quiet.says}"
    fix = f"sbatchgen logs {record.run} --lines 20 shows where{ALSO}more time does not help: {_WAITS}"
    still = Failure(cause="stood-still", rank="cause", means=means, fix=fix)
    return [still, *(cause for cause in causes if cause.rank != "limit")]


def _of_program(program: ProgramState | None, causes: Sequence[Failure], end: JobEnd) -> Iterator[Failure]:
    """Yield the causes in the logs of the failed program; if these show no cause, how the program ended."""
    if program is None or program.state != "failed":
        yield from causes
        return
    its_end = f"{program.name} on "  # as the script says it in the log of the job
    others = [cause for cause in causes if cause.rank not in ("effect", "limit")]
    known = [cause for cause in others if not cause.means.startswith(its_end)]
    for cause in known:
        yield replace(cause, means=f"{program.says}: {cause.means}")
    if not known:
        fix = f"sbatchgen logs {end.state.run.name} --program {program.name} shows what it did"
        if program.why.startswith("was not ready"):
            key = f"programs.{program.name.partition('.')[0]}.ready"
            fix += f"{ALSO}if it needs more time: within: under {key}"
            fix += f"{ALSO}if only its first node answers: hosts: first under {key}" * ("," in program.nodes)
        path = next((path for path, lines in end.logs.items() if lines), "")
        line, says = next(iter(look_bad(end.logs[path])[-1:]), (0, "")) if path else (0, "")
        about = {"means": program.says, "fix": fix, "says": says, "file": path}
        yield Failure(cause="program", rank="own", line=line, **about)


def _hung(causes: Sequence[Failure], end: JobEnd) -> Sequence[Failure]:
    """Return the causes of a run, and first that it hung before its end, if its launcher says so."""
    row, folder = end.row, end.folder
    if not (row and row.start and row.end):
        return causes
    says = stall.hang(folder, row.start.timestamp(), row.end.timestamp())
    if not says:
        return causes
    fix = f"the stack of that rank, in {folder / 'stacks'}, shows how it came there"
    means, file = f"it hung: {says.removeprefix(stall.HANGS)}", str(folder / stall.HANG)
    hung = Failure(cause="hung", rank="cause", means=means, fix=fix, file=file)
    return [hung, *(cause for cause in causes if cause.rank not in ("limit", "effect"))]


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
