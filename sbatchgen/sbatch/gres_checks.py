"""GPUs and other generic resources: what sbatch checks of them before it asks slurmctld.

Source: Slurm's gres_job_state_validate, 22.05 to 26.05, and the behaviour of sbatch 22.05.8 and 26.05.5. What
is counted is what the options say, not what a node has. A job with --gpus-per-socket is not checked.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from sbatchgen.sbatch import gres
from sbatchgen.sbatch.fields import Fields
from sbatchgen.sbatch.grammar import NO_VAL, NO_VAL16, NO_VAL64, RefusedError, fold, wrapped

INVALID = "Invalid generic resource (gres) specification"
UNREADABLE = "Invalid Trackable RESource (TRES) specification"
MIXED = "Invalid GRES specification (with and without type identification)"
_SHARED = ("mps", "shard")
_NAME = re.compile(r"(?!(?:gres|none)$)[\w.+-]+")  # of a resource that some cluster may have


@dataclass(kw_only=True, slots=True)
class Demand:
    """How much of one resource is asked for; 0 is nothing."""

    name: str
    type: str | None
    per_job: int = 0
    per_node: int = 0
    per_task: int = 0
    cpus: int = 0
    memory: int = 0
    total: int = 0
    tasks_per: int = NO_VAL16


@dataclass(kw_only=True, slots=True)
class Counts:
    """The counts of the job that the checks compare with, and fill in; NO_VAL where there is none."""

    slurm: str
    tasks: int
    low: int
    high: int
    tasks_per_node: int
    cpus_per_task: int
    tasks_per_tres: int
    gpus: bool = False  # some are asked for


Demands = dict[tuple[str, str], Demand]  # by name and type, "" for none


def verify(job: Fields) -> None:
    """Check what the settled fields ask for; a resource of any name may be there.

    Raises:
        RefusedError: sbatch refuses the job.
    """
    if job["clusters"] is not None or job["gpus-per-socket"] is not None:
        return  # another cluster may have other resources
    counts = _counts(job)
    requests = _requests(job)
    _imply_tasks(requests, counts)
    demands: Demands = {}
    faults = [_collect(kind, text, demands, counts) for kind, text in requests]
    counts.gpus = any(_asks_itself(demand) for demand in demands.values() if demand.name == "gpu")
    wrong = _tasks_per_gpu(demands, counts)
    wrong = wrong or next(filter(None, reversed(faults)), "") or _disagreement(job, demands, counts, requests)
    if wrong:
        raise RefusedError(wrong)


def _counts(job: Fields) -> Counts:
    def narrow(option: str) -> int:
        value = int(job[option])
        return NO_VAL if value == NO_VAL else value % 2**16

    tasks, per_node = job["ntasks"], job["ntasks-per-node"]
    low = job["min_nodes"] % 2**32 if job["nodes_set"] else NO_VAL
    if not job["nodes_set"] and job["ntasks_set"]:
        if tasks == 0:
            low = 0
        elif per_node != NO_VAL and job.slurm >= "23.11":
            low = -(-(tasks % 2**32) // per_node)
    tasks_per_tres = narrow("ntasks-per-tres")
    return Counts(
        slurm=job.slurm,
        tasks=tasks % 2**32 if job["ntasks_set"] else NO_VAL,
        low=low,
        high=job["max_nodes"] % 2**32 if job["nodes_set"] and job["max_nodes"] else NO_VAL,
        tasks_per_node=narrow("ntasks-per-node"),
        cpus_per_task=job["cpus-per-task"] % 2**16 if job["cpus_set"] else NO_VAL,
        tasks_per_tres=narrow("ntasks-per-gpu") if tasks_per_tres == NO_VAL else tasks_per_tres,
    )


def _requests(job: Fields) -> list[tuple[str, str]]:
    """Kind and text of each request, in the order they are looked at."""
    gpu = f"{'gres:' if job.slurm < '23.11' else 'gres/'}gpu:"

    def gpus(option: str) -> str | None:
        items = [item for item in (job[option] or "").split(",") if item]
        return ",".join(gpu + item for item in items) or None

    generic = job["gres"] if fold(job["gres"] or "none") != "none" else None
    per_task = job["tres-per-task"] if job.slurm >= "24.05" else gpus("gpus-per-task")
    per_gpu = job["cpus-per-gpu"]
    memory = job["mem-per-gpu"]
    found = (
        ("cpus", f"{gpu}{per_gpu}" if per_gpu else None),
        ("per_job", gpus("gpus")),
        ("per_node", ",".join(text for text in (gpus("gpus-per-node"), generic) if text is not None) or None),
        ("per_task", per_task),
        ("memory", f"{gpu}{memory}" if memory != NO_VAL64 else None),
    )
    return [(kind, text) for kind, text in found if text is not None]


def _imply_tasks(requests: list[tuple[str, str]], counts: Counts) -> None:
    wanted = counts.tasks_per_tres != NO_VAL or any(kind == "per_task" for kind, _ in requests)
    if not wanted or counts.tasks != NO_VAL or counts.low == NO_VAL or counts.low != counts.high:
        return
    if counts.tasks_per_tres != NO_VAL:
        counts.tasks = counts.low * counts.tasks_per_tres
    elif counts.tasks_per_node != NO_VAL:
        counts.tasks = counts.low * counts.tasks_per_node
    elif counts.cpus_per_task == NO_VAL:
        counts.tasks = counts.low


def _collect(kind: str, text: str, demands: Demands, counts: Counts) -> str:
    """Enter a request; what is wrong with the first bad item, which ends it."""
    slurm = counts.slurm
    try:
        for item in gres.items(text, slurm=slurm):
            if not item.name and slurm >= "23.02":
                return ""
            if not _NAME.fullmatch(item.name):
                return INVALID
            demand = _demand(demands, item.name, item.type)
            setattr(demand, kind, item.count if kind != "cpus" else item.count % 2**16)
            demand.tasks_per = counts.tasks_per_tres
            if kind.startswith("per_"):
                demand.total = max(demand.total, item.count * _copies(kind, counts))
    except gres.BadItemError:
        return INVALID if slurm < "23.02" else UNREADABLE
    return ""


def _demand(demands: Demands, name: str, variety: str | None) -> Demand:
    """The demand for a resource; an empty type is no other than none."""
    return demands.setdefault((name, variety or ""), Demand(name=name, type=variety))


def _copies(kind: str, counts: Counts) -> int:
    """How many times the job has what the request is for."""
    nodes = 1 if counts.low == NO_VAL else counts.low
    if kind == "per_node":
        return nodes
    return counts.tasks if kind == "per_task" and counts.tasks != NO_VAL else 1


def _tasks_per_gpu(demands: Demands, counts: Counts) -> str:
    """Set tasks from GPUs, or GPUs from tasks, for --ntasks-per-gpu; what is wrong, if something is."""
    if not counts.tasks_per_tres or counts.tasks_per_tres == NO_VAL:
        return ""
    if counts.gpus:
        gpus = sum(demand.total for demand in demands.values() if demand.name == "gpu")
        if not gpus:
            return "Can't set num_tasks = gpus * *ntasks_per_tres because there are no allocated GPUs"
        counts.tasks = gpus * counts.tasks_per_tres % 2**32
    elif counts.tasks and counts.tasks != NO_VAL:
        gpus = counts.tasks // counts.tasks_per_tres
        if gpus:
            demand = _demand(demands, "gpu", None)
            demand.tasks_per, demand.per_job = counts.tasks_per_tres, gpus
            demand.total = max(demand.total, gpus)
        counts.gpus = bool(demands)
    else:
        return "--ntasks-per-tres needs either a GRES GPU specification or a node/ntask specification"
    return ""


def _disagreement(job: Fields, demands: Demands, counts: Counts, requests: list[tuple[str, str]]) -> str:
    """What sbatch says of demands that don't go together; "" if they do."""
    if not demands:
        return ""
    for kind, name in (("memory", "mem"), ("cpus", "cpus")):
        text = next((text for other, text in requests if other == kind), None)
        if text and not counts.gpus and (kind == "memory" or job.slurm >= "23.02"):
            return f"Requested {name}_per_tres={text} but did not request any GPU."
    sound: list[Demand] = []
    names = set[str]()
    wrong = ""
    for demand in demands.values():
        names.add(demand.name)
        wrong = _fault(job, demand, counts) or (INVALID if "gpu" in names and names & set(_SHARED) else "")
        if wrong:
            break
        sound.append(demand)
    shares = any(demand.name in _SHARED for demand in demands.values())
    if shares and job["gpu-freq"] is not None:
        wrong = wrong or INVALID
    typed = {demand.name for demand in sound if demand.type is not None}
    mixed = [demand for demand in sound if demand.type is None and demand.name in typed]
    if mixed:  # this verdict takes the place of the other
        return MIXED if _asks_itself(mixed[0]) else ""
    return wrong


