"""GPUs and other generic resources: what people get wrong, and sbatch refuses before it asks slurmctld.

Broken lists, a resource with a type and without, shards beside GPUs, counts for the job, its nodes and its
tasks that don't match: more is not checked. Source: Slurm's gres_job_state_validate, 22.05 to 26.05.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from sbatchgen.sbatch import gres
from sbatchgen.sbatch.fields import Fields
from sbatchgen.sbatch.grammar import NO_VAL, RefusedError

INVALID = "Invalid generic resource (gres) specification"
UNREADABLE = "Invalid Trackable RESource (TRES) specification"
MIXED = "Invalid GRES specification (with and without type identification)"
_NAME = re.compile(r"(?!(?:gres|none)$)[\w.+-]+")  # of a resource that some cluster may have
Asked = dict[tuple[str, str | None], dict[str, int]]  # how much by name and type, then by job, node and task


def verify(job: Fields) -> None:
    """Check what the settled fields ask for; a resource of any name may be there.

    Raises:
        RefusedError: sbatch refuses the job.
    """
    if job.given("clusters", "gpus-per-socket", "ntasks-per-gpu", "ntasks-per-tres"):
        return  # another cluster may have other resources, and other counts follow from the rest
    gpu = "gres:gpu:" if job.slurm < "23.11" else "gres/gpu:"
    asked = _asked(job, gpu)
    if "" not in {kind for _, kind in asked} and (complaint := _disagreement(job, asked, gpu)):
        raise RefusedError(complaint)


def _asked(job: Fields, gpu: str) -> Asked:
    items = [(job[f"gpus{per}"] or "").split(",") for per in ("", "-per-node", "-per-task")]
    whole, node, task = (",".join(gpu + item for item in found if item) for found in items)
    task = task if job.slurm < "24.05" else job["tres-per-task"] or ""
    asked: Asked = {}
    try:
        for each, text in (("job", whole), ("node", f"{node},{job['gres'] or ''}"), ("task", task)):
            for item in gres.items(text, slurm=job.slurm):
                if not item.name and job.slurm >= "23.02":
                    break
                if not _NAME.fullmatch(item.name):
                    raise RefusedError(INVALID)
                asked.setdefault((item.name, item.type), {})[each] = item.count
    except gres.BadItemError as error:
        raise RefusedError(INVALID if job.slurm < "23.02" else UNREADABLE) from error
    return asked


def _disagreement(job: Fields, asked: Asked, gpu: str) -> str:
    names = {name for name, _ in asked}
    for option, since in (("mem-per-gpu", ""), ("cpus-per-gpu", "23.02")):
        if option in job.options and job[option] and job.slurm >= since and "gpu" not in names:
            return f"Requested {option[:-8]}_per_tres={gpu}{job[option]} but did not request any GPU."
    if job["cpus-per-gpu"] and job["cpus_set"]:
        return "--cpus-per-gpu is mutually exclusive with --cpus-per-task"
    wrong = INVALID if "gpu" in names and names & {"mps", "shard"} else ""
    typed, untyped, tasks = set[str](), set[str](), _tasks(job)
    for (name, kind), counts in asked.items():
        if fault := next(_faults(job, name, counts, tasks), ""):
            wrong = wrong or fault
            break
        (typed if kind else untyped).add(name)
        tasks = counts["job"] // counts["task"] if {"job", "task"} <= counts.keys() else tasks
    if typed & untyped:
        return MIXED
    return "" if job["cpus-per-gpu"] and "gpu" in typed else wrong  # sbatch forgets it: the CPUs have no type


def _tasks(job: Fields) -> int:
    """How many tasks --gpus-per-task is for; NO_VAL if nothing tells."""
    fixed = job["nodes_set"] and job["min_nodes"] == job["max_nodes"]
    per_node = 1 if job["ntasks-per-node"] == NO_VAL and not job["cpus_set"] else job["ntasks-per-node"]
    implied = job["min_nodes"] * per_node if fixed and per_node != NO_VAL else NO_VAL
    return int(job["ntasks"] if job["ntasks_set"] else implied)


def _faults(job: Fields, name: str, counts: dict[str, int], tasks: int) -> Iterator[str]:
    """What is wrong with the counts of a resource."""
    whole, node, task = (counts.get(each, 0) for each in ("job", "node", "task"))
    low, high = (job["min_nodes"], job["max_nodes"] or NO_VAL) if job["nodes_set"] else (0, NO_VAL)
    flag, each_node, each_task = f"--{name}s", f"--gres={name}/--{name}s-per-node", f"--{name}s-per-task"
    failed = "Failed to validate job spec"
    if whole and max(node, task) > whole:
        yield f"Failed to ensure {flag} >= {each_node} >= {flag}-per-socket"
    if node and task > node:
        yield f"Failed to ensure {flag} >= {each_task}"
    if node and whole % node:
        yield f"{failed}, {flag} is not multiple of {each_node}"
    if node and whole and not low <= whole // node <= high:
        wanted = f"Based on --{name} and {each_node} required nodes ({whole // node})"
        yield f"{failed}. {wanted} doesn't fall between min_nodes ({low}) and max_nodes ({high}) boundaries."
    if whole and task and (whole % task or tasks not in (NO_VAL, whole // task)):
        differ = f". Based on {flag} and {each_task} number of requested tasks differ from -n/--ntasks."
        yield failed + (f", {flag} not multiple of {each_task}" if whole % task else differ)
    if task and not whole and tasks == NO_VAL and name == "gpu":
        either = "" if job.slurm < "23.02" else " or --tres-per-task"
        yield f"{failed}. {each_task}{either} used without either {flag} or -n/--ntasks is not allowed."
    if task and node % task:
        yield f"{failed}, {each_node} not multiple of {each_task}."
    if task and node and job["ntasks-per-node"] not in (NO_VAL, 0, node // task):
        differ = "requested number of tasks per node differ from --ntasks-per-node."
        yield f"{failed}. Based on {each_node} and {each_task} {differ}"
    if 0 < whole < low:
        yield f"{failed}, {flag} < -N"
