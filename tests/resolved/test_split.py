"""The numbers that are shown are those that Slurm gives: nodes, tasks, GPUs, CPUs and memory of each node.

Jobs on a real Slurm, on nodes that are alike and on nodes that differ. They start beside each other, so that a number
holds on a busy cluster too. Each job ends at once, and leaves what it was given.
"""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from sbatchgen.base.units import Memory
from sbatchgen.check.script.script import JobScript
from sbatchgen.jobs.inputs.document import read_document
from sbatchgen.jobs.inputs.profile import Profile
from sbatchgen.jobs.resolved.resolved_job import ResolvedJob
from sbatchgen.jobs.review import layout, node_share
from sbatchgen.lab.plan.batch_job import grant_of
from tests.cluster import fixtures
from tests.cluster.slurm import Cluster
from tests.scripts import errors, resolved

NODES = """
NodeName=n[1-2] Sockets=2 CoresPerSocket=4 ThreadsPerCore=1 RealMemory=16000 Gres=gpu:a100:4
NodeName=n3 Sockets=2 CoresPerSocket=4 ThreadsPerCore=1 RealMemory=16000 Gres=gpu:a100:2
NodeName=n4 Sockets=2 CoresPerSocket=2 ThreadsPerCore=1 RealMemory=8000 Gres=gpu:a100:1
PartitionName=alike Nodes=n[1-2] MaxTime=1-00:00:00 Default=YES
PartitionName=mixed Nodes=n[1-4] MaxTime=1-00:00:00
PartitionName=whole Nodes=n[1-2] MaxTime=1-00:00:00 OverSubscribe=EXCLUSIVE
PartitionName=few Nodes=n[1-2] MaxTime=1-00:00:00
PartitionName=one Nodes=n[1-2] MaxTime=1-00:00:00 MaxNodes=1
"""
GRES = """
NodeName=n[1-2] Name=gpu Type=a100 File={site}/dev/gpu[0-3]
NodeName=n3 Name=gpu Type=a100 File={site}/dev/gpu[0-1]
NodeName=n4 Name=gpu Type=a100 File={site}/dev/gpu0
"""
WHOLE = {"n1": 4, "n2": 4, "n3": 2, "n4": 1}
CPUS, MEMORY = {"n1": 8, "n2": 8, "n3": 8, "n4": 4}, {"n1": 16000, "n2": 16000, "n3": 16000, "n4": 8000}
ALIKE = "time_max: 1-00:00:00, nodes_max: 2, gpus_per_node: 4, cpus_per_node: 8, mem_per_node: 16000M"
PROFILE = f"""
name: testing
url: https://slurm.schedmd.com
checked: 2026-11-20
slurm: '{{release}}'
default_partition: alike
limits: {{{{select_type: cons_tres}}}}
partitions:
  alike: {{{{{ALIKE}, mem_per_cpu_default: 1000M}}}}
  few: {{{{{ALIKE}, mem_per_cpu_default: 1000M, gpus_max: 4}}}}
  one: {{{{{ALIKE.replace("nodes_max: 2", "nodes_max: 1")}, mem_per_cpu_default: 1000M}}}}
  whole: {{{{{ALIKE}, mem_per_cpu_default: 1000M, exclusive: true}}}}
  mixed:
    nodes_max: 4
    mem_per_cpu_default: 1000M
    shapes:
      - {{{{nodes: 2, gpus_per_node: 4, cpus_per_node: 8, mem_per_node: 16000M}}}}
      - {{{{nodes: 1, gpus_per_node: 2, cpus_per_node: 8, mem_per_node: 16000M}}}}
      - {{{{nodes: 1, gpus_per_node: 1, cpus_per_node: 4, mem_per_node: 8000M}}}}
"""
# It leaves what slurmctld says of it, and its environment.
JOB = '{ scontrol show job -d "$SLURM_JOB_ID"; export -p; } >"$1.new"; mv "$1.new" "$1.given"\n'
# Each task leaves the GPUs that its step has on its node.
SEEN = '#!/bin/bash\necho "$SLURMD_NODENAME ${SLURM_GPUS_ON_NODE:-0}" >>"$HOME/jobs/$SLURM_JOB_ID"\n'
JOBS = 300
GPUS: tuple[dict[str, str], ...] = (
    {},
    *({"gpus": str(count)} for count in (1, 2, 3, 4, 5, 6, 7, 8)),
    *({"gpus_per_node": count} for count in ("1", "2", "3", "4", "a100:2")),
    *({"gres": each} for each in ("gpu:1", "gpu:2", "gpu:a100:4")),
    *({"gpus_per_task": each} for each in ("1", "2")),
)


