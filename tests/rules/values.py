"""Values of options, sound and broken, and a cluster for which all that is sound can run.

`requests` makes them from a seed: the same ones for the same seed. What a request names (nodes, features,
licenses) is there, and there is enough of it, unless its name says that it is not (nowhere, 99): so what
slurmctld refuses, it refuses for how a value is written.
"""

from __future__ import annotations

import gzip
import json
import random
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple
from unittest import mock

from sbatchgen.inputs.document import decode
from sbatchgen.inputs.profile import Profile
from sbatchgen.job.job import NO_CLUSTER
from sbatchgen.job.script import JobScript
from sbatchgen.lint.linter import lint
from tests.cluster.controller import Controller

NODES = "NodeName=n[1-8] Sockets=2 CoresPerSocket=8 ThreadsPerCore=1 RealMemory=64000 TmpDisk=9000 Gres=gpu:a100:4 Feature=a,b,c,ib"
PARTITIONS = "PartitionName=gpu Nodes=ALL Default=YES MaxTime=7-00:00:00\nPartitionName=cpu Nodes=ALL MaxTime=7-00:00:00"
GRES = "Name=gpu Type=a100 File=/dev/nvidia[0-3]"
EXTRA = "EnforcePartLimits=ALL\nLicenses=matlab:8,ansys:20\nFirstJobId=1000000"  # ids that no request names
RESERVATION = (
    "ReservationName=maint StartTime=now Duration=365-00:00:00 Nodes=ALL Users=alice Flags=IGNORE_JOBS"
)
# What slurmctld says where the cluster has not what a sound request names, or not enough of it.
UNKNOWN = ("nowhere", "99")

