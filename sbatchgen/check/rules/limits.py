"""Rules about limits of a cluster, its partitions and QOS: time, nodes, GPUs, arrays and who may use them.

No rule judges a fact that the profile lacks. Sources: sbatch(1), slurm.conf(5).
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence

from sbatchgen.base.errors import did_you_mean
from sbatchgen.base.finding import NOWHERE, Severity
from sbatchgen.base.quoting import counted
from sbatchgen.base.units import Text
from sbatchgen.check.cluster_facts import GPU_HOLDERS, PartitionFacts, Qos, restriction
from sbatchgen.check.rules.option_values import time_limit
from sbatchgen.check.rules.rule import Applies, Hit, Rules
from sbatchgen.check.sbatch.option_table import specs
from sbatchgen.check.script.job import NO_PARTITION, Job

RULES: Rules[Job] = Rules()

GPU_LIMIT_RULES = ("SB224", "SB254")  # rules whose limits a job without --nodes may keep with fewer nodes
_LIMITS_PAGE = "https://slurm.schedmd.com/resource_limits.html"
OR_UPDATE_PROFILE = "or bring the profile up to date: sbatchgen profile discover --update"  # the end of a fix
MAX_ARRAY_SIZE = 1001  # the default of MaxArraySize in slurm.conf
USUAL_QOS = "normal"  # the default QOS, unless an administrator changed it: sacctmgr(1)
# A time limit in a line that sbatch does not read as a directive, such as `# SBATCH --time=1:00` or `-t 60`.
_TIME_OPTION = re.compile(r"--?(?:wall)?time\b|[ \t]-t[ \t=]?\d")
MANY_TASKS = 500  # arrays with this number of tasks or more should limit how many run at a time


@RULES.add_fit("SB201", "error", "the cluster has no such partition")
def _partition_known(job: Job) -> Iterator[Hit]:
    profile, known = job.profile, job.profile.partitions
    if not known or "partition" in profile.omit:
        return
    for name in job.resources.partitions:
        if name not in known:
            what, severity = f"cluster '{profile.name}' has no partition '{name}'", None
            if profile.sources and profile.user is None:  # documentation may leave out partitions
                what, severity = f"profile '{profile.name}' lists no partition '{name}'", "warning"
            yield Hit("partition", what, did_you_mean(name, known), severity)  # type: ignore[arg-type]


@RULES.add_fit("SB202", "error", "a partition that is down or takes no jobs")
def _partition_up(job: Job) -> Iterator[Hit]:
    for name, partition in job.partitions.items():
        if partition.state != "up":
            takes = "takes jobs but starts none" if partition.state == "down" else "takes no jobs"
            others = [other for other, facts in job.profile.partitions.items() if facts.state == "up"]
            fix = f"use {' or '.join(others[:3])}" if others else "ask the site when it is back"
            severity = "warning" if partition.state == "down" else None
            what = f"partition '{name}' is {partition.state}: it {takes}"
            yield Hit("partition", what, fix, severity, why_not=partition.state)  # type: ignore[arg-type]
        elif partition.nodes == "":
            fix = f"use another partition, {OR_UPDATE_PROFILE}"
            yield Hit("partition", f"partition '{name}' has no nodes", fix, why_not="no nodes")


@RULES.add_fit("SB203", "error", "no partition is asked for, and the cluster has no default")
def _partition_given(job: Job) -> Iterator[Hit]:
    if job.fits_no_partition:
        if job.why_no_partition_fits:
            # If a partition was chosen, the rules that the job breaks there report the error.
            severity: Severity | None = "info" if job.has_chosen_partition else None
            yield Hit(NOWHERE, job.why_no_partition_fits, severity=severity)
    elif job.profile.partitions and not job.resources.partitions and "partition" not in job.profile.omit:
        names = ", ".join(map(str, job.profile.partitions))
        what = f"no --partition is given, and cluster '{job.profile.name}' has no default one: Slurm refuses "
        what += "the job"
        yield Hit("partition", what, f"add --partition, one of: {names}", why_not="no default one")


@RULES.add_fit("SB204", "error", "the time limit is longer than the partition's")
def _time_within_limit(job: Job) -> Iterator[Hit]:
    pends = "pending for ever (PartitionTimeLimit)"
    fates = {None: f"Slurm refuses the job, or leaves it {pends}", "no": f"Slurm leaves the job {pends}"}
    fate_of_time = fates.get(job.profile.limits.enforce_part_limits, _REFUSED)
    for name, partition in job.partitions.items():
        limit, doubt = _limit_and_doubt(job, partition, "time_max")
        for option, seconds, fate in (
            ("time", job.resources.time, fate_of_time),
            ("time-min", job.resources.time_min, _REFUSED),
        ):
            if seconds is not None and limit and seconds > limit:
                what = f"--{option} {time_limit(seconds)} is over the limit {limit} of partition '{name}'"
                why_not = f"time limit {limit} is less than {time_limit(seconds)}"
                fix = f"set --{option} {limit} or less{_qos_fix(job, seconds)}"
                yield Hit(option, f"{what}: {fate}{doubt}", fix, _doubt_severity(doubt), why_not=why_not)


_REFUSED = "Slurm refuses the job"


def _limit_and_doubt(job: Job, partition: PartitionFacts, key: str) -> tuple[int | None, str]:
    """Return a limit of the partition, None if the job's QOS lifts it, and the end of a message.

    The end says that the default QOS may lift the limit, as the rule does not know which QOS is the default.
    It is "" for a certain limit.
    """
    requested = _requested_qos(job)
    lifting = {name for name, qos in _known_qos(job).items() if key in qos.overrides}
    limit: int | None = None if lifting.intersection(requested) else getattr(partition, key)
    return limit, ", unless your default QOS lifts the limit" if lifting and not requested else ""


def _qos_fix(job: Job, seconds: int) -> str:
    """Return the end of a fix that names a QOS for jobs of this time; "" without such a QOS."""
    names = [name for name, qos in job.profile.qos.items() if "time_max" in qos.overrides]
    fitting = [name for name in names if seconds <= (job.profile.qos[name].time_max or seconds)]
    return f", or --qos={fitting[0]}" if fitting and not job.option("qos") else ""


def _doubt_severity(doubt: str) -> Severity | None:
    """Return the severity of a hit whose limit is in doubt; None for the rule's severity."""
    return "warning" if doubt else None


