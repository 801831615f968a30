#!/usr/bin/env python3
"""How often a discovered profile and its cluster agree on what a person would type.

    python benchmarks/clusters.py FOLDER                    # a folder of folders with slurm.conf
    python benchmarks/clusters.py FOLDER --only NAME --show 5
    python benchmarks/clusters.py FOLDER --root build/sid   # with a later Slurm

Each slurm.conf is started with nodes that do not exist, and without what ties it to its site: names, ports,
paths, plugins and its database. `profile discover` describes it to an ordinary user; jobs of each mode with
common options are planned in each partition and in none, and rendered; `sbatch --test-only` judges them.

A false alarm is a job that Slurm takes, and sbatchgen refuses by an error about the cluster; errors about
what Slurm does not look at (jobs that would wait for ever, modes that need GPUs) are counted apart. A miss is
one that Slurm alone refuses. Nodes are given no state: whether they are up is not in a profile.

Exit status: 1 after a false alarm, or if more than one job in a hundred is a miss.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from sbatchgen.base.errors import SbatchgenError
from sbatchgen.base.finding import Finding
from sbatchgen.jobs.inputs.document import read_document
from sbatchgen.jobs.inputs.profile import Partition, Profile
from sbatchgen.jobs.judge.job_check import check
from sbatchgen.jobs.render.render import render_request
from sbatchgen.jobs.resolved.request import read_request
from sbatchgen.lab.discover.facts import profile_text
from sbatchgen.lab.discover.slurm_answers import ask
from tests.cluster import config, site
from tests.cluster.controller import Controller

MOST_MISSES = 0.01
# What ties a configuration to its site.
_OF_SITE = re.compile(
    r"(?i)(clustername|slurmctld(host|port|pidfile|logfile|debug|timeout|parameters)|controlmachine|controladdr|backup\w*|slurmd\w+"
    r"|slurmuser|auth\w+|statesavelocation|proctracktype|taskplugin\w*|switchtype|mpi\w+|mailprog|accounting\w+"
    r"|jobacctgather\w+|jobcomp\w+|resumeprogram|suspendprogram|suspendtime|plugin\w+|plugstackconfig|prolog\w*"
    r"|epilog\w*|jobsubmitplugins|healthcheck\w+|srun\w+|unkillable\w+|include|crypto\w+|rebootprogram|gpufreqdef)$"
)
_DOWN = re.compile(r" State=(?!FUTURE)\S+")
# What a person types after the mode; {names} are facts of the partition.
_REQUESTS = """

