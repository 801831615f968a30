"""What a submission may take at the most, from the bytes and the options that sbatch gets."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from sbatchgen.base.errors import BudgetError
from sbatchgen.check.sbatch.array import indices
from sbatchgen.check.script.more_options import with_options
from sbatchgen.check.script.resource_request import UNLIMITED, ResourceRequest
from sbatchgen.check.script.script import JobScript
from sbatchgen.jobs.slurm.node import nodes
from sbatchgen.jobs.slurm.partition import partitions

_MOST_RESTARTS = re.compile(r"^ *max_restarts=([0-9]+)\b", re.MULTILINE)  # of our own scripts
_REQUEUES = re.compile(r"\bscontrol\b[^\n]*\brequeue")
_NOT_COUNTED = ("gpus-per-socket", "tres-per-task", "clusters")  # options that leave the GPUs open


class Demand(NamedTuple):
    """What a submission may take at the most."""

    tasks: int  # jobs: elements of an array
    at_once: int  # how many of them may run at once
    gpus: float  # of each; a shard counts as its fraction of a GPU
    cpus: int  # of each
    starts: int  # of each, with all restarts
    time_s: int  # the limit of each start
    partitions: tuple[str, ...]  # that are named
    account: str

    def hours(self, each: float, tasks: int = 0) -> float:
        """Return the hours of all tasks and starts, with so many GPUs or CPUs each."""
        return (tasks or self.tasks) * self.starts * each * self.time_s / 3600


def demand(script: bytes, options: Sequence[str], environment: Mapping[str, str]) -> Demand:
    """Return what sbatch would be asked for. Raises BudgetError: that is not known; SlurmError."""
    job = JobScript(file="", text=with_options(script.decode("utf-8", "surrogateescape"), options))
    asked = job.resources.spread(None)
    restarts = [int(text) for text in _MOST_RESTARTS.findall(job.text)]
    for what, fix in _unknown(job, asked, counted=bool(restarts)):
        raise BudgetError.of(f"a budget can't count this job: {what}", fix=fix)
    array, _, most = asked.options.get("array", "").partition("%")
    tasks = sum(map(len, indices(array) or ())) or 1
    at_once = min(int(most), tasks) if most.isdecimal() and int(most) else tasks
    named = tuple(filter(None, asked.options.get("partition", "").split(",")))
    each = (*_of_nodes(asked, environment), 1 + max(restarts, default=0), asked.time or 0)
    return Demand(tasks, at_once, *each, named, asked.options.get("account", ""))


def _unknown(job: JobScript, asked: ResourceRequest, *, counted: bool) -> Iterator[tuple[str, str]]:
    """Yield what keeps a job from being counted, and what to write."""
    if not asked.time or asked.time >= UNLIMITED:
        yield "it has no time limit", "add --time HH:MM:SS"
    if len(job.sbatch.components) > 1:
        yield "it is a heterogeneous job", "submit a job for each component"
    for name in (name for name in _NOT_COUNTED if name in asked):
        yield f"--{name} leaves its GPUs open", f"leave --{name} out, and write --gpus-per-node N"
    if not counted and _REQUEUES.search(job.text) and "no-requeue" not in asked:
        yield "the number of its restarts is not known", "add --no-requeue"


def _of_nodes(asked: ResourceRequest, environment: Mapping[str, str]) -> tuple[float, int]:
    """Return the GPUs and CPUs of all its nodes; of whole nodes all that the cluster's nodes have."""
    asks = asked.partitions
    named = [each for each in partitions(environment) if (each.name in asks if asks else each.default)]
    alone = asked.is_exclusive or any(each.exclusive for each in named)
    if not alone and not asked.shards:
        return asked.gpus_in_all, asked.cpus_on_node * asked.nodes
    names = {each.name for each in named}
    its = [each for each in nodes(environment) if names & {*each.partitions}]
    gres = [{each.name: each.count for each in node.gres} for node in its]
    gpus, shards = (max((each.get(name, 0) for each in gres), default=0) for name in ("gpu", "shard"))
    if not alone:
        share = asked.shards * gpus / shards if shards else asked.shards
        return asked.gpus_in_all + share * asked.nodes, asked.cpus_on_node * asked.nodes
    cpus = max((each.cpus for each in its), default=asked.cpus_on_node)
    return max(gpus, asked.gpu_count) * asked.nodes, cpus * asked.nodes