def _requested_qos(job: Job) -> list[str]:
    """Return the QOS of the job in lower case, since Slurm ignores the case (assoc_mgr_fill_in_qos)."""
    return [name for name in job.option("qos").lower().split(",") if name]


def _known_qos(job: Job) -> dict[str, Qos]:
    """Return the QOS of the profile by name, in lower case."""
    return {name.lower(): qos for name, qos in job.profile.qos.items()}


@RULES.add("SB205", "warning", "no time limit is asked for", applies=Applies.USUALLY & ~Applies.PARTS)
def _time_given(job: Job) -> Iterator[Hit]:
    has_no_options = job.is_script and not job.resources.options
    if "time" in job.resources or job.profile.scheduler != "slurm" or has_no_options:
        return  # a script without directives has its options elsewhere, or writes another script
    if job.is_script:
        from sbatchgen.check.rules.directives import unread_lines  # only scripts need the module

        if any(map(_TIME_OPTION.search, unread_lines(job))):  # type: ignore[arg-type]
            return
    limits = [partition.time_default or partition.time_max for partition in job.partitions.values()]
    default = f", {limits[0]}," if limits and limits[0] else ""
    what = f"no --time: the partition's default{default} may end the job too early, or let it wait for long"
    severity = "info" if job.is_brief or job.is_submitted_by_script else None
    yield Hit("time", what, "add --time=HH:MM:SS", severity)  # type: ignore[arg-type]


