"""The options together: which ones sbatch refuses side by side, and the counts that follow from them.

Source: the checks of sbatch and those it shares with salloc and srun: 22.05, with what came later by release.
"""

from __future__ import annotations

import re

from sbatchgen.sbatch import hostlist, tres_per_task
from sbatchgen.sbatch.fields import Fields
from sbatchgen.sbatch.grammar import NO_VAL, RefusedError, fold, wrapped

_ZEROS = re.compile(r"(?<!\d)0+(?=\d+$)")  # before the number that a host's name ends with
_PER_GPU_RIVALS = ("gpus-per-task", "gpus-per-socket", "ntasks-per-node")


def settle(job: Fields) -> None:
    """Set what options imply, and check them against each other.

    Raises:
        RefusedError: sbatch refuses the job.
    """
    _shared_checks(job)
    if "bb" in job.options and "bbf" in job.options:
        raise RefusedError("Cannot specify both --burst-buffer and --bbf")
    _hint(job)
    _nodelist(job)
    _implied_tasks(job)
    if job["cpus_set"] and job["mincpus"] < job["cpus-per-task"]:
        job["mincpus"] = job["cpus-per-task"]
    _check_counts(job)
    _planes(job)
    _nodes_and_tasks(job)
    _arbitrary(job)
    per_core, threads = job["ntasks-per-core"], job["threads-per-core"]
    if job.slurm >= "23.02" and per_core != NO_VAL and threads < per_core:
        text = f"--ntasks-per-core ({per_core}) can not be bigger than --threads-per-core ({threads})"
        raise RefusedError(text)


def _shared_checks(job: Fields) -> None:
    """The checks that sbatch shares with salloc and srun."""
    if job.slurm >= "26.05" and "gpus-per-node" in job.options and "gres/gpu" in (job["gres"] or ""):
        raise RefusedError("--gpus-per-node and --gres=gpu are mutually exclusive.")
    _tasks_per_gpu(job)
    if len(job.given("core-spec", "thread-spec")) > 1 and job.slurm >= "21.08":
        raise RefusedError("-S/--core-spec and --thred-spec options are mutually exclusive")
    if len(job.given("mem", "mem-per-cpu", "mem-per-gpu")) > 1:
        raise RefusedError("--mem, --mem-per-cpu, and --mem-per-gpu are mutually exclusive.")
    if job.slurm >= "23.02" and len(job.given("exclusive", "oversubscribe")) > 1:
        raise RefusedError("--exclusive and --oversubscribe options are mutually exclusive")
    if job.slurm >= "23.02":
        tres_per_task.settle(job)
    if job.slurm >= "23.11":
        tres_per_task.check_cpus(job)
        if job["dist"][0] == "arbitrary" and job["nodes_set"]:
            raise RefusedError("--nodes is incompatible with --distribution=arbitrary")
    if job.slurm >= "26.05":
        _segment(job)


def _tasks_per_gpu(job: Fields) -> None:
    given = job.given("ntasks-per-gpu", "ntasks-per-tres")
    if not given:
        return
    per_gpu, per_tres = job["ntasks-per-gpu"], job["ntasks-per-tres"]
    if len(given) > 1 and per_gpu != per_tres:
        raise RefusedError(
            f"Inconsistent values set to --ntasks-per-gpu={per_gpu} and --ntasks-per-tres={per_tres} "
        )
    if job.given("tres-per-task"):
        raise RefusedError(
            "--tres-per-task is mutually exclusive with --ntasks-per-gpu and SLURM_NTASKS_PER_GPU"
        )
    for option in _PER_GPU_RIVALS:
        if option in job.options:
            text = f"--{option} is mutually exclusive with --ntasks-per-gpu and SLURM_NTASKS_PER_GPU"
            raise RefusedError(text)


def _segment(job: Fields) -> None:
    size = job["segment"]
    nodes = job["max_nodes"] if job["listed_nodes"] and job["max_nodes"] else job["min_nodes"]
    if size and job["nodes_set"] and nodes > size and nodes % size:
        fit = f"--segment={size} does not fit the job size ({nodes})"
        raise RefusedError(f"{fit}: node count must be evenly divisible by segment size")


def hint_rivals(slurm: str) -> tuple[str, ...]:
    """The options that --hint gives way to."""
    more = ("cores-per-socket", "sockets-per-node") if slurm >= "25.11" else ()
    return ("ntasks-per-core", "threads-per-core", "extra-node-info", *more)


def _hint(job: Fields) -> None:
    """The hint gives way to options for the same thing."""
    if job["hint"] is None:
        return
    if job.given(*hint_rivals(job.slurm)):
        job.reset("hint")
        return
    for item in re.sub(",(?![0-9])", ";", job["hint"]).split(";"):
        _follow_hint(job, item)


