"""Puts the states of runs into words, for `status`: a table of runs, a page about one run, and a headline."""

from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path

from sbatchgen.base.quoting import counted, numbers_as_text, one_line, table
from sbatchgen.base.units import elapsed
from sbatchgen.jobs.runs import stall
from sbatchgen.jobs.runs.events import read_object
from sbatchgen.jobs.runs.index import RunJob
from sbatchgen.jobs.runs.points import FAILED, NEW, STOPPED, SweepState
from sbatchgen.jobs.runs.progress import Progress
from sbatchgen.jobs.runs.record import Record
from sbatchgen.jobs.runs.seen_jobs import ENDED_WITH_ERRORS, SAVED, state_in_words
from sbatchgen.jobs.runs.status import RunState
from sbatchgen.jobs.runs.submitted_scripts import loss_on_restart
from sbatchgen.jobs.slurm.queue import SlurmJob

HEADINGS = ("RUN", "JOB", "STATE", "TRAINING")
SAYS_LOG_ONLY = "its job is not known, so only its log was read"
MAX_POINTS = 20  # points of a sweep, or tasks of an array, that the page of a run shows
PREFLIGHT_FILE = "preflight.json"  # the file in which training/preflight.py reports faults of nodes
MAX_FAULT_CHARS = 600  # characters of these faults that are shown


def overview(states: Sequence[RunState]) -> str:
    """Return a table with a line for each run, in the order of `states`."""
    rows = [HEADINGS]
    for state in states:
        job = (state.last_job.id, _last_job_in_words(state)) if state.last_job else ("", "")
        training = (state.progress.says if state.progress else "", state.standstill)
        rows.append((state.run.name, *job, "; ".join(filter(None, training))))
    return table(tuple(map(one_line, row)) for row in rows)


def _last_job_in_words(state: RunState) -> str:
    """Return the state of a run's last job in words, with its failed program; "" without a job."""
    job, program = state.last_job, state.failed_program
    if job is None:
        return ""
    return _state_in_words(job._replace(says=program.says) if program else job, state.queue_rows)


def _job_facts(state: RunState) -> Iterator[tuple[str, str]]:
    """Yield the jobs of a run with their states; for a job of plain sbatch, also its tasks and its owner."""
    for job in state.jobs:
        says = _last_job_in_words(state) if job is state.last_job else _state_in_words(job, ())
        submitted = f"; submitted {_local_time(job.submitted):%Y-%m-%d %H:%M}" if job.submitted else ""
        yield f"job {job.id or '?'}", f"{says}{submitted}"
    if state.job:  # the state is about an older job
        yield "newer jobs", f"sbatchgen status {state.run.name}"
    if state.plain:
        tasks = [row for row in state.plain.rows if row.task]
        yield from ((f"task {row.task}", row.state.words) for row in tasks[:MAX_POINTS])
        if state.plain.owner:
            yield "owner", state.plain.owner


def _program_facts(state: RunState) -> Iterator[tuple[str, str]]:
    """Yield the programs of a job with several programs, each with its state."""
    job_ended = state.last_job is not None and state.last_job.ended
    words_for_running = {"starts": "started", "ready": "ready"}  # by the states of running programs
    for program in state.programs:
        program_state = words_for_running.get(program.state, program.state)
        says = f"{program_state} {_time_as_text(_local_time(program.since))}"
        says += f" on {program.nodes}" if program.nodes else ""
        if program.why:
            says += f"{':' if program.state == 'failed' else ''} {program.why}"
        has_ended_with_job = job_ended and program.state in words_for_running
        yield program.name, says + ", ended with the job" * has_ended_with_job


def _state_in_words(job: RunJob, queue_rows: Sequence[SlurmJob]) -> str:
    """Return the state of a job in words; `queue_rows` has squeue's rows of the job."""
    text = state_in_words(job)
    if len(queue_rows) != 1 or queue_rows[0].state.ended:
        if job.says == SAVED:  # these words replace "failed"
            return job.says
        comma = "," if job.says == ENDED_WITH_ERRORS else ":"
        return f"{text}{comma} {job.says}" if job.says else text
    (row,) = queue_rows
    restarts = f", restart {row.restarts}" if row.restarts else ""
    if row.state.name == "PENDING":
        plan = f"; Slurm plans its start on {row.planned}" if row.planned else "; expected"
        start = f"{plan} {_time_as_text(row.start)}" if row.start else ""
        return f"{text}{restarts}: {job.says}{start}"
    limit = f" of {elapsed(row.limit_s)}" if row.limit_s is not None else ""
    return f"{text} {elapsed(row.used_s)}{limit} on {row.node_list or '?'}{restarts}"


def headline(state: RunState) -> str:
    """Return one line about the last job of a run: what it does, or how it ended."""
    job = state.last_job
    if job and not job.id and state.plain:
        return SAYS_LOG_ONLY
    return one_line(f"job {job.id} {_last_job_in_words(state)}") if job else "no job yet"


