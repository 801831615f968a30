"""The reference is that of the code: generated pages are fresh, and the others leave nothing out."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
import yaml

from sbatchgen import cli, errors
from sbatchgen.inputs.document import decode
from sbatchgen.inputs.job_file import JobSpec
from sbatchgen.inputs.profile import Profile
from sbatchgen.lint.linter import rules
from sbatchgen.rules.rule_page import FOLDER
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


def test_every_exit_status_is_explained() -> None:
    own, _, of_jobs = (PAGES / "exit-status.md").read_text().partition("## Of a job")
    kinds: list[type[errors.SbatchgenError]] = [errors.SbatchgenError]
    kinds += errors.SbatchgenError.__subclasses__()
    of_kinds = [kind.exit_status for kind in kinds]
    statuses = [0, *of_kinds, errors.LIMIT_STATUS, cli.INTERRUPTED, cli.READER_GONE]
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