_ARRAY = (
    "0-9 0-9%2 1,3,5 0-1000 0-1001 1001 5-1 [0-29]%10 [13]%6 [4]%1 0-15:4 0-15:0 0-15:1001 1-3,7-9%2 0 00-05 "
    "1-3%x 1-3% %5 - 1- -3 -1 1-2-3 1:2 1-9:2:2 [1-3 1-3] [1-3],[5-7] 1,,2 ,1 1, , 0x1 1.5 a 1-a +1 1-+3 0-9:-1 "
    "1%2%3 1-3%2,5-7%4 4294967296 99999999999999999999 0-99999999999 1;2 1\t-3 [] [-] ]1 1-3:2% 1-3:2] [1-3:2]%4 "
    "1%2,3 1%2-5 [1,2,3] [1,2,3]%2 1_2 1-3%-1 1-3%0 1000-1000 1000%1000 0-1000:1000 0-1000:999 1-3:+1"
).split(" ")
_DEPENDENCY = (
    "singleton SINGLETON singletons singleton,singleton afterany:1 after:1 after:1+5 after:1+0 after:1+x after:1+-5 "
    "afterany:1+5 afterany:1:2 afterany:1,afterany:2 afterany:1?after:2 afterany:1,after:2?afterany:3 afterfoo:1 "
    "afterany afterany: afterany:x afterany:0 after:-1 1 1:2 1,2 1,2,3 1?2 1_3 1_* 1_x 1_[1-3] after:1_2 after:1_* "
    "after:1_[1-3] after:1_[5-1] after:1_[ after:1_ afterany:1, afterany:1? afterany:1: , : ? 0 0,1 foo "
    "AFTERANY:1 AfterAny:1 afterany=1 afterany:1(failed) afterany:1(foo) afterany:1( singleton(failed) singleton, "
    "singleton:1 singleton?afterany:1 singleton,afterany:1 afterany:1,singleton afterany:1?singleton after:1,2 "
    "after:1,2,3 2,after:1 afterburstbuffer:1 aftercorr:1 aftercorr:1_1 expand:1 expand:1:2 afterany:1x afterany:1;2 "
    "afterany:+1 afterany:1:x afterany:1::2 ,afterany:1 afterany:99999999999 after:1+5+6 after:1_2+5 after:1+5_2 "
    "afterany:1&after:2 afterany:4294967296 1+5 1x 1: 1(failed) none NONE singleton(failed singleton(x)y after:01"
).split(" ")
_FEATURES = (
    "a a&b a|b a,b [a|b] [a*2&b*4] (a|b)&c a&b|c a| a& |a &a & | [a [a] a] (a (a) a) a*2 a*0 a*-1 a*x a* *2 *a a*2&b "
    "a*2&b*2 a*2|b [a*2|b*2] [a&b] [a*2&b] [(a|b)*2&c*1] [(a&b)|c] (a&b)|(b&c) ((a|b)&c) [[a|b]] [a|b]&c c&[a|b] "
    "[a|b]&[b|c] [a|b]c a[b] a(b) (a)b a!b !a a=b a+b a||b a&&b , a,, ,a a*2,b*2 [a*1&b*1]&c (a*2) (a*2&b) "
    "([a|b]) [(a|b)] (a|b (a|b)) [a|b)] ([a|b)] a*2* a*2*3 a*+2 a*02 a*2x [a*2&b*4&c*1] [] () []a ()a a&() a&[] "
    "[a|b|c] [a*2] (a)*2 (a|b)*2 [a|b]*2 a;b a:b 'a' a&b&c&ib a.b nowhere a&nowhere a|nowhere a*9 a*8"
).split(" ")
_HOSTS = (
    "n1 n[1-2] n1,n2 n[1-2],n3 n[1,3-4] n[1-8] n[2-1] n[1- n[1 n1] n[ n] n[] n[a] n[1-a] n[1,] n[,1] n[-1] n[--1] "
    "n[1-2-3] n[1-2 ,n1 n1, , n1,,n2 n1;n2 n[1-2]] n[[1-2] n[[1-2]] n[1.2] n[0x1] n[+1] n[1-+2] n[1-2]x n1-n2 "
    "n[1-99999] n[1-999999999] n[1-2][3-4] n[1-2],n[3 n(1-2) n{1-2} n1n2 [n1] [n1,n2] n[1_2] n[1:2] n[01-02] n01 "
    "nowhere n99 n[1-9] [ ] [] n[1-2],n[2-1] n[1,1] n1,n1 n[2-2] N1 n?1 n*"
).split(" ")
_LICENSES = [
    *(
        "matlab matlab:2 matlab:8 matlab:9 matlab,ansys matlab:2,ansys:3 matlab;ansys matlab|ansys matlab:1|ansys:2 "
        "matlab|ansys,matlab matlab:0 matlab:-1 matlab:x matlab: matlab:2x matlab:2:3 matlab= matlab=2 matlab=x "
        ": , ; | :2 =2 matlab,, ,matlab matlab,ansys:x matlab@db matlab@db:2 nowhere nowhere:1 matlab*2 (matlab) "
        "matlab(n1) matlab:1(n1) matlab:1k matlab:+2 matlab:2,matlab:2 matlab:5,matlab:5 MATLAB matlab:99999999999 "
        "matlab:4294967297 matlab.2 matlab_ans"
    ).split(" "),
    "matlab 2",
    "matlab, ansys",
    "matlab :2",
    "matlab: 2",
    "matlab\t",
    " matlab",
]
_MOMENTS = (
    "2099-01-01 2099-01-01T10:00 2099-1-1T10:00:30 2001-01-01 2001-01-01T10:00:00 16:00 4:00pm 010199 01/02/99 noon "
    "midnight teatime elevenses fika tomorrow today now now+1hour now+10 now+2days now+1year now-1hour now-60 now+0 now+ "
    "now+x foo 25:00 10:61 2099-13-01 2099-01-32 2099-02-31 - 10 1:2:3 99/99 12:0 010101 01/01/01 tomorrow+1 now+1week "
    "2099-01-01t10:00 2099-01-01T 2001-01-01T12:00pm uts4000000000 uts1000000000 uts12 now+5minutes now+90 now+1hours "
    "now+3600 tomorrowT10:00 todayT00:00 noon+ now+99999999999"
).split(" ")
_TIMES = (
    "10 90 1:30 01:30:00 2-0 1-12:30 1-00:00:00 0 -1 INFINITE unlimited 2h 1.5 : 1: -5 1 5 2 60 7-00:00:00 8-00:00:00 "
    "00:00:30 00:00:00 10:00:00 3-00 99999 -0 0-0 1:00:00:00 +5 5m 4294967295 0:0"
).split(" ")
_SIGNALS = [
    *(
        "USR1 B:USR1@300 USR1@60 SIGTERM 10 R:USR1 RB:USR1@10 BUSR1@60 @60 B:@60 BUS@10 TERM@60s usr2@5 99 0 -1 USR1@70000 "
        "USR1@ BR:9@1 :15 65536 64 65 B: B R KILL CHLD PIPE WINCH SEGV RTMIN USR1@65535 USR1@65536 USR1:60 USR1@-1 B:B:USR1 "
        "R:B:USR1 sigusr1 SIGSIGUSR1 USR3 B:10@60"
    ).split(" "),
    "USR1 @60",
    "USR1@ 60",
    " USR1",
]
_MAIL = [
    *(
        "ALL END FAIL,END NONE BEGIN,foo foo time_limit_80 ALL,NONE STAGE_OUT ARRAY_TASKS TIME_LIMIT,TIME_LIMIT_50 , all "
        "INVALID_DEPEND REQUEUE BEGIN;END BEGIN|END BEGIN:END FAILED abe bea ENDS none,END END, ,END"
    ).split(" "),
    "END FAIL",
    "END, FAIL",
    " END",
]
_GPUS = (
    "1 2 4 5 0 a100 a100:2 a100:4 a100:5 v100:1 a100:1,a100:1 a100:1,2 gpu:2 gpu -1 1k x: , a100=2 a100:x : :2 1.5 +1 "
    "a100:0 4294967296 A100:1 a100:1:2 1,1"
).split(" ")
_GRES = [
    *(
        "gpu gpu:1 gpu:2 gpu:4 gpu:5 gpu:a100 gpu:a100:2 gpu:a100:5 gpu:v100:1 gpu:1,gpu:a100:1 gpu:0 none NONE gpu: gpu:a100: "
        "gpu:a100:x gres:gpu:2 gres/gpu:2 gpu=2 gpu:a100=2 gpu:=2 foo:1 gpu:1k gpu::2 , gpu:1,,gpu:2 gpu:-1 gpu:k gres: gres/ "
        "gres:gpu gres/gpu gres/gpu=2 gres:gpu=2 gpu:a100:2:x GPU:2 gpu:2,gpu:2 gpu;2 gpu:1.5 gpu:2x help:1 gpu/2 gpu*2 "
        "craynetwork:0 gpu:a100,gpu:2 gpu:2:a100 gres/gpu:a100:2 gpu:2,none none,gpu:2 0 2 :2 gpu:a100:-1 gpu:99999999999999999999"
    ).split(" "),
    "gpu: 2",
    "gpu :2",
    "gpu 2",
]
_SWITCHES = "1 1@10:00 2@5 x 1@ 0 1@x 1@INFINITE @5 -1 1@-1 1@1-0 1@0 99 1:5 1@5m 1@5@6 1.5 4294967295 4294967296 1,2".split(
    " "
)
_COUNTS = "1 2 4 8 16 04 +3 0 -1 1.5 2x 4294967297 99999999999999999999 1k x 17".split(" ")
_SIZES = "0 1 16 1G 16g 16GB 1500K 1k 100000 4096M 16Gi 1.5G 10P -1 +5 100B 1024 64000 64001 mem G 63G".split(
    " "
)
_NODES = "1 2 8 9 1-4 2-2 2-4 4-2 2- -2 0 0-0 2,4 1-4:2 x 1-x -1 3 - 1k 2k 0-2 4,2 1-8:3 8-1:2 1,,2 1-".split(
    " "
)
_TEXT = ("x", "x" * 1024, "x" * 1025, "a b", "a,b", "", "é", "%j", "a/b", "-x", "0", "x:y")

