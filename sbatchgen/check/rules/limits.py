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
from sbatchgen.check.cluster_facts import GPUS_MAX, PartitionFacts, Qos, restriction
from sbatchgen.check.rules.option_values import time_limit
from sbatchgen.check.rules.rule import Applies, Hit, Rules
from sbatchgen.check.sbatch.option_table import specs
from sbatchgen.check.script.job import NO_PARTITION, Job

RULES: Rules[Job] = Rules()

GPU_LIMIT_RULES = ("SB224", "SB254")  # rules whose limits a job without --nodes may keep with fewer nodes
_LIMITS_PAGE = "https://slurm.schedmd.com/resource_limits.html"
UPDATE = "or bring the profile up to date: sbatchgen profile discover --update"
MAX_ARRAY_SIZE = 1001  # the default of MaxArraySize in slurm.conf
USUAL_QOS = "normal"  # the default QOS, unless an administrator changed it: sacctmgr(1)
_NAMES_A_TIME = re.compile(r"--?(?:wall)?time\b|[ \t]-t[ \t=]?\d")
MANY_TASKS = 500  # arrays with this number of tasks or more should limit how many run at a time


@RULES.add_fit("SB201", "error", "the cluster has no such partition")
def _partition_known(job: Job) -> Iterator[Hit]:
    profile, known = job.profile, job.profile.partitions
    for name in job.resources.partitions if known and "partition" not in profile.omit else ():
        if name not in known:
            what, severity = f"cluster '{profile.name}' has no partition '{name}'", None
            if profile.sources and profile.user is None:  # documentation names the partitions that matter
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
            fix = f"use another partition, {UPDATE}"
            yield Hit("partition", f"partition '{name}' has no nodes", fix, why_not="no nodes")


@RULES.add_fit("SB203", "error", "no partition is asked for, and the cluster has no default")
def _partition_given(job: Job) -> Iterator[Hit]:
    if job.fits_nowhere:
        if job.why_nowhere:
            # If a partition was chosen, the rules that the job breaks there report the error.
            severity: Severity | None = "info" if job.has_chosen_partition else None
            yield Hit(NOWHERE, job.why_nowhere, severity=severity)
    elif job.profile.partitions and not job.resources.partitions and "partition" not in job.profile.omit:
        names = ", ".join(map(str, job.profile.partitions))
        what = f"no --partition is given, and cluster '{job.profile.name}' has no default one: Slurm refuses "
        what += "the job"
        yield Hit("partition", what, f"add --partition, one of: {names}", why_not="no default one")


@RULES.add_fit("SB204", "error", "the time limit is longer than the partition's")
def _time_within_limit(job: Job) -> Iterator[Hit]:
    pends = "pending for ever (PartitionTimeLimit)"
    fates = {None: f"Slurm refuses the job, or leaves it {pends}", "no": f"Slurm leaves the job {pends}"}
    for name, partition in job.partitions.items():
        limit, doubt = _limit_and_doubt(job, partition, "time_max")
        for option, asked, fate in (
            ("time", job.resources.time, fates.get(job.profile.limits.enforce_part_limits, _REFUSED)),
            ("time-min", job.resources.time_min, _REFUSED),
        ):
            if asked is not None and limit and asked > limit:
                what = f"--{option} {time_limit(asked)} is over the limit {limit} of partition '{name}'"
                why_not = f"time limit {limit} is less than {time_limit(asked)}"
                fix = f"set --{option} {limit} or less{_qos_fix(job, asked)}"
                yield Hit(option, f"{what}: {fate}{doubt}", fix, _doubt_severity(doubt), why_not=why_not)


_REFUSED = "Slurm refuses the job"


def _limit_and_doubt(job: Job, partition: PartitionFacts, key: str) -> tuple[int | None, str]:
    """Return a limit of the partition, None if a QOS lifts it, and a doubt as the end of a message.

    A job without --qos has the default QOS of its user, which the profile does not know.
    """
    asked = _requested_qos(job)
    lifting = {name for name, qos in _known_qos(job).items() if key in qos.overrides}
    limit: int | None = None if lifting.intersection(asked) else getattr(partition, key)
    return limit, ", unless your default QOS lifts the limit" if lifting and not asked else ""


def _qos_fix(job: Job, asked: int) -> str:
    """Return the end of a fix that names a QOS for jobs of `asked` seconds; "" without such a QOS."""
    names = [name for name, qos in job.profile.qos.items() if "time_max" in qos.overrides]
    fitting = [name for name in names if asked <= (job.profile.qos[name].time_max or asked)]
    return f", or --qos={fitting[0]}" if fitting and not job.option("qos") else ""


def _doubt_severity(doubt: str) -> Severity | None:
    return "warning" if doubt else None


