"""The options of sbatch in each release of Slurm from 20.11 to 26.05, in the order of getopt's list."""

from collections.abc import Iterator
from enum import Enum
from functools import cache
from pathlib import Path
from typing import NamedTuple

from sbatchgen.base.units import NEWEST, RELEASES

ALIASES = {"tasks-per-node": "ntasks-per-node"}  # name in a script -> name that sbatch keeps and prints


class HasArgument(Enum):
    """Whether an option takes an argument; an optional argument needs `=`, or follows a letter directly."""

    NONE = "-"
    REQUIRED = "="
    OPTIONAL = "?"


class Spec(NamedTuple):
    """An option of sbatch in one release."""

    name: str  # the long name, without dashes
    short: str  # the letter, or ""
    argument: HasArgument
    early: bool = False  # whether the option counts only on the command line, not in a directive
    per_component: bool = False  # whether each component of a heterogeneous job needs the option again


@cache
def specs(release: str) -> dict[str, Spec]:
    """Return the options of a release, by long name; raise ValueError for an unknown release."""
    return {
        name: Spec(name, short.removeprefix("."), HasArgument(argument[0]), "!" in argument, "*" in argument)
        for name, short, argument, _ in _rows(major_release(release))
    }


@cache
def variables(release: str) -> tuple[tuple[str, str], ...]:
    """Return the variables that sbatch of this release reads, each with the option that it sets."""
    line = major_release(release)
    named = (name for name, _, argument, _ in _rows(line) if "$" in argument)
    regular = ((f"SBATCH_{name.upper().replace('-', '_')}", name) for name in named)
    others = ((variable, name) for variable, name, since in _table("variables.txt") if line >= since)
    return (*regular, *others)


@cache
def value_kinds() -> dict[str, str]:
    """Return the kind of value of each option whose values are checked."""
    return {name: kind for name, _, _, kind in _rows(NEWEST) if kind != "."}


@cache
def major_release(release: str) -> str:
    """Return the release without its patch level, 22.05 of 22.05.8; raise ValueError if it is unknown."""
    line = ".".join(release.split(".")[:2])
    if line not in RELEASES:
        raise ValueError(f"Slurm {release} is not known; known are {', '.join(RELEASES)}")
    return line


def _rows(line: str) -> Iterator[list[str]]:
    """Yield the name, letter, argument and kind of value of each option of a release."""
    for *cells, since, until in _table("options.txt"):
        if since.strip(".") <= line and (until == "." or line <= until):
            yield cells


@cache
def _table(name: str) -> list[list[str]]:
    """Return the cells of each row of a table in this folder; comments in the file describe the cells."""
    lines = Path(__file__).with_name(name).read_text(encoding="utf-8").splitlines()
    return [line.split() for line in lines if not line.startswith("#")]
