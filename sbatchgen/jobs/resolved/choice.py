"""Chooses a partition for a job that names none: the first in which the job can run.

The default partition comes first, and then the others in the order of the profile.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from sbatchgen.base.finding import Finding
from sbatchgen.check.cluster_facts import restriction
from sbatchgen.jobs.resolved.resolve import FIRST_THAT_FITS
from sbatchgen.jobs.resolved.resolved_job import ResolvedJob

LATER = "comes later in the profile"  # why a partition after the chosen one is not chosen
_MAX_SHOWN = 3  # the most partitions that `passed_over_line` names

# A function that resolves the job for a partition; "" stands for the default partition, if there is one.
Resolve = Callable[[str], ResolvedJob]
Check = Callable[[ResolvedJob], Sequence[Finding]]  # a function that returns the findings of a resolved job


def choose_partition(resolve: Resolve, check: Check) -> ResolvedJob:
    """Return the job resolved for the first partition in which it can run.

    If it can't run in any partition, return the job resolved for the default partition. All partitions are
    then in its `passed_over`.
    """
    default_job = resolve("")
    if not default_job.uses_slurm:
        return default_job
    obstacles = [finding for finding in check(default_job) if finding.why_not]
    if not obstacles:
        return default_job
    passed_over: dict[str, str] = {}  # a partition -> why the job can't run there
    if default_job.partition_name:
        passed_over[default_job.partition_name] = _joined(finding.why_not for finding in obstacles)
    names = [str(name) for name in default_job.profile.partitions if name not in passed_over]
    for name in names:
        resolved = resolve(name)
        why_not = _joined((*why_closed(resolved), *(finding.why_not for finding in check(resolved))))
        if not why_not:
            later = dict.fromkeys(names[names.index(name) + 1 :], LATER)
            return replace(resolved, passed_over=passed_over | later)
        passed_over[name] = why_not
    is_refused = any(finding.severity == "error" for finding in obstacles)
    return replace(default_job, passed_over=passed_over) if is_refused else default_job


def passed_over_line(resolved: ResolvedJob) -> str:
    """Return a line for the review with the partitions in which the job can't run, each with the reason."""
    reasons = [f"{name}: {why}" for name, why in resolved.passed_over.items() if why != LATER]
    more = [f"and {len(reasons) - _MAX_SHOWN} more"] if len(reasons) > _MAX_SHOWN else []
    return "; ".join((FIRST_THAT_FITS, *reasons[:_MAX_SHOWN], *more))


def why_closed(resolved: ResolvedJob) -> Iterator[str]:
    """Yield why sbatchgen does not choose a job's partition, although the cluster might accept the job.

    The partition is hidden, or only some accounts or QOS may use it, and the job names none.
    """
    if resolved.partition.hidden:
        yield "hidden"
    for option, allowed in (("account", resolved.partition.accounts), ("qos", resolved.partition.qos)):
        if allowed and not getattr(resolved.options, option):
            yield restriction(option, allowed)


def _joined(reasons: Iterator[str] | Sequence[str]) -> str:
    """Return the reasons without repetitions, joined by commas."""
    return ", ".join(dict.fromkeys(reason for reason in reasons if reason))
