"""Reads the tables of sbatch's options and variables in each release of Slurm from 20.11 to 26.05."""

from collections.abc import Iterator
from enum import Enum
from functools import cache
from pathlib import Path
from typing import NamedTuple

from sbatchgen.base.units import NEWEST, RELEASES

ALIASES = {"tasks-per-node": "ntasks-per-node"}  # another name of an option -> the option's own name


class HasArgument(Enum):
    """Whether an option takes an argument. An optional one is in the same word: --name=VALUE, -nVALUE."""

    NONE = "-"
    REQUIRED = "="
    OPTIONAL = "?"


class Spec(NamedTuple):
    """An option of sbatch in one release."""

    name: str  # the long name, without dashes
    short: str  # the letter; "" without a letter
    argument: HasArgument
    early: bool = False  # whether sbatch ignores the option in directives, and obeys it on the command line
    per_component: bool = False  # whether later components of a heterogeneous job do not inherit the option


@cache
def specs(release: str) -> dict[str, Spec]:
    """Return a release's options by long name, in the order of getopt; raise ValueError if it is unknown."""
    return {
        name: Spec(name, short.removeprefix("."), HasArgument(argument[0]), "!" in argument, "*" in argument)
        for name, short, argument, _ in _rows(major_release(release))
    }


@cache
def variables(release: str) -> tuple[tuple[str, str], ...]:
    """Return the variables that sbatch of this release reads, each with the option that it sets."""
    major = major_release(release)
    options = (name for name, _, argument, _ in _rows(major) if "$" in argument)
    regular = ((f"SBATCH_{name.upper().replace('-', '_')}", name) for name in options)
    irregular = ((variable, name) for variable, name, since in _table("variables.txt") if major >= since)
    return (*regular, *irregular)


@cache
def value_kinds() -> dict[str, str]:
    """Return the kind of value of each option whose values are checked, such as "time" of --time."""
    return {name: kind for name, _, _, kind in _rows(NEWEST) if kind != "."}


@cache
def major_release(release: str) -> str:
    """Return a release without its patch level, 22.05 for 22.05.8; raise ValueError if it is unknown."""
    major = ".".join(release.split(".")[:2])
    if major not in RELEASES:
        raise ValueError(f"Slurm {release} is not known; known are {', '.join(RELEASES)}")
    return major


def _rows(major: str) -> Iterator[list[str]]:
    """Yield the name, letter, argument and kind of value of each option in a major release."""
    for *cells, since, until in _table("options.txt"):
        if since.strip(".") <= major and (until == "." or major <= until):
            yield cells


@cache
def _table(name: str) -> list[list[str]]:
    """Return the cells of each row of a table in this folder. Comments in the file describe the cells."""
    lines = Path(__file__).with_name(name).read_text(encoding="utf-8").splitlines()
    return [line.split() for line in lines if not line.startswith("#")]
