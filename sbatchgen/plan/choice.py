"""The partition of a job that names none: the default one, or the first where it can run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from sbatchgen.finding import Finding
from sbatchgen.plan.plan import Plan
from sbatchgen.plan.resolve import FIRST

LATER = "comes later in the profile"
_SHOWN = 3  # partitions in a line

Resolve = Callable[[str], Plan]  # the plan in a partition; "" for the default one, which the cluster may have
Check = Callable[[Plan], Sequence[Finding]]


def chosen(resolve: Resolve, check: Check) -> Plan:
    """The plan in the first partition where the job can run, in the profile's order after its default one.

    Where it can't run in any, it is that of the default one: `passed_over` then has all of them.
    """
    default = resolve("")
    wrong = [one for one in check(default) if one.why_not] if default.slurm else []
    if not wrong:
        return default
    passed_over: dict[str, str] = {}
    if default.partition_name:
        passed_over[default.partition_name] = _said(one.why_not for one in wrong)
    names = [str(name) for name in default.profile.partitions if name not in passed_over]
    for name in names:
        plan = resolve(name)
        why_not = _said((*_closed(plan), *(one.why_not for one in check(plan))))
        if not why_not:
            later = dict.fromkeys(names[names.index(name) + 1 :], LATER)
            return replace(plan, passed_over=passed_over | later)
        passed_over[name] = why_not
    refused = any(one.severity == "error" for one in wrong)
    return replace(default, passed_over=passed_over) if refused else default


def only_for(option: str, allowed: Sequence[str]) -> str:
    """Why a partition is not for jobs of other accounts or QOS."""
    return f"only for {option} {' or '.join(allowed)}"


def in_short(plan: Plan) -> str:
    """Which partitions did not fit, and why, in a line."""
    told = [f"{name}: {why}" for name, why in plan.passed_over.items() if why != LATER]
    more = [f"and {len(told) - _SHOWN} more"] if len(told) > _SHOWN else []
    return "; ".join((FIRST, *told[:_SHOWN], *more))


def _closed(plan: Plan) -> Iterator[str]:
    """Why nobody knows that the job may use the partition: it names none of its accounts or QOS."""
    for option, allowed in (("account", plan.partition.accounts), ("qos", plan.partition.qos)):
        if allowed and not getattr(plan.options, option):
            yield only_for(option, allowed)


def _said(reasons: Iterator[str] | Sequence[str]) -> str:
    return ", ".join(dict.fromkeys(reason for reason in reasons if reason))
