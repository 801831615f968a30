"""The values of sbatch options about frequencies, binding and distribution of tasks.

Source: sbatch(1), Slurm 22.05, and the behaviour of sbatch 22.05.8.
"""

from __future__ import annotations

import re

from sbatchgen.script.grammar import INT_MAX, LONG_MAX, NO_VAL, RefusedError, byte_of, fold, leading_number

_NAMED_KHZ = 0x80000000  # a bit that marks a frequency that has a name
_FREQUENCIES = (("lo", 1), ("him1", 4), ("highm1", 4), ("hi", 3), ("med", 2))
_FREQUENCY_NAMES = {
    _NAMED_KHZ + 1: "Low",
    _NAMED_KHZ + 2: "Medium",
    _NAMED_KHZ + 3: "High",
    _NAMED_KHZ + 4: "Highm1",
}
_GOVERNORS = {
    "co": "Conservative",
    "perf": "Performance",
    "pow": "PowerSave",
    "user": "UserSpace",
    "onde": "OnDemand",
    "sche": "SchedUtil",
}
_ALLOWED = ("OnDemand", "Performance", "UserSpace")  # CpuFreqGovernors of a slurm.conf that does not say
_MEMORY_FLAGS = {"p": "prefer", "prefer": "prefer", "sort": "sort", "v": "verbose", "verbose": "verbose"}
_MEMORY_BINDS = {"no": "none", "none": "none", "rank": "rank", "local": "local"}
_LISTED = 2**20  # of a longer list the rest is left out
_MEMORY_ORDER = ("verbose", "prefer", "sort", "none", "rank", "local", "map_mem", "mask_mem")


def cpu_frequency(text: str) -> str | None:
    """A --cpu-freq as sbatch prints it.

    Raises:
        RefusedError: It is none.
    """
    complaint, low, high, governor = _frequencies(*_frequency_parts(text))
    complaints = [complaint] if complaint else []
    if governor and governor not in _ALLOWED:
        complaints.append(f"governor of {text} is not allowed in slurm.conf")
    if complaints:
        raise RefusedError(*complaints, "Invalid --cpu-freq argument")
    return _show_frequency(low, high, governor)


def _frequency_parts(text: str) -> tuple[str, str | None, str | None]:
    """Lower or only frequency, upper one, governor; None where there is none."""
    head, colon, governor = text.partition(":")
    low, dash, high = text.partition("-")
    if not dash:
        low = head
    elif colon and len(low) < len(head):
        high = head[len(low) + 1 :]
    return low, high if dash else None, governor if colon else None


def _frequencies(low: str, high: str | None, last: str | None) -> tuple[str, int, int, str]:
    """What is wrong, the two frequencies, and the governor as far as it was read."""
    least, most, governor, wrong = NO_VAL, NO_VAL, _governor(low), ""
    if governor and last is not None:
        return f"governor cannot be specified twice {low}{{-}}:{last} in --cpu-freq", least, most, ""
    if not governor and not (most := _khz(low)):
        wrong = f'unrecognized --cpu-freq argument "{low}"'
    elif high is not None:
        least, most = most, _khz(high)
        if not most:
            wrong = f'unrecognized --cpu-freq argument "{high}"'
        elif most < least:
            wrong = f"min cpu-frec ({low}) must be < max cpu-freq ({high})"
    if last is not None and not wrong:
        if high is None:
            wrong = f"gov on cpu-frec ({last}) illegal without max"
        elif not (governor := _governor(last)):
            wrong = f"illegal governor: {last} on --cpu-freq"
    return wrong, least, most, governor


def _governor(text: str) -> str:
    return next((name for prefix, name in _GOVERNORS.items() if fold(text).startswith(prefix)), "")


def _khz(text: str) -> int:
    for prefix, number in _FREQUENCIES:
        if fold(text).startswith(prefix):
            return _NAMED_KHZ + number
    return (leading_number(text)[0] or 0) % 2**32


def _show_frequency(low: int, high: int, governor: str) -> str | None:
    shown = [
        _FREQUENCY_NAMES.get(khz, "Unknown") if khz & _NAMED_KHZ else str(khz)
        for khz in (low, high)
        if khz != NO_VAL
    ]
    if len(shown) == 2:
        return "-".join(shown) + (f":{governor}" if governor else "")
    return shown[0] if shown else governor or None


def gpu_binding(text: str) -> list[str] | None:
    """What sbatch says about a --gpu-bind that is wrong; None if it is right."""
    for item in filter(None, f"gpu:{text}".split(";")):
        kind, colon, value = item.partition(":")
        complaints = _gpu_bind(value) if kind == "gpu" and colon else []
        if complaints is not None:
            return complaints
    return None


def _gpu_bind(text: str) -> list[str] | None:
    text = text[8:] if fold(text).startswith("verbose,") else text
    folded = fold(text)
    if folded.startswith(("c", "n")):
        return None
    for prefix, wrong in (("map_gpu:", "[^0-9*]"), ("mask_gpu:", "[^0-9a-fA-F*]")):
        if folded.startswith(prefix):
            return _number_list(text[len(prefix) :], wrong)
    if folded.startswith(("per_task:", "single:")):
        number = text.partition(":")[2]
        match = re.match(r"[ \t\n\v\f\r]*([+-]?)(0[xX][0-9a-fA-F]+|[0-9]+)", number)
        value = 0 if match is None else leading_number(number)[0] or 0
        return [] if (match and match[1] == "-" and value) or value == LONG_MAX else None
    return []


