"""Headers of sbatch scripts, made by Hypothesis: sound, broken and hostile; and both readings of one, to compare."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from hypothesis import strategies as st

from sbatchgen.check.sbatch.getopt import Option
from sbatchgen.check.sbatch.option_table import HasArgument, specs
from sbatchgen.check.sbatch.reader import read_script
from sbatchgen.check.sbatch.values import INFINITE, count, mebibytes, minutes, node_range
from tests.cluster import oracle
from tests.rules.public_options import public_values

SLURM = "22.05"
# Options whose values only sbatch itself can judge: files, users, another cluster, and its slurm.conf; and the hint,
# which it drops beside others.
UNREAD = frozenset("bbf cluster clusters export-file gid hint nodefile resv-ports uid".split())
# Options whose values are compared: those that rules ask for.
_MINUTES = frozenset(("time", "time-min"))
_MEMORY = frozenset(("mem", "mem-per-cpu", "mem-per-gpu", "tmp"))
_COUNTS = frozenset(("cpus-per-gpu", "ntasks-per-gpu", "ntasks-per-node"))
_AS_GIVEN = frozenset(
    """
    account array batch comment constraint dependency exclude export gpus gpus-per-node job-name licenses
    mail-user partition prefer qos reservation wckey
    """.split()
)
_CHANGES_NODES = frozenset(("distribution", "extra-node-info", "nodelist", "ntasks", "ntasks-per-node"))
_PLAIN = "a b=c my%j.out x/y.log ../z none NONE ~/x $HOME/y hetjob : - -- --time é a=b= 1,2 (a|b)&c 1 2 08 x".split()
_TEXT = st.text(st.sampled_from("ab01 =:,-%\"'\\#é\t\u2013\x0b*[]@"), max_size=8)


@dataclass(frozen=True)
class Answer:
    """What a reader says of a script; no messages for one that it takes."""

    components: list[dict[str, str]]
    messages: list[str]
    refused: bool

    def agrees(self, theirs: Answer) -> bool:
        """Whether sbatch refuses what the reader refuses, and reads the same options in what it takes."""
        return theirs.refused if self.refused else theirs.refused or self.components == theirs.components


def _value(name: str) -> st.SearchStrategy[str]:
    public = public_values(name)
    plain = st.one_of(st.sampled_from(_PLAIN), _TEXT)
    return st.one_of(*[st.sampled_from(public)] * 20, plain) if public else plain


@st.composite
def _quoted(draw: st.DrawFn, text: str) -> str:
    style = draw(st.integers(0, 9))
    if style == 0 and "'" not in text:
        return "'" + text + "'"
    if style == 1:
        return text[: len(text) // 2] + '"' + text[len(text) // 2 :] + '"'
    if style < 7 or not text:
        return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return text


@cache
def _names(slurm: str) -> st.SearchStrategy[str]:
    table = specs(slurm)
    public = sorted(name for name in table if public_values(name))
    return st.one_of(st.sampled_from(sorted(set(table) - UNREAD)), *[st.sampled_from(public)] * 3)


@st.composite
def _option(draw: st.DrawFn, slurm: str) -> str:
    name = draw(_names(slurm))
    table = specs(slurm)
    spec = table.get(name) or table["ntasks-per-node"]
    if spec.argument is HasArgument.NONE:
        value = ""
        glue = draw(st.sampled_from([""] * 30 + ["=x"]))
    else:
        value = draw(_quoted(draw(_value(name))))
        needed = spec.argument is HasArgument.REQUIRED
        glue = draw(
            st.sampled_from(["="] * 12 + [" "] * 4 + [""] if needed else ["="] * 6 + [""] * 3 + [" "])
        )
        value = "" if not glue else value
    if spec.short and draw(st.booleans()):
        return (
            f"-{spec.short}" + draw(st.sampled_from([""] * 6 + [" "] * 6 + ["="] if value else [""])) + value
        )
    cut = draw(st.sampled_from([0] * 20 + [1, 1, 2, 4]))
    return f"--{name[: max(1, len(name) - cut)]}{glue}{value}"


@st.composite
def _calm_option(draw: st.DrawFn, slurm: str) -> str:
    """An option as people write it."""
    name = draw(_names(slurm))
    value = draw(st.sampled_from(public_values(name) or ("a",)))
    return f"--{name}={value}" if specs(slurm)[name].argument is HasArgument.REQUIRED else f"--{name}"


@cache
def _line(slurm: str) -> st.SearchStrategy[str]:
    option = _option(slurm)
    return st.one_of(
        *[option.map("#SBATCH {}".format)] * 8,
        st.lists(option, min_size=2, max_size=3).map(" ".join).map("#SBATCH {}".format),
        option.map("#SBATCH\t{} # why".format),
        st.tuples(
            st.sampled_from(["#SBATCH", " #SBATCH ", "##SBATCH ", "# SBATCH ", "#sbatch ", "#SLURM "]), option
        ).map("".join),
        st.sampled_from(
            [
                "",
                "# a comment",
                "  # indented",
                "#SBATCH",
                "#SBATCH hetjob",
                "#SBATCH packjob ",
                "#SBATCH HetJob -n1",
                "\t",
                "ls",
            ]
        ),
        _TEXT.map("#SBATCH {}".format),
    )


# Lines of another scheduler, and what makes sbatch pass over them.
_FOREIGN = (
    "#PBS -N name",
    "#PBS -l nodes=2:ppn=4,walltime=1:00:00",
    "#PBS -N 'open",
    "#BSUB -n 4",
    "#SBATCH --ignore-pbs",
    " #PBS -N x",
    "x\n" * 101 + "#PBS -N far",
)


_FIRST = st.sampled_from(
    ["#!/bin/bash\n"] * 90
    + ["#!/usr/bin/env python3\n", "", "\n#!/bin/sh\n", " #!", "#!/bin/sh\r\n", "#!\0\n", " \n"]
)


@st.composite
def scripts(draw: st.DrawFn, slurm: str = SLURM) -> str:
    """A script, mostly one that sbatch of the release takes."""
    calm = _calm_option(slurm).map("#SBATCH {}".format)
    lines = draw(st.lists(draw(st.sampled_from([calm, _line(slurm)])), min_size=1, max_size=4))
    if not draw(st.integers(0, 5)):
        lines += draw(st.lists(st.sampled_from(_FOREIGN), min_size=1, max_size=3))
    return draw(_FIRST) + "".join(f"{line}\n" for line in lines) + "\nhostname\n"


def ours(text: str, slurm: str = SLURM) -> Answer | None:
    """What the reader says; None if sbatch reads what it does not, as the options of #PBS and #BSUB lines."""
    script = read_script(text, slurm=slurm)
    given = [option for component in script.components for option in component.uses]
    if script.has_foreign or any(not _is_read(option) for option in given):
        return None
    if script.refusal:
        return Answer([], [script.refusal.text], refused=True)
    components = [
        {name: printed(option, component.options, slurm) for name, option in component.options.items()}
        for component in script.components
    ]
    return Answer(components, [], refused=False)


