"""Judges a rehearsal, for `sbatchgen rehearse`.

`rows` makes a row for each thing that was tried, such as the restart, with its result and a fix.
`cluster_rows` does the same for a short job that ran on the cluster.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple, TypedDict

from sbatchgen.base.frozen import frozen
from sbatchgen.base.quoting import OR, counted
from sbatchgen.base.units import in_bytes, in_seconds
from sbatchgen.jobs.resolved.resolved_job import ResolvedJob
from sbatchgen.lab.rehearsal.cause import cause_of, ends_in_traceback, has_error, never_began
from sbatchgen.lab.rehearsal.controller import StartReport
from sbatchgen.lab.rehearsal.rehearsal import KILL_WAIT, Rehearsal, processes_of

_REQUEUE_FIX = 'once it has saved: touch "$SBATCHGEN_AGAIN_FILE"'
NEXT_JOB_STATUS = 75  # the exit status after which the next job of a chain resumes
# Measured on an H200, as `memory_figures` says.
_CUBLAS_BYTES = 96 << 20
_CONTEXT_BYTES = 750 << 20  # the memory of CUDA's context
_UNUSED_SHARE = 0.16  # the share of its memory that the allocator keeps unused


@frozen()
class Row:
    """A thing that the rehearsal tried."""

    what: str  # the thing that was tried
    # the result; "lost" if work since the last checkpoint was lost, "unknown" if the rehearsal cannot tell
    outcome: Literal["ok", "lost", "failed", "unknown"]
    detail: str  # what happened; for a failure, the cause
    fix: str = ""  # the fix of a failure; "" if it is not known


class _RowsOutput(TypedDict):
    rows: Sequence[Row]


class RehearseOutput(_RowsOutput, total=False):
    """The document that `rehearse` prints; only a rehearsal on this machine has more keys than `rows`."""

    unproven: Mapping[str, str]
    seconds: float
    memory_bytes: int


def rows(rehearsal: Rehearsal) -> Iterator[Row]:
    """Yield a row for each thing that was tried.

    If the sandbox hides the folder of the job, each failure names this cause.
    """
    for row in _rows(rehearsal):
        if rehearsal.hidden_folder and row.outcome == "failed":
            cause = f"the job does not see your home folder {rehearsal.hidden_folder}, where it starts"
            yield replace(row, detail=f"{cause}: {row.detail}", fix="show the folder to the job: --see .")
        else:
            yield row


def _rows(rehearsal: Rehearsal) -> Iterator[Row]:
    """Yield a row for each thing that was tried, without the note about a hidden folder."""
    if not rehearsal.starts:
        if rehearsal.limit:
            yield _limit_reached_row("start", rehearsal)
        else:
            yield Row("start", "failed", rehearsal.failure or "the job did not start")
        return
    first_start, *other_starts = rehearsal.starts
    yield from _start_rows(first_start, rehearsal)
    yield from _program_rows(first_start)
    rows_by_ending = {
        "limit": _limit_rows,
        "requeue": _sigterm_rows,
        "cancel": _sigterm_rows,
        "end": _end_rows,
        "memory": _memory_rows,
    }
    # For a job that fails before its first step, the rows "start" and "first steps" are enough.
    failed_early = bool(first_start["status"]) and not _train_events(first_start["events"])
    for start, next_start in zip(rehearsal.starts, [*other_starts, None], strict=True):
        if not failed_early or start["ending"] == "memory":
            yield from rows_by_ending[start["ending"]](start, next_start, rehearsal)
    if rehearsal.limit:
        yield _limit_reached_row("sandbox", rehearsal)


def _limit_reached_row(what: str, rehearsal: Rehearsal) -> Row:
    """Return the row that tells at which limit of the sandbox a rehearsal ended."""
    if rehearsal.limit != "disk":
        return Row(what, "failed", f"the job has reached its limit of {rehearsal.limit}")
    limit = in_bytes(rehearsal.disk_bytes)
    detail = (
        f"the run folder has reached its limit of {limit}: half of the free disk, or four times the memory"
    )
    return Row(what, "failed", detail, "set TMPDIR to a folder on a larger disk")


def cluster_rows(events: Sequence[Mapping[str, Any]], log: str, resolved: ResolvedJob) -> Iterator[Row]:
    """Yield the rows of a short job that ran on the cluster, from its events: start, stop and restart."""
    if not events and has_error(log):
        cause = cause_of(1, log)
        yield Row("start", "failed", cause.what, cause.fix)
        return
    if not events:
        fix = "see the log of the job; for your own trainer, set metrics in the job"
        yield Row("start", "failed", "the job reported no steps", fix)
        return
    # An event "start" begins each start of the job. The first start also has the events before it, if any.
    begins = [index for index, event in enumerate(events) if event.get("event") == "start" or not index]
    ends = [*begins[1:], len(events)]
    first_events, *later_events = [events[begin:end] for begin, end in zip(begins, ends, strict=True)]
    expected = processes_of(resolved)
    started, device = first_events[0].get("processes", expected), first_events[0].get("device_type")
    detail = f"{started} of {expected} processes train together" + (f" on {device}" if device else "")
    yield Row("start", "ok" if started == expected else "failed", detail)
    steps = [event for event in first_events if event.get("event") in ("train", "epoch")]
    detail = _progress(steps[0]) if steps else "no step was reported before the stop"
    yield Row("first steps", "ok" if steps else "failed", detail)
    stop = next((event for event in first_events if event.get("event") == "preempted"), None)
    if stop:
        yield Row("time limit", "ok", f"{stop.get('reason')}: saved {_progress(stop)}")
    if not later_events:
        yield Row("restart", "failed", "the job did not start again", _REQUEUE_FIX)
        return
    steps_of_restart = (event["step"] for event in later_events[0] if isinstance(event.get("step"), int))
    begin_step, last_step = next(steps_of_restart, None), _last_step(first_events)
    if begin_step is None or last_step is None:
        yield Row("restart", "unknown", "the trainer prints no steps", "set metrics in the job")
        return
    detail = f"it begins at step {begin_step}, after step {last_step}"
    # A restart that begins before half of the last step did not resume from a checkpoint.
    yield Row("restart", "failed" if begin_step < last_step / 2 else "ok", detail)


def _start_rows(start: StartReport, rehearsal: Rehearsal) -> Iterator[Row]:
    """Yield the rows "start" and "first steps": whether all processes start and do training steps."""
    resolved, train_events = rehearsal.resolved, _train_events(start["events"])
    if not train_events and start["status"] and (not start["stopped_at"] or never_began(start["log"])):
        yield _failed_row("start", f"exit status {start['status']}", start, rehearsal)
        return
    if not train_events and not start["stopped_at"] and ends_in_traceback(start["log"]):
        fix = "let the program end with another status, or Slurm takes it for a success"
        yield Row("start", "failed", f"exit status 0, but {cause_of(1, start['log']).what}", fix)
        return
    expected = rehearsal.processes
    start_events = (event for event in start["events"] if event.get("event") == "start")
    started = next((event.get("processes") for event in start_events), None)
    expected_text = f"{counted(expected, 'process')} on {counted(resolved.nodes, 'node')}"
    trained = in_seconds(start["trained_s"])
    may_hang = bool(start["stopped_at"]) and start["silent_before_stop_s"] > start["trained_s"] / 2
    if started is not None and started != expected:
        detail = f"{started} of {expected_text} train together"
        yield Row("start", "failed", detail, "name another --launcher")
    elif resolved.is_bundled:
        yield Row("start", "ok", expected_text)
    elif may_hang and not train_events:
        silence = in_seconds(start["silent_before_stop_s"])
        detail = f"{expected_text}; {_trainer_name(resolved)} has printed nothing for {silence}: it may hang"
        yield Row("start", "unknown", detail, "print each step, or wait longer: --stop-after N")
    else:
        yield Row("start", "ok", f"{expected_text}; {_trainer_name(resolved)} ran for {trained}")
    if train_events:
        # The last step before Slurm ended the start, or else the last step of all.
        steps_before_stop = _train_events(start["events"][: start["events_before_stop"]])
        last_event = (steps_before_stop or train_events)[-1]
        loss = f", loss {last_event['loss']:.4g}" if isinstance(last_event.get("loss"), float) else ""
        yield Row("first steps", "ok", f"{_progress(last_event)} after {trained}{loss}")
    elif resolved.is_bundled:
        yield _failed_row("first steps", f"no step in {trained}", start, rehearsal)
    else:
        yield Row("first steps", "unknown", "the trainer prints no steps", "set metrics in the job")


def _trainer_name(resolved: ResolvedJob) -> str:
    """Return the job's trainer, or the program that it starts in place of a trainer."""
    main = resolved.main
    return main.trainer or main.args[0]


