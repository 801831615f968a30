"""Layers of values, of a profile, a file or the command line, with their places; and what they decide."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from enum import IntEnum
from functools import cache
from typing import Any, NamedTuple, get_args, get_origin

from sbatchgen.base.keys import keys_of, without_none
from sbatchgen.jobs.inputs.job_file import JobSpec


class Level(IntEnum):
    """Who set a value; the higher level wins."""

    DEFAULT = 0
    PROFILE = 1
    PARTITION = 2
    PROJECT = 3
    JOB = 4
    COMMAND_LINE = 5


class Origin(NamedTuple):
    """Where a value was written: a layer, and a `file:line`, a flag, or the rule it follows from."""

    level: Level
    where: str

    def __str__(self) -> str:
        """Return the text that errors show."""
        if self.level is not Level.DEFAULT:
            return self.where
        return f"follows from: {self.where}" if self.where != "default" else ""


BY_DEFAULT = Origin(Level.DEFAULT, "default")
BY_PARTITION = Origin(Level.DEFAULT, "mode and partition")  # GPUs without a number from a user


class Layer(NamedTuple):
    """The values of one level, "options.nodes" -> 4, each with its place."""

    level: Level
    values: Mapping[str, Any]
    places: Mapping[str, str]


def layer(level: Level, spec: JobSpec, places: Mapping[str, str]) -> Layer:
    """Return the values of a job spec under flat keys.

    None of `lint`, which is about scripts, not about the job.
    """
    made = settings_layer(level, spec, places)
    values = {key: value for key, value in made.values.items() if not key.startswith(("lint.", "programs."))}
    values |= {f"programs.{name}": program for name, program in spec.programs.items()}
    return Layer(level, values, places)


def settings_layer(
    level: Level, record: Any, places: Mapping[str, str], below: str = "", *, kind: Any = None
) -> Layer:
    """Return what is written of a record under flat keys: "network.port_base" -> 20000, "setup+" -> (...).

    `below` is the key that holds the record, with a dot at its end; `kind` has the keys that count, if not
    the record itself.
    """
    values: dict[str, Any] = {}
    where: dict[str, str] = {}
    written = {place.removeprefix(below).partition(".")[0] for place in places if place.startswith(below)}
    for name, field in keys_of(kind or record).items():
        for key in (name, f"{name}+"):
            for leaf, value in _leaves(getattr(record, field.name), key) if key in written else ():
                if place := places.get(f"{below}{leaf}"):
                    values[leaf], where[leaf] = value, place
    return Layer(level, values, where)


def _leaves(value: Any, key: str) -> Iterator[tuple[str, Any]]:
    """Yield flat keys and values; those of a mapping and of a record one by one, and none that is not set."""
    if value is None:
        return
    items: Iterable[tuple[str, Any]]
    if is_dataclass(value):
        items = ((name, getattr(value, key.name)) for name, key in keys_of(value).items())
    elif isinstance(value, Mapping):
        items = value.items()
    else:
        yield key, value
        return
    for name, item in items:
        if item is None and isinstance(value, Mapping):
            yield f"{key}.{name}", None  # of the shell that submits
        yield from _leaves(item, f"{key}.{name}")


def record_of(kind: Any, values: Mapping[str, Any]) -> Any:
    """Return the record of a kind that flat keys make."""
    shape = _shape(kind)
    made: dict[str, Any] = {}
    inside: dict[str, dict[str, Any]] = {}
    for key, value in values.items():
        head, dot, rest = key.partition(".")
        if dot and head in shape:
            inside.setdefault(head, {})[rest] = value
        elif head in shape:
            made[shape[head][0]] = value
    for head, several in inside.items():
        name, type_ = shape[head]
        if is_dataclass(type_):
            made[name] = record_of(type_, several)
        elif type_ is not None:
            made[name] = several
    return kind(**made)


@cache
def _shape(kind: Any) -> dict[str, tuple[str, Any]]:
    """Return attribute and type of each key; no type of records by launcher, laid over the others."""
    shape: dict[str, tuple[str, Any]] = {}
    for name, field in keys_of(kind).items():
        type_ = without_none(field.type)
        by_name = get_origin(type_) is Mapping and is_dataclass(get_args(type_)[1])
        shape[name] = field.name, None if by_name else type_
    return shape


def below_key(values: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Return the values of a mapping: of "env", A for "env.A"."""
    start = f"{key}."
    return {name.removeprefix(start): value for name, value in values.items() if name.startswith(start)}


class DecidedValues:
    """The values of keys so far, with their origins and the values that they replaced."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.origins: dict[str, Origin] = {}
        self.overridden: dict[str, tuple[tuple[Any, Origin], ...]] = {}
        self.why_gpus = BY_PARTITION.where  # why the job has that number of GPUs
        self.ranks: dict[str, int] = {}  # of the layer of each value
        self._taken_away: set[str] = set()  # variables

    def lay(self, over: Layer) -> None:
        """Lay a layer over all that are there; `KEY+` adds to the list that is there."""
        rank = max(self.ranks.values(), default=0) + 1
        for written, value in over.values.items():
            key = written.removesuffix("+")
            whole = value if key == written else (*self.values.get(key, ()), *value)
            place = over.places.get(written)  # none for a default of the profile's own
            self.set(key, whole, Origin(over.level, place) if place else BY_DEFAULT)
            self.ranks[key] = rank
            if any(lower is not None for lower, _ in self.overridden.get(key, ())):
                self._take_away(key)

    def set(self, key: str, value: Any, origin: Origin) -> None:
        """Set a value, which replaces an earlier value."""
        if key in self.values:
            self.overridden[key] = ((self.values[key], self.origins[key]), *self.overridden.get(key, ()))
        self.values[key] = value
        self.origins[key] = origin
        self._taken_away.discard(key)

    def _take_away(self, key: str) -> None:
        """Drop a variable that is null in a file; a flag without a value asks for that of the shell."""
        is_null = key.startswith("env.") and key in self.values and self.values[key] is None
        if is_null and self.origins[key].level < Level.COMMAND_LINE:
            self.drop(key)
            self._taken_away.add(key)

    def derive_variable(self, name: str, value: Any, why: str) -> None:
        """Derive a variable of the job, unless a file takes it away."""
        self._take_away(f"env.{name}")
        self.derive(f"env.{name}", value, why)

    def derive(self, key: str, value: Any, why: str) -> None:
        """Set what no layer sets, and note the rule it follows from."""
        if value is not None and key not in self.values and key not in self._taken_away:
            self.set(key, value, Origin(Level.DEFAULT, why))

    def drop(self, key: str) -> None:
        """Forget a value."""
        self.values.pop(key, None)
        self.origins.pop(key, None)

    def highest(self, rivals: Sequence[str]) -> list[str]:
        """Drop all but the highest layer's values of keys that exclude each other, and return their keys."""
        given = [key for key in rivals if key in self.values]
        top = max((self.ranks.get(key, 0) for key in given), default=0)
        for key in given:
            if self.ranks.get(key, 0) < top:
                self.drop(key)
        return [key for key in given if key in self.values]

    def get(self, key: str, default: Any = None) -> Any:
        """Return a value, or the default."""
        return self.values.get(key, default)
