"""Charges a submission to the budgets that apply, or refuses it if they have too little left."""

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from sbatchgen.base.errors import BudgetError, Problem
from sbatchgen.base.units import Duration, Hours
from sbatchgen.jobs.budget import ledger
from sbatchgen.jobs.budget.allowance import Allowance
from sbatchgen.jobs.budget.demand import Demand, compute_demand
from sbatchgen.jobs.budget.ledger import Charge, Charges, Standing
from sbatchgen.jobs.budget.spent import update_ended
from sbatchgen.jobs.slurm import client


class Debit:
    """The charge of a submission to the budgets that apply."""

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
        """Compute the demand of a job; a sweep or a chain may have more `tasks` than the script's array.

        Raises BudgetError if the environment of sbatch would change the job.
        """
        self.key, self.limits, self._environment = key, limits, environment
        _, variables = client.submit_environment(environment)
        if variables:
            what = f"a budget can't count a job that {variables[0]} changes"
            raise BudgetError.of(what, fix="leave --keep-sbatch-env out")
        self.demand = compute_demand(script, options, environment)
        self._tasks = max(tasks, self.demand.tasks)
        jobs = -(-self._tasks // self.demand.tasks)  # jobs of a chain or arrays of a sweep, rounded up
        self._at_once = self.demand.at_once * jobs

    def enter(self, *, keep: bool = True) -> None:
        """Charge the most that the job may take; raise BudgetError if a budget has less left.

        Without `keep` only check the budgets.
        """
        demand = self.demand
        with ledger.locked_charges() as charges:
            if [*self._problems(demand, charges)]:  # jobs may have ended since the last update
                update_ended(charges, self._environment)
            if problems := [*self._problems(demand, charges)]:
                raise BudgetError(problems)
            if keep:
                charges[self.key] = Charge(
                    key=self.key,
                    budgets=[*self.limits],
                    when=time.time(),
                    tasks=demand.tasks,
                    at_once=demand.at_once,
                    gpus=demand.gpus,
                    cpus=demand.cpus,
                    gpu_hours=demand.hours(demand.gpus),
                    cpu_hours=demand.hours(demand.cpus),
                )

    def update_or_remove(self, **fields: str) -> None:
        """Set fields of the charge, such as the id of its job; without fields, remove it after a refusal."""
        with contextlib.suppress(BudgetError), ledger.locked_charges() as charges:
            charge = charges.pop(self.key, None)
            if charge and fields:
                charges[self.key] = charge._replace(**fields)  # type: ignore[arg-type]

    def _problems(self, demand: Demand, charges: Charges) -> Iterator[Problem]:
        """Yield why the budgets refuse this demand, after these charges."""
        for file, limits in self.limits.items():
            left = ledger.standing(file, limits, charges)
            yield from _forbidden(file, limits, demand)
            yield from self._problems_of_jobs(left, limits)
            yield from self._problems_of_hours(left, limits, demand)

    def _problems_of_jobs(self, left: Standing, limits: Allowance) -> Iterator[Problem]:
        if left.jobs is not None and self._at_once > left.jobs:
            adds = f"this adds {self._at_once} job{'s' * (self._at_once > 1)} that may wait or run"
            what = f"{adds}; {left.jobs} of {limits.jobs} are left"
            yield Problem(what, f"the budget {left.file}", "wait until some have ended: sbatchgen status")

    def _problems_of_hours(self, left: Standing, limits: Allowance, demand: Demand) -> Iterator[Problem]:
        for unit, number, left_hours, total, ending in (
            ("GPU", demand.gpus, left.gpu_hours, limits.gpu_hours, " are left"),
            ("GPU", demand.gpus, limits.gpu_hours_per_job, None, " may be in one job"),
            ("CPU", demand.cpus, left.cpu_hours, limits.cpu_hours, " are left"),
        ):
            hours = demand.hours(number, self._tasks)
            if left_hours is None or hours <= left_hours + 1e-9:  # sums of hours are not exact
                continue
            what = f"this job may take {_digits(hours, math.ceil)} {unit}-hours"
            what += f" in {demand.starts} starts" * (demand.starts > 1)
            what += f"; {_digits(left_hours, math.floor)}" + f" of {total}" * (total is not None)
            time_s = int(demand.time_s * left_hours / hours) // 60 * 60  # the longest that fits, in minutes
            fix = f"--time {Duration(time_s)}" if time_s else _fix_by_owner(left.file)
            starts = int(demand.starts * left_hours / hours)
            if 0 < starts < demand.starts:
                fix = f"--max-restarts {starts - 1} or {fix}"
            yield Problem(what + ending + limits.ends, f"the budget {left.file}", fix)


def _forbidden(file: str, limits: Allowance, demand: Demand) -> Iterator[Problem]:
    """Yield problems that even the smallest job would have: an ended budget, or a forbidden name."""
    if limits.until and time.time() > limits.until.epoch:
        yield Problem(f"the budget {file} ended{limits.ends.replace('until', 'on')}", fix=_fix_by_owner(file))
    for noun, names in (("partition", demand.partitions), ("account", (demand.account,))):
        allowed = getattr(limits, f"{noun}s")
        if allowed is not None and not {*(names or ("",))} <= {*allowed}:
            refused = f"not {', '.join(names)}" if any(names) else f"and the job names no {noun}"
            fix = f"--{noun} {allowed[0]}" if allowed else _fix_by_owner(file)
            allows = f"the budget {file} allows the {noun}s {', '.join(allowed) or '(none)'}"
            yield Problem(f"{allows}, {refused}", fix=fix)


def _fix_by_owner(file: str) -> str:
    return f"who set the budget may edit {file}"


def _digits(hours: float, rounding: Callable[[float], int]) -> Hours:
    """Return hours with four decimals; `rounding` is ceil for a demand, and floor for the hours left."""
    return Hours(rounding(round(hours * 10_000, 3)) / 10_000)
