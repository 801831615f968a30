"""A short review that fits a terminal, for the question whether to submit: the request and the findings."""

from collections.abc import Iterator, Sequence

from sbatchgen.base.finding import Finding
from sbatchgen.base.quoting import counted, cut, fix_lines
from sbatchgen.jobs.review import screen
from sbatchgen.jobs.review.review import Review, lines_of

_SEVERITIES = ("error", "warning", "info")
_DETAIL_ROWS = ("code", "data", "digest")  # rows that only the whole review shows (the key v)
_MARGIN = 3  # lines of the terminal for the typed command, the last line here, and the question


def brief(reviews: Sequence[Review], *, width: int, height: int) -> str:
    """Return reviews in `width` columns and fewer lines than `height`, so that the question has room."""
    rows = [(f"job {number}", screen.in_short(review)) for number, review in enumerate(reviews, 1)]
    if len(reviews) == 1:
        rows = [row for row in screen.table_rows(reviews[0]) if row[0] not in _DETAIL_ROWS]
    above = [line for name, text in rows for line in cut(f"{name:<10}  {text}", width, indent=12)]
    findings = [finding for review in reviews for finding in review.findings]
    asks = not any(finding.severity == "error" for finding in findings)
    below = ["", *cut(_hint_at_more(reviews), width, indent=2)] if asks else []
    room = height - _MARGIN - len(above) - len(below)
    findings.sort(key=lambda finding: _SEVERITIES.index(finding.severity))
    return "\n".join([*above, *_lines_that_fit(findings, width=width, room=room), *below, ""])


def question(reviews: Sequence[Review], what: str) -> str:
    """Return the question before a submission: `what` to submit, and the number of warnings."""
    severities = [finding.severity for review in reviews for finding in review.findings]
    warnings = severities.count("warning")
    return f"Submit {what}, {counted(warnings, 'warning') if warnings else 'no warnings'}?"


def _lines_that_fit(findings: Sequence[Finding], *, width: int, room: int) -> list[str]:
    """Return the lines of as many findings as fit into `room` lines, and the number of the others."""
    lines: list[str] = ["", "Findings"] if findings else []
    for number, finding in enumerate(findings):
        left = len(findings) - number - 1
        shown = [*_finding_lines(finding, width)]
        if len(lines) + len(shown) + bool(left) > room:
            lines.append(f"  and {counted(left + 1, 'other finding' if number else 'finding')}")
            break
        lines += shown
    return lines


def _finding_lines(finding: Finding, width: int) -> Iterator[str]:
    """Yield the lines of a finding: its problem, the place of an error, and its fix."""
    says, problem = f"{finding.severity} {finding.rule}".rstrip(), finding.problem
    yield from cut(f"  {says}: {problem.what}", width, indent=4)
    if problem.at and finding.severity == "error":
        yield from cut(f"    at:  {problem.at}", width, indent=9)
    for number, line in enumerate(fix_lines(problem.fix, indent=4)):
        yield from cut(line, width, indent=8 if number else 6)


def _hint_at_more(reviews: Sequence[Review]) -> str:
    """Return a line that says what the whole review shows."""
    lines = sum(len(lines_of(screen.shown_script(review))) for review in reviews)
    untyped = sum(len(review.surprises) for review in reviews)
    parts = [f"{counted(lines, 'line')} of script"] if lines else []
    parts += [f"{counted(untyped, 'value')} not typed by you"] if untyped else []
    changed = (review.last.job for review in reviews if review.last and review.last.diff)
    return f"v shows more: {', '.join([*parts, *(f'what has changed since job {job}' for job in changed)])}"
