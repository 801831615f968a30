"""Types of Slurm's quantities and of texts in jobs and profiles, each with a `parse` that checks a text.

`parse` raises ValueError with one sentence, or RefusedValueError, which also has a fix. Times and memory have
the forms of sbatch(1), options --time and --mem.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

# The releases of Slurm that sbatchgen knows.
RELEASES = ("20.11", "21.08", "22.05", "23.02", "23.11", "24.05", "24.11", "25.05", "25.11", "26.05")
NEWEST = RELEASES[-1]
GRES = (  # such as gpu:a100:4 or shard=16; a pattern of `re`, compiled at its first use
    r"(?a:(?P<name>[A-Za-z_][\w.-]*)(?:[:=](?P<type>\w[\w.-]*))??(?:[:=](?P<count>[0-9]+)(?P<unit>[KMGTPkmgtp]?))?)"
)
_TIME = re.compile("(?:([0-9]+)-)?([0-9]+)(?::([0-9]+))?(?::([0-9]+))?")  # [days-]number[:number[:number]]
_MEMORY = re.compile("([0-9]+)(?:([KMGT])B?)?", re.IGNORECASE)
_KIB = {"K": 1, "M": 1024, "G": 1024**2, "T": 1024**3}  # the KiB of each unit
# A weight of billing, such as Mem=0.25G; a pattern of `re`, compiled at its first use.
_WEIGHT = r"(?i:(CPU|Mem|GRES/gpu|Node)=([0-9]{1,9}(?:\.[0-9]{1,9})?)([KMGT]?))"
COUNT_MAX = 2**31 - 1  # Slurm keeps counts and seconds in C's int
_MEMORY_MAX = 1 << 40  # the most memory that a request may have, in MiB
VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")  # a variable that the job expands in paths and `env`
_DIGITS_MAX = 1000  # digits of a number in a text; Python can read 4300 digits


class RefusedValueError(ValueError):
    """A value that no job can have, with a fix: the text to type instead."""

    def __init__(self, what: str, fix: str = "") -> None:
        super().__init__(what)
        self.fix = fix


def whole_number(text: str) -> int:
    """Return a whole number that is negative or fits Slurm's counts; raises ValueError for other texts."""
    if re.fullmatch("-?[0-9]+", text) is None:
        raise ValueError(f"'{text}' is not a whole number")
    value = number(text.removeprefix("-"))
    if value > COUNT_MAX:
        raise ValueError(f"'{text}' is out of range: counts go up to {COUNT_MAX}")
    return -value if text.startswith("-") else value


def number(digits: str) -> int:
    """Return digits as a number: 0 for "", and 10**20, which is above every limit, for 20 digits or more."""
    digits = digits.lstrip("0")
    return int(digits or "0") if len(digits) < 20 else 10**20


def seconds(text: str) -> int | None:
    """Return the seconds of a time: M, M:S, H:M:S, D-H, D-H:M or D-H:M:S; None if Slurm would refuse it."""
    match = _TIME.fullmatch(text)
    if match is None:
        return None
    first, second, third = (number(part or "") for part in match.groups()[1:])
    if match[1] is not None:
        return 86400 * number(match[1]) + 3600 * first + 60 * second + third
    is_minutes_and_seconds = match[4] is None
    return 60 * first + second if is_minutes_and_seconds else 3600 * first + 60 * second + third


def meant_time(text: str) -> str:
    """Return the time limit that a text with a unit means, such as 2h or 30 min; "" for another text."""
    units = "s(?:ec(?:ond)?s?)?|m(?:in(?:ute)?s?)?|h(?:(?:ou)?rs?)?|d(?:ays?)?"
    match = re.fullmatch(f"([0-9]{{1,6}}) ?({units})", text.strip().lower())
    if match is None:
        return ""
    return str(Duration(int(match[1]) * {"s": 1, "m": 60, "h": 3600, "d": 86400}[match[2][0]]))