def _number_list(text: str, wrong: str) -> list[str] | None:
    for item in filter(None, text.split(",")):
        number = item[2:] if "a-f" in wrong and item.startswith("0x") else item
        if (character := byte_of(number, wrong)) is not None:
            return [f"Failed to validate {number}, offending character is {character}"]
        if number.count("*") > 1:
            return []
    return None


def gpu_frequency_is_good(text: str) -> bool:
    """Whether --gpu-freq is right."""
    for item in filter(None, f"gpu:{text}".split(";")):
        kind, colon, value = item.partition(":")
        if kind != "gpu" or not colon or not value:
            return False
        if not all(_gpu_frequency(part) for part in value.split(",") if part):
            return False
    return True


def _gpu_frequency(text: str) -> bool:
    name, equals, value = text.partition("=")
    if equals and name != "memory":
        return False
    text = value if equals else text
    if text[:1] in set("0123456789") - {""} and text:
        number, rest = leading_number(text)
        return not rest and number != LONG_MAX
    return text in ("low", "medium", "high", "highm1") or (text == "verbose" and not equals)


def memory_binding(text: str, flags: set[str]) -> tuple[set[str], str | None]:
    """What --mem-bind adds to the flags that earlier ones left, and its list.

    Raises:
        RefusedError: It is none.
    """
    flags, listed = set(flags), None
    for item in re.sub(r",(?![0-9]|[0-9a-fA-F]*(?:,|\Z))", ";", text).split(";"):
        name = fold(item)
        if name == "help":
            raise RefusedError(status=255)
        if name in _MEMORY_FLAGS:
            flags.add(_MEMORY_FLAGS[name])
        elif name in ("nosort", "q", "quiet"):
            flags.discard("sort" if name == "nosort" else "verbose")
        elif name in _MEMORY_BINDS:
            flags, listed = flags & {"verbose", "prefer", "sort"} | {_MEMORY_BINDS[name]}, None
        elif name.startswith(("map_mem", "mapmem", "mask_mem", "maskmem")):
            kind = "map_mem" if name.startswith("map") else "mask_mem"
            flags = flags & {"verbose", "prefer", "sort"} | {kind}
            listed = _memory_list(re.split("[:=]", item)[1:2], kind)
        else:
            raise RefusedError(f'unrecognized --mem-bind argument "{item}"')
    return flags, listed


def _memory_list(values: list[str], kind: str) -> str:
    if not values or not values[0]:
        raise RefusedError(f'missing list for "--mem-bind={kind}:<list>"')
    result: list[str] = []
    for item in filter(None, values[0].split(",")):
        number = item[2:] if kind == "mask_mem" and item.startswith("0x") else item
        number, star, count = number.partition("*")
        if (character := byte_of(count, "[^0-9]")) is not None:
            text = f"*{count}"
            raise RefusedError(f"Failed to validate number: {text}, the offending character is {character}")
        if star and not 0 < (leading_number(count)[0] or 0) < LONG_MAX:
            raise RefusedError(f"Invalid {kind} multiplier: {count}")
        wrong = "[^0-9a-fA-F]" if kind == "mask_mem" else "[^0-9]"
        if (character := byte_of(number, wrong)) is not None:
            raise RefusedError(f"Failed to validate number: {number}, the offending character is {character}")
        room = _LISTED - len(result)
        result += [number] * min(int(count) if star else 1, room)
    return ",".join(result)


def show_memory_binding(flags: set[str], listed: str | None) -> str:
    """A --mem-bind as sbatch prints it."""
    names = ",".join(name for name in _MEMORY_ORDER if name in flags)
    return (names + (f":{listed}" if listed else "")) or "unset"


def distribution(text: str) -> tuple[str, str, int]:
    """Base, flag (pack, nopack or "") and plane size of --distribution.

    Raises:
        RefusedError: It is none.
    """
    bad = "Invalid --distribution specification"
    if fold(text).startswith("plane"):
        size_text = text.partition("=")[2]
        size, rest = leading_number(size_text)
        if size is None or rest or not 0 < size <= INT_MAX:
            raise RefusedError("Invalid plane size or size not specified", bad)
        return "plane", "", size
    base_text, _, flag_text = text.partition(",")
    levels = [level for level in fold(base_text).split(":") if level]
    if not base_text or len(levels) > 3:
        raise RefusedError(bad)
    defaults = ("block", "cyclic", levels[1] if len(levels) > 1 and levels[1] != "*" else "cyclic")
    levels = [default if level == "*" else level for level, default in zip(levels, defaults, strict=False)]
    base = ":".join(levels)
    flag = fold(flag_text)
    if base in ("pack", "nopack"):
        base, flag = "", flag or base
    elif base in ("arbitrary", "hostfile"):
        base = "arbitrary"
    elif not _is_layout(levels):
        raise RefusedError(bad)
    if flag not in ("", "pack", "nopack"):
        raise RefusedError(bad)
    return base, flag, 0


def _is_layout(levels: list[str]) -> bool:
    if not levels or levels[0] not in ("block", "cyclic"):
        return False
    return all(level in ("block", "cyclic", "fcyclic") for level in levels[1:])