def _requested_qos(job: Job) -> list[str]:
    """Return the QOS that the job names, in lower case.

    Slurm ignores the case of a QOS's name (assoc_mgr_fill_in_qos in assoc_mgr.c).
    """
    return [name for name in job.option("qos").lower().split(",") if name]


def _known_qos(job: Job) -> dict[str, Qos]:
    return {name.lower(): qos for name, qos in job.profile.qos.items()}


@RULES.add("SB205", "warning", "no time limit is asked for", applies=Applies.USUALLY & ~Applies.PARTS)
def _time_given(job: Job) -> Iterator[Hit]:
    has_no_options = job.is_script and not job.resources.options
    if "time" in job.resources or job.profile.scheduler != "slurm" or has_no_options:
        return  # a script without directives has its options elsewhere, or writes another script
    if job.is_script:
        from sbatchgen.check.rules.directives import unread_lines  # only scripts need the module

        if any(map(_NAMES_A_TIME.search, unread_lines(job))):  # type: ignore[arg-type]
            return
    limits = [partition.time_default or partition.time_max for partition in job.partitions.values()]
    default = f", {limits[0]}," if limits and limits[0] else ""
    what = f"no --time: the partition's default{default} may end the job too early, or let it wait for long"
    severity = "info" if job.is_brief or job.is_wrapped else None
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
        least, doubt = _limit_and_doubt(job, partition, "nodes_min")
        if least is not None and "nodes" in job.resources and nodes_max < least:
            what = f"partition '{name}' is for jobs of {least} nodes or more, "
            what += f"but {nodes_max} were asked for{doubt}"
            fix = f"ask for at least {least} nodes, or use another partition"
            yield Hit("nodes", what, fix, _doubt_severity(doubt), why_not=f"{least} nodes at least")


