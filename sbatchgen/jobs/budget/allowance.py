"""Reads budgets: the limits for jobs that a user sets in files. All of them apply.

They are in the user's settings.yaml, and in the files that the variable SBATCHGEN_BUDGET names.
"""

import contextlib
import os
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import TypeVar

from sbatchgen.base.errors import BudgetError, DocumentError, Problem
from sbatchgen.base.files import OTHERS_WRITE, account_home, user_folder
from sbatchgen.base.keys import described, record
from sbatchgen.base.machine.trust import OtherWriter, other_writer
from sbatchgen.base.quoting import word
from sbatchgen.base.units import Hours, Moment, Text
from sbatchgen.jobs.inputs.document import read_document

_Record = TypeVar("_Record")
VARIABLE = "SBATCHGEN_BUDGET"  # its value has the paths of budgets, separated by ":"


@record
class Allowance:
    """A budget: limits for each job that is submitted under it, and for all of these jobs together."""

    gpu_hours: Hours | None = described("GPU-hours of all jobs together.")
    gpu_hours_per_job: Hours | None = described("GPU-hours of one submission.")
    cpu_hours: Hours | None = described("CPU-hours of all jobs together.")
    jobs: int | None = described("Jobs that may wait or run; of an array, tasks that may run at once.")
    partitions: tuple[Text, ...] | None = described("Partitions that jobs may name.")
    accounts: tuple[Text, ...] | None = described("Accounts that jobs may name.")
    until: Moment | None = described("When it ends: nothing is submitted later.")

    def faults(self) -> Iterator[tuple[str, str, str]]:
        """Yield the key, the fault and the fix of each limit below 0, and of a budget without a limit."""
        numbers = ("gpu_hours", "gpu_hours_per_job", "cpu_hours", "jobs")
        yield from ((key, "below 0", "write 0 or more") for key in numbers if (getattr(self, key) or 0) < 0)
        if all(value is None for value in vars(self).values()):
            yield "gpu_hours", "no limit is set", "write gpu_hours: N, or another limit"

    @property
    def ends(self) -> str:
        """Words such as " until 3 May", for the end of a sentence; "" for a budget without an end."""
        if not self.until:
            return ""
        end, now = datetime.fromtimestamp(self.until.epoch).astimezone(), datetime.now().astimezone()
        return f" until {end.day} {end:%B}" + f" {end.year}" * (end.year != now.year)


@record
class UserSettings:
    """The user's own settings."""

    budget: Allowance | None = described("What all jobs may take.")


def allowances(environment: Mapping[str, str]) -> dict[str, Allowance]:
    """Return the budgets that apply, by their files; raise BudgetError if a file can't be read or trusted."""
    by_file: dict[str, Allowance] = {}
    for folder in {
        user_folder(environment, "XDG_CONFIG_HOME", ".config"),
        f"{account_home_folder()}/.config",
    } - {""}:
        file = Path(folder, "sbatchgen/settings.yaml")
        if os.path.lexists(file) and (budget := _read(file, UserSettings).budget):
            by_file[os.path.realpath(file)] = budget
    named_files = ":".join((environment.get(VARIABLE, ""), *_values_of_parents()))
    for name in filter(None, named_files.split(":")):
        by_file[os.path.realpath(name)] = _read(Path(name), Allowance)
    return by_file


def account_home_folder() -> str:
    """Return the home folder of the account, which no value of the variable HOME changes."""
    return account_home() or os.path.expanduser("~")  # noqa: PTH111 - a text


def _values_of_parents() -> Iterator[str]:
    """Yield the values of VARIABLE in all parent processes.

    So a program that unsets the variable does not escape the budgets.
    """
    pid = os.getppid()
    while pid > 1:
        with contextlib.suppress(OSError):
            for setting in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                if setting.startswith(f"{VARIABLE}=".encode()):
                    yield os.fsdecode(setting.partition(b"=")[2])
        try:  # proc(5): the second field after the command in parentheses is the parent's id
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            return


def _read(file: Path, record_type: type[_Record]) -> _Record:
    """Return a file of limits as a record of this type.

    Raises BudgetError if the file can't be read, or if others may write it.
    """
    if not file.is_absolute():
        raise BudgetError.of(f"the budget {file} is not a whole path", fix=f"{VARIABLE}=$PWD/{file}")
    writer, quoted_file = other_writer(file), word(str(file))
    # `other_writer` trusts a group that has no other member, but a member may join it.
    if writer is None and file.exists() and file.stat().st_mode & OTHERS_WRITE:
        writer = OtherWriter(file, "can be written by its group", f"chmod go-w {quoted_file}")
    if writer:
        fix = writer.fix or f"move it to a folder of your own: {account_home_folder()}/.config"
        raise BudgetError.of(f"the budget {file} does not count: it {writer.why}", fix=fix)
    try:
        return read_document(file, record_type).value
    except DocumentError as error:
        raise BudgetError(_problem_with_fix(problem, quoted_file) for problem in error.problems) from error


def _problem_with_fix(problem: Problem, quoted_file: str) -> Problem:
    """Return a problem of a budget with a fix, if it has none."""
    default = "correct that line" if problem.at else f"see who may read the budget: ls -l {quoted_file}"
    return problem._replace(fix=problem.fix or default)
