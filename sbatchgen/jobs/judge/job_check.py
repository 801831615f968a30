"""The check of a resolved job: the facts that rules ask for, and their findings in the job and its script."""

from __future__ import annotations

from sbatchgen.base.finding import Finding, Place, in_order
from sbatchgen.base.frozen import cached_property
from sbatchgen.check.rules import judge
from sbatchgen.check.rules.rule import Applies
from sbatchgen.check.script.job import DEFAULT_SLURM, Job
from sbatchgen.check.script.resource_request import ResourceRequest
from sbatchgen.jobs.inputs.layers import Level
from sbatchgen.jobs.inputs.profile import Profile
from sbatchgen.jobs.resolved.resolved_job import ResolvedJob


class JudgedJob(Job):
    """A resolved job, as rules judge it."""

    profile: Profile

    def __init__(self, resolved: ResolvedJob, *, makes_log_folders: bool = False) -> None:
        release = resolved.profile.slurm
        super().__init__(
            profile=resolved.profile,
            slurm=release or DEFAULT_SLURM,
            is_release_assumed=not release,
            makes_log_folders=makes_log_folders,
        )
        self.resolved = resolved

    @cached_property
    def resources(self) -> ResourceRequest:
        """The job's request to Slurm."""
        return self.resolved.resources

    @property
    def takes_one_gpu(self) -> bool:
        """Whether the mode of the job can use one GPU at most."""
        return self.resolved.mode.gpus == 1

    @property
    def has_replicas(self) -> bool:
        """Whether one process keeps a copy of the model on each GPU."""
        return self.resolved.mode.replicates

    @property
    def fits_no_partition(self) -> bool:
        """Whether the job names no partition and fits no partition."""
        return self.resolved.fits_no_partition

    @property
    def has_chosen_partition(self) -> bool:
        """Whether the job names a partition, or sbatchgen has chosen a partition."""
        return bool(self.resolved.partition_name)

    @property
    def why_no_partition_fits(self) -> str:
        """The message that no partition fits, with the reasons; "" if other rules report all reasons."""
        by_reason: dict[str, list[str]] = {}
        for name, why_not in self.resolved.passed_over.items():
            if name != self.resolved.partition_name:  # other rules report the faults of this partition
                by_reason.setdefault(why_not, []).append(name)
        reasons = "; ".join(f"{', '.join(names)}: {why_not}" for why_not, names in by_reason.items())
        other = "other " if self.has_chosen_partition else ""
        return f"the job fits no {other}partition ({reasons})" if reasons else ""

    def written_value(self, option: str) -> str:
        """Return the value of an option as the user or profile wrote it; "" for a derived value."""
        name = option.replace("-", "_")
        was_given = self.resolved.origin(f"options.{name}").level > Level.DEFAULT
        return getattr(getattr(self.resolved.options, name, None), "written", "") if was_given else ""

    def at(self, key: str) -> Place:
        """Return the place where a key of the job was written, such as "options.nodes" or "runtime"."""
        return Place(str(self.resolved.origin(key)))


def check(resolved: ResolvedJob, *, log_folders_made: bool = False) -> list[Finding]:
    """Return all findings of a resolved job that are not pedantic, errors first.

    `log_folders_made` is whether the caller creates the folders of the job's logs.
    """
    job = JudgedJob(resolved, makes_log_folders=log_folders_made)
    rules = judge.rules((*judge.RESOLVED, *judge.JOBS) if resolved.uses_slurm else judge.RESOLVED)
    findings = [finding for rule in rules for finding in judge.findings(rule, job) if not finding.pedantic]
    # SB203 (no partition fits) comes last, because it follows from the other errors
    return sorted(findings, key=lambda finding: (finding.severity != "error", finding.rule == "SB203"))


def lint_rendered(resolved: ResolvedJob, text: str) -> list[Finding]:
    """Return the findings in the rendered script of a job that are not pedantic.

    These findings are faults of templates, `setup` or extra options; `check` finds the faults of other keys.
    """
    from sbatchgen.check.script.script import JobScript  # slow to load, and `render` does not need it

    script = JobScript(
        file="job.slurm",
        text=text,
        slurm=resolved.profile.slurm or DEFAULT_SLURM,
        profile=resolved.profile,
        # "name" for an option without a value, "name=" for another option
        known_options=tuple(
            name if value == "true" else f"{name}=" for name, value in resolved.extra_options.items()
        ),
    )
    rules = (rule for rule in judge.rules(judge.SCRIPTS) if Applies.RENDERED in rule.applies)
    findings = (finding for rule in rules for finding in judge.findings(rule, script))
    return in_order(finding for finding in findings if not finding.pedantic)
