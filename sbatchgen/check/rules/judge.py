"""All rules, and what they find in a resolved job or a script."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

from sbatchgen.base.finding import Finding, Place
from sbatchgen.check.cluster_facts import KnownCluster
from sbatchgen.check.rules.rule import Rule

if TYPE_CHECKING:
    from sbatchgen.check.script.script import JobScript

# The modules of rules, by what they judge. Only those that are needed are loaded.
RESOLVED = tuple(f"jobs.judge.{name}" for name in ("start_keys", "job_keys", "launch_arguments"))
TRAINERS = ("jobs.judge.trainers",)  # jobs that are submitted here
FIT = ("limits", "constraints", "demands", "gpu_demands")  # what a job asks for, beside the cluster
JOBS = (*FIT, "logs", "option_values")  # resolved jobs and scripts
_STARTED_WORDS = "started_ends started_variables started_steps started_launchers"
STARTED = tuple(f"lab.started.{name}" for name in _STARTED_WORDS.split())  # dry runs of scripts
_SCRIPTS_WORDS = """
directives foreign directive_options misread_values process_counts task_counts step_commands unset_variables
rendezvous steps statuses environment software names containers survival requeues waiting_loops kills safety
secret syntax submitting
"""
SCRIPTS = tuple(_SCRIPTS_WORDS.split())


class Judged(Protocol):
    """What rules judge: a job, or the dry run of a script."""

    @property
    def profile(self) -> KnownCluster:
        """The cluster."""

    def at_option(self, option: str) -> Place:
        """Return where an option is given."""


@cache
def rules(modules: tuple[str, ...]) -> tuple[Rule[Any], ...]:
    """Return the rules of some modules: those of this folder by their names alone."""
    paths = (name if "." in name else f"check.rules.{name}" for name in modules)
    return tuple(rule for path in paths for rule in import_module(f"sbatchgen.{path}").RULES)


_Group = tuple[tuple[str, ...], list[Rule[Any]]]


@cache
def _by_words(rules: tuple[Rule[Any], ...], *, known: bool) -> list[_Group]:
    """Return the rules in groups with the same words; without those about a cluster that is not known."""
    groups: dict[tuple[str, ...], list[Rule[Any]]] = {}
    for rule in rules:
        if known or rule.has_defaults or not rule.about_fit:
            groups.setdefault(_shortest(rule.words), []).append(rule)
    return [*groups.items()]


def _shortest(words: tuple[str, ...]) -> tuple[str, ...]:
    """Leave out words that hold another: a text with torchrun has torch too."""
    return tuple(word for word in words if not any(other != word and other in word for other in words))


def that_may_find(rules: tuple[Rule[Any], ...], script: JobScript) -> list[Rule[Any]]:
    """Leave out rules whose words a script lacks, and those about a cluster where none is known."""
    wanted, has = [], cache(script.text.__contains__)  # several rules name the same word
    for words, group in _by_words(rules, known=script.known):
        if not words or any(map(has, words)):
            wanted += group
    return wanted


def findings(rule: Rule[Any], job: Judged) -> list[Finding]:
    """Return what a rule finds in a job, with the severity that the cluster's policies give it."""
    policy = job.profile.policies.get(rule.id) if job.profile.policies else None  # type: ignore[call-overload]
    if policy == "off" or not (hits := list(rule.check(job))):
        return []
    judged = [rule.finding(hit, job.at_option(hit.at) if isinstance(hit.at, str) else hit.at) for hit in hits]
    return [each._replace(severity=policy, pedantic=False) for each in judged] if policy else judged
