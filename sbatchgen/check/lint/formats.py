"""Formats of findings: text for people; JSON, SARIF and GitHub's annotations for programs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypedDict

from sbatchgen import __version__
from sbatchgen.base.errors import Problem
from sbatchgen.base.finding import Edit, Finding, Severity
from sbatchgen.base.frozen import frozen
from sbatchgen.base.quoting import first_names, fix_lines, one_line, visible

SARIF_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
SARIF_LEVELS = {"error": "error", "warning": "warning", "info": "note"}
GITHUB_COMMANDS = {"error": "error", "warning": "warning", "info": "notice"}
_WIDTH = 100  # characters of a script's line that are shown at most

Style = Callable[[str, str], str]  # colours a text by a severity


@frozen()
class LocatedFinding:
    """A finding with the name of its file and the text of its line."""

    file: str
    finding: Finding
    line: str


def as_text(located_findings: Iterable[LocatedFinding], style: Style) -> str:
    """Return findings as text, each with its place, message, line and fix.

    Findings of a file with the same message are shown once, with the numbers of the other lines.
    """
    lines: list[str] = []
    groups: dict[tuple[str, str, Problem], list[LocatedFinding]] = {}
    for item in located_findings:
        key = (item.file, item.finding.rule, item.finding.problem._replace(at=""))
        groups.setdefault(key, []).append(item)
    for item, *repetitions in groups.values():
        finding, place = item.finding, item.finding.place
        severity = style(finding.severity, finding.severity)
        at = f"{one_line(item.file)}:{place.line}:{place.column}"
        lines.append(f"{at}: {severity} {finding.rule}: {one_line(finding.problem.what)}\n")
        lines.append(
            _marked_line(item.line, place.column, place.end, place.line) if item.line.strip() else ""
        )
        lines += [f"{line}\n" for line in fix_lines(finding.problem.fix, indent=4)]
        if numbers := list(dict.fromkeys(str(other.finding.place.line) for other in repetitions)):
            lines.append(f"    also in line{'s' * (len(numbers) > 1)} {first_names(numbers, 8)}\n")
    return "".join(lines)


def _marked_line(line: str, column: int, end: int, number: int) -> str:
    """Return a line with its number, and below it a row of ^ that marks the finding.

    Only the part around the finding is shown of a long line. A tab takes one column.
    """
    first = max(0, column - 1 - _WIDTH // 2) if len(line) > _WIDTH else 0
    last = min(end - 1 if end else len(line), first + _WIDTH)
    shown = _visible(line[first : first + _WIDTH]).rstrip()
    mark_offset = len(_visible(line[first : max(first, column - 1)]))
    mark_width = max(1, len(_visible(line[column - 1 : last]).rstrip()))
    gutter = " " * len(str(number))
    return f"    {number} | {shown}\n    {gutter} | {' ' * mark_offset}{'^' * mark_width}\n"


def _visible(text: str) -> str:
    """Return a text with escapes in place of control characters, and a blank in place of each tab."""
    return visible(text.replace("\t", " "))


class EditOutput(TypedDict):
    """A change of a line."""

    line: int
    column: int
    end_column: int
    text: str


class FindingOutput(TypedDict):
    """A finding as `lint --format json` prints it."""

    file: str
    line: int
    column: int
    end_column: int
    rule: str
    severity: Severity
    message: str
    fix: str
    edits: Sequence[EditOutput]
    argv: Sequence[str]


def as_json(located_findings: Iterable[LocatedFinding]) -> str:
    """Return findings as JSON: a list of FindingOutput."""
    outputs = [_finding_output(item.file, item.finding) for item in located_findings]
    return json.dumps(outputs, indent=2) + "\n"


def _finding_output(file: str, finding: Finding) -> FindingOutput:
    """Return a finding of a file for the JSON."""
    return {
        "file": _utf8(file),
        "line": finding.place.line,
        "column": finding.place.column,
        "end_column": finding.place.end,
        "rule": finding.rule,
        "severity": finding.severity,
        "message": _utf8(finding.problem.what),
        "fix": _utf8(finding.problem.fix),
        "edits": [
            {"line": edit.line, "column": edit.column, "end_column": edit.end, "text": _utf8(edit.text)}
            for edit in finding.edits
        ],
        "argv": ["sbatchgen", "lint", "--fix", file] if finding.edits else [],
    }


def _utf8(text: str) -> str:
    r"""Return the text with escapes such as \xff for bytes outside UTF-8, which JSON can't hold."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def as_github(located_findings: Iterable[LocatedFinding]) -> str:
    """Return findings as workflow commands, which GitHub shows next to the lines of a change."""
    lines: list[str] = []
    for item in located_findings:
        finding, place = item.finding, item.finding.place
        properties = {"file": item.file, "line": place.line, "col": place.column}
        properties |= {"endColumn": place.end} if place.end else {}
        properties |= {"title": finding.rule}
        message = "; fix: ".join(part for part in (finding.problem.what, finding.problem.fix) if part)
        text = ",".join(f"{name}={_escaped(str(value), ',:')}" for name, value in properties.items())
        lines.append(f"::{GITHUB_COMMANDS[finding.severity]} {text}::{_escaped(message)}\n")
    return "".join(lines)


