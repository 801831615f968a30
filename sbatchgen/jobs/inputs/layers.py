"""Layers: the values that a profile, a file or the command line sets, with their places.

If several layers set a key, the highest layer wins. `DecidedValues` lays the layers over each other, and
holds the result with the origin of each value. A flat key has dots between its parts: "options.nodes".
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from enum import IntEnum
from functools import cache
from typing import Any, NamedTuple, get_args, get_origin

from sbatchgen.base.keys import keys_of, without_none
from sbatchgen.jobs.inputs.job_file import JobSpec


class Level(IntEnum):
    """The kind of source that set a value. The value of the highest level wins."""

    DEFAULT = 0
    PROFILE = 1
    PARTITION = 2
    PROJECT = 3
    JOB = 4
    COMMAND_LINE = 5


class Origin(NamedTuple):
    """Where a value comes from: the level of its layer, and a place."""

    level: Level
    where: str  # a `file:line`, a flag, or the rule from which a derived value follows

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
    """Return the layer of a record's written values: "network.port_base" -> 20000, "setup+" -> ("cd /",).

    `below` is the key that holds the record, with a dot at its end: "" or "partitions.gpu.". `kind` is a
    class whose keys are read instead of all keys of the record.
    """
    values: dict[str, Any] = {}
    value_places: dict[str, str] = {}
    written_keys = {key.removeprefix(below).partition(".")[0] for key in places if key.startswith(below)}
    for name, field in keys_of(kind or record).items():
        for key in (name, f"{name}+"):
            if key not in written_keys:
                continue
            for flat_key, value in _flat_values(getattr(record, field.name), key):
                if place := places.get(f"{below}{flat_key}"):
                    values[flat_key], value_places[flat_key] = value, place
    return Layer(level, values, value_places)


def _flat_values(value: Any, key: str) -> Iterator[tuple[str, Any]]:
    """Yield the flat keys and values below a key: SbatchOptions(nodes=4), "options" -> ("options.nodes", 4).

    Values that are not set are left out.
    """
    if value is None:
        return
    items: Iterable[tuple[str, Any]]
    if is_dataclass(value):
        items = ((name, getattr(value, field.name)) for name, field in keys_of(value).items())
    elif isinstance(value, Mapping):
        items = value.items()
    else:
        yield key, value
        return
    for name, item in items:
        if item is None and isinstance(value, Mapping):
            yield f"{key}.{name}", None  # a variable whose value comes from the shell that submits
        yield from _flat_values(item, f"{key}.{name}")


def record_of(kind: Any, values: Mapping[str, Any]) -> Any:
    """Return a record of class `kind` with the values of flat keys; keys that the class lacks are ignored."""
    fields = _fields_by_key(kind)
    attributes: dict[str, Any] = {}
    inner_values: dict[str, dict[str, Any]] = {}  # "options.nodes" -> 4 becomes "options" -> {"nodes": 4}
    for flat_key, value in values.items():
        key, dot, inner_key = flat_key.partition(".")
        if dot and key in fields:
            inner_values.setdefault(key, {})[inner_key] = value
        elif key in fields:
            attributes[fields[key][0]] = value
    for key, inner in inner_values.items():
        attribute, type_ = fields[key]
        if is_dataclass(type_):
            attributes[attribute] = record_of(type_, inner)
        elif type_ is not None:
            attributes[attribute] = inner
    return kind(**attributes)


@cache
def _fields_by_key(kind: Any) -> dict[str, tuple[str, Any]]:
    """Return attribute and type of each key of a record: "options" -> ("options", SbatchOptions).

    The type of a mapping of records, such as `launchers`, is None, because their values are layers already.
    """
    fields: dict[str, tuple[str, Any]] = {}
    for key, field in keys_of(kind).items():
        type_ = without_none(field.type)
        holds_records = get_origin(type_) is Mapping and is_dataclass(get_args(type_)[1])
        fields[key] = field.name, None if holds_records else type_
    return fields


def values_below(values: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Return the values below a key: for "env", {"env.A": "1", "nodes": 4} -> {"A": "1"}."""
    start = f"{key}."
    return {name.removeprefix(start): value for name, value in values.items() if name.startswith(start)}


class DecidedValues:
    """The values that are decided so far, by flat key, with their origins and the values that they replaced.

    Layers are laid from the lowest to the highest. Then the keys that no layer sets are derived.
    """

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.origins: dict[str, Origin] = {}
        self.overridden: dict[str, tuple[tuple[Any, Origin], ...]] = {}
        self.why_gpus = BY_PARTITION.where  # the rule that the job's number of GPUs follows from
        self.ranks: dict[str, int] = {}  # key -> rank of the layer that set its value, 1 for the lowest
        self._removed_variables: set[str] = set()  # keys such as "env.OMP_NUM_THREADS"

    def lay(self, layer: Layer) -> None:
        """Set the values of a layer, which is higher than the layers before it. `KEY+` adds to KEY's list."""
        rank = max(self.ranks.values(), default=0) + 1
        for written, value in layer.values.items():
            key = written.removesuffix("+")
            new_value = value if key == written else (*self.values.get(key, ()), *value)
            place = layer.places.get(written)  # None for a default of the profile itself
            self.set(key, new_value, Origin(layer.level, place) if place else BY_DEFAULT)
            self.ranks[key] = rank
            # Null removes a variable of a lower layer. If no layer sets it, null means the shell's value.
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
        """Drop a variable that is null in a file. In the flag `--env NAME`, null means the shell's value."""
        is_null = key.startswith("env.") and key in self.values and self.values[key] is None
        if is_null and self.origins[key].level < Level.COMMAND_LINE:
            self.drop(key)
            self._removed_variables.add(key)

    def derive_variable(self, name: str, value: Any, why: str) -> None:
        """Derive a variable of the job, unless a file removes it by null."""
        self._remove_variable_if_null(f"env.{name}")
        self.derive(f"env.{name}", value, why)

    def derive(self, key: str, value: Any, why: str) -> None:
        """Set the value of a key that no layer sets; `why` is the rule that the value follows from."""
        if value is not None and key not in self.values and key not in self._removed_variables:
            self.set(key, value, Origin(Level.DEFAULT, why))

    def drop(self, key: str) -> None:
        """Forget a value."""
        self.values.pop(key, None)
        self.origins.pop(key, None)

    def keep_highest(self, rivals: Sequence[str]) -> list[str]:
        """Drop the values of `rivals` that are not of their highest layer, and return the keys that stay.

        Rivals are keys that exclude each other. With `mem` in a profile and `mem_per_cpu` in a job, only
        `mem_per_cpu` stays.
        """
        set_keys = [key for key in rivals if key in self.values]
        highest_rank = max((self.ranks.get(key, 0) for key in set_keys), default=0)
        for key in set_keys:
            if self.ranks.get(key, 0) < highest_rank:
                self.drop(key)
        return [key for key in set_keys if key in self.values]

    def get(self, key: str, default: Any = None) -> Any:
        """Return a value, or the default."""
        return self.values.get(key, default)
