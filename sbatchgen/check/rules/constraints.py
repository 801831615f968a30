"""Rules about where a job wants to run: the cluster, features, nodes, switches, reservations and licences.

The rules compare the job with the profile of the cluster. A rule that needs a fact which the profile lacks
reports nothing. Sources: sbatch(1), scontrol(1).
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import suppress

from sbatchgen.base.errors import did_you_mean, nearest
from sbatchgen.base.finding import NOWHERE
from sbatchgen.base.quoting import counted, first_names
from sbatchgen.base.units import Duration, Text
from sbatchgen.check.cluster_facts import has_documented_facts
from sbatchgen.check.rules.limits import OR_UPDATE_PROFILE
from sbatchgen.check.rules.option_values import time_limit
from sbatchgen.check.rules.rule import Hit, Rules
from sbatchgen.check.script.job import Job
from sbatchgen.check.script.resource_request import UNLIMITED

RULES: Rules[Job] = Rules()


@RULES.add_fit("SB253", "error", "a cluster that has ended", source="docs/reference/profile.md")
def _ended_cluster(job: Job) -> Iterator[Hit]:
    profile = job.profile
    has_ended = profile.until is not None and profile.until.epoch < time.time()
    if not has_ended or job.is_script:  # `lint` may judge a script of a cluster that has ended
        return
    what = f"'{profile.name}' takes no jobs: it ended on {profile.until}"
    if successor := profile.successor:
        yield Hit(NOWHERE, f"{what}, and '{successor}' took its place", f"--profile {successor}")
    else:
        yield Hit(NOWHERE, what, f"see {profile.url}; choose another profile", "warning")


@RULES.add_fit("SB225", "error", "a feature that no node has", source="sbatch(1)")
def _missing_features(job: Job) -> Iterator[Hit]:
    feature_lists = [partition.features for partition in job.partitions.values()]
    if not feature_lists or None in feature_lists:
        return
    known_features = {feature for features in feature_lists for feature in features or ()}
    partition_names = _partition_names(job)
    for option in ("constraint", "prefer"):
        for feature in _item_counts(job, option):
            if feature in known_features:
                continue
            fix = did_you_mean(feature, known_features) or f"leave out --{option}"
            if has_documented_facts(job.profile):
                what = f"profile '{job.profile.name}' lists no feature '{feature}' for partition "
                yield Hit(option, what + partition_names, fix, "warning")
            else:
                what = f"no node of partition {partition_names} has the feature '{feature}': "
                what += "Slurm refuses the job"
                yield Hit(option, what, fix, why_not=f"no feature '{feature}'")
    constraint = job.option("constraint")
    if not constraint or not known_features.issuperset(_item_counts(job, "constraint")):
        return
    from sbatchgen.check.sbatch.lists import may_match  # only jobs that name features need the module

    kinds = [kind for partition in job.partitions.values() for kind in partition.node_kinds()]
    if not any(may_match(constraint, kind.features or ()) for kind in kinds):
        what = f"no node of partition {partition_names} has all features of '{constraint}': "
        what += "Slurm refuses the job"
        fix = "name features of one kind of node"
        yield Hit("constraint", what, fix, why_not="no node with all features")


@RULES.add_fit("SB226", "error", "nodes that are not in the partition", source="sbatch(1)")
def _missing_nodes(job: Job) -> Iterator[Hit]:
    host_lists = {option: text for option in ("nodelist", "exclude") if (text := job.option(option))}
    node_lists = [partition.nodes for partition in job.partitions.values()]
    if not host_lists or not node_lists or not all(node_lists):
        return
    from sbatchgen.check.sbatch.hostlist import hosts  # only jobs that name nodes need the module

    known_hosts = {host for nodes in node_lists for host in hosts(str(nodes))}
    for option, text in host_lists.items():
        unknown_hosts = [host for host in hosts(text) if host not in known_hosts]
        if unknown_hosts:
            why_not = f"no node {first_names(unknown_hosts, 3)}"
            what = f"partition {_partition_names(job)} has {why_not}"
            fix = "name nodes of the partition, or remove the option"
            yield Hit(option, what, fix, why_not=why_not)
    nodes_left = len(known_hosts - {*hosts(host_lists.get("exclude", ""))})
    if nodes_left < job.resources.nodes:
        what = f"--exclude leaves {counted(nodes_left, 'node')} of the partition, but the job asks for "
        what += f"{job.resources.nodes}: Slurm refuses it"
        yield Hit("exclude", what, "exclude fewer nodes", why_not=f"{counted(nodes_left, 'node')} left")


def _partition_names(job: Job) -> str:
    """Return the names of the job's partitions for a message, such as 'a100' or 'h100'."""
    return " or ".join(f"'{name}'" for name in job.partitions)


@RULES.add("SB227", "warning", "the job waits for certain nodes", pedantic=True)
def _wait_for_nodes(job: Job) -> Iterator[Hit]:
    nodes = job.resources.options.get("nodelist")
    if nodes:
        what = f"--nodelist={nodes}: the job waits for these nodes, even if others are free"
        yield Hit("nodelist", what, "remove it, or ask for a feature: --constraint=NAME")


@RULES.add_fit("SB229", "error", "a partition that needs a reservation")
def _missing_reservation(job: Job) -> Iterator[Hit]:
    for name, partition in job.partitions.items():
        if partition.reservation_only and "reservation" not in job.resources:
            what = f"partition '{name}' takes only jobs with a reservation: Slurm refuses this one"
            fix = "add --reservation=NAME, or use another partition"
            yield Hit("partition", what, fix, why_not="only for jobs with a reservation")


