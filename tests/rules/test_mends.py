"""Who types what a rule says has a script that Slurm takes, that starts what was meant, and in which nothing is found."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from sbatchgen.check.lint.linter import lint
from sbatchgen.check.rules import judge
from sbatchgen.check.script.script import JobScript
from sbatchgen.lab.plan.planning import plan_of
from sbatchgen.lab.started.judge_started import check_started
from tests.cluster.fixtures import VISIBLE
from tests.cluster.slurm import Cluster
from tests.plan.plans import needs_sandbox
from tests.rules.mends import MENDS, NO_TEXT, Mend
from tests.rules.test_proofs import SETTINGS
from tests.rules.test_rules import PAGES, subject
from tests.tables import hold

SUBMIT = """
for folder in *-SB*; do
    cd ~/"$folder" && sbatch --hold job.slurm 2>&1 >/dev/null | sed "s/^/$folder: /"
done
"""
_SHOWN = re.compile(r"--|\$|=")  # in a fix that shows what to type
_TOKEN = re.compile(r"[\w%$-]{3,}")


def scripts(mend: Mend, folder: Path) -> tuple[JobScript, JobScript]:
    """A bad example, and the same with its fix."""
    page = PAGES[mend.rule]
    bad = [each for each in page.examples if not each.is_good][mend.example]
    text = bad.text
    for old, new in mend.changes:
        assert old in text, f"{old!r} is not in {text}"
        text = text.replace(old, new)
    (folder / mend.rule).mkdir(exist_ok=True)
    for name, content in mend.files:
        (folder / mend.rule / name).write_text(content)
    before = subject(page, bad, folder / mend.rule)
    return before, replace(before, text=text)


def test_each_rule_whose_fix_is_text_has_a_row(tmp_path: Path) -> None:
    rows = {mend.rule for mend in MENDS}
    without = [
        rule.id for rule in judge.rules((*judge.SCRIPTS, "logs", "option_values")) if rule.id not in rows
    ]
    bad = [
        (page, each) for page in map(PAGES.get, without) if page for each in page.examples if not each.is_good
    ]
    hits = [hit for page, each in bad for hit in lint(subject(page, each, tmp_path)) if hit.rule == page.rule]
    by_edits = {hit.rule for hit in hits if hit.edits}
    assert {*without} - by_edits == NO_TEXT


def test_each_fix_leaves_nothing_to_find(tmp_path: Path) -> None:
    hold(leaves_nothing, [(mend, tmp_path) for mend in MENDS])


def leaves_nothing(mend: Mend, folder: Path) -> None:
    """What is typed is in the fix, and lint warns of nothing afterwards."""
    before, after = scripts(mend, folder)
    fix = next(each.problem.fix for each in lint(before) if each.rule == mend.rule)
    typed = {token for old, new in mend.changes for token in _tokens(new) - _tokens(old)}
    assert not typed or not _SHOWN.search(fix) or typed & _tokens(fix), (typed, fix)
    left = [each for each in lint(after) if each.rule == mend.rule or each.severity != "info"]
    assert not left, [f"{each.rule} {each.problem.what}" for each in left]


def _tokens(text: str) -> set[str]:
    """The words of a text, without their numbers."""
    return {re.sub(r"\d+", "", token) for token in _TOKEN.findall(text)}


@pytest.mark.proof
@needs_sandbox
def test_each_fix_starts_what_was_meant(tmp_path: Path) -> None:
    hold(starts_what_was_meant, [(mend, tmp_path) for mend in MENDS])


def starts_what_was_meant(mend: Mend, folder: Path) -> None:
    """A dry run starts the programs of the row, none of them refused, and warns of nothing."""
    _, after = scripts(mend, folder)
    done = plan_of(after, {"HOME": "/home/somebody"}, folder / mend.rule)
    counts = Counter(process.argv[0].rpartition("/")[2] for step in done.steps for process in step.processes)
    assert " ".join(f"{name} {number}" for name, number in counts.items()) == mend.starts, (
        f"{after.text}{done.last_message}"
    )
    assert [step.refusal for step in done.steps if step.refusal] == []
    left = [each for each in check_started(done) if each.severity != "info"]
    assert not left, [f"{each.rule} {each.problem.what} {each.problem.fix}" for each in left]


def test_slurm_takes_each_mended_script(real_slurm: None, tmp_path: Path) -> None:
    with Cluster(visible=VISIBLE, settings=SETTINGS) as cluster:
        for number, mend in enumerate(MENDS):
            cluster.put(f"{number}-{mend.rule}/job.slurm", scripts(mend, tmp_path)[1].text)
        refused = cluster.run(["bash", "-c", SUBMIT]).stdout
    assert not refused
