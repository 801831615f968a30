"""All rules, by the kind of job that they judge, and the findings of a rule."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

from sbatchgen.base.finding import Finding, Place
from sbatchgen.check.cluster_facts import KnownCluster
from sbatchgen.check.rules.rule import Rule

if TYPE_CHECKING:
    from sbatchgen.check.script.script import JobScript

# The modules of rules, by the kind of job that they judge. Only the needed modules are loaded.
RESOLVED = tuple(f"jobs.judge.{name}" for name in ("start_keys", "job_keys", "launch_arguments"))
TRAINERS = ("jobs.judge.trainers",)  # trainers of jobs that are submitted here
FIT = ("limits", "constraints", "demands", "gpu_demands")  # requests of a job, compared with the cluster
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
    """The subject of rules: a job, or the dry run of a script."""

    @property
    def profile(self) -> KnownCluster:
        """The cluster."""

    def at_option(self, option: str) -> Place:
        """Return the place of an option."""


@cache
def rules(modules: tuple[str, ...]) -> tuple[Rule[Any], ...]:
    """Return the rules of some modules; a name without a dot is a module of this folder."""
    paths = (name if "." in name else f"check.rules.{name}" for name in modules)
    return tuple(rule for path in paths for rule in import_module(f"sbatchgen.{path}").RULES)


_Group = tuple[tuple[str, ...], list[Rule[Any]]]


@cache
def _grouped(rules: tuple[Rule[Any], ...], *, known: bool) -> list[_Group]:
    """Group rules by their words; if the cluster is not known, leave out rules that need the cluster."""
    groups: dict[tuple[str, ...], list[Rule[Any]]] = {}
    for rule in rules:
        if known or rule.has_defaults or not rule.about_fit:
            groups.setdefault(_shortest(rule.words), []).append(rule)
    return [*groups.items()]


def _shortest(words: tuple[str, ...]) -> tuple[str, ...]:
    """Leave out words that contain another word, as a text with torchrun also has torch."""
    return tuple(word for word in words if not any(other != word and other in word for other in words))


def that_may_find(rules: tuple[Rule[Any], ...], script: JobScript) -> list[Rule[Any]]:
    """Leave out rules whose words a script lacks, and rules that need a cluster if no cluster is known."""
    wanted, has = [], cache(script.text.__contains__)  # several rules name the same word
    for words, group in _grouped(rules, known=script.known):
        if not words or any(map(has, words)):
            wanted += group
    return wanted


def findings(rule: Rule[Any], job: Judged) -> list[Finding]:
    """Return the findings of a rule in a job, with the severity from the cluster's policies."""
    policy = job.profile.policies.get(rule.id) if job.profile.policies else None  # type: ignore[call-overload]
    if policy == "off" or not (hits := list(rule.check(job))):
        return []
    judged = [rule.finding(hit, job.at_option(hit.at) if isinstance(hit.at, str) else hit.at) for hit in hits]
    return [each._replace(severity=policy, pedantic=False) for each in judged] if policy else judged
