"""Which options sbatch has, in each release of Slurm from 20.11 to 26.05, in the order getopt lists them.

Read from the option tables of Slurm's last point release of each line; "env" variables from the same place.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import cache

ALIASES = {"tasks-per-node": "ntasks-per-node"}  # sbatch keeps and prints the other name
RELEASES = ("20.11", "21.08", "22.05", "23.02", "23.11", "24.05", "24.11", "25.05", "25.11", "26.05")


class HasArgument(Enum):
    """Whether an option takes one; an optional one counts only after `=` or glued to a short option."""

    NONE = "-"
    REQUIRED = "="
    OPTIONAL = "?"


@dataclass(frozen=True, kw_only=True, slots=True)
class Spec:
    """An option of sbatch in one release.

    Attributes:
        name: Its long name, without dashes.
        short: Its letter, or "".
        argument: Whether it takes one.
        early: It counts on the command line only: a directive that holds it does nothing.
        per_component: It starts anew in each component of a heterogeneous job; the others are carried on.
    """

    name: str
    short: str
    argument: HasArgument
    early: bool
    per_component: bool


@cache
def specs(release: str) -> dict[str, Spec]:
    """The options of a release, by long name.

    Raises:
        ValueError: The release is not in RELEASES; a point release counts as its line.
    """
    at = RELEASES.index(line_of(release))
    found = {}
    for line in _OPTIONS.split("\n"):
        name, short, kind, since, until = line.split()
        if _within(at, since, until):
            found[name] = Spec(
                name=name,
                short="" if short == "." else short,
                argument=HasArgument(kind[0]),
                early="!" in kind,
                per_component="*" in kind,
            )
    return found


@cache
def variables(release: str) -> tuple[tuple[str, str], ...]:
    """Each variable that sbatch of this release reads, with the option it stands for, in sbatch's order."""
    at = RELEASES.index(line_of(release))
    lines = (line.split() for line in _VARIABLES.split("\n"))
    return tuple((name, option) for name, option, since in lines if _within(at, since, "."))


def line_of(release: str) -> str:
    """The release line: 22.05 of 22.05.8.

    Raises:
        ValueError: It is not known here.
    """
    line = ".".join(release.split(".")[:2])
    if line not in RELEASES:
        raise ValueError(f"Slurm {release} is not known; known are {', '.join(RELEASES)}")
    return line


def _within(at: int, since: str, until: str) -> bool:
    first = 0 if since == "." else RELEASES.index(since)
    last = len(RELEASES) - 1 if until == "." else RELEASES.index(until)
    return first <= at <= last


# name, short, argument (! early, * per component), since, until
_OPTIONS = """\
account A = . .
acctg-freq . = . .
array a = . .
autocomplete . = 23.02 .
batch . = . .
begin b = . .
bb . =* . .
bbf . = . .
cluster-constraint . = . .
chdir D = . .
cluster . = . .
clusters M = . .
comment . = . .
consolidate-segments . -* 25.11 .
container . = 21.08 .
container-id . = 23.02 .
container-type . = 26.05 .
context . = 21.08 .
contiguous . -* . .
constraint C =* . .
core-spec S =* . .
cores-per-socket . =* . .
cpu-freq . =* . .
cpus-per-gpu . =* . .
cpus-per-task c =* . .
deadline . = . .
delay-boot . = . .
dependency d = . .
distribution m =* . .
error e = . .
exclude x = . .
exclusive . ?* . .
export . = . .
export-file . = . 23.02
export-file . = 24.05 .
external . -* 25.05 .
extra . = 23.02 .
extra-node-info B =* . .
get-user-env . ? . 24.11
get-user-env . - 25.05 .
gid . = . .
gpu-bind . =* . .
gpu-freq . =* . .
gpus G =* . .
gpus-per-node . =* . .
gpus-per-socket . =* . .
gpus-per-task . =* . .
gres . =* . .
gres-flags . =* . .
help h -! . .
hint . =* . .
hold H - . .
ignore-pbs . - . .
input i = . .
job-name J = . .
kill-on-invalid-dep . = . .
licenses L =* . .
mail-type . =* . .
mail-user . =* . .
mcs-label . = . .
mem . = . .
mem-bind . =* . .
mem-per-cpu . =* . .
mem-per-gpu . =* . .
mem-update . = 26.05 .
mincpus . =* . .
network . =* . .
nice . ? . .
no-kill k ? . .
no-requeue . - . .
nodefile F =* . .
nodelist w =* . .
nodes N =* . .
ntasks n =* . .
ntasks-per-core . =* . .
ntasks-per-gpu . =* . .
ntasks-per-node . =* . .
ntasks-per-socket . =* . .
ntasks-per-tres . =* . .
oom-kill-step . ? 24.11 .
open-mode . = . .
output o = . .
overcommit O -* . .
oversubscribe s -* . .
parsable . - . .
partition p =* . .
power . =* . 23.11
prefer . = 22.05 .
priority . = . .
profile . = . .
propagate . ? . .
qos q = . .
quiet Q -! . .
reboot . - . .
requeue . - . 25.05
requeue . ? 25.11 .
resources . =* 25.11 .
reservation . = . .
resv-ports . ?* 24.05 .
segment . =* 24.05 .
signal . = . .
sockets-per-node . =* . .
spread-job . -* . .
spread-segments . -* 25.11 .
stepmgr . - 24.05 .
switches . =* . .
tasks-per-node . =* . .
test-only . - . .
thread-spec . =* . .
threads-per-core . =* . .
time t = . .
time-min . = . .
tmp . =* . .
tres-bind . =* 23.11 .
tres-per-task . =* 23.02 .
uid . = . .
use-min-nodes . -* . .
verbose v -! . .
version V -! . .
usage . -! . .
wait W - . .
wait-all-nodes . = . .
wckey . = . .
wrap . =! . ."""