@dataclass
class Given:
    """What Slurm gave a job, by node; tasks in the order of the nodes."""

    gpus: dict[str, int]
    cpus: dict[str, int]
    memory: dict[str, int]
    tasks: list[int]


@pytest.fixture(scope="module")
def unequal(slurm_root: Path | None) -> Iterator[Cluster]:
    """Nodes of three kinds, of which two are alike."""
    with Cluster(visible=fixtures.VISIBLE, root=slurm_root, settings=NODES, gres=GRES) as cluster:
        yield cluster


@pytest.fixture
def profile(tmp_path: Path, slurm_release: str) -> Path:
    file = tmp_path / "testing.yaml"
    file.write_text(PROFILE.format(release=slurm_release))
    return file


def given(cluster: Cluster, requests: Sequence[Sequence[str]]) -> list[Given | str]:
    """What Slurm gives jobs with these options, or what it says against one."""
    folder = cluster.put("jobs/job.sh", f"#!/bin/bash\n{JOB}").parent
    lines = [
        f"sbatch --parsable --time=5 --output=/dev/null {' '.join(options)} job.sh {number} >{number}.said 2>&1"
        for number, options in enumerate(requests)
    ]
    cluster.put("jobs/all.sh", "\n".join(lines))
    cluster.run(["bash", "all.sh"], cwd=folder)
    cluster.until(partial(_is_idle, cluster), "end of all jobs")
    return [_given(folder, number) for number in range(len(requests))]


def _is_idle(cluster: Cluster) -> bool:
    return not cluster.run(["squeue", "-h"]).stdout


def _given(folder: Path, number: int) -> Given | str:
    file = folder / f"{number}.given"
    if not file.exists():
        return (folder / f"{number}.said").read_text()
    text = file.read_text()
    gpus, cpus, memory = {}, {}, {}
    pattern = r"Nodes=(\S+) CPU_IDs=(\S+) Mem=(\d+) GRES=(\S*)"
    for names, ids, mem, gres in re.findall(pattern, text):
        for name in _names(names):
            count = re.search(r"gpu:(?:a100:)?(\d+)", gres)
            gpus[name] = int(count[1]) if count else 0
            cpus[name] = sum(_span(part) for part in ids.split(","))
            memory[name] = int(mem)
    tasks = re.search(r'SLURM_TASKS_PER_NODE="([^"]*)"', text)
    return Given(gpus, cpus, memory, [*_counts(tasks[1] if tasks else "")])


def _names(text: str) -> list[str]:
    from sbatchgen.check.sbatch.hostlist import hosts

    return hosts(text)


def _span(text: str) -> int:
    first, _, last = text.partition("-")
    return int(last or first) - int(first) + 1


def _counts(text: str) -> Iterator[int]:
    for count, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", text):
        yield from [int(count)] * int(times or 1)


def combinations() -> list[dict[str, Any]]:
    """Jobs of all kinds, the same ones each time."""
    every = itertools.product(
        ("alike", "mixed", "whole", "few"),
        (None, 1, 2, 3, 4),
        GPUS,
        ("torchrun", "srun"),
        ("gpus_per_node", "gres", "gpus", "gpus_per_task"),
        (None, None, 1, 2),
        (None, None, True),
    )
    chosen = random.Random(20261128).sample([*every], JOBS)  # noqa: S311
    return [
        {"partition": partition, "nodes": nodes, "launcher": launcher, "gpu_request": form}
        | {"cpus_per_task": cpus, "exclusive": exclusive, **gpus}
        for partition, nodes, gpus, launcher, form, cpus, exclusive in chosen
    ]


def options_of(made: ResolvedJob) -> list[str]:
    """The directives of a job that are about its size."""
    words = ("partition", "nodes", "ntasks", "cpus", "gpus", "gres", "mem", "exclusive")
    directives = made.directives.items()
    return [
        f"--{name}={value}" if value else f"--{name}" for name, value in directives if name.startswith(words)
    ]


def differences(made: ResolvedJob, real: Given) -> Iterator[str]:
    """What the review shows of a job, and is not so."""
    request = node_share.allocation_of_job(made, ends_at_limit=False)
    starts = layout.layout_of_script(made.resources, request, ())
    if request.nodes != len(real.gpus):
        yield f"{request.nodes} nodes, really {len(real.gpus)}"
        return
    for name in real.gpus:
        for what, shown, got, whole in (
            ("GPUs", request.gpus.given, real.gpus[name], WHOLE[name]),
            ("CPUs", request.cpus.given, real.cpus[name], CPUS[name]),
            ("MiB", request.memory_mib.given, real.memory[name], MEMORY[name]),
        ):
            default = what == "MiB" and shown is None  # the cluster's, as the review says
            is_whole = shown is None or (what == "MiB" and not shown)
            if not default and got != (whole if is_whole else shown):
                yield f"{shown} {what} on {name}, really {got}"
    tasks = [row.tasks for row in starts.nodes for _ in range(row.last - row.first + 1)]
    if tasks != real.tasks:
        yield f"tasks {tasks}, really {real.tasks}"
    processes = made.nproc_per_node * made.nodes
    if request.processes != processes or (made.launcher == "srun" and processes != sum(real.tasks)):
        yield f"{request.processes} processes, really {sum(real.tasks)} tasks"


