"""Computes the tasks of a step: their nodes, the variables that Slurm sets in them, and the refusals of srun.

`step.py` uses this module in the sandbox. It is loaded for each step, so it imports little. The rules follow
steps on Slurm 22.05 and 26.05 (tests/plan/test_truth.py).
"""

from __future__ import annotations

import os
from itertools import groupby

TYPE_CHECKING = False  # loading typing takes longer than all the rest
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    Job = dict[str, Any]  # the facts of a job that `facts_of_steps` of stand_ins.py writes
    # A task of a step: its "rank", its number on the node ("local"), and the index and the name of the node
    # ("node" and "host"). All tasks of a step share "names", the names of the step's nodes, and "node_tasks",
    # the number of tasks on each of them.
    Task = dict[str, Any]

NEW_STEPS = "24.05"  # the first release whose steps behave as in 26.05; in earlier ones, as in 22.05
MAX_STEP_TASKS = 1 << 17  # tasks of a step; a plan refuses jobs with more tasks
GPU_VARIABLES = ("CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK")
_EXACT_OPTIONS = frozenset(("exact", "exclusive"))  # with them, a step takes only the CPUs that it uses
_OVERLAP_OPTIONS = frozenset(("overlap", "het-group", "pack-group"))  # other steps may then use all its CPUs
_NODE_OPTIONS = frozenset(("nodelist", "nodefile", "het-group", "pack-group"))  # they name a step's nodes
# Options that Slurm passes to a task as variables, such as SLURM_JOB_NAME. Without a value, a variable is 1.
_VARIABLE_OPTIONS = ("overcommit", "threads-per-core", "job-name", "network")
_OPTION_VARIABLES = {"label": "SLURM_LABELIO"}
_OPTION_VARIABLES |= {name: f"SLURM_{name.upper().replace('-', '_')}" for name in _VARIABLE_OPTIONS}
Options = dict[str, str]  # values by the long names of options; environments have the same type


def node_shares_text(tasks: list[Task], options: Options, job: Job, environment: Options) -> str:
    """Return the shares that a step takes of its nodes as text, such as "exact takes - node1:4:1".

    `StartRecord` reads the words again. The first word says how the step shares its nodes. The second is
    `takes` if the next step begins at the node after this step's nodes, else `passes`. The third word has the
    nodes that the step excludes, or -. A word NAME:CPUS:GPUS follows for each node.
    """
    node_tasks, names = tasks[0]["node_tasks"], tasks[0]["names"]
    cpus_per_task = max(_cpus_per_task(options, job, environment), 1)
    shares = (
        f"{name}:{count * cpus_per_task}:{_gpus_of_step(options, job, name, len(names), count)}"
        for name, count in zip(names, node_tasks, strict=True)
    )
    names_nodes = _NODE_OPTIONS.intersection(options)
    excluded = {*job["nodes"]} - {*(names if names_nodes else _candidate_nodes(options, job))}
    turn = "passes" if names_nodes or "exclude" in options else "takes"
    sharing = _sharing_mode(options, job, environment)
    return " ".join((sharing, turn, ",".join(sorted(excluded)) or "-", *shares))


def _sharing_mode(options: Options, job: Job, environment: Options) -> str:
    """Return which CPUs of its nodes a step leaves to other steps.

    "overlap" stands for all CPUs, "exact" for those that the step does not use, and "whole" for none.
    """
    if _OVERLAP_OPTIONS.intersection(options):
        return "overlap"
    counts_cpus = job["release"] >= "22.05" and _cpus_per_task(options, job, environment)
    return "exact" if counts_cpus or _EXACT_OPTIONS.intersection(options) else "whole"


def tasks_of_step(
    options: Options, job: Job, environment: Options, node_names: list[str] | None = None
) -> tuple[list[Task], str]:
    """Return the tasks of a step, and the reason why Slurm refuses the step; one of the two is empty.

    `options` and `environment` are those of srun. `node_names` has the nodes of a step that does not get the
    first nodes of the job, because other steps still run.
    """
    refusal = _number_refusal(options, job, environment) or _gpu_refusal(options, job, environment)
    if refusal := refusal or _memory_refusal(options, environment):
        return [], refusal
    names = node_names or _candidate_nodes(options, job)
    count, refusal = _node_count(names, options, job, environment)
    if refusal:
        return [], refusal
    requested_tasks = _requested_tasks(options, job, environment, count)
    total = requested_tasks or number_of(environment.get("SLURM_NTASKS")) or count
    if total > MAX_STEP_TASKS:
        return [], "Unable to create step for job: More processors requested than permitted"
    names = names[: max(min(total, count), 1)]
    is_job_total = not requested_tasks
    node_tasks, refusal = _tasks_on_nodes(names, total, options, job, environment, is_job_total=is_job_total)
    if refusal:
        return [], refusal
    places = [(node, local) for node, task_count in enumerate(node_tasks) for local in range(task_count)]
    order = options.get("distribution") or environment.get("SLURM_DISTRIBUTION", "block")
    if order.startswith(("cyclic", "*:", "plane=1")):  # the next rank runs on the next node
        places.sort(key=lambda place: place[::-1])
    step_facts = {"node_tasks": node_tasks, "names": names}
    tasks = [
        {"rank": rank, "node": node, "host": names[node], "local": local, **step_facts}
        for rank, (node, local) in enumerate(places)
    ]
    return tasks, ""


