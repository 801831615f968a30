"""The lists in which modules register rules: the marks that a rule has by default, and by another rule."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from sbatchgen.base.finding import NOWHERE
from sbatchgen.check.rules.rule import Applies, Hit, Rule, Rules

MARKS: dict[str, Any] = {
    "pedantic": True,
    "about_fit": True,
    "has_defaults": True,
    "marks_secret": True,
    "report": "https://example.org/1",
    "source": "sbatch(1)",
}
OF_TEXT: dict[str, Any] = {"words": ("srun",), "applies": Applies.TEMPLATES}


def _check(_: object) -> Iterator[Hit]:
    yield Hit(NOWHERE, "it is wrong")


def test_the_check_of_a_dry_run_has_the_marks_of_its_rule() -> None:
    of_script: Rules[Any] = Rules()
    of_dry_run: Rules[Any] = Rules(source="bash(1)")
    of_script.add("SB998", "error", "another", **OF_TEXT)(_check)
    of_script.add("SB999", "warning", "a mistake", **MARKS, **OF_TEXT)(_check)
    of_dry_run.add_for_dry_run(of_script, "SB999")(_check)
    of_dry_run.add_for_dry_run(of_script, "SB999", "info")(_check)
    same, milder = of_dry_run
    assert {name: getattr(same, name) for name in MARKS} == MARKS
    assert (same.id, same.title, same.words, same.applies) == ("SB999", "a mistake", (), Applies.USUALLY)
    assert (same.severity, milder.severity) == ("warning", "info")
    assert all(rule.check is _check for rule in of_dry_run)
    (hit,) = same.check(None)
    finding = same.finding(hit)
    assert (finding.pedantic, finding.about_fit) == (True, True)
    known = {"id", "severity", "title", "check", *MARKS, *OF_TEXT}
    assert {field.name for field in fields(Rule)} == known  # a new mark is either copied, or about the text


def test_a_rule_has_the_source_of_its_list() -> None:
    with_source: Rules[Any] = Rules(source="docs/reference/job.md")
    without: Rules[Any] = Rules()
    for rules in (with_source, without):
        rules.add_fit("SB997", "error", "by default")(_check)
        rules.add_fit("SB998", "error", "by the rule", source="gres.conf(5)")(_check)
        rules.add("SB999", "error", "not about a cluster")(_check)
    assert [rule.source for rule in with_source] == [with_source.source, "gres.conf(5)", with_source.source]
    assert [rule.source for rule in without] == ["slurm.conf(5)", "gres.conf(5)", ""]
    assert [rule.about_fit for rule in without] == [True, True, False]
