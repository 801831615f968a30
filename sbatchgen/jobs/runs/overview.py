"""Runs as people and programs read them: a table, a page for one run, JSON."""

from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path

from sbatchgen.base.quoting import counted, numbers_as_text, one_line
from sbatchgen.base.text_table import table
from sbatchgen.base.units import elapsed
from sbatchgen.jobs.runs import stall
from sbatchgen.jobs.runs.events import read_object
from sbatchgen.jobs.runs.index import RunJob
from sbatchgen.jobs.runs.points import FAILED, NEW, STOPPED, SweepState
from sbatchgen.jobs.runs.record import Record
from sbatchgen.jobs.runs.seen_jobs import ERRORS, SAVED, words
from sbatchgen.jobs.runs.status import RunState
from sbatchgen.jobs.runs.submitted_scripts import forgets
from sbatchgen.jobs.slurm.queue import SlurmJob

HEADINGS = ("RUN", "JOB", "STATE", "TRAINING")
LOG_ONLY = "its job is not known, so only its log was read"
MOST_POINTS = 20  # of a sweep, on the page of its run
RECORD = "preflight.json"  # by training/preflight.py
LONGEST = 600  # characters of what it says


def overview(states: Sequence[RunState]) -> str:
    """Return a line for each run, the newest last."""
    rows = [HEADINGS]
    for state in states:
        of_job = (state.last.id, _last(state)) if state.last else ("", "")
        says = (state.progress.says if state.progress else "", state.quiet)
        rows.append((state.run.name, *of_job, "; ".join(filter(None, says))))
    return table(tuple(map(one_line, row)) for row in rows)


def _last(state: RunState) -> str:
    """Return the state of the last job, if there is one; where a program of several failed, that is why."""
    job, program = state.last, state.failed_program
    if job is None:
        return ""
    return _state(job._replace(says=program.says) if program else job, state.now)


def _programs(state: RunState) -> Iterator[tuple[str, str]]:
    """Yield the programs of a job with several programs, each with its state."""
    over = state.last is not None and state.last.ended
    words = {"starts": "started", "ready": "ready"}
    for each in state.programs:
        says = f"{words.get(each.state, each.state)} {_clock(_local(each.since))}"
        says += f" on {each.nodes}" if each.nodes else ""
        says += f": {each.why}" if each.state == "failed" else f" {each.why}" if each.why else ""
        yield each.name, says + ", ended with the job" * (over and each.state in words)


def _state(job: RunJob, now: Sequence[SlurmJob]) -> str:
    text = words(job)
    if len(now) != 1 or now[0].state.ended:
        comma = "," if job.says == ERRORS else ":"
        return job.says if job.says == SAVED else f"{text}{comma} {job.says}" if job.says else text
    (row,) = now
    again = f", restart {row.restarts}" if row.restarts else ""
    if row.state.name == "PENDING":
        plan = f"; Slurm plans its start on {row.planned}" if row.planned else "; expected"
        start = f"{plan} {_clock(row.start)}" if row.start else ""
        return f"{text}{again}: {job.says}{start}"
    limit = f" of {elapsed(row.limit_s)}" if row.limit_s is not None else ""
    return f"{text} {elapsed(row.used_s)}{limit} on {row.node_list or '?'}{again}"


def headline(state: RunState) -> str:
    """Return what its last job does, in a line."""
    job = state.last
    if job and not job.id and state.plain:
        return LOG_ONLY
    return one_line(f"job {job.id} {_last(state)}") if job else "no job yet"


