"""Rules that compare a job with the limits of its cluster, for example the longest time of a partition.

The limits are those of partitions, of qualities of service (QOS) and of slurm.conf. A rule that needs a fact
which the profile lacks reports nothing. Sources: sbatch(1), slurm.conf(5).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from sbatchgen.base.errors import did_you_mean
from sbatchgen.base.finding import NOWHERE, Severity
from sbatchgen.base.quoting import counted
from sbatchgen.base.units import Text
from sbatchgen.check.cluster_facts import GPUS_MAX, KnownCluster, PartitionFacts, Qos, restriction
from sbatchgen.check.rules.option_values import time_limit
from sbatchgen.check.rules.rule import Applies, Hit, Rules
from sbatchgen.check.sbatch.option_table import specs
from sbatchgen.check.script.job import NO_PARTITION, Job

RULES: Rules[Job] = Rules()

_LIMITS_PAGE = "https://slurm.schedmd.com/resource_limits.html"
# The rules about the GPUs of all nodes together, whose number a job can lower by asking for fewer nodes.
GPU_LIMIT_RULES = ("SB224", "SB254")
OR_UPDATE_PROFILE = "or bring the profile up to date: sbatchgen profile discover --update"  # the end of a fix
_JOB_REFUSED = "Slurm refuses the job"  # the end of a message
MAX_ARRAY_SIZE = 1001  # the default of MaxArraySize in slurm.conf
MANY_TASKS = 500  # arrays with this number of tasks or more should limit how many run at a time
USUAL_QOS = "normal"  # the default QOS, unless an administrator changed it: sacctmgr(1)
# The keys of the limits of a QOS, in a profile.
_QOS_KEYS = ("time_max", "nodes_max", "cpus_max", "nodes_min", "gpus_min", "cpus_min", "jobs_max", *GPUS_MAX)
# A time limit in a line that sbatch does not read as a directive, such as `# SBATCH --time=1:00` or `-t 60`.
_TIME_OPTION = re.compile(r"--?(?:wall)?time\b|[ \t]-t[ \t=]?\d")


class _PartitionLimit(NamedTuple):
    """A limit of a partition, as it holds for a job."""

    value: int | None  # None without a limit, or if the job's QOS lifts the limit
    doubt: str = ""  # the end of a message, if the user's default QOS may lift the limit; "" for a sure limit


def has_documented_facts(profile: KnownCluster) -> bool:
    """Return whether a profile's facts are from the site's documentation, which may be incomplete.

    `sbatchgen profile discover` asks Slurm for all facts instead, and writes the user into the profile.
    """
    return bool(profile.sources) and profile.user is None


@RULES.add_fit("SB201", "error", "the cluster has no such partition")
def _unknown_partition(job: Job) -> Iterator[Hit]:
    profile, known_names = job.profile, job.profile.partitions
    if not known_names or "partition" in profile.omit:
        return
    what, severity = f"cluster '{profile.name}' has no partition", None
    if has_documented_facts(profile):
        what, severity = f"profile '{profile.name}' lists no partition", "warning"
    for name in job.resources.partitions:
        if name not in known_names:
            fix = did_you_mean(name, known_names)
            yield Hit("partition", f"{what} '{name}'", fix, severity)  # type: ignore[arg-type]


@RULES.add_fit("SB202", "error", "a partition that is down or takes no jobs")
def _partition_without_service(job: Job) -> Iterator[Hit]:
    for name, partition in job.partitions.items():
        if partition.state != "up":
            effect = "takes jobs but starts none" if partition.state == "down" else "takes no jobs"
            severity: Severity | None = "warning" if partition.state == "down" else None
            up_partitions = [other for other, facts in job.profile.partitions.items() if facts.state == "up"]
            fix = f"use {' or '.join(up_partitions[:3])}" if up_partitions else "ask the site when it is back"
            what = f"partition '{name}' is {partition.state}: it {effect}"
            yield Hit("partition", what, fix, severity, why_not=partition.state)
        elif partition.nodes == "":
            fix = f"use another partition, {OR_UPDATE_PROFILE}"
            yield Hit("partition", f"partition '{name}' has no nodes", fix, why_not="no nodes")


@RULES.add_fit("SB203", "error", "no partition is asked for, and the cluster has no default")
def _missing_partition(job: Job) -> Iterator[Hit]:
    if job.fits_nowhere:
        if job.why_nowhere:
            # If sbatchgen chose a partition all the same, the rules that the job breaks there report errors.
            severity: Severity | None = "info" if job.has_chosen_partition else None
            yield Hit(NOWHERE, job.why_nowhere, severity=severity)
    elif job.profile.partitions and not job.resources.partitions and "partition" not in job.profile.omit:
        names = ", ".join(map(str, job.profile.partitions))
        what = f"no --partition is given, and cluster '{job.profile.name}' has no default one: {_JOB_REFUSED}"
        yield Hit("partition", what, f"add --partition, one of: {names}", why_not="no default one")


@RULES.add_fit("SB204", "error", "the time limit is longer than the partition's")
def _time_above_limit(job: Job) -> Iterator[Hit]:
    fates = {  # by EnforcePartLimits of slurm.conf; with "any" and "all", Slurm refuses the job
        None: f"{_JOB_REFUSED}, or leaves it pending for ever (PartitionTimeLimit)",  # not known
        "no": "Slurm leaves the job pending for ever (PartitionTimeLimit)",
    }
    fate_of_time = fates.get(job.profile.limits.enforce_part_limits, _JOB_REFUSED)
    for name, partition in job.partitions.items():
        limit, doubt = _partition_limit(job, partition, "time_max")
        severity: Severity | None = "warning" if doubt else None
        for option, seconds, fate in (
            ("time", job.resources.time, fate_of_time),
            ("time-min", job.resources.time_min, _JOB_REFUSED),
        ):
            if seconds is not None and limit and seconds > limit:
                what = f"--{option} {time_limit(seconds)} is over the limit {limit} of partition '{name}'"
                why_not = f"time limit {limit} is less than {time_limit(seconds)}"
                fix = f"set --{option} {limit} or less{_qos_fix(job, seconds)}"
                yield Hit(option, f"{what}: {fate}{doubt}", fix, severity, why_not=why_not)


def _partition_limit(job: Job, partition: PartitionFacts, key: str) -> _PartitionLimit:
    """Return a partition's limit, which a QOS may lift; `key` names the limit, such as time_max.

    The limit of a job without --qos is in doubt, as the rule does not know which QOS is the default.
    """
    requested = _requested_qos(job)
    lifting = {name for name, qos in _known_qos(job).items() if key in qos.overrides}
    if lifting.intersection(requested):
        return _PartitionLimit(None)
    may_be_lifted = lifting and not requested
    doubt = ", unless your default QOS lifts the limit" if may_be_lifted else ""
    return _PartitionLimit(getattr(partition, key), doubt)


def _qos_fix(job: Job, seconds: int) -> str:
    """Return the end of a fix that names a QOS for jobs of this time; "" without such a QOS."""
    names = [name for name, qos in job.profile.qos.items() if "time_max" in qos.overrides]
    fitting = [name for name in names if seconds <= (job.profile.qos[name].time_max or seconds)]
    return f", or --qos={fitting[0]}" if fitting and not job.option("qos") else ""


def _requested_qos(job: Job) -> list[str]:
    """Return the names in the job's --qos in lower case, since Slurm ignores the case.

    Source: assoc_mgr_fill_in_qos of Slurm.
    """
    return [name for name in job.option("qos").lower().split(",") if name]


def _known_qos(job: Job) -> dict[str, Qos]:
    """Return the profile's QOS by their names in lower case."""
    return {name.lower(): qos for name, qos in job.profile.qos.items()}


