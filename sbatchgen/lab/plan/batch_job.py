"""Computes the nodes that a job would get, and the variables that Slurm sets in its batch script.

Source: jobs on Slurm 22.05 and 26.05 (tests/plan); sbatch(1), OUTPUT ENVIRONMENT VARIABLES.
"""

from __future__ import annotations

from dataclasses import replace

from sbatchgen.base.errors import DocumentError
from sbatchgen.base.frozen import frozen
from sbatchgen.check.script.resource_request import UNLIMITED, Amounts, ResourceRequest, split_among_nodes
from sbatchgen.check.script.script import JobScript
from sbatchgen.lab.plan.step_tasks import GPU_VARIABLES, counts_text, node_list

JOB_ID = 1000001
START_TIME = 1_700_000_000  # seconds since 1970 at which the job starts
# The largest job that a plan shows.
_MAX_NODES = 1024
_MAX_TASKS = 1 << 17
_MAX_GPUS = 1024  # GPUs of each node
# Variables that are 0 in the batch script, because it runs as the first task on the first node.
_ZERO_VARIABLES = ("SLURM_GTIDS", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_PRIO_PROCESS", "SLURM_PROCID")
# The first release that gives a job CPUs and variables as 26.05 does. Older releases do it as 22.05 does.
_NEW_JOBS = "23.02"
# The first release in which SLURM_TASKS_PER_NODE has the tasks of each node, not --ntasks-per-node.
_TASK_COUNT_RELEASE = "24.05"


@frozen(kw_only=True)
class Grant:
    """The resources that Slurm gives a job."""

    nodes: tuple[str, ...]  # the names of the nodes
    tasks: tuple[int, ...]  # the number of tasks that each node may run
    cpus: tuple[int, ...]  # the CPUs of each node
    gpus: tuple[int, ...]  # the GPUs of each node
    # the GPUs that the job asks for on each node; a step sees only these, even if the job has whole nodes
    asked_gpus: tuple[int, ...]
    environment: dict[str, str]  # the variables of the batch script, on the first node


def grant_of(script: JobScript, *, nodes: int | None = None, user: str, uid: int, gid: int) -> Grant:
    """Return the resources that Slurm would give a script, on nodes that do not exist.

    `nodes` replaces the number of --nodes. The batch script runs as `user` with the numbers `uid` and `gid`.

    Raises:
        DocumentError: The script asks for more than a plan can show.
    """
    resources = script.resources
    node_count = nodes or resources.nodes
    # With --ntasks-per-node, the number of tasks grows with `nodes`, and --ntasks does not count.
    is_scaled = bool(nodes and resources.ntasks_per_node)
    if not is_scaled:  # Slurm gives a job no more nodes than tasks
        node_count = min(node_count, resources.ntasks or node_count)
    node_count = max(node_count, 1)
    _refuse_above("nodes", node_count, _MAX_NODES)
    digits = len(str(node_count))
    names = tuple(f"node{number:0{digits}}" for number in range(1, node_count + 1))
    total_tasks = None if is_scaled else resources.ntasks
    per_node = resources.ntasks_per_node
    tasks: tuple[int, ...] | None = (per_node,) * node_count if per_node else None
    if total_tasks:
        tasks = _tasks_of_nodes(script, total_tasks, node_count)
    asked_gpus = _gpus_of_nodes(script, node_count, tasks)
    gpus = asked_gpus
    if script.has_own_nodes:
        node_gpus = max(_node_counts(script, "gpus_per_node"))
        gpus = tuple(max(count, node_gpus) for count in asked_gpus)
    _refuse_above("GPUs on a node", max(gpus), _MAX_GPUS)
    if (per_gpu := resources.ntasks_per_gpu) and tasks is None:
        tasks = tuple(per_gpu * count for count in gpus)
        total_tasks = sum(tasks)
    cpus = _cpus_of_nodes(script, gpus, tasks)
    tasks = tasks or tuple(count // (resources.cpus_per_task or 1) for count in cpus)
    _refuse_above("tasks", sum(tasks), _MAX_TASKS)
    grant = Grant(nodes=names, tasks=tasks, cpus=cpus, gpus=gpus, asked_gpus=asked_gpus, environment={})
    variables = _job_variables(script, grant, user, uid, gid)
    variables |= _task_variables(resources, total_tasks or sum(tasks), script.release)
    variables |= _gpu_variables(resources, gpus[0]) | _array_variables(script)
    return replace(grant, environment=variables)


def _tasks_of_nodes(script: JobScript, total: int, nodes: int) -> tuple[int, ...]:
    """Return the number of tasks on each node of a job, as if all nodes were idle.

    `total` is the number of all tasks, and `nodes` the number of nodes.
    """
    resources = script.resources
    if resources.ntasks_per_node or script.has_own_nodes:
        share, rest = divmod(total, nodes)
        return tuple(share + (index < rest) for index in range(nodes))  # the first nodes have one task more
    # Slurm may start a job with several partitions in any of them, so the smallest nodes count.
    cpus = min(filter(None, _node_counts(script, "cpus_per_node")), default=0)
    most_tasks = cpus // (resources.cpus_per_task or 1)
    return split_among_nodes(total, nodes, most_tasks or None)


def _gpus_of_nodes(script: JobScript, nodes: int, tasks: tuple[int, ...] | None) -> tuple[int, ...]:
    """Return the number of GPUs that a job asks for on each node, as if all nodes were idle.

    `tasks` has the number of tasks on each node; None if the job does not ask for tasks.
    """
    resources, node_gpus = script.resources, max(_node_counts(script, "gpus_per_node"))
    total, per_task = resources.gpus_in_all, sum(count for _, count in resources.gpus_per_task or ())
    if resources.gpu_option == "gpus-per-task" and per_task and tasks:
        return tuple(per_task * count for count in tasks)
    if resources.gpu_option != "gpus" or resources.gpus_per_node:
        return (resources.gpu_count,) * nodes
    if resources.splits_gpus([node_gpus] if node_gpus else (), whole_nodes=script.has_own_nodes):
        return split_among_nodes(total, nodes, node_gpus or None)
    return (max(total // nodes, 1),) * nodes


def _cpus_of_nodes(
    script: JobScript, gpus: tuple[int, ...], tasks: tuple[int, ...] | None
) -> tuple[int, ...]:
    """Return the number of CPUs that a job gets on each node.

    `gpus` and `tasks` have the number of GPUs and tasks on each node. `tasks` is None if the job does not ask
    for tasks.
    """
    resources, nodes = script.resources, len(gpus)
    per_task = resources.cpus_per_task or 1
    least_cpus = [_least_cpus(resources, script, count) for count in gpus]
    if resources.cpus_per_gpu and script.release >= _NEW_JOBS:
        least_cpus = [max(least_cpus)] * nodes  # all nodes get the CPUs of the node with the most GPUs
    # If a job has several nodes, Slurm reserves CPUs for --ntasks-per-node tasks on each node, even if fewer
    # tasks run there.
    least_tasks = (resources.ntasks_per_node or 1) if nodes > 1 else 1
    node_tasks = tasks or (1,) * nodes
    task_cpus = [max(count, least_tasks) * per_task for count in node_tasks]
    return tuple(map(max, least_cpus, task_cpus))


def _refuse_above(unit: str, number: int, limit: int) -> None:
    """Raise DocumentError if a number of nodes, GPUs or tasks is above its limit."""
    if number > limit:
        raise DocumentError.of(f"plan shows at most {limit} {unit}", fix="plan the job with fewer")


def _node_counts(script: JobScript, key: str) -> list[int]:
    """Return 0, and the value of a key such as cpus_per_node in each partition that the script names."""
    return [0, *(int(getattr(partition, key) or 0) for partition in script.partitions.values())]


def _least_cpus(resources: ResourceRequest, script: JobScript, gpus: int) -> int:
    """Return the number of CPUs that a job gets on a node with `gpus` GPUs even if no task needs them."""
    if script.has_own_nodes:
        return max(1, *_node_counts(script, "cpus_per_node"))
    return resources.cpus_per_gpu * gpus if resources.cpus_per_gpu else 1


def _job_variables(script: JobScript, grant: Grant, user: str, uid: int, gid: int) -> dict[str, str]:
    """Return the variables about the job, its nodes and its user."""
    resources = script.resources
    node_tasks = grant.tasks
    if resources.ntasks_per_node and script.release < _TASK_COUNT_RELEASE:
        node_tasks = (resources.ntasks_per_node,) * len(grant.nodes)
    variables = {
        "ENVIRONMENT": "BATCH",
        **dict.fromkeys(("HOSTNAME", "SLURMD_NODENAME", "SLURM_TOPOLOGY_ADDR"), grant.nodes[0]),
        **dict.fromkeys(_ZERO_VARIABLES, "0"),
        **dict.fromkeys(("SLURM_JOB_ID", "SLURM_JOBID"), str(JOB_ID)),
        **dict.fromkeys(("SLURM_JOB_NUM_NODES", "SLURM_NNODES"), str(len(grant.nodes))),
        **dict.fromkeys(("SLURM_JOB_NODELIST", "SLURM_NODELIST"), node_list([*grant.nodes], [*grant.nodes])),
        "SLURM_CLUSTER_NAME": str(script.profile.name) if script.knows_cluster else "cluster",
        "SLURM_CONF": "/etc/slurm/slurm.conf",
        "SLURM_CPUS_ON_NODE": str(grant.cpus[0]),
        "SLURM_JOB_CPUS_PER_NODE": counts_text(grant.cpus),
        "SLURM_JOB_GID": str(gid),
        "SLURM_JOB_NAME": script.option("job-name") or script.file.rpartition("/")[2],
        "SLURM_JOB_PARTITION": next(iter(resources.partitions), "partition"),
        "SLURM_JOB_UID": str(uid),
        "SLURM_JOB_USER": user,
        "SLURM_SUBMIT_HOST": "login",
        "SLURM_TASKS_PER_NODE": counts_text(node_tasks),
        "SLURM_TASK_PID": "2",
        "SLURM_TOPOLOGY_ADDR_PATTERN": "node",
        "TMPDIR": "/tmp",  # noqa: S108 - on the node
    }
    variables |= _option_variables(script)
    if script.release < _NEW_JOBS:
        return variables | {"SLURM_NODE_ALIASES": "(null)"}
    # Without a time limit, Slurm sets the end to a year after the start.
    limit_s = resources.time if resources.time and resources.time != UNLIMITED else 365 * 24 * 3600
    variables |= {"SLURM_JOB_START_TIME": str(START_TIME), "SLURM_JOB_END_TIME": str(START_TIME + limit_s)}
    # -5 is Slurm's number for the batch script among the steps.
    return variables | {"SLURM_OOM_KILL_STEP": "0", "SLURM_STEP_ID": "-5", "SLURM_STEPID": "-5"}


def _option_variables(script: JobScript) -> dict[str, str]:
    """Return the variables that Slurm sets only for some options of a job."""
    resources, variables = script.resources, dict[str, str]()
    if script.option("export").upper() == "NONE":
        variables |= {"SLURM_EXPORT_ENV": "NONE", "SLURM_GET_USER_ENV": "1"}
    if order := script.option("distribution"):
        variables["SLURM_DISTRIBUTION"] = order
    if mode := script.option("open-mode"):
        variables["SLURM_OPEN_MODE"] = mode[0]
    for option in ("account", "qos", "reservation", "constraint"):
        if value := script.option(option):
            name = "CONSTRAINTS" if option == "constraint" else option.upper()
            variables[f"SLURM_JOB_{name}"] = value
    memory = {"NODE": resources.mem, "CPU": resources.mem_per_cpu, "GPU": resources.mem_per_gpu}
    for unit, amount in memory.items():
        if amount:  # 0 stands for all memory of a node
            variables[f"SLURM_MEM_PER_{unit}"] = str(amount)
    return variables


def _task_variables(resources: ResourceRequest, tasks: int, release: str) -> dict[str, str]:
    """Return the variables about tasks and their CPUs; `tasks` is the number of all tasks."""
    variables: dict[str, str] = {}
    if per_gpu := resources.ntasks_per_gpu:
        variables["SLURM_NTASKS_PER_GPU"] = str(per_gpu)
    if resources.ntasks or resources.ntasks_per_node or per_gpu:
        variables |= {"SLURM_NTASKS": str(tasks), "SLURM_NPROCS": str(tasks)}
    if resources.ntasks_per_node:
        variables["SLURM_NTASKS_PER_NODE"] = str(resources.ntasks_per_node)
    if resources.cpus_per_task:
        variables["SLURM_CPUS_PER_TASK"] = str(resources.cpus_per_task)
        if release >= "24.11":
            variables["SLURM_TRES_PER_TASK"] = f"cpu={resources.cpus_per_task}"
    if release < "23.11" and resources.gpus_per_task:
        variables["SLURM_GPUS_PER_TASK"] = _amounts_text(resources.gpus_per_task)
    if resources.cpus_per_gpu:
        variables["SLURM_CPUS_PER_GPU"] = str(resources.cpus_per_gpu)
    return variables


def _gpu_variables(resources: ResourceRequest, gpus: int) -> dict[str, str]:
    """Return the variables about GPUs; `gpus` is the number of GPUs on the first node."""
    if not gpus:
        return {}
    numbers = ",".join(map(str, range(gpus)))
    variables = dict.fromkeys((*GPU_VARIABLES, "SLURM_JOB_GPUS"), numbers) | {"SLURM_GPUS_ON_NODE": str(gpus)}
    if resources.gpus_per_node:
        variables["SLURM_GPUS_PER_NODE"] = _amounts_text(resources.gpus_per_node)
    if resources.gpus:
        variables["SLURM_GPUS"] = _amounts_text(resources.gpus)
    return variables


def _array_variables(script: JobScript) -> dict[str, str]:
    """Return the variables of the first task of an array; {} for any other job."""
    if not script.array:
        return {}
    ends = [number for indices in script.array for number in (indices[0], indices[-1])]
    values = {
        "JOB_ID": JOB_ID,
        "TASK_COUNT": script.array_tasks,
        "TASK_ID": min(ends),
        "TASK_MAX": max(ends),
        "TASK_MIN": min(ends),
        "TASK_STEP": script.array[0].step,
    }
    return {f"SLURM_ARRAY_{name}": str(value) for name, value in values.items()}


def _amounts_text(amounts: Amounts) -> str:
    """Return numbers of GPUs with their types as Slurm writes them, such as a100:2 or 2."""
    return ",".join(f"{gpu_type}:{count}" if gpu_type else str(count) for gpu_type, count in amounts)
