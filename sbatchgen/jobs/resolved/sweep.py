"""Makes the points of a sweep from parameters or from a CSV file, and divides them into job arrays.

A sweep is a set of trainings that differ in some arguments. Each training is a point of the sweep, with a
number, and runs as a task of an array.
"""

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

# The most points of a sweep, whose script has all points. By default, slurmctld takes scripts of at most 4
# MiB (max_script_size in slurm.conf).
MOST_POINTS = 50_000
MOST_BYTES = 16 << 20  # the most bytes of a file of points
MOST_ARRAY_CHARS = 4000  # the most characters of the value of --array
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*")  # the name of a parameter: "batch-size"
_NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"  # "8", "0.1" or "1e-4"
_RANGE = re.compile(rf"(log:)?({_NUMBER}):({_NUMBER})")  # "1:8" or "log:1e-4:0.1"
_BRACKETS = re.compile(r"[\[({]([^][(){}]*,[^][(){}]*)[\])}]")  # brackets around all values: "[0.1, 0.2]"
_WHOLE_NUMBER = re.compile(r"[+-]?\d+")


@frozen()
class Sweep:
    """The points of a sweep, each with a value for every parameter."""

    names: tuple[str, ...]  # the parameters, which are flags of the trainer without the dashes
    # The values of each point, in the order of the names. The number of a point is its index here.
    points: tuple[tuple[str, ...], ...]
    submitted_points: int = 0  # the number of points that are submitted now
    # Whether the script gets the number of its array's first point as an argument. Otherwise the index of a
    # task is the number of its point.
    gets_first_point: bool = False

    def pieces(self, text: str) -> list[str]:
        """Return the pieces into which the placeholders cut a text: text and parameter name by turns.

        The first and the last piece are texts. For example, "lr-{lr}" becomes ["lr-", "lr", ""]. {{lr}} is
        no placeholder, but stands for the text {lr}. ${lr} is no placeholder either, because OmegaConf and
        other programs read it.
        """
        names = "|".join(map(re.escape, self.names))
        pieces = [""]
        for index, piece in enumerate(re.split(rf"(?<!\$)(\{{\{{(?:{names})\}}\}}|\{{(?:{names})\}})", text)):
            is_match = index % 2 == 1  # re.split returns the texts between matches, and the matches, by turns
            if is_match and not piece.startswith("{{"):
                pieces += [piece[1:-1], ""]
            else:
                pieces[-1] += piece[1:-1] if is_match else piece
        return pieces

    def placeholder_names(self, texts: Iterable[str]) -> tuple[str, ...]:
        """Return the parameters that have a placeholder in one of these texts, in the order of `names`."""
        used_names = {name for text in texts for name in self.pieces(text)[1::2]}
        return tuple(name for name in self.names if name in used_names)

    def filled(self, text: str, point: Sequence[str]) -> str:
        """Return the text with a point's values in place of the placeholders."""
        values = dict(zip(self.names, point, strict=True))
        return "".join(values[piece] if index % 2 else piece for index, piece in enumerate(self.pieces(text)))

    def arguments(self, point: Sequence[str], placeholder_names: Sequence[str] = ()) -> tuple[str, ...]:
        """Return the arguments that the trainer gets for a point, such as --lr=0.1.

        The parameters in `placeholder_names` get no argument, because a placeholder passes their values.
        """
        pairs = zip(self.names, point, strict=True)
        return tuple(f"--{name}={value}" for name, value in pairs if name not in placeholder_names)

    def as_csv(self) -> str:
        """Return the points as the text of a CSV file, which `read_points` can read."""
        out = io.StringIO()
        # csv.QUOTE_MINIMAL quotes a value with a line feed, but not a value with a carriage return.
        has_carriage_return = any("\r" in value for point in self.points for value in point)
        quotes: Literal[0, 1] = csv.QUOTE_ALL if has_carriage_return else csv.QUOTE_MINIMAL
        csv.writer(out, lineterminator="\n", quoting=quotes).writerows([self.names, *self.points])
        return out.getvalue()


@frozen()
class SweepArray:
    """A job array that runs some points of a sweep."""

    first_point: int  # the number of the point that the task with index 0 would run
    indices: tuple[int, ...]  # the ascending indices of its tasks; task i runs the point `first_point` + i

    def text(self, throttle: int | None) -> str:
        """Return the value of --array, such as "0-9,12%4", where `throttle` is the number after "%"."""
        text = quoting.numbers_as_text(self.indices)
        return f"{text}%{throttle}" if throttle else text

    def halves(self) -> list[SweepArray]:
        """Return two arrays, each with half of the indices; one array if there is only one index."""
        half = (len(self.indices) + 1) // 2
        parts = (self.indices[:half], self.indices[half:])
        return [SweepArray(self.first_point, part) for part in parts if part]


