"""The values of --distribution, --gpu-bind and --tres-bind.

Of a binding only the kind is checked, not the numbers after it. Source: sbatch(1), Slurm 22.05 to 26.05, and
the behaviour of sbatch 22.05.8 and 26.05.5.
"""

from __future__ import annotations

from sbatchgen.sbatch.grammar import INT_MAX, RefusedError, fold, leading_number

_NUMBERED_BINDINGS = ("map_gpu:", "mask_gpu:", "per_task:", "single:")
_OLD_BINDINGS = ("c", "n", *_NUMBERED_BINDINGS)
_BINDINGS = ("closest", "none", "map:", "mask:", *_NUMBERED_BINDINGS)
_SHARED_BINDINGS = ("none", "per_task:")


def is_gpu_binding(text: str, *, slurm: str) -> bool:
    """Whether a --gpu-bind names a known kind of binding."""
    if slurm >= "23.11":
        return is_resource_binding(f"gres/gpu:{text}")
    return fold(text.partition(";")[0]).removeprefix("verbose,").startswith(_OLD_BINDINGS)


def is_resource_binding(text: str) -> bool:
    """Whether each item of a --tres-bind names a resource and a known kind of binding."""
    for item in filter(None, text.split("+")):
        kind, _, value = item.partition(":")
        words = _SHARED_BINDINGS if kind in ("gres/mps", "gres/shard") else _BINDINGS
        if not kind.startswith("gres/") or not fold(value).removeprefix("verbose,").startswith(words):
            return False
    return True


def distribution(text: str) -> tuple[str, int]:
    """Base and plane size of --distribution.

    Raises:
        RefusedError: sbatch refuses it.
    """
    if fold(text).startswith("plane"):
        size, rest = leading_number(text.partition("=")[2])
        if size is None or rest or not 0 < size <= INT_MAX:
            raise RefusedError("Invalid plane size or size not specified")
        return "plane", size
    base_text, _, flag = fold(text).partition(",")
    levels = [level for level in base_text.split(":") if level]
    base = ":".join(levels)
    if not base or len(levels) > 3 or flag not in ("", "pack", "nopack"):
        raise RefusedError("Invalid --distribution specification")
    if base in ("arbitrary", "hostfile"):
        return "arbitrary", 0
    if base not in ("pack", "nopack") and not (
        levels[0] in ("block", "cyclic", "*") and {*levels[1:]} <= {"block", "cyclic", "fcyclic", "*"}
    ):
        raise RefusedError("Invalid --distribution specification")
    return base, 0