# variable, option, since
_VARIABLES = """\
SBATCH_ACCOUNT account .
SBATCH_ARRAY_INX array .
SBATCH_ACCTG_FREQ acctg-freq .
SBATCH_BATCH batch .
SBATCH_BURST_BUFFER bb .
SBATCH_CLUSTER_CONSTRAINT cluster-constraint .
SBATCH_CLUSTERS clusters .
SLURM_CLUSTERS clusters .
SBATCH_CONSOLIDATE_SEGMENTS consolidate-segments 25.11
SBATCH_CONTAINER container 21.08
SBATCH_CONTAINER_ID container-id 23.02
SBATCH_CONTAINER_TYPE container-type 26.05
SBATCH_CONSTRAINT constraint .
SBATCH_CORE_SPEC core-spec .
SBATCH_CPU_FREQ_REQ cpu-freq .
SBATCH_CPUS_PER_GPU cpus-per-gpu .
SBATCH_DEBUG verbose .
SBATCH_DELAY_BOOT delay-boot .
SBATCH_DISTRIBUTION distribution .
SBATCH_EXCLUSIVE exclusive .
SBATCH_EXPORT export .
SBATCH_GET_USER_ENV get-user-env .
SBATCH_GRES gres .
SBATCH_GRES_FLAGS gres-flags .
SBATCH_GPUS gpus .
SBATCH_GPU_BIND gpu-bind .
SBATCH_GPU_FREQ gpu-freq .
SBATCH_GPUS_PER_NODE gpus-per-node .
SBATCH_GPUS_PER_SOCKET gpus-per-socket .
SBATCH_GPUS_PER_TASK gpus-per-task .
SLURM_HINT hint .
SBATCH_HINT hint .
SBATCH_JOB_NAME job-name .
SBATCH_MEM_BIND mem-bind .
SBATCH_MEM_PER_CPU mem-per-cpu .
SBATCH_MEM_PER_GPU mem-per-gpu .
SBATCH_MEM_PER_NODE mem .
SBATCH_NETWORK network .
SBATCH_NO_KILL no-kill .
SBATCH_NO_REQUEUE no-requeue .
SBATCH_OPEN_MODE open-mode .
SBATCH_OVERCOMMIT overcommit .
SBATCH_PARTITION partition .
SBATCH_POWER power .
SBATCH_PROFILE profile .
SBATCH_QOS qos .
SBATCH_REQ_SWITCH req-switch .
SBATCH_REQUEUE requeue .
SBATCH_RESERVATION reservation .
SBATCH_SEGMENT_SIZE segment 25.05
SBATCH_SIGNAL signal .
SBATCH_SPREAD_JOB spread-job .
SBATCH_SPREAD_SEGMENTS spread-segments 25.11
SBATCH_THREAD_SPEC thread-spec .
SBATCH_THREADS_PER_CORE threads-per-core 21.08
SBATCH_TIMELIMIT time .
SBATCH_TRES_BIND tres-bind 23.11
SBATCH_TRES_PER_TASK tres-per-task 23.02
SBATCH_USE_MIN_NODES use-min-nodes .
SBATCH_WAIT wait .
SBATCH_WAIT_ALL_NODES wait-all-nodes .
SBATCH_WAIT4SWITCH wait4switch .
SBATCH_WCKEY wckey .
SBATCH_ERROR error 22.05
SBATCH_INPUT input 22.05
SBATCH_OUTPUT output 22.05"""
