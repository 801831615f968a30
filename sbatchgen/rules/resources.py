"""What a job asks for, judged by what its cluster has: SB201 to SB235.

The same rules judge plans and scripts. A fact that the profile does not give is not judged.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sbatchgen.errors import did_you_mean
from sbatchgen.finding import Finding
from sbatchgen.profile import Partition, Profile
from sbatchgen.resources import UNLIMITED, Resources
from sbatchgen.rules.rule import Hit, Rules
from sbatchgen.units import Duration

RULES: Rules[Ask] = Rules()


@dataclass(frozen=True)
class Ask:
    """A job and the cluster it is for."""

    job: Resources
    profile: Profile

    @property
    def partitions(self) -> dict[str, Partition]:
        """Those of the job that the profile knows."""
        known = self.profile.partitions
        return {name: known[name] for name in self.job.partitions if name in known}  # type: ignore[index]


def judge(job: Resources, profile: Profile) -> Iterator[Finding]:
    """What all rules say about a job on a cluster."""
    ask = Ask(job, profile)
    for rule in RULES:
        yield from rule.findings(ask, job.place)


@RULES.add("SB201", "error", "the cluster has no such partition", about_fit=True)
def _partition_known(ask: Ask) -> Iterator[Hit]:
    known = ask.profile.partitions
    for name in ask.job.partitions if known else ():
        if name not in known:
            what = f"cluster '{ask.profile.name}' has no partition '{name}'"
            yield Hit("partition", what, did_you_mean(name, known))


@RULES.add("SB204", "error", "the time limit is longer than the partition's", about_fit=True)
def _time_within_limit(ask: Ask) -> Iterator[Hit]:
    time = ask.job.time
    for name, partition in ask.partitions.items():
        if time is not None and partition.time_max and time > partition.time_max:
            asked = "UNLIMITED" if time >= UNLIMITED else str(Duration(time))
            what = f"time {asked} is over the limit {partition.time_max} of partition '{name}'"
            yield Hit("time", f"{what}: it would never start", f"set --time {partition.time_max} or less")