def test_the_review_shows_what_slurm_gives(unequal: Cluster, profile: Path, slurm_release: str) -> None:
    """Each of 300 jobs has the numbers of its review, or an error before it is submitted; half of them on the later Slurm."""
    count = JOBS if slurm_release == fixtures.FIRST else JOBS // 2
    asked = [(said, resolved("ddp", profile, **said)) for said in combinations()[:count]]
    jobs = [(said, made) for said, made in asked if not errors(made)]
    real = given(unequal, [options_of(made) for _, made in jobs])
    wrong = [
        f"{' '.join(options_of(made))}: {each}   {said}"
        for (said, made), got in zip(jobs, real, strict=True)
        for each in ([got] if isinstance(got, str) else differences(made, got))
    ]
    print(f"{len(asked)} jobs, {len(jobs)} of them started, {len(wrong)} differences")
    assert not wrong, "\n".join(wrong)
    assert len(asked) == count
    assert len(jobs) > count / 3


# Kinds that the product above leaves out: odd counts, resources of a CPU or GPU, whole nodes, a limit of one node.
MORE = 60


def more_combinations() -> list[tuple[str, dict[str, Any]]]:
    """Modes and jobs of these kinds, the same ones each time."""
    every = itertools.product(
        ("alike", "mixed", "whole", "few", "one"),
        ("ddp", "single", "dataparallel", "cpu"),
        (None, 1, 2, 3, 5),
        (*GPUS, {"gpus": "9"}, {"gpus_per_node": "5"}, {"gpus_per_node": "a100:3"}, {"gpus_per_task": "3"}),
        ({}, {"cpus_per_gpu": 1}, {"cpus_per_gpu": 2}, {"cpus_per_task": 3}),
        ({}, {"mem_per_gpu": "1G"}, {"mem_per_gpu": "5G"}, {"mem": "9G"}, {"mem_per_cpu": "1500M"}),
        (None, None, True),
        (None, None, 1, 3),
    )
    chosen = random.Random(20261129).sample([*every], 20 * MORE)  # noqa: S311
    jobs = []
    for partition, mode, nodes, gpus, cpus, memory, exclusive, processes in chosen:
        said = {
            "partition": partition,
            "nodes": nodes if mode in ("ddp", "cpu") else None,
            "exclusive": exclusive,
        }
        said |= {key: Memory.parse(value) for key, value in memory.items()}
        said |= {"nproc_per_node": processes if mode == "ddp" else None} | gpus | cpus
        if mode != "cpu" or not gpus:
            jobs.append((mode, said))
    return jobs


def test_the_review_shows_what_slurm_gives_of_more_kinds(unequal: Cluster, profile: Path) -> None:
    """So do jobs with resources of a CPU or a GPU, and with whole nodes."""
    asked = ((mode, said, resolved(mode, profile, **said)) for mode, said in more_combinations())
    fitting = ((mode, said, made) for mode, said, made in asked if not errors(made))
    jobs = [*itertools.islice(fitting, MORE)]
    real = given(unequal, [options_of(made) for *_, made in jobs])
    wrong = [
        f"{' '.join(options_of(made))}: {each}   {mode} {said}"
        for (mode, said, made), got in zip(jobs, real, strict=True)
        for each in ([got] if isinstance(got, str) else differences(made, got))
    ]
    assert not wrong, "\n".join(wrong)
    assert len(jobs) == MORE


