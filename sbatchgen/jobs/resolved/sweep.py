"""A sweep: trainings that differ in some arguments. Each is a point with a number, and a task of an array."""

from __future__ import annotations

import csv
import errno
import io
import math
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from sbatchgen.base import quoting
from sbatchgen.base.errors import CommandLineError, DocumentError, near_file
from sbatchgen.base.frozen import frozen
from sbatchgen.base.units import Argument

if TYPE_CHECKING:
    from random import Random

MOST_POINTS = 50_000  # slurmctld takes scripts of 4 MiB by default (max_script_size)
MOST_BYTES = 16 << 20  # bytes of a file of points
MOST_OPTION = 4000  # characters of the value of --array
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*")
_NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
_RANGE = re.compile(rf"(log:)?({_NUMBER}):({_NUMBER})")
_BRACKETS = re.compile(r"[\[({]([^][(){}]*,[^][(){}]*)[\])}]")  # one pair of brackets around all values
_WHOLE = re.compile(r"[+-]?\d+")


@frozen()
class Sweep:
    """The points of a sweep, each with a value for every parameter."""

    names: tuple[str, ...]  # the parameters: flags of the trainer, without the dashes
    # The values of each point, in the order of the names. The number of a point is its index here.
    points: tuple[tuple[str, ...], ...]
    chosen: int = 0  # number of points that are submitted now
    # Whether the points need several arrays. The script then gets the number of its array's first point as
    # an argument.
    carried: bool = False

    def pieces(self, text: str) -> list[str]:
        """Return a text cut at its placeholders: text and parameter name by turns, with text at both ends.

        A placeholder is {NAME}. {{NAME}} stands for the text {NAME}. ${NAME} is left to the program, because
        OmegaConf and others read it.
        """
        names = "|".join(map(re.escape, self.names))
        pieces = [""]
        for place, piece in enumerate(re.split(rf"(?<!\$)(\{{\{{(?:{names})\}}\}}|\{{(?:{names})\}})", text)):
            if place % 2 and not piece.startswith("{{"):
                pieces += [piece[1:-1], ""]
            else:
                pieces[-1] += piece[1:-1] if place % 2 else piece
        return pieces

    def placed(self, texts: Iterable[str]) -> tuple[str, ...]:
        """Return the parameters that have a placeholder in one of these texts, in the order of the names."""
        used = {name for text in texts for name in self.pieces(text)[1::2]}
        return tuple(name for name in self.names if name in used)

    def filled(self, text: str, point: Sequence[str]) -> str:
        """Return the text with a point's values in place of the placeholders."""
        values = dict(zip(self.names, point, strict=True))
        return "".join(values[piece] if place % 2 else piece for place, piece in enumerate(self.pieces(text)))

    def arguments(self, point: Sequence[str], placed: Sequence[str] = ()) -> tuple[str, ...]:
        """Return the trainer's arguments that a point adds: its values without a placeholder."""
        pairs = zip(self.names, point, strict=True)
        return tuple(f"--{name}={value}" for name, value in pairs if name not in placed)

    def as_csv(self) -> str:
        """Return the points as a file that `read_points` reads."""
        out = io.StringIO()
        has_return = any("\r" in value for point in self.points for value in point)
        # QUOTE_MINIMAL doesn't quote a carriage return
        rule: Literal[0, 1] = csv.QUOTE_ALL if has_return else csv.QUOTE_MINIMAL
        csv.writer(out, lineterminator="\n", quoting=rule).writerows([self.names, *self.points])
        return out.getvalue()


@frozen()
class SweepArray:
    """A job array that runs some points of a sweep."""

    first: int  # the number of the point of index 0
    indices: tuple[int, ...]  # the indices of its tasks, ascending; index i runs the point `first` + i

    def text(self, throttle: int | None) -> str:
        """Return the value of --array, such as 0-9,12%4."""
        text = quoting.numbers_as_text(self.indices)
        return f"{text}%{throttle}" if throttle else text

    def halves(self) -> list[SweepArray]:
        """Return two arrays with half of the indices each; one array if there is a single index."""
        half = (len(self.indices) + 1) // 2
        return [SweepArray(self.first, part) for part in (self.indices[:half], self.indices[half:]) if part]