VALUES: dict[str, Sequence[str]] = {
    "array": (*_ARRAY, ""),
    "dependency": (*_DEPENDENCY, ""),
    "constraint": (*_FEATURES, ""),
    "prefer": _FEATURES,
    "nodelist": _HOSTS,
    "exclude": (*_HOSTS, ""),
    "licenses": (*_LICENSES, ""),
    "begin": _MOMENTS,
    "deadline": [moment for moment in _MOMENTS if moment not in ("now", "now+0")],
    "time": _TIMES,
    "time-min": _TIMES,
    "signal": _SIGNALS,
    "mail-type": _MAIL,
    "mail-user": _TEXT,
    "gres": _GRES,
    "gpus": _GPUS,
    "gpus-per-node": _GPUS,
    "gpus-per-task": _GPUS,
    "switches": _SWITCHES,
    "reservation": ("maint", "nowhere", "maint,maint", "maint,nowhere", "MAINT", "maint,", ",", *_TEXT),
    "partition": ("gpu", "cpu", "gpu,cpu", "nowhere", "gpu,nowhere", "GPU", "gpu,", ",gpu", ",", *_TEXT),
    "qos": ("normal", "normal,high", ",", *_TEXT),
    "account": _TEXT,
    "wckey": _TEXT,
    "comment": _TEXT,
    "job-name": _TEXT,
    "batch": ("a", "b", "a&b", "a|b", "a,b", "nowhere", "[a]", "|", "a*2", ""),
    "cluster-constraint": ("a", "a&b", "!a", "nowhere", "[a", ""),
    "nodes": _NODES,
    "ntasks": _COUNTS,
    "cpus-per-task": _COUNTS,
    "ntasks-per-node": _COUNTS,
    "mem": _SIZES,
    "mem-per-cpu": _SIZES,
    "tmp": _SIZES,
    "nice": "5 -5 0 x 99999999999 2147483645 2147483646 100".split(),
    "priority": "5 0 -1 TOP x 4294967294".split(),
    "exclusive": "user mcs exclusive oversubscribe USER topo foo 1".split(),
    "hint": "compute_bound memory_bound multithread nomultithread foo NOMULTITHREAD".split(),
    "open-mode": "append truncate a t apend x A".split(),
    "kill-on-invalid-dep": "yes no foo YES".split(),
    "delay-boot": _TIMES,
    "distribution": "block cyclic block:cyclic plane=4 plane plane=x arbitrary foo Block pack *".split(),
    "export": ("ALL", "NONE", "NIL", "A=1", "ALL,A=1", "A", "A=1,B", "=", ",", "A='1,2'", 'A="1', "all", ""),
    "mcs-label": ("x", "foo", ""),
    "network": ("x", "MPI", "instances=4", ""),
    "bb": ("x", "capacity=1G", ""),
    "acctg-freq": "30 task=30 foo task=x 0 task=0 energy=10,task=5".split(),
    "profile": "all none task energy,task foo Energy".split(),
    "cpu-freq": "low high performance 2000000 low-high foo high-low ondemand".split(),
    "gpu-bind": "closest none map_gpu:0,1 single:2 per_task:1 verbose,closest foo map_gpu:x".split(),
    "gpu-freq": "low medium 1000 verbose memory=low foo memory=x 10x".split(),
    "gres-flags": "disable-binding enforce-binding foo DISABLE-BINDING one-task-per-sharing disable-binding,enforce-binding".split(),
    "mem-bind": "local none rank verbose,local map_mem:0,1 map_mem foo".split(),
    "core-spec": "0 1 2 x -1 99".split(),
    "thread-spec": "0 1 2 x -1 99".split(),
    "wait-all-nodes": "0 1 2 x".split(),
    "output": ("x.out", "%x-%j.out", "x" * 300, "/" + "x/" * 2100, ""),
    "chdir": ("/home", "nowhere", "/" + "x/" * 2100),
    "extra-node-info": "1 2 2:8 2:8:1 2:8:2 3 * x 0".split(),
    "propagate": "ALL NONE CORE STACK,CORE foo".split(),
    "no-kill": "off no set foo".split(),
    # options that not every release has, or takes in the same way
    "segment": "1 2 4 0 3 x -1 65536".split(),
    "tres-per-task": "cpu=4 gres/gpu=1 gres/gpu:1 gres:gpu:1 gres/gpu:a100=1 cpu=2,gres/gpu=1 cpu:2 gpu=1 mem=1G cpu=x gres/foo=1 foo=1".split(),
    "tres-bind": "gres/gpu:closest gres/gpu:single:2 gres/gpu:none gpu:closest gres/foo:closest foo".split(),
    "oom-kill-step": "0 1 2 x".split(),
    "requeue": "expedite foo".split(),
    "extra": ("x", "a=1", ""),
    "container-id": ("x",),
    "container": ("/x",),
    "resources": "a a:2 matlab:1".split(),
    "mem-update": "10@60 10 x@1".split(),
    "power": "level foo".split(),
    "get-user-env": "10 5L".split(),
    "export-file": ("nowhere",),
    "resv-ports": "1 0 x".split(),
    "mincpus": _COUNTS,
    "sockets-per-node": "1 2 3 0 x".split(),
    "cores-per-socket": "1 8 9 0 x".split(),
    "threads-per-core": "1 2 0 x".split(),
    "ntasks-per-core": "1 2 0 x".split(),
    "ntasks-per-socket": "1 8 9 0 x".split(),
    "cpus-per-gpu": _COUNTS,
    "mem-per-gpu": _SIZES,
    "ntasks-per-gpu": _COUNTS,
    "clusters": ("x", "test", "x,y", "all", ","),
}
FLAGS = (
    "contiguous hold no-requeue oversubscribe overcommit reboot spread-job use-min-nodes wait parsable exclusive "
    "requeue no-kill propagate stepmgr external spread-segments consolidate-segments get-user-env nice"
).split()
# Those whose grammar is long get more of the requests, and are changed at random.
GRAMMARS = (
    "array dependency constraint prefer nodelist exclude licenses begin deadline time-min signal mail-type gres "
    "switches reservation gpus gpus-per-node time"
).split()
# Groups whose members meet in a request.
_MEET = (
    ("time", "time-min", "deadline", "begin"),
    ("nodelist", "exclude", "nodes", "ntasks"),
    ("constraint", "prefer", "batch", "nodes"),
    ("gres", "gpus", "gpus-per-node", "gpus-per-task", "nodes", "ntasks", "cpus-per-gpu"),
    ("array", "dependency", "licenses", "signal", "mail-type"),
    ("switches", "reservation", "partition", "time", "nodes"),
    ("array", "nodes", "time", "gres", "constraint", "dependency"),
    ("mem", "mem-per-cpu", "mem-per-gpu", "gpus", "cpus-per-task", "exclusive"),
)
_ODD = "0123-,:;%[]()*&|?+_@=. aXx"


