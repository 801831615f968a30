"""What jobs have taken of budgets: the most at first, and after their end what Slurm says that they took.

A file in the home of the account, which no variable moves. What is not known is not given back.
"""

import contextlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from sbatchgen.base import files
from sbatchgen.base.errors import BudgetError, Problem, SlurmError
from sbatchgen.base.quoting import word
from sbatchgen.base.units import Duration
from sbatchgen.check.sbatch.array import indices
from sbatchgen.jobs.budget import allowance
from sbatchgen.jobs.budget.allowance import Allowance, allowances
from sbatchgen.jobs.budget.demand import Demand, demand
from sbatchgen.jobs.slurm import accounting, client
from sbatchgen.jobs.slurm.queue import SlurmJob, key_of, queue

MAX_BYTES = 64 << 20
WAIT_S = 120.0  # for the lock: others ask Slurm meanwhile
LOST_S = 900.0  # after which a submission without an id is no more on its way


class Charge(NamedTuple):
    """What a submission takes of its budgets."""

    key: str  # of the submission
    budgets: Sequence[str]  # their files
    when: float  # in seconds since 1970
    tasks: int
    at_once: int  # how many of them wait or run; 0 after the end
    gpus: float  # of each task
    cpus: int  # of each task
    gpu_hours: float  # the most, and what it took once that is known
    cpu_hours: float
    job: str = ""  # its id
    known: bool = False  # whether it is known what it took


Charges = dict[str, Charge]  # by their keys


class Standing(NamedTuple):
    """What is left of a budget; None where it sets no limit."""

    file: str
    gpu_hours: float | None
    cpu_hours: float | None
    jobs: int | None


def standing(file: str, limits: Allowance, charges: Charges) -> Standing:
    """Return what is left: each number that is shown of a budget is from here."""
    its = [each for each in charges.values() if file in each.budgets]
    taken = {name: sum(getattr(each, name) for each in its) for name in ("gpu_hours", "cpu_hours", "at_once")}
    left = [
        None if limit is None else max(limit - some, 0)
        for limit, some in zip((limits.gpu_hours, limits.cpu_hours, limits.jobs), taken.values(), strict=True)
    ]
    return Standing(file, *left)


def standings(environment: Mapping[str, str]) -> list[Standing]:
    """Return what is left of each budget that holds here, as Slurm knows it now."""
    if not (limits := allowances(environment)):
        return []
    with _changing() as charges:
        _reconcile(charges, environment)
        return [standing(file, its, charges) for file, its in limits.items()]


class Debit:
    """A submission before the budgets that hold; without any, nothing is asked and nothing kept."""

    demand: Demand | None = None

    def __init__(
        self, key: str, script: bytes, options: Sequence[str], environment: Mapping[str, str], tasks: int = 0
    ) -> None:
        """Read the budgets; the sweep or chain of the job may have more `tasks` than the script."""
        self.key, self.limits, self._environment = key, allowances(environment), environment
        others = [name for name in client.submit_environment(environment)[1] if name.startswith("SBATCH_")]
        if self.limits and others:
            what = f"a budget can't count a job that {others[0]} changes"
            raise BudgetError.of(what, fix="leave --keep-sbatch-env out")
        if self.limits:
            self.demand = demand(script, options, environment)
            self._tasks = max(tasks, self.demand.tasks)

    def enter(self, *, keep: bool = True) -> None:
        """Charge the most that the job may take. Raises BudgetError where that is more than is left."""
        if not (asked := self.demand):
            return
        with _changing() as charges:
            if [*self._problems(asked, charges)]:
                _reconcile(charges, self._environment)
            if problems := [*self._problems(asked, charges)]:
                raise BudgetError(problems)
            if keep:
                counts = asked[:4]  # tasks, at_once, gpus, cpus
                hours = asked.hours(asked.gpus), asked.hours(asked.cpus)
                charges[self.key] = Charge(self.key, [*self.limits], time.time(), *counts, *hours)

    def change(self, **facts: str) -> None:
        """Keep facts of the job, as its id; without any, give back what was charged: Slurm refused it."""
        if self.demand:
            with contextlib.suppress(BudgetError), _changing() as charges:
                charge = charges.pop(self.key, None)
                if charge and facts:
                    charges[self.key] = charge._replace(**facts)  # type: ignore[arg-type]

    def _problems(self, asked: Demand, charges: Charges) -> Iterator[Problem]:
        for file, limits in self.limits.items():
            left, by, fix = (
                standing(file, limits, charges),
                f"the budget {file}",
                f"who set it may edit {file}",
            )
            if limits.until and time.time() > limits.until.epoch:
                yield Problem(f"{by} ended{limits.ends}", fix=fix)
            for what, names in (("partition", asked.partitions), ("account", (asked.account,))):
                allowed = getattr(limits, f"{what}s")
                if allowed is not None and not {*(names or ("",))} <= {*allowed}:
                    said = f"not {', '.join(names)}" if any(names) else f"and the job names no {what}"
                    its = f"--{what} {allowed[0]}" if allowed else fix
                    yield Problem(
                        f"{by} allows the {what}s {', '.join(allowed) or '(none)'}, {said}", fix=its
                    )
            if left.jobs is not None and asked.at_once > left.jobs:
                what = f"this adds {asked.at_once} jobs that wait or run"
                what += f"; {left.jobs} of {limits.jobs} are left"
                yield Problem(what, by, "wait until some have ended: sbatchgen status")
            for unit, each, rest, of, words in (
                ("GPU", asked.gpus, left.gpu_hours, limits.gpu_hours, " are left"),
                ("GPU", asked.gpus, limits.gpu_hours_per_job, None, " may be in one job"),
                ("CPU", asked.cpus, left.cpu_hours, limits.cpu_hours, " are left"),
            ):
                hours = asked.hours(each, self._tasks)
                if rest is None or hours <= rest + 1e-9:
                    continue
                what = f"this job may take {_shown(hours)} {unit}-hours"
                what += f" in {asked.starts} starts" * (asked.starts > 1)
                what += f"; {_shown(int(rest * 10 + 1e-6) / 10)}" + f" of {of}" * (of is not None)
                fits = int(asked.time_s * rest / hours) // 60 * 60
                yield Problem(what + words + limits.ends, by, f"--time {Duration(fits)}" if fits else fix)


