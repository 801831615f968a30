"""The choice of a partition: the default partition, or the first partition where the job can run."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from sbatchgen.base.finding import Finding
from sbatchgen.check.cluster_facts import restriction
from sbatchgen.jobs.resolved.resolve import FIRST_THAT_FITS
from sbatchgen.jobs.resolved.resolved_job import ResolvedJob

LATER = "comes later in the profile"  # the reason for partitions after the chosen one
_MAX_SHOWN = 3  # partitions that a line names

# Resolves the job for a partition; "" stands for the default partition, if the cluster has one.
Resolve = Callable[[str], ResolvedJob]
Check = Callable[[ResolvedJob], Sequence[Finding]]  # the findings of a resolved job


def choose_partition(resolve: Resolve, check: Check) -> ResolvedJob:
    """Return the job resolved for the first partition where it can run, starting with the default partition.

    If the job can't run in any partition, return it resolved for the default partition. All partitions are
    then in its `passed_over`.
    """
    default = resolve("")
    obstacles = [finding for finding in check(default) if finding.why_not] if default.slurm else []
    if not obstacles:
        return default
    passed_over: dict[str, str] = {}
    if default.partition_name:
        passed_over[default.partition_name] = _joined(finding.why_not for finding in obstacles)
    names = [str(name) for name in default.profile.partitions if name not in passed_over]
    for name in names:
        resolved = resolve(name)
        why_not = _joined((*why_closed(resolved), *(finding.why_not for finding in check(resolved))))
        if not why_not:
            later = dict.fromkeys(names[names.index(name) + 1 :], LATER)
            return replace(resolved, passed_over=passed_over | later)
        passed_over[name] = why_not
    refused = any(finding.severity == "error" for finding in obstacles)
    return replace(default, passed_over=passed_over) if refused else default


def passed_over_line(resolved: ResolvedJob) -> str:
    """Return a line for the review: the partitions that the job does not fit, each with its reason."""
    reasons = [f"{name}: {why}" for name, why in resolved.passed_over.items() if why != LATER]
    more = [f"and {len(reasons) - _MAX_SHOWN} more"] if len(reasons) > _MAX_SHOWN else []
    return "; ".join((FIRST_THAT_FITS, *reasons[:_MAX_SHOWN], *more))


def why_closed(resolved: ResolvedJob) -> Iterator[str]:
    """Yield why the job's partition is not chosen: it is hidden, or the job lacks an account or a QOS."""
    if resolved.partition.hidden:
        yield "hidden"
    for option, allowed in (("account", resolved.partition.accounts), ("qos", resolved.partition.qos)):
        if allowed and not getattr(resolved.options, option):
            yield restriction(option, allowed)


def _joined(reasons: Iterator[str] | Sequence[str]) -> str:
    """Return the reasons without repetitions, joined by commas."""
    return ", ".join(dict.fromkeys(reason for reason in reasons if reason))
