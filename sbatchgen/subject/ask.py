"""A job and the cluster it is for: what the rules about options judge, be it a plan or a script."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from sbatchgen.inputs.profile import Partition, Profile
from sbatchgen.plan.resources import Resources

DEFAULT_SLURM = "26.05"  # the current release, where nobody names one


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Ask:
    """What is asked for, of whom.

    Attributes:
        job: What the job asks for.
        profile: Its cluster; one without facts where it is not known.
        slurm: The release that reads the script.
        assumed: Whether nobody has named it.
        known: Whether the profile is that of a cluster, and no stand-in for an unknown one.
        script: Whether it is a script of somebody's; else it is a plan.
        folder: Where it would be submitted; None where that is not known.
        makes_log_folders: Whether the folders of its logs are made before it is submitted.
    """

    job: Resources
    profile: Profile
    slurm: str
    assumed: bool = False
    known: bool = True
    script: bool = False
    folder: Path | None = None
    makes_log_folders: bool = False

    @cached_property
    def partitions(self) -> dict[str, Partition]:
        """Those of the job that the profile knows."""
        known = {str(name): partition for name, partition in self.profile.partitions.items()}
        return {name: known[name] for name in self.job.partitions if name in known}

    @property
    def enforced(self) -> bool | None:
        """Whether Slurm refuses what is over a partition's limits, or takes it and never starts it."""
        how = self.profile.limits.enforce_part_limits
        return None if how is None else how != "no"

    def consequence(self, reason: str) -> str:
        """What becomes of a job over a limit; `reason` is what squeue would show for it."""
        if self.enforced is None:
            return f"Slurm refuses the job, or leaves it pending for ever ({reason})"
        return "Slurm refuses the job" if self.enforced else f"it would pend for ever ({reason})"
