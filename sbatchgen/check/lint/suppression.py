"""Applies comments in scripts that turn rules off, and gives the findings about such comments.

#SBATCH --time=24   # sbatchgen: disable=SB127      this line
# sbatchgen: disable=SB309,SB311                    the next line, with its continuations
# sbatchgen: disable-file=SB4                       the whole script; SB4 means all of SB4xx
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from sbatchgen.base.finding import Finding, Place
from sbatchgen.check.rules.comments import KINDS, RULES, AppliedComments, Suppression, starts_id

_COMMENT = re.compile(
    r"(?:^|(?<=\s))#[ \t]*sbatchgen:[ \t]*(?P<kind>[A-Za-z-]+)=(?P<rules>\w+(?:[ \t]*,[ \t]*\w+)*)?"
)
_NAME = re.compile(r"\w+")  # the name of a rule in a comment
_LINTER_COMMENT = re.compile(
    r"[ \t]*#[ \t]*(?:sbatchgen|shellcheck)\b"
)  # such as # shellcheck disable=SC2086
_WHOLE_SCRIPT = (0, 0)  # stands for the first and the last line of the script


class RuleOff(NamedTuple):
    """A rule that is off in a range of lines."""

    lines: tuple[int, int]  # the first and the last line
    rule: str  # the id of the rule, or the start of the ids of several rules


def find_suppressions(file: str, lines: Sequence[str]) -> Iterator[Suppression]:
    """Yield a suppression for each rule that a comment in the script names."""
    next_command = _WHOLE_SCRIPT  # the lines of the command after the comment
    for number, line in enumerate(lines, start=1):
        match = _COMMENT.search(line) if "sbatchgen:" in line else None
        if not match:
            continue
        lines_off = (number, number)
        if match["kind"] == "disable-file":
            lines_off = _WHOLE_SCRIPT
        elif not line[: match.start()].strip():
            if next_command[0] <= number:  # otherwise several comments are before the same command
                next_command = _next_command(lines, number)
            lines_off = next_command
        names = list(_NAME.finditer(line, *match.span("rules"))) if match["rules"] else []
        # A comment that names no rule counts as a suppression of the rule "".
        for start, end, name in [(*name.span(), name[0]) for name in names] or [(*match.span(), "")]:
            at = Place(f"{file}:{number}:{start + 1}", number, start + 1, end + 1)
            yield Suppression(rule=name.upper(), kind=match["kind"], lines=lines_off, at=at)


def _next_command(lines: Sequence[str], number: int) -> tuple[int, int]:
    """Return the first and the last line of the command after a line, past other comments of linters."""
    first = number + 1
    while first <= len(lines) and _LINTER_COMMENT.match(lines[first - 1]):
        first += 1
    last = first
    while last < len(lines) and lines[last - 1].endswith("\\") and not _LINTER_COMMENT.match(lines[last]):
        last += 1
    return first, last


def drop_suppressed(
    findings: Iterable[Finding], comments: Sequence[Suppression]
) -> tuple[list[Finding], set[RuleOff]]:
    """Return the findings that no comment turns off, and the comments' rules that turned a finding off."""
    rules_off: dict[tuple[int, int], set[str]] = {}  # the first and last line -> the rules that are off there
    for comment in comments:
        if comment.kind in KINDS:
            rules_off.setdefault(comment.lines, set()).add(comment.rule)
    # Commands of several lines. They do not overlap, so each line is in one of them at most.
    long_commands = (lines for lines in rules_off if lines[0] < lines[1])
    long_command_of = {line: lines for lines in long_commands for line in range(lines[0], lines[1] + 1)}
    used: set[RuleOff] = set()
    kept_findings = []
    for finding in findings:
        line, rule = finding.place.line, finding.rule
        id_starts = {rule[:end] for end in range(1, len(rule) + 1)}  # S, SB, SB1, SB12, SB127
        covering_lines = {_WHOLE_SCRIPT, (line, line), long_command_of.get(line, _WHOLE_SCRIPT)}
        suppressing = {
            RuleOff(lines, start)
            for lines in covering_lines
            for start in id_starts & rules_off.get(lines, set())
        }
        used |= suppressing
        kept_findings += [finding] * (not suppressing)
    return kept_findings, used


def apply_suppressions(
    findings: Sequence[Finding],
    file: str,
    lines: Sequence[str],
    *,
    rules: Sequence[str],
    decisive_rules: Sequence[str],
) -> list[Finding]:
    """Return the findings that no comment turns off, and the findings about the comments.

    `rules` are the ids of all rules. `decisive_rules` are those that would surely find their mistake.
    A comment that turns off such a rule is useless if the rule finds nothing.
    """
    comments = list(find_suppressions(file, lines))
    kept_findings, used = drop_suppressed(findings, comments)
    unused = (comment for comment in comments if RuleOff(comment.lines, comment.rule) not in used)
    idle = [comment for comment in unused if starts_id(comment.rule, decisive_rules)]
    applied = AppliedComments(comments=comments, idle=idle, rules=rules)
    comment_findings = (rule.finding(hit) for rule in RULES for hit in rule.check(applied))
    return [*kept_findings, *drop_suppressed(comment_findings, comments)[0]]