def _node_count(names: list[str], options: Options, job: Job, environment: Options) -> tuple[int, str]:
    """Return how many of the nodes `names` a step gets, and the reason why Slurm refuses the step, or ""."""
    smallest, largest = _node_range(options.get("nodes", ""))
    ntasks = number_of(options.get("ntasks")) or number_of(environment.get("SLURM_NTASKS"))
    least = min(smallest, ntasks or smallest)  # srun takes no more nodes than tasks
    # Without --nodes, the step gets all nodes of the job.
    count = max(least, min(largest, len(names))) or min(len(names), len(job["nodes"]))
    if count > len(names) or not names:
        too_few_nodes = f"Only allocated {len(names)} nodes asked for {least}"
        return 0, too_few_nodes if names else "Requested node configuration is not available"
    return count, ""


def _tasks_on_nodes(
    names: list[str], total: int, options: Options, job: Job, environment: Options, *, is_job_total: bool
) -> tuple[list[int], str]:
    """Return the number of tasks on each node, and the reason why Slurm refuses the step, or "".

    `total` is the number of all tasks. `is_job_total`: the number comes from the job, not from the step.
    """
    share, rest = divmod(total, len(names))
    node_tasks = [share + (node < rest) for node in range(len(names))]
    # A step with all tasks and nodes of its job runs the tasks where the job has them.
    if total == sum(job["tasks"]) and len(names) == len(job["nodes"]) and is_job_total:
        node_tasks = list(job["tasks"])
    if job["knows_cpus"] and "overcommit" not in options:
        cpus_per_task = max(_cpus_per_task(options, job, environment), 1)
        cpus = dict(zip(job["nodes"], job["cpus"], strict=True))
        node_tasks = _fitted_tasks(node_tasks, [cpus[name] // cpus_per_task for name in names])
        if sum(node_tasks) < total:
            return [], "Unable to create step for job: More processors requested than permitted"
    per_task = int(job["gpus_per_task"])
    gpus = dict(zip(job["nodes"], job["gpus"], strict=True))
    if any(count * per_task > gpus[name] for name, count in zip(names, node_tasks, strict=True)):
        return [], "Unable to create step for job: Insufficient GRES available in allocation"
    return node_tasks, ""


def _fitted_tasks(node_tasks: list[int], limits: list[int]) -> list[int]:
    """Return the number of tasks on each node, so that no node has more than its number in `limits`.

    The tasks above a node's limit go to the first nodes that are below theirs.
    """
    counts = [min(count, limit) for count, limit in zip(node_tasks, limits, strict=True)]
    remaining = sum(node_tasks) - sum(counts)
    for node, limit in enumerate(limits):
        added = min(remaining, limit - counts[node])
        counts[node] += added
        remaining -= added
    return counts


def _node_range(text: str) -> tuple[int, int]:
    """Return the smallest and the largest number in a value of --nodes such as 2-4; 0 without a number."""
    if text[-1:] in ("k", "K", "m", "M"):
        number = number_of(text.rstrip("kKmM")) * (1024 if text[-1] in "kK" else 1024**2)
        return number, number
    counts, _, step = text.partition(":")
    sizes = [number_of(size) for size in counts.replace(",", "-").split("-")]
    if number_of(step):  # such as 1-15:4
        sizes = [*range(sizes[0], sizes[-1], number_of(step))] or [0]
    return (sizes[0], max(sizes)) if "-" in text or "," in text else (sizes[0], sizes[0])


def _requested_tasks(options: Options, job: Job, environment: Options, nodes: int) -> int:
    """Return the number of tasks that a step asks for; 0 if the job's number of tasks counts."""
    ntasks = number_of(options.get("ntasks", "").strip().removeprefix("+"))
    if per_gpu := _tasks_per_gpu(options, environment):  # Slurm looks at --ntasks-per-gpu first
        given_tasks = ntasks or number_of(environment.get("SLURM_NTASKS"))
        return max(given_tasks, per_gpu * _total_gpus(options, job, environment, nodes))
    per_node = number_of(_tasks_per_node(options)) or number_of(environment.get("SLURM_NTASKS_PER_NODE"))
    is_per_node_first = "nodes" in options and per_node and job["release"] >= NEW_STEPS
    if ntasks or (environment.get("SLURM_NTASKS") and not is_per_node_first):
        return ntasks
    return nodes * (per_node or 1)


def _tasks_per_node(options: Options) -> str | None:
    return options.get("ntasks-per-node", options.get("tasks-per-node"))


def _total_gpus(options: Options, job: Job, environment: Options, nodes: int) -> int:
    """Return the number of GPUs for which --ntasks-per-gpu starts tasks, on all nodes together.

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


def _gpu_refusal(options: Options, job: Job, environment: Options) -> str:
    """Return the reason why srun refuses the GPUs that a step asks for; "" if the step gets them."""
    is_gres = options.get("gres", "").startswith("gpu")
    is_per_node = "SLURM_GPUS_PER_NODE" in environment or "gpus-per-node" in options
    if is_gres and is_per_node and job["release"] >= "26.05":
        return "--gpus-per-node and --gres=gpu are mutually exclusive."
    names = ("gpus", "gpus-per-node", "gpus-per-task", "ntasks-per-gpu", *("gres",) * is_gres)
    asks_for_gpus = any(options.get(name, "0").rpartition(":")[2].strip("0") for name in names)
    # A job with whole nodes may have GPUs although it asked for none, so its steps are not refused.
    has_no_gpus = not (any(job["gpus"]) or job["has_own_nodes"])
    has_two_totals = is_gres and _tasks_per_gpu(options, environment) and "SLURM_GPUS" in environment
    if has_two_totals or (has_no_gpus and asks_for_gpus):
        return "Unable to create step for job: Invalid generic resource (gres) specification"
    return ""


def _memory_refusal(options: Options, environment: Options) -> str:
    """Return the reason why srun refuses its variables such as SLURM_MEM_PER_CPU; "" if it accepts them."""
    set_units = [unit for unit in ("CPU", "GPU", "NODE") if environment.get(f"SLURM_MEM_PER_{unit}")]
    if len(set_units) < 2 or {"mem", "mem-per-cpu", "mem-per-gpu"} & options.keys():
        return ""  # with such an option, srun ignores the variables
    return "SLURM_MEM_PER_CPU, SLURM_MEM_PER_GPU, and SLURM_MEM_PER_NODE are mutually exclusive."


def _number_refusal(options: Options, job: Job, environment: Options) -> str:
    """Return the reason why srun refuses the numbers in its options; "" if srun accepts them."""
    for name in ("ntasks", "ntasks-per-node", "tasks-per-node", "cpus-per-task", "ntasks-per-gpu"):
        value = options.get(name, "1")
        if not (number_of(value.strip().removeprefix("+")) or _is_placeholder(value, environment)):
            return f'Invalid numeric value "{value}" for --{name}.'
    nodes = options.get("nodes", "1")
    least, dash, largest = ("1" if _is_placeholder(nodes, environment) else nodes).partition("-")
    has_separator = "," in least + largest or ":" in least + largest  # such as 1,2,4
    is_list = has_separator and job["release"] >= "23.02"
    has_suffix = least[:-1].isdecimal() and least[-1] in "kKmM"  # such as 2k
    is_range = least.isdecimal() and (largest.isdecimal() or not dash)  # such as 2-4 or 2
    if not is_range and not (least and (is_list or has_suffix)):
        return f'"{options["nodes"]}" is not a valid node count'
    if number_of(largest) and number_of(largest) < number_of(least):
        return f"Maximum node count {largest} is less than minimum node count {least}"
    return _per_gpu_refusal(options, job, environment)


def _per_gpu_refusal(options: Options, job: Job, environment: Options) -> str:
    """Return the reason why srun refuses --ntasks-per-gpu with its other options; "" if srun accepts them."""
    if not _tasks_per_gpu(options, environment):
        return ""
    message = "is mutually exclusive with --ntasks-per-gpu and SLURM_NTASKS_PER_GPU"
    if _tasks_per_node(options) or number_of(environment.get("SLURM_NTASKS_PER_NODE")):
        return f"--ntasks-per-node {message}"
    if "gpus-per-task" in options:
        return f"--gpus-per-task {message}"
    if job["gpus_per_task"]:
        name = "SLURM_TRES_PER_TASK" if job["release"] >= NEW_STEPS else "SLURM_GPUS_PER_TASK"
        return f"{name} {message}"
    return ""


def _is_placeholder(value: str, environment: Options) -> bool:
    """Return whether a dry run has made up a value: ARG1 for $1, UNKNOWN for an output, NAME for $NAME."""
    return value.startswith("ARG") or "UNKNOWN" in value or environment.get(value) == value


def _tasks_per_gpu(options: Options, environment: Options) -> int:
    """Return the number of tasks for each GPU of the job; 0 if neither an option nor a variable has it."""
    return number_of(options.get("ntasks-per-gpu") or environment.get("SLURM_NTASKS_PER_GPU"))


def _cpus_per_task(options: Options, job: Job, environment: Options) -> int:
    """Return the number of CPUs for each task of a step; 0 if neither an option nor a variable has it."""
    cpus = number_of(options.get("cpus-per-task"))
    if cpus or "22.05" <= job["release"] < "23.11":  # srun of these releases ignores the variable
        return cpus
    return number_of(environment.get("SLURM_CPUS_PER_TASK"))


def _candidate_nodes(options: Options, job: Job) -> list[str]:
    """Return the nodes that a step may use, in Slurm's order of choice; [] if srun refuses --nodelist."""
    names = list(job["nodes"])
    if "nodelist" in options:
        text = options["nodelist"].strip()
        listed = {*_hosts(text.replace("\n", ",") if job["release"] >= NEW_STEPS else text)}
        limit = number_of(options.get("nodes")) or len(names)
        if not text or len(listed) > limit or any("\n" in name for name in listed):
            return []
        names = [name for name in names if name in listed] or names
    if "exclude" in options:
        excluded = _hosts(options["exclude"])
        names = [name for name in names if name not in excluded]
    return names[number_of(options.get("relative")) :] or names


def _hosts(text: str) -> list[str]:
    """Return the names in a list such as node[1-2,4],other."""
    from sbatchgen.check.sbatch.hostlist import hosts  # imported late, because few steps have a list

    return hosts(text)


def task_variables(
    task: Task, tasks: list[Task], options: Options, job: Job, environment: Options
) -> Options:
    """Return the variables that Slurm sets in a task, in addition to those of the batch script."""
    node_tasks, names = task["node_tasks"], task["names"]
    mask = os.umask(0)  # `os` can't read the mask without setting it
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
        **dict.fromkeys(("SLURM_TASKS_PER_NODE", "SLURM_STEP_TASKS_PER_NODE"), counts_text(node_tasks)),
        "SLURM_LAUNCH_NODE_IPADDR": "10.0.0.1",
        "SLURM_UMASK": f"{mask:04o}",
    }
    if not task["local"]:  # the first task of a node has TMPDIR even if --export drops it
        values["TMPDIR"] = environment.get("TMPDIR", "/tmp")  # noqa: S108 - on the node
    values |= _option_variables(len(tasks), len(names), options, job, environment)
    values |= _number_variables(len(node_ranks), options, job, environment)
    return values | _gpu_variables(task, len(node_ranks), options, job, environment)


def _number_variables(tasks_on_node: int, options: Options, job: Job, environment: Options) -> Options:
    """Return the variables that follow from a step's numbers of CPUs, GPUs and tasks."""
    values, is_new = {}, job["release"] >= NEW_STEPS
    for name in ("gpus", "gpus-per-node"):
        if is_new and options.get(name):
            values[f"SLURM_{name.upper().replace('-', '_')}"] = options[name]
    if cpus := number_of(options.get("cpus-per-task")):
        values["SLURM_CPUS_PER_TASK"] = str(cpus)
    per_task = _cpus_per_task(options, job, environment)
    if per_task or _sharing_mode(options, job, environment) == "exact":
        values["SLURM_CPUS_ON_NODE"] = str(max(per_task, 1) * tasks_on_node)
    is_option_first = "SLURM_NTASKS_PER_NODE" not in environment or (is_new and "nodes" in options)
    if is_option_first and options.get("ntasks-per-node"):
        values["SLURM_NTASKS_PER_NODE"] = options["ntasks-per-node"]
    return values


def _gpu_variables(
    task: Task, tasks_on_node: int, options: Options, job: Job, environment: Options
) -> Options:
    """Return the variables about the GPUs that a task sees; {} if the step has no GPUs on the task's node."""
    count = _gpus_of_step(options, job, task["host"], len(task["names"]), tasks_on_node)
    if not count:
        return {}
    visible = _visible_gpus(task["local"], count, tasks_on_node, options, job)
    if (per_gpu := _tasks_per_gpu(options, environment)) and "gpu-bind" not in options:
        visible = [task["local"] // per_gpu % count]
    # The GPUs 0 and 1 of a step may be, for example, the GPUs 2 and 3 of the node.
    step_gpus = dict(enumerate(task.get("gpus") or ()))
    numbers = ",".join(str(step_gpus.get(gpu, gpu)) for gpu in visible)
    values = dict.fromkeys((*GPU_VARIABLES, "SLURM_STEP_GPUS"), numbers) if numbers else {}
    return values | {"SLURM_GPUS_ON_NODE": str(count)}


def _option_variables(tasks: int, nodes: int, options: Options, job: Job, environment: Options) -> Options:
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
        return values  # Slurm then sets no SLURM_DISTRIBUTION
    has_ntasks = "ntasks" in options or "SLURM_NTASKS" in environment
    has_cpus = "cpus-per-task" in options or "SLURM_CPUS_PER_TASK" in environment
    is_block = tasks > nodes or (job["release"] >= NEW_STEPS and has_cpus and not has_ntasks)
    return values | {"SLURM_DISTRIBUTION": "block" if is_block else "cyclic"}


def _gpus_of_step(options: Options, job: Job, name: str, nodes: int, tasks: int) -> int:
    """Return the number of GPUs that a step of `nodes` nodes gets on a node, where it runs `tasks` tasks."""
    node = job["nodes"].index(name)
    limit = int(job["gpus"][node])
    for option in ("gres", "gpus-per-node"):
        items = options[option].split(",") if option in options else []
        for item in items:
            if option != "gres" or item.startswith(("gpu", "none")):  # such as gpu:a100:2; "none" is 0
                count = number_of(item.rpartition(":")[2]) if item[-1:].isdecimal() else int(item != "none")
                return min(count, limit)
    if (per_task := _gpus_per_task(options, job)) and not job["gpus_per_node"]:
        return min(per_task * tasks, limit)
    total = number_of(options.get("gpus", "").rpartition(":")[2])
    if total and not per_task and (job["release"] >= NEW_STEPS or not job["gpus_per_node"]):
        return min(max(total // nodes, 1), limit)
    return int(job["asked_gpus"][node])


def _visible_gpus(local: int, count: int, tasks: int, options: Options, job: Job) -> list[int]:
    """Return the GPUs that task number `local` of a node's `tasks` sees, of the step's `count` GPUs there."""
    is_new = job["release"] >= NEW_STEPS
    per_task = _gpus_per_task(options, job) if is_new or tasks > 1 else 0
    kind, _, value = options.get("gpu-bind", "").replace("verbose,", "").partition(":")
    if kind in ("map_gpu", "mask_gpu"):  # such as map_gpu:1,0: an item for each task, again from the first
        item = value.split(",")[local % (value.count(",") + 1)]
        mask = _mask_bits(item) if kind == "mask_gpu" else 1 << min(number_of(item), count)
        return [gpu for gpu in range(count) if mask >> gpu & 1]
    if kind == "single":
        return [local // (number_of(value) or 1) % count]
    if kind == "none" and per_task and not is_new:
        return []
    if kind == "per_task":
        per_task = number_of(value)
    elif kind:
        per_task = 0
    return [*range(count)][local * per_task : (local + 1) * per_task] if per_task else [*range(count)]


def _mask_bits(text: str) -> int:
    """Return the number in a text such as 0x3; 0 for any other text."""
    try:
        return int(text, 0)
    except ValueError:
        return 0


def _gpus_per_task(options: Options, job: Job) -> int:
    """Return the number of GPUs that only one task sees; 0 if all tasks see all GPUs of the step."""
    return number_of(options.get("gpus-per-task", "").rpartition(":")[2]) or int(job["gpus_per_task"])


def number_of(text: str | None) -> int:
    """Return a text of at most nine digits as a number; 0 for any other text."""
    return int(text) if text and text.isdecimal() and len(text) < 10 else 0


def counts_text(numbers: Iterable[int]) -> str:
    """Return numbers in Slurm's short form, such as 4(x2),3."""
    runs = [(number, len([*run])) for number, run in groupby(numbers)]
    return ",".join(f"{number}(x{times})" if times > 1 else str(number) for number, times in runs)


def node_list(names: list[str], nodes: list[str]) -> str:
    """Return the nodes `names`, of a job with the nodes `nodes`, in Slurm's short form such as node[1-4]."""
    if len(names) == 1:
        return names[0]
    first = nodes.index(names[0])
    if names == nodes[first : first + len(names)]:
        return f"node[{names[0][4:]}-{names[-1][4:]}]"
    return "node[" + ",".join(name[4:] for name in names) + "]"
