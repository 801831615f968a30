"""Findings that a script's author has seen and wants: comments that turn rules off, and rules about them.

#SBATCH --time=24   # sbatchgen: disable=SB127      this line
# sbatchgen: disable=SB309,SB311                    what stands after it, with the lines that it goes on in
# sbatchgen: disable-file=SB4                       the whole script; SB4 stands for all of SB4xx
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from sbatchgen.errors import did_you_mean
from sbatchgen.finding import Finding, Place
from sbatchgen.rules.retired import RETIRED, removal
from sbatchgen.rules.rule import Hit, Rule, Rules

_COMMENT = re.compile(
    r"(?:^|(?<=\s))#[ \t]*sbatchgen:[ \t]*(?P<kind>[A-Za-z-]+)=(?P<rules>\w+(?:[ \t]*,[ \t]*\w+)*)?"
)
_NAME = re.compile(r"\w+")
_OTHERS = re.compile(r"[ \t]*#[ \t]*(?:sbatchgen|shellcheck)\b")
KINDS = ("disable", "disable-file")
SHELLCHECK = re.compile(r"SC\d{1,4}")


@dataclass(frozen=True, kw_only=True)
class Suppression:
    """A rule that a comment turns off.

    Attributes:
        rule: The rule's id, or the start of it; empty where the comment is none that is known.
        kind: The word before the equals sign.
        first: The first line that it counts for; 0 is the whole script.
        last: The last line.
        at: Where the rule is named.
    """

    rule: str
    kind: str
    first: int
    last: int
    at: Place


@dataclass(frozen=True, kw_only=True)
class Applied:
    """The comments of a script and what they met.

    Attributes:
        comments: Each rule that one names.
        idle: Those that turned nothing off, where that is certain.
        rules: The ids of all rules.
    """

    comments: tuple[Suppression, ...]
    idle: tuple[Suppression, ...]
    rules: tuple[str, ...]


RULES: Rules[Applied] = Rules()


@RULES.add("SB001", "info", "a comment for sbatchgen that names no rule")
def _unknown(applied: Applied) -> Iterator[Hit]:
    for one in applied.comments:
        if one.kind not in KINDS:
            what = f"'sbatchgen: {one.kind}=' is unknown: no rule is turned off"
            yield Hit(one.at, what, "write # sbatchgen: disable=SB127, or disable-file=SB127")
        elif not one.rule:
            yield Hit(one.at, f"{one.kind}= names no rule", f"write # sbatchgen: {one.kind}=SB127")
        elif one.rule in RETIRED:
            yield Hit(one.at, removal(one.rule), "remove it from the comment")
        elif not is_known(one.rule, applied.rules):
            yield Hit(one.at, f"there is no rule {one.rule}", did_you_mean(one.rule, applied.rules))


@RULES.add("SB002", "info", "a comment that turns off nothing")
def _idle(applied: Applied) -> Iterator[Hit]:
    for one in applied.idle:
        yield Hit(one.at, f"{one.rule} finds nothing where this comment turns it off", "remove the comment")


def _found(rule: Rule[Applied], applied: Applied) -> Iterator[Finding]:
    return (rule.finding(hit) for hit in rule.check(applied))


def is_known(start: str, rules: Iterable[str]) -> bool:
    """Whether a rule's id starts so: of these rules, the removed ones or shellcheck's."""
    known = start == "SC" or start in RETIRED or SHELLCHECK.fullmatch(start) is not None
    return known or _is_of(start, rules)


def _is_of(start: str, rules: Iterable[str]) -> bool:
    return bool(start) and any(rule.startswith(start) for rule in rules)


def suppressions(file: str, lines: Sequence[str]) -> Iterator[Suppression]:
    """Those of a script's lines."""
    following = (0, 0)
    for number, line in enumerate(lines, start=1):
        match = _COMMENT.search(line) if "sbatchgen:" in line else None
        if not match:
            continue
        first, last = number, number
        if match["kind"] == "disable-file":
            first, last = 0, 0
        elif not line[: match.start()].strip():
            if following[0] <= number:  # else it is one of several before the same line
                following = _following(lines, number)
            first, last = following
        names = list(_NAME.finditer(line, match.start("rules"), match.end("rules"))) if match["rules"] else []
        for start, end, name in [(one.start(), one.end(), one[0]) for one in names] or [(*match.span(), "")]:
            at = Place(f"{file}:{number}:{start + 1}", number, start + 1, end + 1)
            yield Suppression(rule=name.upper(), kind=match["kind"], first=first, last=last, at=at)


def _following(lines: Sequence[str], number: int) -> tuple[int, int]:
    """The next line that is not a linter's comment, and the last of its continuations."""
    first = number + 1
    while first <= len(lines) and _OTHERS.match(lines[first - 1]):
        first += 1
    last = first
    while last < len(lines) and lines[last - 1].endswith("\\") and not _OTHERS.match(lines[last]):
        last += 1
    return first, last


def _what(one: Suppression) -> tuple[int, int, str]:
    """What a comment turns off: the first line, the last, and the rule."""
    return one.first, one.last, one.rule


def settled(
    findings: Sequence[Finding],
    file: str,
    lines: Sequence[str],
    *,
    rules: Sequence[str],
    certain: bool,
    kept: Callable[[str, Callable[[], Iterable[Finding]]], Iterable[Finding]],
) -> list[Finding]:
    """The findings that no comment turns off, and what is wrong with the comments.

    Args:
        findings: All findings of a script.
        file: Its name.
        lines: Its lines.
        rules: The ids of all rules.
        certain: Whether a comment that turns nothing off has no use: not where the cluster is unknown, for a
            rule that compares with it is silent then.
        kept: Gives what a rule finds, by its id and a function, also where it raises.
    """
    comments = tuple(suppressions(file, lines))
    if not comments:
        return list(findings)
    known = {_what(one) for one in comments if one.kind in KINDS and one.rule}
    spans = sorted({(first, last) for first, last, _ in known if first < last})  # none meets another
    used: set[tuple[int, int, str]] = set()

    def is_kept(finding: Finding) -> bool:
        line, rule = finding.place.line, finding.rule
        around = spans[max(0, bisect_right(spans, (line + 1,)) - 1) :][:1]
        places = [(0, 0), (line, line), *(span for span in around if span[0] <= line <= span[1])]
        starts = [rule[:end] for end in range(1, len(rule) + 1)]
        covering = {(*place, start) for place in places for start in starts} & known
        used.update(covering)
        return not covering

    left = [finding for finding in findings if is_kept(finding)]
    idle = [one for one in comments if certain and _what(one) not in used and _is_of(one.rule, rules)]
    applied = Applied(comments=comments, idle=tuple(idle), rules=tuple(rules))
    about = [one for rule in RULES for one in kept(rule.id, partial(_found, rule, applied))]
    return [*left, *filter(is_kept, about)]
