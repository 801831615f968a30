"""GPUs and other generic resources: what sbatch checks of them before it asks slurmctld.

Source: Slurm 22.05 and the behaviour of sbatch 22.05.8. What is counted is what the options say, not what a
node has.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from sbatchgen.script.fields import Fields
from sbatchgen.script.grammar import NO_VAL, NO_VAL16, NO_VAL64, RefusedError, fold, wrapped

INVALID = "Invalid generic resource (gres) specification"
MIXED = "Invalid GRES specification (with and without type identification)"
_SHARED = ("mps", "shard")
_SIZES = {"k": 1, "m": 2, "g": 3, "t": 4, "p": 5}


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

    tasks: int
    low: int
    high: int
    tasks_per_node: int
    tasks_per_socket: int
    sockets: int
    cpus_per_task: int
    tasks_per_tres: int
    gpus: bool = False  # some are asked for


class _BadItemError(Exception):
    """An item of a list of resources is none."""


def verify(job: Fields, *, known: frozenset[str] | None) -> None:
    """Check what is asked for.

    Args:
        job: The settled fields.
        known: The GresTypes of the cluster, None if they are unknown.

    Raises:
        RefusedError: sbatch would end.
    """
    if job["dist"][0] == "arbitrary" and job["nodelist"] is None:
        text = "With Arbitrary distribution you need to specify a nodelist or hostfile with the -w option"
        raise RefusedError(text, status=1)
    if job["clusters"] is not None:  # another cluster may have other resources
        return
    counts = _counts(job)
    requests = _requests(job)
    _imply_tasks(requests, counts)
    demands: list[Demand] = []
    collected = [_collect(kind, text, demands, counts, known) for kind, text in requests]
    counts.gpus = any(_asks_itself(demand) for demand in demands if demand.name == "gpu")
    valid = _tasks_per_gpu(job, demands, counts) and all(collected)
    wrong = _disagreement(job, demands, counts, requests) if valid else INVALID
    if wrong:
        raise RefusedError(wrong, status=1)


def _counts(job: Fields) -> Counts:
    def narrow(option: str) -> int:
        value = int(job[option])
        return NO_VAL if value == NO_VAL else value % 2**16

    low = job["min_nodes"] % 2**32 if job["nodes_set"] else NO_VAL
    if not job["nodes_set"] and job["ntasks_set"] and job["ntasks"] == 0:
        low = 0
    tasks_per_tres = narrow("ntasks-per-tres")
    return Counts(
        tasks=job["ntasks"] % 2**32 if job["ntasks_set"] else NO_VAL,
        low=low,
        high=job["max_nodes"] % 2**32 if job["nodes_set"] and job["max_nodes"] else NO_VAL,
        tasks_per_node=narrow("ntasks-per-node"),
        tasks_per_socket=narrow("ntasks-per-socket"),
        sockets=narrow("sockets-per-node"),
        cpus_per_task=job["cpus-per-task"] % 2**16 if job["cpus_set"] else NO_VAL,
        tasks_per_tres=narrow("ntasks-per-gpu") if tasks_per_tres == NO_VAL else tasks_per_tres,
    )


def _requests(job: Fields) -> list[tuple[str, str]]:
    """Kind and text of each request, in the order they are looked at."""
    gres = _old_style(job["gres"]) if fold(job["gres"] or "none") != "none" else None
    per_node = ",".join(text for text in (_gpus(job["gpus-per-node"]), gres) if text is not None)
    found = (
        ("cpus", f"gres:gpu:{job['cpus-per-gpu']}" if job["cpus-per-gpu"] else None),
        ("per_job", _gpus(job["gpus"])),
        ("per_node", per_node or None),
        ("per_socket", _gpus(job["gpus-per-socket"])),
        ("per_task", _gpus(job["gpus-per-task"])),
        ("memory", f"gres:gpu:{job['mem-per-gpu']}" if job["mem-per-gpu"] != NO_VAL64 else None),
    )
    return [(kind, text) for kind, text in found if text is not None]


def _old_style(gres: str) -> str:
    """The list with gres:gpu:2 for what is gres/gpu:2 or gres/gpu=2 since 23.11."""
    items = gres.split(",") if "gres/" in gres else ()
    old = (f"gres:{item.removeprefix('gres/').replace('=', ':', 1)}" for item in items)
    return ",".join(old) or gres


def _gpus(text: str | None) -> str | None:
    items = [item for item in (text or "").split(",") if item]
    return ",".join(f"gres:gpu:{item}" for item in items) or None


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


def _collect(
    kind: str, text: str, demands: list[Demand], counts: Counts, known: frozenset[str] | None
) -> bool:
    """Enter a request; False if it has a bad item, which ends it."""
    try:
        for name, variety, count in _items(text, known):
            demand = _demand(demands, name, variety)
            setattr(demand, kind, count if kind != "cpus" else count % 2**16)
            demand.tasks_per = counts.tasks_per_tres
            if kind.startswith("per_"):
                demand.total = max(demand.total, count * _copies(kind, counts))
    except _BadItemError:
        return False
    return True


def _demand(demands: list[Demand], name: str, variety: str | None) -> Demand:
    for demand in demands:
        if (demand.name, demand.type) == (name, variety):
            return demand
    demands.append(Demand(name=name, type=variety))
    return demands[-1]


def _copies(kind: str, counts: Counts) -> int:
    """How many times the job has what the request is for."""
    nodes = 1 if counts.low == NO_VAL else counts.low
    if kind == "per_node":
        return nodes
    if kind == "per_task":
        return 1 if counts.tasks == NO_VAL else counts.tasks
    if kind == "per_socket":
        if NO_VAL not in (counts.low, counts.sockets):
            return nodes * counts.sockets
        if NO_VAL not in (counts.tasks, counts.tasks_per_socket):
            return -(-counts.tasks // counts.tasks_per_socket)
    return 1


def _items(text: str, known: frozenset[str] | None) -> Iterator[tuple[str, str | None, int]]:
    """Name, type and count of each item that asks for something.

    Raises:
        _BadItemError: An item is wrong; the ones before it were given.
    """
    while text:
        _, prefix, text = text.partition("gres:")
        if not prefix:
            return
        item, _, text = text.partition(",")
        if not item:
            continue
        name, *rest = item.split(":", 2)
        variety, count = None, 1 if not rest else _count(rest[-1])
        if "" in rest or (len(rest) == 2 and count is None):
            raise _BadItemError
        if len(rest) == 2 or (rest and count is None):
            variety = rest[0]
        count = 1 if count is None else count
        if count == 0:
            continue
        if known is not None and name not in known:
            raise _BadItemError
        yield name, variety, count


def _count(text: str) -> int | None:
    """A count with its unit, as C's strtoull reads it; None for what is none."""
    match = re.match(r"[ \t\n\v\f\r]*([+-]?)([0-9]+)", text)
    digits = match[2].lstrip("0")[:30] if match else ""
    number, suffix = (int(f"{match[1]}{digits or 0}"), text[match.end() :]) if match else (0, text)
    if abs(number) >= 2**64 - 1 or number == -1:
        return None
    unit = re.fullmatch("([kmgtp])(i?b)?", fold(suffix))
    if suffix and not unit:
        return None
    base = 1000 if unit and unit[2] == "b" else 1024
    factor: int = base ** (_SIZES[unit[1]] if unit else 0)
    return number * factor % 2**64


