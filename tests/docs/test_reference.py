"""The reference is that of the code: generated pages are fresh, and the others leave nothing out."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
import yaml

from sbatchgen import cli
from sbatchgen.base import errors
from sbatchgen.base.keys import keys_of
from sbatchgen.check.lint.linter import rules
from sbatchgen.check.rules import judge
from sbatchgen.check.rules.rule_page import FOLDER
from sbatchgen.jobs.inputs.document import decode
from sbatchgen.jobs.inputs.job_file import JobSpec
from sbatchgen.jobs.inputs.profile import Profile
from sbatchgen.jobs.runtimes import RUNTIMES
from sbatchgen.lab.plan.dry_run import COMMANDS, MAX_SECONDS, PROCESSES
from tests.conftest import REPOSITORY, Command
from tests.docs import reference
from tests.inputs.schema import schema

PAGES = reference.PAGES


def test_generated_pages_are_fresh(command: Command, request: pytest.FixtureRequest) -> None:
    made = reference.pages(command)
    old = {path.name: path.read_text() for path in PAGES.glob("*.md")}
    stale = [name for name, text in made.items() if old.get(name) != text]
    if request.config.getoption("--update-golden"):
        for name in stale:
            (PAGES / name).write_text(made[name])
    assert stale == [], "pytest --update-golden tests/docs"


@pytest.mark.parametrize("name", ["job", "profile"])
def test_the_example_has_every_key_and_is_sound(name: str) -> None:
    text = (PAGES / f"{name}-example.yaml").read_text()
    decode(text, {"job": JobSpec, "profile": Profile}[name], name=name)
    whole = schema(name)
    wanted = {
        key.removesuffix("+")
        for record in (whole, *whole["definitions"].values())
        for key in record["properties"]
    }
    if name == "profile":  # its options are those of a job
        wanted -= {*schema("job")["definitions"]["SbatchOptions"]["properties"]} - {"options", "qos"}
    else:  # the runtimes of a job are those of a profile
        wanted -= {key for runtime in RUNTIMES.values() for key in (runtime.name, *keys_of(runtime.Facts))}
        wanted |= {key.name for runtime in RUNTIMES.values() for key in runtime.keys}
    missing = wanted - {*keys(yaml.safe_load(text))}
    assert not missing, f"a line for each in docs/reference/{name}-example.yaml"


def keys(value: object) -> Iterator[str]:
    yield from value if isinstance(value, dict) else ()
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from keys(inner)


def test_every_rule_links_to_its_page() -> None:
    text = (PAGES / "rules.md").read_text()
    linked = dict(re.findall(r"^\| \[(SB\d+)\]\(.*?/pages/(.*?)#", text, re.MULTILINE))
    assert {*linked} == {*rules()}, "pytest --update-golden tests/docs"
    assert all(f"\n## {rule} " in (FOLDER / page).read_text() for rule, page in linked.items())
    numbers = [int(page.partition("-")[0]) for page in linked.values()]
    assert numbers == sorted(numbers)


def test_every_rule_says_where_it_comes_from() -> None:
    """From public scripts that break it, or from a manual: a rule with neither goes."""
    shown = reference.seen()
    assert shown.keys() - {"scripts"} <= rules().keys()
    assert [rule.id for rule in rules().values() if not (shown.get(rule.id) or rule.source)] == []


# Rules of scripts that the counted public scripts do not show. Others did when they were measured, or the rule says what
# Slurm and bash make of a text for sure.
NOT_COUNTED = frozenset(
    """
    SB142 SB143 SB146 SB147 SB148 SB304 SB313 SB321 SB326 SB332 SB335 SB355 SB412 SB602 SB603 SB616 SB618
    SB619 SB625 SB807 SB817 SB818 SB819 SB820
    """.split()
)


def test_a_rule_that_no_public_script_shows_names_its_report() -> None:
    """A rule of scripts is there for people who made the mistake, or goes."""
    of_scripts = [rule for rule in judge.rules(judge.SCRIPTS) if rule.id not in reference.seen()]
    assert [rule.id for rule in of_scripts if not rule.report and rule.id not in NOT_COUNTED] == []
    assert {rule.id for rule in of_scripts if not rule.report} >= NOT_COUNTED
    address = re.compile(r"https://github\.com/[\w.-]+/[\w.-]+/(?:issues|pull)/\d+")
    assert [rule.id for rule in of_scripts if rule.report and not address.fullmatch(rule.report)] == []


def test_every_exit_status_is_explained() -> None:
    own, _, of_jobs = (PAGES / "exit-status.md").read_text().partition("## Of a job")
    kinds: list[type[errors.SbatchgenError]] = [errors.SbatchgenError]
    kinds += errors.SbatchgenError.__subclasses__()
    of_kinds = [kind.exit_status for kind in kinds]
    statuses = [0, *of_kinds, errors.LIMIT_STATUS, errors.NestedSandboxError.exit_status]
    statuses = [*sorted(statuses), cli.INTERRUPTED, cli.READER_GONE]
    assert [int(status) for status in re.findall(r"^\| (\d+) \|", own, re.MULTILINE)] == statuses
    text = (REPOSITORY / "training/errors.py").read_text()
    of_training = {int(number) for number in re.findall(r"^[A-Z_]+ = (\d+)", text, re.MULTILINE)}
    assert {int(status) for status in re.findall(r"^\| (\d+) \|", of_jobs, re.MULTILINE)} == of_training


def test_every_file_of_a_run_is_explained() -> None:
    text = (PAGES / "run-folder.md").read_text()
    listed = (REPOSITORY / "training/__init__.py").read_text().partition("    config.json ")
    names = re.findall(r"^    ([\w./]+)", "".join(listed[1:]).partition("\n\n")[0], re.MULTILINE)
    assert len(names) > 7
    assert [name for name in names if name not in text] == []


def test_every_variable_is_explained() -> None:
    text = (PAGES / "environment.md").read_text()
    sources = [
        file.read_text()
        for folder in ("sbatchgen", "training", "templates")
        for file in (REPOSITORY / folder).rglob("*")
        if file.suffix in {".py", ".j2"}
    ]
    used = {
        name for source in sources for name in re.findall(r"(?<!_)\b(?:SBATCHGEN|XDG)_[A-Z_]*[A-Z]\b", source)
    }
    assert len(used) > 6
    assert [name for name in used if f"`{name}`" not in text] == []


_CONSTANT = re.compile(
    r"^(_?(?:[A-Z]+_)*(?:MAX|MOST|LONGEST|SECONDS|TIMEOUT|WAITING|PROCESSES|COMMANDS)(?:_[A-Z]+)*)(?::.*)? = ",
    re.MULTILINE,
)
# The folders whose limits must be listed.
_LISTED = (
    *("base/machine", "check/bash", "check/lint", "check/rules", "check/sbatch", "check/script"),
    *("jobs/inputs", "jobs/judge", "lab/plan", "lab/sandbox", "lab/started"),
)
_NO_LIMIT = {  # names of keys; of Slurm; texts; what bounds nothing that a user has
    "base.machine.temporary:_MAX_TRIES", "lab.plan.dry_run:_MIN_PROCESSES", "lab.plan.listing:_MAX_DIFFERENT_WORDS",
    "lab.plan.stand_ins:_MAX_MOUNTS", "lab.sandbox.box:_TIMEOUT_S", "lab.started.started_ends:_LAST_COMMANDS",
    "check.rules.option_values:LARGEST_ARRAY", "check.lint.formats:GITHUB_COMMANDS",
}  # fmt: skip


def test_each_limit_is_listed_with_its_test() -> None:
    constants = {
        f"{'.'.join(path.relative_to(REPOSITORY / 'sbatchgen').with_suffix('').parts)}:{match[1]}"
        for folder in _LISTED
        for path in (REPOSITORY / "sbatchgen" / folder).rglob("*.py")
        for match in _CONSTANT.finditer(path.read_text())
    }
    listed = {each.constant: each for each in reference.limits()}
    assert constants - {*listed} - _NO_LIMIT == set(), "a line for each in tests/docs/limits.txt"
    sources = "".join(path.read_text() for path in (REPOSITORY / "sbatchgen").rglob("*.py"))
    sources = re.sub(r"\"\s+f?\"", "", sources)
    for each in listed.values():
        assert each.value > 0
        file, _, function = each.test.partition("::")
        if file:
            assert f"def {function}(" in (REPOSITORY / "tests" / file).read_text(), each.test
            said = max(re.sub(r"^SB\d+ ", "", each.said).split("{}"), key=len)
            assert said.strip() in sources, each.said


def test_the_limits_that_the_page_on_plans_names_are_those_of_the_code() -> None:
    page = " ".join((REPOSITORY / "docs/how-to/plan.md").read_text().split())
    assert f"may start {PROCESSES:,} processes and take {MAX_SECONDS:g} seconds." in page
    assert f"may follow {COMMANDS:,} commands" in page


def test_no_page_for_users_counts_the_bundled_profiles_by_hand() -> None:
    """reference/profiles.md is generated, and lists them."""
    counts = re.compile(
        r"\b(?:\d+|\w+teen|twenty|thirty|forty)(?:-\w+)? (?:bundled )?profiles\b|\d+ are bundled",
        re.IGNORECASE,
    )
    pages = [
        REPOSITORY / "README.md",
        *(REPOSITORY / "docs").glob("*.md"),
        *(REPOSITORY / "docs/how-to").glob("*.md"),
    ]
    assert len(pages) > 20
    assert [page.name for page in pages if counts.search(page.read_text())] == []
