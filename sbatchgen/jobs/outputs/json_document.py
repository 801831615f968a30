"""An output as a JSON document."""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from sbatchgen.base.errors import Problem
from sbatchgen.base.finding import Finding

SCHEMA = 1  # an incompatible change of any output raises it
_NOT_PRINTED = {"RunJob": ("key", "run"), "Step": ("waits", "sharing", "takes")}  # of what others print


Run = Callable[[Mapping[str, str]], list[str]]  # what has a fix, as words that can be run
Refused = tuple[int, Iterable[Problem | Finding]]  # an exit status, and why the command ends with it


def document(output: object, run: Run = lambda _: [], refused: Refused | None = None) -> str:
    """Return a document: the number of its form, and the fields of an output; beside each fix what to run.

    If the command refuses, its `error` says why.
    """
    why = {"error": _error(*refused, run)} if refused else {}
    return json.dumps({"schema": SCHEMA, **_plain(output, run), **why}, indent=2) + "\n"


def _error(status: int, reasons: Iterable[Problem | Finding], run: Run) -> dict[str, object]:
    """Return why a command refuses, and its exit status; beside each fix what to run."""
    problems = []
    for each in reasons:
        what, at, fix = each.problem if isinstance(each, Finding) else each
        its = _plain({"what": what, "at": at, "fix": fix}, run)
        problems.append(its | ({"argv": _mends(each)} if isinstance(each, Finding) and _mends(each) else {}))
    return {"status": status, "problems": problems}


def fields_of(record: type[Any]) -> list[str]:
    """Return the names of a record's fields that are printed."""
    names = [field.name for field in fields(record)] if is_dataclass(record) else record._fields
    return [name for name in names if name not in _NOT_PRINTED.get(record.__name__, ())]


def _plain(value: Any, run: Run) -> Any:
    if isinstance(value, Finding):
        return _plain(value.as_object(), run) | ({"argv": _mends(value)} if _mends(value) else {})
    if isinstance(value, Problem):
        return value.what
    if is_dataclass(value) or hasattr(value, "_fields"):
        return _plain({name: getattr(value, name) for name in fields_of(type(value))}, run)
    if isinstance(value, Mapping):
        made = {name: _plain(part, run) for name, part in value.items()}
        return made | ({"argv": run(made)} if "fix" in made else {})
    if isinstance(value, (list, tuple)):
        return [_plain(part, run) for part in value]
    return str(value) if isinstance(value, Path) else value


def _mends(finding: Finding) -> list[str]:
    """Return the command that mends a script; nothing where no edit is known to be safe."""
    file = finding.place.text.rsplit(":", 2)[0]
    return ["sbatchgen", "lint", "--fix", file] if finding.edits and file else []
