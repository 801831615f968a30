"""The values that sbatch checks before it asks slurmctld: times, sizes, counts, signals and words.

sbatch refuses each value that this module refuses. A few rare values pass here although sbatch refuses them.
Source: sbatch(1), Slurm 22.05 to 26.05, and the behaviour of sbatch 22.05.8 and 26.05.5.
"""

import re
import signal as signals
from typing import NamedTuple

from sbatchgen.base import units
from sbatchgen.check.sbatch.option_table import value_kinds

BLANKS = " \t\n\v\f\r"  # the blanks of C's isspace
INFINITE = 0xFFFFFFFF  # the number of minutes that means "no time limit"
_MAIL_EVENTS = """
NONE BEGIN END FAIL REQUEUE ALL INVALID_DEPEND STAGE_OUT ARRAY_TASKS TIME_LIMIT TIME_LIMIT_50 TIME_LIMIT_80
TIME_LIMIT_90
"""
MAIL_EVENTS = frozenset(_MAIL_EVENTS.split())
# A value of --signal, such as B:USR1@120: flags, the signal, and the seconds before the time limit.
_SIGNAL = re.compile(r"(R?B?R?):?\s*[+-]?(?:SIG)?(\w+)\s*(@\s*\+?([0-9]*))?", re.IGNORECASE | re.ASCII)
_SIGNAL_NAMES = "HUP INT QUIT ABRT KILL ALRM TERM USR1 USR2 URG CONT STOP TSTP TTIN TTOU XCPU CHLD PIPE"
_SIGNALS = frozenset(_SIGNAL_NAMES.split())
_DEFAULT_LEAD_S = 60  # seconds between the signal and the time limit, without @
_LARGEST_LEAD_S = 0xFFFF  # the largest number after @ that sbatch takes
_COUNT = re.compile(r"\s*\+?([0-9]+)")  # such as 4 and +4
_NEGATIVE = re.compile("-[0-9]+")  # such as -1
_DAYS = re.compile("[0-9]+-")  # a time that is only days, such as 2-
_NODE_STEPS = re.compile("([0-9]+)-([0-9]+):([0-9]+)")  # such as 1-15:4
_NODE_COUNTS = re.compile(r"\s*\+?([0-9]*)(?:-([0-9]*))?")  # an item of a list, such as 4 and 2-8
# A range of nodes, such as 4, 2-8, 1k and 2-.
_NODE_RANGE = re.compile(r"\s*\+?([0-9]*)([km]*)\s*(?:(-)\s*\+?([0-9]*)([km]*))?\s*", re.IGNORECASE)
# The constants up to _CPU_GOVERNOR are parts of _PATTERNS. Their comments show values that they match.
_RLIMIT = "(ALL|NONE|(RLIMIT_)?(AS|CORE|CPU|DATA|FSIZE|MEMLOCK|NOFILE|NPROC|RSS|STACK))"  # --propagate=CORE
_GPU_CLOCK = r"((memory=)?(low|medium|highm1|high|\d+)|verbose)"  # --gpu-freq=memory=high
# --begin and --deadline. _DATE matches 2026-01-31, 1/31/26, 1.31 and 013126, but not 2026-01-1.
_DAY = "(0?[1-9]|[12][0-9]|3[01])"
_DATE = (
    rf"[0-9]{{4}}-(0[1-9]|1[0-2])-(?!\d\b){_DAY}|(0?[1-9]|1[0-2])[/.]{_DAY}([/.][0-9]{{2}})?"
    r"|(0[1-9]|1[0-2])(0[1-9]|[12][0-9]|3[01])([0-9]{2})?"
)
_HOUR = "([01]?[0-9]|2[0-3]):[0-5][0-9](:[0-5][0-9])?"  # 23:59
_AM_PM = r"(0?[0-9]|1[0-2]):[0-5][0-9](:[0-5][0-9])?\s*[ap]m"  # 9:30 am
# noon, today. Not Today: sbatch takes its capital T for the separator between a date and an hour.
_TIME_WORD = r"(?-i:t)(oday|omorrow|eatime)|midnight|noon|fika|elevenses|uts[0-9]+"
# now+2hours
_FROM_NOW = rf"now\s*([+-]\s*[0-9]+\s*((second|minute|hour|day|week)s?\s*({_TIME_WORD})?)?\s*)?"
_SAMPLING = "([0-9]|(task|energy|network|filesystem)=[0-9])[^,]*"  # --acctg-freq=task=30
# --mem-bind=local, --mem-bind=map_mem:0,1
_MEM_BIND = "(quiet|q|verbose|v|none|no|rank|local|prefer|p|sort|nosort|help|ma(p|sk)_mem:[0-9a-fx,]+)"
# --gres-flags=enforce-binding
_GRES_SHARING = "(disable-binding|enforce-binding|(one-task|multiple-tasks)-per-sharing)"
# --cpu-freq=2400000 and --cpu-freq=high; of a word, sbatch compares the first two letters.
_CPU_CLOCK = "([1-9]|lo|hi|me)[^:-]*"
_CPU_GOVERNOR = "(co|on|pe|po|us|sc)[^:-]*"  # --cpu-freq=performance
_PATTERNS = {  # kind of value in options.txt -> all values that sbatch of any release takes
    "acctg-freq": f"(({_SAMPLING})?(,|$))*",
    "cpu-freq": f"{_CPU_CLOCK}|{_CPU_GOVERNOR}|{_CPU_CLOCK}-{_CPU_CLOCK}(:(?!.*,){_CPU_GOVERNOR})?",
    "distribution": r"(plane|(no)?pack).*|arbitrary|hostfile|:*(block|cyclic|\*)[:*a-z]*(,(no)?pack)?",
    "exclusive": "|exclusive|oversubscribe|user|mcs|topo|allocation",
    "sockets": r"([0-9-]*|\*)(:([0-9-]*|\*)){0,2}|(([0-9-]*|\*):){3}.*",
    "file": ".+",
    "gpu-bind": "(verbose,)?(closest.*|none.*|per_task:.*|single:.*|ma(p|sk)(_gpu)?:.*)|verbose,?",
    "gpu-freq": f"{_GPU_CLOCK}(,{_GPU_CLOCK})*",
    "gres-flags": f"({_GRES_SHARING}(,{_GRES_SHARING})*)?",
    "hint": "((compute_bound|memory_bound|(no)?multithread)([,;]|$))+",
    "mem-bind": f"{_MEM_BIND}([,;]{_MEM_BIND})*",
    "moment": rf"(?=.*\w)[\sT-]*(({_AM_PM}|{_HOUR}|{_DATE}|{_TIME_WORD})[\sT-]*){{0,9}}({_FROM_NOW})?",
    "no-kill": "|no|off|set",
    "open-mode": "[at].*",
    "priority": "[^-].*|-[^1-9]*|",
    "profile": ".*(all|energy|lustre|network|none|task).*",
    "propagate": f"|(?-i:{_RLIMIT}(,{_RLIMIT})*)",
    "requeue": "|expedite",
    "segment": r"\s*\+?\d*",
    "specialized": r"\s*\+?\d*",
    "user-env": "[0-9]*[ls]?",
    "env-file": "[^$~].*",  # sbatch expands neither $ nor ~
    "yes-no": "yes|no",
    "zero-one": r"|\s*\+?0*[01]",
}
# Further patterns that values must match in some releases: the kind of value, the first of these releases,
# the first release after them, and the pattern.
_RELEASE_PATTERNS = (
    ("gres-flags", "", "23.11", "(disable|enforce)-binding"),
    ("cpu-freq", "26.05", "99", "[0-9]+|[^0-9][^-]*|.*:.*"),
)
_MESSAGES = {  # kind of value -> sbatch's message for the option {0} with the value {1}
    "acctg-freq": "Invalid --{0} specification: {1}",
    "cpu-freq": "Invalid --{0} argument",
    "sockets": 'Invalid numeric value "{1}" for -B.',
    "gpu-bind": "Invalid --{0} argument",
    "gpu-freq": "Invalid --{0} argument",
    "hint": 'unrecognized --{0} argument "{1}"',
    "mem-bind": 'unrecognized --{0} argument "{1}"',
    "priority": "Priority must be >= 0",
    "profile": "invalid --{0}={1} option",
    "propagate": "--{0}={1} is not valid.",
    "specialized": 'Invalid numeric value "{1}" for --{0}.',
    "env-file": "Could not open user environment file {1}",
}


