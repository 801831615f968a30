"""Every rule has a page, and does on its page's examples what the page says."""

from __future__ import annotations

import ast
import functools
import re
from dataclasses import replace
from pathlib import Path

import pytest

from sbatchgen.base.finding import Finding
from sbatchgen.check.lint.fix import apply_edits
from sbatchgen.check.lint.linter import lint, rules
from sbatchgen.check.rules import comments, judge, syntax
from sbatchgen.check.rules.rule_page import FOLDER, PAGE_LINES, PROFILE, Example, Page, pages
from sbatchgen.check.script.job import DEFAULT_SLURM, NO_CLUSTER
from sbatchgen.check.script.script import JobScript
from sbatchgen.jobs.inputs.document import Document, decode, read_document
from sbatchgen.jobs.inputs.job_file import JobSpec
from sbatchgen.jobs.inputs.layers import Level, job_layer
from sbatchgen.jobs.inputs.profile import Profile
from sbatchgen.jobs.judge.job_check import check
from sbatchgen.jobs.judge.trainer import TrainerJob, check_trainer
from sbatchgen.jobs.resolved.programs import resolve_programs
from sbatchgen.jobs.resolved.resolve import resolve
from sbatchgen.lab.plan.planning import plan_of
from sbatchgen.lab.started.judge_started import check_started
from tests.conftest import GOLDEN, REPOSITORY
from tests.plan.plans import needs_sandbox
from tests.tables import hold

PAGES = pages()
CORPUS = REPOSITORY / "tests/fixtures/corpus"


@functools.cache
def cluster(text: str) -> Document[Profile]:
    """The profile that a page writes; without one, the profile of all pages."""
    return decode(text, Profile, name="profile.yaml") if text else read_document(PROFILE, Profile)


def findings(page: Page, example: Example, folder: Path) -> list[Finding]:
    """What is found in an example: a script or a job."""
    if not example.is_job:
        return lint(subject(page, example, folder))
    job = decode(example.text, JobSpec, name="job.yaml")
    flags = job_layer(Level.JOB, job.value, job.places)
    assert job.value.mode
    of_job = resolve_programs if job.value.programs else resolve
    resolved = of_job(cluster(page.profile), [flags], mode_name=job.value.mode, name="job")
    (folder / "train.py").write_text(page.trainer)
    for part in ("bin/python3", "lib/python3.12/site-packages/numpy.py"):  # an environment without torch
        (folder / "numpy-only" / part).parent.mkdir(parents=True, exist_ok=True)
        (folder / "numpy-only" / part).touch()
    (folder / "user/lib/python3.12/site-packages/einops_own").mkdir(parents=True, exist_ok=True)
    (folder / "bare.toml").write_text('image = "nvcr.io/x"\n')
    (folder / "whole.toml").write_text(
        'base_environment = "./bare.toml"\nmounts = ["/:/:ro", "${TOP}:${TOP}"]\n'
    )
    here = TrainerJob(resolved, folder, {"PYTHONUSERBASE": str(folder / "user"), "TOP": "/"})
    return [*check(resolved, log_folders_made=True), *check_trainer(here)]


def subject(page: Page, example: Example, folder: Path) -> JobScript:
    settings = {name: value for name, value in example.settings.items() if name != "plan"}
    if page.trainer:
        (folder / "train.py").write_text(page.trainer)
    return JobScript(
        file="job.slurm",
        text=example.text,
        slurm=settings.pop("slurm", DEFAULT_SLURM),
        profile=cluster(page.profile).value,
        makes_log_folders=settings.pop("submitted", "") == "yes",
        environment=settings,
        folder=folder,
    )


def started(page: Page, example: Example, folder: Path) -> list[Finding]:
    """What a dry run of an example shows."""
    return check_started(plan_of(subject(page, example, folder), {"HOME": "/home/somebody"}, folder))


def test_rules_and_pages_are_the_same() -> None:
    titles = {rule.id: rule.title for rule in rules().values()}
    pages = {page.rule: page.title for page in PAGES.values()}
    assert titles == pages, "each rule is a section of a file in sbatchgen/check/rules/pages, with its title"


def test_no_id_is_given_twice() -> None:
    wanted = judge.rules((*judge.SCRIPTS, *judge.JOBS))
    ids = [
        rule.id
        for rule in (*comments.RULES, *wanted, *judge.rules((*judge.RESOLVED, *judge.TRAINERS)))
        if rule.id != "SB126"
    ]
    assert len(ids) == len(set(ids))
    headings = [
        line.split()[1]
        for file in FOLDER.glob("*.md")
        for line in file.read_text().splitlines()
        if line.startswith("## ")
    ]
    assert len(headings) == len(set(headings)) == len(PAGES)


