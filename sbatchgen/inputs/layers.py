"""Layers of input: the values of a profile, a file or the command line, each with its place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from enum import IntEnum
from typing import Any, NamedTuple

from sbatchgen.inputs.job import JobSpec
from sbatchgen.inputs.options import NAMES, SbatchOptions


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
    return {_KEYS[name]: value for name, value in vars(options).items() if value is not None}


_KEYS = {name: f"options.{name}" for name in NAMES}