def _is_read(option: Option) -> bool:
    is_file = option.name in {"exclude", "nodelist"} and "/" in (option.value or "")
    return option.name not in UNREAD and not is_file


def printed(option: Option, others: Mapping[str, Option], slurm: str) -> str:
    """An option as sbatch prints it, where rules ask for its value; else ""."""
    name, value = option.name, option.value or ""
    if name in _MINUTES:
        return _shown_minutes(minutes(value) or INFINITE)
    if name in _MEMORY:
        return _shown_memory(mebibytes(value) or 0)
    if name in _COUNTS:
        return str(count(name, value, slurm=slurm))
    if name == "nodes" and not _CHANGES_NODES & others.keys():
        low, high = node_range(value, slurm=slurm)
        return str(low) if low == high else f"{low}-{high}"
    return value if name in _AS_GIVEN else ""


def _shown_minutes(number: int) -> str:
    number %= 2**32
    days, rest = divmod(number, 1440)
    clock = f"{rest // 60:02}:{rest % 60:02}:00"
    return "UNLIMITED" if number == INFINITE else f"{days}-{clock}" if days else clock


def _shown_memory(size: int) -> str:
    units = ["", "G", "T", "P", "?"]
    while not size % 1024 and len(units) > 1:
        size //= 1024
        units.pop(0)
    return f"{size}{units[0]}"


def theirs(script: str, root: Path | None = None) -> Answer:
    """What sbatch says, that of this machine or of another system's folder."""
    reading = oracle.read(script, root=root)
    return comparable(reading.components, reading.messages, refused=reading.returncode is not None)


def comparable(components: Sequence[Mapping[str, str]], messages: list[str], *, refused: bool) -> Answer:
    """What is compared of sbatch's answer: all options, values that rules ask for, and why it refuses the script."""
    compared = [
        {name: value if _is_compared(name, component) else "" for name, value in component.items()}
        for component in components
    ]
    return Answer(compared, messages if refused else [], refused)


def _is_compared(name: str, component: Mapping[str, str]) -> bool:
    if name == "nodes":
        return not _CHANGES_NODES & component.keys()
    return name in _MINUTES | _MEMORY | _COUNTS | _AS_GIVEN