def _follow_hint(job: Fields, item: str) -> None:
    name = fold(item)
    if name == "help":
        raise RefusedError
    if name not in ("compute_bound", "memory_bound", "multithread", "nomultithread"):
        raise RefusedError(f'unrecognized --hint argument "{item}", see --hint=help')
    job["threads-per-core"] = NO_VAL if name == "multithread" else 1
    if name == "compute_bound":
        job["sockets-per-node"] = job["cores-per-socket"] = NO_VAL
    elif name == "memory_bound":
        job["cores-per-socket"] = 1
    elif name == "multithread":
        job["ntasks-per-core"] = 0xFFFF


def _nodelist(job: Fields) -> None:
    """Set the least number of nodes from --nodelist; before 23.02 the list raised that of --nodes."""
    text = job["nodelist"]
    if text is None or "/" in text:  # a file, which only sbatch itself can read
        return
    if job.slurm < "23.02" or not (job["nodes_set"] or _is_function(job)):
        # Slurm takes some numbers for equal that are padded differently: x8 and x08
        count = len({_ZEROS.sub("", host) for host in hostlist.expanded(text, slurm=job.slurm)})
        job["min_nodes"] = max(count, job["min_nodes"]) if job["nodes_set"] else count
        job["nodes_set"] = True


def _is_function(job: Fields) -> bool:
    """Whether slurmctld must be asked for the hosts."""
    return job.slurm >= "24.11" and "{" in (job["nodelist"] or "")


def _implied_tasks(job: Fields) -> None:
    per_node = wrapped(job["ntasks-per-node"])
    if job.slurm >= "23.02" or job["ntasks_set"] or per_node <= 0:
        return
    if job["max_nodes"] in (0, job["min_nodes"]):
        job["ntasks"], job["ntasks_set"] = wrapped(job["min_nodes"] * per_node), True


def _check_counts(job: Fields) -> None:
    low, high = job["min_nodes"], job["max_nodes"]
    if job["ntasks"] < 0:
        raise RefusedError(f"invalid number of tasks (-n {job['ntasks']})")
    if job["cpus_set"] and job["cpus-per-task"] <= 0:
        raise RefusedError(f"invalid number of cpus per task (-c {job['cpus-per-task']})")
    if low < 0 or high < 0 or (high and low > high):
        raise RefusedError(f"invalid number of nodes (-N {low}-{high})")


def _planes(job: Fields) -> None:
    base, size = job["dist"]
    low, tasks = job["min_nodes"], job["ntasks"]
    if base == "plane" and (low <= 0 or tasks // size < low) and (low - 1) * size >= tasks:
        raise RefusedError("Too few processes for the requested {plane,node} distribution")


def _nodes_and_tasks(job: Fields) -> None:
    low, high = job["min_nodes"], job["max_nodes"]
    alone = job.slurm < "23.02" or job["ntasks-per-node"] == NO_VAL
    extra = "extra-node-info" in job.options
    if (job["nodes_set"] or extra) and high in (0, low) and not job["ntasks_set"] and alone:
        tasks = max(low, 1)
        for option in ("sockets-per-node", "cores-per-socket", "threads-per-core"):
            if job[option] != NO_VAL:
                tasks = wrapped(tasks * job[option])
                job["ntasks_set"] = True
        job["ntasks"] = tasks
    elif job["nodes_set"] and job["ntasks_set"]:
        tasks = job["ntasks"]
        if tasks < high:
            job["max_nodes"] = tasks
        if tasks < low:
            job["min_nodes"] = job["max_nodes"] = tasks


def _arbitrary(job: Fields) -> None:
    if job["dist"][0] != "arbitrary" or (job["ntasks_set"] and job["nodes_set"]) or _is_function(job):
        return
    text = job["nodelist"] or ""
    hosts = [] if "/" in text else hostlist.expanded(text, slurm=job.slurm)
    named = len(set(hosts) if job.slurm < "23.02" else hosts)
    if not job["ntasks_set"]:
        job["ntasks"], job["ntasks_set"] = named, True
    if not job["nodes_set"]:
        job["nodes_set"] = True
        job["min_nodes"] = job["max_nodes"] = named


def check_nodelist(job: Fields) -> None:
    """Check the list of nodes, as sbatch does once the options are settled.

    Raises:
        RefusedError: sbatch refuses the job.
    """
    text = job["nodelist"]
    if text is not None and "/" not in text and job.slurm >= "23.02" and not _is_function(job):
        hostlist.expanded(text, slurm=job.slurm)
    if job["dist"][0] == "arbitrary" and not text:
        needed = "With Arbitrary distribution you need to specify a nodelist or hostfile with the -w option"
        raise RefusedError(needed)
