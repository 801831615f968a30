"""Converts the values of fields in the output of Slurm's commands."""

import functools
from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import datetime

from sbatchgen.base import units

_MAX_DIGITS = 18  # digits of the largest real number; longer numbers such as NO_VAL64 mean "not set"


def read_text(printed: str) -> str:
    """Return a text; "" for a missing field."""
    return "" if printed in ("(null)", "N/A", "None assigned") else printed


def read_pairs(parts: Iterable[str]) -> defaultdict[str, str]:
    """Return the values in parts such as "Key=value" by their keys; "" for any other key."""
    return defaultdict(str, (part.partition("=")[::2] for part in parts if "=" in part))


def gpus_in_tres(tres: Mapping[str, str]) -> int:
    """Return the number of GPUs in a TRES; 0 if Slurm counts no GPUs. A count without a type is the total."""
    typed = sum(read_count(number) for name, number in tres.items() if name.startswith("gres/gpu:"))
    return read_count(tres.get("gres/gpu", "")) or typed


@functools.lru_cache(maxsize=4096)  # many nodes of a cluster have the same list
def read_names(printed: str) -> tuple[str, ...]:
    """Return the names in a list; no names for a missing field."""
    return tuple(filter(None, read_text(printed).split(",")))


def read_count(printed: str) -> int:
    """Return a count; 0 for a missing field."""
    return read_limit(printed) or 0


def read_limit(printed: str) -> int | None:
    """Return a number; None for UNLIMITED, a missing field, and Slurm's numbers for "not set"."""
    is_number = len(printed) <= _MAX_DIGITS and printed.isascii() and printed.isdecimal()
    return int(printed) if is_number else None


def read_time(printed: str) -> datetime | None:
    """Return a time; None for "N/A", "Unknown" and "None"."""
    try:
        return datetime.fromisoformat(printed).astimezone()
    except (ValueError, OverflowError):  # OverflowError: in the year 1, the time zone may lead to year 0
        return None


def read_seconds(printed: str) -> int | None:
    """Return the seconds of a duration, D-HH:MM:SS or MM:SS; None for texts such as "UNLIMITED"."""
    duration = units.seconds(printed) if ":" in printed else None
    return None if duration is None or duration >= 10**_MAX_DIGITS else duration


def read_exit_status(printed: str) -> tuple[int, int]:
    """Return exit code and signal from "3:0", or from a status of wait(2), "768", as squeue 22.05 prints."""
    code, colon, signal = printed.partition(":")
    if colon:
        return read_count(code), read_count(signal)
    status = read_count(code)
    return (0, status & 0x7F) if status & 0x7F else (status >> 8, 0)
