"""The nodes that a job would get, and the variables that Slurm sets in its batch script.

Source: jobs on Slurm 22.05 and 26.05 (tests/plan); sbatch(1), OUTPUT ENVIRONMENT VARIABLES.
"""

from __future__ import annotations

from dataclasses import replace

from sbatchgen.errors import DocumentError
from sbatchgen.frozen import frozen
from sbatchgen.job.script import JobScript
from sbatchgen.plan.step import GPU_VARIABLES, counts, node_list
from sbatchgen.resolved.resource_request import UNLIMITED, Amounts, ResourceRequest

JOB_ID = 1000001
STARTED = 1_700_000_000  # SLURM_JOB_START_TIME, which later releases set
_MOST_NODES, _MOST_TASKS, _MOST_GPUS = 1024, 1 << 17, 1024  # the GPUs of a node
_FIRST = ("SLURM_GTIDS", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_PRIO_PROCESS", "SLURM_PROCID")
_LATER = "23.02"
_SPREADING = "24.05"  # from here on SLURM_TASKS_PER_NODE is of the tasks that a job has


@frozen(kw_only=True)
class Grant:
    """What a job holds."""

    nodes: tuple[str, ...]  # their names
    tasks: tuple[int, ...]  # how many tasks each may run
    cpus: tuple[int, ...]  # CPUs of each
    gpus: int  # GPUs of each
    asked_gpus: int  # those that the job asks for: a step sees no other, also where a whole node has more
    environment: dict[str, str]  # what Slurm sets in the batch script, on the first node


def grant(script: JobScript, *, nodes: int | None = None, user: str, uid: int, gid: int) -> Grant:
    """Return what a script asks for, on nodes that do not exist; `nodes` is in place of its own --nodes.

    Raises:
        DocumentError: It asks for more than a plan can show.
    """
    asked = script.resources
    wanted = nodes or asked.nodes
    is_scaled = bool(nodes and asked.ntasks_per_node)
    count = max(wanted if is_scaled else min(wanted, asked.ntasks or wanted), 1)  # no node without a task
    _hold("nodes", count, _MOST_NODES)
    width = len(str(count))
    names = tuple(f"node{number:0{width}}" for number in range(1, count + 1))
    per_task = asked.cpus_per_task or 1
    total = None if is_scaled else asked.ntasks
    tasks: tuple[int, ...] | None = (asked.ntasks_per_node,) * count if asked.ntasks_per_node else None
    if total:
        each, more = divmod(total, count)
        tasks = tuple(each + (number < more) for number in range(count))
    few = asked.gpu_count
    if asked.gpus and not asked.gpus_per_node and not asked.gres:
        few = max(sum(number for _, number in asked.gpus) // count, 1)
    gpus = max(few, *_whole(script, "gpus_per_node")) if asked.is_exclusive else few
    _hold("GPUs on a node", gpus, _MOST_GPUS)
    if tasks is None:
        on_node = max(_cpus_of_node(asked, script, gpus), per_task)
        cpus = (on_node,) * count
        tasks = (on_node // per_task,) * count
    else:
        # A node has CPUs for these, if it runs fewer.
        least = (asked.ntasks_per_node or 1) if count > 1 else 1
        on_node = _cpus_of_node(asked, script, gpus)
        cpus = tuple(max(on_node, max(number, least) * per_task) for number in tasks)
    _hold("tasks", sum(tasks), _MOST_TASKS)
    held = Grant(nodes=names, tasks=tasks, cpus=cpus, gpus=gpus, asked_gpus=few, environment={})
    variables = _of_job(script, held, user, uid, gid) | _of_tasks(asked, total or sum(tasks), script.release)
    return replace(held, environment=variables | _of_gpus(asked, gpus) | _of_array(script))


def _hold(what: str, number: int, limit: int) -> None:
    if number > limit:
        raise DocumentError.of(f"plan shows at most {limit} {what}", fix="plan the job with fewer")


def _whole(script: JobScript, what: str) -> list[int]:
    return [0, *(int(getattr(part, what) or 0) for part in script.partitions.values())]


def _cpus_of_node(asked: ResourceRequest, script: JobScript, gpus: int) -> int:
    if asked.is_exclusive:
        return max(1, *_whole(script, "cpus_per_node"))
    return asked.cpus_per_gpu * gpus if asked.cpus_per_gpu else 1


def _of_job(script: JobScript, held: Grant, user: str, uid: int, gid: int) -> dict[str, str]:
    asked = script.resources
    per_node = asked.ntasks_per_node if script.release < _SPREADING else None
    variables = {
        "ENVIRONMENT": "BATCH",
        **dict.fromkeys(("HOSTNAME", "SLURMD_NODENAME", "SLURM_TOPOLOGY_ADDR"), held.nodes[0]),
        **dict.fromkeys(_FIRST, "0"),
        **dict.fromkeys(("SLURM_JOB_ID", "SLURM_JOBID"), str(JOB_ID)),
        **dict.fromkeys(("SLURM_JOB_NUM_NODES", "SLURM_NNODES"), str(len(held.nodes))),
        **dict.fromkeys(("SLURM_JOB_NODELIST", "SLURM_NODELIST"), node_list([*held.nodes], [*held.nodes])),
        "SLURM_CLUSTER_NAME": str(script.profile.name) if script.known else "cluster",
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
        if amount:  # 0 is all of it
            variables[f"SLURM_MEM_PER_{part}"] = str(amount)
    if script.release < _LATER:
        return variables | {"SLURM_NODE_ALIASES": "(null)"}
    seconds = asked.time if asked.time and asked.time != UNLIMITED else 365 * 24 * 3600
    later = {"SLURM_JOB_START_TIME": str(STARTED), "SLURM_JOB_END_TIME": str(STARTED + seconds)}
    later |= {"SLURM_OOM_KILL_STEP": "0", "SLURM_STEP_ID": "-5", "SLURM_STEPID": "-5"}
    return variables | later


def _of_tasks(asked: ResourceRequest, tasks: int, release: str) -> dict[str, str]:
    variables: dict[str, str] = {}
    if asked.ntasks or asked.ntasks_per_node:
        variables |= {"SLURM_NTASKS": str(tasks), "SLURM_NPROCS": str(tasks)}
    if asked.ntasks_per_node:
        variables["SLURM_NTASKS_PER_NODE"] = str(asked.ntasks_per_node)
    if asked.cpus_per_task:
        variables["SLURM_CPUS_PER_TASK"] = str(asked.cpus_per_task)
        if release >= "24.11":
            variables["SLURM_TRES_PER_TASK"] = f"cpu={asked.cpus_per_task}"
    if release < "23.11" and asked.gpus_per_task:
        variables["SLURM_GPUS_PER_TASK"] = _typed(asked.gpus_per_task)
    if asked.cpus_per_gpu:
        variables["SLURM_CPUS_PER_GPU"] = str(asked.cpus_per_gpu)
    return variables


def _of_gpus(asked: ResourceRequest, gpus: int) -> dict[str, str]:
    if not gpus:
        return {}
    numbers = ",".join(map(str, range(gpus)))
    variables = dict.fromkeys((*GPU_VARIABLES, "SLURM_JOB_GPUS"), numbers) | {"SLURM_GPUS_ON_NODE": str(gpus)}
    if asked.gpus_per_node:
        variables["SLURM_GPUS_PER_NODE"] = _typed(asked.gpus_per_node)
    if asked.gpus:
        variables["SLURM_GPUS"] = _typed(asked.gpus)
    return variables


def _of_array(script: JobScript) -> dict[str, str]:
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


def _typed(amounts: Amounts) -> str:
    return ",".join(f"{kind}:{count}" if kind else str(count) for kind, count in amounts)
