"""The lists of modules with rules, the rules that may find something in a script, and a rule's findings.

The linter and the commands that judge resolved jobs and dry runs call this module.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from sbatchgen.base.finding import Finding, Place
from sbatchgen.check.cluster_facts import KnownCluster
from sbatchgen.check.rules.rule import Rule

if TYPE_CHECKING:
    from sbatchgen.check.script.script import JobScript

# The modules of rules, in a list for each kind of job that they judge. Only the needed modules are loaded.
RESOLVED = ("jobs.judge.start_keys", "jobs.judge.job_keys", "jobs.judge.launch_arguments")  # resolved jobs
TRAINERS = ("jobs.judge.trainers",)  # trainers of jobs that sbatchgen submits
FIT = (
    "limits",
    "qos",
    "constraints",
    "demands",
    "gpu_demands",
)  # requests of a job, compared with the cluster
JOBS = (*FIT, "logs", "option_values")  # resolved jobs and scripts
_STARTED_MODULES = "started_ends started_variables started_steps started_launchers"
STARTED = tuple(f"lab.started.{name}" for name in _STARTED_MODULES.split())  # dry runs of scripts
_SCRIPT_MODULES = """
directives foreign directive_options misread_values process_counts task_counts step_commands unset_variables
rendezvous steps statuses environment software names containers survival requeues waiting_loops kills safety
secret syntax submitting
"""
SCRIPTS = tuple(_SCRIPT_MODULES.split())  # scripts


class Subject(Protocol):
    """The subject of rules: a job, or the dry run of a script."""

    @property
    def profile(self) -> KnownCluster:
        """The cluster."""

    def at_option(self, option: str) -> Place:
        """Return the place of an option."""


@cache
def rules(modules: tuple[str, ...]) -> tuple[Rule[Any], ...]:
    """Return the rules of these modules; a name without a dot is a module of this folder."""
    paths = (name if "." in name else f"check.rules.{name}" for name in modules)
    return tuple(rule for path in paths for rule in import_module(f"sbatchgen.{path}").RULES)


class _RuleGroup(NamedTuple):
    """Rules with the same words."""

    words: tuple[str, ...]  # a script needs one of these words to break the rules; empty for any script
    rules: list[Rule[Any]]


@cache
def _groups(rules: tuple[Rule[Any], ...], *, knows_cluster: bool) -> list[_RuleGroup]:
    """Return the rules in groups by their words, without those that need an unknown cluster."""
    groups: dict[tuple[str, ...], list[Rule[Any]]] = {}
    for rule in rules:
        if knows_cluster or rule.has_defaults or not rule.about_fit:
            groups.setdefault(_needed_words(rule.words), []).append(rule)
    return [_RuleGroup(words, group) for words, group in groups.items()]


def _needed_words(words: tuple[str, ...]) -> tuple[str, ...]:
    """Return the words without those that contain another word, as a text with torchrun also has torch."""
    return tuple(word for word in words if not any(other != word and other in word for other in words))


def candidates(rules: tuple[Rule[Any], ...], script: JobScript) -> list[Rule[Any]]:
    """Return the rules that may find something in a script.

    A rule finds nothing if the script lacks its words, or if the rule needs a cluster and none is known.
    """
    has_word = cache(script.text.__contains__)  # cached, as several rules name the same word
    chosen: list[Rule[Any]] = []
    for words, group in _groups(rules, knows_cluster=script.knows_cluster):
        if not words or any(map(has_word, words)):
            chosen += group
    return chosen


def findings(rule: Rule[Any], job: Subject) -> list[Finding]:
    """Return the findings of a rule in a job, with the severity from the cluster's policies."""
    policy = job.profile.policies.get(rule.id) if job.profile.policies else None  # type: ignore[call-overload]
    if policy == "off":
        return []
    results = []
    for hit in rule.check(job):
        finding = rule.finding(hit, job.at_option(hit.at) if isinstance(hit.at, str) else hit.at)
        results.append(finding._replace(severity=policy, pedantic=False) if policy else finding)
    return results