def _program_rows(start: StartReport) -> Iterator[Row]:
    """Yield a row for each program of a job with several programs: whether it started and was ready."""
    for program in start.get("programs", ()):
        name, state, why = program["name"], program["state"], program["why"]
        if state == "late":
            yield Row(name, "unknown", f"it was not ready {why}", "see its log")
        elif state == "failed":
            yield Row(name, "failed", f"it {why}", "run the program alone, and see its log")
        elif state == "starts":
            yield Row(name, "ok", "it ran until the job ended it")
        elif state == "ready":
            yield Row(name, "ok", "it was ready, and ran until the job ended it")
        else:
            yield Row(name, "ok", f"it {state} {why}")


def _limit_rows(start: StartReport, next_start: StartReport | None, rehearsal: Rehearsal) -> Iterator[Row]:
    """Yield the rows "time limit" and "restart": whether the job saves before the limit, and resumes."""
    resolved = rehearsal.resolved
    if not start["stopped_at"]:
        yield Row("time limit", "unknown", f"the job ended before it, with status {start['status']}")
        return
    circumstance = f"stopped {start['signal_lead_s']} s before it"
    if not resolved.options.signal:
        circumstance = f"no --signal: SIGTERM, and SIGKILL {KILL_WAIT} s later"
    yield _saved_row("time limit", circumstance, start, rehearsal)
    starts_next_job = start["status"] == NEXT_JOB_STATUS and resolved.consecutive
    if starts_next_job and next_start:
        circumstance = "exit status 75, so the next job starts"
        yield _resumed_row("restart", circumstance, start, next_start, rehearsal)
    elif start["was_requeued"] and next_start:
        yield _resumed_row("restart", "the script requeued itself", start, next_start, rehearsal)
    elif resolved.resume == "off" or not resolved.max_restarts:
        return
    elif not next_start and (start["was_requeued"] or starts_next_job):
        return  # the next start ended at a limit of the sandbox, for which there is another row
    elif start["status"]:
        detail = f"exit status {start['status']}: a job that fails is not requeued"
        yield Row("restart", "failed", detail)
    else:
        fix = f"{_REQUEUE_FIX}; or --resume off, for no restarts"
        furthest_step = max(_last_step(other.get("events", [])) or 0 for other in rehearsal.starts)
        # If no start trained further, the training may have had no more steps.
        has_more_steps = furthest_step > (_last_step(start["events"]) or 0)
        why = "the trainer has not asked for it" + ("" if has_more_steps else ", or had no more to do")
        outcome: Literal["failed", "unknown"] = "failed" if has_more_steps else "unknown"
        yield Row("restart", outcome, f"exit status 0, and no requeue: {why}", fix)


