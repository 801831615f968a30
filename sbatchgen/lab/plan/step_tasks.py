"""The tasks of a step: their nodes, the variables that Slurm sets in each task, and the refusals of srun.

The sandbox loads this module for each step, so it only imports the reader of host lists.
"""

from __future__ import annotations

import os
from itertools import groupby

TYPE_CHECKING = False  # loading typing takes longer than all the rest
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any
NEW_STEPS = "24.05"  # from this release on, steps are like steps of 26.05; before, like steps of 22.05
MAX_STEP_TASKS = 1 << 17  # no job has more tasks
GPU_VARIABLES = ("CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK")
# Options with which a step takes a part of each node, shares all CPUs with other steps, or names its nodes.
EXACT = frozenset(("exact", "exclusive"))
OVERLAPPING = frozenset(("overlap", "het-group", "pack-group"))
NAMING = frozenset(("nodelist", "nodefile", "het-group", "pack-group"))
# Options that a task sees as variables; 1 stands for an option without a value.
_VARIABLE_OPTIONS = ("overcommit", "threads-per-core", "job-name", "network")
_OPTION_VARIABLES = {"label": "SLURM_LABELIO"}
_OPTION_VARIABLES |= {name: f"SLURM_{name.upper().replace('-', '_')}" for name in _VARIABLE_OPTIONS}
Options = dict[str, str]


def needs(tasks: list[dict[str, Any]], options: Options, job: dict[str, Any], environment: Options) -> str:
    """Return what a step takes of its nodes, as words that `StartRecord` of started.py reads.

    The words are: how the step shares its nodes; `takes` if the next step begins at the node after this
    step's nodes, else `passes`; the nodes that the step excludes, or -; and NAME:CPUS:GPUS for each node.
    """
    node_tasks, names = tasks[0]["node_tasks"], tasks[0]["names"]
    per_task = max(_cpus_per_task(options, job, environment), 1)
    takes = (
        f"{name}:{count * per_task}:{_gpus_of_step(options, job, name, len(names), count)}"
        for name, count in zip(names, node_tasks, strict=True)
    )
    is_named = NAMING.intersection(options)
    others = {*job["nodes"]} - {*(names if is_named else _nodes(options, job))}
    turn = "passes" if is_named or "exclude" in options else "takes"
    return " ".join((_sharing(options, job, environment), turn, ",".join(sorted(others)) or "-", *takes))


def _sharing(options: Options, job: dict[str, Any], environment: Options) -> str:
    """Return how a step shares its nodes: "overlap", "exact" or "whole".

    To other steps it leaves all CPUs of its nodes, the CPUs that it does not use, or no CPU.
    """
    if OVERLAPPING.intersection(options):
        return "overlap"
    takes_cpus = job["release"] >= "22.05" and _cpus_per_task(options, job, environment)
    return "exact" if takes_cpus or EXACT.intersection(options) else "whole"


def spread(
    options: Options, job: dict[str, Any], environment: Options, placed: list[str] | None = None
) -> tuple[list[dict[str, Any]], str]:
    """Return the tasks of a step, each with its rank and its node; or the reason why Slurm refuses the step.

    `options` and `environment` belong to srun. `placed` has the nodes of the step, if they depend on other
    steps.
    """
    refusal = _number_refusal(options, job, environment) or _gpu_refusal(options, job, environment)
    refusal = refusal or _memory_refusal(options, environment)
    if refusal:
        return [], refusal
    names = placed or _nodes(options, job)
    count, refusal = _node_count(names, options, job, environment)
    if refusal:
        return [], refusal
    given = _given_tasks(options, job, environment, count)
    wanted = given or number_of(environment.get("SLURM_NTASKS")) or count
    if wanted > MAX_STEP_TASKS:
        return [], "Unable to create step for job: More processors requested than permitted"
    names = names[: max(min(wanted, count), 1)]
    node_tasks, refusal = _tasks_on_nodes(names, wanted, options, job, environment, is_given=bool(given))
    if refusal:
        return [], refusal
    places = [(node, local) for node, count in enumerate(node_tasks) for local in range(count)]
    order = options.get("distribution") or environment.get("SLURM_DISTRIBUTION", "block")
    if order.startswith(("cyclic", "*:", "plane=1")):
        places.sort(key=lambda place: (place[1], place[0]))
    step_facts = {"node_tasks": node_tasks, "names": names}
    tasks = [
        {"rank": rank, "node": node, "host": names[node], "local": local, **step_facts}
        for rank, (node, local) in enumerate(places)
    ]
    return tasks, ""