def mebibytes(text: str) -> int | None:
    """Return the MiB of a memory size as Slurm reads it, rounded up; None for a text that is not a size."""
    match = _MEMORY.fullmatch(text)
    return -(-number(match[1]) * _KIB[(match[2] or "M").upper()] // 1024) if match else None


def elapsed(duration: float) -> str:
    """Return seconds as H:MM:SS or D-H:MM:SS, as Slurm prints them."""
    days, rest = divmod(round(duration), 86400)
    return f"{f'{days}-' if days else ''}{rest // 3600}:{rest // 60 % 60:02}:{rest % 60:02}"


def in_seconds(duration: float) -> str:
    """Return a duration of some seconds as people read it: 1.5 s, 12 s."""
    return f"{duration:.0f} s" if duration >= 10 else f"{duration:.1f} s"


def in_units(duration: float) -> str:
    """Return seconds in the largest unit that gives two or more: 4 s, 5 min or 3 h."""
    for unit, name in ((3600, "h"), (60, "min")):
        if duration >= 2 * unit:
            return f"{duration / unit:.0f} {name}"
    return f"{duration:.0f} s" if duration >= 1 else "less than 1 s"


def in_bytes(size: int) -> str:
    """Return a size as people read it: 40 KiB, 1.5 MiB, 12 MiB, 2.25 GiB."""
    mib = size / (1 << 20)
    if mib < 1:
        return f"{-(-size >> 10)} KiB"
    return f"{mib / 1024:.3g} GiB" if mib >= 1024 else f"{mib:.{int(mib < 10)}f} MiB"


def as_requested(mib: int) -> str:
    """Return an amount of memory in the unit in which people request it: 900M, 1.5G."""
    return f"{mib}M" if mib < 1024 else f"{mib / 1024:.1f}".removesuffix(".0") + "G"


def is_utf8(text: str) -> bool:
    """Return whether a text can be written as UTF-8. Arguments of a command may hold any bytes."""
    return text.isascii() or re.search(r"[\ud800-\udfff]", text) is None


class Port(int):
    """A port that a job may listen on."""

    FIRST, LAST = 1024, 65535

    @classmethod
    def parse(cls, text: str) -> Port:
        """Return a port from 1024 to 65535."""
        value = whole_number(text)
        if not cls.FIRST <= value <= cls.LAST:
            raise ValueError(f"'{text}' is not a port for jobs: use {cls.FIRST} to {cls.LAST}")
        return cls(value)


class Count(int):
    """A number of things, at least one."""

    @classmethod
    def parse(cls, text: str) -> Count:
        """Return a number that is 1 or more."""
        value = whole_number(text)
        if value < 1:
            raise ValueError(f"'{text}' must be 1 or more")
        return cls(value)


class Restarts(int):
    """A number of restarts, which may be 0."""

    @classmethod
    def parse(cls, text: str) -> Restarts:
        """Return a number that is 0 or more."""
        value = whole_number(text)
        if value < 0:
            raise RefusedValueError(f"'{text}' is negative", "set it to 0 for no restarts")
        return cls(value)


class NodeRange(str):
    """A range of numbers of nodes: 4, 1-91, or 184- for 184 and more."""

    @classmethod
    def parse(cls, text: str) -> NodeRange:
        """Return a range that starts at 1 or more, and does not end before its start."""
        result = cls(text)
        if (
            re.fullmatch("[0-9]{1,9}(?:-(?:[0-9]{1,9})?)?", text) is None
            or not 1 <= result.first <= result.last
        ):
            raise ValueError(f"'{text}' is not a number of nodes, as 4, 1-91 or 184-")
        return result

    @property
    def first(self) -> int:
        """The smallest number of nodes."""
        return int(self.partition("-")[0])

    @property
    def last(self) -> int:
        """The largest number of nodes."""
        first, dash, last = self.partition("-")
        return int(last or COUNT_MAX) if dash else int(first)


class Duration(int):
    """A Slurm time limit in seconds, printed as D-HH:MM:SS, which can't be misread."""

    SHORTEST_S = 0
    written = ""  # the text that was parsed

    @classmethod
    def parse(cls, text: str) -> Duration:
        """Return the time of minutes, H:M:S or a form with days. MM:SS is refused: most people mean hours."""
        if re.fullmatch("[0-9]+:[0-9]+", text):
            left, right = text.split(":")
            forms = [f"{int(left):02}:{right}:00", f"00:{int(left):02}:{right}"]
            raise ValueError(
                f"time '{text}' is ambiguous: Slurm reads {left} minutes {right} seconds; "
                f"write {' or '.join(form for form in forms if cls._is_allowed(form))}"
            )
        total = seconds(text)
        if total is None:
            meant = meant_time(text) or "HH:MM:SS or D-HH:MM:SS"
            meant = meant if cls._is_allowed(meant) else f"{cls(cls.SHORTEST_S)} or more"
            raise ValueError(f"'{text}' is not a time; write {meant}")
        if any(number(field) > 59 for field in text.split(":")[1:]):
            raise ValueError(f"'{text}' has more than 59 minutes or seconds in its field")
        if total > COUNT_MAX:
            raise ValueError(f"time '{text}' is longer than {COUNT_MAX // 86400} days, Slurm's maximum")
        result = cls(total)
        result.written = text
        return result

    @classmethod
    def _is_allowed(cls, text: str) -> bool:
        """Return whether a fix may propose a text: a time that is long enough, or the name of a form."""
        total = seconds(text)
        return total is None or total >= cls.SHORTEST_S

    def __str__(self) -> str:
        days, rest = divmod(int(self), 86400)
        return f"{days}-{rest // 3600:02}:{rest // 60 % 60:02}:{rest % 60:02}"


class TimeLimit(Duration):
    """The time limit of a job, of at least a minute."""

    SHORTEST_S = 60

    @classmethod
    def parse(cls, text: str) -> TimeLimit:
        """Return a time; refuse the times that `Duration` refuses, and times below a minute."""
        result = super().parse(text)
        if result < cls.SHORTEST_S:
            what = f"time {result} is less than a minute, the shortest limit that Slurm has"
            raise RefusedValueError(what, "set at least 00:01:00")
        return result  # type: ignore[return-value]


class Period(int):
    """A short time in seconds, printed with its unit."""

    @classmethod
    def parse(cls, text: str) -> Period:
        """Return a number with a unit: 60s, 10m, 2h."""
        total = seconds(meant_time(text)) if meant_time(text) else None
        if not total:
            raise ValueError(f"'{text}' is not a time with a unit, as 60s, 10m or 2h")
        return cls(total)

    def __str__(self) -> str:
        return f"{int(self) // 60}m" if self and self % 60 == 0 else f"{int(self)}s"


class Hours(float):
    """Hours of GPUs or CPUs, printed with up to four decimals."""

    @classmethod
    def parse(cls, text: str) -> Hours:
        """Return the hours of a decimal number, or of a time such as 1-00:00:00 or 30m."""
        if re.fullmatch(r"-?[0-9]{1,9}(?:\.[0-9]{1,9})?", text):
            return cls(text)
        meant = meant_time(text) or text
        # A time has a colon, or a dash after its days. `Duration` would read a long number as minutes.
        if ":" in meant or "-" in meant.strip("-"):
            return cls(Duration.parse(meant) / 3600)
        raise ValueError(f"'{text}' is not a number of hours, as 1.5, 30m or 1-12:00:00")

    def __str__(self) -> str:
        return f"{float(self):,.4f}".rstrip("0").rstrip(".")


class Moment(str):
    """A moment, such as 2026-01-31T12:00:00+01:00; without a zone it is in this machine's time zone."""

    @classmethod
    def parse(cls, text: str) -> Moment:
        """Return a date, perhaps with a time of day, in a form of ISO 8601."""
        result = cls(text)
        try:
            result.epoch  # noqa: B018 - raises if the text is not a time
        except (ValueError, OverflowError):
            raise ValueError(f"'{text}' is not a time, as 2026-01-31T12:00:00+01:00") from None
        return result

    @property
    def epoch(self) -> float:
        """The seconds since 1970."""
        from datetime import datetime  # only profiles with reservations need it

        return datetime.fromisoformat(self).timestamp()


class Memory(int):
    """A Slurm memory size in MiB, printed in the largest unit that holds it exactly."""

    written = ""  # the text that was parsed

    @classmethod
    def parse(cls, text: str) -> Memory:
        """Return the size of an integer with K, M, G or T; the default unit is MiB. 0 is the whole node."""
        mib = mebibytes(text)
        if mib is None:
            raise ValueError(f"'{text}' is not a memory size; write an integer with K, M, G or T, as 64G")
        if mib > _MEMORY_MAX:
            raise ValueError(f"'{text}' is more than the maximum of {cls(_MEMORY_MAX)}")
        result = cls(mib)
        result.written = text
        return result

    def __str__(self) -> str:
        for unit, mib in (("T", 1024**2), ("G", 1024)):
            if self and self % mib == 0:
                return f"{self // mib}{unit}"
        return f"{int(self)}M" if self else "0"


class Text(str):
    """One line of text. Control characters are refused, as they could start a new line of the script."""

    @classmethod
    def parse(cls, text: str) -> Text:
        """Return the text; refuse control characters, broken UTF-8, and numbers of a thousand digits."""
        if not text.isprintable() and re.search(r"[\x00-\x1f\x7f\x85\u2028\u2029]", text):
            raise ValueError(f"{text!r} holds a control character")
        if not is_utf8(text):
            raise ValueError(f"{text!r} is not valid UTF-8")
        if len(text) > _DIGITS_MAX and re.search(f"[0-9]{{{_DIGITS_MAX}}}", text):
            raise ValueError(f"'{text}' holds a number of {_DIGITS_MAX} digits or more")
        return cls(text)


class Weights(Text):
    """The cost of a unit of each resource, like slurm.conf's TRESBillingWeights: CPU=1.0,Mem=0.25G."""

    @classmethod
    def parse(cls, text: str) -> Weights:
        """Return the weights of CPU, Mem (with a unit), GRES/gpu and Node."""
        if not all(re.fullmatch(_WEIGHT, item) for item in text.split(",")):
            raise ValueError(f"'{text}' does not give weights; write CPU=1.0,Mem=0.25G,GRES/gpu=2.0")
        return cls(Text.parse(text))

    def cost(self, *, cpus: int, mib: int | None, gpus: float) -> float | None:
        """Return the cost of this part of a node; None if its memory has a cost, but is not known."""
        total = 0.0
        for name, weight, unit in re.findall(_WEIGHT, self):
            amount = {"cpu": cpus, "gres/gpu": gpus, "node": 1, "mem": mib}.get(name.lower())
            if amount is None:
                return None
            units_per_mib = 1024 / _KIB[(unit or "M").upper()] if name.lower() == "mem" else 1
            total += float(weight) * amount * units_per_mib
        return total


class OptionValue(Text):
    """The value of an option of sbatch."""

    @classmethod
    def parse(cls, text: str) -> OptionValue:
        """Return the value; refuse the texts that `Text` refuses, and an empty value."""
        if not text:
            raise RefusedValueError("the value is empty", "leave the option out, or give it a value")
        return cls(Text.parse(text))


class GpuOption(OptionValue):
    """A number of GPUs, with or without their type: 4, or a100:4."""

    @classmethod
    def parse(cls, text: str) -> GpuOption:
        """Return the value; refuse texts that `OptionValue` refuses, and other forms than [type:]count."""
        if re.fullmatch(r"(?:[\w.-]+:)?[1-9]\d*", OptionValue.parse(text)) is None:
            raise RefusedValueError(f"'{text}' is not [type:]count", "write 4, or a100:4")
        return cls(text)


class Argument(str):
    """An argument of a command or the value of an environment variable; it may hold line breaks."""

    @classmethod
    def parse(cls, text: str) -> Argument:
        """Return the argument; refuse NUL and broken UTF-8."""
        if "\0" in text:
            raise ValueError(f"{text!r} holds a NUL character")
        if not is_utf8(text):
            raise ValueError(f"{text!r} is not valid UTF-8")
        return cls(text)


class Release(Text):
    """A release of Slurm, such as 24.05 or 24.05.3."""

    @classmethod
    def parse(cls, text: str) -> Release:
        """Return a release whose first two numbers are in RELEASES."""
        if re.fullmatch(r"[0-9]{2}\.[0-9]{2}(?:\.[0-9]+)?", text) is None or text[:5] not in RELEASES:
            raise ValueError(f"'{text}' is not a release of Slurm that is known here: {', '.join(RELEASES)}")
        return cls(text)


class ShellPath(Text):
    """A path in which the job expands ${NAME}, such as ${USER} or ${SLURM_JOB_ID}."""

    @classmethod
    def parse(cls, text: str) -> ShellPath:
        """Return the path; refuse an empty path, a leading ~ or -, and variables in another form."""
        Text.parse(text)
        if not text:
            raise ValueError("a path is empty")
        if text.startswith("~"):
            raise ValueError(f"'{text}' starts with ~, which is not expanded here; write ${{HOME}}/...")
        if text.startswith("-"):
            raise ValueError(f"path '{text}' starts with a dash; write ./{text}")
        if re.search(r"\$[{A-Za-z_]", VARIABLE.sub("", text)):
            raise ValueError(f"'{text}' holds a variable that is not expanded; write it as ${{NAME}}")
        return cls(text)

    def unset(self, environment: Mapping[str, str]) -> list[str]:
        """Return the names of its variables that are empty or not set in an environment."""
        return [name for name in VARIABLE.findall(self) if not environment.get(name)]

    def filled(self, environment: Mapping[str, str]) -> str:
        """Return the path with its variables filled in; the environment must have all of them."""
        return VARIABLE.sub(lambda match: environment[match[1]], self)


class Resume(Text):
    """`auto` (resume from the newest checkpoint, if any), `off`, or a checkpoint."""

    @classmethod
    def parse(cls, text: str) -> Resume:
        """Return auto, off, or a path, which names a checkpoint."""
        if text not in ("auto", "off"):
            ShellPath.parse(text)
        return cls(text)


class Gres(Text):
    """The value of `--gres`, the resources on each node: name[:type][:count], separated by commas."""

    @classmethod
    def parse(cls, text: str) -> Gres:
        """Return the value; refuse values that sbatch refuses, and `gres:`, whose meaning has changed."""
        items = [re.fullmatch(GRES, item) for item in text.split(",")]
        if "=" in text or text.startswith("gres:") or not all(items):
            raise ValueError(f"'{text}' is not a gres request; write gpu:4, gpu:a100:4 or shard:16")
        if any(item and len((item["count"] or "").lstrip("0")) > 9 for item in items):
            raise ValueError(f"'{text}' has a count of more than nine digits")
        return cls(text)
