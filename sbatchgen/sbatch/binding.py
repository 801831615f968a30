"""The values of sbatch options about binding and distribution of tasks.

Source: sbatch(1), Slurm 22.05 to 26.05, and the behaviour of sbatch 22.05.8 and 26.05.5.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from sbatchgen.sbatch.grammar import INT_MAX, LONG_MAX, RefusedError, byte_of, fold, leading_number

# How a binding of GPUs starts, and what follows: nothing more that is looked at, a number, or a list of them.
_NUMBERED_BINDINGS = {
    "map_gpu:": "[^0-9*]",
    "mask_gpu:": "[^0-9a-fA-F*]",
    "per_task:": "number",
    "single:": "number",
}
_OLD_BINDINGS = {"c": "word", "n": "word", **_NUMBERED_BINDINGS}
_BINDINGS = {
    "closest": "word",
    "none": "word",
    **_NUMBERED_BINDINGS,
    "map:": "[^0-9*]",
    "mask:": "[^0-9a-fA-F*]",
}
_SHARED_BINDINGS = {"none": "word", "per_task:": "number"}
_MEMORY_FLAGS = {"p": "prefer", "prefer": "prefer", "sort": "sort", "v": "verbose", "verbose": "verbose"}
_MEMORY_BINDS = {"no": "none", "none": "none", "rank": "rank", "local": "local"}
_LISTED = 2**20  # of a longer list the rest is left out
_MEMORY_ORDER = ("verbose", "prefer", "sort", "none", "rank", "local", "map_mem", "mask_mem")


def bad_gpu_binding(text: str) -> list[str] | None:
    """What sbatch before 23.11 says about a --gpu-bind that is wrong; None if it is right."""
    for item in filter(None, f"gpu:{text}".split(";")):
        kind, colon, value = item.partition(":")
        complaints = _bad_binding(value, _OLD_BINDINGS) if kind == "gpu" and colon else []
        if complaints is not None:
            return complaints
    return None


def bad_resource_binding(text: str) -> list[str] | None:
    """What sbatch since 23.11 says about a --tres-bind that is wrong; None if it is right."""
    for item in filter(None, text.split("+")):
        kind, colon, value = item.partition(":")
        if not colon or not kind.startswith("gres/"):
            return []
        words = _SHARED_BINDINGS if kind[5:] in ("mps", "shard") else _BINDINGS
        complaints = _bad_binding(value, words)
        if complaints is not None:
            return complaints
    return None


def _bad_binding(text: str, words: Mapping[str, str]) -> list[str] | None:
    text = text[8:] if fold(text).startswith("verbose,") else text
    for word, kind in words.items():
        if not fold(text).startswith(word):
            continue
        if kind == "word":
            return None
        value = text[len(word) :]
        return _number_list(value, kind) if kind != "number" else _bad_number(value)
    return []


def _bad_number(text: str) -> list[str] | None:
    match = re.match(r"[ \t\n\v\f\r]*([+-]?)(0[xX][0-9a-fA-F]+|[0-9]+)", text)
    value = 0 if match is None else leading_number(text)[0] or 0
    return [] if (match and match[1] == "-" and value) or value == LONG_MAX else None


def _number_list(text: str, wrong: str) -> list[str] | None:
    for item in filter(None, text.split(",")):
        number = item[2:] if "a-f" in wrong and item.startswith("0x") else item
        if (character := byte_of(number, wrong)) is not None:
            return [f"Failed to validate {number}, offending character is {character}"]
        if number.count("*") > 1:
            return []
    return None


def memory_binding(text: str, flags: set[str], *, slurm: str) -> tuple[set[str], str | None]:
    """What --mem-bind adds to the flags that earlier ones left, and its list.

    Raises:
        RefusedError: It is none.
    """
    flags, listed = set(flags), None
    for item in re.sub(r",(?![0-9]|[0-9a-fA-F]*(?:,|\Z))", ";", text).split(";"):
        name = fold(item)
        if name == "help":
            raise RefusedError(status=255)
        if name in ("sort", "nosort") and slurm >= "25.11":
            raise RefusedError(f'unrecognized --mem-bind argument "{item}"')
        if name in _MEMORY_FLAGS:
            flags.add(_MEMORY_FLAGS[name])
        elif name in ("nosort", "q", "quiet"):
            flags.discard("sort" if name == "nosort" else "verbose")
        elif name in _MEMORY_BINDS:
            flags, listed = flags & {"verbose", "prefer", "sort"} | {_MEMORY_BINDS[name]}, None
        elif name.startswith(("map_mem", "mapmem", "mask_mem", "maskmem")):
            kind = "map_mem" if name.startswith("map") else "mask_mem"
            flags = flags & {"verbose", "prefer", "sort"} | {kind}
            listed = _memory_list(re.split("[:=]", item)[1:2], kind, slurm)
        else:
            raise RefusedError(f'unrecognized --mem-bind argument "{item}"')
    return flags, listed


def _memory_list(values: list[str], kind: str, slurm: str) -> str:
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
            unexpanded = [f"Failed to expand list: '{values[0]}'"] if slurm >= "23.02" else []
            raise RefusedError(f"Invalid {kind} multiplier: {count}", *unexpanded)
        wrong = "[^0-9a-fA-F]" if kind == "mask_mem" else "[^0-9]"
        if (character := byte_of(number, wrong)) is not None:
            raise RefusedError(f"Failed to validate number: {number}, the offending character is {character}")
        room = _LISTED - len(result)
        result += [number] * min(int(count) if star else 1, room)
    if not result and slurm >= "23.02":
        raise RefusedError(f"Failed to expand list: '{values[0]}'")
    return ",".join(result)


def show_memory_binding(flags: set[str], listed: str | None) -> str:
    """A --mem-bind as sbatch prints it."""
    names = ",".join(name for name in _MEMORY_ORDER if name in flags)
    return (names + (f":{listed}" if listed else "")) or "unset"


def distribution(text: str) -> tuple[str, str, int]:
    """Base, flag and plane size of --distribution; the flag is pack, nopack, "both" of them, or "".

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
        base, flag = "", "both" if {flag, base} == {"pack", "nopack"} else flag or base
    elif base in ("arbitrary", "hostfile"):
        base = "arbitrary"
    elif not _is_layout(levels):
        raise RefusedError(bad)
    if flag not in ("", "pack", "nopack", "both"):
        raise RefusedError(bad)
    return base, flag, 0


def _is_layout(levels: list[str]) -> bool:
    if not levels or levels[0] not in ("block", "cyclic"):
        return False
    return all(level in ("block", "cyclic", "fcyclic") for level in levels[1:])
