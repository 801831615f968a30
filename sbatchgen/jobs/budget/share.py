"""The most GPUs and CPUs that Slurm may give a request, by the cluster's partitions and nodes.

Source: what Slurm 22.05 and 26.05 allocate (tests/budget/test_share.py).
"""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from sbatchgen.base.errors import BudgetError, SlurmError
from sbatchgen.check.sbatch.hostlist import hosts
from sbatchgen.check.script.resource_request import ResourceRequest
from sbatchgen.jobs.slurm.config import config
from sbatchgen.jobs.slurm.node import SlurmNode, nodes
from sbatchgen.jobs.slurm.partition import SlurmPartition, partitions

_SHARES = ("shard", "mps")  # a part of a GPU each


class Ground(NamedTuple):
    """Where a job may run."""

    partitions: Sequence[SlurmPartition]
    nodes: Sequence[SlurmNode]  # of these; none where Slurm does not show them
    settings: Mapping[str, str]  # of Slurm

    def most(self, name: str) -> int:
        """Return the largest value of a field of the nodes, 0 without nodes."""
        return max((getattr(each, name) for each in self.nodes), default=0)

    def gres(self, name: str) -> int:
        """Return the largest count of a generic resource on a node."""
        return max(
            (sum(its.count for its in each.gres if its.name == name) for each in self.nodes), default=0
        )

    @property
    def time_s(self) -> int | None:
        """Return the time limit of a job that names none; None if there is no limit."""
        limits = [each.time_default_s or each.time_max_s for each in self.partitions]
        return max((each for each in limits if each), default=0) if all(limits) else None


def ground(asked: ResourceRequest, environment: Mapping[str, str]) -> Ground:
    """Return where a job may run; raises SlurmError."""
    asks = asked.partitions
    named = [each for each in partitions(environment) if (each.name in asks if asks else each.default)]
    its: list[SlurmNode] = []
    with contextlib.suppress(
        SlurmError
    ):  # PrivateData=nodes: what Slurm does not show is counted at its most
        names = {each.name for each in named}
        its = [each for each in nodes(environment) if names & {*each.partitions}]
    return Ground(named, its, config(environment))


def most(asked: ResourceRequest, where: Ground) -> tuple[float, int]:
    """Return the GPUs and CPUs of all nodes of a job; raises BudgetError: its nodes are not shown."""
    asked = asked.spread(max((each.nodes for each in where.partitions), default=0) or None)
    asked = replace(asked, nodes_min=max(asked.nodes, len(hosts(asked.options.get("nodelist", "")))))
    alone = asked.is_exclusive or any(each.exclusive for each in where.partitions)
    alone |= "linear" in where.settings.get("SelectType", "") or bool(
        {"core-spec", "thread-spec"} & {*asked.options}
    )
    if not alone:
        gpus = _gpus(asked, where)
        return gpus, _cpus(asked, where, -int(-gpus // 1))
    if not where.nodes:
        what = "a budget can't count this job: it gets whole nodes, and Slurm does not show what they have"
        raise BudgetError.of(what, fix="leave --exclusive out")
    return max(where.gres("gpu"), asked.gpu_count) * asked.nodes, where.most("cpus") * asked.nodes


def _gpus(asked: ResourceRequest, where: Ground) -> float:
    if asked.ntasks and asked.ntasks_per_gpu and not asked.gpu_option:
        return -(-asked.ntasks // asked.ntasks_per_gpu)
    shares = 0.0
    for name in _SHARES:
        wanted, has = sum(count for its, _, count in asked.gres if its == name), where.gres(name)
        shares += wanted * where.gres("gpu") / has if has else wanted
    return max(asked.gpus_in_all, sum(count for _, count in asked.gpus or ())) + shares * asked.nodes


def _cpus(asked: ResourceRequest, where: Ground, gpus: int) -> int:
    """Return the CPUs; Slurm gives whole cores, or sockets, and what memory and GPUs bring with them."""
    threads = where.most("threads_per_core") or 2
    parameters, grain = where.settings.get("SelectTypeParameters", ""), threads
    if "SOCKET" in parameters.upper():
        grain *= where.most("cores_per_socket") or 1
    each = _of_task(asked, where, threads, one_a_core="ONE_TASK_PER_CORE" in parameters.upper())
    by_gpu = max((each.cpus_per_gpu or 0 for each in where.partitions), default=0)
    by_gpu = asked.cpus_per_gpu or (0 if asked.cpus_per_task else by_gpu)
    if asked.splits_gpus():  # 26.05 gives a node CPUs for more GPUs than it gets
        gpus = asked.nodes * min(gpus, where.gres("gpu") or gpus)
    if asked.ntasks_per_node:
        on_node = asked.ntasks_per_node * each
        total = asked.nodes * -(-on_node // grain) * grain
    else:
        tasks = max(asked.ntasks or 1, asked.nodes, (asked.ntasks_per_gpu or 0) * gpus)
        total = (max(tasks * each, by_gpu * gpus) + asked.nodes * (grain - 1)) // grain * grain
    total = max(total, asked.nodes * -(-_fewest(asked, where) // grain) * grain)
    return min(total, asked.nodes * where.most("cpus") or total)


def _of_task(asked: ResourceRequest, where: Ground, threads: int, *, one_a_core: bool) -> int:
    """Return the CPUs that Slurm counts for a task: with one thread of a core, all threads of the core."""
    each = asked.cpus_per_task or 1
    if limit := _memory_of_cpu(where):
        each *= -(-(asked.mem_per_cpu or 0) // limit) or 1
    if asked.options.get("hint") == "nomultithread" or "threads-per-core" in asked:
        return each * threads
    return -(-each // threads) * threads if one_a_core or "ntasks-per-core" in asked else each


def _fewest(asked: ResourceRequest, where: Ground) -> int:
    """Return the CPUs that a node gives in any case: for --mincpus, for -B, and for the memory."""
    shape = 1
    for part in asked.options.get("extra-node-info", "").split(":"):
        shape *= int(part) if part.isdecimal() else 1
    asks = asked.options.get("mincpus", "")
    of_memory = 0
    if limit := _memory_of_cpu(where):
        memory = (
            where.most("memory")
            if asked.mem == 0
            else asked.mem or (asked.mem_per_gpu or 0) * asked.gpu_count
        )
        of_memory = -(-memory // limit)
    return max(shape, int(asks) if asks.isdecimal() else 1, of_memory)


def _memory_of_cpu(where: Ground) -> int:
    """Return the memory that a CPU may have: for more, Slurm gives more CPUs. 0 without a limit."""
    of_all = where.settings.get("MaxMemPerCPU", "")
    limits = [each.mem_per_cpu_max or 0 for each in where.partitions]
    limits = [each for each in (*limits, int(of_all) if of_all.isdecimal() else 0) if each]
    return min(limits, default=0)
