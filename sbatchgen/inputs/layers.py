"""Layers of input: the values of a profile, a file or the command line, each with its place."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from enum import IntEnum
from functools import cache
from typing import Any, NamedTuple, get_args, get_origin

from sbatchgen.inputs.job_file import JobSpec
from sbatchgen.inputs.options import NAMES, SbatchOptions
from sbatchgen.inputs.start_settings import JobSettings
from sbatchgen.keys import keys_of, without_none


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
        """As errors show it."""
        if self.level is not Level.DEFAULT:
            return self.where
        return f"follows from: {self.where}" if self.where != "default" else ""


BY_DEFAULT = Origin(Level.DEFAULT, "default")


class Layer(NamedTuple):
    """The values of one level, "options.nodes" -> 4, each with its place."""

    level: Level
    values: Mapping[str, Any]
    places: Mapping[str, str]


def layer(level: Level, spec: JobSpec, places: Mapping[str, str]) -> Layer:
    """The values of a job spec under flat keys."""
    values: dict[str, Any] = {}
    for field in fields(JobSpec):
        value = getattr(spec, field.name)
        if field.name == "options":
            values |= option_values(value)
        elif field.name == "lint":
            continue  # about scripts, not about the job
        elif isinstance(value, Mapping):
            values |= {f"{field.name}.{key}": item for key, item in value.items()}
        elif value is not None:
            values[field.name] = value
    return Layer(level, values, places)


def option_values(options: SbatchOptions) -> dict[str, Any]:
    """The options that are set: "options.nodes" -> 4."""
    return {key: value for name, key in _KEYS.items() if (value := getattr(options, name)) is not None}


_KEYS = {name: f"options.{name}" for name in NAMES}


def settings_layer(
    level: Level, record: JobSettings, places: Mapping[str, str], below: str = "", *, defaults: bool = False
) -> Layer:
    """Return the settings of a profile or a partition under flat keys: "network.port_base" -> 20000.

    `below` is the key that holds the record, with a dot at its end; `defaults`: values that are not written
    count.
    """
    values: dict[str, Any] = {}
    where: dict[str, str] = {}
    written = {place.removeprefix(below).partition(".")[0] for place in places if place.startswith(below)}
    for name, field in keys_of(JobSettings).items():
        for key, value in _leaves(getattr(record, field.name), name) if defaults or name in written else ():
            place = places.get(f"{below}{key}")
            if defaults or place:
                values[key] = value
            if place:
                where[key] = place
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
        yield from _leaves(item, f"{key}.{name}") if item is not None else ()


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
