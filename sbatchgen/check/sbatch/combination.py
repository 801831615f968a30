"""Combinations of options that sbatch refuses, and counts of GPUs that do not match.

The checks of GPUs and other generic resources cover common mistakes: a resource with and without a type,
shards together with GPUs, and counts for the job, its nodes and its tasks that do not match.
Source: Slurm's gres_job_state_validate, 22.05 to 26.05.
"""

from collections.abc import Iterator, Mapping

from sbatchgen.check.sbatch import gres
from sbatchgen.check.sbatch.hostlist import hosts
from sbatchgen.check.sbatch.rivals import rivals
from sbatchgen.check.sbatch.values import RefusedError, count, node_range

INVALID = "Invalid generic resource (gres) specification"
MIXED = "Invalid GRES specification (with and without type identification)"
_FAILED = "Failed to validate job spec"
_UNLIMITED = 2**32  # more nodes than any job has
# With these options, counts are not checked: Slurm derives other counts, or another cluster decides.
_UNCHECKED = (
    *("clusters", "gpus-per-socket", "ntasks-per-gpu", "ntasks-per-tres", "tres-per-task"),
    *("extra-node-info", "sockets-per-node", "cores-per-socket", "threads-per-core"),
)
# What the number in each GPU option is counted for.
_UNITS = {"gpus": "job", "gpus-per-node": "node", "gpus-per-task": "task"}
Requests = dict[tuple[str, str], dict[str, int]]  # counts by name and type, then by job, node and task


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
    if {name for name, kind in requests if kind} & {name for name, kind in requests if not kind}:
        raise RefusedError(MIXED)
    if "cpus-per-gpu" in options:
        return  # sbatch then takes typed GPUs beside shards, and does not compare counts
    if "gpu" in names and names & {"mps", "shard"}:
        raise RefusedError(INVALID)
    for (name, _), counts in requests.items():
        fault = next(_faults(name, counts, options, slurm), None)
        if fault is not None:
            raise RefusedError(fault)


def _is_zero(number: str) -> bool:
    """Return whether a text is empty or holds only zeros."""
    return not number.strip("0")


def _requests(options: Mapping[str, str], slurm: str) -> Requests:
    """Return the counts of GPUs and other generic resources in the options."""
    requests: Requests = {}
    for option, unit in _UNITS.items():
        value = options.get(option)
        amounts = gres.gpu_amounts(value, slurm=slurm) or ()
        # Before 23.02, `--gpus-per-task=a100` means one GPU; later releases read it as 0.
        if option == "gpus-per-task" and slurm < "23.02":
            amounts = amounts or (("", 1),) * bool(value)
        elif option == "gpus-per-task" and not gres.has_count(value or ""):
            continue
        for kind, amount in amounts:
            requests.setdefault(("gpu", kind), {})[unit] = amount
    for name, kind, amount in gres.gres_amounts(options.get("gres", ""), slurm=slurm):
        requests.setdefault((name, kind), {})["node"] = amount
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
    """Return the number of tasks to which --gpus-per-task applies; None if the options leave it open."""
    if "ntasks" in options:
        return count("ntasks", options["ntasks"], slurm=slurm)
    low, high = _node_counts(options, slurm)
    if low != high or ("cpus-per-task" in options and "ntasks-per-node" not in options):
        return None
    return low * count("ntasks-per-node", options.get("ntasks-per-node", "1"), slurm=slurm)


def _faults(name: str, counts: Mapping[str, int], options: Mapping[str, str], slurm: str) -> Iterator[str]:
    """Yield sbatch's complaints about the counts of a resource, in the order in which sbatch checks them."""
    for_job, for_node, for_task = (counts.get(unit, 0) for unit in ("job", "node", "task"))
    low, high = _node_counts(options, slurm)
    flag, each_node = f"--{name}s", f"--gres={name}/--{name}s-per-node"
    if for_job and max(for_node, for_task) > for_job:
        yield f"Failed to ensure {flag} >= {each_node} >= {flag}-per-socket"
    if for_node and for_job % for_node:
        yield f"{_FAILED}, {flag} is not multiple of {each_node}"
    if for_node and for_job and not low <= for_job // for_node <= high:
        required = f"Based on --{name} and {each_node} required nodes ({for_job // for_node})"
        bounds = f"min_nodes ({low}) and max_nodes ({high}) boundaries."
        yield f"{_FAILED}. {required} doesn't fall between {bounds}"
    if 0 < for_job < low:
        yield f"{_FAILED}, {flag} < -N"
    if for_task:
        yield from _task_faults(for_job, for_node, for_task, options, slurm)


def _task_faults(
    for_job: int, for_node: int, for_task: int, options: Mapping[str, str], slurm: str
) -> Iterator[str]:
    """Yield sbatch's complaints about GPUs per task, in the order in which sbatch checks them."""
    tasks = _tasks(options, slurm)
    each_node, each_task = "--gres=gpu/--gpus-per-node", "--gpus-per-task"
    if for_node and for_task > for_node:
        yield f"Failed to ensure --gpus >= {each_task}"
    if for_job % for_task:
        yield f"{_FAILED}, --gpus not multiple of {each_task}"
    if for_job and tasks not in (None, for_job // for_task):
        differ = "number of requested tasks differ from -n/--ntasks."
        yield f"{_FAILED}. Based on --gpus and {each_task} {differ}"
    implies_tasks = slurm < "23.02" and "ntasks-per-node" in options
    if not (for_job or implies_tasks) and tasks is None:
        or_tres = "" if slurm < "23.02" else " or --tres-per-task"
        yield f"{_FAILED}. {each_task}{or_tres} used without either --gpus or -n/--ntasks is not allowed."
    if for_node % for_task:
        yield f"{_FAILED}, {each_node} not multiple of {each_task}."
    per_node = options.get("ntasks-per-node")
    if for_node and per_node and count("ntasks-per-node", per_node, slurm=slurm) != for_node // for_task:
        differ = "requested number of tasks per node differ from --ntasks-per-node."
        yield f"{_FAILED}. Based on {each_node} and {each_task} {differ}"
