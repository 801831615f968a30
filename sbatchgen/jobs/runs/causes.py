"""Finds the causes of a job's failure, the likeliest first, in the facts about its end.

`failure` knows the texts that show a cause. This module adds the places in the code where exceptions were
raised, and the causes that only the run folder shows: a run that stood still, a rank that hung, a failed
program of several, a setup with `set -e`.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from sbatchgen.base.quoting import ALSO
from sbatchgen.base.units import Duration, mebibytes, seconds
from sbatchgen.check.script.script import JobScript
from sbatchgen.jobs.runs import process, stall
from sbatchgen.jobs.runs.events import STATUS
from sbatchgen.jobs.runs.failure import (
    OWN_MESSAGE,
    Failure,
    FixFacts,
    failures,
    lines_before_end,
    merge_causes,
    place_of_exception,
    suspicious_lines,
    unexplained_exception,
)
from sbatchgen.jobs.runs.fix_for_run import next_start
from sbatchgen.jobs.runs.job_end import JobEnd, training_failed
from sbatchgen.jobs.runs.job_log import NumberedLine
from sbatchgen.jobs.runs.program_states import ProgramState
from sbatchgen.jobs.runs.record import Record
from sbatchgen.jobs.runs.seen_jobs import is_local
from sbatchgen.jobs.runs.submitted_scripts import parsed_script

_FAILED_WITH_STATUS = re.compile(r"FAILED [1-9]\d*:0")  # in the form of failures.yaml: "FAILED 1:0"
_WHY_RUNS_STAND_STILL = "most often a process waits for another that has ended, or for a file or the network"
# The start of the line in a rendered script that undoes `set -e` and `set -u` of the profile's setup.
SETUP_ENDS = "set +eu "


def likely_causes(end: JobEnd) -> Sequence[Failure]:
    """Return the causes of a failure, the likeliest first; none if nothing shows a cause."""
    causes = _causes_in_traces(end)
    if end.record:
        causes = _with_standstill(causes, end.record, end)
    causes = [*_causes_of_program(end.state.failed_program, causes, end)]
    return _with_hang(causes, end)


def _causes_in_traces(end: JobEnd) -> Sequence[Failure]:
    """Return the causes that Slurm and the logs show.

    If they show none, return the reason that the training wrote into status.json. Without this reason, return
    the `set -e` of the profile's setup, if it may have ended the script.
    """
    run, end_text = end.state.run, _end_as_text(end)
    script = end.state.plain.script if end.state.plain else parsed_script(run.folder, end.job.id)
    facts = _fix_facts(end, script)
    ended_by_slurm = bool(end_text) and not end_text.startswith("FAILED")
    by_log = []
    for path, lines in end.logs.items():
        causes = failures(end_text, lines, run.name, facts)
        by_log.append([*_with_places(causes, lines, path, ended_by_slurm=ended_by_slurm)])
    if causes := merge_causes(by_log or [failures(end_text, (), run.name, facts)]):
        return causes
    if end.training and training_failed(end.training, end.job):
        why = end.training.reason
        causes = failures("", [(0, why)], run.name, _larger_request(end, script))
        if why and not causes:
            causes = [Failure(cause=OWN_MESSAGE, rank="own", means=why, fix="", says=why)]
        return [replace(cause, file=str(end.folder / STATUS)) for cause in causes]
    is_silent = end.logs and not any(end.logs.values())
    has_status = _FAILED_WITH_STATUS.fullmatch(end_text)
    return _causes_in_setup(script) if script and is_silent and has_status else ()


def _end_as_text(end: JobEnd) -> str:
    """Return state, exit status and signal of a job in the form of failures.yaml: "FAILED 1:0".

    Return "" if they are not known.
    """
    if end.row:
        return f"{end.row.state.name} {end.row.exit_code}:{end.row.signal}"
    status = process.exit_status(end.state.run.folder, end.job.id) if is_local(end.job) else None
    return f"{end.job.state} {status or 0}:0" if end.job.state else ""


def _fix_facts(end: JobEnd, script: JobScript | None) -> FixFacts:
    """Return the facts about a job which the fixes in failures.yaml depend on."""
    request, record = script.resources if script else None, end.record
    if request and "exclusive" in request:  # the job gets the GPUs of its nodes without asking for them
        request = None
    mode = record.known_mode if record and not record.script else None
    is_cpu_job = record and record.known_mode and not record.known_mode.uses_gpus and not record.process
    return _larger_request(end, script)._replace(
        has_gpus=bool(request.gpu_count or request.shards) if request else None,
        is_script=bool(record and (record.script or not end.job.key)),
        as_group=mode.as_group if mode and not mode.several_processes else "",
        one_gpu="--set mode=single" if is_cpu_job else FixFacts().one_gpu,
    )


def _larger_request(end: JobEnd, script: JobScript | None) -> FixFacts:
    """Return the facts for a fix that asks for more: twice the memory and time that the script asks for."""
    facts = FixFacts(resume=next_start(end))
    if script and (mib := mebibytes(script.option("mem"))):
        # Twice the memory, in GiB if the number is whole
        facts = facts._replace(memory=f"{2 * mib}M" if mib % 512 else f"{mib // 512}G")
    if script and (limit := seconds(script.option("time"))):
        facts = facts._replace(time=str(Duration(2 * limit)))
    return facts


def _with_places(
    causes: Sequence[Failure], log: Sequence[NumberedLine], path: str, *, ended_by_slurm: bool
) -> Iterator[Failure]:
    """Yield the causes of a log, each with the log's path and the place in the code that raised it.

    If these causes do not explain the failure, yield also an exception in the log that is not in
    failures.yaml. With `ended_by_slurm`, exceptions after Slurm's message that it ends the job are excluded,
    because they follow from that end.
    """
    for cause in causes:
        place = place_of_exception(log, cause.line) if cause.line else ""
        means = f"{cause.means} ({place})" if place else cause.means
        yield replace(cause, means=means, file=path if cause.says else "")
    number, says = unexplained_exception(lines_before_end(log) if ended_by_slurm else log) or (0, "")
    place = place_of_exception(log, number) if number else ""
    is_unexplained = all(cause.rank in ("effect", "limit") for cause in causes)
    if place and is_unexplained:
        fix = "the lines above it in the log show how the program came there"
        texts = {"means": f"{says} ({place})", "fix": fix, "says": says, "file": path}
        yield Failure(cause="exception", rank="cause", line=number, **texts)


def _with_standstill(causes: Sequence[Failure], record: Record, end: JobEnd) -> Sequence[Failure]:
    """Return the causes; replace the time limit by "stood-still" if the run stood still before the limit."""
    row = end.row
    reached_limit = any(cause.rank == "limit" for cause in causes)
    if not (row and row.start and row.end and reached_limit):
        return causes
    began, ended = row.start.timestamp(), row.end.timestamp()
    last_stall = stall.stalled_at_end(record, end.folder, began, ended, end.task)
    if last_stall is None:
        return causes
    means = f"it stood still until its time limit: {last_stall.says}"
    fix = f"sbatchgen logs {record.run} --lines 20 shows where"
    fix += f"{ALSO}more time does not help: {_WHY_RUNS_STAND_STILL}"
    standstill = Failure(cause="stood-still", rank="cause", means=means, fix=fix)
    return [standstill, *(cause for cause in causes if cause.rank != "limit")]


def _causes_of_program(
    program: ProgramState | None, causes: Sequence[Failure], end: JobEnd
) -> Iterator[Failure]:
    """Yield the causes that the logs of a failed program show, each with the name of the program.

    If its logs show no cause, yield the end of the program as the cause. If no program has failed, yield the
    unchanged causes.
    """
    if program is None or program.state != "failed":
        yield from causes
        return
    script_report = f"{program.name} on "  # the script's own line about the failed program begins with it
    candidates = [cause for cause in causes if cause.rank not in ("effect", "limit")]
    real_causes = [cause for cause in candidates if not cause.means.startswith(script_report)]
    for cause in real_causes:
        yield replace(cause, means=f"{program.says}: {cause.means}")
    if not real_causes:
        fix = f"sbatchgen logs {end.state.run.name} --program {program.name} shows what it did"
        if program.why.startswith("was not ready"):
            key = f"programs.{program.name.partition('.')[0]}.ready"
            fix += f"{ALSO}if it needs more time: within: under {key}"
            fix += f"{ALSO}if only its first node answers: hosts: first under {key}" * ("," in program.nodes)
        path = next((path for path, lines in end.logs.items() if lines), "")  # the first log with lines
        line, says = next(iter(suspicious_lines(end.logs[path])[-1:]), (0, "")) if path else (0, "")
        texts = {"means": program.says, "fix": fix, "says": says, "file": path}
        yield Failure(cause="program", rank="own", line=line, **texts)


def _with_hang(causes: Sequence[Failure], end: JobEnd) -> Sequence[Failure]:
    """Return the causes, after the hang if the launcher's watcher has reported one of this job.

    The time limit and effects are then dropped, because they follow from the hang.
    """
    row, folder = end.row, end.folder
    if not (row and row.start and row.end):
        return causes
    says = stall.hang(folder, row.start.timestamp(), row.end.timestamp())
    if not says:
        return causes
    fix = f"the stack of that rank, in {folder / 'stacks'}, shows how it came there"
    means, file = f"it hung: {says.removeprefix(stall.HANGS_PREFIX)}", str(folder / stall.HANG_FILE)
    hang = Failure(cause="hung", rank="cause", means=means, fix=fix, file=file)
    return [hang, *(cause for cause in causes if cause.rank not in ("limit", "effect"))]


def _causes_in_setup(script: JobScript) -> list[Failure]:
    """Return a cause for each setup of the profile that leaves `set -e` on.

    With it, a failed command of the setup ends the script without a message. `script` is a rendered script.
    """
    means = "a command in the profile's setup failed: its `set -e` ends the script without a message"
    fix = "run the lines above that one on a node; with `set -x` in setup the log shows each command"
    return [
        Failure(cause="setup", rank="own", means=means, fix=fix, line=number, says=line, file=script.file)
        for number, line in enumerate(script.lines, 1)
        if line.startswith(SETUP_ENDS)
        and script.body.is_option_on("errexit", number)
        # If stderr has a log of its own, an empty log does not show that nothing was printed.
        and "error" not in script.resources
    ]