class Request(NamedTuple):
    """Options with their values; None for none."""

    options: tuple[tuple[str, str | None], ...]

    @property
    def name(self) -> str:
        """The option, if there is one."""
        return self.options[0][0] if len(self.options) == 1 else "several"

    @property
    def shown(self) -> str:
        """The options on a line."""
        return " ".join(_written(*option) for option in self.options)

    @property
    def script(self) -> str:
        """A script that asks for them."""
        lines = "".join(f"#SBATCH {_written(name, value)}\n" for name, value in self.options)
        return f"#!/bin/bash\n{lines}\nhostname\n"


def _written(name: str, value: str | None) -> str:
    if value is None:
        return f"--{name}"
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'--{name}="{escaped}"'


def single(seed: int, count: int) -> Iterator[Request]:
    """Requests with one option: each value once, then values that are changed at random."""
    chance = random.Random(f"single {seed}")  # noqa: S311
    options: list[tuple[str, str | None]] = [(name, one) for name, values in VALUES.items() for one in values]
    seen = dict.fromkeys([*options, *((name, None) for name in FLAGS)])
    while len(seen) < count:
        name = chance.choice(GRAMMARS)
        seen[name, _changed(chance.choice(VALUES[name]), chance)] = None
    return (Request((option,)) for option in seen)