def _escaped(text: str, also: str = "") -> str:
    """Return the text for a workflow command: %XX replaces %, line breaks and the characters in `also`.

    Other control characters are escaped as in texts of Python.
    """
    return "".join(f"%{ord(char):02X}" if char in "%\n" + also else char for char in visible(text))


def as_sarif(
    located_findings: Sequence[LocatedFinding],
    problems: Sequence[Problem],
    titles: Mapping[str, str],
    pages: Mapping[str, str],
) -> str:
    """Return findings as SARIF 2.1.0, for code scanning; `problems` are about files that can't be read."""
    used_ids = sorted({item.finding.rule for item in located_findings})
    texts_by_key = {"shortDescription": titles, "help": pages}
    rules: list[dict[str, Any]] = [{"id": rule_id} for rule_id in used_ids]
    for rule in rules:
        for key, texts in texts_by_key.items():
            if (text := texts.get(rule["id"])) is not None:  # shellcheck's rules have no texts here
                rule[key] = {"text": text, "markdown": text}
    notifications = [{"level": "error", "message": {"text": _utf8(problem.what)}} for problem in problems]
    run = {
        "tool": {"driver": {"name": "sbatchgen", "version": __version__, "rules": rules}},
        "invocations": [{"executionSuccessful": not problems, "toolExecutionNotifications": notifications}],
        "columnKind": "unicodeCodePoints",
        "results": [_result(item, used_ids.index(item.finding.rule)) for item in located_findings],
    }
    return json.dumps({"$schema": SARIF_SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2) + "\n"


def _result(item: LocatedFinding, rule_index: int) -> dict[str, Any]:
    """Return a finding as a result of SARIF; `rule_index` is the index of its rule in the list of rules."""
    from urllib.parse import quote

    finding, place = item.finding, item.finding.place
    region = {"startLine": max(1, place.line), "startColumn": max(1, place.column)}
    if place.end > place.column:
        region["endColumn"] = place.end
    message = ". Fix: ".join(_utf8(part) for part in (finding.problem.what, finding.problem.fix) if part)
    artifact = {"uri": quote(item.file.encode("utf-8", "surrogateescape"))}
    change = {"artifactLocation": artifact, "replacements": [*map(_replacement, finding.edits)]}
    fix = {"description": {"text": _utf8(finding.problem.fix)}, "artifactChanges": [change]}
    return {
        "ruleId": finding.rule,
        "ruleIndex": rule_index,
        "level": SARIF_LEVELS[finding.severity],
        "message": {"text": message},
        "locations": [{"physicalLocation": {"artifactLocation": artifact, "region": region}}],
    } | ({"fixes": [fix]} if finding.edits else {})


def _replacement(edit: Edit) -> dict[str, Any]:
    """Return an edit as SARIF; a region without an end column goes to the end of the line."""
    region = {"startLine": edit.line, "startColumn": edit.column}
    region |= {"endColumn": edit.end} if edit.end else {}
    return {"deletedRegion": region, "insertedContent": {"text": _utf8(edit.text)}}
