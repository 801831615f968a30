"""Layers: the values of a profile, a file or the command line, with their places. A higher layer wins.

`DecidedValues` lays the layers over each other, and holds the result with the origin of each value.
"""

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
        """Return the place as errors show it; "" for a plain default."""
        if self.level is not Level.DEFAULT:
            return self.where
        return f"follows from: {self.where}" if self.where != "default" else ""


BY_DEFAULT = Origin(Level.DEFAULT, "default")
BY_PARTITION = Origin(Level.DEFAULT, "mode and partition")  # the number of GPUs if no user wrote one


class Layer(NamedTuple):
    """The values that one level sets, each with its place."""

    level: Level
    values: Mapping[str, Any]  # by flat key: "options.nodes" -> 4
    places: Mapping[str, str]  # by flat key: "options.nodes" -> "job.yaml:4"


def job_layer(level: Level, spec: JobSpec, places: Mapping[str, str]) -> Layer:
    """Return the layer of a job spec; each program is one value, under "programs.NAME".

    The keys of `lint` are left out, because they are about scripts, not about the job.
    """
    written = settings_layer(level, spec, places).values
    values = {key: value for key, value in written.items() if not key.startswith(("lint.", "programs."))}
    values |= {f"programs.{name}": program for name, program in spec.programs.items()}
    return Layer(level, values, places)


def settings_layer(
    level: Level, record: Any, places: Mapping[str, str], below: str = "", *, kind: Any = None
) -> Layer:
    """Return the layer of a record's written values: "network.port_base" -> 20000, "setup+" -> (...).

    `below` is the key that holds the record, with a dot at its end: "" or "partitions.gpu.". `kind` is a
    class whose keys are read instead of all keys of the record.
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
    """Yield flat keys and values: flatten records and mappings into dotted keys, and skip unset values."""
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
            yield f"{key}.{name}", None  # a variable whose value comes from the shell that submits
        yield from _leaves(item, f"{key}.{name}")


def record_of(kind: Any, values: Mapping[str, Any]) -> Any:
    """Return a `kind`, a record, with the values of flat keys; keys that the record lacks are ignored."""
    shape = _shape(kind)
    attributes: dict[str, Any] = {}
    inner_values: dict[str, dict[str, Any]] = {}
    for key, value in values.items():
        head, dot, rest = key.partition(".")
        if dot and head in shape:
            inner_values.setdefault(head, {})[rest] = value
        elif head in shape:
            attributes[shape[head][0]] = value
    for head, inner in inner_values.items():
        name, type_ = shape[head]
        if is_dataclass(type_):
            attributes[name] = record_of(type_, inner)
        elif type_ is not None:
            attributes[name] = inner
    return kind(**attributes)


@cache
def _shape(kind: Any) -> dict[str, tuple[str, Any]]:
    """Return attribute and type of each key of a record.

    The type of a mapping of records, such as `launchers`, is None: their values have become layers before.
    """
    shape: dict[str, tuple[str, Any]] = {}
    for name, field in keys_of(kind).items():
        type_ = without_none(field.type)
        by_name = get_origin(type_) is Mapping and is_dataclass(get_args(type_)[1])
        shape[name] = field.name, None if by_name else type_
    return shape


def values_below(values: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Return the values below a key, by the rest of their keys: for "env", the value of "env.A" under "A"."""
    start = f"{key}."
    return {name.removeprefix(start): value for name, value in values.items() if name.startswith(start)}


class DecidedValues:
    """The values of keys so far, with their origins and the values that they replaced."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.origins: dict[str, Origin] = {}
        self.overridden: dict[str, tuple[tuple[Any, Origin], ...]] = {}
        self.why_gpus = BY_PARTITION.where  # why the job has that number of GPUs
        self.ranks: dict[str, int] = {}  # key -> rank of the layer that set its value, the highest last
        self._removed_variables: set[str] = set()  # their keys

    def lay(self, layer: Layer) -> None:
        """Lay a layer over the present values; `KEY+` adds to the present list."""
        rank = max(self.ranks.values(), default=0) + 1
        for written, value in layer.values.items():
            key = written.removesuffix("+")
            new_value = value if key == written else (*self.values.get(key, ()), *value)
            place = layer.places.get(written)  # None for a default of the profile itself
            self.set(key, new_value, Origin(layer.level, place) if place else BY_DEFAULT)
            self.ranks[key] = rank
            if any(lower is not None for lower, _ in self.overridden.get(key, ())):
                self._remove_variable_if_null(key)

    def set(self, key: str, value: Any, origin: Origin) -> None:
        """Set a value; an earlier value is kept in `overridden`."""
        if key in self.values:
            self.overridden[key] = ((self.values[key], self.origins[key]), *self.overridden.get(key, ()))
        self.values[key] = value
        self.origins[key] = origin
        self._removed_variables.discard(key)

    def _remove_variable_if_null(self, key: str) -> None:
        """Drop a variable that is null in a file. After a flag, null stands for the shell's value."""
        is_null = key.startswith("env.") and key in self.values and self.values[key] is None
        if is_null and self.origins[key].level < Level.COMMAND_LINE:
            self.drop(key)
            self._removed_variables.add(key)

    def derive_variable(self, name: str, value: Any, why: str) -> None:
        """Derive a variable of the job, unless a file removes it by null."""
        self._remove_variable_if_null(f"env.{name}")
        self.derive(f"env.{name}", value, why)

    def derive(self, key: str, value: Any, why: str) -> None:
        """Set a value that no layer sets; `why` is the rule that it follows from."""
        if value is not None and key not in self.values and key not in self._removed_variables:
            self.set(key, value, Origin(Level.DEFAULT, why))

    def drop(self, key: str) -> None:
        """Forget a value."""
        self.values.pop(key, None)
        self.origins.pop(key, None)

    def highest(self, rivals: Sequence[str]) -> list[str]:
        """Keep only the highest layer's values of keys that exclude each other; return the keys kept."""
        set_keys = [key for key in rivals if key in self.values]
        top = max((self.ranks.get(key, 0) for key in set_keys), default=0)
        for key in set_keys:
            if self.ranks.get(key, 0) < top:
                self.drop(key)
        return [key for key in set_keys if key in self.values]

    def get(self, key: str, default: Any = None) -> Any:
        """Return a value, or the default."""
        return self.values.get(key, default)