def combined(seed: int, count: int) -> Iterator[Request]:
    """Requests with two to five options, most of them sound one by one."""
    chance = random.Random(f"combined {seed}")  # noqa: S311
    names = [*VALUES]
    seen: dict[Request, None] = {}
    while len(seen) < count:
        chosen = chance.choice(_MEET) if chance.random() < 0.75 else tuple(chance.sample(names, 5))
        chosen = tuple(chance.sample(chosen, min(len(chosen), chance.choice((2, 2, 3, 4)))))
        options = tuple((name, chance.choice(SOUND.get(name, VALUES[name]))) for name in chosen)
        if chance.random() < 0.25:
            at = chance.randrange(len(options))
            name = options[at][0]
            options = (*options[:at], (name, chance.choice(VALUES[name])), *options[at + 1 :])
        seen[Request(options)] = None
    return iter(seen)


def _changed(value: str, chance: random.Random) -> str:
    for _ in range(chance.choice((1, 1, 2, 3))):
        at = chance.randrange(len(value) + 1)
        kind = chance.randrange(4)
        odd = chance.choice(_ODD)
        if kind == 0:
            value = value[:at] + odd + value[at:]
        elif kind == 1:
            value = value[:at] + value[at + 1 :]
        elif kind == 2:
            value = value[:at] + odd + value[at + 1 :]
        else:
            value = value[:at] + value[at : at + 3] + value[at:]
    return value


