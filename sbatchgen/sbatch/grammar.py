"""The values of sbatch options: what Slurm makes of a text.

Numbers are C's: leading blanks and a sign are fine, and what does not fit wraps around. Source: sbatch(1),
Slurm 22.05 and the behaviour of sbatch 22.05.8; what later releases changed takes the release as an argument.
"""

from __future__ import annotations

import re
import signal as signals

BLANKS = " \t\n\v\f\r"
LONG_MAX = 2**63 - 1
INT_MAX = 2**31 - 1
INFINITE = 0xFFFFFFFF
NO_VAL = 0xFFFFFFFE
NO_VAL16 = 0xFFFE
NO_VAL64 = 2**64 - 2

_NUMBER = re.compile(r"[ \t\n\v\f\r]*([+-]?)([0-9]+)")
_LARGEST_JOB = 64 * 1024  # nodes of a --nodes that is a list
_SIGNALS = (
    "HUP",
    "INT",
    "QUIT",
    "ABRT",
    "KILL",
    "ALRM",
    "TERM",
    "USR1",
    "USR2",
    "URG",
    "CONT",
    "STOP",
    "TSTP",
    "TTIN",
    "TTOU",
    "XCPU",
)
MAIL_EVENTS = frozenset(
    (
        *("NONE", "BEGIN", "END", "FAIL", "REQUEUE", "ALL", "INVALID_DEPEND", "STAGE_OUT", "ARRAY_TASKS"),
        *("TIME_LIMIT", "TIME_LIMIT_50", "TIME_LIMIT_80", "TIME_LIMIT_90"),
    )
)


class RefusedError(Exception):
    """sbatch ends here, refusing the job.

    Attributes:
        text: What it says that tells most; "" where it only prints a help text.
        line: The line it is about; 0 if it is about no single one.
        column: Where in the line.
    """

    def __init__(self, text: str = "", line: int = 0, column: int = 0) -> None:
        super().__init__(text)
        self.text = text
        self.line = line
        self.column = column


def fold(text: str) -> str:
    """The text with the 26 capitals of ASCII made small, all that C's strcasecmp knows."""
    return text.lower() if text.isascii() else re.sub("[A-Z]+", lambda match: match[0].lower(), text)


def leading_number(text: str) -> tuple[int | None, str]:
    """The number that the text starts with, None if there is none; and the rest. C's strtoll."""
    match = _NUMBER.match(text)
    if match is None:
        return None, text
    digits = match[2].lstrip("0")
    value = int(digits or "0") if len(digits) < 30 else 10**30
    value = max(-value, -LONG_MAX - 1) if match[1] == "-" else min(value, LONG_MAX)
    return value, text[match.end() :]


def wrapped(value: int, bits: int = 32) -> int:
    """The value as a signed C integer of so many bits keeps it."""
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def integer(option: str, text: str, *, positive: bool, slurm: str) -> int:
    """A count such as that of --ntasks.

    Raises:
        RefusedError: sbatch refuses it.
    """
    value, rest = leading_number(text)
    value = value or 0
    if rest or value < 0 or (positive and not value):
        raise RefusedError(f'Invalid numeric value "{text}" for {option}.')
    if value >= (INT_MAX if slurm >= "23.02" else LONG_MAX):
        size = "too large" if slurm >= "23.11" else "to big"
        raise RefusedError(f"Numeric argument ({value}) {size} for {option}.")
    return wrapped(value)


def short_integer(text: str) -> int | None:
    """A number of 16 bits; None for an invalid one."""
    value, rest = leading_number(text)
    value = value or 0
    return None if rest or not 0 <= value < NO_VAL16 else value


def seconds(text: str) -> int | None:
    """Seconds of a time; INFINITE for no limit, None for an invalid time. Fields have no upper bound."""
    if fold(text) in ("-1", "infinite", "unlimited"):
        return INFINITE
    if not re.fullmatch(r"[0-9:-]+", text):
        return None
    numbers = [leading_number(number)[0] or 0 for number in re.findall("[0-9]+", text)]
    days, dash, _ = text.rpartition("-")
    colons = text.count(":")
    if (
        not numbers
        or "-" in days
        or ":" in days
        or colons > 2
        or len(numbers) < colons + 1 + (colons and bool(dash))
    ):
        return None
    fields: tuple[int, ...]
    if dash and not days and not colons:  # "-5" is minus five days
        fields = (-numbers[0], 0, 0, 0)
    elif dash:
        fields = (*numbers, 0, 0, 0)[:4]
    elif colons == 2:
        fields = (0, *numbers)
    else:
        fields = (0, 0, *numbers, 0)[:4]
    total = sum(wrapped(count) * unit for count, unit in zip(fields, (86400, 3600, 60, 1), strict=True))
    return wrapped(total)