@RULES.add_fit("SB250", "error", "the time limit is longer than that for so many nodes")
def _time_of_nodes(job: Job) -> Iterator[Hit]:
    nodes, seconds = job.resources.nodes_max or job.resources.nodes_min or 0, job.resources.time or 0
    for name, partition in job.partitions.items():
        limit, doubt = _limit_and_doubt(job, partition, "time_max")
        limit = partition.time_limit(nodes) if nodes and (limit or not partition.time_max) else None
        if limit is None or seconds <= limit or (partition.time_max and seconds > partition.time_max):
            continue
        node_text = counted(nodes, "node")
        what = f"{node_text} of partition '{name}' may run for {limit}, not for {time_limit(seconds)}"
        if partition.node_minutes_max and nodes * seconds > partition.node_minutes_max * 60:
            what += f": a job may have {partition.node_minutes_max} node-minutes"
        others = [step.first for step in partition.time_by_nodes]
        others += [partition.node_minutes_max * 60 // seconds] if partition.node_minutes_max else []
        fitting = [other for other in others if other and seconds <= (partition.time_limit(other) or 0)]
        ways = [f"--time {limit} or less"] if limit else []
        ways += [f"--nodes {fitting[0]}"] if fitting else []
        why_not = f"{limit} at most for {node_text}"
        yield Hit("time", what + doubt, f"set {' or '.join(ways)}", _doubt_severity(doubt), why_not=why_not)


@RULES.add_fit("SB251", "warning", "an option that does not work on this cluster", source="sbatch(1)")
def _options_work(job: Job) -> Iterator[Hit]:
    resources, limits = job.resources, job.profile.limits
    for option, kind in (("switches", "tree"), ("segment", "block")):
        if option in resources and limits.topology not in (None, kind):
            what = f"Slurm ignores --{option}: this cluster has no topology/{kind}"
            yield Hit(option, what, f"remove --{option}")
    switches = job.option("switches").partition("@")[0]
    reached = int(switches) * (limits.switch_nodes or 0) if re.fullmatch("[0-9]{1,6}", switches) else 0
    if reached and limits.topology == "tree" and resources.nodes > reached:
        what = f"--switches={switches} allows {reached} nodes at most, but the job asks for "
        what += f"{resources.nodes}: it waits for 5 minutes or the option's time, then starts on more "
        what += "switches"
        fitting = -(-resources.nodes // (limits.switch_nodes or 1))
        yield Hit("switches", what, f"remove it, or set --switches={fitting}")
    for name, partition in job.partitions.items():
        if partition.oversubscribed and resources.is_exclusive:
            what = f"other jobs run on the nodes too: partition '{name}' ignores --exclusive (OverSubscribe)"
            yield Hit("exclusive", what, "use another partition, or remove --exclusive")
        if partition.exclusive and "oversubscribe" in resources:
            what = f"partition '{name}' ignores --oversubscribe: jobs get whole nodes"
            yield Hit("oversubscribe", what, "remove --oversubscribe")


@RULES.add_fit("SB223", "error", "a required option is missing, or its value is not allowed")
def _required_options(job: Job) -> Iterator[Hit]:
    for name in job.profile.required:
        option = name.replace("_", "-")
        if option not in job.resources and option in specs(job.slurm):
            what = f"cluster '{job.profile.name}' requires --{option}{job.profile.line('required')}"
            yield Hit(option, what, f"add --{option} ...")
    for where, partition in job.partitions.items():
        for option, allowed, denied in (
            ("account", partition.accounts, partition.accounts_denied),
            ("qos", partition.qos, partition.qos_denied),
        ):
            yield from _closed_partition(job, where, option, allowed, denied)


def _closed_partition(
    job: Job, where: str, option: str, allowed: Sequence[str], denied: Sequence[str]
) -> Iterator[Hit]:
    """Find a partition that a job may not use with its account or QOS.

    With a database, Slurm compares the account and the QOS, even if it enforces no associations. Without a
    database, Slurm knows no accounts: if AllowAccounts names some, 22.05 starts no job, and 26.05 every job.
    """
    limits = job.profile.limits
    no_database = limits.enforce_accounts is False and not limits.enforce_qos
    asked = job.option(option) or str(getattr(job.user, option, None) or "")
    if option == "account" and allowed and no_database and (not asked or asked in allowed):
        pends = limits.enforce_part_limits not in ("any", "all")
        fate = "leaves the job pending for ever" if pends else "refuses the job"
        what = f"partition '{where}' is only for some accounts: without a database (slurmdbd) Slurm knows no "
        what += f"account, and release 22.05 {fate}"
        fix = "use a partition that is open to all, unless sacctmgr shows accounts"
        yield Hit("partition", what, fix, "warning", why_not=restriction(option, allowed))
    if not asked and option == "qos" and allowed and USUAL_QOS not in map(str.lower, allowed):
        what = f"partition '{where}' is only for qos {' or '.join(allowed)}"
        what += f"{job.profile.line(f'partitions.{where}.qos')}, and the job names no qos"
        yield Hit(option, what, f"add --qos {allowed[0]}, unless your default is one", "warning")
    if not asked or not ((allowed and asked not in allowed) or asked in denied):
        return
    yours = "your " * (option not in job.resources)
    what = f"partition '{where}' does not allow {yours}{option} '{asked}'"
    what += ": with a database (slurmdbd) Slurm leaves the job pending for ever" * no_database
    fix = f"use {option} {' or '.join(allowed)}" if allowed else f"use another {option}"
    why_not = restriction(option, allowed) if allowed else f"not for {option} {asked}"
    yield Hit(option, what, fix, "warning" if no_database else None, why_not=why_not)


@RULES.add_fit("SB238", "error", "a partition, account or QOS that is not for this user")
def _open_to_user(job: Job) -> Iterator[Hit]:
    enforced = job.profile.limits.enforce_part_limits
    for name, partition in job.partitions.items():
        if not (partition.groups or partition.submit_hosts):
            continue
        from sbatchgen.check.script.user import closing_reasons  # few partitions are closed

        for why_not, is_certain in closing_reasons(partition, job.user):
            fate = ": Slurm refuses the job" + ", or leaves it pending for ever" * (enforced in (None, "no"))
            what = f"partition '{name}' is {why_not}" + fate * is_certain
            fix = "use another partition, or ask an administrator"
            yield Hit("partition", what, fix, None if is_certain else "warning", why_not=why_not)
    accounts = job.user.accounts if job.user else {}
    account = job.option("account") or str((job.user and job.user.account) or "")
    if accounts and account and account not in accounts:
        is_free = job.profile.limits.enforce_accounts is False
        fate = (
            "partitions with lists of accounts may start no such job" if is_free else "Slurm refuses the job"
        )
        what = f"{job.user and job.user.name} has no account '{account}' here: {fate}"
        yield Hit("account", what, did_you_mean(account, accounts), "warning" if is_free else None)
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
    reported: set[str] = set()
    for partition in job.partitions.values() or [NO_PARTITION]:
        partition_names = {str(name or "").lower() for name in (partition.partition_qos, partition.job_qos)}
        for name, hit in _qos_hits(job, partition):
            if hit.what not in reported:
                reported.add(hit.what)
                yield hit if name in partition_names else hit._replace(why_not="")


def _qos_hits(job: Job, partition: PartitionFacts) -> Iterator[tuple[str, Hit]]:
    """Yield the limits of QOS that the job breaks: the QOS, and the hit.

    If both the partition's QOS and the job's QOS set a limit, the partition's limit counts.
    """
    known_qos, partition_qos = _known_qos(job), str(partition.partition_qos or "").lower()
    default = str((job.user and job.user.qos) or "").lower()
    in_force = [
        *dict.fromkeys(
            name for name in (partition_qos, *(_requested_qos(job) or [default])) if name in known_qos
        )
    ]
    if any("partition_qos" in known_qos[name].overrides for name in in_force if name != partition_qos):
        in_force.reverse()
    denies = any(known_qos[name].deny_on_limit for name in in_force)
    seen: set[str] = set()
    for name in in_force:
        hits = _broken_limits(job, name, known_qos[name], denies)
        yield from ((name, hit) for key, hit in hits if key not in seen)
        seen |= {key for key in _QOS_KEYS if getattr(known_qos[name], key) is not None}


_QOS_KEYS = ("time_max", "nodes_max", "cpus_max", "nodes_min", "gpus_min", "cpus_min", "jobs_max", *GPUS_MAX)


def _broken_limits(job: Job, name: str, limits: Qos, denies: object) -> Iterator[tuple[str, Hit]]:
    """Yield each limit of a QOS that the job breaks: the key of the limit, and the hit."""
    resources = job.resources
    fate = "Slurm refuses the job" if denies else "the job would pend for ever"
    if limits.time_max and (resources.time or 0) > limits.time_max:
        what = f"time {time_limit(resources.time or 0)} is over the limit {limits.time_max} of qos "
        what += f"'{name}': {fate}"
        why_not = f"its qos '{name}' ends at {limits.time_max}"
        yield "time_max", Hit("time", what, f"set --time {limits.time_max} or less", why_not=why_not)
    for option, asked, unit in (
        ("nodes", resources.nodes, "nodes"),
        (resources.gpu_option, resources.gpus_in_all, "GPUs"),
        ("cpus-per-task", resources.nodes * resources.cpus_on_node, "CPUs"),
    ):
        least, most = (getattr(limits, f"{unit.lower()}_{end}") for end in ("min", "max"))
        if most is not None and asked > most:
            what = f"{asked} {unit} are over the limit {most} of qos '{name}': {fate}"
            why_not = f"its qos '{name}' allows {most} {unit}"
            fix = f"ask for at most {most}, or use another qos"
            fix = f"{_gpu_fix(job, most)}, or use another qos" if unit == "GPUs" else fix
            yield f"{unit.lower()}_max", Hit(option, what, fix, why_not=why_not)
        if least is not None and asked < least:
            what = f"{asked} {unit} are fewer than the {least} that qos '{name}' wants: {fate}"
            why_not = f"its qos '{name}' is for {least} {unit} or more"
            yield f"{unit.lower()}_min", Hit(option, what, f"ask for at least {least}", why_not=why_not)
    asked = resources.gpus_in_all
    for key in ("gpus_max_user", "gpus_max_account"):
        most = getattr(limits, key)
        if most is not None and asked > most:
            what = f"{asked} GPUs are over the limit of qos '{name}', {most} for {GPUS_MAX[key]}: {fate}"
            why_not = f"its qos '{name}' allows {most} GPUs for {GPUS_MAX[key]}"
            yield key, Hit(resources.gpu_option, what, _gpu_fix(job, most), why_not=why_not)
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
    if new := profile.successor:
        yield Hit(NOWHERE, f"{what}, and '{new}' took its place", f"--profile {new}")
    else:
        yield Hit(NOWHERE, what, f"see {profile.url}; choose another profile", "warning")


@RULES.add_fit("SB254", "error", "more GPUs than the partition gives", source="sacctmgr(1)")
def _gpus_of_partition(job: Job) -> Iterator[Hit]:
    asked = job.resources.gpus_in_all
    for name, partition in job.partitions.items():
        for key, whose in GPUS_MAX.items():
            most = getattr(partition, key)
            if most is not None and asked > most:
                what = f"{asked} GPUs are over the limit of partition '{name}', {most} for {whose}"
                why_not = f"{most} GPUs at most for {whose}"
                yield Hit(job.resources.gpu_option, what, _gpu_fix(job, most), why_not=why_not)
                break


def _gpu_fix(job: Job, most: int) -> str:
    """Return the fix for a job with more than `most` GPUs: fewer nodes, or fewer GPUs on each node."""
    nodes, per_node_gpus, option = job.resources.nodes, job.resources.gpu_count, job.resources.gpu_option
    if nodes < 2 or not per_node_gpus or option == "gpus":
        return f"ask for at most {most}"
    per_node = "--gres=gpu:" if job.is_script and option == "gres" else "--gpus-per-node "
    ways = [f"--nodes {most // per_node_gpus}" if most >= per_node_gpus else f"--nodes 1 {per_node}{most}"]
    ways += [f"{per_node}{most // nodes}"] if most >= nodes else []
    return " or ".join(ways)


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
