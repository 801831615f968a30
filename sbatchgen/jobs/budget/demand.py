"""Computes the most resources that a submission may take, by the script and the options that sbatch gets."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from sbatchgen.base.errors import BudgetError
from sbatchgen.check.sbatch.array import indices
from sbatchgen.check.script.more_options import with_options
from sbatchgen.check.script.resource_request import UNLIMITED, ResourceRequest
from sbatchgen.check.script.script import JobScript
from sbatchgen.jobs.budget.share import find_placement, largest_allocation

# "max_restarts=10", a line of rendered scripts
_MAX_RESTARTS = re.compile(r"^ *max_restarts=([0-9]+)\b", re.MULTILINE)
_REQUEUE_COMMAND = re.compile(r"\bscontrol\b[^\n]*\brequeue")  # "scontrol requeue $SLURM_JOB_ID"
# Options that leave the size of the job open, each with the option or value to write instead
_OPEN_SIZE_OPTIONS = {
    "gpus-per-socket": "--gpus-per-node N",
    "tres-per-task": "--gpus-per-node N",
    "nodefile": "--nodelist NODES",
    "clusters": "the partition of one cluster",
}


class Demand(NamedTuple):
    """The most resources that a submission may take."""

    tasks: int  # how many tasks its array has; 1 for another job
    tasks_at_once: int  # how many tasks may run at once
    gpus: float  # GPUs of each task; a shard counts as its fraction of a GPU
    cpus: int  # CPUs of each task
    starts: int  # how often each task may start, with all restarts
    time_s: int  # the time limit of each start
    partitions: tuple[str, ...]  # the partitions that it names
    account: str  # the account that it names; "" if it names none

    def hours(self, per_task: float, tasks: int = 0) -> float:
        """Return the hours of all starts of all tasks, if each has `per_task` GPUs or CPUs.

        `tasks` is another number of tasks; 0 for the tasks of the array.
        """
        return (tasks or self.tasks) * self.starts * per_task * self.time_s / 3600


def compute_demand(script: bytes, options: Sequence[str], environment: Mapping[str, str]) -> Demand:
    """Return the demand of a submission.

    Raises BudgetError if the demand is not known, and SlurmError if Slurm does not answer.
    """
    job = JobScript(file="", text=with_options(script.decode("utf-8", "surrogateescape"), options))
    request = job.resources
    placement = find_placement(request, environment)
    time_s = (request.time if "time" in request else placement.time_s) or UNLIMITED
    restarts = [int(text) for text in _MAX_RESTARTS.findall(job.text)]
    restarts = [0 for _ in restarts] if "--no-requeue" in options else restarts  # Slurm refuses requeues then
    for what, fix in _reasons_why_unknown(job, request, time_s, has_max_restarts=bool(restarts)):
        raise BudgetError.of(f"a budget can't count this job: {what}", fix=fix)
    array, _, throttle = request.options.get("array", "").partition("%")
    tasks = sum(map(len, indices(array) or ())) or 1
    tasks_at_once = min(int(throttle), tasks) if throttle.isdecimal() and int(throttle) else tasks
    partitions = tuple(filter(None, request.options.get("partition", "").split(",")))
    gpus, cpus = largest_allocation(request, placement)
    starts = 1 + max(restarts, default=0)
    return Demand(
        tasks=tasks,
        tasks_at_once=tasks_at_once,
        gpus=gpus,
        cpus=cpus,
        starts=starts,
        time_s=time_s,
        partitions=partitions,
        account=request.options.get("account", ""),
    )


def _reasons_why_unknown(
    job: JobScript, request: ResourceRequest, time_s: int, *, has_max_restarts: bool
) -> Iterator[tuple[str, str]]:
    """Yield why the demand of a job is not known, each reason with a fix.

    `has_max_restarts` says whether the script limits its restarts.
    """
    if time_s >= UNLIMITED:
        yield "it has no time limit", "add --time HH:MM:SS"
    if len(job.sbatch.components) > 1:
        yield "it is a heterogeneous job", "submit a job for each component"
    for name in (name for name in _OPEN_SIZE_OPTIONS if name in request):
        yield (
            f"--{name} leaves open what it gets",
            f"leave --{name} out, and write {_OPEN_SIZE_OPTIONS[name]}",
        )
    if request.options.get("exclusive") == "topo":
        yield "--exclusive=topo leaves open what it gets", "write --exclusive"
    if not has_max_restarts and _REQUEUE_COMMAND.search(job.text) and "no-requeue" not in request:
        yield "the number of its restarts is not known", "add --no-requeue"
