"""Makes the bill of several runs, for `report --month`: what the jobs of each run have cost, and the sum."""

import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from sbatchgen.base.frozen import frozen
from sbatchgen.base.quoting import counted, table
from sbatchgen.base.units import elapsed
from sbatchgen.jobs.runs.status import RunState
from sbatchgen.jobs.runs.usage import run_usage, starts_by_sacct


class BillPeriod(NamedTuple):
    """A time from `begin` to just before `end`, in seconds since 1970."""

    begin: float
    end: float


ALL_TIME = BillPeriod(0.0, float("inf"))


@frozen(kw_only=True)
class RunCost:
    """What the jobs of a run have cost, or the jobs of several runs together."""

    name: str  # the name of the run; "" for the sum
    folder: str  # the run folder; "" for the sum
    jobs: int  # how many jobs there were
    unknown: int  # how many jobs have started, but are not in the sums: their running time is not known
    used_s: float  # how many seconds the starts with a known time have run, in all
    gpu_hours: float  # GPU-hours of the same starts
    cpu_hours: float  # CPU-hours of the same starts


@frozen(kw_only=True)
class Bill:
    """The cost of each of several runs, and the sum."""

    runs: tuple[RunCost, ...]  # the oldest first
    total: RunCost
    problems: tuple[str, ...] = ()  # errors of sacct and damaged events, which leave costs unknown


def month_period(text: str) -> BillPeriod:
    """Return the period of a month such as "2026-11" in local time; raise ValueError if it is not a month."""
    first = time.strptime(text, "%Y-%m")
    begin = (first.tm_year, first.tm_mon, 1, 0, 0, 0, 0, 0, -1)
    end = (first.tm_year, first.tm_mon + 1, 1, 0, 0, 0, 0, 0, -1)
    return BillPeriod(time.mktime(begin), time.mktime(end))


def make_bill(
    states: Sequence[RunState], environment: Mapping[str, str], period: BillPeriod = ALL_TIME
) -> Bill:
    """Return the cost of the jobs of these runs that were submitted in a period.

    A run without such a job has no row. sacct is asked once for all runs.
    """
    chosen_jobs = {
        state.run.name: [job for job in state.jobs if period.begin <= job.submitted < period.end]
        for state in states
    }
    by_sacct, problems = starts_by_sacct(
        [state for state in states if chosen_jobs[state.run.name]], environment
    )
    rows = []
    for state in states:
        if not (jobs := chosen_jobs[state.run.name]):
            continue
        usage = run_usage(state, environment, by_sacct)
        problems += usage.problems
        starts = [start for start in usage.starts if start.job in {job.id for job in jobs}]
        with_time = [start for start in starts if start.used_s]
        row = RunCost(
            name=state.run.name,
            folder=str(state.run.folder),
            jobs=len(jobs),
            unknown=len({start.job for start in starts if not start.used_s}),
            used_s=sum(start.used_s for start in with_time),
            gpu_hours=sum((start.gpus or 0) * start.used_s for start in with_time) / 3600,
            cpu_hours=sum((start.cpus or 0) * start.used_s for start in with_time) / 3600,
        )
        rows.append(row)
    return Bill(runs=tuple(rows), total=_sum(rows), problems=tuple(dict.fromkeys(problems)))


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
        text += f"\nnot counted: {counted(bill.total.unknown, 'job')}, because the running time is neither "
        text += "in Slurm's accounting (sacct) nor in the run folder\n"
    return text
