"""Rules that compare a job with the limits of its cluster, for example the longest time of a partition.

The limits are those of partitions, accounts and slurm.conf; rules/qos.py has those of a quality of service
(QOS). A rule that needs a fact which the profile lacks reports nothing. Sources: sbatch(1), slurm.conf(5).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from sbatchgen.base.errors import did_you_mean
from sbatchgen.base.finding import NOWHERE, Severity
from sbatchgen.base.quoting import counted
from sbatchgen.base.units import Text
from sbatchgen.check.cluster_facts import PartitionFacts, has_documented_facts, restriction
from sbatchgen.check.rules.option_values import time_limit
from sbatchgen.check.rules.qos import JOB_REFUSED, qos_by_name, requested_qos
from sbatchgen.check.rules.rule import Applies, Hit, Rules
from sbatchgen.check.sbatch.option_table import specs
from sbatchgen.check.script.job import Job

RULES: Rules[Job] = Rules()

OR_UPDATE_PROFILE = "or bring the profile up to date: sbatchgen profile discover --update"  # the end of a fix
MAX_ARRAY_SIZE = 1001  # the default of MaxArraySize in slurm.conf
MANY_TASKS = 500  # arrays with this number of tasks or more should limit how many run at a time
USUAL_QOS = "normal"  # the default QOS, unless an administrator changed it: sacctmgr(1)
# A time limit in a line that sbatch does not read as a directive, such as `# SBATCH --time=1:00` or `-t 60`.
_TIME_OPTION = re.compile(r"--?(?:wall)?time\b|[ \t]-t[ \t=]?\d")


class _PartitionLimit(NamedTuple):
    """A limit of a partition, as it holds for a job."""

    value: int | None  # None without a limit, or if the job's QOS lifts the limit
    doubt: str = ""  # the end of a message, if the user's default QOS may lift the limit; "" for a sure limit


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
    if job.fits_no_partition:
        if job.why_no_partition_fits:
            # If sbatchgen chose a partition all the same, the rules that the job breaks there report errors.
            severity: Severity | None = "info" if job.has_chosen_partition else None
            yield Hit(NOWHERE, job.why_no_partition_fits, severity=severity)
    elif job.profile.partitions and not job.resources.partitions and "partition" not in job.profile.omit:
        names = ", ".join(map(str, job.profile.partitions))
        what = f"no --partition is given, and cluster '{job.profile.name}' has no default one: {JOB_REFUSED}"
        yield Hit("partition", what, f"add --partition, one of: {names}", why_not="no default one")


@RULES.add_fit("SB204", "error", "the time limit is longer than the partition's")
def _time_above_limit(job: Job) -> Iterator[Hit]:
    fates = {  # by EnforcePartLimits of slurm.conf; with "any" and "all", Slurm refuses the job
        None: f"{JOB_REFUSED}, or leaves it pending for ever (PartitionTimeLimit)",  # not known
        "no": "Slurm leaves the job pending for ever (PartitionTimeLimit)",
    }
    fate_of_time = fates.get(job.profile.limits.enforce_part_limits, JOB_REFUSED)
    for name, partition in job.partitions.items():
        limit, doubt = _partition_limit(job, partition, "time_max")
        severity: Severity | None = "warning" if doubt else None
        for option, seconds, fate in (
            ("time", job.resources.time, fate_of_time),
            ("time-min", job.resources.time_min, JOB_REFUSED),
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
    requested = requested_qos(job)
    lifting = {name for name, qos in qos_by_name(job).items() if key in qos.overrides}
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
    severity = "info" if job.is_brief or job.is_submitted_by_script else None
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
            has = "has" if partition.nodes_max is None else "gives a job at most"
            what = f"partition '{name}' {has} {limit} nodes, but the job asks for {fewest_nodes}"
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
            what = f"cluster '{job.profile.name}' requires --{option}{job.profile.key_place('required')}"
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
        what += f"{job.profile.key_place(f'partitions.{partition}.qos')}, and the job names no qos"
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
    fate = f": {JOB_REFUSED}" + ", or leaves it pending for ever" * may_pend
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
            what += JOB_REFUSED
        yield Hit("account", what, did_you_mean(account, accounts), severity)
    allowed = accounts.get(Text(account), ())
    allowed_names = {name.lower() for name in allowed}
    if not (allowed and job.profile.limits.enforce_qos):
        return
    for qos in requested_qos(job):
        if qos in qos_by_name(job) and qos not in allowed_names:
            what = f"account '{account}' may not use qos '{qos}': {JOB_REFUSED}"
            yield Hit("qos", what, f"use {' or '.join(allowed)}")


@RULES.add_fit(
    "SB232", "error", "an array that is too large for the cluster", pedantic=True, has_defaults=True
)
def _too_large_array(job: Job) -> Iterator[Hit]:
    limits = job.profile.limits
    max_array_size = limits.max_array_size or MAX_ARRAY_SIZE
    # Slurm also compares the step of an item such as 0-9:2 with MaxArraySize.
    largest = max((max(indices[-1], indices.step) for indices in job.array), default=-1)
    if largest >= max_array_size:
        is_known = limits.max_array_size is not None
        limit_text = f"{max_array_size} {'on this cluster' if is_known else 'unless the site changed it'}"
        what = f"array index {largest} is not below MaxArraySize ({limit_text}): {JOB_REFUSED}"
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