def page(
    state: RunState, records: Sequence[Record], logs: Sequence[str], *, sort: str = "", reverse: bool = False
) -> str:
    """Return everything about one run; of a sweep, the points by a metric or a parameter."""
    progress = state.progress
    hangs = state.quiet.startswith(stall.HANGS)
    facts = [("hangs", state.quiet.removeprefix(stall.HANGS))] if hangs else []
    plain = state.plain
    facts.append(("folder", state.folder))
    for job in state.jobs:
        says = _last(state) if job is state.last else _state(job, ())
        when = f"; submitted {_local(job.submitted):%Y-%m-%d %H:%M}" if job.submitted else ""
        facts.append((f"job {job.id or '?'}", f"{says}{when}"))
    facts += [("newer jobs", f"sbatchgen status {state.run.name}")] if state.job else []
    facts += [(f"task {row.task}", row.state.words) for row in (plain.rows if plain else ()) if row.task][
        :MOST_POINTS
    ]
    facts += [("owner", plain.owner)] if plain and plain.owner else []
    facts += [(f"program {name}", says) for name, says in _programs(state)]
    if progress and not state.sweep:  # whose points are in the table
        facts.append(("training", progress.says or progress.state or "no loss so far"))
        more = [("", progress.costs), ("slow", progress.slow), ("", progress.reason)]
        facts += [fact for fact in (*more, ("checkpoint", progress.checkpoint)) if fact[1]]
    checked = preflight_says(state.run.folder)
    facts += [("preflight", checked)] if checked else []
    facts += [("stands still", state.quiet)] if state.quiet and not hangs else []
    facts += [("plans so far", state.shown)] if state.shown else []
    facts += [("start before", state.restarted)] if state.restarted else []
    is_done = state.last is not None and state.last.state == "COMPLETED"
    if records and not is_done and (loss := forgets(records[-1], state.run.folder)):
        facts.append(("a restart", loss.says))
    facts += zip(["log", "", ""], logs, strict=False)
    if records and records[-1].script:
        facts.append(("script", " ".join([records[-1].script, *records[-1].options])))
    if records and (code := records[-1].code):
        commit = f" at {code.at}" if code.commit else ""
        facts.append(("code", f"{code.snapshot or code.folder}{commit}"))
    lines = table((f"  {one_line(name)}", one_line(text)) for name, text in facts)
    sweep = f"\n{_points(state.sweep, sort, reverse=reverse)}" if state.sweep else ""
    return f"{one_line(state.run.name)}\n{lines}{sweep}"


def _points(sweep: SweepState, sort: str, *, reverse: bool) -> str:
    """Return how many points are in which state, and the points, the best first."""
    counts = []
    for state, points in sweep.counts.items():
        text = numbers_as_text(points)
        text = text if len(text) <= 60 else text[:60].rpartition(",")[0] + ",..."
        counts.append(f"{len(points):,} {state}" + (f" ({text})" if state in (FAILED, STOPPED, NEW) else ""))
    best = sweep.sorted_by(sort, reverse=reverse) if sort else sweep.best
    metric = [sort] if sort and sort not in sweep.names else []
    known = {point.number for point in best}
    others = [point for point in sweep.points if point.number not in known]
    rows = [("POINT", *sweep.names, *metric, "STATE", "TRAINING")]
    for point in [*best, *others][:MOST_POINTS]:
        says = f"{point.state}: {point.says}" if point.says else point.state
        training = point.progress.says if point.progress else ""
        mark = "  best" if point in best[:1] and not sort else ""
        numbers = [sweep.metric(point, name) for name in metric]
        shown = ["" if number is None else f"{number:.6g}" for number in numbers]
        rows.append(tuple(map(one_line, (str(point.number), *point.values, *shown, says, training + mark))))
    more = len(sweep.points) - len(rows) + 1
    rest = f"and {more:,} more: --format json shows all\n" if more else ""
    return f"{len(sweep.points):,} points: {', '.join(counts)}\n\n{table(rows)}{rest}"


def seen(states: Sequence[RunState]) -> str:
    """Return when the states of jobs that had not ended were seen: the earliest of these times."""
    times = [job.seen for state in states for job in state.jobs if not job.ended]
    return _clock(_local(min(times))) if times else "now"


def _local(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, timezone.utc).astimezone()


def _clock(moment: datetime) -> str:
    today = moment.date() == datetime.now(moment.tzinfo).date()
    return f"{moment:%H:%M}" if today else f"{moment:%Y-%m-%d %H:%M}"


def preflight_says(folder: Path) -> str:
    """Return the faults of nodes, as "n3: /tmp: can't be written"; "" if the nodes were not checked."""
    record = read_object(folder / RECORD)
    faults, nodes = record.get("faults"), record.get("nodes")
    if not isinstance(faults, dict) or not isinstance(nodes, list):
        return ""
    says = [
        f"{node or 'all nodes'}: {part}: {what}"
        for node, rows in faults.items()
        if isinstance(rows, list)
        for part, what in (each for each in rows if isinstance(each, list) and len(each) == 2)
    ]
    return "; ".join(says)[:LONGEST] or f"{counted(len(nodes), 'node')} ready"