def _shown(hours: float) -> str:
    return f"{hours:,.1f}".removesuffix(".0")


@contextlib.contextmanager
def _changing() -> Iterator[Charges]:
    """Let no other command read or write the ledger, and keep what is changed. Raises BudgetError."""
    file = Path(allowance.home(), ".local/state/sbatchgen/budget.json")
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with files.locked(file.with_suffix(".lock"), WAIT_S) as held:
            charges = _read(file, locked=held is not None)
            before = dict(charges)
            try:
                yield charges
            finally:
                if charges != before:
                    text = json.dumps([*charges.values()])
                    files.put(file, text.encode(), mode=files.PRIVATE)
    except OSError as error:
        what = f"the ledger of budgets {file} can't be used: {error.strerror}"
        raise BudgetError.of(what, fix=f"see who may use it: ls -l {word(str(file))}") from error


def _read(file: Path, *, locked: bool) -> Charges:
    if not locked:
        raise OSError(0, "no file can be locked there")
    try:
        rows = [Charge(*row) for row in json.loads(files.read_own(file, MAX_BYTES))]
        if all(
            row.gpu_hours >= 0 and row.cpu_hours >= 0 and row.at_once >= 0 and row.when > 0 for row in rows
        ):
            return {row.key: row for row in rows}
    except FileNotFoundError:
        return {}
    except (ValueError, TypeError, RecursionError):
        pass
    raise OSError(0, "it is damaged")


def _reconcile(charges: Charges, environment: Mapping[str, str]) -> None:
    """Charge jobs that have ended with what they took, where squeue or sacct says it."""
    seen: dict[str, list[SlurmJob]] = {}
    with contextlib.suppress(SlurmError):
        for row in queue(environment):
            seen.setdefault(key_of(row.command), []).append(row)
        for key, each in charges.items():
            rows = seen.get(key, [])
            job = each.job or (str(rows[0].job) if rows else "")
            ended = bool(job or time.time() > each.when + LOST_S) and all(row.state.ended for row in rows)
            charges[key] = each._replace(job=job, at_once=0 if ended else each.at_once)
        open_ = {each.job: each for each in charges.values() if each.job and not each.at_once | each.known}
        if not open_:
            return
        since = datetime.fromtimestamp(min(each.when for each in open_.values()) - 3600).astimezone()
        keys = {job: each.key for job, each in open_.items()}
        known = accounting.accounting(keys, since, environment)
        used = accounting.usage(keys, since, environment) or []
        for job, each in open_.items():
            rows = seen.get(each.key, []) if known is None else [row for row in known if str(row.job) == job]
            starts = [start for start in used if start.job == job]
            if known is None:  # the controller knows the last start alone
                rows = [] if any(row.restarts for row in rows) else rows
                starts = [accounting.JobUsage(used_s=row.used_s) for row in rows]
            tasks = sum(sum(map(len, indices(row.task) or ())) or 1 for row in rows)
            if tasks >= each.tasks and all(row.state.ended for row in rows):
                gpus = sum((each.gpus if its.gpus is None else its.gpus) * its.used_s for its in starts)
                cpus = sum((each.cpus if its.cpus is None else its.cpus) * its.used_s for its in starts)
                new = charges[each.key]._replace(known=True)
                charges[each.key] = new._replace(gpu_hours=gpus / 3600, cpu_hours=cpus / 3600)
