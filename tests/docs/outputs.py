"""The schema of what each command prints with --format json, made from the records that it prints.

A record's docstring describes its fields. What a command adds to its records, or replaces, is given here.
"""

from __future__ import annotations

import re
import types
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from sbatchgen.adopt.remarks import Outcome
from sbatchgen.dryrun.missing import Need
from sbatchgen.dryrun.starts import Step
from sbatchgen.errors import Problem
from sbatchgen.finding import Severity
from sbatchgen.plan.origins import Setting
from sbatchgen.rehearsal.outcome import Row
from sbatchgen.render.trace import TemplateLine
from sbatchgen.review.review import Review
from sbatchgen.runs.cost import Report
from sbatchgen.runs.diagnosis import Diagnosis
from sbatchgen.runs.index import RunJob
from sbatchgen.runs.points import Point
from sbatchgen.runs.progress import Progress
from sbatchgen.slurm.gpu_nodes import Gpu, GpuCount
from sbatchgen.slurm.queue import SlurmJob
from sbatchgen.slurm.reason import Reason
from sbatchgen.slurm.room import Availability
from tests.inputs.schema import DIALECT

Schema = dict[str, Any]
_NOT_PRINTED = ("waits", "sharing", "takes")  # of a step of a plan
_PRIMITIVES = {
    str: "string",
    Path: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    type(None): "null",
}


def schemas() -> dict[str, Schema]:
    """The schema of each command's output by the words that ask for it."""
    return {name: _whole(name, output) for name, output in _outputs().items()}


def _whole(name: str, output: Any) -> Schema:
    records: dict[str, Schema] = {}
    root = _schema(output, records)
    if "$ref" in root:
        root = records.pop(root["$ref"].rpartition("/")[2])
    title = f"What sbatchgen {name} --format json prints"
    return {"$schema": DIALECT, "title": title, **root, "definitions": dict(sorted(records.items()))}


def _outputs() -> dict[str, Any]:
    """What each command prints: a type, a list of one, or the fields of an object."""
    numbered = {"schema": int}
    finding = {"severity": Severity, "rule": str} | _fields(Problem)
    queued = {name: kind for name, kind in _fields(SlurmJob).items() if name in _QUEUED}
    queued |= {
        "state": str,
        "kind": _fields(Reason)["kind"],
        "means": str,
        "start": str | None,
        "end": str | None,
    }
    point = _fields(Point) | {"values": Mapping[str, str], "training": Progress | None}
    run = {
        "name": str,
        "folder": str,
        "jobs": [{name: kind for name, kind in _fields(RunJob).items() if name not in ("key", "run")}],
        "queue": [queued],
        "training": Progress | None,
        "points": ([{name: kind for name, kind in point.items() if name != "progress"}], None),
    }
    node = {
        "name": str,
        "state": str,
        "flags": [str],
        "unavailable": str,
        "reason": str,
        "partitions": [str],
    }
    edit = {"line": int, "column": int, "end_column": int, "text": str}
    place = {"file": str, "line": int, "column": int, "end_column": int, "rule": str, "severity": Severity}
    profile = dict.fromkeys(
        ("name", "file", "broken", "site", "scheduler", "checked", "description", "url"), str
    )
    rows = [{"lines": [int], "outcome": Outcome, "what": str}]
    of_script = {
        "script": str,
        "lines": Mapping[str, Outcome],
        "rows": rows,
        "mended": [str],
        "as_before": [str],
    }
    return {
        "adopt": of_script | {"notes": [str], "files": Mapping[str, str]},
        "diagnose": numbered
        | _fields(Diagnosis)
        | {"lines": [{"line": int, "says": str}], "problems": [str]},
        "explain": numbered | {"settings": [Setting], "lines?": [{"text": str} | _fields(TemplateLine)]},
        "gpus": numbered | {"types": [GpuCount], "nodes": [node | {"gpus": [_fields(Gpu) | {"free": bool}]}]},
        "gpus for": numbered | {"partitions": [_fields(Availability) | {"starts": bool}]},
        "lint": [place | {"message": str, "fix": str, "edits": [edit]}],
        "lint rules": numbered
        | {"rules": [{"rule": str, "severity": Severity, "pedantic": bool, "title": str, "page": str}]},
        "plan": numbered
        | {"script": str, "refusal": str, "nodes": [str], "gpus_per_node": int, "cpus_per_node": [int]}
        | {"steps": [{name: kind for name, kind in _fields(Step).items() if name not in _NOT_PRINTED}]}
        | {"needed": [Need], "findings": [finding], "exit": int, "limit": str},
        "rehearse": numbered
        | {"rows": [Row], "unproven?": Mapping[str, str], "seconds?": float, "memory_bytes?": int},
        "profile check": numbered | {"profiles": [{"name": str, "findings": [finding]}]},
        "profile list": numbered | {"profiles": [profile | {"used": bool}]},
        "profile show": numbered | {"file": str, "profile": Mapping[str, Any]},
        "profile sources": numbered
        | {"name": str, "sources": [{"keys": [str], "url": str, "state": str | None}]},
        "report": numbered | _fields(Report),
        "review": _fields(Review) | {"findings": [finding]},
        "status": numbered | {"time": float, "problems": [str], "runs": [run]},
    }