class Message(NamedTuple):
    """A message of sbatch that refuses a script."""

    text: str = ""  # the part of the message that names the reason; "" if sbatch only prints a help text
    line: int = 0  # the line that the message is about; 0 if it is about several lines
    column: int = 0  # the column in the line


class RefusedError(Exception):
    """Raised for a job that sbatch refuses; the arguments are the fields of a Message."""


class Signal(NamedTuple):
    """A value of --signal, such as B:USR1@120."""

    flags: str  # "B", "R", "BR" or ""
    number: int  # the number of the signal
    seconds: int  # how long before the time limit Slurm sends the signal


def check_value(option: str, text: str, *, slurm: str) -> None:
    """Raise RefusedError for a value that sbatch refuses."""
    kind = value_kinds().get(option, "")
    if kind in ("count", "switches"):
        count(option, text.partition("@")[0] if kind == "switches" else text, slurm=slurm)
    elif kind == "nodes":
        node_range(text, slurm=slurm)
    elif kind == "gres" and fold(text) in ("help", "list"):
        raise RefusedError  # sbatch prints a help text and ends
    elif not (_is_accepted(kind, text) and _is_accepted_in_release(slurm, kind, text)):
        raise RefusedError(_MESSAGES.get(kind, "Invalid --{0} specification").format(option, text))


def _is_accepted(kind: str, text: str) -> bool:
    """Return whether sbatch of any release takes a value of this kind."""
    if pattern := _PATTERNS.get(kind):
        return _matches(pattern, text)
    if kind == "mail":
        return not MAIL_EVENTS.isdisjoint(fold(text).upper().split(","))
    readers = {"time": minutes, "memory": mebibytes, "signal": read_signal}
    return kind not in readers or readers[kind](text) is not None


