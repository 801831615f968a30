"""A submission before the budgets that hold."""

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from sbatchgen.base.errors import BudgetError, Problem
from sbatchgen.base.units import Duration, Hours
from sbatchgen.jobs.budget import ledger
from sbatchgen.jobs.budget.allowance import Allowance
from sbatchgen.jobs.budget.demand import Demand, demand
from sbatchgen.jobs.budget.ledger import Charge, Charges, Standing
from sbatchgen.jobs.budget.spent import reconcile
from sbatchgen.jobs.slurm import client


class Debit:
    """A submission before the budgets that hold."""

    def __init__(
        self,
        key: str,
        limits: Mapping[str, Allowance],
        script: bytes,
        options: Sequence[str],
        *,
        environment: Mapping[str, str],
        tasks: int = 0,
    ) -> None:
        """Compute the demand of a job; a sweep or a chain of the job may have more `tasks` than the script.

        Raises BudgetError: the environment of sbatch would change the job.
        """
        self.key, self.limits, self._environment = key, limits, environment
        if others := client.submit_environment(environment)[1]:
            what = f"a budget can't count a job that {others[0]} changes"
            raise BudgetError.of(what, fix="leave --keep-sbatch-env out")
        asked = self.demand = demand(script, options, environment)
        self._tasks = max(tasks, asked.tasks)
        self._at_once = asked.at_once * -(-self._tasks // asked.tasks)  # jobs of a chain, arrays of a sweep

    def enter(self, *, keep: bool = True) -> None:
        """Charge the most that the job may take. Raises BudgetError if the job may take more than is left."""
        asked = self.demand
        with ledger.changing() as charges:
            if [*self._problems(asked, charges)]:
                reconcile(charges, self._environment)
            if problems := [*self._problems(asked, charges)]:
                raise BudgetError(problems)
            if keep:
                counts = asked[:4]  # tasks, at_once, gpus, cpus
                hours = asked.hours(asked.gpus), asked.hours(asked.cpus)
                charges[self.key] = Charge(self.key, [*self.limits], time.time(), *counts, *hours)

    def change(self, **facts: str) -> None:
        """Keep facts of the job, such as its id; without facts give the charge back, after a refusal."""
        with contextlib.suppress(BudgetError), ledger.changing() as charges:
            charge = charges.pop(self.key, None)
            if charge and facts:
                charges[self.key] = charge._replace(**facts)  # type: ignore[arg-type]

    def _problems(self, asked: Demand, charges: Charges) -> Iterator[Problem]:
        for file, limits in self.limits.items():
            left = ledger.standing(file, limits, charges)
            yield from _forbidden(file, limits, asked)
            yield from self._too_many(left, limits)
            yield from self._too_long(left, limits, asked)

    def _too_many(self, left: Standing, limits: Allowance) -> Iterator[Problem]:
        if left.jobs is not None and self._at_once > left.jobs:
            adds = f"this adds {self._at_once} job{'s' * (self._at_once > 1)} that may wait or run"
            what = f"{adds}; {left.jobs} of {limits.jobs} are left"
            yield Problem(what, f"the budget {left.file}", "wait until some have ended: sbatchgen status")

    def _too_long(self, left: Standing, limits: Allowance, asked: Demand) -> Iterator[Problem]:
        for unit, each, rest, of, words in (
            ("GPU", asked.gpus, left.gpu_hours, limits.gpu_hours, " are left"),
            ("GPU", asked.gpus, limits.gpu_hours_per_job, None, " may be in one job"),
            ("CPU", asked.cpus, left.cpu_hours, limits.cpu_hours, " are left"),
        ):
            hours = asked.hours(each, self._tasks)
            if rest is None or hours <= rest + 1e-9:
                continue
            what = f"this job may take {_digits(hours, math.ceil)} {unit}-hours"
            what += f" in {asked.starts} starts" * (asked.starts > 1)
            what += f"; {_digits(rest, math.floor)}" + f" of {of}" * (of is not None)
            fits = int(asked.time_s * rest / hours) // 60 * 60
            fix = f"--time {Duration(fits)}" if fits else _of_owner(left.file)
            starts = int(asked.starts * rest / hours)
            if 0 < starts < asked.starts:
                fix = f"--max-restarts {starts - 1} or {fix}"
            yield Problem(what + words + limits.ends, f"the budget {left.file}", fix)


def _forbidden(file: str, limits: Allowance, asked: Demand) -> Iterator[Problem]:
    """Yield the problems that no smaller job avoids: an ended budget, a partition, an account."""
    if limits.until and time.time() > limits.until.epoch:
        yield Problem(f"the budget {file} ended{limits.ends.replace('until', 'on')}", fix=_of_owner(file))
    for what, names in (("partition", asked.partitions), ("account", (asked.account,))):
        allowed = getattr(limits, f"{what}s")
        if allowed is not None and not {*(names or ("",))} <= {*allowed}:
            said = f"not {', '.join(names)}" if any(names) else f"and the job names no {what}"
            its = f"--{what} {allowed[0]}" if allowed else _of_owner(file)
            allows = f"the budget {file} allows the {what}s {', '.join(allowed) or '(none)'}"
            yield Problem(f"{allows}, {said}", fix=its)


def _of_owner(file: str) -> str:
    return f"who set the budget may edit {file}"


def _digits(hours: float, rounded: Callable[[float], int]) -> Hours:
    """Return hours with the digits that are shown; a demand is rounded up, a rest is rounded down."""
    return Hours(rounded(round(hours * 10_000, 3)) / 10_000)
