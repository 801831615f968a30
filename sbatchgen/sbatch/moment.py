"""Points in time: the values of --begin and --deadline.

Source: sbatch(1) --begin, Slurm's parse_time of 22.05, and the behaviour of sbatch 22.05.8.
"""

from __future__ import annotations

import re

from sbatchgen.sbatch.grammar import LONG_MAX, fold, leading_number

_GAP = re.compile(r"[ \t\-T]")
_WORD = re.compile(
    r"midnight|noon|fika|teatime|elevenses|today|tomorrow|now[ \t]*\Z|"
    r"now[ \t]*[+-]\s*[0-9][0-9\s]*(?:(?:second|minute|hour|day|week)s?|\Z)",
    re.IGNORECASE | re.ASCII,
)
_CLOCK = re.compile(r"([0-9]{1,2}):([0-9]{2})(?::([0-9]{2}))?(?!:)[ \t\n\v\f\r]*([aApP][mM])?")
_ISO_DATE = re.compile(r"[0-9]{4}-([0-9]{1,2})-([0-9]{1,2})")
_DATE = re.compile(r"([0-9]{2}|[0-9](?![0-9]))[./]?([0-9]{1,2})[./]?([0-9]{2})?")


def is_moment(text: str, *, slurm: str) -> bool:
    """Whether sbatch takes the text for a point in time."""
    if fold(text).startswith("uts"):
        value, rest = leading_number(text[3:])
        return value is not None and not rest and 1000000 <= value < LONG_MAX
    at, found = 0, False
    while at < len(text):
        if match := _WORD.match(text, at):
            if fold(match[0]) == "elevenses" and slurm < "24.05":
                return False
        elif match := _GAP.match(text, at):
            at = match.end()
            continue
        else:
            match = _clock(text, at) if ":" in text[at + 1 : at + 3] else _date(text, at)
        if match is None:
            return False
        at, found = match.end(), True
    return found


def _clock(text: str, at: int) -> re.Match[str] | None:
    match = _CLOCK.match(text, at)
    is_right = match and int(match[1]) <= (12 if match[4] else 23) and int(match[2]) < 60 > int(match[3] or 0)
    return match if is_right else None


def _date(text: str, at: int) -> re.Match[str] | None:
    is_iso = len(text) >= at + 7 and text[at + 4 : at + 5] == "-" == text[at + 7 : at + 8]
    match = (_ISO_DATE if is_iso else _DATE).match(text, at)
    if match is None or not 1 <= int(match[1]) <= 12 or not 1 <= int(match[2]) <= 31:
        return None
    is_cut = not is_iso and match[3] is None and "0" <= text[match.end() : match.end() + 1] <= "9"
    return None if is_cut else match
