"""Findings that a script's author has seen and wants: comments that turn rules off.

#SBATCH --time=24   # sbatchgen: disable=SB127      this line
# sbatchgen: disable=SB309,SB311                    the line after it
# sbatchgen: disable-file=SB4                       the whole script; SB4 stands for all of SB4xx
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from sbatchgen.finding import Finding

_COMMENT = re.compile(r"#[ \t]*sbatchgen:[ \t]*(?P<kind>disable(?:-file)?)=(?P<rules>[\w,]+)")


@dataclass(frozen=True, kw_only=True)
class Suppression:
    """Rules that are off; `line` 0 is the whole script. A rule may be named by the start of its id."""

    rules: tuple[str, ...]
    line: int

    def covers(self, finding: Finding) -> bool:
        """Whether it turns this finding off."""
        return self.line in (0, finding.place.line) and finding.rule.startswith(self.rules)


def suppressions(lines: Iterable[str]) -> Iterator[Suppression]:
    """Those of a script's lines."""
    for number, line in enumerate(lines, start=1):
        match = _COMMENT.search(line) if "sbatchgen:" in line else None
        if match:
            rules = tuple(name for name in match["rules"].split(",") if name)
            alone = not line[: match.start()].strip()
            at = 0 if match["kind"] == "disable-file" else number + alone
            yield Suppression(rules=rules, line=at)


def kept(findings: Iterable[Finding], lines: Iterable[str]) -> list[Finding]:
    """The findings that no comment turns off."""
    found = list(suppressions(lines))
    return [finding for finding in findings if not any(one.covers(finding) for one in found)]
