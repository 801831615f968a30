"""What the tasks of a job see on the real Slurm, beside what a plan says."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sbatchgen.check.script.launches import STEP_WATCHER
from sbatchgen.lab.plan.dry_run import DryRun
from tests.cluster import fixtures
from tests.cluster.slurm import Cluster
from tests.plan.plans import planned

# A cluster, with so many CPUs on a node.
SITE = """
name: testing
url: https://slurm.schedmd.com
checked: 2026-11-20
slurm: '{release}'
default_partition: gpu
partitions: {{gpu: {{time_max: 1-00:00:00, nodes_max: 4, cpus_per_node: CPUS, gpus_per_node: 4}}}}
"""
_OF_JOBS = """
env: {{OMP_NUM_THREADS: 1}}
options: {{mem: 2G, time: 00:10:00, cpus_per_task: 2}}
runtime: host
"""
PROFILE = SITE.replace("CPUS", "8") + _OF_JOBS
# What a plan can't know, by reason.
_UNKNOWN = {
    "process ids, ports, addresses and times": r"SLURM_(TASK_PID|SRUN_COMM_\w+|STEP_LAUNCHER_PORT"
    r"|LAUNCH_NODE_IPADDR|JOB_SLUID|JOB_(START|END)_TIME)",
    "of the site": r"SLURM_(CLUSTER_NAME|WORKING_CLUSTER|SUBMIT_HOST|PRIO_PROCESS|CONF|MEM_PER_CPU|JOB_GROUP|JOB_OVERSUBSCRIBE"
    r"|JOB_EXCLUSIVE)|(HYDRA|I_MPI|OMPI|PRTE)_\w+",
    "how srun and slurmd work": r"SLURM_(JOB_CPUS_PER_NODE_PACK_GROUP_0|TRES_(PER_TASK|BIND))"
    r"|SLURMD_(DEBUG|TRES_BIND)|SRUN_DEBUG|SLURM_CPU_BIND\w*",
    "of the shell": r"PATH|_|SHLVL|PWD|OLDPWD|LANG|SHELL|TERM|LC_CTYPE|BASH_ENV",
    "of these tests, which plan as root for another user": r"(SLURM_JOB_)?(USER|UID|GID)|LOGNAME|OMP_WAIT_POLICY",
}
_UNCOMPARED = re.compile("|".join(_UNKNOWN.values()))
_OF_EACH_JOB = {"SLURM_JOB_ID", "SLURM_JOBID", "SLURM_ARRAY_JOB_ID", "MASTER_PORT"}
RELEASES = {fixtures.FIRST: None, fixtures.LATER: fixtures.CHECKOUT / "build" / "sid"}
FIRST = "3"  # the element of an array that is compared
# A program that leaves how it was started.
_SPY = """#!/bin/bash
exec {python} -I -S -c 'import json, os, sys
seen = dict(argv=sys.argv[1:], cwd=os.getcwd(), env=dict(os.environ))
with open(f"{home}/seen-{{os.uname().nodename}}-{{os.getpid()}}.json", "w") as file:
    json.dump(seen, file)
' "${{0##*/}}" "$@"
"""
Seen = dict[str, Any]


def seen(cluster: Cluster, text: str) -> tuple[dict[str, str], list[list[Seen]]]:
    """The environment of the batch script, if it starts `python3 batch`, and what the tasks of each step see."""
    for file in cluster.home.glob("seen-*"):
        file.unlink()
    cluster.put("bin/python3", _SPY.format(python=sys.executable, home=cluster.home), mode=0o755)
    job = cluster.put("work/job.sh", text)
    env = {"PATH": f"{cluster.home}/bin:/usr/local/bin:/usr/bin:/bin"}
    cluster.wait(cluster.sbatch("--output=/dev/null", job, cwd=job.parent, env=env))
    steps: dict[int, list[Seen]] = {}
    batch: dict[str, str] = {}
    for file in cluster.home.glob("seen-*"):
        start = json.loads(file.read_text())
        is_watch = any(word.endswith(STEP_WATCHER) for word in start["argv"])  # which no plan shows
        if is_watch or start["env"].get("SLURM_ARRAY_TASK_ID", FIRST) != FIRST:
            continue
        if start["argv"][1:] == ["batch"]:
            batch = start["env"]
        else:
            steps.setdefault(int(start["env"]["SLURM_STEP_ID"]), []).append(start)
    return batch, [sorted(tasks, key=_place) for _, tasks in sorted(steps.items())]


def _place(start: Seen) -> tuple[int, ...]:
    return tuple(int(start["env"].get(f"SLURM_{name}", "0")) for name in ("PROCID", "NODEID", "LOCALID"))


def plan_here(cluster: Cluster, text: str, release: str) -> DryRun:
    """The plan of a script, as it is submitted on the cluster."""
    folder = cluster.put("work/job.sh", text).parent
    return planned(text, folder, slurm=release, environment={"HOME": str(cluster.home)})[0]


def differences(
    done: DryRun, cluster: Cluster, batch: Mapping[str, str], steps: Sequence[Sequence[Seen]]
) -> list[str]:
    """How a plan and what was seen differ."""
    planned = [step.processes for step in done.steps if step.is_srun and step.processes]
    if list(map(len, planned)) != list(map(len, steps)):
        return [f"tasks of steps: {list(map(len, planned))}, really {list(map(len, steps))}"]
    pairs = list(_environments("batch", done.batch_environment, batch, cluster)) if batch else []
    for number, (processes, tasks) in enumerate(zip(planned, steps, strict=True)):
        for process, task in zip(processes, tasks, strict=True):
            where = f"step {number}, rank {process.rank}"
            gpus = ",".join(map(str, process.gpus))
            argv = [named(word, cluster) for word in task["argv"]]
            pairs.append((f"{where}: argv", list(process.argv), argv))
            pairs.append((f"{where}: folder", process.cwd, task["cwd"]))
            pairs.append((f"{where}: GPUs", gpus, task["env"].get("CUDA_VISIBLE_DEVICES", "")))
            pairs += _environments(where, done.batch_environment | process.env, task["env"], cluster)  # type: ignore[operator]
    return [f"{what}: {own!r}, really {real!r}" for what, own, real in pairs if own != real]


def _environments(
    where: str, own: Mapping[str, str | None], real: Mapping[str, str | None], cluster: Cluster
) -> Iterator[tuple[str, object, object]]:
    for name in sorted({*own, *real}):
        if not is_left_out(name):
            mine, theirs = (
                value and ("of the job" if name in _OF_EACH_JOB else named(value, cluster))
                for value in (own.get(name), real.get(name))
            )
            yield f"{where}: {name}", mine, theirs


def is_left_out(name: str) -> bool:
    """Whether a variable is one that no plan can know."""
    return _UNCOMPARED.fullmatch(name) is not None


def named(text: str, cluster: Cluster) -> str:
    """A text of the cluster with the names of a plan."""
    text = re.sub(r"\bn([1-4]|\[[1-4][-,][1-4]\])(?!\w)", r"node\1", text)
    return text.replace(f"{cluster.home}/bin:", "")