def _sigterm_rows(start: StartReport, next_start: StartReport | None, rehearsal: Rehearsal) -> Iterator[Row]:
    """Yield the rows of a requeue or of scancel: whether the job saves at SIGTERM, and resumes."""
    is_requeue = start["ending"] == "requeue"
    what = "requeue" if is_requeue else "scancel"
    if not start["stopped_at"]:
        yield Row(what, "unknown", f"the job ended before it, with status {start['status']}")
        return
    yield _saved_row(what, "SIGTERM", start, rehearsal)
    if next_start and rehearsal.resolved.resume != "off":
        what_next = "restart after it" if is_requeue else "submitted again"
        yield _resumed_row(what_next, "", start, next_start, rehearsal)


def _end_rows(start: StartReport, _: StartReport | None, rehearsal: Rehearsal) -> Iterator[Row]:
    """Yield the row of a start that nothing stopped: whether the training reaches its end."""
    trained = in_seconds(start["trained_s"])
    if start["was_killed"]:
        last_step = _last_step(start["events"])
        detail = f"not reached in {trained}"
        if last_step is not None:
            detail += f", at step {last_step}"
        if start["silent_at_end_s"] > 5:
            detail += f"; nothing printed for {in_seconds(start['silent_at_end_s'])}"
        yield Row("end", "unknown", detail, "give it more time: --seconds N")
    elif start["status"]:
        yield _failed_row("end", f"exit status {start['status']}", start, rehearsal)
    elif ends_in_traceback(start["log"]):
        yield Row("end", "unknown", f"exit status 0, but {cause_of(1, start['log']).what}")
    else:
        yield Row("end", "ok", f"exit status 0 after {trained}")


