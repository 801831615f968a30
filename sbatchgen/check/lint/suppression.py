"""Comments in scripts that turn rules off, and the findings about such comments.

#SBATCH --time=24   # sbatchgen: disable=SB127      this line
# sbatchgen: disable=SB309,SB311                    the next line, with its continuations
# sbatchgen: disable-file=SB4                       the whole script; SB4 means all of SB4xx
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from sbatchgen.base.finding import Finding, Place
from sbatchgen.check.rules.comments import KINDS, RULES, AppliedComments, Suppression, starts_id

_COMMENT = re.compile(
    r"(?:^|(?<=\s))#[ \t]*sbatchgen:[ \t]*(?P<kind>[A-Za-z-]+)=(?P<rules>\w+(?:[ \t]*,[ \t]*\w+)*)?"
)
_NAME = re.compile(r"\w+")  # the name of a rule in a comment
_LINTER_COMMENT = re.compile(r"[ \t]*#[ \t]*(?:sbatchgen|shellcheck)\b")
_WHOLE_SCRIPT = (0, 0)  # the first and last line of the range of a comment for the whole script


def find_suppressions(file: str, lines: Sequence[str]) -> Iterator[Suppression]:
    """Yield the suppressions in a script's lines."""
    next_command = _WHOLE_SCRIPT  # the lines of the command after the comment
    for number, line in enumerate(lines, start=1):
        match = _COMMENT.search(line) if "sbatchgen:" in line else None
        if not match:
            continue
        covered = (number, number)
        if match["kind"] == "disable-file":
            covered = _WHOLE_SCRIPT
        elif not line[: match.start()].strip():
            if next_command[0] <= number:  # else several comments are before the same command
                next_command = _next_command(lines, number)
            covered = next_command
        names = list(_NAME.finditer(line, *match.span("rules"))) if match["rules"] else []
        for start, end, name in [(*name.span(), name[0]) for name in names] or [(*match.span(), "")]:
            at = Place(f"{file}:{number}:{start + 1}", number, start + 1, end + 1)
            yield Suppression(rule=name.upper(), kind=match["kind"], lines=covered, at=at)


def _next_command(lines: Sequence[str], number: int) -> tuple[int, int]:
    """Return the first and the last line of the next command, past the comments of linters."""
    first = number + 1
    while first <= len(lines) and _LINTER_COMMENT.match(lines[first - 1]):
        first += 1
    last = first
    while last < len(lines) and lines[last - 1].endswith("\\") and not _LINTER_COMMENT.match(lines[last]):
        last += 1
    return first, last


def drop_suppressed(
    findings: Iterable[Finding], comments: Sequence[Suppression]
) -> tuple[list[Finding], set[tuple[tuple[int, int], str]]]:
    """Return the findings that no comment turns off, and the lines and rules of the comments that do."""
    starts: dict[tuple[int, int], set[str]] = {}  # lines -> the starts of ids that are off there
    for comment in comments:
        if comment.kind in KINDS:
            starts.setdefault(comment.lines, set()).add(comment.rule)
    ranges = (covered for covered in starts if covered[0] < covered[1])  # ranges do not overlap
    around = {line: covered for covered in ranges for line in range(covered[0], covered[1] + 1)}
    used: set[tuple[tuple[int, int], str]] = set()
    kept_findings = []
    for finding in findings:
        line, rule = finding.place.line, finding.rule
        matching = {rule[:end] for end in range(1, len(rule) + 1)}
        places = {_WHOLE_SCRIPT, (line, line), around.get(line, _WHOLE_SCRIPT)}
        covering = {(covered, start) for covered in places for start in matching & starts.get(covered, set())}
        used |= covering
        kept_findings += [finding] * (not covering)
    return kept_findings, used


def apply_suppressions(
    findings: Sequence[Finding],
    file: str,
    lines: Sequence[str],
    *,
    rules: Sequence[str],
    certain: Sequence[str],
) -> list[Finding]:
    """Return the findings that no comment turns off, and the findings about the comments.

    `certain` are the ids of rules whose comments are useless if they turn nothing off.
    """
    comments = list(find_suppressions(file, lines))
    remaining, used = drop_suppressed(findings, comments)
    unused = (comment for comment in comments if (comment.lines, comment.rule) not in used)
    idle = [comment for comment in unused if starts_id(comment.rule, certain)]
    applied = AppliedComments(comments=comments, idle=idle, rules=rules)
    about_comments = (rule.finding(hit) for rule in RULES for hit in rule.check(applied))
    return [*remaining, *drop_suppressed(about_comments, comments)[0]]