@RULES.add("SB205", "warning", "no time limit is asked for", applies=Applies.USUALLY & ~Applies.PARTS)
def _missing_time(job: Job) -> Iterator[Hit]:
    # Such a script gets its options on sbatch's command line, or writes another script.
    is_without_directives = job.is_script and not job.resources.options
    if "time" in job.resources or job.profile.scheduler != "slurm" or is_without_directives:
        return
    if job.is_script:
        from sbatchgen.check.rules.directives import unread_lines  # only scripts need the module

        if any(map(_TIME_OPTION.search, unread_lines(job))):  # type: ignore[arg-type]
            return
    default_times = [partition.time_default or partition.time_max for partition in job.partitions.values()]
    default = f", {default_times[0]}," if default_times and default_times[0] else ""
    what = f"no --time: the partition's default{default} may end the job too early, or let it wait for long"
    severity = "info" if job.is_brief or job.is_wrapped else None
    yield Hit("time", what, "add --time=HH:MM:SS", severity)  # type: ignore[arg-type]


@RULES.add_fit("SB206", "error", "too many or too few nodes for the partition")
def _nodes_beyond_limits(job: Job) -> Iterator[Hit]:
    resources = job.resources
    # Slurm gives a job no more nodes than tasks.
    fewest_nodes = min(resources.nodes, resources.ntasks or resources.nodes)
    most_nodes = resources.nodes_max or fewest_nodes
    for name, partition in job.partitions.items():
        limit, doubt = _partition_limit(job, partition, "nodes_max")
        if partition.nodes_max is None and fewest_nodes > 1:
            from sbatchgen.check.sbatch.hostlist import hosts  # only jobs of several nodes need the module

            limit = len(hosts(str(partition.nodes or ""))) or None
        if limit is not None and fewest_nodes > limit:
            what = f"partition '{name}' has {limit} nodes, but the job asks for {fewest_nodes}"
            if job.profile.limits.enforce_part_limits == "no":
                what += ": Slurm refuses it, or leaves it pending for ever (PartitionNodeLimit)"
            why_not = f"{counted(limit, 'node')} at most"
            fix = f"ask for at most {limit} nodes"
            yield Hit("nodes", what + doubt, fix, "warning" if doubt else None, why_not=why_not)
        minimum, doubt = _partition_limit(job, partition, "nodes_min")
        if minimum is not None and "nodes" in resources and most_nodes < minimum:
            what = f"partition '{name}' is for jobs of {minimum} nodes or more, "
            what += f"but {most_nodes} were asked for{doubt}"
            fix = f"ask for at least {minimum} nodes, or use another partition"
            yield Hit("nodes", what, fix, "warning" if doubt else None, why_not=f"{minimum} nodes at least")


