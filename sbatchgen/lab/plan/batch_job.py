"""The nodes that a job would get, and the variables that Slurm sets in its batch script.

Source: jobs on Slurm 22.05 and 26.05 (tests/plan); sbatch(1), OUTPUT ENVIRONMENT VARIABLES.
"""

from __future__ import annotations

from dataclasses import replace

from sbatchgen.base.errors import DocumentError
from sbatchgen.base.frozen import frozen
from sbatchgen.check.script.resource_request import UNLIMITED, Amounts, ResourceRequest, split_among_nodes
from sbatchgen.check.script.script import JobScript
from sbatchgen.lab.plan.step_tasks import GPU_VARIABLES, counts, node_list

JOB_ID = 1000001
START_TIME = 1_700_000_000  # seconds since 1970 at which the job starts
_MOST_NODES, _MOST_TASKS, _MOST_GPUS = 1024, 1 << 17, 1024  # nodes; tasks; GPUs of a node
_ZERO_VARIABLES = ("SLURM_GTIDS", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_PRIO_PROCESS", "SLURM_PROCID")
_TIMES_RELEASE = "23.02"  # from this release on, Slurm sets SLURM_JOB_START_TIME and other variables
_SPREADING_RELEASE = "24.05"  # from this release on, SLURM_TASKS_PER_NODE counts the tasks that a job has


@frozen(kw_only=True)
class Grant:
    """The resources that Slurm gives a job."""

    nodes: tuple[str, ...]  # the names of the nodes
    tasks: tuple[int, ...]  # the number of tasks that each node may run
    cpus: tuple[int, ...]  # the CPUs of each node
    gpus: tuple[int, ...]  # the GPUs of each node
    # The GPUs that the job asks for. A step sees no other GPUs, even if its whole node has more.
    asked_gpus: tuple[int, ...]
    environment: dict[str, str]  # the variables of the batch script, on the first node


def grant(script: JobScript, *, nodes: int | None = None, user: str, uid: int, gid: int) -> Grant:
    """Return the resources that Slurm would give a script, on nodes that do not exist.

    `nodes` replaces the number of --nodes. The batch script runs as `user` with the numbers `uid` and `gid`.

    Raises:
        DocumentError: The script asks for more than a plan can show.
    """
    asked = script.resources
    wanted = nodes or asked.nodes
    is_scaled = bool(nodes and asked.ntasks_per_node)
    count = max(wanted if is_scaled else min(wanted, asked.ntasks or wanted), 1)  # each node has a task
    _refuse_above("nodes", count, _MOST_NODES)
    width = len(str(count))
    names = tuple(f"node{number:0{width}}" for number in range(1, count + 1))
    per_task = asked.cpus_per_task or 1
    total = None if is_scaled else asked.ntasks
    tasks: tuple[int, ...] | None = (asked.ntasks_per_node,) * count if asked.ntasks_per_node else None
    if total:
        tasks = _tasks_of_nodes(script, total, count)
    asked_gpus = _gpus_of_nodes(script, count, tasks)
    node_gpus = max(_node_counts(script, "gpus_per_node"))
    gpus = tuple(max(number, node_gpus) for number in asked_gpus) if script.has_nodes_alone else asked_gpus
    _refuse_above("GPUs on a node", max(gpus), _MOST_GPUS)
    if (per_gpu := asked.ntasks_per_gpu) and tasks is None:
        tasks = tuple(per_gpu * number for number in gpus)
        total = sum(tasks)
    room = tuple(_cpus_of_node(asked, script, number) for number in gpus)
    if asked.cpus_per_gpu and script.release >= _TIMES_RELEASE:
        room = (max(room),) * count  # on 26.05 all nodes get the CPUs of the node with the most GPUs
    if tasks is None:
        cpus = tuple(max(number, per_task) for number in room)
        tasks = tuple(number // per_task for number in cpus)
    else:
        # Slurm gives each node the CPUs for this number of tasks, even if the node runs fewer tasks.
        least = (asked.ntasks_per_node or 1) if count > 1 else 1
        cpus = tuple(max(has, max(number, least) * per_task) for has, number in zip(room, tasks, strict=True))
    _refuse_above("tasks", sum(tasks), _MOST_TASKS)
    held = Grant(nodes=names, tasks=tasks, cpus=cpus, gpus=gpus, asked_gpus=asked_gpus, environment={})
    variables = _job_variables(script, held, user, uid, gid)
    variables |= _task_variables(asked, total or sum(tasks), script.release)
    return replace(held, environment=variables | _gpu_variables(asked, gpus[0]) | _array_variables(script))


def _tasks_of_nodes(script: JobScript, total: int, nodes: int) -> tuple[int, ...]:
    """Return the number of tasks on each node of a job with `total` tasks, as if all nodes were idle."""
    asked = script.resources
    if asked.ntasks_per_node or script.has_nodes_alone:
        share, rest = divmod(total, nodes)
        return tuple(share + (number < rest) for number in range(nodes))
    room = min(filter(None, _node_counts(script, "cpus_per_node")), default=0) // (asked.cpus_per_task or 1)
    return split_among_nodes(total, nodes, room or None)


def _gpus_of_nodes(script: JobScript, nodes: int, tasks: tuple[int, ...] | None) -> tuple[int, ...]:
    """Return the GPUs that a job asks for on each node. Slurm may split a total; idle nodes are assumed."""
    asked, node_gpus = script.resources, max(_node_counts(script, "gpus_per_node"))
    total, per_task = asked.gpus_in_all, sum(count for _, count in asked.gpus_per_task or ())
    if asked.gpu_option == "gpus-per-task" and per_task and tasks:
        return tuple(per_task * number for number in tasks)
    if asked.gpu_option != "gpus" or asked.gpus_per_node:
        return (asked.gpu_count,) * nodes
    if asked.splits_gpus([node_gpus] if node_gpus else (), whole_nodes=script.has_nodes_alone):
        return split_among_nodes(total, nodes, node_gpus or None)
    return (max(total // nodes, 1),) * nodes


def _refuse_above(unit: str, number: int, limit: int) -> None:
    if number > limit:
        raise DocumentError.of(f"plan shows at most {limit} {unit}", fix="plan the job with fewer")


def _node_counts(script: JobScript, key: str) -> list[int]:
    """Return the values of a key such as cpus_per_node, for each partition of the script, and 0."""
    return [0, *(int(getattr(partition, key) or 0) for partition in script.partitions.values())]


def _cpus_of_node(asked: ResourceRequest, script: JobScript, gpus: int) -> int:
    """Return the CPUs that a job gets on a node apart from those of its tasks, at least 1."""
    if script.has_nodes_alone:
        return max(1, *_node_counts(script, "cpus_per_node"))
    return asked.cpus_per_gpu * gpus if asked.cpus_per_gpu else 1


def _job_variables(script: JobScript, held: Grant, user: str, uid: int, gid: int) -> dict[str, str]:
    asked = script.resources
    per_node = asked.ntasks_per_node if script.release < _SPREADING_RELEASE else None
    variables = {
        "ENVIRONMENT": "BATCH",
        **dict.fromkeys(("HOSTNAME", "SLURMD_NODENAME", "SLURM_TOPOLOGY_ADDR"), held.nodes[0]),
        **dict.fromkeys(_ZERO_VARIABLES, "0"),
        **dict.fromkeys(("SLURM_JOB_ID", "SLURM_JOBID"), str(JOB_ID)),
        **dict.fromkeys(("SLURM_JOB_NUM_NODES", "SLURM_NNODES"), str(len(held.nodes))),
        **dict.fromkeys(("SLURM_JOB_NODELIST", "SLURM_NODELIST"), node_list([*held.nodes], [*held.nodes])),
        "SLURM_CLUSTER_NAME": str(script.profile.name) if script.knows_cluster else "cluster",
        "SLURM_CONF": "/etc/slurm/slurm.conf",
        "SLURM_CPUS_ON_NODE": str(held.cpus[0]),
        "SLURM_JOB_CPUS_PER_NODE": counts(held.cpus),
        "SLURM_JOB_GID": str(gid),
        "SLURM_JOB_NAME": script.option("job-name") or script.file.rpartition("/")[2],
        "SLURM_JOB_PARTITION": next(iter(asked.partitions), "partition"),
        "SLURM_JOB_UID": str(uid),
        "SLURM_JOB_USER": user,
        "SLURM_SUBMIT_HOST": "login",
        "SLURM_TASKS_PER_NODE": counts((per_node,) * len(held.nodes) if per_node else held.tasks),
        "SLURM_TASK_PID": "2",
        "SLURM_TOPOLOGY_ADDR_PATTERN": "node",
        "TMPDIR": "/tmp",  # noqa: S108 - on the node
    }
    variables |= _option_variables(script)
    if script.release < _TIMES_RELEASE:
        return variables | {"SLURM_NODE_ALIASES": "(null)"}
    seconds = asked.time if asked.time and asked.time != UNLIMITED else 365 * 24 * 3600
    later = {"SLURM_JOB_START_TIME": str(START_TIME), "SLURM_JOB_END_TIME": str(START_TIME + seconds)}
    later |= {"SLURM_OOM_KILL_STEP": "0", "SLURM_STEP_ID": "-5", "SLURM_STEPID": "-5"}
    return variables | later


def _option_variables(script: JobScript) -> dict[str, str]:
    """Return the variables that Slurm sets only for some options of a job."""
    asked, variables = script.resources, dict[str, str]()
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
    for part, amount in (("NODE", asked.mem), ("CPU", asked.mem_per_cpu), ("GPU", asked.mem_per_gpu)):
        if amount:  # 0 stands for all memory of a node
            variables[f"SLURM_MEM_PER_{part}"] = str(amount)
    return variables


def _task_variables(asked: ResourceRequest, tasks: int, release: str) -> dict[str, str]:
    variables: dict[str, str] = {}
    if per_gpu := asked.ntasks_per_gpu:
        variables["SLURM_NTASKS_PER_GPU"] = str(per_gpu)
    if asked.ntasks or asked.ntasks_per_node or per_gpu:
        variables |= {"SLURM_NTASKS": str(tasks), "SLURM_NPROCS": str(tasks)}
    if asked.ntasks_per_node:
        variables["SLURM_NTASKS_PER_NODE"] = str(asked.ntasks_per_node)
    if asked.cpus_per_task:
        variables["SLURM_CPUS_PER_TASK"] = str(asked.cpus_per_task)
        if release >= "24.11":
            variables["SLURM_TRES_PER_TASK"] = f"cpu={asked.cpus_per_task}"
    if release < "23.11" and asked.gpus_per_task:
        variables["SLURM_GPUS_PER_TASK"] = _amounts_text(asked.gpus_per_task)
    if asked.cpus_per_gpu:
        variables["SLURM_CPUS_PER_GPU"] = str(asked.cpus_per_gpu)
    return variables


def _gpu_variables(asked: ResourceRequest, gpus: int) -> dict[str, str]:
    if not gpus:
        return {}
    numbers = ",".join(map(str, range(gpus)))
    variables = dict.fromkeys((*GPU_VARIABLES, "SLURM_JOB_GPUS"), numbers) | {"SLURM_GPUS_ON_NODE": str(gpus)}
    if asked.gpus_per_node:
        variables["SLURM_GPUS_PER_NODE"] = _amounts_text(asked.gpus_per_node)
    if asked.gpus:
        variables["SLURM_GPUS"] = _amounts_text(asked.gpus)
    return variables


def _array_variables(script: JobScript) -> dict[str, str]:
    if not script.array:
        return {}
    numbers = [number for run in script.array for number in (run[0], run[-1])]
    values = {
        "JOB_ID": JOB_ID,
        "TASK_COUNT": script.array_tasks,
        "TASK_ID": min(numbers),
        "TASK_MAX": max(numbers),
        "TASK_MIN": min(numbers),
        "TASK_STEP": script.array[0].step,
    }
    return {f"SLURM_ARRAY_{name}": str(value) for name, value in values.items()}


def _amounts_text(amounts: Amounts) -> str:
    return ",".join(f"{kind}:{count}" if kind else str(count) for kind, count in amounts)
