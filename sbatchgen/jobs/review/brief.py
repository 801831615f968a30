"""A short review, shown above the question whether to submit: the request, and the findings that fit.

It fits the terminal, so that the question stays in sight.
"""

from collections.abc import Iterator, Sequence

from sbatchgen.base.finding import Finding
from sbatchgen.base.quoting import counted, cut, fix_lines
from sbatchgen.jobs.review import screen
from sbatchgen.jobs.review.review import Review, lines_of

_SEVERITIES = ("error", "warning", "info")
_DETAIL_ROWS = ("code", "data", "digest")  # rows that only the whole review shows (the key v)
_MARGIN = (
    3  # lines of the terminal for the typed command, the empty last line of the review, and the question
)


def brief(reviews: Sequence[Review], *, width: int, height: int) -> str:
    """Return reviews as text for a terminal of `width` columns and `height` lines.

    The text leaves lines for the question. Only findings that do not fit are left out.
    """
    rows = [(f"job {number}", screen.in_short(review)) for number, review in enumerate(reviews, 1)]
    if len(reviews) == 1:
        rows = [row for row in screen.table_rows(reviews[0]) if row[0] not in _DETAIL_ROWS]
    above = [line for name, text in rows for line in cut(f"{name:<10}  {text}", width, indent=12)]
    findings = [finding for review in reviews for finding in review.findings]
    can_submit = not any(finding.severity == "error" for finding in findings)
    below = ["", *cut(_hint_at_more(reviews), width, indent=2)] if can_submit else []
    max_lines = height - _MARGIN - len(above) - len(below)
    findings.sort(key=lambda finding: _SEVERITIES.index(finding.severity))
    return "\n".join([*above, *_lines_that_fit(findings, width=width, max_lines=max_lines), *below, ""])


def question(reviews: Sequence[Review], what: str) -> str:
    """Return the question before a submission: `what` to submit, and the number of warnings."""
    severities = [finding.severity for review in reviews for finding in review.findings]
    warnings = severities.count("warning")
    return f"Submit {what}, {counted(warnings, 'warning') if warnings else 'no warnings'}?"


def _lines_that_fit(findings: Sequence[Finding], *, width: int, max_lines: int) -> list[str]:
    """Return the lines of as many findings as fit into `max_lines` lines, and the number of the others."""
    lines: list[str] = ["", "Findings"] if findings else []
    for number, finding in enumerate(findings):
        later_count = len(findings) - number - 1
        new_lines = [*_finding_lines(finding, width)]
        if len(lines) + len(new_lines) + bool(later_count) > max_lines:
            lines.append(f"  and {counted(later_count + 1, 'other finding' if number else 'finding')}")
            break
        lines += new_lines
    return lines


def _finding_lines(finding: Finding, width: int) -> Iterator[str]:
    """Yield the lines of a finding: its problem, the place of an error, and its fix."""
    title, problem = f"{finding.severity} {finding.rule}".rstrip(), finding.problem
    yield from cut(f"  {title}: {problem.what}", width, indent=4)
    if problem.at and finding.severity == "error":
        yield from cut(f"    at:  {problem.at}", width, indent=9)
    for number, line in enumerate(fix_lines(problem.fix, indent=4)):
        yield from cut(line, width, indent=8 if number else 6)


def _hint_at_more(reviews: Sequence[Review]) -> str:
    """Return a line about the whole review: how to show it, and what else it has."""
    line_count = sum(len(lines_of(screen.shown_script(review))) for review in reviews)
    surprise_count = sum(len(review.surprises) for review in reviews)
    parts = [f"{counted(line_count, 'line')} of script"] if line_count else []
    parts += [f"{counted(surprise_count, 'value')} not typed by you"] if surprise_count else []
    changed = (review.last.job for review in reviews if review.last and review.last.diff)
    return f"v shows more: {', '.join([*parts, *(f'what has changed since job {job}' for job in changed)])}"
