"""Rules that compare a job with the limits of its quality of service (QOS) and of GPUs of all nodes together.

A QOS comes from the job's --qos, from its partition, or from the user's default. Source: sacctmgr(1).
"""

from __future__ import annotations

from collections.abc import Iterator

from sbatchgen.base.errors import did_you_mean
from sbatchgen.base.finding import Severity
from sbatchgen.base.quoting import counted
from sbatchgen.check.cluster_facts import GPU_HOLDERS, PartitionFacts, Qos, has_documented_facts
from sbatchgen.check.rules.option_values import time_limit
from sbatchgen.check.rules.rule import Hit, Rules
from sbatchgen.check.script.job import NO_PARTITION, Job

RULES: Rules[Job] = Rules()

_LIMITS_PAGE = "https://slurm.schedmd.com/resource_limits.html"
# The rules about the GPUs of all nodes together, whose number a job can lower by asking for fewer nodes.
GPU_LIMIT_RULES = ("SB224", "SB254")
# The keys of the limits of a QOS, in a profile.
_QOS_KEYS = (
    "time_max",
    "nodes_max",
    "cpus_max",
    "nodes_min",
    "gpus_min",
    "cpus_min",
    "jobs_max",
    *GPU_HOLDERS,
)
JOB_REFUSED = "Slurm refuses the job"  # the end of a message


def requested_qos(job: Job) -> list[str]:
    """Return the names in the job's --qos in lower case, since Slurm ignores the case.

    Source: assoc_mgr_fill_in_qos of Slurm.
    """
    return [name for name in job.option("qos").lower().split(",") if name]


def qos_by_name(job: Job) -> dict[str, Qos]:
    """Return the profile's QOS by their names in lower case."""
    return {name.lower(): qos for name, qos in job.profile.qos.items()}


@RULES.add_fit("SB224", "error", "more than the QOS allows", source=_LIMITS_PAGE)
def _beyond_qos(job: Job) -> Iterator[Hit]:
    yield from _unknown_qos(job)
    reported: set[str] = set()  # the messages so far, as partitions with the same QOS give the same hits
    for partition in job.partitions.values() or [NO_PARTITION]:
        # Only these QOS come with the partition: in another partition, the job does not break their limits.
        qos_of_partition = {str(qos or "").lower() for qos in (partition.partition_qos, partition.job_qos)}
        for qos_name, hit in _qos_hits(job, partition):
            if hit.what not in reported:
                reported.add(hit.what)
                yield hit if qos_name in qos_of_partition else hit._replace(why_not="")


def _unknown_qos(job: Job) -> Iterator[Hit]:
    """Find names in --qos that the cluster does not have."""
    profile, known_qos = job.profile, qos_by_name(job)
    is_enforced = profile.limits.enforce_qos
    is_documented = has_documented_facts(profile)  # projects have QOS that no documentation lists
    severity: Severity | None = None if is_enforced and not is_documented else "warning"
    if not known_qos:
        return
    for name in requested_qos(job):
        if name not in known_qos:
            fate = JOB_REFUSED + ", if it enforces QOS" * (not is_enforced)
            what = f"cluster '{profile.name}' has no qos '{name}': {fate}"
            what = f"profile '{profile.name}' lists no qos '{name}'" if is_documented else what
            yield Hit("qos", what, did_you_mean(name, known_qos), severity)


def _qos_hits(job: Job, partition: PartitionFacts) -> Iterator[tuple[str, Hit]]:
    """Yield a hit for each limit of a QOS that the job breaks in a partition, after the name of the QOS.

    If both the partition's QOS and the job's QOS set a limit, the partition's limit counts. With OverPartQOS
    (`partition_qos` in `overrides`), the limit of the job's QOS counts.
    """
    known_qos, partition_qos = qos_by_name(job), str(partition.partition_qos or "").lower()
    default_qos = str((job.user and job.user.qos) or "").lower()
    candidates = (partition_qos, *(requested_qos(job) or [default_qos]))
    names = [name for name in dict.fromkeys(candidates) if name in known_qos]  # the first one's limits win
    if any("partition_qos" in known_qos[name].overrides for name in names if name != partition_qos):
        names.reverse()
    is_refused = any(known_qos[name].deny_on_limit for name in names)
    decided_keys: set[str] = set()  # the limits that an earlier QOS sets
    for name in names:
        broken_limits = _broken_limits(job, name, known_qos[name], is_refused=is_refused)
        yield from ((name, hit) for key, hit in broken_limits if key not in decided_keys)
        decided_keys |= {key for key in _QOS_KEYS if getattr(known_qos[name], key) is not None}


