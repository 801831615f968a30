"""Clusters for slurmctld, with the facts that a profile of each has to say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

GPUS = "Name=gpu Type={} File=/dev/nvidia[0-{}]"
MIG = "Sockets=2 CoresPerSocket=24 ThreadsPerCore=2 CPUs=96 RealMemory=515000"


@dataclass(frozen=True)
class Imaginary:
    """A cluster, and what is true of it.

    Attributes:
        nodes, partitions, gres, extra: Of the Controller.
        expected: All keys of each partition.
        limits: All keys of limits.
        comments: Parts of comments in the file.
        at_first: What an administrator types once it is up.
    """

    nodes: str
    partitions: str
    expected: Mapping[str, Mapping[str, Any]]
    gres: str = ""
    extra: str = ""
    limits: Mapping[str, Any] = field(default_factory=dict)
    comments: tuple[str, ...] = ()
    at_first: tuple[tuple[str, ...], ...] = ()


DGX = Imaginary(
    nodes="NodeName=dgx[01-04] CPUs=224 Sockets=2 CoresPerSocket=56 ThreadsPerCore=2 RealMemory=2060000 "
    "CoreSpecCount=4 MemSpecLimit=60000 Feature=h100,ib,nvme Gres=gpu:h100:8",
    gres="NodeName=dgx[01-04] " + GPUS.format("h100", 7),
    partitions="PartitionName=train Nodes=dgx[01-04] Default=YES MaxTime=2-00:00:00 DefaultTime=4:00:00 "
    "MaxNodes=3 DefCpuPerGPU=24 DefMemPerGPU=240000 PreemptMode=REQUEUE GraceTime=120 TRESBillingWeights=CPU=1.0,Mem=0.25G\n"
    "PartitionName=debug Nodes=dgx01 MaxTime=30 MaxCPUsPerNode=64 PriorityTier=10",
    extra="EnforcePartLimits=ALL\nMaxArraySize=5001\nSchedulerParameters=max_array_tasks=800\nKillWait=45\n"
    "PreemptType=preempt/partition_prio\nPreemptMode=REQUEUE\nJobRequeue=0",
    limits={"enforce_part_limits": "all", "max_array_size": 5001, "max_array_tasks": 800},
    expected={
        "train": {
            "time_max": 172800,
            "time_default": 14400,
            "nodes": "dgx[01-04]",
            "nodes_max": 3,
            "cpus_per_node": 216,
            "threads_per_core": 2,
            "mem_per_node": 2000000,
            "gpus_per_node": 8,
            "gpu_types": {"h100": 8},
            "features": ("h100", "ib", "nvme"),
            "mem_per_gpu_default": 240000,
            "cpus_per_gpu": 24,
            "preemption": "requeue",
            "preemption_grace": 120,
            "billing": "CPU=1.0,Mem=0.25G",
        },
        "debug": {
            "time_max": 1800,
            "nodes": "dgx01",
            "nodes_max": 1,
            "cpus_per_node": 216,
            "cpus_per_node_max": 64,
            "threads_per_core": 2,
            "mem_per_node": 2000000,
            "gpus_per_node": 8,
            "gpu_types": {"h100": 8},
            "features": ("h100", "ib", "nvme"),
        },
    },
    comments=("JobRequeue=0", "KillWait=45 sec"),
)
MIXED = Imaginary(
    nodes="NodeName=h[1-2] CPUs=96 RealMemory=1000000 Gres=gpu:h100:8\n"
    "NodeName=a[1-4] CPUs=64 RealMemory=500000 Gres=gpu:a100:4\n"
    "NodeName=v1 CPUs=40 RealMemory=250000 Gres=gpu:v100:2,gpu:p100:2\n"
    "NodeName=c[1-8] CPUs=128 RealMemory=256000",
    gres="\n".join(
        [
            "NodeName=h[1-2] " + GPUS.format("h100", 7),
            "NodeName=a[1-4] " + GPUS.format("a100", 3),
            "NodeName=v1 Name=gpu Type=v100 File=/dev/nvidia[0-1]",
            "NodeName=v1 Name=gpu Type=p100 File=/dev/nvidia[2-3]",
        ]
    ),
    partitions="PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE\n"
    "PartitionName=old Nodes=v1 MaxTime=7-00:00:00",
    expected={
        "all": {
            "nodes": "a[1-4],c[1-8],h[1-2],v1",
            "nodes_max": 15,
            "features": (),
            "gres": {},
            "tmp_per_node": 0,
            "shapes": [
                {
                    "nodes": 2,
                    "cpus_per_node": 96,
                    "mem_per_node": 1000000,
                    "gpus_per_node": 8,
                    "gpu_types": {"h100": 8},
                },
                {
                    "nodes": 4,
                    "cpus_per_node": 64,
                    "mem_per_node": 500000,
                    "gpus_per_node": 4,
                    "gpu_types": {"a100": 4},
                },
                {
                    "nodes": 1,
                    "cpus_per_node": 40,
                    "mem_per_node": 250000,
                    "gpus_per_node": 4,
                    "gpu_types": {"v100": 2, "p100": 2},
                },
                {"nodes": 8, "cpus_per_node": 128, "mem_per_node": 256000, "gpus_per_node": 0},
            ],
        },
        "old": {
            "time_max": 604800,
            "nodes": "v1",
            "nodes_max": 1,
            "cpus_per_node": 40,
            "mem_per_node": 250000,
            "gpus_per_node": 4,
            "gpu_types": {"v100": 2, "p100": 2},
        },
    },
)
MIG_CLUSTER = Imaginary(
    nodes=f"NodeName=m[1-2] {MIG} Gres=gpu:nvidia_a100_1g.5gb:14,gpu:a100_3g.20gb:4",
    gres="NodeName=m[1-2] Name=gpu Type=nvidia_a100_1g.5gb Count=14\nNodeName=m[1-2] Name=gpu Type=a100_3g.20gb Count=4",
    partitions="PartitionName=mig Nodes=m[1-2] Default=YES MaxTime=8:00:00",
    expected={
        "mig": {
            "time_max": 28800,
            "nodes": "m[1-2]",
            "nodes_max": 2,
            "cpus_per_node": 96,
            "threads_per_core": 2,
            "mem_per_node": 515000,
            "gpus_per_node": 18,
            "gpu_types": {"nvidia_a100_1g.5gb": 14, "a100_3g.20gb": 4},
        }
    },
)
SHARDS = Imaginary(
    nodes="NodeName=s[1-3] CPUs=32 RealMemory=128000 Gres=gpu:a100:4,shard:64\n"
    "NodeName=u1 CPUs=16 RealMemory=64000 Gres=gpu:2,shard:20",
    gres="NodeName=s[1-3] " + GPUS.format("a100", 3) + "\nNodeName=s[1-3] Name=shard Count=64\n"
    "NodeName=u1 Name=gpu File=/dev/nvidia[0-1]\nNodeName=u1 Name=shard Count=20",
    partitions="PartitionName=shared Nodes=s[1-3] Default=YES MaxTime=1-00:00:00\nPartitionName=plain Nodes=u1",
    expected={
        "shared": {
            "time_max": 86400,
            "nodes": "s[1-3]",
            "nodes_max": 3,
            "cpus_per_node": 32,
            "mem_per_node": 128000,
            "gpus_per_node": 4,
            "gpu_types": {"a100": 4},
            "shards_per_gpu": 16,
            "gres": {"shard": 64},
        },
        "plain": {
            "nodes": "u1",
            "nodes_max": 1,
            "cpus_per_node": 16,
            "mem_per_node": 64000,
            "gpus_per_node": 2,
            "shards_per_gpu": 10,
            "gres": {"shard": 20},
        },
    },
    comments=("slurm.conf gives these GPUs no type; gres.conf may.",),
)
CPUS = Imaginary(
    nodes="NodeName=c[001-200] CPUs=128 Sockets=2 CoresPerSocket=32 ThreadsPerCore=2 RealMemory=257000",
    partitions="PartitionName=batch Nodes=ALL Default=YES MaxTime=3-00:00:00 DefMemPerCPU=1900 MaxMemPerCPU=4000 "
    "MinNodes=2\nPartitionName=long Nodes=c[001-010] MaxTime=INFINITE OverSubscribe=EXCLUSIVE",
    extra="SelectTypeParameters=CR_Core\nDefMemPerNode=3000",
    limits={"memory_consumable": False},
    expected={
        "batch": {
            "time_max": 259200,
            "nodes": "c[001-200]",
            "nodes_max": 200,
            "nodes_min": 2,
            "cpus_per_node": 128,
            "threads_per_core": 2,
            "mem_per_node": 257000,
            "gpus_per_node": 0,
            "mem_per_cpu_default": 1900,
            "mem_per_cpu_max": 4000,
        },
        "long": {
            "nodes": "c[001-010]",
            "nodes_max": 10,
            "cpus_per_node": 128,
            "threads_per_core": 2,
            "mem_per_node": 257000,
            "gpus_per_node": 0,
            "mem_per_node_default": 3000,
            "exclusive": True,
        },
    },
)
_G = {"cpus_per_node": 64, "mem_per_node": 256000, "gpus_per_node": 4, "gpu_types": {"a100": 4}}
HIDDEN = Imaginary(
    nodes="NodeName=g[1-4] CPUs=64 RealMemory=256000 Gres=gpu:a100:4",
    gres=GPUS.format("a100", 3),
    partitions="PartitionName=open Nodes=g[1-2]\n"
    "PartitionName=secret Nodes=g[3-4] Hidden=YES AllowAccounts=ml,vision MaxTime=60\n"
    "PartitionName=staff Nodes=g4 AllowGroups=root ReqResv=YES\n"
    "PartitionName=admin Nodes=g4 RootOnly=YES\n"
    "PartitionName=off Nodes=g1 State=DOWN DenyAccounts=guest\n"
    "PartitionName=empty",
    expected={
        "open": {"nodes": "g[1-2]", "nodes_max": 2, **_G},
        "secret": {
            "time_max": 3600,
            "nodes": "g[3-4]",
            "nodes_max": 2,
            **_G,
            "accounts": ("ml", "vision"),
            "hidden": True,
        },
        "staff": {"nodes": "g4", "nodes_max": 1, **_G, "reservation_only": True, "groups": ("root",)},
        "off": {"nodes": "g1", "nodes_max": 1, **_G, "state": "down", "accounts_denied": ("guest",)},
        "empty": {"nodes": ""},
    },
    comments=(
        "No partition is the default one",
        "Left out: admin",
        "It has no nodes now",
    ),
)
CLOUD = Imaginary(
    nodes="NodeName=cloud[1-20] CPUs=48 RealMemory=192000 Gres=gpu:t4:4 Feature=t4",
    gres=GPUS.format("t4", 3),
    partitions="PartitionName=cloud Nodes=cloud[1-20] Default=YES MaxTime=8:00:00",
    extra="PrivateData=none",
    expected={"cloud": {"time_max": 28800, "nodes": "cloud[1-20]", "nodes_max": 20}},
    comments=(
        "Slurm hides 20 of 20 nodes (960 CPUs in all, 48 on average)",
        "are not known; ask an administrator",
    ),
)
LARGE = Imaginary(
    nodes="NodeName=n[00001-09000] CPUs=128 RealMemory=512000 Feature=zen4\n"
    "NodeName=g[0001-1000] CPUs=96 RealMemory=1000000 Gres=gpu:h100:8,shard:64 Feature=h100",
    gres="NodeName=g[0001-1000] " + GPUS.format("h100", 7) + "\nNodeName=g[0001-1000] Name=shard Count=64",
    partitions="PartitionName=cpu Nodes=n[00001-09000] Default=YES MaxTime=1-00:00:00\n"
    "PartitionName=gpu Nodes=g[0001-1000] MaxTime=1-00:00:00 MaxNodes=256\nPartitionName=all Nodes=ALL",
    expected={
        "cpu": {
            "time_max": 86400,
            "nodes": "n[00001-09000]",
            "nodes_max": 9000,
            "cpus_per_node": 128,
            "mem_per_node": 512000,
            "gpus_per_node": 0,
            "features": ("zen4",),
        },
        "gpu": {
            "time_max": 86400,
            "nodes": "g[0001-1000]",
            "nodes_max": 256,
            "cpus_per_node": 96,
            "mem_per_node": 1000000,
            "gpus_per_node": 8,
            "gpu_types": {"h100": 8},
            "shards_per_gpu": 8,
            "gres": {"shard": 64},
            "features": ("h100",),
        },
        "all": {
            "nodes": "g[0001-1000],n[00001-09000]",
            "nodes_max": 10000,
            "shapes": [
                {
                    "nodes": 1000,
                    "cpus_per_node": 96,
                    "mem_per_node": 1000000,
                    "gpus_per_node": 8,
                    "gpu_types": {"h100": 8},
                    "shards_per_gpu": 8,
                    "features": ("h100",),
                    "gres": {"shard": 64},
                },
                {
                    "nodes": 9000,
                    "cpus_per_node": 128,
                    "mem_per_node": 512000,
                    "gpus_per_node": 0,
                    "features": ("zen4",),
                    "gres": {},
                },
            ],
            "tmp_per_node": 0,
        },
    },
)
_HOSTILE = (
    "x\x1b[31m: Gres=gpu:99 CPUTot=1 State=IDLE # - {a: b}|'\"\\ \u2028\udcff\nNodeName=forged Gres=gpu:7"
)
HOSTILE = Imaginary(
    nodes="NodeName=n[1-4] CPUs=16 RealMemory=64000 Gres=gpu:a100:2 Feature=yes,1e3,a:b",
    gres=GPUS.format("a100", 1),
    partitions="PartitionName=no Nodes=n[1-4] Default=YES\nPartitionName=1e3 Nodes=n1",
    expected={
        name: {
            "nodes": nodes,
            "nodes_max": most,
            "cpus_per_node": 16,
            "mem_per_node": 64000,
            "gpus_per_node": 2,
            "gpu_types": {"a100": 2},
            "features": ("yes", "1e3", "a:b"),
        }
        for name, nodes, most in (("no", "n[1-4]", 4), ("1e3", "n1", 1))
    },
    at_first=(
        ("update", "NodeName=n1", f"Comment={_HOSTILE}"),
        ("update", "NodeName=n2", "State=DRAIN", f"Reason={_HOSTILE}"),
    ),
)
PRIVATE = Imaginary(
    nodes="NodeName=p[1-4] CPUs=64 RealMemory=256000 Gres=gpu:a100:4",
    gres=GPUS.format("a100", 3),
    partitions="PartitionName=gpu Nodes=p[1-4] Default=YES MaxTime=8:00:00",
    extra="PrivateData=nodes",
    expected={"gpu": {"time_max": 28800, "nodes": "p[1-4]", "nodes_max": 4}},
    comments=("Slurm hides 4 of 4 nodes (256 CPUs in all, 64 on average)", "PrivateData=nodes"),
)
CLUSTERS = {
    "dgx": DGX,
    "mixed": MIXED,
    "mig": MIG_CLUSTER,
    "shards": SHARDS,
    "cpus": CPUS,
    "hidden": HIDDEN,
    "cloud": CLOUD,
    "large": LARGE,
    "hostile": HOSTILE,
    "private": PRIVATE,
}