def _fault(job: Fields, demand: Demand, counts: Counts) -> str:
    """What is wrong with one demand; "" if nothing is."""
    for check in _CHECKS:
        if complaint := check(demand, counts):
            per_node = f"--gres={demand.name}/--{demand.name}s-per-node"
            return complaint.format(name=demand.name, per_node=per_node, failed="Failed to validate job spec")
    shared = demand.name in _SHARED and job.slurm < "23.02"
    return INVALID if shared and not _fits_one_node(demand, counts) else ""


def _asks_itself(demand: Demand) -> bool:
    """Whether it is more than CPUs or memory for each."""
    return any((demand.per_job, demand.per_node, demand.per_task))


def _fits_one_node(demand: Demand, counts: Counts) -> bool:
    """A part of a GPU can be asked for by the node only."""
    return not ((demand.per_job and counts.high != 1) or (demand.per_task and counts.tasks != 1))


Check = Callable[[Demand, Counts], str]


def _order(demand: Demand, _: Counts) -> str:
    if demand.per_job and max(demand.per_node, demand.per_task) > demand.per_job:
        return "Failed to ensure --{name}s >= {per_node} >= --{name}s-per-socket"
    if demand.per_node and demand.per_task > demand.per_node:
        return "Failed to ensure --{name}s >= --{name}s-per-task"
    return ""


