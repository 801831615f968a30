"""The schema of what each command prints with --format json, made from the types of `sbatchgen.jobs.outputs`.

The comments of a record describe its fields. `pytest --update-golden tests/docs` writes the schemas.
"""

from __future__ import annotations

import inspect
import re
import types
from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints, is_typeddict

from sbatchgen.base.errors import Problem
from sbatchgen.base.finding import Finding
from sbatchgen.check.lint import linting
from sbatchgen.check.lint.formats import FindingOutput
from sbatchgen.jobs.outputs import explained, gpus, profiles, runs, submitted
from sbatchgen.jobs.outputs.json_document import fields_of
from sbatchgen.jobs.review.review import Review
from sbatchgen.jobs.runs.bill import Bill
from sbatchgen.jobs.runs.cost import Report
from sbatchgen.jobs.runs.diagnosis import Diagnosis
from sbatchgen.jobs.starts.prospect import Prospects
from sbatchgen.lab.adopt.adopt_output import AdoptOutput
from sbatchgen.lab.plan.plan_output import PlanOutput
from sbatchgen.lab.rehearsal import outcome

DIALECT = "http://json-schema.org/draft-07/schema#"  # what editors' YAML servers know
OUTPUTS = {
    "adopt": AdoptOutput,
    "cancel": runs.CancelOutput,
    "diagnose": Diagnosis,
    "explain": explained.ExplainOutput,
    "gpus": gpus.GpusOutput,
    "gpus for": gpus.RoomOutput,
    "lint": Sequence[FindingOutput],
    "lint rules": linting.RulesOutput,
    "logs": runs.LogsOutput,
    "plan": PlanOutput,
    "rehearse": outcome.RehearseOutput,
    "profile check": profiles.ChecksOutput,
    "profile list": profiles.ProfilesOutput,
    "profile show": profiles.ProfileOutput,
    "profile sources": profiles.SourcesOutput,
    "preflight": submitted.SubmitOutput,
    "report": Report,
    "report sum": Bill,
    "resubmit": submitted.SubmitOutput,
    "resume": submitted.SubmitOutput,
    "review": Review,
    "status": runs.StatusOutput,
    "status brief": runs.BriefStatusOutput,
    "submit": submitted.SubmitOutput,
    "sweep": submitted.SubmitOutput,
    "when": Prospects,
}
Schema = dict[str, Any]
_ARGV: Schema = {
    "description": "The fix as a command line that can be run; empty where a person must decide.",
    "type": "array",
    "items": {"type": "string"},
}
_ERROR: Schema = {
    "description": "Why the command refuses; absent otherwise.",
    "type": "object",
    "properties": {
        "status": {"type": "integer"},
        "problems": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {**{name: {"type": "string"} for name in ("what", "at", "fix")}, "argv": _ARGV},
                "required": ["what", "at", "fix", "argv"],
                "additionalProperties": False,
            },
        },
    },
    "required": ["status", "problems"],
    "additionalProperties": False,
}
_PRIMITIVES = {
    str: "string",
    Path: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    type(None): "null",
}


def schemas() -> dict[str, Schema]:
    """Return the schema of each command's output by the words that ask for it."""
    return {name: _whole(name, output) for name, output in OUTPUTS.items()}


def _whole(name: str, output: Any) -> Schema:
    records: dict[str, Schema] = {}
    root = _schema(output, records)
    if "$ref" in root:
        root = records.pop(root["$ref"].rpartition("/")[2])
    if "properties" in root:  # of a document; lint prints a list
        root["properties"] = {"schema": {"type": "integer"}, **root["properties"], "error": _ERROR}
        root["required"] = ["schema", *root["required"]]
    title = f"What sbatchgen {name} --format json prints"
    return {"$schema": DIALECT, "title": title, **root, "definitions": dict(sorted(records.items()))}


def _schema(kind: Any, records: dict[str, Schema]) -> Schema:  # noqa: C901, PLR0911 - a line for each kind
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is Finding:
        return _schema(get_type_hints(Finding.as_object)["return"], records)
    if kind is Problem:
        return {"type": "string"}
    if is_typeddict(kind):
        return _object(kind, records)
    if origin in (Union, types.UnionType):
        return {"anyOf": [_schema(each, records) for each in arguments]}
    if kind in _PRIMITIVES:
        return {"type": _PRIMITIVES[kind]}
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
            records[name] = _object(kind, records)
        return {"$ref": f"#/definitions/{name}"}
    if kind is not Any:
        raise TypeError(kind)
    return {}


def _object(record: Any, records: dict[str, Schema]) -> Schema:
    texts, hints = _described(record), get_type_hints(record)
    names = [*hints] if is_typeddict(record) else fields_of(record)
    keys = {}
    for name in names:
        value = _schema(hints[name], records)
        said = {"description": texts[name]} if name in texts else {}
        keys[name] = said | ({"allOf": [value]} if said and "$ref" in value else value)
    if "fix" in keys:  # as `outputs.json_document` adds it
        keys["argv"] = _ARGV
        names = [*names, *["argv"] * ("argv" not in names)]
    required = [name for name in names if name in getattr(record, "__required_keys__", names)]
    return {"type": "object", "properties": keys, "required": required, "additionalProperties": False}


def _described(record: type[Any]) -> dict[str, str]:
    """Return what the comments of a record say of its fields: above each, or after it."""
    texts: dict[str, str] = {}
    above: list[str] = []
    for line in inspect.getsource(record).splitlines():
        if comment := re.fullmatch(r" {4}# (.*)", line):
            above.append(comment[1])
        elif key := re.match(r" {4}(\w+): (?:.*?  # (.*))?", line):
            if text := " ".join([*above, key[2] or ""]).strip():
                texts[key[1]] = f"{text[0].upper()}{text[1:]}".removesuffix(".") + "."
            above = []
    return texts
