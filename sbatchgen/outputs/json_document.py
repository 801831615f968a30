"""An output as a JSON document."""

import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from sbatchgen.errors import Problem
from sbatchgen.finding import Finding

SCHEMA = 1  # an incompatible change of any output raises it
_NOT_PRINTED = {"RunJob": ("key", "run"), "Step": ("waits", "sharing", "takes")}  # of what others print


def document(output: object) -> str:
    """Return a document: the number of its form, and the fields of an output."""
    return json.dumps({"schema": SCHEMA, **_plain(output)}, indent=2) + "\n"


def fields_of(record: type[Any]) -> list[str]:
    """Return the names of a record's fields that are printed."""
    names = [field.name for field in fields(record)] if is_dataclass(record) else record._fields
    return [name for name in names if name not in _NOT_PRINTED.get(record.__name__, ())]


def _plain(value: Any) -> Any:
    if isinstance(value, Finding):
        return value.as_object()
    if isinstance(value, Problem):
        return value.what
    if is_dataclass(value) or hasattr(value, "_fields"):
        return {name: _plain(getattr(value, name)) for name in fields_of(type(value))}
    if isinstance(value, Mapping):
        return {name: _plain(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    return str(value) if isinstance(value, Path) else value
