"""Checks options together: pairs that sbatch refuses, and counts of GPUs that contradict each other.

The checks of GPUs and other generic resources find common mistakes: resources with and without a type, shards
together with GPUs, and counts for the job, its nodes and its tasks that contradict each other.
Source: Slurm's gres_job_state_validate, 22.05 to 26.05.
"""

from collections.abc import Iterator, Mapping

from sbatchgen.check.sbatch import gres
from sbatchgen.check.sbatch.hostlist import hosts
from sbatchgen.check.sbatch.rivals import rivals
from sbatchgen.check.sbatch.values import RefusedError, count, node_range

INVALID_GRES = "Invalid generic resource (gres) specification"
MIXED_TYPES = "Invalid GRES specification (with and without type identification)"
_FAILED = "Failed to validate job spec"
_UNLIMITED = 2**32  # more nodes than any job has
# With one of these options, counts are not checked: Slurm derives other counts, or another cluster decides.
_UNCHECKED = (
    *("clusters", "gpus-per-socket", "ntasks-per-gpu", "ntasks-per-tres", "tres-per-task"),
    *("extra-node-info", "sockets-per-node", "cores-per-socket", "threads-per-core"),
)
# Each option for GPUs, and the unit to which its number belongs.
_UNITS = {"gpus": "job", "gpus-per-node": "node", "gpus-per-task": "task"}
# (name, type) of a resource -> unit ("job", "node" or "task") -> the number that is asked for.
Requests = dict[tuple[str, str], dict[str, int]]


def check_options(options: Mapping[str, str], *, slurm: str) -> None:
    """Raise RefusedError for options that sbatch refuses together."""
    for pair in rivals(options):
        if slurm >= pair.since:
            raise RefusedError(pair.message)
    if slurm >= "26.05" and "gpus-per-node" in options and "gpu" in options.get("gres", ""):
        raise RefusedError("--gpus-per-node and --gres=gpu are mutually exclusive.")
    if not any(name in options for name in _UNCHECKED):
        _check_resources(options, slurm)


def _check_resources(options: Mapping[str, str], slurm: str) -> None:
    """Raise RefusedError with the first complaint of sbatch about GPUs and other generic resources."""
    requests = _requests(options, slurm)
    names = {name for name, _ in requests}
    for option, since in (("mem-per-gpu", ""), ("cpus-per-gpu", "23.02")):
        if not _is_zero(options.get(option, "0")) and slurm >= since and "gpu" not in names:
            raise RefusedError("did not request any GPU.")
    with_type = {name for name, type_name in requests if type_name}
    without_type = {name for name, type_name in requests if not type_name}
    if with_type & without_type:
        raise RefusedError(MIXED_TYPES)
    if "cpus-per-gpu" in options:
        return  # with this option, sbatch takes typed GPUs together with shards, and compares no counts
    if "gpu" in names and names & {"mps", "shard"}:
        raise RefusedError(INVALID_GRES)
    for (name, _), counts in requests.items():
        complaint = next(_complaints(name, counts, options, slurm), None)
        if complaint is not None:
            raise RefusedError(complaint)


def _is_zero(number: str) -> bool:
    """Return whether a text is empty or holds only zeros."""
    return not number.strip("0")


def _requests(options: Mapping[str, str], slurm: str) -> Requests:
    """Return the numbers of GPUs and other generic resources for which the options ask."""
    requests: Requests = {}
    for option, unit in _UNITS.items():
        value = options.get(option)
        amounts = gres.gpu_amounts(value, slurm=slurm) or ()
        # Before 23.02, --gpus-per-task=a100 means one GPU. Later releases read it as 0.
        if option == "gpus-per-task" and slurm < "23.02":
            amounts = amounts or (("", 1),) * bool(value)
        elif option == "gpus-per-task" and not gres.has_count(value or ""):
            continue
        for type_name, amount in amounts:
            requests.setdefault(("gpu", type_name), {})[unit] = amount
    for name, type_name, amount in gres.gres_amounts(options.get("gres", ""), slurm=slurm):
        requests.setdefault((name, type_name), {})["node"] = amount
    return requests