--nodes 2
--nodes {most}
--nodes {more}
--gpus-per-node 1
--gpus-per-node 2
--gpus-per-node 4
--gpus-per-node 8
--gpus-per-node {kind}:1
--gpus-per-node {kind}:{gpus}
--gpus-per-node h9000:1
--gpus 4
--gpus {gpus} --nodes 1
--gpus-per-task 1
--gpu-request gres
--gpu-request none
--gres gpu:1
--gres gpu:{kind}:2
--gres shard:1
--gres nvme:100
--gres nvme:99999
--mem 0
--mem 16G
--mem 500G
--mem {mem}
--mem-per-cpu 4G
--mem-per-cpu 20G
--mem-per-gpu 32G
--exclusive
--exclusive --mem 0
--exclusive --mem-per-cpu 4G
--exclusive --gpus-per-node {gpus}
--exclusive --nodes 2
--cpus-per-task 2
--cpus-per-task 16
--cpus-per-task {cpus}
--nodes 2 --gpus-per-node 1 --mem 64G
--constraint {feature}
--constraint {feature} --gpus-per-node {kind}:1
--constraint {feature}&{last}
--constraint nothing
--time 00:10:00
--time 1-00:00:00
--time 10-00:00:00
--time {time}
--licenses nothing
--licenses {license}
--licenses {license}:9999
--tmp 1G
--tmp 9T
--array 0-9
--array 0-4999
--nodelist {host} --nodes 1
--exclude {host}
--switches 1 --nodes 2
--set extra_options.segment=1 --nodes 2
--qos nothing
--account nothing
--launcher srun
--launcher srun --nodes 2
--set extra_options.cpus-per-gpu=2
--set extra_options.ntasks-per-gpu=1 --gpus-per-node 1
--set extra_options.container-image=x
--set extra_options.gpu_cmode=shared
"""
REQUESTS = [line.split() for line in _REQUESTS.strip("\n").splitlines()]
MODES = ("cpu", "single", "ddp")
# Errors about jobs that Slurm takes and never starts, or that it has no part in.
_WAITS = re.compile(r"pending for ever|pend for ever|wait(s)? for ever|starts none|takes jobs but")
_NOT_SLURMS = {"SB016", "SB203"}


@dataclass(frozen=True)
class Cluster:
    """A configuration, adapted: what a Controller takes."""

    lines: Mapping[str, Any]

    @classmethod
    def of(cls, folder: Path, *, later: bool = False) -> Cluster:
        """Read a folder with slurm.conf, and gres.conf, topology.conf and accounts if there are any.

        The lines of accounts are commands of sacctmgr.
        """
        whole = re.sub(r"\\\n", " ", (folder / "slurm.conf").read_text())
        lines = [line.partition("#")[0].strip() for line in whole.splitlines()]
        about = {"nodes": r"(?i)NodeName=", "partitions": r"(?i)(PartitionName|NodeSet|DownNodes)="}
        kinds = {key: [line for line in lines if re.match(start, line)] for key, start in about.items()}
        rest = [line for line in lines if "=" in line and not any(line in kind for kind in kinds.values())]
        extra = [line for line in rest if not _OF_SITE.match(line.partition("=")[0].strip())]
        if later:  # it has no other one that shares out nodes
            extra = [line.replace("select/cons_res", "select/cons_tres") for line in extra]
        ours = [line for line in config.COMMON.splitlines() if not re.match("Select|GresTypes", line)]
        accounts = folder / "accounts"
        if accounts.exists():
            extra += [line for line in rest if re.match("(?i)AccountingStorageEnforce=", line)]
        files = {name: folder / f"{name}.conf" for name in ("gres", "topology")}
        return cls(
            {key: "\n".join(value) for key, value in kinds.items()}
            | {"nodes": _DOWN.sub("", "\n".join(kinds["nodes"]))}  # a profile does not hold states of nodes
            | {name: file.read_text() for name, file in files.items() if file.exists()}
            | {"accounts": accounts.read_text().splitlines() if accounts.exists() else ()}
            | {"extra": "\n".join(extra), "settings": "\n".join([*ours, ""])}
        )


@dataclass
class Result:
    """What was found on a cluster: numbers, and the jobs on which both differ, with the reason."""

    agree: int = 0
    beside: int = 0
    alarms: list[str] = field(default_factory=list)
    misses: list[tuple[str, str]] = field(default_factory=list)

    @property
    def asked(self) -> int:
        """All jobs."""
        return self.agree + self.beside + len(self.alarms) + len(self.misses)


@dataclass(frozen=True)
class Job:
    """A command line, and what sbatchgen makes of it: errors, or a script that Slurm judges in any case."""

    words: str
    findings: Sequence[Finding]
    script: str
    refused: str = ""


def main() -> int:
    """Print a line for each cluster, the differences, and the totals."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", action="append", help="a cluster's name")
    parser.add_argument("--root", type=Path, help="the folder of another system, whose Slurm is asked")
    parser.add_argument("--show", type=int, default=3, help="how many jobs to print of each difference")
    asked = parser.parse_args()
    if lacking := site.why_not():
        sys.exit(f"error: {lacking}")
    total = Result()
    print(f"{'cluster':20} {'jobs':>6} {'agree':>6} {'alarms':>6} {'misses':>6} {'not asked':>9}")
    for folder in sorted(file.parent for file in asked.folder.glob("*/slurm.conf")):
        if asked.only and folder.name not in asked.only:
            continue
        try:
            result = compared(Cluster.of(folder, later=bool(asked.root)), asked.root and asked.root.resolve())
        except RuntimeError as error:
            print(f"{folder.name:20} does not start: {str(error).splitlines()[-1][:90]}", flush=True)
            continue
        show(folder.name, result, asked.show)
        total.agree, total.beside = total.agree + result.agree, total.beside + result.beside
        total.alarms += result.alarms
        total.misses += result.misses
    show("all", total, 0)
    return int(bool(total.alarms) or len(total.misses) > MOST_MISSES * total.asked)