SOUND: dict[str, Sequence[str]] = {
    "array": "0-9 0-9%2 1,3,5 [0-29]%10 0-15:4 0".split(),
    "dependency": "singleton afterany:1 after:1+5 afterany:1:2 1 afterany:1,after:2".split(),
    "constraint": "a a&b a|b [a|b] (a|b)&c [a*2&b*1] a*2".split(),
    "prefer": "a a&b b|c".split(),
    "batch": "a b a|b".split(),
    "nodelist": "n1 n[1-2] n1,n3 n[1-4]".split(),
    "exclude": "n2 n[3-4] n8 n[5-8]".split(),
    "licenses": "matlab matlab:2 matlab,ansys:3".split(),
    "begin": "now+1hour 2099-01-01 tomorrow 2001-01-01 now+2days".split(),
    # Some seconds beside every limit: the second may turn while a request is on its way.
    "deadline": "now+3710 2099-01-01 tomorrow now+176410 now+430 2099-06-01T10:00".split(),
    "time": "10 1:30 01:30:00 1-0 2-00:00:00 5 60 120 INFINITE 0 3000".split(),
    "time-min": "10 5 1 01:30:00 1-0 0 2-00:00:00 60 240".split(),
    "signal": "B:USR1@300 USR1 TERM@60".split(),
    "mail-type": "END END,FAIL ALL".split(),
    "gres": "gpu:1 gpu:2 gpu:a100:2 none gpu:4 gres:gpu:2 gres/gpu:2".split(),
    "gpus": "1 2 4 a100:2 8".split(),
    "gpus-per-node": "1 2 4 a100:2".split(),
    "gpus-per-task": "1 2 a100:1".split(),
    "switches": "1 1@10:00".split(),
    "reservation": ["maint"],
    "partition": "gpu cpu gpu,cpu".split(),
    "nodes": "1 2 4 1-4 2-4 8".split(),
    "ntasks": "1 2 4 8 16".split(),
    "cpus-per-task": "1 2 4".split(),
    "ntasks-per-node": "1 2 4".split(),
    "cpus-per-gpu": "1 2 4".split(),
    "ntasks-per-gpu": "1 2".split(),
    "mem": "1G 16G 0 4096M".split(),
    "mem-per-cpu": "1G 500M".split(),
    "mem-per-gpu": "1G 4G".split(),
    "tmp": "1G 100".split(),
    "exclusive": "user exclusive".split(),
    "account": ["x"],
    "qos": ["normal"],
    "clusters": ["test"],
}


BLIND, INFORMED = "without a profile", "with the profile"
PROFILE = """
name: imaginary
url: https://slurm.schedmd.com
checked: 2026-11-21
default_partition: gpu
gres_types: [gpu, shard]
licenses: [matlab, ansys]
limits: {enforce_part_limits: all, max_array_size: 1001}
partitions:
  gpu: &gpu {time_max: 7-00:00:00, nodes: "n[1-8]", nodes_max: 8, cpus_per_node: 16, gpus_per_node: 4, gpu_type: a100,
             mem_per_node: 64000M, features: [a, b, c, ib]}
  cpu: *gpu
"""
# Errors of lint about what Slurm takes, and what then goes wrong.
NOT_REFUSED = frozenset({"SB121", "SB604"})


