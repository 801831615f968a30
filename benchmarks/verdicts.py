#!/usr/bin/env python3
"""How often the rules about a cluster agree with a real slurmctld on the same request.

    python benchmarks/verdicts.py                     # 200 requests to each imaginary cluster, about a minute
    python benchmarks/verdicts.py --requests 1000 --seed 7 --show 5

Each cluster is described twice: as a slurm.conf with nodes that do not exist, which a slurmctld judges by
`sbatch --test-only`, and as a profile, which the rules of `sbatchgen lint` judge. Requests lie around
the limits. Needs root and the Debian packages slurm-wlm, munge and iproute2.

slurmctld refuses a request, or takes it; the rules have an error, or not. They may differ: Slurm takes jobs
that would pend for ever (EnforcePartLimits=NO), which the rules call an error on purpose, and the rules
know only facts that a profile can hold.

Exit status: 1 if Slurm refuses a request without an error of the rules, 2 if there is no such Slurm.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from sbatchgen.check.lint.linter import lint
from sbatchgen.check.script.script import JobScript
from sbatchgen.jobs.inputs.document import decode
from sbatchgen.jobs.inputs.profile import Profile
from tests.cluster import site
from tests.cluster.controller import Controller

Fits = Callable[[str, Profile], list[str]]  # a script and its cluster -> the rules that have an error


@dataclass(frozen=True, kw_only=True)
class Imaginary:
    """A cluster that does not exist.

    Attributes:
        nodes: NodeName lines of slurm.conf.
        partitions: PartitionName lines.
        gres: Lines of gres.conf.
        extra: Other lines of slurm.conf.
        profile: The same facts as YAML, without the keys that every profile has.
        types: Types of GPU that a request may name; "" for none.
        sizes: The largest sensible counts: nodes, GPUs, shards, CPUs, GiB of memory, hours.
    """

    nodes: str
    partitions: str
    gres: str = ""
    extra: str = ""
    profile: str
    types: tuple[str, ...] = ("",)
    sizes: tuple[int, int, int, int, int, int]


CLUSTERS = {
    "typed": Imaginary(
        nodes="NodeName=g[1-8] CPUs=64 RealMemory=500000 Gres=gpu:a100:4",
        partitions="PartitionName=gpu Nodes=ALL Default=YES MaxTime=2-00:00:00",
        gres="Name=gpu Type=a100 File=/dev/nvidia[0-3]",
        extra="EnforcePartLimits=ALL",
        profile="""
partitions:
  gpu: {time_max: 2-00:00:00, nodes: "g[1-8]", nodes_max: 8, cpus_per_node: 64, gpus_per_node: 4,
        gpu_type: a100, mem_per_node: 500000M}
limits: {enforce_part_limits: all, max_array_size: 1001}
""",
        types=("", "a100", "v100"),
        sizes=(8, 4, 0, 64, 488, 48),
    ),
    "untyped": Imaginary(
        nodes="NodeName=u[1-4] CPUs=32 RealMemory=128000 Gres=gpu:2",
        partitions="PartitionName=main Nodes=ALL Default=YES MaxTime=1-00:00:00 MaxNodes=2",
        gres="Name=gpu File=/dev/nvidia[0-1]",
        extra="EnforcePartLimits=NO",
        profile="""
partitions:
  main: {time_max: 1-00:00:00, nodes: "u[1-4]", nodes_max: 2, cpus_per_node: 32, gpus_per_node: 2,
         gpus_typed: false, mem_per_node: 128000M}
limits: {enforce_part_limits: "no", max_array_size: 1001}
""",
        types=("", "a100"),
        sizes=(3, 2, 0, 32, 125, 24),
    ),
    "shards": Imaginary(
        nodes="NodeName=s[1-4] CPUs=16 RealMemory=64000 Gres=gpu:t4:2,shard:16",
        partitions="PartitionName=gpu Nodes=ALL Default=YES MaxTime=08:00:00",
        gres="Name=gpu Type=t4 File=/dev/nvidia[0-1]\nName=shard Count=16",
        extra="EnforcePartLimits=ANY",
        profile="""
