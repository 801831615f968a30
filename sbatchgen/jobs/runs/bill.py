"""The bill of several runs: what the jobs of each run have cost, and the sum."""

import time
from collections.abc import Mapping, Sequence

from sbatchgen.base.frozen import frozen
from sbatchgen.base.quoting import counted, table
from sbatchgen.base.units import elapsed
from sbatchgen.jobs.runs.status import RunState
from sbatchgen.jobs.runs.usage import accounted, run_usage

ALWAYS = (0.0, float("inf"))  # the begin and end of all time, in seconds since 1970


@frozen(kw_only=True)
class RunCost:
    """What the jobs of a run have cost, or the jobs of several runs together."""

    name: str  # the name of the run; "" for the sum
    folder: str  # the run folder; "" for the sum
    jobs: int  # how many jobs there were
    unknown: int  # how many jobs have started but have no known running time
    used_s: float  # how many seconds the starts with a known time have run, in all
    gpu_hours: float  # GPU-hours of the same starts
    cpu_hours: float  # CPU-hours of the same starts


@frozen(kw_only=True)
class Bill:
    """The cost of each of several runs, and the sum."""

    runs: tuple[RunCost, ...]  # the oldest first
    total: RunCost
    problems: tuple[str, ...] = ()  # why something is not known


def month_bounds(text: str) -> tuple[float, float]:
    """Return when a month such as 2026-11 and the next month begin by the local clock, in seconds since 1970.

    Raises ValueError if the text is not a month.
    """
    first = time.strptime(text, "%Y-%m")
    begin = (first.tm_year, first.tm_mon, 1, 0, 0, 0, 0, 0, -1)
    end = (first.tm_year, first.tm_mon + 1, 1, 0, 0, 0, 0, 0, -1)
    return time.mktime(begin), time.mktime(end)


def make_bill(
    states: Sequence[RunState], environment: Mapping[str, str], between: tuple[float, float] = ALWAYS
) -> Bill:
    """Return the cost of the jobs that were submitted between two times, in seconds since 1970.

    A run that submitted no job in this time has no row. sacct is asked once for all runs.
    """
    chosen_jobs = {
        state.run.name: [job for job in state.jobs if _is_in(job.submitted, between)] for state in states
    }
    by_sacct, problems = accounted([state for state in states if chosen_jobs[state.run.name]], environment)
    rows = []
    for state in states:
        if not (jobs := chosen_jobs[state.run.name]):
            continue
        usage = run_usage(state, environment, by_sacct)
        problems += usage.problems
        starts = [start for start in usage.starts if start.job in {job.id for job in jobs}]
        timed = [start for start in starts if start.used_s]
        row = RunCost(
            name=state.run.name,
            folder=str(state.run.folder),
            jobs=len(jobs),
            unknown=len({start.job for start in starts if not start.used_s}),
            used_s=sum(start.used_s for start in timed),
            gpu_hours=sum((start.gpus or 0) * start.used_s for start in timed) / 3600,
            cpu_hours=sum((start.cpus or 0) * start.used_s for start in timed) / 3600,
        )
        rows.append(row)
    return Bill(runs=tuple(rows), total=_sum(rows), problems=tuple(dict.fromkeys(problems)))


def _is_in(time_s: float, between: tuple[float, float]) -> bool:
    begin, end = between
    return begin <= time_s < end


def _sum(rows: Sequence[RunCost]) -> RunCost:
    return RunCost(
        name="",
        folder="",
        jobs=sum(row.jobs for row in rows),
        unknown=sum(row.unknown for row in rows),
        used_s=sum(row.used_s for row in rows),
        gpu_hours=sum(row.gpu_hours for row in rows),
        cpu_hours=sum(row.cpu_hours for row in rows),
    )


def as_text(bill: Bill) -> str:
    """Return a table with a line for each run and the sum last; below it, how many jobs are not counted."""
    lines = [("RUN", "JOBS", "TIME", "GPU-HOURS", "CPU-HOURS")]
    for row in (*bill.runs, bill.total):
        hours = (f"{row.gpu_hours:,.2f}", f"{row.cpu_hours:,.2f}")
        lines.append((row.name or "all", str(row.jobs), elapsed(row.used_s), *hours))
    text = table(lines)
    if bill.total.unknown:
        text += f"\nnot counted: {counted(bill.total.unknown, 'job')} whose time is not known; sacct has it, "
        text += "where Slurm keeps accounting\n"
    return text
