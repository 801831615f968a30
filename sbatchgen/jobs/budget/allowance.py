"""Budgets: the limits for jobs that a user sets in files. All files that are found apply."""

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

_Kind = TypeVar("_Kind")
VARIABLE = "SBATCHGEN_BUDGET"  # names files, separated by ":"


@record
class Allowance:
    """A budget: limits for all jobs together that are submitted under it, and for each job."""

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
        """The day on which the budget ends, as the end of a sentence."""
        if not self.until:
            return ""
        end, now = datetime.fromtimestamp(self.until.epoch).astimezone(), datetime.now().astimezone()
        return f" until {end.day} {end:%B}" + f" {end.year}" * (end.year != now.year)


@record
class UserSettings:
    """The user's own settings."""

    budget: Allowance | None = described("What all jobs may take.")


def allowances(environment: Mapping[str, str]) -> dict[str, Allowance]:
    """Return all limits that apply, by their files; raise BudgetError if a file can't be read or trusted."""
    by_file: dict[str, Allowance] = {}
    for folder in {user_folder(environment, "XDG_CONFIG_HOME", ".config"), f"{home()}/.config"} - {""}:
        file = Path(folder, "sbatchgen/settings.yaml")
        if os.path.lexists(file) and (budget := _read(file, UserSettings).budget):
            by_file[os.path.realpath(file)] = budget
    named_files = ":".join((environment.get(VARIABLE, ""), *_values_of_parents()))
    for name in filter(None, named_files.split(":")):
        by_file[os.path.realpath(name)] = _read(Path(name), Allowance)
    return by_file


def home() -> str:
    """Return the home folder of the account, which does not depend on the variable HOME."""
    return account_home() or os.path.expanduser("~")  # noqa: PTH111 - a text


def _values_of_parents() -> Iterator[str]:
    """Yield the variable's values in all parent processes, so that unsetting the variable lifts no budget."""
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


def _read(file: Path, kind: type[_Kind]) -> _Kind:
    """Return a file of limits as a record; raise BudgetError if it can't be read, or others may write it."""
    if not file.is_absolute():
        raise BudgetError.of(f"the budget {file} is not a whole path", fix=f"{VARIABLE}=$PWD/{file}")
    writer, quoted_file = other_writer(file), word(str(file))
    # `other_writer` trusts a group that has no other member, but a member may join it.
    if writer is None and file.exists() and file.stat().st_mode & OTHERS_WRITE:
        writer = OtherWriter(file, "can be written by its group", f"chmod go-w {quoted_file}")
    if writer:
        fix = writer.fix or f"move it to a folder of your own: {home()}/.config"
        raise BudgetError.of(f"the budget {file} does not count: it {writer.why}", fix=fix)
    try:
        return read_document(file, kind).value
    except DocumentError as error:
        raise BudgetError(_with_fix(problem, quoted_file) for problem in error.problems) from error


def _with_fix(problem: Problem, quoted_file: str) -> Problem:
    default = "correct that line" if problem.at else f"see who may read the budget: ls -l {quoted_file}"
    return problem._replace(fix=problem.fix or default)