@RULES.add_fit("SB250", "error", "the time limit is longer than that for so many nodes")
def _time_above_limit_of_nodes(job: Job) -> Iterator[Hit]:
    """Find a time above the limit that a partition sets for the job's number of nodes."""
    nodes = job.resources.nodes_max or job.resources.nodes_min or 0  # 0 for a job without --nodes
    seconds = job.resources.time or 0
    for name, partition in job.partitions.items():
        limit_of_all, doubt = _partition_limit(job, partition, "time_max")
        is_lifted_by_qos = not limit_of_all and bool(partition.time_max)
        limit = partition.time_limit(nodes) if nodes and not is_lifted_by_qos else None
        is_above_limit_of_all = partition.time_max and seconds > partition.time_max
        if limit is None or seconds <= limit or is_above_limit_of_all:
            continue  # SB204 reports a time above the limit of all jobs
        node_text = counted(nodes, "node")
        what = f"{node_text} of partition '{name}' may run for {limit}, not for {time_limit(seconds)}"
        node_minutes_max = partition.node_minutes_max
        if node_minutes_max and nodes * seconds > node_minutes_max * 60:
            what += f": a job may have {node_minutes_max} node-minutes"
        other_counts = [node_range.first for node_range in partition.time_by_nodes]
        other_counts += [node_minutes_max * 60 // seconds] if node_minutes_max else []
        fitting = [count for count in other_counts if count and seconds <= (partition.time_limit(count) or 0)]
        fixes = [f"--time {limit} or less"] if limit else []
        fixes += [f"--nodes {count}" for count in fitting[:1]]
        why_not = f"{limit} at most for {node_text}"
        fix = f"set {' or '.join(fixes) or 'fewer --nodes and less --time'}"
        yield Hit("time", what + doubt, fix, "warning" if doubt else None, why_not=why_not)


@RULES.add_fit("SB223", "error", "a required option is missing, or its value is not allowed")
def _missing_or_refused_options(job: Job) -> Iterator[Hit]:
    for key in job.profile.required:
        option = key.replace("_", "-")
        if option not in job.resources and option in specs(job.slurm):
            what = f"cluster '{job.profile.name}' requires --{option}{job.profile.line('required')}"
            yield Hit(option, what, f"add --{option} ...")
    for name, partition in job.partitions.items():
        for option, allowed, denied in (
            ("account", partition.accounts, partition.accounts_denied),
            ("qos", partition.qos, partition.qos_denied),
        ):
            yield from _disallowed_value(job, name, option, allowed, denied)


def _disallowed_value(
    job: Job, partition: str, option: str, allowed: Sequence[str], denied: Sequence[str]
) -> Iterator[Hit]:
    """Find an account or QOS with which a job may not use a partition; `option` is "account" or "qos".

    With a database, Slurm compares the account and the QOS, even if it enforces no associations. Without a
    database, Slurm knows no accounts. If AllowAccounts then names some, Slurm 22.05 starts no job, and 26.05
    starts every job.
    """
    limits = job.profile.limits
    may_lack_database = limits.enforce_accounts is False and not limits.enforce_qos
    value = job.option(option) or str(getattr(job.user, option, None) or "")  # or the user's default
    if option == "account" and allowed and may_lack_database and (not value or value in allowed):
        is_pending = limits.enforce_part_limits not in ("any", "all")
        fate = "leaves the job pending for ever" if is_pending else "refuses the job"
        what = f"partition '{partition}' is only for some accounts: without a database (slurmdbd) Slurm "
        what += f"knows no account, and release 22.05 {fate}"
        fix = "use a partition that is open to all, unless sacctmgr shows accounts"
        yield Hit("partition", what, fix, "warning", why_not=restriction(option, allowed))
    if not value and option == "qos" and allowed and USUAL_QOS not in map(str.lower, allowed):
        what = f"partition '{partition}' is only for qos {' or '.join(allowed)}"
        what += f"{job.profile.line(f'partitions.{partition}.qos')}, and the job names no qos"
        yield Hit(option, what, f"add --qos {allowed[0]}, unless your default is one", "warning")
    normalize = str.lower if option == "qos" else str  # Slurm ignores the case of a QOS
    is_allowed = not allowed or normalize(value) in map(normalize, allowed)
    is_denied = normalize(value) in map(normalize, denied)
    has_several_values = "," in value
    if not value or has_several_values or (is_allowed and not is_denied):
        return
    your = "your " * (option not in job.resources)  # the user's default
    what = f"partition '{partition}' does not allow {your}{option} '{value}'"
    what += ": with a database (slurmdbd) Slurm leaves the job pending for ever" * may_lack_database
    fix = f"use {option} {' or '.join(allowed)}" if allowed else f"use another {option}"
    why_not = restriction(option, allowed) if allowed else f"not for {option} {value}"
    yield Hit(option, what, fix, "warning" if may_lack_database else None, why_not=why_not)


@RULES.add_fit("SB238", "error", "a partition, account or QOS that is not for this user")
def _not_for_user(job: Job) -> Iterator[Hit]:
    may_pend = job.profile.limits.enforce_part_limits in (None, "no")
    fate = f": {_JOB_REFUSED}" + ", or leaves it pending for ever" * may_pend
    for name, partition in job.partitions.items():
        if not (partition.groups or partition.submit_hosts):
            continue
        from sbatchgen.check.script.user import closing_reasons  # few partitions are closed

        for why_not, is_certain in closing_reasons(partition, job.user):
            what = f"partition '{name}' is {why_not}" + fate * is_certain
            fix = "use another partition, or ask an administrator"
            yield Hit("partition", what, fix, None if is_certain else "warning", why_not=why_not)
    if job.user is None:
        return
    accounts, account = job.user.accounts, job.option("account") or str(job.user.account or "")
    if accounts and account and account not in accounts:
        severity: Severity | None = None
        what = f"{job.user.name} has no account '{account}' here: "
        if job.profile.limits.enforce_accounts is False:
            what, severity = f"{what}partitions with lists of accounts may start no such job", "warning"
        else:
            what += _JOB_REFUSED
        yield Hit("account", what, did_you_mean(account, accounts), severity)
    allowed = accounts.get(Text(account), ())
    allowed_names = {name.lower() for name in allowed}
    for qos in _requested_qos(job) if allowed and job.profile.limits.enforce_qos else ():
        if qos in _known_qos(job) and qos not in allowed_names:
            what = f"account '{account}' may not use qos '{qos}': {_JOB_REFUSED}"
            yield Hit("qos", what, f"use {' or '.join(allowed)}")


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
    profile, known_qos = job.profile, _known_qos(job)
    is_enforced = profile.limits.enforce_qos
    is_documented = has_documented_facts(profile)  # projects have QOS that no documentation lists
    severity: Severity | None = None if is_enforced and not is_documented else "warning"
    for name in _requested_qos(job) if known_qos else ():
        if name not in known_qos:
            fate = _JOB_REFUSED + ", if it enforces QOS" * (not is_enforced)
            what = f"cluster '{profile.name}' has no qos '{name}': {fate}"
            what = f"profile '{profile.name}' lists no qos '{name}'" if is_documented else what
            yield Hit("qos", what, did_you_mean(name, known_qos), severity)


def _qos_hits(job: Job, partition: PartitionFacts) -> Iterator[tuple[str, Hit]]:
    """Yield a hit for each limit of a QOS that the job breaks in a partition, after the name of the QOS.

    If both the partition's QOS and the job's QOS set a limit, the partition's limit counts. With OverPartQOS
    (`partition_qos` in `overrides`), the limit of the job's QOS counts.
    """
    known_qos, partition_qos = _known_qos(job), str(partition.partition_qos or "").lower()
    default_qos = str((job.user and job.user.qos) or "").lower()
    candidates = (partition_qos, *(_requested_qos(job) or [default_qos]))
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
    fate = _JOB_REFUSED if is_refused else "the job would pend for ever"
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
            what = f"{gpus} GPUs are over the limit of qos '{name}', {maximum} for {GPUS_MAX[key]}: {fate}"
            why_not = f"its qos '{name}' allows {maximum} GPUs for {GPUS_MAX[key]}"
            yield key, Hit(resources.gpu_option, what, _gpu_fix(job, maximum), why_not=why_not)
    if qos.jobs_max is not None and max(job.array_tasks, 1) > qos.jobs_max:
        what = f"qos '{name}' lets a user have {qos.jobs_max} jobs at a time, and the array has "
        what += f"{job.array_tasks}: Slurm refuses it"
        yield "jobs_max", Hit("array", what, "submit smaller arrays, one after the other")


@RULES.add_fit("SB254", "error", "more GPUs than the partition gives", source="sacctmgr(1)")
def _gpus_above_partition_limit(job: Job) -> Iterator[Hit]:
    gpus = job.resources.gpus_in_all
    for name, partition in job.partitions.items():
        for key, holder in GPUS_MAX.items():
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


@RULES.add_fit(
    "SB232",
    "error",
    "an array that is too large for the cluster",
    pedantic=True,
    has_defaults=True,
    source="",
)
def _too_large_array(job: Job) -> Iterator[Hit]:
    limits = job.profile.limits
    max_array_size = limits.max_array_size or MAX_ARRAY_SIZE
    # Slurm also compares the step of an item such as 0-9:2 with MaxArraySize.
    largest = max((max(indices[-1], indices.step) for indices in job.array), default=-1)
    if largest >= max_array_size:
        is_known = limits.max_array_size is not None
        limit_text = f"{max_array_size} {'on this cluster' if is_known else 'unless the site changed it'}"
        what = f"array index {largest} is not below MaxArraySize ({limit_text}): {_JOB_REFUSED}"
        fix = f"use indices from 0 to {max_array_size - 1}, and add an offset in the script"
        yield Hit("array", what, fix, None if is_known else "warning")
    if limits.max_array_tasks is not None and job.array_tasks > limits.max_array_tasks:
        what = f"the array has {job.array_tasks} tasks, and this cluster allows {limits.max_array_tasks}"
        yield Hit("array", what, "submit several arrays")


@RULES.add("SB233", "info", "a large array without a limit on running tasks")
def _unthrottled_array(job: Job) -> Iterator[Hit]:
    array = job.option("array")
    if job.array_tasks >= MANY_TASKS and "%" not in array:
        what = f"{job.array_tasks} tasks may start at once: they fill the cluster, or use up your limits"
        yield Hit("array", what, f"limit them: --array={array}%50")