def _tasks_per_gpu(job: Fields, demands: list[Demand], counts: Counts) -> bool:
    """Tasks of GPUs, or GPUs of tasks, for --ntasks-per-gpu."""
    here = "gres_job_state_validate"
    if not counts.tasks_per_tres or counts.tasks_per_tres == NO_VAL:
        return True
    if counts.gpus:
        gpus = sum(demand.total for demand in demands if demand.name == "gpu")
        if not gpus:
            job.say(
                f"{here}: Can't set num_tasks = gpus * *ntasks_per_tres because there are no allocated GPUs"
            )
            return False
        counts.tasks = gpus * counts.tasks_per_tres % 2**32
    elif counts.tasks and counts.tasks != NO_VAL:
        gpus = counts.tasks // counts.tasks_per_tres
        if gpus:
            demand = _demand(demands, "gpu", None)
            demand.tasks_per, demand.per_job = counts.tasks_per_tres, gpus
            demand.total = max(demand.total, gpus)
        if demands:
            counts.gpus = True
        else:
            text = f"Failed to add generated GRES gres:gpu:{gpus} (via ntasks_per_tres) to gres_list"
            job.say(f"{here}: {text}")
    else:
        text = "--ntasks-per-tres needs either a GRES GPU specification or a node/ntask specification"
        job.say(f"{here}: {text}")
        return False
    return True


def _disagreement(job: Fields, demands: list[Demand], counts: Counts, requests: list[tuple[str, str]]) -> str:
    """What sbatch says in the end of demands that don't go together; "" if they do."""
    memory = next((text for kind, text in requests if kind == "memory"), None)
    if not demands:
        return ""
    if memory and not counts.gpus:
        job.say(f"Requested mem_per_tres={memory} but did not request any GPU.")
        return INVALID
    sound: list[Demand] = []
    for demand in demands:
        if not _is_sound(job, demand, counts, sound):
            break
        sound.append(demand)
    shares = any(demand.name in _SHARED for demand in demands)
    wrong = len(sound) < len(demands) or (shares and job["gpu-freq"] is not None)
    mixed = [demand for demand in sound if demand.type is None and _has_types(demand.name, sound)]
    if mixed:  # this verdict takes the place of the other
        return MIXED if _asks_itself(mixed[0]) else ""
    return INVALID if wrong else ""