# Scripts of others: options, and whether Slurm may give their nodes, or the step in them, different numbers of GPUs.
SCRIPTS = {
    **dict.fromkeys(
        (
            *(f"--nodes=2 --gpus={count}" for count in (3, 4, 5, 6, 7)),
            *(f"--nodes=2 --ntasks-per-node=1 --gpus={count}" for count in (3, 4, 6)),
            *(f"--nodes=2 --ntasks-per-node=2 --gpus={count}" for count in (4, 6)),
            "--nodes=2 --ntasks-per-node=2 --cpus-per-task=2 --gpus=4",
            "--nodes=2 --gpus=4 --ntasks=2",
            "--nodes=2 --gpus=4 --ntasks=4",
            "--nodes=2 --gpus=a100:4",
            "--nodes=2 --gpus=4 --cpus-per-gpu=1",
            "--nodes=2 --gpus=4 --mem=0",
            "--nodes=2 --gpus=4 --mem-per-gpu=4000",
            "--nodes=2 --gpus=4 --gpu-bind=none",
            "--nodes=2 --gpus=4 --distribution=cyclic",
            "--nodes=2 --gpus=4 --spread-job",
            "--nodes=2 --gpus=4 --gpus-per-task=1 --ntasks=4",
            "--ntasks=4 --ntasks-per-node=2 --gpus=4",
            "--nodes=2 --ntasks-per-node=1 --gpus=4 --exclusive",
            "--partition=whole --nodes=2 --ntasks-per-node=1 --gpus=4",
            "--partition=mixed --nodes=2 --gpus=4",
            "--partition=mixed --nodes=3 --gpus=6",
            "--partition=mixed --nodes=4 --gpus=8",
        ),
        True,
    ),
    **dict.fromkeys(
        (
            "--nodes=1 --gpus=4",
            "--nodes=2 --gpus=2",
            "--nodes=2 --gpus=8",
            "--nodes=2 --ntasks-per-node=4 --gpus=8",
            "--nodes=2 --ntasks-per-node=1 --gpus=8 --exclusive",
            "--nodes=2 --gpus=4 --gpus-per-node=2",
            "--nodes=2 --gpus=4 --gpus-per-task=2",
            "--nodes=2 --gpus=4 --gpus-per-task=1 --ntasks-per-node=2",
            "--nodes=2 --gpus=4 --gpus-per-task=1 --ntasks=4 --ntasks-per-node=2",
            "--nodes=2 --gpus=4 --ntasks-per-gpu=1",
            "--nodes=2 --gpus=6 --ntasks-per-gpu=1",
            "--nodes=2 --gpus-per-node=3 --ntasks-per-node=3",
            "--nodes=2 --gres=gpu:2",
            "--partition=whole --nodes=2 --ntasks-per-node=1 --gpus=8",
            "--partition=whole --nodes=2 --ntasks-per-node=1 --gpus-per-node=2",
            "--partition=mixed --nodes=2 --gpus=8",
            "--partition=mixed --nodes=3 --gpus=3",
            "--partition=mixed --nodes=4 --gpus=4",
            "--partition=mixed --nodes=4 --gpus-per-node=1",
        ),
        False,
    ),
}


def test_lint_and_plan_know_which_gpus_slurm_splits(
    unequal: Cluster, profile: Path, slurm_release: str
) -> None:
    """What they call even is even on a busy cluster; what they call uneven is so on an idle one, for these jobs."""
    facts = read_document(profile, Profile).value
    seen = unequal.put("jobs/seen.sh", SEEN, mode=0o755)
    jobs = {}
    for options, splits in SCRIPTS.items():
        jobs[options] = unequal.sbatch(
            "--time=5", "--output=/dev/null", *options.split(), "--wrap", f"srun {seen}"
        )
        if splits:  # alone on the cluster; the others run beside each other
            unequal.until(partial(_is_idle, unequal), f"end of job {jobs[options]}")
    unequal.until(partial(_is_idle, unequal), "end of all jobs")
    uneven, wrong = set(), []
    for options, splits in SCRIPTS.items():
        text = "".join(f"#SBATCH {option}\n" for option in options.split())
        script = JobScript(profile=facts, slurm=slurm_release, file="job.sh", text=f"#!/bin/bash\n{text}")
        asked = script.resources
        parts = script.partitions.values()
        said = any(
            asked.splits_gpus(part.gpus_of_node_kinds(asked.gpus or ()), whole_nodes=part.exclusive)
            for part in parts
        )
        planned = grant_of(script, user="alice", uid=1, gid=1)
        of_steps = {
            name: int(count)
            for line in (unequal.home / f"jobs/{jobs[options]}").read_text().splitlines()
            for name, count in [line.split()]
        }
        real = tuple(count for _, count in sorted(of_steps.items()))
        uneven |= {options} if len({*real}) > 1 else set()
        if said != splits or (len({*real}) > 1 and not said):
            wrong.append(f"{options}: {said}, really {real}")
        if not said and planned.asked_gpus != real:
            wrong.append(f"{options}: planned {planned.asked_gpus}, really {real}")
        if said and sum(planned.asked_gpus) != sum(real):
            wrong.append(f"{options}: planned {planned.asked_gpus}, really {real}")
    print(f"{len(SCRIPTS)} scripts, {len(uneven)} of them with another number on each node")
    assert not wrong, "\n".join(wrong)
    assert len(uneven) > sum(SCRIPTS.values()) / 2
