"""The values of --cpu-freq and --gpu-freq.

Source: sbatch(1), Slurm 22.05 to 26.05, and the behaviour of sbatch 22.05.8 and 26.05.5.
"""

from __future__ import annotations

from sbatchgen.sbatch.grammar import LONG_MAX, NO_VAL, RefusedError, fold, leading_number

_NAMED_KHZ = 0x80000000  # a bit that marks a frequency that has a name
_FREQUENCIES = (("lo", 1), ("him1", 4), ("highm1", 4), ("hi", 3), ("med", 2))
_GOVERNORS = {
    "co": "Conservative",
    "perf": "Performance",
    "pow": "PowerSave",
    "user": "UserSpace",
    "onde": "OnDemand",
    "sche": "SchedUtil",
}
_ALLOWED = ("OnDemand", "Performance", "UserSpace")  # CpuFreqGovernors of a slurm.conf that does not say
_NO_GOVERNOR = (
    "You must explicitly choose a governor when defining a range. Please specify only one value for the "
    "desired frequency (p1) or choose a specific governor (p3)."
)
_ONE_FREQUENCY = (
    "Please specify only one value for the desired frequency (p1) or choose a different governor."
)


class _WrongError(Exception):
    """What sbatch says is the exception's text, if it says anything."""


def check_cpu_frequency(text: str, *, slurm: str) -> None:
    """Refuse a --cpu-freq that sbatch refuses.

    Raises:
        RefusedError: It does.
    """
    low, high, last = _parts(text)
    governor = _governor(low) if last is None else ""
    complaints: list[str] | None = None
    try:
        _check_range(low, high, last, slurm)
        governor = _checked_governor(governor, high, last, slurm)
    except _WrongError as error:
        complaints = [str(error)] if str(error) else []
    if governor and governor not in _ALLOWED:
        complaints = [*(complaints or []), f"governor of {text} is not allowed in slurm.conf"]
    if complaints is not None:
        raise RefusedError(*complaints, "Invalid --cpu-freq argument")


def _parts(text: str) -> tuple[str, str | None, str | None]:
    """Lower or only frequency, upper one, governor; None where there is none."""
    head, colon, governor = text.partition(":")
    low, dash, high = text.partition("-")
    if not dash:
        low = head
    elif colon and len(low) < len(head):
        high = head[len(low) + 1 :]
    return low, high if dash else None, governor if colon else None


def _check_range(low: str, high: str | None, last: str | None, slurm: str) -> None:
    """Refuse frequencies that do not go together."""
    least = NO_VAL
    if not _governor(low):
        least = _khz(low, slurm)
    elif last is not None:
        raise _WrongError(f"governor cannot be specified twice {low}{{-}}:{last} in --cpu-freq")
    if high is None:
        return
    if slurm >= "23.11" and last is None:  # and CpuFreqDef is not set
        raise _WrongError(_NO_GOVERNOR)
    if _khz(high, slurm) < least:
        raise _WrongError(f"min cpu-frec ({low}) must be < max cpu-freq ({high})")


def _checked_governor(first: str, high: str | None, last: str | None, slurm: str) -> str:
    """The governor, given as the only value or as the last."""
    if last is None:
        return first or ("UserSpace" if slurm >= "23.11" and high is None else "")
    if slurm < "23.11" and high is None:
        raise _WrongError(f"gov on cpu-frec ({last}) illegal without max")
    if not (governor := _governor(last)):
        raise _WrongError(f"illegal governor: {last} on --cpu-freq")
    if high is None and governor != "UserSpace":
        raise _WrongError(f"gov on cpu-frec ({last}) illegal without max")
    if slurm >= "23.11" and high is not None and governor == "UserSpace":
        raise _WrongError(f"{last} governor does not support a range. {_ONE_FREQUENCY}")
    return governor


def _governor(text: str) -> str:
    return next((name for prefix, name in _GOVERNORS.items() if fold(text).startswith(prefix)), "")


def _khz(text: str, slurm: str) -> int:
    for prefix, number in _FREQUENCIES:
        if fold(text).startswith(prefix):
            return _NAMED_KHZ + number
    value, rest = leading_number(text)
    if slurm >= "23.11" and not rest and not value:
        raise _WrongError
    if (rest and slurm >= "23.11") or not (value or 0) % 2**32:
        raise _WrongError(f'unrecognized --cpu-freq argument "{text}"')
    return (value or 0) % 2**32


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
