"""Whether the demands for one resource agree: by the job, by the node, by the socket, by the task.

Source: Slurm's _test_gres_cnt, 22.05 to 26.05; the texts are those that sbatch prints.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sbatchgen.sbatch.grammar import NO_VAL, NO_VAL16, wrapped


@dataclass(kw_only=True, slots=True)
class Demand:
    """How much of one resource is asked for; 0 is nothing."""

    name: str
    type: str | None
    per_job: int = 0
    per_node: int = 0
    per_socket: int = 0
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
    tasks_per_socket: int
    sockets: int
    cpus_per_task: int
    tasks_per_tres: int
    gpus: bool = False  # some are asked for


Check = Callable[[Demand, Counts], str]


def _order(demand: Demand, _: Counts) -> str:
    parts = (demand.per_node, demand.per_task, demand.per_socket)
    if demand.per_job and max(parts) > demand.per_job:
        return "Failed to ensure --{name}s >= {per_node} >= --{name}s-per-socket"
    if demand.per_node and max(demand.per_task, demand.per_socket) > demand.per_node:
        return "Failed to ensure --{name}s >= --{name}s-per-task"
    return ""


def _sockets(demand: Demand, counts: Counts) -> str:
    if demand.per_socket and counts.sockets == NO_VAL:
        return "--{name}s-per-socket option requires --sockets-per-node specification"
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
        if known not in (NO_VAL, quotient) and (known or count in ("tasks", "sockets")):
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
CHECKS: tuple[Check, ...] = (
    _order,
    _sockets,
    _cpus,
    _nodes,
    _quotient(
        "per_node",
        "per_socket",
        "sockets",
        uneven="{per_node} not multiple of --{name}s-per-socket.",
        differ="{per_node} and --{name}s-per-socket required number of sockets "
        "differ from --sockets-per-node.",
    ),
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
    _quotient(
        "per_socket",
        "per_task",
        "tasks_per_socket",
        uneven="--{name}s-per-socket not multiple of --{name}s-per-task.",
        differ="--{name}s-per-socket and --{name}s-per-task requested number of tasks per sockets "
        "differ from --ntasks-per-socket.",
    ),
    _cpus_of_tasks,
    _at_least_one,
)