@frozen()
class Range:
    """A range of a parameter's values: the numbers from `low` to `high`, including both."""

    low: float
    high: float
    log: bool  # whether values are drawn uniformly on a logarithmic scale
    whole: bool  # whether only whole numbers are drawn

    @property
    def count(self) -> float:
        """The number of values; infinite unless only whole numbers are drawn."""
        return self.high - self.low + 1 if self.whole else math.inf

    def number(self, share: float) -> str:
        """Return the value at a share of the range, as text; `share` is at least 0 and below 1."""
        low, high = (self.low - 0.5, self.high + 0.5) if self.whole else (self.low, self.high)
        drawn = low * (high / low) ** share if self.log else low + share * (high - low)
        drawn = min(max(drawn, self.low), self.high)
        return str(round(drawn)) if self.whole else f"{drawn:.6g}"


def grid(params: Sequence[str], most: int | None = None, seed: int = 0) -> Sweep:
    """Return the sweep over every combination of values, with the last parameter changing fastest.

    With `most`, return so many combinations, chosen at random; the same seed chooses the same points. A
    parameter is written as "lr=0.1,0.01", and for a random choice also as "lr=0.01:0.1" or "lr=log:0.01:0.1".
    Raises CommandLineError: a parameter is wrong, or there are too few or too many combinations.
    """
    parameters = dict(_parameter(text) for text in params)
    if len(parameters) != len(params):
        fix = "name it once: NAME=VALUE,VALUE"
        raise CommandLineError.of("a parameter is there twice", at="--param", fix=fix)
    values = {name: several for name, several in parameters.items() if isinstance(several, list)}
    ranges = [name for name in parameters if name not in values]
    if ranges and most is None:
        what = f"{ranges[0]} is a range, and a grid needs values"
        fix = "add --random N for N random points, or write values: NAME=VALUE,VALUE"
        raise CommandLineError.of(what, at="--param", fix=fix)
    counts = (values.count if isinstance(values, Range) else len(values) for values in parameters.values())
    count = math.prod(counts)
    if most is not None and most > count:
        what = f"--random {most} of {count:.0f} combinations"
        raise CommandLineError.of(what, at="--random", fix=f"write {count:.0f} or less, or give more values")
    _check_count(count if most is None else most, "--param", "choose some of them: --random N")
    chosen: Sequence[int] = () if ranges else range(int(count))
    if most is not None:
        from random import Random

        random = Random(seed)  # noqa: S311 - no secret
        if ranges:
            return Sweep(tuple(parameters), _drawn([*parameters.values()], most, random))
        chosen = sorted(random.sample(chosen, most))
    return Sweep(tuple(values), tuple(_combination(number, [*values.values()]) for number in chosen))


def _drawn(
    several: Sequence[Sequence[str] | Range], most: int, random: Random
) -> tuple[tuple[str, ...], ...]:
    """Return `most` different points, drawn at random from lists of values and ranges, one per parameter."""
    points: dict[tuple[str, ...], None] = {}
    for _ in range(100 * most):  # if there are few whole numbers, the last points need many draws
        # Only the numbers of random() are the same in all releases of Python.
        shares = zip(several, [random.random() for _ in several], strict=True)
        point = (
            values.number(share) if isinstance(values, Range) else values[int(share * len(values))]
            for values, share in shares
        )
        points[tuple(point)] = None
        if len(points) == most:
            return tuple(points)
    what = f"found only {len(points)} different points"
    raise CommandLineError.of(what, at="--random", fix=f"write {len(points)}, or wider ranges")


def _parameter(text: str) -> tuple[str, list[str] | Range]:
    """Return name and values of a parameter such as "lr=0.1,0.01"; raises CommandLineError if it is wrong."""
    name, equals, rest = text.partition("=")
    name = name.removeprefix("--")
    if not equals or not _NAME.fullmatch(name):
        raise CommandLineError.of(f"'{text}' is not a parameter", at="--param", fix="write NAME=VALUE,VALUE")
    if match := _RANGE.fullmatch(rest.strip()):
        return name, _range(text, match[1], match[2], match[3])
    if not rest:
        raise CommandLineError.of(f"{name} has no value", at="--param", fix=f"write {name}=VALUE,VALUE")
    if bare := _without_brackets(rest):
        what = f"'{text}' has brackets, and values are written without them"
        raise CommandLineError.of(what, at="--param", fix=f"--param {quoting.word(f'{name}={bare}')}")
    values = [_value(value, "--param") for value in rest.split(",")]
    twice = next((value for place, value in enumerate(values) if value in values[:place]), None)
    if twice is not None:
        raise CommandLineError.of(f"{name} has the value '{twice}' twice", at="--param", fix="give it once")
    return name, values


