"""Makes the JSON document of an output, for --format json."""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from sbatchgen.base.errors import Problem
from sbatchgen.base.finding import Finding

SCHEMA = 1  # the version of all outputs; an incompatible change of any output increases it
# Internal fields of records, which are not printed, by the names of the classes.
_NOT_PRINTED = {"RunJob": ("key", "run"), "Step": ("waits", "sharing", "takes")}

ArgvOfFix = Callable[[Mapping[str, str]], list[str]]  # returns the words of the command in an object's fix
Refused = tuple[int, Iterable[Problem | Finding]]  # an exit status, and the reasons for it


def document(output: object, argv_of_fix: ArgvOfFix = lambda _: [], refused: Refused | None = None) -> str:
    """Return a JSON document with the fields of an output, and the number of its schema.

    An object with a `fix` also gets `argv`, which `argv_of_fix` makes of the fix. If the command refuses,
    `error` has the reasons.
    """
    error = {"error": _error(*refused, argv_of_fix)} if refused else {}
    return json.dumps({"schema": SCHEMA, **_plain(output, argv_of_fix), **error}, indent=2) + "\n"


def _error(status: int, reasons: Iterable[Problem | Finding], argv_of_fix: ArgvOfFix) -> dict[str, object]:
    """Return the exit status and the reasons of a refusal, each with the words of its fix."""
    problems = []
    for reason in reasons:
        what, at, fix = reason.problem if isinstance(reason, Finding) else reason
        problem = _plain({"what": what, "at": at, "fix": fix}, argv_of_fix)
        if isinstance(reason, Finding) and (argv := _lint_fix(reason)):
            problem["argv"] = argv
        problems.append(problem)
    return {"status": status, "problems": problems}


def fields_of(record: type[Any]) -> list[str]:
    """Return the names of a record's fields that are printed."""
    names = [field.name for field in fields(record)] if is_dataclass(record) else record._fields
    return [name for name in names if name not in _NOT_PRINTED.get(record.__name__, ())]


def _plain(value: Any, argv_of_fix: ArgvOfFix) -> Any:
    """Return a value in the types of JSON: records as objects, tuples as lists, paths as texts."""
    if isinstance(value, Finding):
        return _plain(value.as_object(), argv_of_fix) | (
            {"argv": _lint_fix(value)} if _lint_fix(value) else {}
        )
    if isinstance(value, Problem):
        return value.what
    if is_dataclass(value) or hasattr(value, "_fields"):
        return _plain({name: getattr(value, name) for name in fields_of(type(value))}, argv_of_fix)
    if isinstance(value, Mapping):
        fields_ = {name: _plain(part, argv_of_fix) for name, part in value.items()}
        return fields_ | ({"argv": argv_of_fix(fields_)} if "fix" in fields_ else {})
    if isinstance(value, (list, tuple)):
        return [_plain(part, argv_of_fix) for part in value]
    return str(value) if isinstance(value, Path) else value


def _lint_fix(finding: Finding) -> list[str]:
    """Return the command that fixes a finding in its script; nothing if the finding has no safe edit."""
    file = finding.place.text.rsplit(":", 2)[0]
    return ["sbatchgen", "lint", "--fix", file] if finding.edits and file else []