@frozen()
class Range:
    """A range of a parameter's values: the numbers from `low` to `high`, including both."""

    low: float
    high: float
    is_logarithmic: bool  # whether values are drawn uniformly on a logarithmic scale
    is_whole: bool  # whether only whole numbers are drawn

    @property
    def count(self) -> float:
        """The number of values; infinite unless only whole numbers are drawn."""
        return self.high - self.low + 1 if self.is_whole else math.inf

    def value_at(self, fraction: float) -> str:
        """Return the value at a fraction of the range as text; `fraction` is at least 0 and below 1."""
        # A range of whole numbers is wider by 0.5 at both ends. After rounding, `low` and `high` are then as
        # frequent as other numbers.
        low, high = (self.low - 0.5, self.high + 0.5) if self.is_whole else (self.low, self.high)
        value = low * (high / low) ** fraction if self.is_logarithmic else low + fraction * (high - low)
        value = min(max(value, self.low), self.high)
        return str(round(value)) if self.is_whole else f"{value:.6g}"


def grid(params: Sequence[str], most: int | None = None, seed: int = 0) -> Sweep:
    """Return the sweep over each combination of the parameters' values, the last parameter changing fastest.

    A parameter is written as "lr=0.1,0.01". With `most`, the sweep has only this number of combinations,
    which are chosen at random. A parameter may then be a range such as "lr=0.01:0.1" or "lr=log:0.01:0.1".
    The same `seed` chooses the same points.

    Raises CommandLineError if a parameter is wrong, or if there are too few or too many combinations.
    """
    parameters = dict(_parameter(text) for text in params)
    if len(parameters) != len(params):
        fix = "name it once: NAME=VALUE,VALUE"
        raise CommandLineError.of("a parameter is there twice", at="--param", fix=fix)
    lists = {name: values for name, values in parameters.items() if isinstance(values, list)}
    ranges = [name for name in parameters if name not in lists]
    if ranges and most is None:
        what = f"{ranges[0]} is a range, and a grid needs values"
        fix = "add --random N for N random points, or write values: NAME=VALUE,VALUE"
        raise CommandLineError.of(what, at="--param", fix=fix)
    counts = (values.count if isinstance(values, Range) else len(values) for values in parameters.values())
    count = math.prod(counts)
    if most is not None and most > count:
        what = f"--random {most} of {count:.0f} combinations"
        raise CommandLineError.of(what, at="--random", fix=f"write {count:.0f} or less, or give more values")
    _refuse_too_many(count if most is None else most, "--param", "choose some of them: --random N")
    chosen: Sequence[int] = () if ranges else range(int(count))
    if most is not None:
        from random import Random

        random = Random(seed)  # noqa: S311 - no secret
        if ranges:
            return Sweep(tuple(parameters), _random_points([*parameters.values()], most, random))
        chosen = sorted(random.sample(chosen, most))
    return Sweep(tuple(lists), tuple(_combination(number, [*lists.values()]) for number in chosen))


def _random_points(
    parameters: Sequence[Sequence[str] | Range], most: int, random: Random
) -> tuple[tuple[str, ...], ...]:
    """Return `most` different points, each drawn at random from the list or the range of each parameter.

    Raises CommandLineError if the ranges are so narrow that too few different points were drawn.
    """
    points: dict[tuple[str, ...], None] = {}  # an ordered set
    for _ in range(100 * most):  # most draws repeat a point if nearly all points are already drawn
        # Only random() gives the same numbers in all releases of Python. Other methods may change.
        fractions = [random.random() for _ in parameters]
        point = (
            values.value_at(fraction) if isinstance(values, Range) else values[int(fraction * len(values))]
            for values, fraction in zip(parameters, fractions, strict=True)
        )
        points[tuple(point)] = None
        if len(points) == most:
            return tuple(points)
    what = f"found only {len(points)} different points"
    raise CommandLineError.of(what, at="--random", fix=f"write {len(points)}, or wider ranges")


def _parameter(text: str) -> tuple[str, list[str] | Range]:
    """Return the name and the values of a parameter: "lr=0.1,0.01" -> "lr", ["0.1", "0.01"].

    Raises CommandLineError if the text is not NAME=VALUE,VALUE, or if it has brackets or a value twice.
    """
    name, equals, rest = text.partition("=")
    name = name.removeprefix("--")
    if not equals or not _NAME.fullmatch(name):
        raise CommandLineError.of(f"'{text}' is not a parameter", at="--param", fix="write NAME=VALUE,VALUE")
    if match := _RANGE.fullmatch(rest.strip()):
        return name, _range(text, match[1], match[2], match[3])
    if not rest:
        raise CommandLineError.of(f"{name} has no value", at="--param", fix=f"write {name}=VALUE,VALUE")
    if values_without := _without_brackets(rest):
        what = f"'{text}' has brackets, and values are written without them"
        raise CommandLineError.of(
            what, at="--param", fix=f"--param {quoting.word(f'{name}={values_without}')}"
        )
    values = [_value(value, "--param") for value in rest.split(",")]
    twice = next((value for index, value in enumerate(values) if value in values[:index]), None)
    if twice is not None:
        raise CommandLineError.of(f"{name} has the value '{twice}' twice", at="--param", fix="give it once")
    return name, values