def _node_count(
    names: list[str], options: Options, job: dict[str, Any], environment: Options
) -> tuple[int, str]:
    """Return how many of the nodes `names` a step gets; or the reason why Slurm refuses the step."""
    low, most = _node_range(options.get("nodes", ""))
    asked = number_of(options.get("ntasks")) or number_of(environment.get("SLURM_NTASKS"))
    least = min(low, asked or low)  # srun takes no more nodes than tasks
    count = max(least, min(most, len(names))) or min(len(names), len(job["nodes"]))
    if count > len(names) or not names:
        few = f"Only allocated {len(names)} nodes asked for {least}"
        return 0, few if names else "Requested node configuration is not available"
    return count, ""


def _tasks_on_nodes(
    names: list[str],
    wanted: int,
    options: Options,
    job: dict[str, Any],
    environment: Options,
    *,
    is_given: bool,
) -> tuple[list[int], str]:
    """Return the number of tasks on each node; or the reason why Slurm refuses the step."""
    share, rest = divmod(wanted, len(names))
    node_tasks = [share + (node < rest) for node in range(len(names))]
    if wanted == sum(job["tasks"]) and len(names) == len(job["nodes"]) and not is_given:
        node_tasks = list(job["tasks"])
    if job["exact"] and "overcommit" not in options:
        per_task = max(_cpus_per_task(options, job, environment), 1)
        cpus = dict(zip(job["nodes"], job["cpus"], strict=True))
        node_tasks = _fitted_tasks(node_tasks, [cpus[name] // per_task for name in names])
        if sum(node_tasks) < wanted:
            return [], "Unable to create step for job: More processors requested than permitted"
    per_task = int(job["gpus_per_task"])
    held = dict(zip(job["nodes"], job["gpus"], strict=True))
    if per_task and any(tasks * per_task > held[name] for name, tasks in zip(names, node_tasks, strict=True)):
        return [], "Unable to create step for job: Insufficient GRES available in allocation"
    return node_tasks, ""


def _fitted_tasks(node_tasks: list[int], rooms: list[int]) -> list[int]:
    """Return the number of tasks on each node, at most the node's number in `rooms`.

    The next nodes take the tasks for which a node has no room.
    """
    fitting = [min(tasks, room) for tasks, room in zip(node_tasks, rooms, strict=True)]
    rest = sum(node_tasks) - sum(fitting)
    for node, room in enumerate(rooms):
        more = min(rest, room - fitting[node])
        fitting[node] += more
        rest -= more
    return fitting


def _node_range(text: str) -> tuple[int, int]:
    """Return the least and the largest number of nodes in the value of --nodes; 0 for no number."""
    if text[-1:] in ("k", "K", "m", "M"):
        number = number_of(text.rstrip("kKmM")) * (1024 if text[-1] in "kK" else 1024**2)
        return number, number
    sizes = [number_of(size) for size in text.replace(",", "-").partition(":")[0].split("-")]
    return (sizes[0], max(sizes)) if "-" in text or "," in text else (sizes[0], sizes[0])


def _given_tasks(options: Options, job: dict[str, Any], environment: Options, nodes: int) -> int:
    """Return the number of tasks that a step asks for; 0 if the step gets the job's number of tasks."""
    given = number_of(options.get("ntasks", "").strip().removeprefix("+"))
    if per_gpu := _tasks_per_gpu(options, environment):  # --ntasks-per-gpu comes before all other numbers
        known = given or number_of(environment.get("SLURM_NTASKS"))
        return max(known, per_gpu * _gpus_in_all(options, job, environment, nodes))
    per_node = number_of(_tasks_per_node(options)) or number_of(environment.get("SLURM_NTASKS_PER_NODE"))
    # The number of tasks per node comes before the job's number of tasks.
    obeys = "nodes" in options and per_node and job["release"] >= NEW_STEPS
    if given or (environment.get("SLURM_NTASKS") and not obeys):
        return given
    return nodes * (per_node or 1)


def _tasks_per_node(options: Options) -> str | None:
    return options.get("ntasks-per-node", options.get("tasks-per-node"))


def _gpus_in_all(options: Options, job: dict[str, Any], environment: Options, nodes: int) -> int:
    """Return the number of GPUs for which --ntasks-per-gpu starts tasks.

    In Slurm 22.05, a number of GPUs per node comes before --gpus.
    """
    total = number_of(options.get("gpus", "").rpartition(":")[2])
    node_gpus = number_of(options.get("gpus-per-node", "").rpartition(":")[2])
    if job["release"] < NEW_STEPS:
        node_gpus = node_gpus or number_of(environment.get("SLURM_GPUS_PER_NODE", "").rpartition(":")[2])
    resource, _, number = options.get("gres", "").rpartition(":")
    if resource.startswith("gpu"):
        node_gpus = node_gpus or number_of(number)
    if total and (job["release"] >= NEW_STEPS or not node_gpus):
        return total
    return node_gpus * nodes or sum(map(int, job["asked_gpus"]))


def _gpu_refusal(options: Options, job: dict[str, Any], environment: Options) -> str:
    """Return why srun refuses the GPUs that a step asks for; "" if the step gets them."""
    is_gres = options.get("gres", "").startswith("gpu")
    is_per_node = "SLURM_GPUS_PER_NODE" in environment or "gpus-per-node" in options
    if is_gres and is_per_node and job["release"] >= "26.05":
        return "--gpus-per-node and --gres=gpu are mutually exclusive."
    names = ("gpus", "gpus-per-node", "gpus-per-task", "ntasks-per-gpu", *("gres",) * is_gres)
    asks = any(options.get(name, "0").rpartition(":")[2].strip("0") for name in names)
    # A job with whole nodes may have GPUs that it did not ask for.
    has_no_gpus = not (any(job["gpus"]) or job["alone"])
    differs = is_gres and _tasks_per_gpu(options, environment) and "SLURM_GPUS" in environment
    if differs or (has_no_gpus and asks):
        return "Unable to create step for job: Invalid generic resource (gres) specification"
    return ""


def _memory_refusal(options: Options, environment: Options) -> str:
    """Return why srun refuses the variables for memory in its environment; "" if srun accepts them."""
    kinds = ("CPU", "GPU", "NODE")
    given = [kind for kind in kinds if environment.get(f"SLURM_MEM_PER_{kind}")]
    if len(given) < 2 or {"mem", "mem-per-cpu", "mem-per-gpu"} & options.keys():
        return ""
    return "SLURM_MEM_PER_CPU, SLURM_MEM_PER_GPU, and SLURM_MEM_PER_NODE are mutually exclusive."


def _number_refusal(options: Options, job: dict[str, Any], environment: Options) -> str:
    """Return why srun refuses the numbers in its options; "" if srun accepts them."""
    for name in ("ntasks", "ntasks-per-node", "tasks-per-node", "cpus-per-task", "ntasks-per-gpu"):
        value = options.get(name, "1")
        if not (number_of(value.strip().removeprefix("+")) or _is_placeholder(value, environment)):
            return f'Invalid numeric value "{value}" for --{name}.'
    nodes = options.get("nodes", "1")
    least, dash, most = ("1" if _is_placeholder(nodes, environment) else nodes).partition("-")
    is_list = ("," in least + most or ":" in least + most) and job["release"] >= "23.02"
    is_large = least[:-1].isdecimal() and least[-1] in "kKmM"
    if not (least.isdecimal() and (most.isdecimal() or not dash)) and not (least and (is_list or is_large)):
        return f'"{options["nodes"]}" is not a valid node count'
    if number_of(most) and number_of(most) < number_of(least):
        return f"Maximum node count {most} is less than minimum node count {least}"
    return _per_gpu_refusal(options, job, environment)


def _per_gpu_refusal(options: Options, job: dict[str, Any], environment: Options) -> str:
    """Return why srun refuses --ntasks-per-gpu with its other options; "" if srun accepts them."""
    if not _tasks_per_gpu(options, environment):
        return ""
    words = "is mutually exclusive with --ntasks-per-gpu and SLURM_NTASKS_PER_GPU"
    if _tasks_per_node(options) or number_of(environment.get("SLURM_NTASKS_PER_NODE")):
        return f"--ntasks-per-node {words}"
    if "gpus-per-task" in options:
        return f"--gpus-per-task {words}"
    if job["gpus_per_task"]:
        name = "SLURM_TRES_PER_TASK" if job["release"] >= NEW_STEPS else "SLURM_GPUS_PER_TASK"
        return f"{name} {words}"
    return ""


def _is_placeholder(value: str, environment: Options) -> bool:
    """Return whether a value stands for a value that only the user knows.

    For example, ARG1 stands for an argument, and NAME for the value of the variable NAME.
    """
    return value.startswith("ARG") or "UNKNOWN" in value or environment.get(value) == value


def _tasks_per_gpu(options: Options, environment: Options) -> int:
    """Return the number of tasks for each GPU of the job; 0 if neither an option nor a variable has it."""
    return number_of(options.get("ntasks-per-gpu") or environment.get("SLURM_NTASKS_PER_GPU"))


def _cpus_per_task(options: Options, job: dict[str, Any], environment: Options) -> int:
    """Return the number of CPUs for each task of a step; 0 if neither an option nor a variable has it."""
    asked = number_of(options.get("cpus-per-task"))
    if asked or "22.05" <= job["release"] < "23.11":
        return asked
    return number_of(environment.get("SLURM_CPUS_PER_TASK"))


def _nodes(options: Options, job: dict[str, Any]) -> list[str]:
    names = list(job["nodes"])
    if "nodelist" in options:
        listed = options["nodelist"].strip()
        wanted = {*_hosts(listed.replace("\n", ",") if job["release"] >= NEW_STEPS else listed)}
        limit = number_of(options.get("nodes")) or len(names)
        if not listed or len(wanted) > limit or any("\n" in name for name in wanted):
            return []
        names = [name for name in names if name in wanted] or names
    if "exclude" in options:
        without = _hosts(options["exclude"])
        names = [name for name in names if name not in without]
    return names[number_of(options.get("relative")) :] or names


def _hosts(text: str) -> list[str]:
    """Return the names in a list such as node[1-2,4],other."""
    from sbatchgen.check.sbatch.hostlist import hosts  # most steps have no list of nodes

    return hosts(text)


def variables(
    task: dict[str, Any],
    tasks: list[dict[str, Any]],
    options: Options,
    job: dict[str, Any],
    environment: Options,
) -> Options:
    """Return the variables that Slurm sets in a task, apart from the variables of the batch script."""
    node_tasks, names = task["node_tasks"], task["names"]
    mask = os.umask(0)
    os.umask(mask)
    node_ranks = [str(other["rank"]) for other in tasks if other["node"] == task["node"]]
    values = {
        **dict.fromkeys(("SLURMD_NODENAME", "SLURM_TOPOLOGY_ADDR"), task["host"]),
        "SLURM_PROCID": str(task["rank"]),
        "SLURM_LOCALID": str(task["local"]),
        "SLURM_NODEID": str(task["node"]),
        "SLURM_GTIDS": ",".join(node_ranks),
        **dict.fromkeys(("SLURM_NTASKS", "SLURM_NPROCS", "SLURM_STEP_NUM_TASKS"), str(len(tasks))),
        **dict.fromkeys(("SLURM_NNODES", "SLURM_STEP_NUM_NODES"), str(len(names))),
        "SLURM_STEP_NODELIST": node_list(names, job["nodes"]),
        **dict.fromkeys(("SLURM_TASKS_PER_NODE", "SLURM_STEP_TASKS_PER_NODE"), counts(node_tasks)),
        "SLURM_LAUNCH_NODE_IPADDR": "10.0.0.1",
        "SLURM_UMASK": f"{mask:04o}",
    }
    if not task["local"]:  # the first task of a node has TMPDIR even if --export drops it
        values["TMPDIR"] = environment.get("TMPDIR", "/tmp")  # noqa: S108 - on the node
    values |= _option_variables(len(tasks), len(names), options, job, environment)
    values |= _number_variables(len(node_ranks), options, job, environment)
    return values | _gpu_variables(task, len(node_ranks), options, job, environment)


def _number_variables(
    tasks_on_node: int, options: Options, job: dict[str, Any], environment: Options
) -> Options:
    """Return the variables that follow from a step's numbers of CPUs, GPUs and tasks."""
    values, later = {}, job["release"] >= NEW_STEPS
    for name in ("gpus", "gpus-per-node"):
        if later and options.get(name):
            values[f"SLURM_{name.upper().replace('-', '_')}"] = options[name]
    if asked := number_of(options.get("cpus-per-task")):
        values["SLURM_CPUS_PER_TASK"] = str(asked)
    per_task = _cpus_per_task(options, job, environment)
    if per_task or _sharing(options, job, environment) == "exact":
        values["SLURM_CPUS_ON_NODE"] = str(max(per_task, 1) * tasks_on_node)
    if options.get("ntasks-per-node") and (
        "SLURM_NTASKS_PER_NODE" not in environment or (later and "nodes" in options)
    ):
        values["SLURM_NTASKS_PER_NODE"] = options["ntasks-per-node"]
    return values


def _gpu_variables(
    task: dict[str, Any], tasks_on_node: int, options: Options, job: dict[str, Any], environment: Options
) -> Options:
    """Return the variables about the GPUs that a task sees; {} if its step has no GPUs on the node."""
    held = _gpus_of_step(options, job, task["host"], len(task["names"]), tasks_on_node)
    if not held:
        return {}
    places = _seen_gpus(task["local"], held, tasks_on_node, options, job)
    if (per_gpu := _tasks_per_gpu(options, environment)) and "gpu-bind" not in options:
        places = [task["local"] // per_gpu % held]
    gpus = dict(enumerate(task.get("gpus") or ()))  # the GPUs of the step: place -> number on the node
    seen = ",".join(str(gpus.get(place, place)) for place in places)
    values = dict.fromkeys((*GPU_VARIABLES, "SLURM_STEP_GPUS"), seen) if seen else {}
    return values | {"SLURM_GPUS_ON_NODE": str(held)}


def _option_variables(
    tasks: int, nodes: int, options: Options, job: dict[str, Any], environment: Options
) -> Options:
    """Return the variables that follow from other options of a step, and SLURM_DISTRIBUTION."""
    values = {
        variable: options[option] or "1"
        for option, variable in _OPTION_VARIABLES.items()
        if option in options
    }
    if options.get("hint") == "nomultithread":
        values["SLURM_THREADS_PER_CORE"] = "1"
    if order := options.get("distribution") or environment.get("SLURM_DISTRIBUTION"):
        return values | {"SLURM_DISTRIBUTION": order}
    if options.get("mem") == "0":
        return values
    is_asked = "ntasks" in options or "SLURM_NTASKS" in environment
    has_cpus = "cpus-per-task" in options or "SLURM_CPUS_PER_TASK" in environment
    is_block = tasks > nodes or (job["release"] >= NEW_STEPS and has_cpus and not is_asked)
    return values | {"SLURM_DISTRIBUTION": "block" if is_block else "cyclic"}


def _gpus_of_step(options: Options, job: dict[str, Any], name: str, nodes: int, tasks: int) -> int:
    """Return the number of GPUs that a step gets on the node `name`, on which it has `tasks` tasks."""
    place = job["nodes"].index(name)
    held = int(job["gpus"][place])
    for option in ("gres", "gpus-per-node"):
        for item in options.get(option, "").split(",") if option in options else ():
            if option != "gres" or item.startswith(("gpu", "none")):
                count = number_of(item.rpartition(":")[2]) if item[-1:].isdecimal() else int(item != "none")
                return min(count, held)
    if (per_task := _gpus_per_task(options, job)) and not job["gpus_per_node"]:
        return min(per_task * tasks, held)
    total = number_of(options.get("gpus", "").rpartition(":")[2])
    if total and not per_task and (job["release"] >= NEW_STEPS or not job["gpus_per_node"]):
        return min(max(total // nodes, 1), held)
    return int(job["asked_gpus"][place])


def _seen_gpus(local: int, held: int, tasks: int, options: Options, job: dict[str, Any]) -> list[int]:
    """Return the GPUs that a task sees, as places among the `held` GPUs of its step on the node."""
    later = job["release"] >= NEW_STEPS
    per_task = _gpus_per_task(options, job) if later or tasks > 1 else 0
    kind, _, value = options.get("gpu-bind", "").replace("verbose,", "").partition(":")
    if kind in ("map_gpu", "mask_gpu"):
        item = value.split(",")[local % (value.count(",") + 1)]
        mask = _mask(item) if kind == "mask_gpu" else 1 << min(number_of(item), held)
        return [number for number in range(held) if mask >> number & 1]
    if kind == "single":
        return [local // (number_of(value) or 1) % held]
    if kind == "none" and per_task and not later:
        return []
    if kind == "per_task":
        per_task = number_of(value)
    elif kind:
        per_task = 0
    return [*range(held)][local * per_task : (local + 1) * per_task] if per_task else [*range(held)]


def _mask(text: str) -> int:
    try:
        return int(text, 0)
    except ValueError:
        return 0


def _gpus_per_task(options: Options, job: dict[str, Any]) -> int:
    """Return the number of GPUs that each task has for itself; 0 if all tasks see all GPUs of the step."""
    return number_of(options.get("gpus-per-task", "").rpartition(":")[2]) or int(job["gpus_per_task"])


def number_of(text: str | None) -> int:
    """Return the number that a text is; 0 for any other text, and for ten digits or more."""
    return int(text) if text and text.isdecimal() and len(text) < 10 else 0


def counts(numbers: Iterable[int]) -> str:
    """Return numbers in Slurm's short form, such as 4(x2),3."""
    runs = [(number, len([*run])) for number, run in groupby(numbers)]
    return ",".join(f"{number}(x{times})" if times > 1 else str(number) for number, times in runs)


def node_list(names: list[str], nodes: list[str]) -> str:
    """Return the nodes `names` of a job in Slurm's short form, such as node[1-4]."""
    if len(names) == 1:
        return names[0]
    first = nodes.index(names[0])
    if names == nodes[first : first + len(names)]:
        return f"node[{names[0][4:]}-{names[-1][4:]}]"
    return "node[" + ",".join(name[4:] for name in names) + "]"
