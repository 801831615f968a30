"""The options of sbatch in each release of Slurm from 20.11 to 26.05, in the order of getopt's list.

Read from the option tables of Slurm's last point release of each line, as are the variables.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from functools import cache
from typing import NamedTuple

from sbatchgen.units import NEWEST, RELEASES

ALIASES = {"tasks-per-node": "ntasks-per-node"}  # sbatch keeps and prints the other name


class HasArgument(Enum):
    """Whether an option takes one; an optional one counts only after `=` or glued to a short option."""

    NONE = "-"
    REQUIRED = "="
    OPTIONAL = "?"


class Spec(NamedTuple):
    """An option of sbatch in one release.

    Attributes:
        name: Its long name, without dashes.
        short: Its letter, or "".
        argument: Whether it takes one.
        early: It counts on the command line only: a directive that holds it does nothing.
        per_component: It does not carry over to the next component of a heterogeneous job.
    """

    name: str
    short: str
    argument: HasArgument
    early: bool = False
    per_component: bool = False


@cache
def specs(release: str) -> dict[str, Spec]:
    """Return the options of a release, by long name.

    Raises:
        ValueError: The release is not in RELEASES; a point release counts as its line.
    """
    return {
        name: Spec(
            name=name,
            short=short.removeprefix("."),
            argument=HasArgument(argument[0]),
            early="!" in argument,
            per_component="*" in argument,
        )
        for name, short, argument, _ in _rows(line_of(release))
    }


@cache
def variables(release: str) -> tuple[tuple[str, str], ...]:
    """Return the variables that sbatch of this release reads, each with the option that it sets."""
    line = line_of(release)
    regular = (
        (f"SBATCH_{name.upper().replace('-', '_')}", name)
        for name, _, argument, _ in _rows(line)
        if "$" in argument
    )
    others = ((variable, name) for variable, name, since in _VARIABLES if line >= since)
    return (*regular, *others)


@cache
def value_kinds() -> dict[str, str]:
    """Return what kind of value each option has, for those whose values are checked."""
    return {name: kind for name, _, _, kind in _rows(NEWEST) if kind != "."}


def line_of(release: str) -> str:
    """Return the release line: 22.05 of 22.05.8.

    Raises:
        ValueError: It is not known here.
    """
    line = ".".join(release.split(".")[:2])
    if line not in RELEASES:
        raise ValueError(f"Slurm {release} is not known; known are {', '.join(RELEASES)}")
    return line


def _rows(line: str) -> Iterator[list[str]]:
    """Yield name, letter, argument and kind of value of each option of a release."""
    for row in _OPTIONS.split("\n"):
        *cells, since, until = row.split()
        if since.strip(".") <= line and (until == "." or line <= until):
            yield cells


# Variables that are not called SBATCH_ and the option, or came later than it: name, option, first release.
_VARIABLES = (
    ("SBATCH_ARRAY_INX", "array", "20.11"),
    ("SBATCH_BURST_BUFFER", "bb", "20.11"),
    ("SLURM_CLUSTERS", "clusters", "20.11"),
    ("SBATCH_CPU_FREQ_REQ", "cpu-freq", "20.11"),
    ("SBATCH_DEBUG", "verbose", "20.11"),
    ("SLURM_HINT", "hint", "20.11"),
    ("SBATCH_MEM_PER_NODE", "mem", "20.11"),
    ("SBATCH_REQ_SWITCH", "switches", "20.11"),
    ("SBATCH_THREADS_PER_CORE", "threads-per-core", "21.08"),
    ("SBATCH_TIMELIMIT", "time", "20.11"),
    ("SBATCH_ERROR", "error", "22.05"),
    ("SBATCH_INPUT", "input", "22.05"),
    ("SBATCH_OUTPUT", "output", "22.05"),
    ("SBATCH_SEGMENT_SIZE", "segment", "25.05"),
)
# Name; letter; argument (! on the command line only, * per component, $ has a variable SBATCH_NAME);
# kind of value (. is not checked); first and last release.
_OPTIONS = """\
account               A  =$   .             .      .
acctg-freq            .  =$   .             .      .
array                 a  =    array         .      .
autocomplete          .  =    .             23.02  .
batch                 .  =$   .             .      .
begin                 b  =    moment        .      .
bb                    .  =*   .             .      .
bbf                   .  =    .             .      .
cluster-constraint    .  =$   .             .      .
chdir                 D  =    .             .      .
cluster               .  =    .             .      .
clusters              M  =$   .             .      .
comment               .  =    .             .      .
consolidate-segments  .  -*$  .             25.11  .
container             .  =$   .             21.08  .
container-id          .  =$   .             23.02  .
container-type        .  =$   .             26.05  .
context               .  =    .             21.08  .
contiguous            .  -*   .             .      .
constraint            C  =*$  features      .      .
core-spec             S  =*$  .             .      .
cores-per-socket      .  =*   count         .      .
cpu-freq              .  =*   .             .      .
cpus-per-gpu          .  =*$  count         .      .
cpus-per-task         c  =*   count         .      .
deadline              .  =    moment        .      .
delay-boot            .  =$   time          .      .
dependency            d  =    dependency    .      .
distribution          m  =*$  distribution  .      .
error                 e  =    .             .      .
exclude               x  =    hosts         .      .
exclusive             .  ?*$  exclusive     .      .
export                .  =$   .             .      .
export-file           .  =    .             .      23.02
export-file           .  =    .             24.05  .
external              .  -*   .             25.05  .
extra                 .  =    .             23.02  .
extra-node-info       B  =*   .             .      .
get-user-env          .  ?$   .             .      24.11
get-user-env          .  -$   .             25.05  .
gid                   .  =    .             .      .
gpu-bind              .  =*$  .             .      .
gpu-freq              .  =*$  .             .      .
gpus                  G  =*$  gpus          .      .
gpus-per-node         .  =*$  gpus          .      .
gpus-per-socket       .  =*$  gpus          .      .
gpus-per-task         .  =*$  .             .      .
gres                  .  =*$  gres          .      .
gres-flags            .  =*$  .             .      .
help                  h  -!   .             .      .
hint                  .  =*$  hint          .      .
hold                  H  -    .             .      .
ignore-pbs            .  -    .             .      .
input                 i  =    .             .      .
job-name              J  =$   .             .      .
kill-on-invalid-dep   .  =    yes-no        .      .
licenses              L  =*   licenses      .      .
mail-type             .  =*   mail          .      .
mail-user             .  =*   .             .      .
mcs-label             .  =    .             .      .
mem                   .  =    memory        .      .
mem-bind              .  =*$  .             .      .
mem-per-cpu           .  =*$  memory        .      .
mem-per-gpu           .  =*$  memory        .      .
mem-update            .  =    .             26.05  .
mincpus               .  =*   count         .      .
network               .  =*$  .             .      .
nice                  .  ?    .             .      .
no-kill               k  ?$   .             .      .
no-requeue            .  -$   .             .      .
nodefile              F  =*   .             .      .
nodelist              w  =*   hosts         .      .
nodes                 N  =*   nodes         .      .
ntasks                n  =*   count         .      .
ntasks-per-core       .  =*   count         .      .
ntasks-per-gpu        .  =*   count         .      .
ntasks-per-node       .  =*   count         .      .
ntasks-per-socket     .  =*   count         .      .
ntasks-per-tres       .  =*   count         .      .
oom-kill-step         .  ?    .             24.11  .
open-mode             .  =$   open-mode     .      .
output                o  =    .             .      .
overcommit            O  -*$  .             .      .
oversubscribe         s  -*   .             .      .
parsable              .  -    .             .      .
partition             p  =*$  .             .      .
power                 .  =*$  .             .      23.11
prefer                .  =    features      22.05  .
priority              .  =    .             .      .
profile               .  =$   .             .      .
propagate             .  ?    .             .      .
qos                   q  =$   .             .      .
quiet                 Q  -!   .             .      .
reboot                .  -    .             .      .
requeue               .  -$   .             .      25.05
requeue               .  ?$   .             25.11  .
resources             .  =*   .             25.11  .
reservation           .  =$   .             .      .
resv-ports            .  ?*   .             24.05  .
segment               .  =*   .             24.05  .
signal                .  =$   signal        .      .
sockets-per-node      .  =*   count         .      .
spread-job            .  -*$  .             .      .
spread-segments       .  -*$  .             25.11  .
stepmgr               .  -    .             24.05  .
switches              .  =*   switches      .      .
tasks-per-node        .  =*   count         .      .
test-only             .  -    .             .      .
thread-spec           .  =*$  .             .      .
threads-per-core      .  =*   count         .      .
time                  t  =    time          .      .
time-min              .  =    time          .      .
tmp                   .  =*   memory        .      .
tres-bind             .  =*$  .             23.11  .
tres-per-task         .  =*$  tres          23.02  .
uid                   .  =    .             .      .
use-min-nodes         .  -*$  .             .      .
verbose               v  -!   .             .      .
version               V  -!   .             .      .
usage                 .  -!   .             .      .
wait                  W  -$   .             .      .
wait-all-nodes        .  =$   zero-one      .      .
wckey                 .  =$   .             .      .
wrap                  .  =!   .             .      ."""
