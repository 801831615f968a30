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
_MEMORY_BINDS = frozenset(["p", "prefer", "v", "verbose", "q", "quiet", "no", "none", "rank", "local"])


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


def check_memory_binding(text: str, *, slurm: str) -> None:
    """Refuse a --mem-bind that sbatch refuses.

    Raises:
        RefusedError: It does.
    """
    known = _MEMORY_BINDS | ({"sort", "nosort"} if slurm < "25.11" else set())
    for item in re.sub(r",(?![0-9]|[0-9a-fA-F]*(?:,|\Z))", ";", text).split(";"):
        name = fold(item)
        if name == "help":
            raise RefusedError(status=255)
        if name.startswith(("map_mem", "mapmem", "mask_mem", "maskmem")):
            kind = "map_mem" if name.startswith("map") else "mask_mem"
            _check_memory_list("".join(re.split("[:=]", item)[1:2]), kind, slurm)
        elif name not in known:
            raise RefusedError(f'unrecognized --mem-bind argument "{item}"')


def _check_memory_list(text: str, kind: str, slurm: str) -> None:
    if not text:
        raise RefusedError(f'missing list for "--mem-bind={kind}:<list>"')
    for item in filter(None, text.split(",")):
        number = item[2:] if kind == "mask_mem" and item.startswith("0x") else item
        number, star, count = number.partition("*")
        if (character := byte_of(count, "[^0-9]")) is not None:
            bad = f"*{count}"
            raise RefusedError(f"Failed to validate number: {bad}, the offending character is {character}")
        if star and not 0 < (leading_number(count)[0] or 0) < LONG_MAX:
            unexpanded = [f"Failed to expand list: '{text}'"] if slurm >= "23.02" else []
            raise RefusedError(f"Invalid {kind} multiplier: {count}", *unexpanded)
        wrong = "[^0-9a-fA-F]" if kind == "mask_mem" else "[^0-9]"
        if (character := byte_of(number, wrong)) is not None:
            raise RefusedError(f"Failed to validate number: {number}, the offending character is {character}")
    if not text.strip(",") and slurm >= "23.02":
        raise RefusedError(f"Failed to expand list: '{text}'")


def distribution(text: str) -> tuple[str, int]:
    """Base and plane size of --distribution.

    Raises:
        RefusedError: sbatch refuses it.
    """
    bad = "Invalid --distribution specification"
    if fold(text).startswith("plane"):
        size, rest = leading_number(text.partition("=")[2])
        if size is None or rest or not 0 < size <= INT_MAX:
            raise RefusedError("Invalid plane size or size not specified", bad)
        return "plane", size
    base_text, _, flag = fold(text).partition(",")
    levels = [level for level in base_text.split(":") if level]
    base = ":".join(levels)
    if not base or len(levels) > 3 or flag not in ("", "pack", "nopack"):
        raise RefusedError(bad)
    if base in ("arbitrary", "hostfile"):
        return "arbitrary", 0
    if base not in ("pack", "nopack") and not (
        levels[0] in ("block", "cyclic", "*") and {*levels[1:]} <= {"block", "cyclic", "fcyclic", "*"}
    ):
        raise RefusedError(bad)
    return base, 0