_QUEUED = {"id", "reason", "used_s", "limit_s", "nodes", "node_list", "restarts"}


def _schema(kind: Any, records: dict[str, Schema]) -> Schema:  # noqa: C901, PLR0911 - a line for each kind
    origin, arguments = get_origin(kind), get_args(kind)
    if isinstance(kind, dict):
        return _object(kind, "", records)
    if isinstance(kind, list):
        return {"type": "array", "items": _schema(kind[0], records)}
    if isinstance(kind, tuple) or origin in (Union, types.UnionType):
        return {
            "anyOf": [_schema(each, records) for each in (kind if isinstance(kind, tuple) else arguments)]
        }
    if kind is None or kind in _PRIMITIVES:
        return {"type": _PRIMITIVES[type(None) if kind is None else kind]}
    if origin is Literal:
        return {"enum": [*arguments]}
    if origin is not None and issubclass(origin, Mapping):
        return {"type": "object", "additionalProperties": _schema(arguments[1], records)}
    if origin is tuple and Ellipsis not in arguments:
        return {"type": "array", "items": [_schema(each, records) for each in arguments]}
    if origin is not None and issubclass(origin, (Sequence, tuple)):
        return {"type": "array", "items": _schema(arguments[0], records)}
    if is_dataclass(kind) or hasattr(kind, "_fields"):
        name = kind.__name__
        if name not in records:
            records[name] = {}  # a record may hold others like it
            records[name] = _object(_fields(kind), kind.__doc__ or "", records)
        return {"$ref": f"#/definitions/{name}"}
    assert kind is Any, kind
    return {}


def _object(inside: Mapping[str, Any], about: str, records: dict[str, Schema]) -> Schema:
    texts = _described(about)
    keys = {}
    for key, kind in inside.items():
        name = key.removesuffix("?")
        value = _schema(kind, records)
        said = {"description": texts[name]} if name in texts else {}
        keys[name] = said | ({"allOf": [value]} if said and "$ref" in value else value)
    required = [key for key in inside if not key.endswith("?")]
    return {"type": "object", "properties": keys, "required": required, "additionalProperties": False}


def _described(about: str) -> dict[str, str]:
    """What a docstring says of attributes."""
    parts = re.split(r"(?m)^ {8}(\w+(?:, \w+)*): ", about.partition("Attributes:\n")[2])
    pairs = zip(parts[1::2], parts[2::2], strict=True)
    return {name: " ".join(text.split()) for names, text in pairs for name in names.split(", ")}


def _fields(record: Any) -> dict[str, Any]:
    hints = get_type_hints(record)
    names = [field.name for field in fields(record)] if is_dataclass(record) else record._fields
    return {name: hints[name] for name in names}