@dataclass(frozen=True, kw_only=True)
class Answers:
    """What slurmctld said of requests.

    Attributes:
        slurm: The line of its release.
        now: When it was asked, in seconds since 1970.
        requests: What it was asked.
        said: Why it refused each, in its own words; "" where it did not.
    """

    slurm: str
    now: int
    requests: tuple[Request, ...]
    said: tuple[str, ...]

    def write(self, file: Path) -> None:
        """Keep them in a file, which is the same for the same answers."""
        words = sorted(set(self.said))
        rows = [
            [words.index(said), [[name, value] for name, value in request.options]]
            for request, said in zip(self.requests, self.said, strict=True)
        ]
        lines = ",\n".join(json.dumps(row, separators=(",", ":")) for row in rows)
        head = json.dumps({"slurm": self.slurm, "now": self.now, "words": words})[:-1]
        file.write_bytes(gzip.compress(f'{head},"answers":[\n{lines}\n]}}\n'.encode(), 9, mtime=0))

    @classmethod
    def read(cls, file: Path) -> Answers:
        """Those of a file."""
        found = json.loads(gzip.decompress(file.read_bytes()))
        requests = tuple(
            Request(tuple((name, value) for name, value in options)) for _, options in found["answers"]
        )
        said = tuple(found["words"][place] for place, _ in found["answers"])
        return cls(slurm=found["slurm"], now=found["now"], requests=requests, said=said)


def asked(requests: Sequence[Request], *, release: str, root: Path | None = None) -> Answers:
    """Ask a slurmctld of the imaginary cluster."""
    with Controller(nodes=NODES, partitions=PARTITIONS, gres=GRES, extra=EXTRA, root=root) as controller:
        controller.reserve(RESERVATION)
        now = int(time.time())
        verdicts = list(controller.ask([request.script for request in requests]))
    said = tuple(
        verdict.stderr.strip().rpartition("\n")[2] if verdict.returncode else "" for verdict in verdicts
    )
    return Answers(slurm=release, now=now, requests=tuple(requests), said=said)


class Difference(NamedTuple):
    """A request that lint and slurmctld judge differently.

    Attributes:
        kind: What lint knew: BLIND or INFORMED.
        request: What was asked.
        said: Why slurmctld refused it; "" where lint alone does.
        rules: The rules of lint that have an error.
        reason: Why they differ; "" if nobody knows.
    """

    kind: str
    request: Request
    said: str
    rules: tuple[str, ...]
    reason: str


def differences(answers: Answers) -> Iterator[Difference]:
    """Where lint says something else. What it tells without a profile, it tells with one too."""
    with mock.patch("time.time", return_value=float(answers.now)):
        for request, said in zip(answers.requests, answers.said, strict=True):
            blind = errors(request, answers.slurm, None) if said else ()
            informed = blind or errors(request, answers.slurm, _profile(answers.slurm))
            if informed and not said:
                blind = errors(request, answers.slurm, None)
            why = reason_of(request, said)
            if bool(informed) != bool(said):
                yield Difference(INFORMED, request, said, informed, why)
            if bool(blind) != bool(said):
                told = bool(said and informed)
                yield Difference(BLIND, request, said, blind, TOLD if told else why)


TOLD = "what the cluster has: told with its profile"


@cache
def _profile(slurm: str) -> Profile:
    return decode(f"{PROFILE}slurm: '{slurm}'\n", Profile, name="imaginary").value


def errors(request: Request, slurm: str, profile: Profile | None) -> tuple[str, ...]:
    """The rules with an error that says: Slurm refuses this."""
    subject = JobScript(
        file="job.sh",
        text=request.script,
        slurm=slurm,
        profile=profile or NO_CLUSTER,
        makes_log_folders=True,
    )
    found = {finding.rule for finding in lint(subject) if finding.severity == "error"}
    return tuple(sorted(found - NOT_REFUSED))


def reason_of(request: Request, said: str) -> str:
    """Why slurmctld refuses what lint takes; "" if none of the reasons holds, and where it takes what lint refuses."""
    for words, pattern, reason in REASONS:
        if said and words in said and re.search(pattern, request.shown):
            return reason
    return ""