def _cpus(demand: Demand, counts: Counts) -> str:
    if demand.cpus and counts.cpus_per_task != NO_VAL:
        return "--cpus-per-{name} is mutually exclusive with --cpus-per-task"
    return ""


def _nodes(demand: Demand, counts: Counts) -> str:
    if not demand.per_job or not demand.per_node:
        return ""
    if demand.per_job % demand.per_node:
        return "{failed}, --{name}s is not multiple of {per_node}"
    nodes = demand.per_job // demand.per_node
    if (counts.low != NO_VAL and nodes < counts.low) or nodes > counts.high:
        return (
            "{failed}. Based on --{name} and {per_node} required nodes "
            f"({nodes}) doesn't fall between min_nodes ({counts.low}) and "
            f"max_nodes ({counts.high}) boundaries."
        )
    counts.low = counts.high = nodes
    return ""


def _whole_tasks(demand: Demand, counts: Counts) -> str:
    if (
        demand.tasks_per in (0, NO_VAL, NO_VAL16)
        or counts.tasks == NO_VAL
        or not counts.tasks % demand.tasks_per
    ):
        return ""
    return "{failed}, -n/--ntasks has to be a multiple of --ntasks-per-{name}."


def _total_of_tasks(demand: Demand, counts: Counts) -> str:
    """Without a number for the job, it is that of its tasks."""
    if not demand.per_task or demand.per_job:
        return ""
    if counts.tasks != NO_VAL:
        demand.per_job = counts.tasks * demand.per_task
        return ""
    if counts.slurm < "23.02":
        return "{failed}. --{name}s-per-task used without either --{name}s or -n/--ntasks is not allowed."
    if demand.name == "gpu":
        return (
            "{failed}. --{name}s-per-task or --tres-per-task used without either --{name}s or -n/--ntasks "
            "is not allowed."
        )
    return "{failed}. --tres-per-task used without -n/--ntasks is not allowed."


def _quotient(whole: str, part: str, count: str, *, uneven: str, differ: str) -> Check:
    """A check that one demand is a multiple of another, and how often is what the job has of `count`.

    Args:
        whole: The larger demand, a field of Demand.
        part: The smaller one.
        count: The field of Counts that their quotient is for.
        uneven: What sbatch says where there is a rest.
        differ: What it says where the quotient is another than the count.
    """

    def check(demand: Demand, counts: Counts) -> str:
        one, other = getattr(demand, whole), getattr(demand, part)
        if not one or not other:
            return ""
        if one % other:
            return "{failed}, " + uneven
        quotient = one // other
        known = getattr(counts, count)
        if known not in (NO_VAL, quotient) and (known or count == "tasks"):
            return "{failed}. Based on " + differ
        setattr(counts, count, quotient)
        return ""

    return check


def _cpus_of_tasks(demand: Demand, counts: Counts) -> str:
    if not demand.cpus or not demand.per_task:
        return ""
    cpus = wrapped(demand.cpus * demand.per_task)
    if counts.cpus_per_task not in (NO_VAL, 0, cpus):
        return (
            "{failed}. Based on --cpus-per-{name} and --{name}s-per-task requested number of "
            "cpus differ from -c/--cpus-per-task."
        )
    counts.cpus_per_task = cpus % 2**16
    return ""


def _at_least_one(demand: Demand, counts: Counts) -> str:
    if demand.per_job and counts.low != NO_VAL and demand.per_job < counts.low:
        return "{failed}, --{name}s < -N"
    if demand.per_job and counts.high != NO_VAL and demand.per_job < counts.high:
        counts.high = demand.per_job
    return ""


# In the order that Slurm makes them in; a demand that fails one is not looked at any further.
_CHECKS: tuple[Check, ...] = (
    _order,
    _cpus,
    _nodes,
    _whole_tasks,
    _quotient(
        "per_job",
        "per_task",
        "tasks",
        uneven="--{name}s not multiple of --{name}s-per-task",
        differ="--{name}s and --{name}s-per-task number of requested tasks differ from -n/--ntasks.",
    ),
    _total_of_tasks,
    _quotient(
        "per_node",
        "per_task",
        "tasks_per_node",
        uneven="{per_node} not multiple of --{name}s-per-task.",
        differ="{per_node} and --{name}s-per-task requested number of tasks per node "
        "differ from --ntasks-per-node.",
    ),
    _cpus_of_tasks,
    _at_least_one,
)
