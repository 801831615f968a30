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
_CLOCK = re.compile(r"([0-9]{1,2}):([0-9]{2})(?::([0-9]{2}))?")
_ISO_DATE = re.compile(r"([0-9]{4})-([0-9]{1,2})-([0-9]{1,2})")
_DATE = re.compile(r"([0-9]{1,2})[./]?([0-9]{1,2})[./]?([0-9]{2})?")


class MomentError(Exception):
    """The text is no point in time: the exception's text says what sbatch says, if it says anything."""


def moment(text: str, *, now: float, slurm: str) -> float:
    """Seconds since 1970 of the time that the text names.

    Raises:
        MomentError: It names none.
    """
    if fold(text).startswith("uts"):
        value, rest = leading_number(text[3:])
        if value is None or rest or not 1000000 <= value < LONG_MAX:
            raise _wrong(text, 0)
        return value
    clock, date = _fields(text, now, slurm)
    if clock is None and date is None:
        raise MomentError
    return _seconds(clock, date, now)


def show(seconds: float) -> str:
    """The time as sbatch prints it; beyond the years that the C library has, it prints what it finds."""
    return time.strftime("%Y-%m-%dT%H:%M:%S", _local(seconds))


def _local(seconds: float) -> time.struct_time:
    return time.localtime(max(-_LATEST, min(seconds, _LATEST)))


_Clock = tuple[int, int, int]
_Date = tuple[int | None, int, int]


def _fields(text: str, now: float, slurm: str) -> tuple[_Clock | None, _Date | None]:
    """Clock and date of a text; the date's year is None where it has none."""
    clock: _Clock | None = None
    date: _Date | None = None
    words = _CLOCK_WORDS | (_LATER_WORDS if slurm >= "24.05" else {})
    at, folded = 0, fold(text)
    while at < len(text):
        if text[at] in " \t-T" and not folded.startswith(("today", "tomorrow", "teatime"), at):
            at += 1
            continue
        if word := next((word for word in words if folded.startswith(word, at)), None):
            clock, at = (words[word], 0, 0), at + len(word)
        elif word := next((word for word in ("today", "tomorrow") if folded.startswith(word, at)), None):
            date, at = _day(now + _DAY_S * (word == "tomorrow")), at + len(word)
        elif folded.startswith("now", at):
            delta, at = _delta(text, at)
            clock, date = tuple(_local(now + delta)[3:6]), _day(now + delta)  # type: ignore[assignment]
        elif not "0" <= text[at] <= "9":
            raise _wrong(text, at)
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
    """The seconds of now+1hour, and where the text goes on."""
    match = re.compile(r"[ \t]*([+-])").match(text, at + 3)
    if match is None:
        rest = text[at + 3 :]
        if rest.strip(" \t"):
            wrong = at + 3 + len(rest) - len(rest.lstrip(" \t"))
            raise _wrong(text, at + wrong)
        return 0, len(text)
    count, digits, start = 0, 0, match.end()
    end, folded = start, fold(text)
    while end < len(text):
        unit = next((name for name in _UNITS if folded.startswith(name, end)), None)
        if unit:
            end += len(unit) + folded.startswith("s", end + len(unit))
            count *= _UNITS[unit]
            break
        if "0" <= text[end] <= "9":
            count, digits = wrapped(count * 10 + int(text[end]), 64), digits + 1
        elif text[end] not in " \t\n\v\f\r":
            raise _wrong(text, end - 1)
        end += 1
    if not digits:
        raise _wrong(text, start - 1)
    return (count if match[1] == "+" else -count), end


def _read_clock(text: str, at: int) -> tuple[_Clock, int]:
    match = _CLOCK.match(text, at)
    if match is None or int(match[1]) > 23 or int(match[2]) > 59 or int(match[3] or 0) > 59:
        raise _wrong(text, _clock_fault(text, at))
    end = match.end()
    if match[3] is None and text[end : end + 1] == ":":
        raise _wrong(text, end + 1 + ("0" <= text[end + 1 : end + 2] <= "9"))
    hour, minute, second = int(match[1]), int(match[2]), int(match[3] or 0)
    while end < len(text) and text[end] in " \t\n\v\f\r":
        end += 1
    half = fold(text[end : end + 2])
    if half == "pm":
        hour, end = (12 if hour == 12 else hour + 12), end + 2
    elif half == "am":
        hour, end = (0 if hour == 12 else hour), end + 2
    if half in ("am", "pm") and (hour > 23 or (half == "am" and hour > 12)):
        raise _wrong(text, end - 2)
    return (hour, minute, second), end


def _clock_fault(text: str, at: int) -> int:
    """Where the C code stands when it gives up on HH:MM:SS."""
    position = at
    for field, limit in enumerate((23, 59, 59)):
        digits = re.compile("[0-9]{0,2}").match(text, position)
        length = len(digits[0]) if digits else 0
        if length < (1 if field == 0 else 2):
            return position + length
        if int(text[position : position + length]) > limit:
            return position + length - 2
        position += length
        if text[position : position + 1] != ":":
            return position
        position += 1
    return position


def _read_date(text: str, at: int) -> tuple[_Date, int]:
    if len(text) >= at + 7 and text[at + 4 : at + 5] == "-" == text[at + 7 : at + 8]:
        match = _ISO_DATE.match(text, at)
        if match is None:
            raise _wrong(text, at)
        year, month, day = (int(part) for part in match.groups())
        if not 1 <= month <= 12:
            raise _wrong(text, match.end(2) - 2)
        if not 1 <= day <= 31:
            raise _wrong(text, match.end(3) - 2)
        return (year, month, day), match.end()
    match = _DATE.match(text, at)
    first = re.compile("[0-9]{1,2}").match(text, at)
    end = first.end() if first else at
    if first and not 1 <= int(first[0]) <= 12:
        raise _wrong(text, end - 2)
    if match is None or match.end(1) != end:
        raise _wrong(text, end + (text[end : end + 1] in (".", "/")))
    if not 1 <= int(match[2]) <= 31:
        raise _wrong(text, match.end(2) - 2)
    end = match.end()
    if match[3] is None and "0" <= text[end : end + 1] <= "9":
        raise _wrong(text, end + 1)
    century = int(match[3]) + 2000 if match[3] and match[3] != "00" else None
    return (century, int(match[1]), int(match[2])), end


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


def _wrong(text: str, at: int) -> MomentError:
    return MomentError(f"Invalid time specification (pos={at}): {text}")