partitions:
  gpu: {time_max: 08:00:00, nodes: "s[1-4]", nodes_max: 4, cpus_per_node: 16, gpus_per_node: 2, gpu_type: t4,
        shards_per_gpu: 8, mem_per_node: 64000M}
limits: {enforce_part_limits: any, max_array_size: 1001}
""",
        types=("", "t4"),
        sizes=(4, 2, 8, 16, 62, 8),
    ),
    "cores only": Imaginary(
        nodes="NodeName=c[1-16] CPUs=128 RealMemory=256000",
        partitions="PartitionName=cpu Nodes=ALL Default=YES MaxTime=7-00:00:00",
        extra="EnforcePartLimits=ALL\nSelectTypeParameters=CR_Core\nMaxArraySize=11",
        profile="""
partitions:
  cpu: {time_max: 7-00:00:00, nodes: "c[1-16]", nodes_max: 16, cpus_per_node: 128, gpus_per_node: 0,
        mem_per_node: 256000M}
limits: {enforce_part_limits: all, max_array_size: 11}
""",
        sizes=(16, 0, 0, 128, 250, 168),
    ),
    "mixed types": Imaginary(
        nodes="NodeName=m[1-4] CPUs=48 RealMemory=384000 Gres=gpu:a100:2,gpu:h100:2",
        partitions="PartitionName=gpu Nodes=ALL Default=YES MaxTime=1-00:00:00",
        gres="Name=gpu Type=a100 File=/dev/nvidia[0-1]\nName=gpu Type=h100 File=/dev/nvidia[2-3]",
        extra="EnforcePartLimits=ALL\nMaxArraySize=101",
        profile="""
partitions:
  gpu: {time_max: 1-00:00:00, nodes: "m[1-4]", nodes_max: 4, cpus_per_node: 48, gpus_per_node: 4,
        gpu_types: {a100: 2, h100: 2}, mem_per_node: 384000M}
limits: {enforce_part_limits: all, max_array_size: 101}
""",
        types=("", "a100", "h100", "v100"),
        sizes=(4, 4, 0, 48, 375, 24),
    ),
    "thousands": Imaginary(
        nodes="NodeName=h[1-3000] CPUs=96 RealMemory=2000000 Gres=gpu:h100:8",
        partitions="PartitionName=batch Nodes=ALL Default=YES MaxTime=12:00:00 MaxNodes=1024\n"
        "PartitionName=large Nodes=ALL MaxTime=1-00:00:00 MinNodes=512",
        gres="Name=gpu Type=h100 File=/dev/nvidia[0-7]",
        extra="EnforcePartLimits=ALL",
        profile="""
partitions:
  batch: {time_max: 12:00:00, nodes: "h[1-3000]", nodes_max: 1024, cpus_per_node: 96, gpus_per_node: 8,
          gpu_type: h100, mem_per_node: 2000000M}
  large: {time_max: 1-00:00:00, nodes: "h[1-3000]", nodes_max: 3000, nodes_min: 512, cpus_per_node: 96,
          gpus_per_node: 8, gpu_type: h100, mem_per_node: 2000000M}