@RULES.add_fit(
    "SB252", "warning", "a reservation that has no nodes or no time for the job", source="scontrol(1)"
)
def _unsuitable_reservation(job: Job) -> Iterator[Hit]:
    reservations, name = job.profile.reservations, Text(job.option("reservation"))
    reservation = reservations.get(name)
    if not reservation:
        similar_name = nearest(name, map(str, reservations), 0.8) if name and reservations else ""
        # Names that differ only in digits are of one series, such as maint_7 and maint_8: this is not a typo.
        is_series = re.sub("[0-9]", "", similar_name) == re.sub("[0-9]", "", name)
        if similar_name and not is_series:
            what = f"cluster '{job.profile.name}' had no reservation '{name}' on {job.profile.checked}"
            yield Hit("reservation", what, f"did you mean '{similar_name}'?")
        return
    seconds_left = reservation.until.epoch - time.time() if reservation.until else UNLIMITED
    if seconds_left <= 0:
        what = f"reservation '{name}' ended at {reservation.until}: Slurm refuses the job"
        yield Hit("reservation", what, f"remove --reservation, {OR_UPDATE_PROFILE}")
        return
    for partition_name, partition in job.partitions.items():
        if reservation.partitions and partition_name not in reservation.partitions:
            what = f"partition '{partition_name}' has no nodes of reservation '{name}': the job never starts"
            fix = f"use partition {' or '.join(reservation.partitions)}"
            yield Hit("reservation", what, fix, "error", why_not=f"no nodes of reservation '{name}'")
            continue
        seconds = job.resources.time or partition.time_default or partition.time_max or 0
        if seconds > seconds_left:
            what = f"reservation '{name}' ends at {reservation.until}, before the job's time limit "
            what += f"({time_limit(seconds)}): Slurm ends the job then, and sends no --signal before"
            time_left = Duration(max(seconds_left // 60, 1) * 60)  # in whole minutes, as Slurm counts
            yield Hit("reservation", what, f"set --time {time_left} or less, {OR_UPDATE_PROFILE}")


@RULES.add_fit("SB251", "warning", "an option that does not work on this cluster", source="sbatch(1)")
def _ineffective_options(job: Job) -> Iterator[Hit]:
    resources, topology = job.resources, job.profile.limits.topology
    for option, needed_topology in (("switches", "tree"), ("segment", "block")):
        if option in resources and topology not in (None, needed_topology):
            what = f"Slurm ignores --{option}: this cluster has no topology/{needed_topology}"
            yield Hit(option, what, f"remove --{option}")
    if topology == "tree":
        yield from _too_few_switches(job)
    for name, partition in job.partitions.items():
        if partition.oversubscribed and resources.is_exclusive:
            what = f"other jobs run on the nodes too: partition '{name}' ignores --exclusive (OverSubscribe)"
            yield Hit("exclusive", what, "use another partition, or remove --exclusive")
        if partition.exclusive and "oversubscribe" in resources:
            what = f"partition '{name}' ignores --oversubscribe: jobs get whole nodes"
            yield Hit("oversubscribe", what, "remove --oversubscribe")


def _too_few_switches(job: Job) -> Iterator[Hit]:
    """Find a --switches that allows fewer nodes than the job asks for."""
    switches, _, _ = job.option("switches").partition("@")  # COUNT or COUNT@TIME
    nodes, nodes_per_switch = job.resources.nodes, job.profile.limits.switch_nodes
    if not nodes_per_switch or not re.fullmatch("[0-9]{1,6}", switches):
        return
    nodes_max = int(switches) * nodes_per_switch
    if nodes_max and nodes > nodes_max:
        what = f"--switches={switches} allows {nodes_max} nodes at most, but the job asks for {nodes}: "
        what += "it waits for 5 minutes or the option's time, then starts on more switches"
        switches_needed = -(-nodes // nodes_per_switch)
        yield Hit("switches", what, f"remove it, or set --switches={switches_needed}")


@RULES.add_fit("SB234", "error", "a licence that the cluster does not have", source="sbatch(1)")
def _missing_licenses(job: Job) -> Iterator[Hit]:
    licenses = job.profile.licenses
    if licenses is None:
        return
    for name, count in _item_counts(job, "licenses").items():
        available = licenses.get(Text(name))
        if available is None and count:
            what = f"cluster '{job.profile.name}' has no licence '{name}': Slurm refuses the job"
            yield Hit("licenses", what, did_you_mean(name, licenses))
        elif count > (available or 0):
            what = f"cluster '{job.profile.name}' has {available} licences '{name}', but the job asks for "
            yield Hit("licenses", f"{what}{count}: Slurm refuses it", f"ask for at most {available}")


def _item_counts(job: Job, option: str) -> dict[str, int]:
    """Return the number of each licence in --licenses, or 1 for each feature in --constraint or --prefer.

    The result is {} for a bad list, which SB140 reports.
    """
    if not (text := job.option(option)):
        return {}
    from sbatchgen.check.sbatch import lists  # few jobs name licences or features

    if option == "constraint" and job.slurm < "26.05":
        # Slurm 22.05 skips the text between ] and the next & or |, as in [a|b]c&d.
        text = re.sub(r"\][^&,|]+", "]", text)
    with suppress(ValueError):
        return lists.licenses(text) if option == "licenses" else dict.fromkeys(lists.features(text), 1)
    return {}