@RULES.add_fit("SB206", "error", "too many or too few nodes for the partition")
def _nodes_within_limit(job: Job) -> Iterator[Hit]:
    tasks = job.resources.ntasks or job.resources.nodes
    nodes = min(job.resources.nodes, tasks)  # Slurm takes no more nodes than tasks
    for name, partition in job.partitions.items():
        limit, doubt = _limit_and_doubt(job, partition, "nodes_max")
        if partition.nodes_max is None and nodes > 1:
            from sbatchgen.check.sbatch.hostlist import hosts  # only jobs of several nodes need the module

            limit = len(hosts(str(partition.nodes or ""))) or None
        if limit is not None and nodes > limit:
            what = f"partition '{name}' has {limit} nodes, but the job asks for {nodes}"
            if job.profile.limits.enforce_part_limits == "no":
                what += ": Slurm refuses it, or leaves it pending for ever (PartitionNodeLimit)"
            what += doubt
            why_not = f"{counted(limit, 'node')} at most"
            fix = f"ask for at most {limit} nodes"
            yield Hit("nodes", what, fix, _doubt_severity(doubt), why_not=why_not)
        nodes_max = job.resources.nodes_max or nodes
        minimum, doubt = _limit_and_doubt(job, partition, "nodes_min")
        if minimum is not None and "nodes" in job.resources and nodes_max < minimum:
            what = f"partition '{name}' is for jobs of {minimum} nodes or more, "
            what += f"but {nodes_max} were asked for{doubt}"
            fix = f"ask for at least {minimum} nodes, or use another partition"
            yield Hit("nodes", what, fix, _doubt_severity(doubt), why_not=f"{minimum} nodes at least")