def _broken_limits(job: Job, name: str, qos: Qos, *, is_refused: bool) -> Iterator[tuple[str, Hit]]:
    """Yield the key of each limit of a QOS that the job breaks, such as time_max, and the hit.

    `is_refused` says that Slurm refuses a job over the limits. Otherwise the job pends.
    """
    resources, gpus, seconds = job.resources, job.resources.gpus_in_all, job.resources.time or 0
    fate = JOB_REFUSED if is_refused else "the job would pend for ever"
    if qos.time_max and seconds > qos.time_max:
        what = f"time {time_limit(seconds)} is over the limit {qos.time_max} of qos '{name}': {fate}"
        why_not = f"its qos '{name}' ends at {qos.time_max}"
        yield "time_max", Hit("time", what, f"set --time {qos.time_max} or less", why_not=why_not)
    for option, count, unit in (
        ("nodes", resources.nodes, "nodes"),
        (resources.gpu_option, gpus, "GPUs"),
        ("cpus-per-task", resources.nodes * resources.cpus_on_node, "CPUs"),
    ):
        min_key, max_key = f"{unit.lower()}_min", f"{unit.lower()}_max"  # such as gpus_min
        minimum, maximum = getattr(qos, min_key), getattr(qos, max_key)
        if maximum is not None and count > maximum:
            what = f"{count} {unit} are over the limit {maximum} of qos '{name}': {fate}"
            why_not = f"its qos '{name}' allows {maximum} {unit}"
            fix = _gpu_fix(job, maximum) if unit == "GPUs" else f"ask for at most {maximum}"
            yield max_key, Hit(option, what, f"{fix}, or use another qos", why_not=why_not)
        if minimum is not None and count < minimum:
            what = f"{count} {unit} are fewer than the {minimum} that qos '{name}' wants: {fate}"
            why_not = f"its qos '{name}' is for {minimum} {unit} or more"
            yield min_key, Hit(option, what, f"ask for at least {minimum}", why_not=why_not)
    for key in ("gpus_max_user", "gpus_max_account"):
        maximum = getattr(qos, key)
        if maximum is not None and gpus > maximum:
            what = f"{gpus} GPUs are over the limit of qos '{name}', {maximum} for {GPU_HOLDERS[key]}: {fate}"
            why_not = f"its qos '{name}' allows {maximum} GPUs for {GPU_HOLDERS[key]}"
            yield key, Hit(resources.gpu_option, what, _gpu_fix(job, maximum), why_not=why_not)
    if qos.jobs_max is not None and max(job.array_tasks, 1) > qos.jobs_max:
        array = f", and the array has {job.array_tasks}" * bool(job.array)
        what = f"qos '{name}' lets a user have {counted(qos.jobs_max, 'job')} at a time{array}: {JOB_REFUSED}"
        fix = "submit smaller arrays, one after the other" if qos.jobs_max else "use another qos"
        yield "jobs_max", Hit("array" if job.array else "qos", what, fix)


@RULES.add_fit("SB254", "error", "more GPUs than the partition gives", source="sacctmgr(1)")
def _gpus_above_partition_limit(job: Job) -> Iterator[Hit]:
    gpus = job.resources.gpus_in_all
    for name, partition in job.partitions.items():
        for key, holder in GPU_HOLDERS.items():
            maximum = getattr(partition, key)
            if maximum is not None and gpus > maximum:
                what = f"{gpus} GPUs are over the limit of partition '{name}', {maximum} for {holder}"
                why_not = f"{maximum} GPUs at most for {holder}"
                yield Hit(job.resources.gpu_option, what, _gpu_fix(job, maximum), why_not=why_not)
                break


def _gpu_fix(job: Job, gpus_max: int) -> str:
    """Return the fix for a job with too many GPUs: fewer nodes, or fewer GPUs on each node.

    `gpus_max` is the most GPUs that the job may have on all nodes together.
    """
    nodes, gpus_per_node, option = job.resources.nodes, job.resources.gpu_count, job.resources.gpu_option
    if nodes < 2 or not gpus_per_node or option == "gpus":
        return f"ask for at most {gpus_max}"
    gpus_flag = "--gres=gpu:" if job.is_script and option == "gres" else "--gpus-per-node "
    nodes_max = gpus_max // gpus_per_node
    fixes = [f"--nodes {nodes_max}" if nodes_max else f"--nodes 1 {gpus_flag}{gpus_max}"]
    fixes += [f"{gpus_flag}{gpus_max // nodes}"] if gpus_max >= nodes else []
    return " or ".join(fixes)
