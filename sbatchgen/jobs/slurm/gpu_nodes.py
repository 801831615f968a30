"""Finds out which GPUs of a live cluster are free, taken by a job, or shared by jobs.

A shard is a part of a GPU that a job may request, so that several jobs share the GPU. A GPU with shards in
use can't be taken whole, and a taken GPU has no free shards (gres.html of Slurm). Since 23.11, Slurm shows
for each node how many shards of each GPU are in use. Older releases show the shards only of each job.

While a job is ending on a node, Slurm 22.05 already shows its GPUs as free, but no other job can start there.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from sbatchgen.base.frozen import frozen
from sbatchgen.check.sbatch.hostlist import hosts
from sbatchgen.jobs.slurm.client import answer_text
from sbatchgen.jobs.slurm.node import NodeGres, SlurmNode, node_gres
from sbatchgen.jobs.slurm.queue import new_separator, table_rows
from sbatchgen.jobs.slurm.state import state_named, state_texts

_OPEN_STATES = ("IDLE", "MIXED", "ALLOCATED")  # states of nodes that take jobs, unless a flag forbids it
_JOB_STATE = re.compile(r" JobState=(\S+) Reason=")  # " JobState=RUNNING Reason=None"
# The nodes of a running job, and the generic resources that the job has on each of them, for example
# "Nodes=n[1-2] CPU_IDs=0-3 Mem=4096 GRES=gpu:a100:1(IDX:2)".
_GRES_ON_NODES = re.compile(r" Nodes=(\S+) CPU_IDs=\S+ Mem=\S+ GRES=(\S+)")
# The start of a job's record: "JobId=4711 JobName=". A text that a user has chosen may look the same.
_RECORD_START = re.compile(r"^JobId=([0-9]+) (?:\w+=\S+ )*?JobName=", re.MULTILINE)
# Fields with texts that a user may choose. scontrol prints them between the job's name and its GPUs.
_LABELS = ("MCSLabel", "Account", "WCKey")
_SQUEUE_FIELDS = ("JobID", "Name", "State", "NodeList", *_LABELS)

MAX_GPUS = 1024  # the greatest number of GPUs on a node: MAX_GRES_BITMAP of Slurm

ShardsInUse = Mapping[tuple[str, int], int]  # (name of a node, index of a GPU) -> shards that jobs use


@frozen(slots=True)
class Gpu:
    """A GPU of a node."""

    index: int  # its number on the node
    type: str  # "a100" for example; "" if it has no type
    taken: bool  # whether a job has the whole GPU
    shards: int = 0  # the number of its shards; 0 if the cluster has no shards
    shards_used: int | None = 0  # the number of shards that jobs have; None if this number is not known
    free: bool = True  # whether no job uses any part of the GPU; its node may still take no jobs

    @property
    def shards_free(self) -> int:
        """The number of shards that are certainly free."""
        return 0 if self.taken or self.shards_used is None else max(0, self.shards - self.shards_used)


@frozen(slots=True)
class GpuNode:
    """A node with its GPUs."""

    node: SlurmNode
    gpus: tuple[Gpu, ...]
    is_numbered: bool  # whether Slurm shows which GPUs are taken, not only how many


@frozen(slots=True)
class GpuCount:
    """The numbers of GPUs of one type that are in use, shared, free or unavailable."""

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


def why_unavailable(node: SlurmNode) -> str:
    """Return in a few words why a node takes no jobs, such as "down"; "" for a node that takes jobs."""
    if node.state not in _OPEN_STATES:
        return node.state.lower()
    return next((words for flag, words in state_texts().nodes.items() if flag in node.flags), "")


def gpu_nodes(nodes: Iterable[SlurmNode], environment: Mapping[str, str]) -> list[GpuNode]:
    """Return the nodes that have GPUs.

    If the nodes do not show how many shards of each GPU are in use, the function asks Slurm for the shards of
    the jobs. It then raises SlurmError if Slurm does not answer.
    """
    nodes_with_gpus = [node for node in nodes if any(gres.count for gres in _gres_named("gpu", node.gres))]
    shards = (gres for node in nodes_with_gpus for gres in _gres_named("shard", node.gres_used))
    shards_of_jobs = {} if all(gres.per_gpu for gres in shards) else _shards_of_jobs(environment)
    return [node_with_gpus(node, shards_of_jobs) for node in nodes_with_gpus]


def node_with_gpus(node: SlurmNode, shards_of_jobs: ShardsInUse) -> GpuNode:
    """Return a node with its GPUs.

    `shards_of_jobs` has the shards in use, for a release before 23.11, whose nodes do not show them.
    """
    gpus_used = [gres for gres in _gres_named("gpu", node.gres_used) if gres.count]
    types = _types_by_index(_gres_named("gpu", node.gres), gpus_used)
    taken = _taken_indexes(types, gpus_used)
    shards, shards_used = _configured_shards(types, node), dict[int, int | None]()
    for gres in _gres_named("shard", node.gres_used):
        indexes_of_type = _indexes_of_type(types, gres.type)
        # Slurm lists all GPUs of the node, or only the GPUs of the type.
        indexes = range(len(types)) if len(gres.per_gpu) >= len(types) else indexes_of_type
        for index, (used, total) in zip(indexes, gres.per_gpu, strict=False):
            shards[index] = max(shards[index], total)
            if used is None:
                taken.add(index)
            elif used:
                shards_used[index] = used
        # Before 23.11, a node shows only which GPUs have shards in use, not how many. It does not show a GPU
        # on which a job has freed some of its shards. The shards of the jobs fill both gaps.
        if not gres.per_gpu:
            shards_used |= {index: None for index in gres.indexes if index < len(types)}
            for index in indexes_of_type:
                if (node.name, index) in shards_of_jobs:
                    shards_used[index] = shards_of_jobs[node.name, index]
    gpus = tuple(
        Gpu(
            index=index,
            type=gpu_type,
            taken=index in taken,
            shards=shards[index],
            shards_used=shards_used.get(index, 0),
            free=index not in taken and shards_used.get(index, 0) == 0,
        )
        for index, gpu_type in enumerate(types)
    )
    is_numbered = all(len(gres.indexes) == gres.count for gres in gpus_used)
    return GpuNode(node, gpus, is_numbered)


def _configured_shards(types: Sequence[str], node: SlurmNode) -> list[int]:
    """Return the number of shards of each GPU of a node; `types` has the types of the GPUs."""
    shards = [0] * len(types)
    for gres in _gres_named("shard", node.gres):
        indexes_of_type, shards_left = _indexes_of_type(types, gres.type), gres.count
        # Divide the shards among the GPUs as _distribute_count of Slurm's gres_c_s.c does.
        for number, index in enumerate(indexes_of_type):
            shards[index] = shards_left // (len(indexes_of_type) - number)
            shards_left -= shards[index]
    return shards


def _gres_named(name: str, all_gres: Iterable[NodeGres]) -> list[NodeGres]:
    return [gres for gres in all_gres if gres.name == name]


def _types_by_index(configured: Sequence[NodeGres], used: Sequence[NodeGres]) -> list[str]:
    """Return the types of a node's GPUs in the order of their indexes.

    Slurm shows the index and the type only of GPUs in use. The other GPUs get the remaining types in the
    order of slurm.conf.
    """
    remaining = Counter[str]()
    for gres in configured:
        remaining[gres.type] += min(gres.count, MAX_GPUS)
    type_by_index: dict[int, str] = {}
    total = remaining.total()
    for gpu_type, index in ((gres.type, index) for gres in used for index in gres.indexes):
        if index < total and remaining[gpu_type] > 0 and index not in type_by_index:
            type_by_index[index] = gpu_type
            remaining[gpu_type] -= 1
    rest = remaining.elements()
    return [type_by_index[index] if index in type_by_index else next(rest) for index in range(total)]


def _taken_indexes(types: Sequence[str], used: Sequence[NodeGres]) -> set[int]:
    """Return the indexes of the GPUs that jobs have whole.

    If Slurm shows only the number of these GPUs, the first GPUs of the type are assumed to be taken.
    """
    taken = {index for gres in used for index in gres.indexes if index < len(types)}
    for gres in used:
        others = [index for index in _indexes_of_type(types, gres.type) if index not in taken]
        taken.update(others[: max(0, gres.count - len(gres.indexes))])
    return taken


def _indexes_of_type(types: Sequence[str], wanted_type: str) -> list[int]:
    """Return the indexes of the GPUs of a type; of all GPUs if the type is "" or no GPU has it."""
    indexes = [index for index, gpu_type in enumerate(types) if gpu_type == wanted_type]
    return indexes or [*range(len(types))]


def _shards_of_jobs(environment: Mapping[str, str]) -> ShardsInUse:
    """Return the shards in use on each GPU, from the jobs that this user may see.

    Only scontrol shows on which GPU a job has shards. But scontrol also prints texts that users choose, such
    as the name of a job. They may have line breaks and look like GPUs. squeue prints each of these texts
    separately, so they can be recognized in the output of scontrol. If the record of a job is still
    uncertain, the nodes of the job are excluded.
    """
    separator = new_separator()
    command = ["squeue", "--all", "--noheader", "--states=all"]
    format_ = ",".join(f"{name}:{separator}" for name in _SQUEUE_FIELDS)
    squeue_output = answer_text([*command, f"--Format={format_}"], environment)
    scontrol_output = answer_text(["scontrol", "-a", "-o", "-d", "show", "job"], environment)
    name_starts: dict[str, list[int]] = {}  # the id of a job -> the offsets at which its name may start
    for match in _RECORD_START.finditer(scontrol_output):
        name_starts.setdefault(match[1], []).append(match.end())
    in_use, uncertain_nodes = Counter[tuple[str, int]](), set[str]()
    for row in table_rows(squeue_output, separator, _SQUEUE_FIELDS):
        record = _trusted_part(row, scontrol_output, name_starts.get(row["JobID"], ()))
        job_state = _JOB_STATE.search(record)
        if job_state is None and not state_named(row["State"]).ended:
            uncertain_nodes.update(hosts(row["NodeList"]))
        if job_state is None or state_named(job_state[1]).ended:
            continue
        for nodes, gres in _GRES_ON_NODES.findall(record):
            for shards in _gres_named("shard", node_gres(gres)):
                if len(shards.indexes) == 1:
                    in_use.update({(name, shards.indexes[0]): shards.count for name in hosts(nodes)})
    return {(node, gpu): count for (node, gpu), count in in_use.items() if node not in uncertain_nodes}


def _trusted_part(row: Mapping[str, str], scontrol_output: str, name_starts: Sequence[int]) -> str:
    """Return the part of a job's record whose texts no user chooses, from "UserId=" to "MinCPUsNode=".

    Return "" if it is uncertain where this part begins. `row` has the job's name and labels as squeue prints
    them. `name_starts` has the offsets at which the job's name may start in the output of scontrol.
    """
    name_and_next_key = f"{row['Name']} UserId="
    labels = "".join(row[key] for key in _LABELS)
    is_certain = len(name_starts) == 1 and "=" not in labels  # a label with "=" may look like another field
    if not is_certain or not scontrol_output.startswith(name_and_next_key, name_starts[0]):
        return ""
    start = name_starts[0] + len(name_and_next_key)
    return scontrol_output[start : max(start, scontrol_output.find(" MinCPUsNode=", start))]


def count_gpus(nodes: Iterable[GpuNode]) -> list[GpuCount]:
    """Return the numbers of GPUs of each type; the types are in the order in which the nodes have them."""
    groups: dict[str, list[tuple[Gpu, bool]]] = defaultdict(list)  # a type -> its GPUs, with `is_closed`
    partitions: dict[str, dict[str, None]] = defaultdict(dict)
    for gpu_node in nodes:
        is_closed = bool(why_unavailable(gpu_node.node))  # whether the node takes no jobs
        for gpu in gpu_node.gpus:
            groups[gpu.type].append((gpu, is_closed))
            partitions[gpu.type] |= dict.fromkeys(gpu_node.node.partitions)
    return [
        GpuCount(
            type=gpu_type,
            partitions=tuple(partitions[gpu_type]),
            total=len(gpus),
            in_use=sum(gpu.taken for gpu, _ in gpus),
            shared=sum(not gpu.taken and gpu.shards_used != 0 for gpu, _ in gpus),
            free=sum(gpu.free for gpu, is_closed in gpus if not is_closed),
            unavailable=sum(gpu.free for gpu, is_closed in gpus if is_closed),
            shards=sum(gpu.shards for gpu, _ in gpus),
            shards_free=sum(gpu.shards_free for gpu, is_closed in gpus if not is_closed),
            shards_on_one=max((gpu.shards_free for gpu, is_closed in gpus if not is_closed), default=0),
        )
        for gpu_type, gpus in groups.items()
    ]