@RULES.add_fit("SB250", "error", "the time limit is longer than that for so many nodes")
def _time_of_nodes(job: Job) -> Iterator[Hit]:
    nodes, seconds = job.resources.nodes_max or job.resources.nodes_min or 0, job.resources.time or 0
    for name, partition in job.partitions.items():
        limit, doubt = _limit_and_doubt(job, partition, "time_max")
        is_lifted = not limit and bool(partition.time_max)  # by the job's QOS
        limit = partition.time_limit(nodes) if nodes and not is_lifted else None
        if limit is None or seconds <= limit:
            continue
        if partition.time_max and seconds > partition.time_max:
            continue  # SB204 reports this time
        node_text = counted(nodes, "node")
        what = f"{node_text} of partition '{name}' may run for {limit}, not for {time_limit(seconds)}"
        if partition.node_minutes_max and nodes * seconds > partition.node_minutes_max * 60:
            what += f": a job may have {partition.node_minutes_max} node-minutes"
        other_counts = [span.first for span in partition.time_by_nodes]
        other_counts += [partition.node_minutes_max * 60 // seconds] if partition.node_minutes_max else []
        fitting = [count for count in other_counts if count and seconds <= (partition.time_limit(count) or 0)]
        fixes = [f"--time {limit} or less"] if limit else []
        fixes += [f"--nodes {count}" for count in fitting[:1]]
        why_not = f"{limit} at most for {node_text}"
        fix = f"set {' or '.join(fixes) or 'fewer --nodes and less --time'}"
        yield Hit("time", what + doubt, fix, _doubt_severity(doubt), why_not=why_not)


@RULES.add_fit("SB251", "warning", "an option that does not work on this cluster", source="sbatch(1)")
def _options_work(job: Job) -> Iterator[Hit]:
    resources, limits = job.resources, job.profile.limits
    for option, topology in (("switches", "tree"), ("segment", "block")):
        if option in resources and limits.topology not in (None, topology):
            what = f"Slurm ignores --{option}: this cluster has no topology/{topology}"
            yield Hit(option, what, f"remove --{option}")
    switches = job.option("switches").partition("@")[0]  # of COUNT@TIME
    is_number = re.fullmatch("[0-9]{1,6}", switches) is not None
    nodes_max = int(switches) * (limits.switch_nodes or 0) if is_number else 0  # 0 for unknown
    if nodes_max and limits.topology == "tree" and resources.nodes > nodes_max:
        what = f"--switches={switches} allows {nodes_max} nodes at most, but the job asks for "
        what += f"{resources.nodes}: it waits for 5 minutes or the option's time, then starts on more "
        what += "switches"
        switches_needed = -(-resources.nodes // (limits.switch_nodes or 1))
        yield Hit("switches", what, f"remove it, or set --switches={switches_needed}")
    for name, partition in job.partitions.items():
        if partition.oversubscribed and resources.is_exclusive:
            what = f"other jobs run on the nodes too: partition '{name}' ignores --exclusive (OverSubscribe)"
            yield Hit("exclusive", what, "use another partition, or remove --exclusive")
        if partition.exclusive and "oversubscribe" in resources:
            what = f"partition '{name}' ignores --oversubscribe: jobs get whole nodes"
            yield Hit("oversubscribe", what, "remove --oversubscribe")


@RULES.add_fit("SB223", "error", "a required option is missing, or its value is not allowed")
def _required_options(job: Job) -> Iterator[Hit]:
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
            yield from _closed_partition(job, name, option, allowed, denied)


def _closed_partition(
    job: Job, partition: str, option: str, allowed: Sequence[str], denied: Sequence[str]
) -> Iterator[Hit]:
    """Find a partition that a job may not use with its account or QOS; `option` is "account" or "qos".

    With a database, Slurm compares the account and the QOS, even if it enforces no associations. Without a
    database, Slurm knows no accounts: if AllowAccounts names some, 22.05 starts no job, and 26.05 every job.
    """
    limits = job.profile.limits
    may_lack_database = limits.enforce_accounts is False and not limits.enforce_qos
    value = job.option(option) or str(getattr(job.user, option, None) or "")
    if option == "account" and allowed and may_lack_database and (not value or value in allowed):
        pends = limits.enforce_part_limits not in ("any", "all")
        fate = "leaves the job pending for ever" if pends else "refuses the job"
        what = f"partition '{partition}' is only for some accounts: without a database (slurmdbd) Slurm "
        what += f"knows no account, and release 22.05 {fate}"
        fix = "use a partition that is open to all, unless sacctmgr shows accounts"
        yield Hit("partition", what, fix, "warning", why_not=restriction(option, allowed))
    if not value and option == "qos" and allowed and USUAL_QOS not in map(str.lower, allowed):
        what = f"partition '{partition}' is only for qos {' or '.join(allowed)}"
        what += f"{job.profile.key_place(f'partitions.{partition}.qos')}, and the job names no qos"
        yield Hit(option, what, f"add --qos {allowed[0]}, unless your default is one", "warning")
    same = str.lower if option == "qos" else str
    is_allowed = not allowed or same(value) in map(same, allowed)
    if not value or "," in value or (is_allowed and same(value) not in map(same, denied)):
        return
    your = "your " * (option not in job.resources)  # the user's default
    what = f"partition '{partition}' does not allow {your}{option} '{value}'"
    what += ": with a database (slurmdbd) Slurm leaves the job pending for ever" * may_lack_database
    fix = f"use {option} {' or '.join(allowed)}" if allowed else f"use another {option}"
    why_not = restriction(option, allowed) if allowed else f"not for {option} {value}"
    yield Hit(option, what, fix, "warning" if may_lack_database else None, why_not=why_not)


@RULES.add_fit("SB238", "error", "a partition, account or QOS that is not for this user")
def _open_to_user(job: Job) -> Iterator[Hit]:
    may_pend = job.profile.limits.enforce_part_limits in (None, "no")
    for name, partition in job.partitions.items():
        if not (partition.groups or partition.submit_hosts):
            continue
        from sbatchgen.check.script.user import closing_reasons  # few partitions are closed

        for why_not, is_certain in closing_reasons(partition, job.user):
            fate = ": Slurm refuses the job" + ", or leaves it pending for ever" * may_pend
            what = f"partition '{name}' is {why_not}" + fate * is_certain
            fix = "use another partition, or ask an administrator"
            yield Hit("partition", what, fix, None if is_certain else "warning", why_not=why_not)
    accounts = job.user.accounts if job.user else {}
    account = job.option("account") or str((job.user and job.user.account) or "")
    if accounts and account and account not in accounts:
        is_enforced = job.profile.limits.enforce_accounts is not False
        fate = "Slurm refuses the job"
        if not is_enforced:
            fate = "partitions with lists of accounts may start no such job"
        what = f"{job.user and job.user.name} has no account '{account}' here: {fate}"
        yield Hit("account", what, did_you_mean(account, accounts), None if is_enforced else "warning")
    allowed = accounts.get(Text(account), ())
    for qos in _requested_qos(job) if allowed and job.profile.limits.enforce_qos else ():
        if qos in _known_qos(job) and qos not in (name.lower() for name in allowed):
            what = f"account '{account}' may not use qos '{qos}': Slurm refuses the job"
            yield Hit("qos", what, f"use {' or '.join(allowed)}")


@RULES.add_fit("SB224", "error", "more than the QOS allows", source=_LIMITS_PAGE)
def _within_qos(job: Job) -> Iterator[Hit]:
    known_qos = _known_qos(job)
    for name in _requested_qos(job) if known_qos else ():
        if name not in known_qos:
            is_certain = job.profile.limits.enforce_qos
            fate = "Slurm refuses the job" + ", if it enforces QOS" * (not is_certain)
            what = f"cluster '{job.profile.name}' has no qos '{name}': {fate}"
            if job.profile.sources and job.profile.user is None:  # projects have their own QOS
                what, is_certain = f"profile '{job.profile.name}' lists no qos '{name}'", False
            yield Hit("qos", what, did_you_mean(name, known_qos), None if is_certain else "warning")
    reported: set[str] = set()  # messages: partitions with the same QOS give the same hits
    for partition in job.partitions.values() or [NO_PARTITION]:
        partition_names = {str(name or "").lower() for name in (partition.partition_qos, partition.job_qos)}
        for name, hit in _qos_hits(job, partition):
            if hit.what not in reported:
                reported.add(hit.what)
                yield hit if name in partition_names else hit._replace(why_not="")


def _qos_hits(job: Job, partition: PartitionFacts) -> Iterator[tuple[str, Hit]]:
    """Yield the limits of QOS that the job breaks: the name of the QOS, and the hit.

    If both the partition's QOS and the job's QOS set a limit, the partition's limit counts. OverPartQOS
    (`partition_qos` in `overrides`) turns this around.
    """
    known_qos, partition_qos = _known_qos(job), str(partition.partition_qos or "").lower()
    default = str((job.user and job.user.qos) or "").lower()
    names = (partition_qos, *(_requested_qos(job) or [default]))
    in_force = [name for name in dict.fromkeys(names) if name in known_qos]
    if any("partition_qos" in known_qos[name].overrides for name in in_force if name != partition_qos):
        in_force.reverse()
    is_refused = any(known_qos[name].deny_on_limit for name in in_force)
    set_keys: set[str] = set()  # the limits that an earlier QOS sets
    for name in in_force:
        hits = _broken_limits(job, name, known_qos[name], is_refused=is_refused)
        yield from ((name, hit) for key, hit in hits if key not in set_keys)
        set_keys |= {key for key in _LIMITS if getattr(known_qos[name], key) is not None}


_LIMITS = ("time_max", "nodes_max", "cpus_max", "nodes_min", "gpus_min", "cpus_min", "jobs_max", *GPU_HOLDERS)


def _broken_limits(job: Job, name: str, limits: Qos, *, is_refused: bool) -> Iterator[tuple[str, Hit]]:
    """Yield each limit of a QOS that the job breaks: the key of the limit, and the hit."""
    resources = job.resources
    fate = "Slurm refuses the job" if is_refused else "the job would pend for ever"
    if limits.time_max and (resources.time or 0) > limits.time_max:
        what = f"time {time_limit(resources.time or 0)} is over the limit {limits.time_max} of qos "
        what += f"'{name}': {fate}"
        why_not = f"its qos '{name}' ends at {limits.time_max}"
        yield "time_max", Hit("time", what, f"set --time {limits.time_max} or less", why_not=why_not)
    for option, count, unit in (
        ("nodes", resources.nodes, "nodes"),
        (resources.gpu_option, resources.gpus_in_all, "GPUs"),
        ("cpus-per-task", resources.nodes * resources.cpus_on_node, "CPUs"),
    ):
        minimum, maximum = (getattr(limits, f"{unit.lower()}_{end}") for end in ("min", "max"))
        if maximum is not None and count > maximum:
            what = f"{count} {unit} are over the limit {maximum} of qos '{name}': {fate}"
            why_not = f"its qos '{name}' allows {maximum} {unit}"
            fix = _gpu_fix(job, maximum) if unit == "GPUs" else f"ask for at most {maximum}"
            fix += ", or use another qos"
            yield f"{unit.lower()}_max", Hit(option, what, fix, why_not=why_not)
        if minimum is not None and count < minimum:
            what = f"{count} {unit} are fewer than the {minimum} that qos '{name}' wants: {fate}"
            why_not = f"its qos '{name}' is for {minimum} {unit} or more"
            yield f"{unit.lower()}_min", Hit(option, what, f"ask for at least {minimum}", why_not=why_not)
    gpus = resources.gpus_in_all
    for key in ("gpus_max_user", "gpus_max_account"):
        maximum = getattr(limits, key)
        if maximum is not None and gpus > maximum:
            what = f"{gpus} GPUs are over the limit of qos '{name}', {maximum} for {GPU_HOLDERS[key]}: {fate}"
            why_not = f"its qos '{name}' allows {maximum} GPUs for {GPU_HOLDERS[key]}"
            yield key, Hit(resources.gpu_option, what, _gpu_fix(job, maximum), why_not=why_not)
    if limits.jobs_max is not None and max(job.array_tasks, 1) > limits.jobs_max:
        what = f"qos '{name}' lets a user have {limits.jobs_max} jobs at a time, and the array has "
        what += f"{job.array_tasks}: Slurm refuses it"
        yield "jobs_max", Hit("array", what, "submit smaller arrays, one after the other")


@RULES.add_fit("SB253", "error", "a cluster that has ended", source="docs/reference/profile.md")
def _ended_cluster(job: Job) -> Iterator[Hit]:
    profile = job.profile
    has_ended = profile.until is not None and profile.until.epoch < time.time()
    if not has_ended or job.is_script:
        return
    what = f"'{profile.name}' takes no jobs: it ended on {profile.until}"
    if successor := profile.successor:
        yield Hit(NOWHERE, f"{what}, and '{successor}' took its place", f"--profile {successor}")
    else:
        yield Hit(NOWHERE, what, f"see {profile.url}; choose another profile", "warning")


@RULES.add_fit("SB254", "error", "more GPUs than the partition gives", source="sacctmgr(1)")
def _gpus_of_partition(job: Job) -> Iterator[Hit]:
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
    """Return the fix for a job with more than `gpus_max` GPUs: fewer nodes, or fewer GPUs on each node."""
    nodes, gpus_per_node, option = job.resources.nodes, job.resources.gpu_count, job.resources.gpu_option
    if nodes < 2 or not gpus_per_node or option == "gpus":
        return f"ask for at most {gpus_max}"
    flag = "--gres=gpu:" if job.is_script and option == "gres" else "--gpus-per-node "
    nodes_that_fit = gpus_max // gpus_per_node
    fixes = [f"--nodes {nodes_that_fit}" if nodes_that_fit else f"--nodes 1 {flag}{gpus_max}"]
    fixes += [f"{flag}{gpus_max // nodes}"] if gpus_max >= nodes else []
    return " or ".join(fixes)


@RULES.add_fit(
    "SB232",
    "error",
    "an array that is too large for the cluster",
    pedantic=True,
    has_defaults=True,
    source="",
)
def _array_within_limit(job: Job) -> Iterator[Hit]:
    limits = job.profile.limits
    size = limits.max_array_size or MAX_ARRAY_SIZE
    largest = max((max(indexes[-1], indexes.step) for indexes in job.array), default=-1)
    if largest >= size:
        is_known = limits.max_array_size is not None
        whose = "on this cluster" if is_known else "unless the site changed it"
        what = f"array index {largest} is not below MaxArraySize ({size} {whose}): Slurm refuses the job"
        fix = f"use indices from 0 to {size - 1}, and add an offset in the script"
        yield Hit("array", what, fix, None if is_known else "warning")
    if limits.max_array_tasks is not None and job.array_tasks > limits.max_array_tasks:
        what = f"the array has {job.array_tasks} tasks, and this cluster allows {limits.max_array_tasks}"
        yield Hit("array", what, "submit several arrays")


@RULES.add("SB233", "info", "a large array without a limit on running tasks")
def _array_throttled(job: Job) -> Iterator[Hit]:
    array = job.option("array")
    if job.array_tasks >= MANY_TASKS and "%" not in array:
        what = f"{job.array_tasks} tasks may start at once: they fill the cluster, or use up your limits"
        yield Hit("array", what, f"limit them: --array={array}%50")
