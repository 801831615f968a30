"""JSON schemas of profiles and jobs, for editors.

A schema refuses nothing that `document` reads. It knows keys, types and choices; `document` also checks
limits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import is_dataclass
from typing import Any, Literal, get_args, get_origin

from release.schemas import DIALECT
from sbatchgen.base.keys import keys_of, without_none
from sbatchgen.base.texts import Switch
from sbatchgen.base.units import Count, Duration, Memory, Port, Restarts, TimeLimit
from sbatchgen.jobs.inputs.document import is_required
from sbatchgen.jobs.inputs.job_file import JobSpec
from sbatchgen.jobs.inputs.profile import Profile

TITLES = {"profile": "A cluster, as sbatchgen knows it", "job": "A job of sbatchgen, or its sbatchgen.yaml"}
_RECORDS: dict[str, type] = {"profile": Profile, "job": JobSpec}
# YAML makes numbers and booleans of what the reader takes for text.
_TEXT = {"type": ["string", "number", "boolean"]}
_NUMBERS = {int: None, Count: 1, Restarts: 0, Port: Port.FIRST}  # each with the least


def schema(name: str) -> dict[str, Any]:
    """Return the schema of a "profile" or a "job"."""
    records: dict[str, Any] = {}
    root = _record(_RECORDS[name], records)
    return {"$schema": DIALECT, "title": TITLES[name], **root, "definitions": dict(sorted(records.items()))}


def _record(kind: Any, records: dict[str, Any]) -> dict[str, Any]:
    keys: dict[str, Any] = {}
    for name, key in keys_of(kind).items():
        value = _of(key.type, records)  # draft 7 ignores keys next to a $ref
        keys[name] = {
            "description": key.metadata["help"],
            **({"allOf": [value]} if "$ref" in value else value),
        }
        if key.metadata.get("extended"):
            keys[f"{name}+"] = {"description": f"Added to {name}: {key.metadata['help']}", **value}
    required = [name for name, key in keys_of(kind).items() if is_required(key)]
    made = {"type": "object", "additionalProperties": False, "properties": keys}
    return made | ({"required": required} if required else {})


def _of(kind: Any, records: dict[str, Any]) -> dict[str, Any]:
    kind = without_none(kind)
    origin, arguments = get_origin(kind), get_args(kind)
    if is_dataclass(kind):
        name = getattr(kind, "__name__", "")
        if name not in records:
            records[name] = {}  # no record holds itself
            records[name] = _record(kind, records)
        return {"$ref": f"#/definitions/{name}"}
    if origin is tuple:
        return {"type": "array", "items": _of(arguments[0], records)}
    if origin is Mapping:
        names = {"propertyNames": _of(arguments[0], records)} if get_origin(arguments[0]) is Literal else {}
        value = _of(arguments[1], records)
        if type(None) in get_args(arguments[1]):
            value = {"type": [*value["type"], "null"]}
        return {"type": "object", "additionalProperties": value, **names}
    return _scalar(kind)


def _scalar(kind: Any) -> dict[str, Any]:
    if get_origin(kind) is Literal:
        return {"enum": [*get_args(kind)]}
    if kind is bool or issubclass(kind, Switch):
        words = [kind.WORD] if issubclass(kind, Switch) else []
        return {"enum": [True, False, "true", "false", *words]}
    if kind in _NUMBERS:
        least = _NUMBERS[kind]
        number = {"type": "integer"} | ({} if least is None else {"minimum": least})
        return {"anyOf": [number, {"type": "string", "pattern": "^-?[0-9]+$"}]}
    if kind in (Duration, TimeLimit):
        return {"type": ["string", "integer"], "examples": ["02:00:00", "1-12:00:00"]}
    if kind is Memory:
        return {"type": ["string", "integer"], "examples": ["64G"]}
    return dict(_TEXT)
