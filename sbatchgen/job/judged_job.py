"""A resolved job, as rules judge it."""

from functools import cached_property

from sbatchgen.finding import Place
from sbatchgen.inputs.layers import Level
from sbatchgen.inputs.profile import Profile
from sbatchgen.resolved.resolved_job import ResolvedJob
from sbatchgen.script.job import DEFAULT_SLURM, Job
from sbatchgen.script.resource_request import ResourceRequest


class JudgedJob(Job):
    """A resolved job, as rules judge it."""

    profile: Profile

    def __init__(self, resolved: ResolvedJob, *, makes_log_folders: bool = False) -> None:
        release = resolved.profile.slurm
        super().__init__(
            profile=resolved.profile,
            slurm=release or DEFAULT_SLURM,
            assumed=not release,
            makes_log_folders=makes_log_folders,
        )
        self.resolved = resolved

    @cached_property
    def resources(self) -> ResourceRequest:
        """What it asks Slurm for."""
        return self.resolved.resources

    def written(self, option: str) -> str:
        """The value as it was written, not as Slurm gets it; "" for a value that no one wrote."""
        name = option.replace("-", "_")
        was_given = self.resolved.origin(f"options.{name}").level > Level.DEFAULT
        return getattr(getattr(self.resolved.options, name, None), "written", "") if was_given else ""

    def at(self, key: str) -> Place:
        """Where a key of the job was written, as "options.nodes" or "runtime"."""
        return Place(str(self.resolved.origin(key)))