def _without_brackets(values: str) -> str:
    """Return the values of [0.1, 0.2] or (1,2) without brackets and blanks; "" for texts like [1,2],[3,4]."""
    match = _BRACKETS.fullmatch(values.strip())
    return ",".join(part.strip(" '\"") for part in match[1].split(",")) if match else ""


def _range(text: str, log: str | None, *ends: str) -> Range:
    low, high = map(float, ends)
    if not low < high < math.inf:
        what, fix = f"'{text}' is no range: {ends[0]} is not below {ends[1]}", "write NAME=LOW:HIGH"
        raise CommandLineError.of(what, at="--param", fix=fix)
    if log and low <= 0:
        fix = "write another LOW, or leave out log:"
        raise CommandLineError.of(f"'{text}' is no range: log:LOW:HIGH starts above 0", at="--param", fix=fix)
    return Range(low, high, bool(log), all(map(_WHOLE.fullmatch, ends)))


def _value(text: str, at: str) -> str:
    try:
        return Argument.parse(text.strip())
    except ValueError as error:
        raise CommandLineError.of(str(error), at=at) from error


def _combination(number: int, values: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """Return a combination by its number among all combinations, without making the others."""
    chosen = []
    for several in reversed(values):
        number, place = divmod(number, len(several))
        chosen.append(several[place])
    return tuple(reversed(chosen))


def _check_count(count: float, at: str, fix: str) -> None:
    if count > MOST_POINTS:
        what = f"{count:,.0f} points are more than a script can hold, {MOST_POINTS:,}"
        raise CommandLineError.of(what, at=at, fix=fix)


def read_points(path: Path) -> Sweep:
    """Return the sweep in a CSV file: the parameters in the first line, and a point in each other line.

    Raises CommandLineError or DocumentError: the file can't be read, or a line is wrong.
    """
    from sbatchgen.base.files import read_file

    try:
        text = read_file(path, MOST_BYTES).decode("utf-8-sig")
    except OSError as error:
        is_large = error.errno == errno.EFBIG
        fix = "divide the points among several files, each with a sweep" if is_large else near_file(str(path))
        raise DocumentError.of(f"can't read {path}: {error.strerror}", fix=fix) from error
    except UnicodeDecodeError as error:
        raise DocumentError.of("not UTF-8", at=str(path), fix="save it as UTF-8") from error
    return parse_points(text, str(path))


def parse_points(text: str, file: str) -> Sweep:
    """Return the sweep in the text of a CSV file; errors name `file`. Raises like `read_points`."""
    rows = csv.reader(io.StringIO(text, newline=""), strict=True)
    rows_read: list[tuple[int, list[str]]] = []
    try:
        rows_read = [(rows.line_num, [cell.strip() for cell in row]) for row in rows if any(row)]
    except csv.Error as error:
        raise DocumentError.of(str(error), at=f"{file}:{rows.line_num}") from error
    if len(rows_read) < 2:
        fix = "write the names of the parameters into the first line, and a point into each other"
        raise DocumentError.of("no points", at=file, fix=fix)
    (first, names), *points = rows_read
    for name in names:
        if not _NAME.fullmatch(name) or names.count(name) > 1:
            what = f"'{name}' is not a name of a parameter" if names.count(name) == 1 else f"'{name}' twice"
            fix = "name flags of the trainer, as lr,batch-size"
            raise DocumentError.of(what, at=f"{file}:{first}", fix=fix)
    for line, row in points:
        if len(row) != len(names):
            what = f"{len(row)} values for {len(names)} parameters"
            raise DocumentError.of(what, at=f"{file}:{line}", fix="give each a value")
    _check_count(len(points), file, "make several sweeps of it")
    values = (tuple(_value(cell, f"{file}:{line}") for cell in row) for line, row in points)
    return Sweep(tuple(names), tuple(values))


def divide_into_arrays(points: Iterable[int], most: int) -> list[SweepArray]:
    """Return the arrays that run the points with these ascending numbers.

    An array has at most `most` tasks, and its indices are below `most` (MaxArraySize of slurm.conf(5)).
    """
    by_first: dict[int, list[int]] = {}
    for point in points:
        by_first.setdefault(point // most * most, []).append(point % most)
    arrays = [SweepArray(first, tuple(indices)) for first, indices in by_first.items()]
    while long := next((array for array in arrays if len(array.text(None)) > MOST_OPTION), None):
        place = arrays.index(long)
        arrays[place : place + 1] = long.halves()
    return arrays
