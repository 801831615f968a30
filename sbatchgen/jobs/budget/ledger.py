"""What jobs have taken of budgets: the most at first, and after their end what Slurm says that they took.

A file in the home of the account, which no variable moves. What is not known is not given back.
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

MAX_BYTES = 64 << 20
WAIT_S = 120.0  # for the lock: others ask Slurm meanwhile


class Charge(NamedTuple):
    """The part of its budgets that a submission takes."""

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
    """The rest of a budget; None for a number that the budget does not limit."""

    file: str
    gpu_hours: float | None
    cpu_hours: float | None
    jobs: int | None


def standing(file: str, limits: Allowance, charges: Charges) -> Standing:
    """Return the rest of a budget. Each number that is shown of a budget comes from here."""
    its = [each for each in charges.values() if file in each.budgets]
    taken = {name: sum(getattr(each, name) for each in its) for name in ("gpu_hours", "cpu_hours", "at_once")}
    left = [
        None if limit is None else max(limit - some, 0)
        for limit, some in zip((limits.gpu_hours, limits.cpu_hours, limits.jobs), taken.values(), strict=True)
    ]
    return Standing(file, *left)


@contextlib.contextmanager
def changing() -> Iterator[Charges]:
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
    except BlockingIOError as error:
        what = f"another command is writing the ledger of budgets: {file}"
        raise BudgetError.of(what, fix="try again later") from error
    except OSError as error:
        what = f"the ledger of budgets {file} can't be used: {error.strerror}"
        raise BudgetError.of(what, fix=f"see who may use it: ls -l {word(str(file))}") from error


def _read(file: Path, *, locked: bool) -> Charges:
    if not locked:
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
    """Return whether this module can have written a row; no row has NaN."""
    kinds: tuple[type | tuple[type, ...], ...] = (
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
    sums = (row.when, row.tasks, row.at_once, row.gpus, row.cpus, row.gpu_hours, row.cpu_hours)
    return all(isinstance(value, kind) for value, kind in zip(row, kinds, strict=True)) and all(
        each >= 0 for each in sums
    )