def _is_sound(job: Fields, demand: Demand, counts: Counts, before: list[Demand]) -> bool:
    for check in _CHECKS:
        if complaint := check(demand, counts):
            per_node = f"--gres={demand.name}/--{demand.name}s-per-node"
            failed = "Failed to validate job spec"
            job.say(complaint.format(name=demand.name, per_node=per_node, failed=failed))
            return False
    if demand.name in _SHARED and not _fits_one_node(demand, counts):
        return False
    names = {demand.name, *(other.name for other in before)}
    return not ("gpu" in names and names & set(_SHARED))


def _has_types(name: str, demands: list[Demand]) -> bool:
    return any(demand.name == name and demand.type is not None for demand in demands)


def _asks_itself(demand: Demand) -> bool:
    """Whether it is more than CPUs or memory for each."""
    return any((demand.per_job, demand.per_node, demand.per_socket, demand.per_task))


def _fits_one_node(demand: Demand, counts: Counts) -> bool:
    """A part of a GPU can be asked for by the node only."""
    return not (
        (demand.per_job and counts.high != 1)
        or (demand.per_socket and counts.sockets != 1)
        or (demand.per_task and counts.tasks != 1)
    )


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


def _sockets_of_nodes(demand: Demand, counts: Counts) -> str:
    if not demand.per_node or not demand.per_socket:
        return ""
    if demand.per_node % demand.per_socket:
        return "{failed}, {per_node} not multiple of --{name}s-per-socket."
    if counts.sockets != demand.per_node // demand.per_socket:
        return (
            "{failed}. Based on {per_node} and --{name}s-per-socket "
            "required number of sockets differ from --sockets-per-node."
        )
    return ""


def _whole_tasks(demand: Demand, counts: Counts) -> str:
    if (
        demand.tasks_per in (0, NO_VAL, NO_VAL16)
        or counts.tasks == NO_VAL
        or not counts.tasks % demand.tasks_per
    ):
        return ""
    return "{failed}, -n/--ntasks has to be a multiple of --ntasks-per-{name}."


def _tasks(demand: Demand, counts: Counts) -> str:
    if not demand.per_task:
        return ""
    if not demand.per_job:
        if counts.tasks == NO_VAL:
            return "{failed}. --{name}s-per-task used without either --{name}s or -n/--ntasks is not allowed."
        demand.per_job = counts.tasks * demand.per_task
        return ""
    if demand.per_job % demand.per_task:
        return "{failed}, --{name}s not multiple of --{name}s-per-task"
    tasks = demand.per_job // demand.per_task
    if counts.tasks not in (NO_VAL, tasks):
        return (
            "{failed}. Based on --{name}s and --{name}s-per-task number of requested tasks "
            "differ from -n/--ntasks."
        )
    counts.tasks = tasks
    return ""


def _tasks_of_nodes(demand: Demand, counts: Counts) -> str:
    if not demand.per_node or not demand.per_task:
        return ""
    if demand.per_node % demand.per_task:
        return "{failed}, {per_node} not multiple of --{name}s-per-task."
    tasks = demand.per_node // demand.per_task
    if counts.tasks_per_node not in (NO_VAL, 0, tasks):
        return (
            "{failed}. Based on {per_node} and --{name}s-per-task "
            "requested number of tasks per node differ from --ntasks-per-node."
        )
    counts.tasks_per_node = tasks
    return ""


def _tasks_of_sockets(demand: Demand, counts: Counts) -> str:
    if not demand.per_socket or not demand.per_task:
        return ""
    if demand.per_socket % demand.per_task:
        return "{failed}, --{name}s-per-socket not multiple of --{name}s-per-task."
    tasks = demand.per_socket // demand.per_task
    if counts.tasks_per_socket not in (NO_VAL, 0, tasks):
        return (
            "{failed}. Based on --{name}s-per-socket and --{name}s-per-task requested number "
            "of tasks per sockets differ from --ntasks-per-socket."
        )
    counts.tasks_per_socket = tasks
    return ""


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


_CHECKS: tuple[Callable[[Demand, Counts], str], ...] = (
    _order,
    _sockets,
    _cpus,
    _nodes,
    _sockets_of_nodes,
    _whole_tasks,
    _tasks,
    _tasks_of_nodes,
    _tasks_of_sockets,
    _cpus_of_tasks,
    _at_least_one,
)