NOT_CHECKED = "rare values that lint does not check: tests/sbatch/headers.py has the list"
_NO_NODES = "node configuration is not available"
_GENERIC = "sbatch: error: Invalid generic resource"
_NO_TYPE = '--g(pus|res)[a-z-]*="([:=]|[^"]*(::|:=|,:))'
# What slurmctld says, a pattern of the request that it says it of, and why lint has no error.
REASONS = (
    ("Access/permission denied", "--reboot", "what only operators may: lint does not know who submits"),
    ("Invalid --nice value", "--nice=.-", "what only operators may: lint does not know who submits"),
    ("Could not open user environment", "--export-file=", "a file of the machine where it is submitted"),
    ("can't be reached now", "--clusters=", "other clusters are known to slurmdbd, which is not here"),
    ("No clusters can be reached", "--clusters=", "other clusters are known to slurmdbd, which is not here"),
    ("reservation is invalid", "--reservation=", "reservations come and go: no profile has them"),
    ("not supported on this", "expand:", "expand needs SchedulerParameters=permit_job_expansion"),
    ("not supported on this", "--requeue=.expedite", "expedite needs a setting of the site"),
    ("Preemption is required", "--signal=.B?R", "R needs preemption, which is the site's"),
    ("Slurmstepd step management", "--resv-ports", "--resv-ports needs a setting of slurm.conf"),
    ("MULTIPLE_SHARING_GRES_PJ", "one-task-per-sharing", "it needs a setting of slurm.conf, which it names"),
    ("license specification", "--resources=", "hierarchical resources are the site's: no profile has them"),
    ("license specification", "--licenses=.*[:=]", "counts of licences, and names of counts, are the site's"),
    ("partition name", '--partition=",?"', "no name is the default partition in later releases"),
    (
        "Trackable RESource",
        '--gres="[^"]*:k"',
        "none of a resource that is none: 'k' is a count of 0, or a type",
    ),
    (
        "Invalid node name",
        r'--exclude="[^"]*\[[^"]*\[',
        "several brackets: slurmctld takes some, and refuses others",
    ),
    (
        _NO_NODES,
        "--(tmp|extra-node-info|mincpus|(sockets|cores|threads|ntasks)-per-(node|socket|core)|(core|thread)-spec)=",
        "sockets, cores, threads and disks of a node: no profile has them",
    ),
    (
        "Job dependency problem",
        r'--dependency="[^"]*(\(|_\[|4294967296)',
        "states, lists of tasks and very large job ids",
    ),
    ("--cpu-freq argument", "--cpu-freq=", NOT_CHECKED),
    ("--gpu-freq argument", "--gpu-freq=", NOT_CHECKED),
    ("--gpu-bind argument", '--gpu-bind="map_gpu:x"', NOT_CHECKED),
    ("--mem-bind", "--mem-bind=", NOT_CHECKED),
    ("--acctg-freq", "--acctg-freq=", NOT_CHECKED),
    ("--propagate=foo", "--propagate=", NOT_CHECKED),
    ("--mem-update", "--mem-update=", NOT_CHECKED),
    (
        _NO_NODES,
        "--nodelist=",
        "--test-only alone refuses nodes beside the named ones: submitted, it is taken",
    ),
    (_NO_NODES, "--exclude=", "how many nodes are left without the excluded ones"),
    (_NO_NODES, _NO_TYPE, "GPUs whose type is empty"),
    (_GENERIC, _NO_TYPE, "GPUs whose type is empty"),
    (_GENERIC, "--ntasks-per-gpu=", "GPUs and tasks are not checked beside --ntasks-per-gpu"),
    (
        _NO_NODES,
        "--gpus-per-task=.*--(gres|gpus)|--g(res|pus).*--gpus-per-task=",
        "GPUs of a node, and of its tasks",
    ),
    (_NO_NODES, "--cpus-per-gpu=", "CPUs for GPUs, with tasks that need more of them, or without GPUs"),
    ("Node count specification", "--gpus=", "a number of nodes that follows from GPUs"),
    ("More processors requested", "--gpus=", "a number of nodes that follows from GPUs"),
    ("Task count specification", "--gpus=", "a number of nodes that follows from GPUs"),
    ("", "@[A-Z]+@", "taken for a template, in which something else will stand"),
    ("time limit is invalid", "--deadline=", "a deadline is not compared with the clock"),
    ("Incompatible begin and deadline", "--deadline=", "a deadline is not compared with the clock"),
    ("Invalid time-min", "--deadline=", "a deadline is not compared with the clock"),
)
