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
        allowances: Mapping[str, Allowance],
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
            allowances: What each budget that applies allows, by its file.
            script: The script that sbatch will get.
            options: The options that sbatch will get.
            environment: The environment of the command.
            tasks: For a script that is a part of a sweep or of a chain: the number of tasks of the whole;
                else 0.
        """
        self.key, self.allowances, self._environment = key, allowances, environment
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
                    budgets=[*self.allowances],
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
        """Yield why the budgets refuse a demand; `charges` has all earlier submissions."""
        for file, allowance in self.allowances.items():
            standing = ledger.standing_of_budget(file, allowance, charges)
            yield from _problems_of_any_job(file, allowance, demand)
            yield from self._problems_of_jobs(standing, allowance)
            yield from self._problems_of_hours(standing, allowance, demand)

    def _problems_of_jobs(self, standing: Standing, allowance: Allowance) -> Iterator[Problem]:
        """Yield a problem if the budget allows fewer jobs at the same time than would then wait or run."""
        if standing.jobs is not None and self._jobs_at_once > standing.jobs:
            adds = f"this adds {self._jobs_at_once} job{'s' * (self._jobs_at_once > 1)} that may wait or run"
            what = f"{adds}; {standing.jobs} of {allowance.jobs} are left"
            yield Problem(what, f"the budget {standing.file}", "wait until some have ended: sbatchgen status")

    def _problems_of_hours(
        self, standing: Standing, allowance: Allowance, demand: Demand
    ) -> Iterator[Problem]:
        """Yield a problem for each limit on hours that the demand exceeds."""
        for unit, per_task, hours_left, total, ending in (
            ("GPU", demand.gpus, standing.gpu_hours, allowance.gpu_hours, " are left"),
            ("GPU", demand.gpus, allowance.gpu_hours_per_job, None, " may be in one submission"),
            ("CPU", demand.cpus, standing.cpu_hours, allowance.cpu_hours, " are left"),
        ):
            hours = demand.hours(per_task, self._tasks)
            if hours_left is None or hours <= hours_left + 1e-9:  # sums of hours are not exact
                continue
            job = "job" if self._tasks == 1 else f"submission of {self._tasks} jobs"
            what = f"this {job} may take {_with_four_decimals(hours, math.ceil)} {unit}-hours"
            what += f" in {demand.starts} starts" * (demand.starts > 1)
            what += f"; {_with_four_decimals(hours_left, math.floor)}" + f" of {total}" * (total is not None)
            time_s = int(demand.time_s * hours_left / hours) // 60 * 60  # in whole minutes
            fix = f"--time {Duration(time_s)}" if time_s else _fix_by_owner(standing.file)
            starts = int(demand.starts * hours_left / hours)
            if 0 < starts < demand.starts:
                fix = f"--max-restarts {starts - 1} or {fix}"
            yield Problem(what + ending + allowance.ends, f"the budget {standing.file}", fix)


def _problems_of_any_job(file: str, allowance: Allowance, demand: Demand) -> Iterator[Problem]:
    """Yield problems that a smaller job would also have.

    The budget has ended, or it does not allow the partition or the account.
    """
    if allowance.until and time.time() > allowance.until.epoch:
        yield Problem(
            f"the budget {file} ended{allowance.ends.replace('until', 'on')}", fix=_fix_by_owner(file)
        )
    for noun, names in (("partition", demand.partitions), ("account", (demand.account,))):
        allowed = getattr(allowance, f"{noun}s")
        if allowed is not None and not {*(names or ("",))} <= {*allowed}:
            refused = f"not {', '.join(names)}" if any(names) else f"and the job names no {noun}"
            fix = f"--{noun} {allowed[0]}" if allowed else _fix_by_owner(file)
            allows = f"the budget {file} allows the {noun}s {', '.join(allowed) or '(none)'}"
            yield Problem(f"{allows}, {refused}", fix=fix)


def _fix_by_owner(file: str) -> str:
    """Return the fix for a budget that no change of the job can satisfy."""
    return f"who set the budget may edit {file}"


def _with_four_decimals(hours: float, rounding: Callable[[float], int]) -> Hours:
    """Return hours with four decimals.

    `rounding` is ceil for a demand, and floor for the hours that are left, so that neither looks better than
    it is.
    """
    return Hours(rounding(round(hours * 10_000, 3)) / 10_000)