def compared(cluster: Cluster, root: Path | None = None) -> Result:
    """Start a cluster, discover it, and compare what both say of every job."""
    with (
        tempfile.TemporaryDirectory(prefix="clusters-") as name,
        Controller(**cluster.lines, root=root) as slurm,
    ):
        folder = Path(name)
        slurm.commands(folder, "scontrol", "sbatch", "sacctmgr", "id")
        environment = {"HOME": name, "PATH": f"{name}:{os.defpath}"}
        file = folder / "site.yaml"
        file.write_text(profile_text(ask(environment), environment, name="site", today="2026-01-31"))
        asked = [*jobs(file)]
        result = Result()
        for job, verdict in zip(asked, slurm.ask([job.script for job in asked]), strict=True):
            judge(job, verdict.returncode != 0, verdict.stderr.strip().rpartition("\n")[2], result)
    return result


def judge(job: Job, refused: bool, said: str, result: Result) -> None:  # noqa: FBT001 - of both sides
    """Count a job."""
    errors = [finding for finding in job.findings if finding.severity == "error"]
    ours = [finding for finding in errors if asks_slurm(finding)]
    if bool(errors) == refused:
        result.agree += 1
    elif refused:
        result.misses.append((said.removeprefix("allocation failure: "), job.words))
    elif ours:
        result.alarms.append(f"{job.words}: {ours[0].rule} {ours[0].problem.what}")
    else:
        result.beside += 1


def asks_slurm(finding: Finding) -> bool:
    """Whether an error is about what Slurm says at once."""
    return finding.about_fit and finding.rule not in _NOT_SLURMS and not _WAITS.search(finding.problem.what)


def jobs(file: Path) -> Iterator[Job]:
    """Yield the jobs: each mode with each request in each partition, and in none."""
    profile = read_document(file, Profile).value
    seen = set()
    for name, partition in [("", Partition()), *profile.partitions.items()]:
        around = facts(partition or Partition(), profile)
        if not name and profile.default_partition:
            around = facts(profile.partitions[profile.default_partition], profile)
        for mode in MODES:
            for request in REQUESTS:
                try:
                    words = [mode, *(word.format(**around) for word in request)]
                except KeyError:
                    continue
                words += ["--partition", str(name)] if name else []
                if tuple(words) not in seen:
                    seen.add(tuple(words))
                    yield planned(words, file)


def facts(partition: Partition, profile: Profile) -> dict[str, object]:
    """Return what requests name, if it is known."""
    kinds = [kind for shape in partition.node_kinds() for kind in shape.gpu_types]
    features = [*map(str, partition.features or ())]
    values = {
        "most": partition.nodes_max,
        "more": partition.nodes_max and partition.nodes_max + 1,
        "gpus": partition.gpus_per_node,
        "kind": kinds and kinds[-1],
        "mem": partition.mem_per_node,
        "cpus": partition.cpus_per_node,
        "feature": features and features[0],
        "last": features and features[-1],
        "time": partition.time_max,
        "license": next(iter(profile.licenses or ()), None),
        "host": partition.nodes and re.sub(r"\[(\d+).*", r"\1", str(partition.nodes)).partition(",")[0],
    }
    return {name: value for name, value in values.items() if value}


def planned(words: Sequence[str], file: Path) -> Job:
    """Plan and render a command line."""
    given: dict[str, object] = {"profile": str(file)}
    rest = [*words[1:]]
    while rest:
        option = rest.pop(0).removeprefix("--").replace("-", "_")
        if option == "exclusive":
            given[option] = True
        elif option == "set":
            given["settings"] = (*given.get("settings", ()), rest.pop(0))  # type: ignore[misc]
        else:
            given[option] = rest.pop(0)
    request = read_request(words[0], (), given, environment={}, folder=file.parent, check=check)
    try:
        script = render_request(request)
    except SbatchgenError as error:
        sys.exit(f"{' '.join(words)}: {error}")
    return Job(" ".join(words), check(request.resolved), script)


def show(name: str, result: Result, most: int) -> None:
    """Print the numbers of a cluster, and the differences by reason."""
    numbers = (result.asked, result.agree, len(result.alarms), len(result.misses))
    print(f"{name:20} {' '.join(f'{number:6}' for number in numbers)} {result.beside:9}", flush=True)
    if not most:
        return
    for line in result.alarms[:most]:
        print(f"    false alarm: {line}")
    for said, number in Counter(said for said, _ in result.misses).most_common():
        examples = [words for reason, words in result.misses if reason == said][:most]
        print(f"    {number} misses: {said}", *examples, sep="\n        ")


if __name__ == "__main__":
    sys.exit(main())