def page(
    state: RunState, records: Sequence[Record], logs: Sequence[str], *, sort: str = "", reverse: bool = False
) -> str:
    """Return a page with all facts about one run.

    Args:
        state: The state of the run.
        records: The records of its jobs.
        logs: The paths of its logs.
        sort: The metric or parameter that sorts the points of a sweep; "" for their results.
        reverse: Whether the points are sorted the other way round.
    """
    progress = state.progress
    hangs = state.standstill.startswith(stall.HANGS_PREFIX)
    facts = [("hangs", state.standstill.removeprefix(stall.HANGS_PREFIX))] if hangs else []
    facts.append(("folder", state.folder))
    facts += _job_facts(state)
    facts += [(f"program {name}", says) for name, says in _program_facts(state)]
    if progress and not state.sweep:  # the table of points shows the progress of a sweep
        facts += _progress_facts(progress)
    preflight = preflight_in_words(state.run.folder)
    facts += [("preflight", preflight)] if preflight else []
    facts += [("stands still", state.standstill)] if state.standstill and not hangs else []
    facts += [("plans so far", state.plan_accuracy)] if state.plan_accuracy else []
    facts += [("start before", state.previous_end)] if state.previous_end else []
    is_completed = state.last_job is not None and state.last_job.state == "COMPLETED"
    if records and not is_completed and (loss := loss_on_restart(records[-1], state.run.folder)):
        facts.append(("a restart", loss.says))
    facts += zip(["log", "", ""], logs, strict=False)
    facts += _code_facts(records[-1]) if records else []
    lines = table((f"  {one_line(name)}", one_line(text)) for name, text in facts)
    sweep = f"\n{_points_as_text(state.sweep, sort, reverse=reverse)}" if state.sweep else ""
    return f"{one_line(state.run.name)}\n{lines}{sweep}"


def _progress_facts(progress: Progress) -> Iterator[tuple[str, str]]:
    """Yield how far a training is, what its steps cost, and its newest checkpoint."""
    yield "training", progress.says or progress.state or "no loss so far"
    details = (("", progress.costs), ("slow", progress.slow), ("", progress.reason))
    yield from ((name, says) for name, says in (*details, ("checkpoint", progress.checkpoint)) if says)


def _code_facts(record: Record) -> Iterator[tuple[str, str]]:
    """Yield the finished script of a job and the code that it runs, if they are known."""
    if record.script:
        yield "script", " ".join([record.script, *record.options])
    if code := record.code:
        commit = f" at {code.at}" if code.commit else ""
        yield "code", f"{code.snapshot or code.folder}{commit}"


def _points_as_text(sweep: SweepState, sort: str, *, reverse: bool) -> str:
    """Return a line with the number of points in each state, and a table of points, the best first."""
    counts = []
    for state, points in sweep.numbers_by_state.items():
        text = numbers_as_text(points)
        text = text if len(text) <= 60 else text[:60].rpartition(",")[0] + ",..."
        counts.append(f"{len(points):,} {state}" + (f" ({text})" if state in (FAILED, STOPPED, NEW) else ""))
    sorted_points = sweep.sorted_by(sort, reverse=reverse) if sort else sweep.best_first
    metrics = [sort] if sort and sort not in sweep.names else []  # the metric gets a column of its own
    with_result = {point.number for point in sorted_points}
    others = [point for point in sweep.points if point.number not in with_result]
    rows = [("POINT", *sweep.names, *metrics, "STATE", "TRAINING")]
    for point in [*sorted_points, *others][:MAX_POINTS]:
        says = f"{point.state}: {point.says}" if point.says else point.state
        training = point.progress.says if point.progress else ""
        mark = "  best" if point in sorted_points[:1] and not sort else ""
        numbers = [sweep.metric(point, name) for name in metrics]
        shown = ["" if number is None else f"{number:.6g}" for number in numbers]
        rows.append(tuple(map(one_line, (str(point.number), *point.values, *shown, says, training + mark))))
    hidden_count = len(sweep.points) - len(rows) + 1  # one row is the heading
    last_line = f"and {hidden_count:,} more: --format json shows all\n" if hidden_count else ""
    return f"{len(sweep.points):,} points: {', '.join(counts)}\n\n{table(rows)}{last_line}"


def states_seen_at(states: Sequence[RunState]) -> str:
    """Return the time when the oldest of these states was seen: "14:05"; "now" if all jobs have ended."""
    times = [job.seen for state in states for job in state.jobs if not job.ended]
    return _time_as_text(_local_time(min(times))) if times else "now"


def _local_time(seconds: float) -> datetime:
    """Return a time in seconds since 1970 as a local time."""
    return datetime.fromtimestamp(seconds, timezone.utc).astimezone()


def _time_as_text(moment: datetime) -> str:
    """Return "14:05" for a time of today, and "2026-11-20 14:05" for other times."""
    today = moment.date() == datetime.now(moment.tzinfo).date()
    return f"{moment:%H:%M}" if today else f"{moment:%Y-%m-%d %H:%M}"


def preflight_in_words(folder: Path) -> str:
    """Return the faults that the preflight of a run has found, such as "n3: /tmp: can't be written".

    Without faults, return how many nodes are ready. Return "" if there was no preflight.
    """
    record = read_object(folder / PREFLIGHT_FILE)
    faults, nodes = record.get("faults"), record.get("nodes")
    if not isinstance(faults, dict) or not isinstance(nodes, list):
        return ""
    says = []
    for node, rows in faults.items():
        if not isinstance(rows, list):
            continue
        for row in rows:
            if isinstance(row, list) and len(row) == 2:
                part, fault = row
                says.append(f"{node or 'all nodes'}: {part}: {fault}")
    return "; ".join(says)[:MAX_FAULT_CHARS] or f"{counted(len(nodes), 'node')} ready"
