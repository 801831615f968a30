"""Headers of sbatch scripts, made by Hypothesis: sound, broken and hostile; and both readings of one, to compare."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from hypothesis import strategies as st

from sbatchgen.sbatch import gres_checks
from sbatchgen.sbatch.grammar import INFINITE, integer, mebibytes, minutes, node_range
from sbatchgen.sbatch.gres import with_prefix
from sbatchgen.sbatch.options import Option
from sbatchgen.sbatch.reader import read
from sbatchgen.sbatch.releases import HasArgument, specs
from tests.cluster import oracle

SLURM = "22.05"
# Options whose values only sbatch itself can judge: files, users, another cluster, and its slurm.conf. With
# --gpus-per-socket, which is rare, the GPUs of a job are not checked.
UNREAD = {
    "bbf",
    "cluster",
    "clusters",
    "export-file",
    "gid",
    "gpus-per-socket",
    "nodefile",
    "resv-ports",
    "uid",
}
# Options whose values are not checked, or only up to the kind of binding: few scripts have them, and a wrong one is
# told by sbatch at once. A case is compared only if it has them with values of _VALUES.
NOT_CHECKED = {
    "cpu-freq",
    "gpu-freq",
    "mem-bind",
    "gpu-bind",
    "tres-bind",
    "acctg-freq",
    "get-user-env",
    "mem-update",
}
NOT_CHECKED |= {"power", "propagate", "extra-node-info", "gres", "gres-flags", "tres-per-task"}
# Whose values are compared: what rules ask for.
_MINUTES = frozenset(("time", "time-min"))
_MEMORY = frozenset(("mem", "mem-per-cpu", "mem-per-gpu", "tmp"))
_COUNTS = frozenset(("cpus-per-gpu", "ntasks-per-gpu", "ntasks-per-node"))
_AS_GIVEN = frozenset(
    """
    account array batch comment constraint dependency exclude export gpus gpus-per-node job-name licenses
    mail-user partition prefer qos reservation wckey
    """.split()
)
# What sbatch says where generic resources do not go together.
_GENERIC = (gres_checks.INVALID, gres_checks.UNREADABLE, gres_checks.MIXED)
_CHANGES_NODES = frozenset(("distribution", "extra-node-info", "nodelist", "ntasks", "ntasks-per-node"))
_COUNT = "1 2 3 4 8 16 04 +3 0 -1 1.5 2x 4294967297 99999999999999999999 1k x".split()
_GPUS = "1 2 4 8 0 3 a100 a100:2 a100:4 v100:1 a100:1,v100:1 2,a100:1 gpu:2 -1 1k x: , a100=2 gpu:a100:x 12 6".split()
_SIZE = "0 1 16 16g 16GB 1500K 2T 1k 100000 4096M 16Gi 1.5G 10P -1 +5 100B 1024 1048576 mem G 99999999999999999999".split()
_TIME = (
    "10 90 1:30 5:00 0:0:1 01:30:00 2-0 1-12:30 1-00:00:00 3-24:61:61 0 -1 INFINITE unlimited 2h 1.5 60m :: 5: :5 "
    "1:2:3:4 1-2-3 -5 1- 00:00 9999999999 1:99999999999 =10 1-2: 1-:2 -1:2"
).split()
_VALUES: dict[str, Sequence[str]] = {
    "acctg-freq": "30 task=30 energy=10,task=5 0 network=1".split(),
    "begin": (
        "2030-01-01 2030-01-01T10:00 2030-1-1T10:00:30 16:00 4:00pm 12:00am 13:00pm 010130 01/02/30 1/2 noon midnight "
        "teatime tomorrow today fika foo 25:00 10:61 2030-13-01 2030-01-32 uts1900000000 uts12 - 10 1:2:3 99/99 12:0"
    ).split(),
    "core-spec": _COUNT,
    "cpu-freq": "low high medium highm1 him1 2000000 performance ondemand userspace".split(),
    "deadline": "2030-01-01 2030-01-01T10:00 noon+ 16:00 foo 1/1/31".split(),
    "delay-boot": _TIME,
    "distribution": (
        "block cyclic block:cyclic cyclic:block:fcyclic plane=4 plane plane=x plane=0 arbitrary * *:* block:*:* pack "
        "block,pack cyclic,nopack block,foo foo block:block:block:block hostfile , Block"
    ).split(),
    "exclusive": "user mcs exclusive oversubscribe USER topo foo 1".split(),
    "extra-node-info": "2 2:4 2:4:1 * *:2 x 0 2:x 2:-1 1:2:3:4 2:0 -1".split(),
    "get-user-env": "10 5L 3S 0".split(),
    "gpu-bind": (
        "closest none map_gpu:0,1 mask_gpu:0x1,0x2 single:2 per_task:1 verbose,closest foo map_gpu:0*2 gpu closets"
    ).split(),
    "gpu-freq": "low medium highm1 1000 low,memory=high verbose memory=low".split(),
    "gpus": _GPUS,
    "gpus-per-node": _GPUS,
    "gpus-per-task": _GPUS,
    "gres": (
        "gpu gpu:1 gpu:2 gpu:4 gpu:8 gpu:a100 gpu:a100:2 gpu:a100:1,gpu:v100:1 shard:4 shard gpu:1,shard:1 gpu:a100:1,gpu:1 "
        "gpu:0 none NONE gpu: gpu:a100: gpu:a100:x gres:gpu:2 gres/gpu:2 gpu=2 gpu:1k gpu:2kb gpu::2 , gpu:1,,gpu:2 "
        "gpu:-1 shard:a100:3 gpu:k gres:gres:gpu:1 gpu:1,gpu:a100:1,shard:1 help"
    ).split(),
    "gres-flags": (
        "disable-binding enforce-binding disable-binding,enforce-binding multiple-tasks-per-sharing "
        "foo DISABLE-BINDING allow-task-sharing enforce-binding,foo one-task-per-sharing,multiple-tasks-per-sharing ,"
    ).split(),
    "hint": "compute_bound memory_bound multithread nomultithread foo nomultithread,memory_bound NOMULTITHREAD".split(),
    "kill-on-invalid-dep": "yes no foo YES".split(),
    "mail-type": (
        "ALL END FAIL,END NONE BEGIN,foo foo time_limit_80 ALL,NONE STAGE_OUT ARRAY_TASKS TIME_LIMIT,TIME_LIMIT_50 , all"
    ).split(),
    "mem": _SIZE,
    "mem-bind": "local none rank verbose,local map_mem:0,1 mask_mem:0x1,f quiet map_mem:0*2 v,q".split(),
    "mem-per-cpu": _SIZE,
    "mem-per-gpu": _SIZE,
    "nice": "5 -5 0 x 99999999999 2147483645".split(),
    "no-kill": "off no set foo OFF".split(),
    "nodelist": "x1 x[1-2] x1,x2 x[2-1] x[1-2],x3 x[01-10]y x[1 x[a] x[1-2]y, x1,x1 r[1-2]n[1-2] x[1,3-4] x[] x,,y ]".split(),
    "nodes": "1 2 4 1-4 2-2 2k 1m 2-4 4-2 2- -2 0 0-0 2,4 1-4:2 x 1-x -1 1km 1mk 3 5 -".split(),
    "open-mode": "append truncate a t apend x A".split(),
    "power": "level LEVEL".split(),
    "priority": "5 0 -1 TOP top x 4294967294 4294967293".split(),
    "profile": "all none task energy,task foo Energy network,lustre".split(),
    "propagate": "ALL NONE CORE STACK,CORE RLIMIT_AS".split(),
    "signal": (
        "USR1 B:USR1@300 USR1@60 SIGTERM 10 R:USR1 RB:USR1@10 BUSR1@60 @60 B:@60 BUS@10 TERM@60s usr2@5 99 0 -1 "
        "USR1@70000 USR1@ BR:9@1 :15 65536"
    ).split(),
    "switches": "1 1@10:00 2@5 x 1@ 0 1@x 1@INFINITE @5".split(),
    "thread-spec": _COUNT,
    "time": _TIME,
    "time-min": _TIME,
    "tmp": _SIZE,
    "mem-update": ["10@60"],
    "oom-kill-step": "0 1 2 x -1".split(),
    "requeue": "expedite foo EXPEDITE yes".split(),
    "resources": "a a:2 a:2,b a=2 a:x a: :2 , a:0 a:-1".split(),
    "resv-ports": "1 0 4 x -1 70000".split(),
    "segment": "1 2 4 0 3 x -1 65536 65535 99999999999".split(),
    "tres-bind": (
        "gres/gpu:closest gres/gpu:single:2 gres/gpu:per_task:1 gres/gpu:none gres/gpu:map:0,1 gres/gpu:mask:0x1 "
        "gres/gpu:verbose,closest gres/shard:closest gres/gpu:closest+gres/shard:single:1 gpu:closest gres/foo:closest "
        "gres/gpu foo gres/gpu:foo gres:gpu:closest gres/gpu:map_gpu:0,1"
    ).split(),
    "tres-per-task": (
        "cpu=4 gres/gpu=1 gres/gpu:1 gres/gpu:a100=1 cpu=2,gres/gpu=1 license/x=1 cpu:2 gres/shard=2 cpu=1,gres/gpu:a100:2 "
        "gres/gpu:a100=1,gres/gpu:v100=1 gres/gpu mem=1G cpu=0 cpu cpu=x gres:gpu:1 gpu=1 node=1 energy=1 fs/x=1 , "
        "CPU=2 license/a=1,license/b=2 gres/gpu=0 gres/gpu=x cpu=-1 gres/gpu=1k"
    ).split(),
    "wait-all-nodes": "0 1 2 x 65537 -1".split(),
}
_VALUES |= dict.fromkeys(
    (
        "cores-per-socket cpus-per-gpu cpus-per-task mincpus ntasks ntasks-per-core ntasks-per-gpu ntasks-per-node "
        "ntasks-per-socket ntasks-per-tres sockets-per-node tasks-per-node threads-per-core"
    ).split(),
    _COUNT,
)
_PLAIN = "a b=c my%j.out x/y.log ../z none NONE ~/x $HOME/y hetjob : - -- --time é a=b= 1,2 (a|b)&c".split()
_TEXT = st.text(st.sampled_from("ab01 =:,-%\"'\\#é\t\u2013\x0b*[]@"), max_size=8)
# Those that later releases brought or changed.
_LATER = (
    "consolidate-segments container-id container-type cpus-per-gpu cpus-per-task distribution exclusive extra "
    "get-user-env gpus-per-node gpus-per-task gres gres-flags mem-update nodes nodelist oom-kill-step oversubscribe "
    "requeue resources resv-ports segment spread-segments stepmgr tres-bind tres-per-task"
).split()
# Those that are asked for together, so that they get to contradict each other.
_TOGETHER = (
    "gpus gpus-per-node gpus-per-task gres ntasks nodes ntasks-per-node cpus-per-gpu cpus-per-task "
    "mem-per-gpu mem ntasks-per-gpu sockets-per-node gpu-freq ntasks-per-socket ntasks-per-tres"
).split()
_GOOD = {
    "gpu-freq": ["low"],
    "gres": "gpu:1 gpu:2 gpu:4 gpu:a100:2 shard:2 gpu:1,gpu:a100:1 gpu:a100:2,gpu:v100:2".split(),
    "mem": ["1G"],
    "mem-per-gpu": ["2G"],
    "nodes": "1 2 1-2 2-4".split(),
}


@dataclass(frozen=True)
class Answer:
    """What a reader says of a script; nothing of one that it takes."""

    components: list[dict[str, str]]
    messages: list[str]
    refused: bool

    def agrees(self, theirs: Answer) -> bool:
        """Whether sbatch reads the script so, refuses it as well, and says this among other things."""
        said = re.sub("(?:error|fatal): |[^\0-\x7f]", "", " ".join(theirs.messages))
        return (
            self.components == theirs.components
            and self.refused == theirs.refused
            and all(re.sub("[^\0-\x7f]", "", text) in said for text in self.messages)
        )

    def leaves_to(self, theirs: Answer) -> bool:
        """Whether sbatch refuses the script for its generic resources, of which the reader checks the usual ones."""
        generic = any(text in said for text in _GENERIC for said in theirs.messages)
        return theirs.refused and generic and self.components[: len(theirs.components)] == theirs.components


def _value(name: str) -> st.SearchStrategy[str]:
    pool = _VALUES.get(name)
    if pool is None:
        return st.one_of(st.sampled_from(_PLAIN), st.sampled_from(["a", "b", "name"]), _TEXT)
    sound = st.sampled_from(pool[: (len(pool) + 1) // 2])  # the pools start with what is mostly sound
    return st.one_of(*[sound] * 30, *[st.sampled_from(pool)] * 3, _TEXT)


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
    return st.one_of(
        st.sampled_from(sorted(set(table) - UNREAD)),
        st.sampled_from(sorted(_VALUES)),
        st.sampled_from(_TOGETHER),
        *([st.sampled_from(_LATER)] if slurm > SLURM else []),
    )


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
    """An option as people write it, mostly with a value that sbatch takes."""
    name = draw(_names(slurm))
    spec = specs(slurm).get(name)
    if spec is None or spec.argument is HasArgument.NONE:
        return f"--{name}" if spec else "--nodes=2"
    pool = _VALUES.get(name, ("a", "b", "name"))
    return f"--{name}={draw(st.sampled_from(pool[: (len(pool) + 2) // 3]))}"


@st.composite
def _demand(draw: st.DrawFn) -> str:
    """Sound options of one theme on a line."""
    names = draw(st.lists(st.sampled_from(_TOGETHER), min_size=2, max_size=5, unique=True))
    counts = st.sampled_from("1 2 4 8 3".split())
    return " ".join(
        f"--{name}={draw(st.sampled_from(_GOOD[name]) if name in _GOOD else counts)}" for name in names
    )


@cache
def _line(slurm: str) -> st.SearchStrategy[str]:
    option = _option(slurm)
    return st.one_of(
        *[option.map("#SBATCH {}".format)] * 8,
        *[_demand().map("#SBATCH {}".format)] * 2,
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
    calm = st.one_of(*[_calm_option(slurm)] * 3, _demand()).map("#SBATCH {}".format)
    lines = draw(st.lists(draw(st.sampled_from([calm, _line(slurm)])), min_size=1, max_size=4))
    if not draw(st.integers(0, 5)):
        lines += draw(st.lists(st.sampled_from(_FOREIGN), min_size=1, max_size=3))
    return draw(_FIRST) + "".join(f"{line}\n" for line in lines) + "\nhostname\n"


def ours(text: str, slurm: str = SLURM) -> Answer | None:
    """What the reader says; None if sbatch reads what it does not, as the options of #PBS and #BSUB lines."""
    script = read(text, slurm=slurm)
    given = [option for component in script.components for option in component.given]
    names = {option.name for option in given}
    both = {"begin", "deadline"} <= names  # are not compared
    carried = "hint" in names and len(script.components) > 1  # in a variable, to the next component
    if both or carried or script.has_foreign or any(not _is_read(option) for option in given):
        return None
    components = [
        {name: printed(option, component.options, slurm) for name, option in component.options.items()}
        for component in script.components
        if component.settled
    ]
    return Answer(components, [script.refusal.text] if script.refusal else [], script.refusal is not None)


def _is_read(option: Option) -> bool:
    if option.name in NOT_CHECKED:
        return option.value in (*_VALUES[option.name], *_GOOD.get(option.name, ()))
    is_file = option.name in {"exclude", "nodelist"} and "/" in (option.value or "")
    return option.name not in UNREAD and not is_file


def printed(option: Option, others: Mapping[str, Option], slurm: str) -> str:
    """An option as sbatch prints it, as far as rules ask for its value; else ""."""
    name, value = option.name, option.value or ""
    if name in _MINUTES:
        return _shown_minutes(minutes(value) or INFINITE)
    if name in _MEMORY:
        return _shown_memory(mebibytes(value) or 0)
    if name in _COUNTS:
        return str(integer(name, value, positive=True, slurm=slurm))
    if name == "nodes" and not _CHANGES_NODES & others.keys():
        low, high = node_range(value, slurm=slurm)
        return str(low) if low == high else f"{low}-{high}"
    if name == "gres":
        return value if value.lower() == "none" else with_prefix(value, slurm=slurm)
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
    return name in _MINUTES | _MEMORY | _COUNTS | _AS_GIVEN | {"gres"}