def test_rules_about_what_fits_a_cluster_are_asked_for_what_a_cluster_refuses() -> None:
    asked = {rule.id for rule in judge.rules(judge.FIT)}
    every = {rule.id for rule in judge.rules((*judge.JOBS, *judge.SCRIPTS)) if rule.about_fit}
    assert len(every) > 20
    assert every <= asked


def test_a_page_shows_both() -> None:
    for page in PAGES.values():
        assert {example.is_good for example in page.examples} == {True, False}, page.rule


@pytest.mark.parametrize("page", PAGES.values(), ids=PAGES)
def test_the_examples_are_what_they_say(page: Page, tmp_path: Path) -> None:
    hold(is_what_it_says, [(page, example, tmp_path) for example in page.examples])


def is_what_it_says(page: Page, example: Example, tmp_path: Path) -> None:
    """A bad one has a finding of the rule, which its fix removes; a good one has none, and no error at all."""
    if example.settings.get("plan") == "only":
        return
    shown = findings(page, example, tmp_path)
    about = [finding for finding in shown if finding.rule == page.rule]
    if example.is_good:
        assert about == []
        assert [finding.rule for finding in shown if finding.severity == "error"] == []
        return
    assert about, [finding.rule for finding in shown]
    for finding in about:
        assert finding.problem.fix
        if example.is_job:
            continue
        assert finding.problem.at.startswith("job.slurm:")
        lines = example.text.split("\n")
        assert 1 <= finding.place.line <= len(lines)
        assert 1 <= finding.place.column <= len(lines[finding.place.line - 1]) + 1
    if fixes := [finding for finding in about if finding.edits]:
        text = apply_edits(example.text.encode("utf-8", "surrogateescape"), fixes)
        mended = replace(example, text=text.decode("utf-8", "surrogateescape"))
        after = lint(subject(page, mended, tmp_path))
        left = [finding for finding in after if finding.rule == page.rule]
        assert len(left) <= len(about) - len(fixes)
        assert not any(finding.edits for finding in left)
        errors = {finding.rule for finding in shown if finding.severity == "error"}
        assert {finding.rule for finding in after if finding.severity == "error"} <= errors


@pytest.mark.proof
def test_a_rule_that_a_text_spares_finds_nothing(tmp_path: Path) -> None:
    """By the words that a rule names, and without a cluster: what is spared is time, never a finding."""
    every = judge.rules((*judge.SCRIPTS, *judge.JOBS))
    texts = [example.text for page in PAGES.values() for example in page.examples if not example.is_job]
    files = (*CORPUS.glob("*.sh"), *CORPUS.parent.glob("scripts/*.slurm"), *GOLDEN.glob("*.sh"))
    texts += [each.read_text(errors="surrogateescape") for each in files]
    spared = 0
    for text in texts:
        for profile in (NO_CLUSTER, cluster("").value):
            script = JobScript(file="job.slurm", text=text, profile=profile, folder=tmp_path)
            wanted = {rule.id for rule in judge.candidates(every, script)}
            left = [rule for rule in every if rule.id not in wanted]
            spared += len(left)
            assert [rule.id for rule in left if judge.findings(rule, script)] == [], text
    assert spared > len(texts) * len(every)  # of two times as many calls