def _matches(pattern: str, text: str) -> bool:
    """Return whether a pattern matches a whole text. Capitals do not matter."""
    return re.fullmatch(pattern, text, re.IGNORECASE | re.ASCII | re.DOTALL) is not None


def _is_accepted_in_release(slurm: str, kind: str, text: str) -> bool:
    """Return whether sbatch of a release takes a value that `_is_accepted` accepts."""
    for name, since, before, pattern in _RELEASE_PATTERNS:
        if name == kind and since <= slurm < before and not _matches(pattern, text):
            return False
    return True


def fold(text: str) -> str:
    """Return the text with ASCII's capitals in lower case, as C's strcasecmp compares texts."""
    return text.lower() if text.isascii() else re.sub("[A-Z]+", lambda match: match[0].lower(), text)


def count(option: str, text: str, *, slurm: str) -> int:
    """Return the count in an option such as --ntasks; raise RefusedError if sbatch refuses the text."""
    match = _COUNT.fullmatch(text)
    value = units.number(match[1]) if match else 0
    if not value:
        raise RefusedError(f'Invalid numeric value "{text}" for --{option}.')
    if value >= units.COUNT_MAX and slurm >= "23.02":
        raise RefusedError(f"Numeric argument ({value}) {'too large' if slurm >= '23.11' else 'to big'}")
    return value


def minutes(text: str) -> int | None:
    """Return the minutes of a time limit, rounded up; INFINITE for no limit, None for an invalid time."""
    if fold(text) in ("infinite", "unlimited") or _NEGATIVE.fullmatch(text):
        return INFINITE  # Slurm takes a negative time for a very long time
    seconds = units.seconds(f"{text}0" if _DAYS.fullmatch(text) else text)
    return None if seconds is None else -(-seconds // 60)


def mebibytes(text: str) -> int | None:
    """Return the MiB of a memory size, such as 4096 for 4G; None for an invalid size."""
    # sbatch takes a plus sign, and a minus sign before 0.
    return units.mebibytes(re.sub(r"^\s*(?:\+|-(?=0+(?![0-9])))?", "", text))


def node_range(text: str, *, slurm: str) -> tuple[int, int]:
    """Return the smallest and the largest number of nodes; raise RefusedError if sbatch refuses the text.

    The largest number is 0 in 2-0, which means no largest number. Since 23.02 the text may be a list, such as
    2,4,8 or 2-4,8, or a range with a step, such as 1-15:4.
    """
    if slurm >= "23.02" and ("," in text or ":" in text):
        return _range_of_list(text)
    match = _NODE_RANGE.fullmatch(text)
    if match is None or not (match[1] or match[3]) or (match[2] and not match[1]):
        raise RefusedError(f'"{text}" is not a valid node count')
    low = _nodes(match[1], match[2]) if match[1] else 1
    if not match[3]:
        return low, low
    high = _nodes(match[4], match[5]) if match[4] else -1  # sbatch refuses 2- with this number
    if high and high < low:
        raise RefusedError(f"Maximum node count {high} is less than minimum node count {low}")
    return low, high


def _range_of_list(text: str) -> tuple[int, int]:
    """Return the smallest and the largest number of a list; raise RefusedError if sbatch refuses it.

    As sbatch reads it, a step excludes the last number: 1-5:4 is 1. A missing number is 0.
    """
    spans: list[range] = []
    if steps := _NODE_STEPS.fullmatch(text):
        first, end, step = map(units.number, steps.groups())
        spans += [range(first, end, step)] if step and first <= end else []
    for item in () if steps else text.split(","):
        if not (counts := _NODE_COUNTS.fullmatch(item)):
            break
        first = units.number(counts[1])
        spans.append(range(first, 1 + (first if counts[2] is None else units.number(counts[2]))))
    else:
        if filled := [span for span in spans if span]:
            return min(span[0] for span in filled), max(span[-1] for span in filled)
        if spans:
            raise RefusedError("invalid number of nodes (-N -1--1)")
    raise RefusedError(f'"{text}" is not a valid node count')


def _nodes(digits: str, letters: str) -> int:
    """Return the number in a count of nodes, such as 2048 for 2k; sbatch reads only the first letter."""
    factors = {"k": 1024, "m": 1024**2}
    return units.number(digits) * (factors[letters[0].lower()] if letters else 1)


def read_signal(text: str) -> Signal | None:
    """Return the parts of a value of --signal; None for an invalid value."""
    match = _SIGNAL.fullmatch(text.strip(BLANKS))
    if match is None:
        return None
    name = match[2].upper()
    number = units.number(name) if name.isdecimal() else 0
    number = signals.Signals[f"SIG{name}"] if name in _SIGNALS else number
    lead = units.number(match[4]) if match[3] else _DEFAULT_LEAD_S
    return Signal(match[1].upper(), int(number), lead) if number and lead <= _LARGEST_LEAD_S else None