def minutes(text: str) -> int | None:
    """Minutes of a time, rounded up; INFINITE for no limit, None for an invalid time."""
    value = seconds(text)
    if value is None or value in (INFINITE, -1):
        return INFINITE if value else value
    rounded = value + 59
    return -(-rounded // 60) if rounded < 0 else rounded // 60


def mebibytes(text: str) -> int | None:
    """MiB of a memory size; None for an invalid one."""
    value, rest = leading_number(text)
    if value is None or not 0 <= value < LONG_MAX:
        return None
    unit = re.fullmatch("([kmgt])b?", fold(rest))
    if rest and not unit:
        return None
    if unit and unit[1] == "k":
        return (value + 1023) // 1024
    factor: int = 1024 ** ("mgt".index(unit[1]) if unit else 0)
    return value * factor % 2**64


def node_range(text: str, *, slurm: str) -> tuple[int, int]:
    """Least and most nodes; since 23.02 also of a list, such as 2,4,8 or 1-15:4.

    Raises:
        RefusedError: sbatch refuses it.
    """
    if slurm >= "23.02" and re.search("[,:]", text):
        return _listed_nodes(text)
    low_text, dash, high_text = text.partition("-")
    low = _nodes(low_text, slurm)
    if dash:
        low = 1 if low < 0 else low
        high = _nodes(high_text, slurm)
    elif low < 0:
        raise RefusedError(f'"{text}" is not a valid node count')
    else:
        high = low
    if high and high < low:
        raise RefusedError(f"Maximum node count {high} is less than minimum node count {low}")
    return low, high


def _listed_nodes(text: str) -> tuple[int, int]:
    """The least and the most of a list; -1 where it names none."""
    largest = 0
    for item in filter(None, re.split("[,:-]", text)):
        number, rest = leading_number(item)
        if number is None or rest or number >= _LARGEST_JOB:
            raise RefusedError(f'"{item}" is not a valid node count')
        largest = max(largest, number)
    found = runs(text)
    if found is None or any(run.start > largest or run.stop > largest + 1 for run in found):
        raise RefusedError(f'"{text}" is not a valid node count')
    sizes = [run for run in found if run]
    return min((run[0] for run in sizes), default=-1), max((run[-1] for run in sizes), default=-1)


def runs(text: str) -> tuple[range, ...] | None:
    """The numbers of a list, as 1,3-5 or 1-15:4; None for an invalid list. A range that goes down has none.

    What is no digit, comma or dash is passed over, and a number that is missing is 0. Of a range with a step
    the end does not count. C: bitfmt2int.
    """
    if ":" in text:  # only one range has a step
        first, rest = leading_number(text)
        last, end = leading_number(rest[1:])
        step, over = leading_number(end[1:])
        low, high = first or 0, last or 0
        if rest[:1] != "-" or end[:1] != ":" or over or high < low or (step or 0) <= 0:
            return None
        return (range(low, high, step or 1),)
    found: list[range] = []
    for place, item in enumerate(text.split(",")):
        if not item and not place:
            break
        numbers = [int(number[:18] or 0) for number in re.sub("[^0-9-]", "", item).split("-")]
        found.append(range(numbers[-2:][0], numbers[-1] + 1))
    return tuple(found)


def _nodes(text: str, slurm: str) -> int:
    value, rest = leading_number(text)
    value = -1 if value is None else value
    if value != -1 or rest != text:
        for letter, factor in (("k", 1024), ("m", 1024**2)):
            if rest[:1] in (letter, letter.upper()):
                value, rest = value * factor, rest[1:]
    if rest.strip(BLANKS):
        raise RefusedError(f'"{text}" is not a valid node count')
    if slurm >= "23.02" and not 0 <= value <= INT_MAX:
        return -1
    return wrapped(value)


def signal(text: str, *, slurm: str) -> tuple[str, int, int] | None:
    """Flags (of "R" and "B"), number and seconds of --signal; None for an invalid one."""
    flags = ""
    for letter in "RBR":
        if text[:1].upper() == letter and text[:1].isascii():
            flags, text = flags + letter, text[1:]
    name, at, lead = text.removeprefix(":").partition("@")
    number = _signal_number(name, slurm) % 2**16
    if not number:
        return None
    if not at:
        return flags, number, 60
    value, rest = leading_number(lead)
    value = value or 0
    return None if rest or not 0 <= value <= 0xFFFF else (flags, number, value)


def _signal_number(text: str, slurm: str) -> int:
    value, rest = leading_number(text)
    if value is not None:
        return 0 if rest.strip(BLANKS) else wrapped(value)
    name = fold(text.strip(BLANKS)).removeprefix("sig").upper()
    known = name in _SIGNALS or (name in ("CHLD", "PIPE") and slurm >= "23.11")
    return int(signals.Signals[f"SIG{name}"]) if known else 0


def are_mail_events(text: str) -> bool:
    """Whether --mail-type has an event that sbatch knows; it ignores the others."""
    return not MAIL_EVENTS.isdisjoint(fold(text).upper().split(","))


def socket_counts(text: str) -> tuple[int, ...]:
    """Sockets, cores and threads of --extra-node-info; NO_VAL where nothing is asked.

    Raises:
        RefusedError: One is neither a number nor `*`.
    """
    counts: list[int] = []
    for part, place in zip((*text.split(":"), "", ""), ("first", "second", "third"), strict=False):
        number, rest = leading_number(part)
        is_wrong = (number or 0) < 0 or (rest and rest[0] not in "-kKmM")
        if part[:1] not in ("", "*") and is_wrong:
            raise RefusedError(f'Invalid numeric value "{part}" for {place} arg of -B.')
        counts.append(NO_VAL if number is None or rest else number)
    return tuple(counts)
