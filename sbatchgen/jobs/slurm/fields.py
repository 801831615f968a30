"""Reads the values that Slurm's commands print: texts, lists, numbers, times and exit statuses."""

import functools
from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import datetime

from sbatchgen.base import units

# Numbers with more digits are Slurm's constants for "not set", such as 18446744073709551614 (NO_VAL64).
_MAX_DIGITS = 18


def read_text(printed: str) -> str:
    """Return a value as it is printed; "" for the texts that Slurm prints without a value."""
    return "" if printed in ("(null)", "N/A", "None assigned") else printed


def read_pairs(parts: Iterable[str]) -> defaultdict[str, str]:
    """Return the values of parts such as "Key=value" by their keys; the value of any other key is ""."""
    return defaultdict(str, (part.partition("=")[::2] for part in parts if "=" in part))


def gpus_in_tres(tres: Mapping[str, str]) -> int:
    """Return the number of GPUs in trackable resources (TRES); 0 if Slurm counts no GPUs.

    A site may count "gres/gpu", which is the total, or only each type, such as "gres/gpu:a100".
    """
    sum_of_types = sum(read_count(number) for name, number in tres.items() if name.startswith("gres/gpu:"))
    return read_count(tres.get("gres/gpu", "")) or sum_of_types


@functools.lru_cache(maxsize=4096)  # many nodes of a cluster have the same list
def read_names(printed: str) -> tuple[str, ...]:
    """Return the names in a list such as "a,b"; no names if Slurm prints no value."""
    return tuple(filter(None, read_text(printed).split(",")))


def read_count(printed: str) -> int:
    """Return a number; 0 if Slurm prints no number."""
    return read_limit(printed) or 0


def read_limit(printed: str) -> int | None:
    """Return a number; None if Slurm prints UNLIMITED, no number, or a constant that means "not set"."""
    is_number = len(printed) <= _MAX_DIGITS and printed.isascii() and printed.isdecimal()
    return int(printed) if is_number else None


def read_time(printed: str) -> datetime | None:
    """Return a time such as "2026-01-31T12:00:00"; None for "N/A", "Unknown" and "None"."""
    try:
        return datetime.fromisoformat(printed).astimezone()
    except (ValueError, OverflowError):  # a time in year 1 overflows if the time zone moves it into year 0
        return None


def read_seconds(printed: str) -> int | None:
    """Return the seconds of a duration such as "1-12:00:00" or "05:00"; None for "UNLIMITED" and others."""
    duration = units.seconds(printed) if ":" in printed else None
    return None if duration is None or duration >= 10**_MAX_DIGITS else duration


def read_exit_status(printed: str) -> tuple[int, int]:
    """Return the exit code and the signal in a text such as "3:0".

    squeue 22.05 prints one number instead: the status that wait(2) gives, such as 768 for "3:0".
    """
    code, colon, signal = printed.partition(":")
    if colon:
        return read_count(code), read_count(signal)
    status = read_count(printed)
    signal_number = status & 0x7F
    return (0, signal_number) if signal_number else (status >> 8, 0)
