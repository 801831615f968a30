"""Rules about where a job may run: features, nodes, reservations and licences.

No rule judges a fact that the profile lacks. Sources: sbatch(1), scontrol(1).
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import suppress

from sbatchgen.base.errors import did_you_mean, nearest
from sbatchgen.base.finding import Severity
from sbatchgen.base.quoting import counted, first_names
from sbatchgen.base.units import Duration, Text
from sbatchgen.check.rules.limits import OR_UPDATE_PROFILE
from sbatchgen.check.rules.option_values import time_limit
from sbatchgen.check.rules.rule import Hit, Rules
from sbatchgen.check.script.job import Job
from sbatchgen.check.script.resource_request import UNLIMITED

RULES: Rules[Job] = Rules()


@RULES.add_fit("SB225", "error", "a feature that no node has", source="sbatch(1)")
def _features_known(job: Job) -> Iterator[Hit]:
    feature_lists = [partition.features for partition in job.partitions.values()]
    if not feature_lists or None in feature_lists:
        return
    known = {feature for features in feature_lists for feature in features or ()}
    is_documented = job.profile.sources and job.profile.user is None  # documentation may lack some features
    partition_names = " or ".join(f"'{name}'" for name in job.partitions)
    for option in ("constraint", "prefer"):
        for feature in _list_items(job, option):
            if feature not in known:
                what = f"no node of partition {partition_names} has the feature '{feature}': "
                what += "Slurm refuses the job"
                fix = did_you_mean(feature, known) or f"leave out --{option}"
                if is_documented:
                    what = f"profile '{job.profile.name}' lists no feature '{feature}' "
                    what += f"for partition {partition_names}"
                severity: Severity | None = "warning" if is_documented else None
                yield Hit(
                    option, what, fix, severity, why_not="" if is_documented else f"no feature '{feature}'"
                )
    text = job.option("constraint")
    if not text or not known.issuperset(_list_items(job, "constraint")):
        return
    from sbatchgen.check.sbatch.lists import may_match  # only jobs that name features need the module

    nodes = [node for partition in job.partitions.values() for node in partition.node_kinds()]
    if not any(may_match(text, node.features or ()) for node in nodes):
        what = f"no node of partition {partition_names} has all features of '{text}': Slurm refuses the job"
        fix = "name features of one kind of node"
        yield Hit("constraint", what, fix, why_not="no node with all features")


@RULES.add_fit("SB226", "error", "nodes that are not in the partition", source="sbatch(1)")
def _nodes_known(job: Job) -> Iterator[Hit]:
    lists = {name: text for name in ("nodelist", "exclude") if (text := job.option(name))}
    if not lists or not all(partition.nodes for partition in job.partitions.values()) or not job.partitions:
        return
    from sbatchgen.check.sbatch.hostlist import hosts  # only jobs that name nodes need the module

    known = {host for partition in job.partitions.values() for host in hosts(str(partition.nodes))}
    for option, text in lists.items():
        unknown = [host for host in hosts(text) if host not in known]
        if unknown:
            names = " or ".join(f"'{name}'" for name in job.partitions)
            what = f"partition {names} has no node {first_names(unknown, 3)}"
            fix = "name nodes of the partition, or remove the option"
            yield Hit(option, what, fix, why_not=f"no node {first_names(unknown, 3)}")
    left = len(known - {*hosts(lists.get("exclude", ""))})
    if left < job.resources.nodes:
        what = f"--exclude leaves {counted(left, 'node')} of the partition, but the job asks for "
        what += f"{job.resources.nodes}: Slurm refuses it"
        yield Hit("exclude", what, "exclude fewer nodes", why_not=f"{counted(left, 'node')} left")


@RULES.add("SB227", "warning", "the job waits for certain nodes", pedantic=True)
def _nodes_pinned(job: Job) -> Iterator[Hit]:
    nodes = job.resources.options.get("nodelist")
    if nodes:
        what = f"--nodelist={nodes}: the job waits for these nodes, even if others are free"
        yield Hit("nodelist", what, "remove it, or ask for a feature: --constraint=NAME")


@RULES.add_fit("SB229", "error", "a partition that needs a reservation")
def _reservation_given(job: Job) -> Iterator[Hit]:
    for name, partition in job.partitions.items():
        if partition.reservation_only and "reservation" not in job.resources:
            what = f"partition '{name}' takes only jobs with a reservation: Slurm refuses this one"
            fix = "add --reservation=NAME, or use another partition"
            yield Hit("partition", what, fix, why_not="only for jobs with a reservation")


@RULES.add_fit(
    "SB252", "warning", "a reservation that has no nodes or no time for the job", source="scontrol(1)"
)
def _reservation_fits(job: Job) -> Iterator[Hit]:
    known, name = job.profile.reservations, Text(job.option("reservation"))
    reservation = known.get(name)
    if not reservation:
        near = nearest(name, map(str, known), 0.8) if name and known else ""
        # A name with other digits is the next of a series, such as maint_8 after maint_7: no typo.
        if near and re.sub("[0-9]", "", near) != re.sub("[0-9]", "", name):
            what = f"cluster '{job.profile.name}' had no reservation '{name}' on {job.profile.checked}"
            yield Hit("reservation", what, f"did you mean '{near}'?")
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
            fitting = Duration(max(seconds_left // 60, 1) * 60)  # whole minutes
            yield Hit("reservation", what, f"set --time {fitting} or less, {OR_UPDATE_PROFILE}")


@RULES.add_fit("SB234", "error", "a licence that the cluster does not have", source="sbatch(1)")
def _licenses_known(job: Job) -> Iterator[Hit]:
    known = job.profile.licenses
    for name, count in _list_items(job, "licenses").items() if known is not None else ():
        available = (known or {}).get(Text(name))
        if available is None and count:
            what = f"cluster '{job.profile.name}' has no licence '{name}': Slurm refuses the job"
            yield Hit("licenses", what, did_you_mean(name, known or {}))
        elif count > (available or 0):
            what = f"cluster '{job.profile.name}' has {available} licences '{name}', but the job asks for "
            yield Hit("licenses", f"{what}{count}: Slurm refuses it", f"ask for at most {available}")


def _list_items(job: Job, option: str) -> dict[str, int]:
    """Return the licences of a job with their numbers, or its features, each with 1.

    The result is {} for a bad list, which SB140 reports.
    """
    if not (text := job.option(option)):
        return {}
    from sbatchgen.check.sbatch import lists  # few jobs name licences or features

    if option == "constraint" and job.slurm < "26.05":  # Slurm 22.05 skips the text up to the next & or |
        text = re.sub(r"\][^&,|]+", "]", text)
    with suppress(ValueError):
        return lists.licenses(text) if option == "licenses" else dict.fromkeys(lists.features(text), 1)
    return {}