limits: {enforce_part_limits: all, max_array_size: 1001}
""",
        types=("", "h100"),
        sizes=(1024, 8, 0, 96, 1953, 12),
    ),
}


def main() -> int:
    """Ask both, and print the table."""
    parser = argparse.ArgumentParser(description="compare the rules about clusters with a real slurmctld")
    parser.add_argument("--requests", type=int, default=200, help="to each cluster")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--show", type=int, default=3, help="how many differences of a kind to print")
    args = parser.parse_args()
    if lacking := site.why_not():
        print(f"error: {lacking}", file=sys.stderr)
        return 2
    print(f"seed {args.seed}, {args.requests} requests to each cluster")
    print(f"{'cluster':12} {'both take':>9} {'both refuse':>11} {'we refuse':>9} {'Slurm refuses':>13}")
    missed = 0
    for name, cluster in CLUSTERS.items():
        verdicts = list(compared(cluster, random.Random(f"{name} {args.seed}"), args.requests, linted))  # noqa: S311
        missed += show(name, verdicts, args.show)
    return 1 if missed else 0


def linted(script: str, profile: Profile) -> list[str]:
    """The rules that have an error about a script: the verdict of `sbatchgen lint`."""
    subject = JobScript(file="job.sh", text=script, profile=profile, makes_log_folders=True)
    return sorted({finding.rule for finding in lint(subject) if finding.severity == "error"})


@dataclass(frozen=True)
class Verdict:
    """Both verdicts on a request."""

    script: str
    refused: bool
    said: str
    rules: tuple[str, ...]


def compared(cluster: Imaginary, chance: random.Random, count: int, fits: Fits) -> Iterator[Verdict]:
    """Requests to a cluster, with the verdicts of slurmctld and the rules."""
    head = "name: imaginary\nurl: https://slurm.schedmd.com\nchecked: 2026-11-21\nslurm: '22.05'\n"
    default = re.findall("PartitionName=([a-z]+)", cluster.partitions)[0]
    text = f"{head}default_partition: {default}\ngres_types: [gpu, shard]\n{cluster.profile}"
    profile = decode(text, Profile, name="imaginary").value
    with Controller(
        nodes=cluster.nodes, partitions=cluster.partitions, gres=cluster.gres, extra=cluster.extra
    ) as controller:
        for _ in range(count):
            script = request(cluster, chance)
            answer = controller.test_only(script)
            said = answer.stderr.strip().rpartition("\n")[2]
            yield Verdict(script, answer.returncode != 0, said, tuple(fits(script, profile)))


def request(cluster: Imaginary, chance: random.Random) -> str:
    """A script with a request around the limits of a cluster."""
    nodes, gpus, shards, cpus, memory, hours = cluster.sizes

    def around(limit: int) -> int:
        return max(1, chance.choice([1, limit // 2, limit - 1, limit, limit, limit + 1, 2 * limit]))

    kind = chance.choice(cluster.types)
    amount = f"{kind}:{around(gpus)}" if kind else str(around(gpus))
    accelerators = [f"--gres=gpu:{amount}", f"--gpus-per-node={amount}"] if gpus else []
    accelerators += [f"--gres=shard:{around(shards)}"] if shards else []
    wanted = [
        (0.6, f"--nodes={around(nodes)}"),
        (0.8 if accelerators else 0, chance.choice(accelerators or [""])),
        (0.4, f"--cpus-per-task={around(cpus)}"),
        (0.3, f"--ntasks-per-node={chance.choice([1, 2, 4])}"),
        (0.4, f"--mem={around(memory)}G"),
        (0.4, f"--time={around(hours)}:00:00"),
        (0.15, f"--array=0-{chance.choice([5, 10, 11, 100, 101, 1000, 1001])}"),
        (0.1, f"--partition={chance.choice(['nowhere', 'large', 'gpu'])}"),
        (0.1, "--exclusive"),
    ]
    lines = "".join(f"#SBATCH {option}\n" for share, option in wanted if chance.random() < share)
    return f"#!/bin/bash\n{lines}\nhostname\n"


def show(name: str, verdicts: list[Verdict], most: int) -> int:
    """Print the counts of a cluster and where both differ; how often only Slurm refuses."""
    kinds = Counter((verdict.refused, bool(verdict.rules)) for verdict in verdicts)
    ours = [verdict for verdict in verdicts if verdict.rules and not verdict.refused]
    theirs = [verdict for verdict in verdicts if verdict.refused and not verdict.rules]
    print(
        f"{name:12} {kinds[False, False]:9} {kinds[True, True]:11} {len(ours):9} {len(theirs):13}", flush=True
    )
    for rules, count in Counter(verdict.rules for verdict in ours).most_common():
        print(f"    only we refuse, {', '.join(rules)}: {count}")
        for difference in [verdict for verdict in ours if verdict.rules == rules][:most]:
            print(f"        {asked(difference.script)}")
    for said, count in Counter(verdict.said for verdict in theirs).most_common():
        print(f"    only Slurm refuses, {said}: {count}")
        for difference in [verdict for verdict in theirs if verdict.said == said][:most]:
            print(f"        {asked(difference.script)}")
    return len(theirs)


def asked(script: str) -> str:
    """The options of a request on a line."""
    return " ".join(re.findall("#SBATCH (.*)", script)) or "nothing"


if __name__ == "__main__":
    sys.exit(main())
