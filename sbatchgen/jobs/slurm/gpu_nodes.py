"""The GPUs of a live cluster: which are taken, which are shared by shards, which are free.

A GPU is either taken whole or shared. A GPU with shards in use can't be taken whole, and a taken GPU has no
free shards (gres.html of Slurm). Since 23.11, Slurm shows for each node how many shards of each GPU are in
use; older releases show it only for jobs. While a job ends on a node, Slurm 22.05 shows its GPUs as free,
but no other job starts there.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from sbatchgen.base.frozen import frozen
from sbatchgen.check.sbatch.hostlist import hosts
from sbatchgen.jobs.slurm.client import answer
from sbatchgen.jobs.slurm.node import NodeGres, SlurmNode, node_gres
from sbatchgen.jobs.slurm.queue import rows, separator
from sbatchgen.jobs.slurm.state import state, state_texts

_TAKES_JOBS = ("IDLE", "MIXED", "ALLOCATED")  # states of nodes that take jobs, unless a flag forbids it
_JOB_STATE = re.compile(r" JobState=(\S+) Reason=")
# The nodes of a running job, and the generic resources that the job has on each of them, for example
# "Nodes=n[1-2] CPU_IDs=0-3 Mem=4096 GRES=gpu:a100:1(IDX:2)".
_ON_NODES = re.compile(r" Nodes=(\S+) CPU_IDs=\S+ Mem=\S+ GRES=(\S+)")
# The start of a job's record: "JobId=4711 JobName=". A text that a user chose may look the same.
_RECORD_START = re.compile(r"^JobId=([0-9]+) (?:\w+=\S+ )*?JobName=", re.MULTILINE)
# Texts that a user may choose, and that scontrol prints between the job's name and its GPUs.
_LABELS = ("MCSLabel", "Account", "WCKey")
_JOB_FIELDS = ("JobID", "Name", "State", "NodeList", *_LABELS)

MAX_GPUS = 1024  # the most GPUs of a node: MAX_GRES_BITMAP of Slurm

ShardsInUse = Mapping[tuple[str, int], int]  # shards that jobs use, by the node's name and the GPU's index


@frozen(slots=True)
class Gpu:
    """A GPU of a node."""

    index: int  # its number on the node
    type: str  # "a100" for example; "" if it has no type
    taken: bool  # whether a job has the whole GPU
    shards: int = 0  # into how many shards it may be cut; 0 if GPUs are not shared
    shards_used: int | None = 0  # how many shards jobs have; None if jobs have an unknown number of them
    free: bool = True  # whether no job uses any part of the GPU; its node may still take no jobs

    @property
    def shards_free(self) -> int:
        """The number of shards that jobs are known to be able to take."""
        return 0 if self.taken or self.shards_used is None else max(0, self.shards - self.shards_used)


@frozen(slots=True)
class GpuNode:
    """A node with its GPUs."""

    node: SlurmNode
    gpus: tuple[Gpu, ...]
    numbered: bool  # whether Slurm shows which GPUs are taken, not only how many


@frozen(slots=True)
class GpuCount:
    """GPUs of a type: in use, shared, free or unavailable."""

    type: str  # "a100" for example; "" if they have no type
    partitions: tuple[str, ...]  # the partitions of nodes with such GPUs
    total: int  # all GPUs of the type
    in_use: int  # GPUs that a job has whole
    shared: int  # GPUs with shards that jobs have
    free: int  # GPUs that jobs may take now
    unavailable: int  # all other GPUs: on nodes that take no jobs
    shards: int  # all shards
    shards_free: int  # shards that jobs may take now, on all GPUs
    shards_on_one: int  # the most free shards on one GPU: a job gets all of its shards from one GPU


def unavailable(node: SlurmNode) -> str:
    """Return in a word or two why a node takes no jobs; "" for a node that takes jobs."""
    if node.state not in _TAKES_JOBS:
        return node.state.lower()
    return next((words for flag, words in state_texts().nodes.items() if flag in node.flags), "")


def gpu_nodes(nodes: Iterable[SlurmNode], environment: Mapping[str, str]) -> list[GpuNode]:
    """Return the nodes that have GPUs.

    If the nodes do not show how many shards of each GPU are in use, Slurm is asked for jobs, which may raise
    SlurmError.
    """
    with_gpus = [node for node in nodes if any(gres.count for gres in _gres_named("gpu", node.gres))]
    shards = (gres for node in with_gpus for gres in _gres_named("shard", node.gres_used))
    shards_of_jobs = {} if all(gres.per_gpu for gres in shards) else _shards_of_jobs(environment)
    return [node_with_gpus(node, shards_of_jobs) for node in with_gpus]


def node_with_gpus(node: SlurmNode, shards_of_jobs: ShardsInUse) -> GpuNode:
    """Return a node with its GPUs; `shards_of_jobs` has the shards in use if nodes do not show them."""
    gpus_used = [gres for gres in _gres_named("gpu", node.gres_used) if gres.count]
    types = _types_by_index(_gres_named("gpu", node.gres), gpus_used)
    taken = _taken(types, gpus_used)
    shards, shards_used = [0] * len(types), dict[int, int | None]()
    for gres in _gres_named("shard", node.gres):
        of_type, shards_left = _indexes_of_type(types, gres.type), gres.count
        # Divide the shards among the GPUs as _distribute_count of Slurm's gres_c_s.c does.
        for number, index in enumerate(of_type):
            shards[index] = shards_left // (len(of_type) - number)
            shards_left -= shards[index]
    for gres in _gres_named("shard", node.gres_used):
        of_type = _indexes_of_type(types, gres.type)
        # Slurm lists all GPUs of the node, or only the GPUs of the type.
        indexes = range(len(types)) if len(gres.per_gpu) >= len(types) else of_type
        for index, (used, total) in zip(indexes, gres.per_gpu, strict=False):
            shards[index] = max(shards[index], total)
            if used is None:
                taken.add(index)
            elif used:
                shards_used[index] = used
        # Before 23.11, a node shows only which GPUs have shards in use, and lacks a GPU on which a job has
        # freed some of its shards. So the shards of jobs count too.
        if not gres.per_gpu:
            shards_used |= {index: None for index in gres.indexes if index < len(types)}
            for index in of_type:
                if (node.name, index) in shards_of_jobs:
                    shards_used[index] = shards_of_jobs[node.name, index]
    gpus = tuple(
        Gpu(
            index=index,
            type=kind,
            taken=index in taken,
            shards=shards[index],
            shards_used=shards_used.get(index, 0),
            free=index not in taken and shards_used.get(index, 0) == 0,
        )
        for index, kind in enumerate(types)
    )
    is_numbered = all(len(gres.indexes) == gres.count for gres in gpus_used)
    return GpuNode(node, gpus, is_numbered)


def _gres_named(name: str, all_gres: Iterable[NodeGres]) -> list[NodeGres]:
    return [gres for gres in all_gres if gres.name == name]


def _types_by_index(configured: Sequence[NodeGres], used: Sequence[NodeGres]) -> list[str]:
    """Return the type of each GPU by its index.

    Slurm shows the index and the type of GPUs in use. The other GPUs get the remaining types in the order of
    slurm.conf.
    """
    remaining = Counter[str]()
    for gres in configured:
        remaining[gres.type] += min(gres.count, MAX_GPUS)
    by_index: dict[int, str] = {}
    total = remaining.total()
    for kind, index in ((gres.type, index) for gres in used for index in gres.indexes):
        if index < total and remaining[kind] > 0 and index not in by_index:
            by_index[index] = kind
            remaining[kind] -= 1
    rest = remaining.elements()
    return [by_index[index] if index in by_index else next(rest) for index in range(total)]


def _taken(types: Sequence[str], used: Sequence[NodeGres]) -> set[int]:
    """Return the indexes of GPUs that jobs have whole; if only their number is known, the first indexes."""
    taken = {index for gres in used for index in gres.indexes if index < len(types)}
    for gres in used:
        others = [index for index in _indexes_of_type(types, gres.type) if index not in taken]
        taken.update(others[: max(0, gres.count - len(gres.indexes))])
    return taken


def _indexes_of_type(types: Sequence[str], kind: str) -> list[int]:
    """Return the indexes of GPUs of a type; of all GPUs if no GPU has the type, or if `kind` is ""."""
    return [index for index, type_ in enumerate(types) if type_ == kind] or [*range(len(types))]


def _shards_of_jobs(environment: Mapping[str, str]) -> ShardsInUse:
    """Return the shards in use on each GPU, from the jobs that this user may see.

    Only scontrol shows on which GPU a job has shards. But scontrol also prints texts that users choose, and
    these may have line breaks and look like GPUs. squeue prints each of these texts separately, so they can
    be removed. Nodes with a job whose record is uncertain are excluded.
    """
    delimiter = separator()
    command = ["squeue", "--all", "--noheader", "--states=all"]
    jobs = answer(
        [*command, "--Format=" + ",".join(f"{name}:{delimiter}" for name in _JOB_FIELDS)], environment
    )
    printed = answer(["scontrol", "-a", "-o", "-d", "show", "job"], environment)
    records: dict[str, list[int]] = {}
    for match in _RECORD_START.finditer(printed):
        records.setdefault(match[1], []).append(match.end())
    in_use, uncertain_nodes = Counter[tuple[str, int]](), set[str]()
    for row in rows(jobs, delimiter, _JOB_FIELDS):
        record = _trusted_part(row, printed, records.get(row["JobID"], ()))
        job_state = _JOB_STATE.search(record)
        if job_state is None and not state(row["State"]).ended:
            uncertain_nodes.update(hosts(row["NodeList"]))
        if job_state is None or state(job_state[1]).ended:
            continue
        for nodes, gres in _ON_NODES.findall(record):
            for shards in _gres_named("shard", node_gres(gres)):
                if len(shards.indexes) == 1:
                    in_use.update({(name, shards.indexes[0]): shards.count for name in hosts(nodes)})
    return {(node, gpu): count for (node, gpu), count in in_use.items() if node not in uncertain_nodes}


def _trusted_part(row: Mapping[str, str], printed: str, records: Sequence[int]) -> str:
    """Return the part of a job's record that no user can choose, between the job's name and "MinCPUsNode=".

    Return "" if the part is uncertain. `row` has the texts as squeue prints them. `printed` is the output of
    scontrol, and `records` has the offsets in it after "JobName=" of this job.
    """
    name = f"{row['Name']} UserId="
    labels = "".join(row[key] for key in _LABELS)
    if len(records) != 1 or "=" in labels or not printed.startswith(name, records[0]):
        return ""
    start = records[0] + len(name)
    return printed[start : max(start, printed.find(" MinCPUsNode=", start))]


def counts(nodes: Iterable[GpuNode]) -> list[GpuCount]:
    """Count the GPUs of each type, in the order of the nodes."""
    groups: dict[str, list[tuple[Gpu, bool]]] = defaultdict(list)
    partitions: dict[str, dict[str, None]] = defaultdict(dict)
    for gpu_node in nodes:
        is_closed = bool(unavailable(gpu_node.node))
        for gpu in gpu_node.gpus:
            groups[gpu.type].append((gpu, is_closed))
            partitions[gpu.type] |= dict.fromkeys(gpu_node.node.partitions)
    return [
        GpuCount(
            type=kind,
            partitions=tuple(partitions[kind]),
            total=len(gpus),
            in_use=sum(gpu.taken for gpu, _ in gpus),
            shared=sum(not gpu.taken and gpu.shards_used != 0 for gpu, _ in gpus),
            free=sum(gpu.free for gpu, is_closed in gpus if not is_closed),
            unavailable=sum(gpu.free for gpu, is_closed in gpus if is_closed),
            shards=sum(gpu.shards for gpu, _ in gpus),
            shards_free=sum(gpu.shards_free for gpu, is_closed in gpus if not is_closed),
            shards_on_one=max((gpu.shards_free for gpu, is_closed in gpus if not is_closed), default=0),
        )
        for kind, gpus in groups.items()
    ]
