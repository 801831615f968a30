"""Points in time: --begin and --deadline, in the time zone of this process.

Source: sbatch(1) --begin, Slurm's parse_time of 22.05, and the behaviour of sbatch 22.05.8.
"""

from __future__ import annotations

import re
import time

from sbatchgen.sbatch.grammar import LONG_MAX, fold, leading_number, wrapped

_DAY_S = 86400
_LATEST = 67 * 10**15  # seconds; soon after, the C library has no year. What is beyond counts as this
_CLOCK_WORDS = {"midnight": 0, "noon": 12, "fika": 15, "teatime": 16}
_LATER_WORDS = {"elevenses": 11}
_UNITS = {"second": 1, "minute": 60, "hour": 3600, "day": _DAY_S, "week": 7 * _DAY_S}
_CLOCK = re.compile(r"([0-9]{1,2}):([0-9]{2})(?::([0-9]{2}))?(?!:)[ \t\n\v\f\r]*([aApP][mM])?")
_ISO_DATE = re.compile(r"([0-9]{4})-([0-9]{1,2})-([0-9]{1,2})")
_DATE = re.compile(r"([0-9]{2}|[0-9](?![0-9]))[./]?([0-9]{1,2})[./]?([0-9]{2})?")

_Clock = tuple[int, int, int]
_Date = tuple[int | None, int, int]


class _NotATimeError(Exception):
    """The text does not name a time."""


def begin_time(text: str, *, now: float, slurm: str) -> float | None:
    """Seconds since 1970 of the time that the text names; None where sbatch does not take it."""
    if fold(text).startswith("uts"):
        value, rest = leading_number(text[3:])
        return value if value is not None and not rest and 1000000 <= value < LONG_MAX else None
    try:
        clock, date = _fields(text, now, slurm)
    except _NotATimeError:
        return None
    return None if clock is None and date is None else _seconds(clock, date, now)


def _local(seconds: float) -> time.struct_time:
    return time.localtime(max(-_LATEST, min(seconds, _LATEST)))


def _fields(text: str, now: float, slurm: str) -> tuple[_Clock | None, _Date | None]:
    """Clock and date of a text; the date's year is None where it has none."""
    clock: _Clock | None = None
    date: _Date | None = None
    words = _CLOCK_WORDS | (_LATER_WORDS if slurm >= "24.05" else {})
    at, folded = 0, fold(text)
    while at < len(text):
        if text[at] in " \t-T" and not folded.startswith(("today", "tomorrow", "teatime"), at):
            at += 1
        elif word := next((word for word in words if folded.startswith(word, at)), None):
            clock, at = (words[word], 0, 0), at + len(word)
        elif word := next((word for word in ("today", "tomorrow") if folded.startswith(word, at)), None):
            date, at = _day(now + _DAY_S * (word == "tomorrow")), at + len(word)
        elif folded.startswith("now", at):
            delta, at = _delta(text, at + 3)
            clock, date = tuple(_local(now + delta)[3:6]), _day(now + delta)  # type: ignore[assignment]
        elif ":" in text[at + 1 : at + 3]:
            clock, at = _read_clock(text, at)
        else:
            (year, month, day), at = _read_date(text, at)
            date = (year or (date[0] if date else None), month, day)
    return clock, date


def _day(seconds: float) -> _Date:
    local = _local(seconds)
    return local.tm_year, local.tm_mon, local.tm_mday


def _delta(text: str, at: int) -> tuple[int, int]:
    """The seconds after "now", as +1hour, and where the text goes on."""
    match = re.compile(r"[ \t]*([+-])").match(text, at)
    if match is None:
        if text[at:].strip(" \t"):
            raise _NotATimeError
        return 0, len(text)
    count, digits, end, folded = 0, 0, match.end(), fold(text)
    while end < len(text):
        unit = next((name for name in _UNITS if folded.startswith(name, end)), None)
        if unit:
            end += len(unit) + folded.startswith("s", end + len(unit))
            count *= _UNITS[unit]
            break
        if "0" <= text[end] <= "9":
            count, digits = wrapped(count * 10 + int(text[end]), 64), digits + 1
        elif text[end] not in " \t\n\v\f\r":
            raise _NotATimeError
        end += 1
    if not digits:
        raise _NotATimeError
    return (count if match[1] == "+" else -count), end


def _read_clock(text: str, at: int) -> tuple[_Clock, int]:
    match = _CLOCK.match(text, at)
    if match is None:
        raise _NotATimeError
    hour, minute, second, half = int(match[1]), int(match[2]), int(match[3] or 0), fold(match[4] or "")
    if hour > (12 if half else 23) or minute > 59 or second > 59:
        raise _NotATimeError
    if half:
        hour = hour % 12 + 12 * (half == "pm")
    return (hour, minute, second), match.end()


def _read_date(text: str, at: int) -> tuple[_Date, int]:
    is_iso = len(text) >= at + 7 and text[at + 4 : at + 5] == "-" == text[at + 7 : at + 8]
    match = (_ISO_DATE if is_iso else _DATE).match(text, at)
    if match is None:
        raise _NotATimeError
    month, day = (int(match[2]), int(match[3])) if is_iso else (int(match[1]), int(match[2]))
    year = int(match[1]) if is_iso else 2000 + int(match[3] or 0)
    end = match.end()
    if not 1 <= month <= 12 or not 1 <= day <= 31 or (match[3] is None and "0" <= text[end : end + 1] <= "9"):
        raise _NotATimeError
    return (year if is_iso or year > 2000 else None, month, day), end


def _seconds(clock: _Clock | None, date: _Date | None, now: float) -> float:
    today = _local(now)
    hour, minute, second = clock or (0, 0, 0)
    if date is None:
        later = (hour, minute) > (today.tm_hour, today.tm_min)
        date = _day(now + _DAY_S * (not later))
    year, month, day = date
    if year is None:
        passed = (month, day, hour, minute) <= tuple(today[1:5])
        year = today.tm_year + passed
    return time.mktime((year, month, day, hour, minute, second, 0, 0, -1))