def _memory_rows(start: StartReport, _: StartReport | None, rehearsal: Rehearsal) -> Iterator[Row]:
    """Yield the row of the GPU memory: whether the training fits on the GPUs of the partition."""
    computed = start["memory"]
    if computed is None:
        yield Row("GPU memory", "unknown", f"it can't be computed: {cause_of(1, start['log']).what}")
        return
    # The bytes of a GPU in each kind of node of the partition, if the profile says so.
    node_kinds = rehearsal.resolved.partition.node_kinds()
    limits = [int(kind.gpu_memory) << 20 for kind in node_kinds if kind.gpu_memory]
    shape = "x".join(map(str, computed["shape"]))
    figures = memory_figures(computed)
    detail = f"{computed['images']} images ({shape}, {computed['precision']})"
    detail += f" take about {in_bytes(figures.tensors)} of tensors"
    if figures.first_steps > figures.tensors:
        detail += f", up to {in_bytes(figures.first_steps)} while cuDNN tries kernels"
    of_limit = f" of {in_bytes(max(limits))}" if limits else ""
    detail += f", and {in_bytes(figures.card)}{of_limit} on the card"
    if limits and computed["peak_bytes"] > max(limits):
        yield Row("GPU memory", "failed", detail, "-- --accumulate 2 or more, --activation-checkpointing")
    elif limits and figures.card > min(limits):
        yield Row("GPU memory", "unknown", f"{detail}, so the model may not fit")
    else:
        yield Row("GPU memory", "ok", detail)


class MemoryFigures(NamedTuple):
    """The memory of a training on a GPU, in bytes."""

    tensors: int  # the tensors of the training and of cuBLAS
    first_steps: int  # the tensors, and the workspaces of cuDNN while it tries kernels
    card: int  # everything on the card


def memory_figures(computed: dict[str, Any]) -> MemoryFigures:
    """Return the memory of a training from the answer of training/memory.py, which needs no training.

    The other figures were measured in 15 trainings on an H200 with torch 2.11 and cuDNN 9.19. The measured
    tensors were larger than the computed tensors by three workspaces of cuBLAS, of 32 MiB each. If there was
    room, cuDNN took up to twice the tensors in the first steps. In most trainings the allocator kept 8 to
    16 % of its memory unused. CUDA's context took 750 MiB.
    """
    tensors = int(computed["peak_bytes"]) + _CUBLAS_BYTES
    first_steps = 2 * tensors if computed.get("tries_kernels") else tensors
    return MemoryFigures(tensors, first_steps, int(tensors / (1 - _UNUSED_SHARE)) + _CONTEXT_BYTES)


