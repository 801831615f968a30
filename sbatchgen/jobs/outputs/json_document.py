"""Makes the JSON document of a command's output, for --format json."""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from sbatchgen.base.errors import Problem
from sbatchgen.base.finding import Finding

SCHEMA = 1  # the version of all outputs; it increases with an incompatible change of any output
# Internal fields of records, which are not printed, by the names of the records' classes
_NOT_PRINTED = {"RunJob": ("key", "run"), "Step": ("waits", "sharing", "takes")}

# Returns the words of the command in the fix of an object, which is a mapping with the key "fix".
ArgvOfFix = Callable[[Mapping[str, str]], list[str]]
Refusal = tuple[int, Iterable[Problem | Finding]]  # the exit status of a command, and the reasons for it


def document(output: object, argv_of_fix: ArgvOfFix = lambda _: [], refusal: Refusal | None = None) -> str:
    """Return a JSON document with the fields of an output, and the number of its schema.

    An object with a `fix` also gets the field `argv`, which `argv_of_fix` makes from the fix. If the command
    refuses its task, the field `error` has the reasons.
    """
    error = {"error": _error_object(*refusal, argv_of_fix)} if refusal else {}
    return json.dumps({"schema": SCHEMA, **_as_json_value(output, argv_of_fix), **error}, indent=2) + "\n"


def _error_object(
    status: int, reasons: Iterable[Problem | Finding], argv_of_fix: ArgvOfFix
) -> dict[str, object]:
    """Return the object `error`: an exit status, and the reasons for it, each with the words of its fix."""
    problems = []
    for reason in reasons:
        what, at, fix = reason.problem if isinstance(reason, Finding) else reason
        problem = _as_json_value({"what": what, "at": at, "fix": fix}, argv_of_fix)
        if isinstance(reason, Finding) and (argv := _argv_of_lint_fix(reason)):
            problem["argv"] = argv
        problems.append(problem)
    return {"status": status, "problems": problems}


def fields_of(record: type[Any]) -> list[str]:
    """Return the names of the fields of a record, without internal fields."""
    names = [field.name for field in fields(record)] if is_dataclass(record) else record._fields
    return [name for name in names if name not in _NOT_PRINTED.get(record.__name__, ())]


def _as_json_value(value: Any, argv_of_fix: ArgvOfFix) -> Any:
    """Return a value in the types of JSON: records as objects, tuples as lists, paths as texts."""
    if isinstance(value, Finding):
        return _as_json_value(value.as_object(), argv_of_fix) | (
            {"argv": _argv_of_lint_fix(value)} if _argv_of_lint_fix(value) else {}
        )
    if isinstance(value, Problem):
        return value.what
    if is_dataclass(value) or hasattr(value, "_fields"):
        return _as_json_value({name: getattr(value, name) for name in fields_of(type(value))}, argv_of_fix)
    if isinstance(value, Mapping):
        fields_ = {name: _as_json_value(part, argv_of_fix) for name, part in value.items()}
        return fields_ | ({"argv": argv_of_fix(fields_)} if "fix" in fields_ else {})
    if isinstance(value, (list, tuple)):
        return [_as_json_value(part, argv_of_fix) for part in value]
    return str(value) if isinstance(value, Path) else value


def _argv_of_lint_fix(finding: Finding) -> list[str]:
    """Return the words of `sbatchgen lint --fix` for a finding in a script; none if it has no safe edit."""
    file = finding.place.text.rsplit(":", 2)[0]
    return ["sbatchgen", "lint", "--fix", file] if finding.edits and file else []
