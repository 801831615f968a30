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
        """Compute the demand of a submission.

        Raises BudgetError if the demand can't be computed, or if the environment of sbatch changes the job.

        Args:
            key: The key of the submission.
            limits: The budgets that apply, by their files.
            script: The script that sbatch will get.
            options: The options that sbatch will get.
            environment: The environment of the command.
            tasks: How many tasks a whole sweep or chain has, which the script's array is a part of; 0 for
                others.
        """
        self.key, self.limits, self._environment = key, limits, environment
        _, variables = client.submit_environment(environment)
        if variables:
            what = f"a budget can't count a job that {variables[0]} changes"
            raise BudgetError.of(what, fix="leave --keep-sbatch-env out")
        self.demand = compute_demand(script, options, environment)
        self._tasks = max(tasks, self.demand.tasks)
        job_count = -(-self._tasks // self.demand.tasks)  # jobs of a chain or arrays of a sweep, rounded up
        self._jobs_at_once = self.demand.tasks_at_once * job_count

    def enter(self, *, only_check: bool = False) -> None:
        """Charge the most that the submission may take; raise BudgetError if a budget has less left.

        With `only_check`, check the budgets and charge nothing.
        """
        demand = self.demand
        with ledger.locked_charges() as charges:
            if [*self._problems(demand, charges)]:  # jobs may have ended since the last update
                update_ended(charges, self._environment)
            if problems := [*self._problems(demand, charges)]:
                raise BudgetError(problems)
            if not only_check:
                charges[self.key] = Charge(
                    key=self.key,
                    budgets=[*self.limits],
                    submitted=time.time(),
                    tasks=demand.tasks,
                    tasks_at_once=demand.tasks_at_once,
                    gpus=demand.gpus,
                    cpus=demand.cpus,
                    gpu_hours=demand.hours(demand.gpus),
                    cpu_hours=demand.hours(demand.cpus),
                )

    def update_or_remove(self, **fields: str) -> None:
        """Set fields of the charge, such as the id of its job; without fields, remove the charge.

        A charge is removed if sbatch has refused the job.
        """
        with contextlib.suppress(BudgetError), ledger.locked_charges() as charges:
            charge = charges.pop(self.key, None)
            if charge and fields:
                charges[self.key] = charge._replace(**fields)  # type: ignore[arg-type]

    def _problems(self, demand: Demand, charges: Charges) -> Iterator[Problem]:
        """Yield why the budgets refuse this demand, if they are charged with `charges` already."""
        for file, limits in self.limits.items():
            left = ledger.standing_of_budget(file, limits, charges)
            yield from _problems_of_any_job(file, limits, demand)
            yield from self._problems_of_jobs(left, limits)
            yield from self._problems_of_hours(left, limits, demand)

    def _problems_of_jobs(self, left: Standing, limits: Allowance) -> Iterator[Problem]:
        """Yield a problem if more jobs would wait or run than a budget has left."""
        if left.jobs is not None and self._jobs_at_once > left.jobs:
            adds = f"this adds {self._jobs_at_once} job{'s' * (self._jobs_at_once > 1)} that may wait or run"
            what = f"{adds}; {left.jobs} of {limits.jobs} are left"
            yield Problem(what, f"the budget {left.file}", "wait until some have ended: sbatchgen status")

    def _problems_of_hours(self, left: Standing, limits: Allowance, demand: Demand) -> Iterator[Problem]:
        """Yield a problem for each kind of hours of which a budget has less left than the demand."""
        for unit, per_task, left_hours, total, ending in (
            ("GPU", demand.gpus, left.gpu_hours, limits.gpu_hours, " are left"),
            ("GPU", demand.gpus, limits.gpu_hours_per_job, None, " may be in one submission"),
            ("CPU", demand.cpus, left.cpu_hours, limits.cpu_hours, " are left"),
        ):
            hours = demand.hours(per_task, self._tasks)
            if left_hours is None or hours <= left_hours + 1e-9:  # sums of hours are not exact
                continue
            job = "job" if self._tasks == 1 else f"submission of {self._tasks} jobs"
            what = f"this {job} may take {_with_four_decimals(hours, math.ceil)} {unit}-hours"
            what += f" in {demand.starts} starts" * (demand.starts > 1)
            what += f"; {_with_four_decimals(left_hours, math.floor)}" + f" of {total}" * (total is not None)
            time_s = int(demand.time_s * left_hours / hours) // 60 * 60  # in whole minutes
            fix = f"--time {Duration(time_s)}" if time_s else _fix_by_owner(left.file)
            starts = int(demand.starts * left_hours / hours)
            if 0 < starts < demand.starts:
                fix = f"--max-restarts {starts - 1} or {fix}"
            yield Problem(what + ending + limits.ends, f"the budget {left.file}", fix)


def _problems_of_any_job(file: str, limits: Allowance, demand: Demand) -> Iterator[Problem]:
    """Yield problems that a smaller job would also have: the budget has ended, or forbids a name."""
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
    """Return the fix for a budget that no change of the job can satisfy."""
    return f"who set the budget may edit {file}"


def _with_four_decimals(hours: float, rounding: Callable[[float], int]) -> Hours:
    """Return hours with four decimals; `rounding` is ceil for a demand, and floor for the hours left."""
    return Hours(rounding(round(hours * 10_000, 3)) / 10_000)