def _saved_row(what: str, circumstance: str, start: StartReport, rehearsal: Rehearsal) -> Row:
    """Return the row of a stop: whether the job saved and ended in time.

    `circumstance` says how the job was stopped, such as "SIGTERM".
    """
    took_s, stopped_at = start["stop_took_s"] or 0.0, start["stopped_at"] or 0.0
    took = in_seconds(took_s)
    events_after = [event for event in start["events"] if event.get("time", 0) >= stopped_at]
    saves = [event for event in events_after if event.get("event") == "save"]
    if start["was_killed"]:
        detail = f"{circumstance}; still running {took} later"
        # The controller waited for a shorter time than Slurm would.
        if what == "time limit" and took_s < start["signal_lead_s"]:
            return Row(what, "unknown", detail, f"wait longer: --seconds {start['signal_lead_s']}")
        return Row(what, "failed", f"{detail}, and killed", "let the trainer stop at the signal")
    if saves:
        return Row(what, "ok", f"{circumstance}; saved {_progress(saves[-1])} and ended in {took}")
    if (start["saved_at"] or 0) >= stopped_at:
        return Row(what, "ok", f"{circumstance}; saved {start['checkpoint']} and ended in {took}")
    if start["status"] and has_error(start["log"]):
        return _failed_row(what, f"{circumstance}; exit status {start['status']}", start, rehearsal)
    why = "its last checkpoint is older" if start["saved_at"] else "it has saved nothing"
    fix = "ignore SIGTERM, and save when the stop file is there: $SBATCHGEN_STOP_FILE"
    return Row(what, "lost", f"{circumstance}; ended in {took}, but {why}", fix)


def _failed_row(what: str, circumstance: str, start: StartReport, rehearsal: Rehearsal) -> Row:
    """Return the row of a start that failed by itself; its outcome is unknown if it only lacked a GPU."""
    cause = cause_of(start["status"], start["log"])
    if cause.lacks_gpu and any(part.name == "GPUs" for part in rehearsal.unproven):
        elsewhere = "rehearse it where there is a GPU, or with --on PROFILE"
        fix = f"{elsewhere}{OR}let the trainer use CPUs if it finds no GPU"
        return Row(what, "unknown", f"the trainer wants a GPU, and this machine has none: {cause.what}", fix)
    return Row(what, "failed", f"{circumstance}: {cause.what}", cause.fix)


def _resumed_row(
    what: str, circumstance: str, start: StartReport, next_start: StartReport, rehearsal: Rehearsal
) -> Row:
    """Return the row of a restart: whether the following start continues from the last step."""
    prefix = f"{circumstance}; " if circumstance else ""
    unit = "step" if _last_step(start["events"]) is not None else "epoch"
    events = [event for event in next_start["events"] if event.get("event") in ("start", "resume", "train")]
    steps_of_restart = [event[unit] for event in events if unit in event]
    last_step = _last_step(start["events"], unit)
    if not steps_of_restart or last_step is None:
        if next_start["status"] and not next_start["stopped_at"]:
            return _failed_row(what, f"{prefix}exit status {next_start['status']}", next_start, rehearsal)
        if last_step is not None and not next_start["stopped_at"]:
            return Row(what, "unknown", f"{prefix}it ended with status 0, and printed no {unit}")
        return Row(what, "unknown", f"{prefix}the trainer prints no steps", "set metrics in the job")
    begin_step = steps_of_restart[0]
    has_resumed = begin_step >= last_step / 2  # a restart from before half of the last step did not resume
    begins_again = f"{prefix}it begins again at {unit} {begin_step}"
    if not has_resumed and what != "restart" and not start["saved_at"]:
        return Row(what, "lost", f"{begins_again}, as nothing was saved")
    if not has_resumed:
        fix = "resume from the newest checkpoint in $RUN_DIR"
        return Row(what, "failed", f"{begins_again}, after {unit} {last_step}", fix)
    return Row(what, "ok", f"{prefix}it continues from {unit} {begin_step}")


def _train_events(events: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the events that report a training step."""
    return [event for event in events if event.get("event") == "train"]


def _progress(event: Mapping[str, Any]) -> str:
    """Return the step of an event, or else its epoch, as text."""
    units = (unit for unit in ("step", "epoch") if event.get(unit) is not None)
    return next((f"{unit} {event[unit]}" for unit in units), "a step")


def _last_step(events: Sequence[Mapping[str, Any]], unit: str = "step") -> int | None:
    """Return the highest step of some events; None without one. `unit` is "step" or "epoch"."""
    steps = [event[unit] for event in events if isinstance(event.get(unit), int)]
    return max(steps, default=None)