@pytest.mark.parametrize(
    ("line", "asks"),
    [
        ("echo done", 0),
        ("echo 'if so, do'", 0),
        ("while read x; do echo fi; done < x", 0),
        ("done", 1),
        ("srun a; fi", 1),
        ("esac", 1),
        ("else srun b", 1),
        ("if true; then srun a", 1),
    ],
)
def test_bash_is_asked_where_the_grammar_is_in_doubt(
    line: str, asks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A word such as done, which bash takes for a part of a loop, is in doubt where a command begins."""
    asked: list[str] = []
    ask = syntax.bash_complaints

    def noted(text: str) -> list[tuple[int, str]]:
        asked.append(text)
        return ask(text)

    monkeypatch.setattr(syntax, "bash_complaints", noted)
    hits = lint(JobScript(file="job.slurm", text=f"#!/bin/bash\n#SBATCH -t 1\n{line}\n"))
    assert (len(asked), sum(finding.rule == "SB814" for finding in hits)) == (asks, asks)


@pytest.mark.parametrize(("count", "hits"), [(100, 100), (150, 0)])
def test_names_are_compared_unless_a_program_has_written_them(count: int, hits: int) -> None:
    names = [f"{chr(97 + at % 26)}{chr(97 + at // 26)}" * 4 for at in range(count)]
    text = "".join(f"{name}_one=1\ncp ${name}_onee .\n" for name in names)
    ids = [each.rule for each in lint(JobScript(file="job.slurm", text=f"#!/bin/bash\n#SBATCH -t 1\n{text}"))]
    assert ids.count("SB335") == hits


@pytest.mark.sampled(8)
@needs_sandbox
@pytest.mark.parametrize("rule", sorted({rule.id for rule in judge.rules(judge.STARTED)}))
def test_a_dry_run_shows_what_the_page_says(rule: str, tmp_path: Path) -> None:
    """Of each bad example that it is run for, with a fix; of no good one, in which lint finds no error either."""
    page = PAGES[rule]
    examples = [example for example in page.examples if example.settings.get("plan")]
    assert {example.is_good for example in examples} == {True, False}
    for example in examples:
        about = [finding for finding in started(page, example, tmp_path) if finding.rule == page.rule]
        assert bool(about) != example.is_good, example.text
        for finding in about:
            assert finding.problem.fix
            assert 1 <= finding.place.line <= len(example.text.split("\n"))
        errors = [each for each in findings(page, example, tmp_path) if each.severity == "error"]
        assert not (example.is_good and errors)


def test_fixes_are_tried() -> None:
    """By the bad examples of these rules, among others."""
    fixed = {"SB102", "SB111", "SB115"}
    tried = {
        finding.rule
        for rule in fixed
        for example in PAGES[rule].examples
        for finding in lint(subject(PAGES[rule], example, Path("/nonexistent")))
        if finding.edits
    }
    assert fixed <= tried


def test_a_secret_is_never_shown(tmp_path: Path) -> None:
    page = PAGES["SB806"]
    shown = [
        (example, finding) for example in page.examples for finding in lint(subject(page, example, tmp_path))
    ]
    secrets = [(example, finding) for example, finding in shown if finding.rule == page.rule]
    assert secrets
    for example, finding in secrets:
        line = example.text.split("\n")[finding.place.line - 1]
        written = line[finding.place.column - 1 : finding.place.end - 1 if finding.place.end else None]
        assert written[-6:] not in finding.problem.what + finding.problem.fix
        assert "..." in finding.problem.what


def test_what_a_container_needs_is_looked_for_where_its_folder_is_here(tmp_path: Path) -> None:
    """A missing image is reported only where the folder that should hold it exists."""
    launch = "srun --container-image={0}/a/t.sqsh python train.py"
    text = f"#!/bin/bash\n{launch.format(tmp_path)}\n"

    def missing() -> set[str]:
        shown = lint(JobScript(file="job.slurm", text=text, folder=tmp_path, makes_log_folders=True))
        return {finding.rule for finding in shown if "does not exist here" in finding.problem.what}

    assert missing() == set()
    (tmp_path / "a").mkdir()
    assert missing() == {"SB505"}
    (tmp_path / "a" / "t.sqsh").touch()
    assert missing() == set()


def test_where_a_rule_is_true_is_said_by_the_rule() -> None:
    """No id of a rule is written in the folders that apply them."""
    for folder in ("check/lint", "lab/adopt", "lab/plan", "jobs/review", "jobs/submit", "cli"):
        for file in (REPOSITORY / "sbatchgen" / folder).glob("*.py"):
            nodes = ast.walk(ast.parse(file.read_text()))
            texts = [
                node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)
            ]
            assert [text for text in texts if re.fullmatch(r"SB\d{3}", text)] == [], file


# What a sentence that says what to do begins with, after what it may depend on.
_DO = re.compile(
    r"(?:^|(?<=[.!?:)] ))(?:(?:If|To|For|With|On|In|Before|Then|At|Without|Where|Since)\b[^,.]*, )?"
    r"(?:Add|Allow|Ask|Correct|Download|Limit|Store|Begin|Build|Call|Change|Check|Choose|Close|Compare|Convert|End|Print|Count|Declare|Divide|Export|Fill|Give|Install|Keep"
    r"|Leave|Let|Load|Lower|Make|Mount|Move|Name|Omit|Open|Pass|Put|Quote|Read|Remove|Rename|Repeat|Replace|Run|Save|Set"
    r"|Split|Start|Submit|Take|Type|Unset|Update|Use|Wait|Write|add|ask|give|keep|leave|make|remove|set|use|write)\b"
)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("page", PAGES.values(), ids=lambda page: page.rule)
def test_a_page_is_read_at_once_and_says_what_to_do(page: Page) -> None:
    """`--explain` shows the prose first, then an example of each kind."""
    shown = page.short("sbatch(1)")
    prose, *blocks = shown.split("\n```")
    assert shown.count("\n") <= PAGE_LINES
    assert [block for block in blocks if not block.startswith(("python", "bash", "yaml", "\n", "text"))] == []
    assert shown.count("\n```bash good") + shown.count("\n```yaml good") == 1
    assert shown.count("\n```bash bad") + shown.count("\n```yaml bad") == 1
    assert _DO.search(" ".join(prose.split("\n", 2)[2].split())), prose
    assert "Source:" in prose
