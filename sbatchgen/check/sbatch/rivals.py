"""Lists the pairs of options that sbatch refuses together, with the first release that refuses them."""

from collections.abc import Iterator
from typing import NamedTuple, Protocol


class Rivals(NamedTuple):
    """Two options that sbatch refuses together."""

    first: str  # the long name of one option
    second: str  # the long name of the other option
    since: str  # the first release that refuses the pair
    before: str  # in words, the behaviour of older releases; "" if all known releases refuse the pair
    message: str  # the message of sbatch


class Options(Protocol):
    """The names of the options that a script or a job sets."""

    def __contains__(self, option: str, /) -> bool: ...


_MEMORY = "--mem, --mem-per-cpu, and --mem-per-gpu are mutually exclusive."
_PER_GPU = "is mutually exclusive with --ntasks-per-gpu and SLURM_NTASKS_PER_GPU"
_OPTIONS_ARE = "options are mutually exclusive"
_LAST = "the last one counts"
# sbatch itself misspells --thread-spec in one of these messages.
RIVALS = (
    Rivals("mem", "mem-per-cpu", "20.11", "", _MEMORY),
    Rivals("mem", "mem-per-gpu", "20.11", "", _MEMORY),
    Rivals("mem-per-cpu", "mem-per-gpu", "20.11", "", _MEMORY),
    Rivals("cpus-per-gpu", "cpus-per-task", "21.08", "", "mutually exclusive"),
    Rivals("exclusive", "oversubscribe", "23.02", _LAST, f"--exclusive and --oversubscribe {_OPTIONS_ARE}"),
    Rivals("ntasks-per-gpu", "gpus-per-task", "20.11", "", f"--gpus-per-task {_PER_GPU}"),
    Rivals("ntasks-per-gpu", "tres-per-task", "23.02", "", f"--tres-per-task {_PER_GPU}"),
    Rivals("ntasks-per-gpu", "gpus-per-socket", "20.11", "", f"--gpus-per-socket {_PER_GPU}"),
    Rivals("ntasks-per-gpu", "ntasks-per-node", "20.11", "", f"--ntasks-per-node {_PER_GPU}"),
    Rivals("core-spec", "thread-spec", "21.08", _LAST, f"-S/--core-spec and --thred-spec {_OPTIONS_ARE}"),
    Rivals("bb", "bbf", "20.11", "", "Cannot specify both --burst-buffer and --bbf"),
)


def rivals(options: Options) -> Iterator[Rivals]:
    """Yield the pairs of RIVALS with two set options."""
    return (pair for pair in RIVALS if pair.first in options and pair.second in options)


def hint_rivals(options: Options, slurm: str) -> list[str]:
    """Return the names of set options for which sbatch ignores --hint."""
    added_later = ("cores-per-socket", "sockets-per-node") if slurm >= "25.11" else ()
    names = ("ntasks-per-core", "threads-per-core", "extra-node-info", *added_later)
    return [name for name in names if name in options]
