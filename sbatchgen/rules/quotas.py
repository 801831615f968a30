"""Whether a cluster still runs, and how many GPUs it gives a job, a user and an account: SB253, SB254.

A fact that the profile does not give is not judged.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from sbatchgen.finding import NOWHERE
from sbatchgen.inputs.profile import GPUS_MAX
from sbatchgen.job.job import Job, JudgedJob
from sbatchgen.rules.rule import Hit, Rules

RULES: Rules[Job] = Rules()


@RULES.add_fit("SB253", "error", "a cluster that has ended", source="docs/reference/profile.md")
def _ended(job: Job) -> Iterator[Hit]:
    profile = job.profile
    has_ended = profile.until is not None and profile.until.epoch < time.time()
    if not has_ended or not isinstance(job, JudgedJob):
        return
    what = f"'{profile.name}' takes no jobs: it ended on {profile.until}"
    if new := profile.successor:
        yield Hit(NOWHERE, f"{what}, and '{new}' took its place", f"--profile {new}")
    else:
        yield Hit(NOWHERE, what, f"see {profile.url}; choose another profile", "warning")


@RULES.add_fit("SB254", "error", "more GPUs than the partition gives", source="sacctmgr(1)")
def _gpus_of_partition(job: Job) -> Iterator[Hit]:
    asked = job.resources.nodes * job.resources.gpu_count
    for name, partition in job.partitions.items():
        for key, whose in GPUS_MAX.items():
            most = getattr(partition, key)
            if most is not None and asked > most:
                what = f"{asked} GPUs are over the limit of partition '{name}', {most} for {whose}"
                why_not = f"{most} GPUs at most for {whose}"
                yield Hit(job.resources.gpu_option, what, f"ask for at most {most}", why_not=why_not)
                break
