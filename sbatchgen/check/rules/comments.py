"""Rules about comments that turn rules off, such as # sbatchgen: disable=SB127, and the removed rules."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from sbatchgen.base.errors import did_you_mean
from sbatchgen.base.finding import Place
from sbatchgen.base.frozen import frozen
from sbatchgen.check.rules.rule import Hit, Rules

KINDS = ("disable", "disable-file")  # the words before = in a comment
SHELLCHECK = re.compile(r"SC\d{1,4}")  # the id of a rule of shellcheck, such as SC2086
# Rules that were removed: people may still name them in comments, settings and profiles.
_RETIRED_IDS = """
SB010 SB027 SB031 SB103 SB109 SB116 SB118 SB120 SB121 SB123 SB124 SB128 SB134 SB139 SB141 SB211 SB217
SB219 SB221 SB228 SB235 SB236 SB320 SB323 SB325 SB330 SB409 SB413 SB415 SB416 SB418 SB420 SB501 SB503
SB509 SB510 SB512 SB514 SB516 SB517 SB607 SB613 SB703 SB706 SB707 SB708 SB801 SB808 SB809 SB811 SB816
SB902 SB910
"""
RETIRED = frozenset(_RETIRED_IDS.split())


@frozen(kw_only=True)
class Suppression:
    """A rule that a comment turns off."""

    rule: str  # the rule's id, or its start; empty if the comment names no rule
    kind: str  # the word before the equals sign: one of KINDS, or an unknown word
    lines: tuple[int, int]  # the first and the last line where the rule is off
    at: Place  # the place of the rule's name


@frozen(kw_only=True)
class AppliedComments:
    """The comments of a script that turn rules off, as SB001 and SB002 judge them."""

    comments: Sequence[Suppression]  # a suppression for each rule in a comment
    idle: Sequence[Suppression]  # the suppressions that certainly turn nothing off
    rules: Sequence[str]  # the ids of all rules


RULES: Rules[AppliedComments] = Rules(source="docs/how-to/lint-scripts.md")


@RULES.add("SB001", "info", "a comment for sbatchgen that names no rule")
def _unknown_rules(applied: AppliedComments) -> Iterator[Hit]:
    for comment in applied.comments:
        kind, rule = comment.kind, comment.rule
        if kind not in KINDS:
            what = f"'sbatchgen: {kind}=' is unknown: no rule is turned off"
            yield Hit(comment.at, what, "write # sbatchgen: disable=SB127, or disable-file=SB127")
        elif not rule:
            yield Hit(comment.at, f"{kind}= names no rule", f"write # sbatchgen: {kind}=SB127")
        elif rule in RETIRED:
            yield Hit(comment.at, removal(rule), "remove it from the comment")
        elif not is_known(rule, applied.rules):
            yield Hit(comment.at, f"there is no rule {rule}", did_you_mean(rule, applied.rules))


@RULES.add("SB002", "info", "a comment that turns off nothing")
def _idle_comments(applied: AppliedComments) -> Iterator[Hit]:
    for comment in applied.idle:
        what = f"{comment.rule} finds nothing where this comment turns it off"
        yield Hit(comment.at, what, "remove the comment")


def is_known(start: str, rules: Iterable[str]) -> bool:
    """Return whether an id of these rules, of the removed rules or of shellcheck begins with `start`."""
    is_shellcheck = start == "SC" or SHELLCHECK.fullmatch(start) is not None
    return is_shellcheck or starts_id(start, (*rules, *RETIRED))


def starts_id(start: str, rules: Iterable[str]) -> bool:
    """Return whether an id of these rules begins with `start`."""
    return bool(start) and any(rule.startswith(start) for rule in rules)


def removal(rule: str) -> str:
    """Return the message for a rule that was removed."""
    return f"rule {rule} was removed"