def _node_counts(options: Mapping[str, str], slurm: str) -> tuple[int, int]:
    """Return the smallest and the largest number of nodes that the options allow."""
    low, high = node_range(options["nodes"], slurm=slurm) if "nodes" in options else (0, None)
    if "nodelist" in options:
        low, high = max(low, len({*hosts(options["nodelist"])})), None
    if "ntasks" in options:  # Slurm takes no more nodes than tasks
        low = min(low, count("ntasks", options["ntasks"], slurm=slurm))
    return low, high or _UNLIMITED


def _tasks(options: Mapping[str, str], slurm: str) -> int | None:
    """Return the number of tasks of the job; None if the options do not fix the number."""
    if "ntasks" in options:
        return count("ntasks", options["ntasks"], slurm=slurm)
    low, high = _node_counts(options, slurm)
    if low != high or ("cpus-per-task" in options and "ntasks-per-node" not in options):
        return None
    return low * count("ntasks-per-node", options.get("ntasks-per-node", "1"), slurm=slurm)


def _complaints(
    name: str, counts: Mapping[str, int], options: Mapping[str, str], slurm: str
) -> Iterator[str]:
    """Yield sbatch's complaints about the counts of a resource, in the order in which sbatch checks them."""
    per_job, per_node, per_task = (counts.get(unit, 0) for unit in ("job", "node", "task"))
    low, high = _node_counts(options, slurm)
    job_option, node_options = f"--{name}s", f"--gres={name}/--{name}s-per-node"
    if per_job and max(per_node, per_task) > per_job:
        yield f"Failed to ensure {job_option} >= {node_options} >= {job_option}-per-socket"
    if per_node and per_job % per_node:
        yield f"{_FAILED}, {job_option} is not multiple of {node_options}"
    if per_node and per_job and not low <= per_job // per_node <= high:
        required = f"Based on --{name} and {node_options} required nodes ({per_job // per_node})"
        bounds = f"min_nodes ({low}) and max_nodes ({high}) boundaries."
        yield f"{_FAILED}. {required} doesn't fall between {bounds}"
    if 0 < per_job < low:
        yield f"{_FAILED}, {job_option} < -N"
    if per_task:
        yield from _task_complaints(per_job, per_node, per_task, options, slurm)


def _task_complaints(
    per_job: int, per_node: int, per_task: int, options: Mapping[str, str], slurm: str
) -> Iterator[str]:
    """Yield sbatch's complaints about GPUs per task, in the order in which sbatch checks them."""
    tasks = _tasks(options, slurm)
    node_options, task_option = "--gres=gpu/--gpus-per-node", "--gpus-per-task"
    if per_node and per_task > per_node:
        yield f"Failed to ensure --gpus >= {task_option}"
    if per_job % per_task:
        yield f"{_FAILED}, --gpus not multiple of {task_option}"
    if per_job and tasks not in (None, per_job // per_task):
        difference = "number of requested tasks differ from -n/--ntasks."
        yield f"{_FAILED}. Based on --gpus and {task_option} {difference}"
    implies_tasks = slurm < "23.02" and "ntasks-per-node" in options
    if not (per_job or implies_tasks) and tasks is None:
        or_tres = "" if slurm < "23.02" else " or --tres-per-task"
        yield f"{_FAILED}. {task_option}{or_tres} used without either --gpus or -n/--ntasks is not allowed."
    if per_node % per_task:
        yield f"{_FAILED}, {node_options} not multiple of {task_option}."
    tasks_per_node = options.get("ntasks-per-node")
    if (
        per_node
        and tasks_per_node
        and count("ntasks-per-node", tasks_per_node, slurm=slurm) != per_node // per_task
    ):
        difference = "requested number of tasks per node differ from --ntasks-per-node."
        yield f"{_FAILED}. Based on {node_options} and {task_option} {difference}"
