"""Findings as text for people, and as JSON, SARIF and annotations of GitHub for programs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from sbatchgen import __version__
from sbatchgen.finding import Finding
from sbatchgen.quoting import visible

SARIF_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
SARIF_LEVELS = {"error": "error", "warning": "warning", "info": "note"}
GITHUB_COMMANDS = {"error": "error", "warning": "warning", "info": "notice"}
_WIDTH = 100  # of a script's line as it is quoted

Style = Callable[[str, str], str]
Located = tuple[str, Finding]  # the file and what was found in it


def as_text(found: Iterable[Located], lines: Mapping[str, list[str]], style: Style) -> str:
    """What, where with the line itself, and the fix; `style` colours a text by a severity."""
    return "".join(_paragraph(file, finding, lines.get(file, []), style) for file, finding in found)


def _paragraph(file: str, finding: Finding, lines: list[str], style: Style) -> str:
    place, severity = finding.place, finding.severity
    at = f"{visible(file)}:{place.line}:{place.column}"
    text = f"{at}: {style(severity, severity)} {finding.rule}: {visible(finding.problem.what)}\n"
    if 0 < place.line <= len(lines) and lines[place.line - 1].strip():
        text += _quote(lines[place.line - 1], place.column, place.end, place.line)
    return text + (f"    fix: {visible(finding.problem.fix)}\n" if finding.problem.fix else "")


def _quote(line: str, column: int, end: int, number: int) -> str:
    """The line with a mark below; of a long one, the part around the mark."""
    first = max(0, column - 1 - _WIDTH // 2) if len(line) > _WIDTH else 0
    shown = visible(line[first : first + _WIDTH])
    before = len(visible(line[first : max(first, column - 1)]))
    last = end - 1 if end else len(line.rstrip())
    width = max(1, min(len(visible(line[column - 1 : last])), _WIDTH - before))
    gutter = " " * len(str(number))
    return f"    {number} | {shown}\n    {gutter} | {' ' * before}{'^' * width}\n"


def as_json(found: Iterable[Located]) -> str:
    """A list of objects: file, line, column, end_column, rule, severity, message, fix."""
    return json.dumps([_object(file, finding) for file, finding in found], indent=2) + "\n"


def _object(file: str, finding: Finding) -> dict[str, Any]:
    return {
        "file": file,
        "line": finding.place.line,
        "column": finding.place.column,
        "end_column": finding.place.end,
        "rule": finding.rule,
        "severity": finding.severity,
        "message": finding.problem.what,
        "fix": finding.problem.fix,
    }


def as_github(found: Iterable[Located]) -> str:
    """Workflow commands: GitHub shows them beside the lines of a change."""
    text = ""
    for file, finding in found:
        place = finding.place
        facts = {"file": file, "line": place.line, "col": place.column, "title": finding.rule}
        if place.end:
            facts["endColumn"] = place.end
        said = (
            f"{finding.problem.what}; fix: {finding.problem.fix}"
            if finding.problem.fix
            else finding.problem.what
        )
        properties = ",".join(f"{name}={_escaped(str(value), ',:')}" for name, value in facts.items())
        text += f"::{GITHUB_COMMANDS[finding.severity]} {properties}::{_escaped(said)}\n"
    return text


def _escaped(text: str, more: str = "") -> str:
    """The text with what GitHub would read as its own marks."""
    return "".join(f"%{ord(char):02X}" if char in "%\r\n" + more else char for char in text)


def as_sarif(found: Iterable[Located], titles: Mapping[str, str]) -> str:
    """SARIF 2.1.0, for code scanning; `titles` are those of all rules."""
    rules = [{"id": rule, "shortDescription": {"text": title}} for rule, title in sorted(titles.items())]
    driver = {"name": "sbatchgen", "version": __version__, "rules": rules}
    run = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "results": [_result(file, finding) for file, finding in found],
    }
    return json.dumps({"$schema": SARIF_SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2) + "\n"


def _result(file: str, finding: Finding) -> dict[str, Any]:
    place = finding.place
    region = {"startLine": max(1, place.line), "startColumn": max(1, place.column)}
    if place.end > place.column:
        region["endColumn"] = place.end
    said = (
        f"{finding.problem.what}. Fix: {finding.problem.fix}" if finding.problem.fix else finding.problem.what
    )
    location = {"artifactLocation": {"uri": _uri(file)}, "region": region}
    return {
        "ruleId": finding.rule,
        "level": SARIF_LEVELS[finding.severity],
        "message": {"text": said},
        "locations": [{"physicalLocation": location}],
    }


def _uri(file: str) -> str:
    from urllib.parse import quote

    return quote(file.encode("utf-8", "surrogateescape"))
