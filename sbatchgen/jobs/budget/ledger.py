"""Reads and writes the ledger of budgets: the file with what each submission has taken of its budgets.

A submission is charged the most that it may take. After its end, the use that Slurm reports replaces this
charge. Without a report, the charge stays. The ledger is in the home of the account, and no environment
variable can move it, so that no budget can be evaded with an empty ledger.
"""

import contextlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from sbatchgen.base import files
from sbatchgen.base.errors import BudgetError
from sbatchgen.base.quoting import word
from sbatchgen.jobs.budget import allowance
from sbatchgen.jobs.budget.allowance import Allowance

MAX_BYTES = 64 << 20  # the largest ledger
MAX_LOCK_WAIT_S = 120.0  # seconds to wait for the lock: the command that holds it may be asking Slurm


class Charge(NamedTuple):
    """What a submission takes of its budgets."""

    key: str  # the key of the submission
    budgets: Sequence[str]  # the files of the budgets
    submitted: float  # the time of the submission, in seconds since 1970
    tasks: int  # how many tasks its array has; 1 for another job
    tasks_at_once: int  # how many tasks may wait or run at once; 0 after the end
    gpus: float  # GPUs of each task
    cpus: int  # CPUs of each task
    gpu_hours: float  # the most that it may take; if `is_reported`, what it took
    cpu_hours: float  # the same for CPUs
    job: str = ""  # the id of the job; "" until sbatch has answered
    is_reported: bool = False  # whether Slurm has reported the use


Charges = dict[str, Charge]  # charges by their keys


class Standing(NamedTuple):
    """What is left of a budget; None for a number that the budget does not limit."""

    file: str  # the file of the budget
    gpu_hours: float | None
    cpu_hours: float | None
    jobs: int | None  # how many more jobs may wait or run


def standing_of_budget(file: str, limits: Allowance, charges: Charges) -> Standing:
    """Return what is left of a budget after these charges. All commands show these numbers."""
    of_budget = [charge for charge in charges.values() if file in charge.budgets]
    gpu_hours = sum(charge.gpu_hours for charge in of_budget)
    cpu_hours = sum(charge.cpu_hours for charge in of_budget)
    jobs = sum(charge.tasks_at_once for charge in of_budget)
    return Standing(
        file=file,
        gpu_hours=None if limits.gpu_hours is None else max(limits.gpu_hours - gpu_hours, 0),
        cpu_hours=None if limits.cpu_hours is None else max(limits.cpu_hours - cpu_hours, 0),
        jobs=None if limits.jobs is None else max(limits.jobs - jobs, 0),
    )


@contextlib.contextmanager
def locked_charges() -> Iterator[Charges]:
    """Lock the ledger, yield its charges, and write them at the end if they were changed.

    Raises BudgetError if the ledger can't be locked, read or written.
    """
    file = Path(allowance.account_home_folder(), ".local/state/sbatchgen/budget.json")
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with files.locked(file.with_suffix(".lock"), MAX_LOCK_WAIT_S) as lock:
            charges = _read(file, is_locked=lock is not None)
            unchanged = dict(charges)
            try:
                yield charges
            finally:
                if charges != unchanged:
                    text = json.dumps([*charges.values()])
                    files.put(file, text.encode(), mode=files.PRIVATE)
    except BlockingIOError as error:
        what = f"another command is writing the ledger of budgets: {file}"
        raise BudgetError.of(what, fix="try again later") from error
    except OSError as error:
        what = f"the ledger of budgets {file} can't be used: {error.strerror}"
        raise BudgetError.of(what, fix=f"see who may use it: ls -l {word(str(file))}") from error


def _read(file: Path, *, is_locked: bool) -> Charges:
    """Return the charges in the ledger; raise BudgetError for a damaged ledger.

    Without a lock, two commands could charge the same hours, so the ledger is not used: raises OSError.
    """
    if not is_locked:
        raise OSError(0, "no file can be locked there")
    with contextlib.suppress(ValueError, TypeError, RecursionError):
        try:
            rows = [Charge(*row) for row in json.loads(files.read_own(file, MAX_BYTES))]
        except FileNotFoundError:
            return {}
        if all(_is_sound(row) for row in rows):
            return {row.key: row for row in rows}
    fix = f"who set the budgets may count from zero again: rm {word(str(file))}"
    raise BudgetError.of(f"the ledger of budgets {file} is damaged", fix=fix)


def _is_sound(row: Charge) -> bool:
    """Return whether a row has the types that this module writes, and no negative number or NaN."""
    types: tuple[type | tuple[type, ...], ...] = (
        str,  # key
        list,  # budgets
        float,  # submitted
        int,  # tasks
        int,  # tasks_at_once
        (int, float),  # gpus
        int,  # cpus
        float,  # gpu_hours
        float,  # cpu_hours
        str,  # job
        bool,  # is_reported
    )
    numbers = (row.submitted, row.tasks, row.tasks_at_once, row.gpus, row.cpus, row.gpu_hours, row.cpu_hours)
    has_types = all(isinstance(value, type_) for value, type_ in zip(row, types, strict=True))
    return has_types and all(number >= 0 for number in numbers)
