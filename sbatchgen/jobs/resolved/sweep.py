"""A sweep: trainings that differ in some arguments, each a point with a number, run by elements of arrays."""

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
MOST_BYTES = 16 << 20  # of a file of points
MOST_OPTION = 4000  # characters of --array
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*")
_NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
_RANGE = re.compile(rf"(log:)?({_NUMBER}):({_NUMBER})")
_BRACKETS = re.compile(r"[\[({]([^][(){}]*,[^][(){}]*)[\])}]")  # around all values
_WHOLE = re.compile(r"[+-]?\d+")


@frozen()
class Sweep:
    """The points of a sweep: the values that each parameter has at each point."""

    names: tuple[str, ...]  # the parameters: flags of the trainer, without the dashes
    # the values of each point, in the order of the names; a point's number is its place
    points: tuple[tuple[str, ...], ...]
    chosen: int = 0  # how many of them are submitted now
    # whether the script takes the number of an array's first point as its argument: there are more points
    # than an array may have elements
    carried: bool = False

    def pieces(self, text: str) -> list[str]:
        """Return the text around placeholders of parameters, and in every other place a parameter's name.

        A placeholder is {NAME}. {{NAME}} is the text {NAME}, and ${NAME} the program's own, as of OmegaConf.
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
        odd = any("\r" in value for point in self.points for value in point)  # which the writer doesn't quote
        how: Literal[0, 1] = csv.QUOTE_ALL if odd else csv.QUOTE_MINIMAL
        csv.writer(out, lineterminator="\n", quoting=how).writerows([self.names, *self.points])
        return out.getvalue()


@frozen()
class SweepArray:
    """An array of a sweep."""

    first: int  # the number of the point that index 0 has
    indices: tuple[int, ...]  # the indices of its elements, ascending

    def text(self, throttle: int | None) -> str:
        """Return the value of --array, as 0-9,12%4."""
        text = quoting.numbers_as_text(self.indices)
        return f"{text}%{throttle}" if throttle else text

    def halves(self) -> list[SweepArray]:
        """Return the same points in two arrays; a single point in one array."""
        half = (len(self.indices) + 1) // 2
        return [SweepArray(self.first, part) for part in (self.indices[:half], self.indices[half:]) if part]


@frozen()
class Range:
    """All numbers from `low` to `high`, both included."""

    low: float
    high: float
    log: bool  # whether each power of ten has the same chance, not each number
    whole: bool  # whether only whole numbers count

    @property
    def count(self) -> float:
        """The number of values."""
        return self.high - self.low + 1 if self.whole else math.inf

    def number(self, share: float) -> str:
        """Return the number at a share of the range, at least 0 and below 1."""
        low, high = (self.low - 0.5, self.high + 0.5) if self.whole else (self.low, self.high)
        drawn = low * (high / low) ** share if self.log else low + share * (high - low)
        drawn = min(max(drawn, self.low), self.high)
        return str(round(drawn)) if self.whole else f"{drawn:.6g}"


def grid(params: Sequence[str], most: int | None = None, seed: int = 0) -> Sweep:
    """Return every combination of values, the last parameter changing fastest.

    Or `most` of them, chosen at random.

    A parameter is given as "lr=0.1,0.01"; for a random choice also as "lr=0.01:0.1" or "lr=log:0.01:0.1". The
    same seed chooses the same points. Raises CommandLineError: a parameter is wrong, or there are fewer or
    too many combinations.
    """
    given = dict(_parameter(text) for text in params)
    if len(given) != len(params):
        fix = "name it once: NAME=VALUE,VALUE"
        raise CommandLineError.of("a parameter is there twice", at="--param", fix=fix)
    values = {name: several for name, several in given.items() if isinstance(several, list)}
    ranges = [name for name in given if name not in values]
    if ranges and most is None:
        what = f"{ranges[0]} is a range, and a grid needs values"
        fix = "add --random N for N random points, or write values: NAME=VALUE,VALUE"
        raise CommandLineError.of(what, at="--param", fix=fix)
    count = math.prod(each.count if isinstance(each, Range) else len(each) for each in given.values())
    if most is not None and most > count:
        what = f"--random {most} of {count:.0f} combinations"
        raise CommandLineError.of(what, at="--random", fix=f"write {count:.0f} or less, or give more values")
    _check_count(count if most is None else most, "--param", "choose some of them: --random N")
    chosen: Sequence[int] = () if ranges else range(int(count))
    if most is not None:
        from random import Random

        random = Random(seed)  # noqa: S311 - no secret
        if ranges:
            return Sweep(tuple(given), _drawn([*given.values()], most, random))
        chosen = sorted(random.sample(chosen, most))
    return Sweep(tuple(values), tuple(_combination(number, [*values.values()]) for number in chosen))


def _drawn(
    several: Sequence[Sequence[str] | Range], most: int, random: Random
) -> tuple[tuple[str, ...], ...]:
    points: dict[tuple[str, ...], None] = {}
    for _ in range(100 * most):  # of few whole numbers, the last ones are seldom drawn
        # The one method whose numbers no release of Python changes.
        shares = zip(several, [random.random() for _ in several], strict=True)
        values = (
            each.number(share) if isinstance(each, Range) else each[int(share * len(each))]
            for each, share in shares
        )
        points[tuple(values)] = None
        if len(points) == most:
            return tuple(points)
    what = f"found only {len(points)} different points"
    raise CommandLineError.of(what, at="--random", fix=f"write {len(points)}, or wider ranges")


def _parameter(text: str) -> tuple[str, list[str] | Range]:
    name, equals, rest = text.partition("=")
    name = name.removeprefix("--")
    if not equals or not _NAME.fullmatch(name):
        raise CommandLineError.of(f"'{text}' is not a parameter", at="--param", fix="write NAME=VALUE,VALUE")
    if ends := _RANGE.fullmatch(rest.strip()):
        return name, _range(text, ends[1], ends[2], ends[3])
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
    """Return values as [0.1, 0.2] or (1,2) without brackets and blanks; "" for others, as [1,2],[3,4]."""
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
    """Return a combination by its number, without making all combinations."""
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
    """Return the points in a file of comma-separated values: names in the first line, a point in each other.

    Raises CommandLineError, DocumentError: it can't be read, or a line is wrong.
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
    """Return the points in the text of a file of points; raises like `read_points`."""
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


def parts(points: Iterable[int], most: int) -> list[SweepArray]:
    """Return the arrays that run points, given by their ascending numbers.

    An array has `most` elements, and its indices are lower too (MaxArraySize of slurm.conf(5)).
    """
    by_first: dict[int, list[int]] = {}
    for point in points:
        by_first.setdefault(point // most * most, []).append(point % most)
    arrays = [SweepArray(first, tuple(indices)) for first, indices in by_first.items()]
    while long := next((array for array in arrays if len(array.text(None)) > MOST_OPTION), None):
        place = arrays.index(long)
        arrays[place : place + 1] = long.halves()
    return arrays
