"""The ledger of budgets: what each submission has taken of them.

A submission is charged the most that it may take. After its end, the use that Slurm reports replaces this
charge; without a report the charge stays. The ledger is a file in the home of the account, which no
environment variable can move.
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
WAIT_S = 120.0  # seconds to wait for the lock: the command that holds it asks Slurm


class Charge(NamedTuple):
    """What a submission takes of its budgets."""

    key: str  # the key of the submission
    budgets: Sequence[str]  # the files of the budgets
    when: float  # the time of the submission, in seconds since 1970
    tasks: int  # its tasks: elements of an array
    at_once: int  # how many tasks may wait or run at once; 0 after the end
    gpus: float  # GPUs of each task
    cpus: int  # CPUs of each task
    gpu_hours: float  # the most that it may take; what it took, if `known`
    cpu_hours: float  # the same for CPUs
    job: str = ""  # the id of the job; "" until sbatch has answered
    known: bool = False  # whether Slurm has reported the use


Charges = dict[str, Charge]  # charges by their keys


class Standing(NamedTuple):
    """What is left of a budget; None for a number that the budget does not limit."""

    file: str  # the file of the budget
    gpu_hours: float | None
    cpu_hours: float | None
    jobs: int | None  # how many more jobs may wait or run


def standing(file: str, limits: Allowance, charges: Charges) -> Standing:
    """Return what is left of a budget after these charges; all commands show these numbers."""
    names = ("gpu_hours", "cpu_hours", "at_once")
    of_budget = [charge for charge in charges.values() if file in charge.budgets]
    taken = [sum(getattr(charge, name) for charge in of_budget) for name in names]
    limited = (limits.gpu_hours, limits.cpu_hours, limits.jobs)
    left = [
        None if limit is None else max(limit - used, 0) for limit, used in zip(limited, taken, strict=True)
    ]
    return Standing(file, *left)


@contextlib.contextmanager
def locked_charges() -> Iterator[Charges]:
    """Lock the ledger, yield its charges, and write them if they were changed. Raises BudgetError."""
    file = Path(allowance.home(), ".local/state/sbatchgen/budget.json")
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with files.locked(file.with_suffix(".lock"), WAIT_S) as lock:
            charges = _read(file, is_locked=lock is not None)
            before = dict(charges)
            try:
                yield charges
            finally:
                if charges != before:
                    text = json.dumps([*charges.values()])
                    files.put(file, text.encode(), mode=files.PRIVATE)
    except BlockingIOError as error:
        what = f"another command is writing the ledger of budgets: {file}"
        raise BudgetError.of(what, fix="try again later") from error
    except OSError as error:
        what = f"the ledger of budgets {file} can't be used: {error.strerror}"
        raise BudgetError.of(what, fix=f"see who may use it: ls -l {word(str(file))}") from error


def _read(file: Path, *, is_locked: bool) -> Charges:
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
        str,
        list,
        float,
        int,
        int,
        (int, float),
        int,
        float,
        float,
        str,
        bool,
    )
    numbers = (row.when, row.tasks, row.at_once, row.gpus, row.cpus, row.gpu_hours, row.cpu_hours)
    has_types = all(isinstance(value, type_) for value, type_ in zip(row, types, strict=True))
    return has_types and all(number >= 0 for number in numbers)