def _without_brackets(values: str) -> str:
    """Return the values in "[0.1, 0.2]" or "(1,2)" without the brackets, quotes and blanks: "0.1,0.2".

    Return "" for a text without such brackets, and for several lists such as "[1,2],[3,4]".
    """
    match = _BRACKETS.fullmatch(values.strip())
    return ",".join(part.strip(" '\"") for part in match[1].split(",")) if match else ""


def _range(text: str, log: str | None, *ends: str) -> Range:
    """Return the range between two `ends`; `log` is "log:" for a logarithmic scale.

    Raises CommandLineError, with the parameter's whole `text`, if the first end is not below the second, or
    if a logarithmic scale does not start above 0.
    """
    low, high = map(float, ends)
    if not low < high < math.inf:
        what, fix = f"'{text}' is no range: {ends[0]} is not below {ends[1]}", "write NAME=LOW:HIGH"
        raise CommandLineError.of(what, at="--param", fix=fix)
    if log and low <= 0:
        fix = "write another LOW, or leave out log:"
        raise CommandLineError.of(f"'{text}' is no range: log:LOW:HIGH starts above 0", at="--param", fix=fix)
    return Range(low, high, bool(log), all(map(_WHOLE_NUMBER.fullmatch, ends)))


def _value(text: str, at: str) -> str:
    """Return a value without blanks around it; raises CommandLineError if it can't be an argument."""
    try:
        return Argument.parse(text.strip())
    except ValueError as error:
        raise CommandLineError.of(str(error), at=at) from error


def _combination(number: int, values: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """Return the combination with this number; the other combinations need not be made.

    `values` has the list of values of each parameter.
    """
    chosen = []
    for parameter_values in reversed(values):
        number, index = divmod(number, len(parameter_values))
        chosen.append(parameter_values[index])
    return tuple(reversed(chosen))


def _refuse_too_many(count: float, at: str, fix: str) -> None:
    """Raise CommandLineError if there are more points than a script can hold."""
    if count > MOST_POINTS:
        what = f"{count:,.0f} points are more than a script can hold, {MOST_POINTS:,}"
        raise CommandLineError.of(what, at=at, fix=fix)


def read_points(path: Path) -> Sweep:
    """Return the sweep in a CSV file: the parameters are in the first line, and a point in each other line.

    Raises CommandLineError or DocumentError if the file can't be read, or if a line is wrong.
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
    """Return the sweep in the text of a CSV file; `file` is its name for errors.

    Raises the errors of `read_points` for a line that is wrong.
    """
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    rows: list[tuple[int, list[str]]] = []  # the line number and the cells of each row
    try:
        rows = [(reader.line_num, [cell.strip() for cell in row]) for row in reader if any(row)]
    except csv.Error as error:
        raise DocumentError.of(str(error), at=f"{file}:{reader.line_num}") from error
    if len(rows) < 2:
        fix = "write the names of the parameters into the first line, and a point into each other"
        raise DocumentError.of("no points", at=file, fix=fix)
    (names_line, names), *points = rows
    for name in names:
        if not _NAME.fullmatch(name) or names.count(name) > 1:
            what = f"'{name}' is not a name of a parameter" if names.count(name) == 1 else f"'{name}' twice"
            fix = "name flags of the trainer, such as lr,batch-size"
            raise DocumentError.of(what, at=f"{file}:{names_line}", fix=fix)
    for line, row in points:
        if len(row) != len(names):
            what = f"{len(row)} values for {len(names)} parameters"
            raise DocumentError.of(what, at=f"{file}:{line}", fix="give each a value")
    _refuse_too_many(len(points), file, "make several sweeps of it")
    values = (tuple(_value(cell, f"{file}:{line}") for cell in row) for line, row in points)
    return Sweep(tuple(names), tuple(values))


def divide_into_arrays(points: Iterable[int], most: int) -> list[SweepArray]:
    """Return the arrays that run the points with these ascending numbers.

    `most` is the cluster's MaxArraySize in slurm.conf(5): the indices of an array are below it.
    """
    by_first_point: dict[int, list[int]] = {}
    for point in points:
        by_first_point.setdefault(point // most * most, []).append(point % most)
    arrays = [SweepArray(first_point, tuple(indices)) for first_point, indices in by_first_point.items()]
    while too_long := next((array for array in arrays if len(array.text(None)) > MOST_ARRAY_CHARS), None):
        index = arrays.index(too_long)
        arrays[index : index + 1] = too_long.halves()
    return arrays
