"""What commands print for programs: a schema for each, which is shipped, documented, and that of the records."""

from __future__ import annotations

import json
import re
from pathlib import Path

import click
import jsonschema
import pytest

from release.schemas import schemas
from sbatchgen.cli import cli
from tests.conftest import REPOSITORY, Command, commands_of

PAGE = REPOSITORY / "docs/reference/json.md"
FOLDER = REPOSITORY / "schemas/output"
SCRIPT = "#!/bin/bash\n#SBATCH --nodes=1\n#SBATCH --time=24\n#SBATCH --gpus-per-node=1\npython train.py\n"


def test_the_schemas_that_are_shipped_are_those_of_the_records(request: pytest.FixtureRequest) -> None:
    made = {
        f"{name.replace(' ', '-')}.json": json.dumps(each, indent=2) + "\n"
        for name, each in schemas().items()
    }
    kept = {file.name: file.read_text() for file in FOLDER.iterdir()}
    if request.config.getoption("--update-golden"):
        for name, text in made.items():
            (FOLDER / name).write_text(text)
    assert kept == made, "pytest --update-golden tests/docs"
    for text in made.values():
        jsonschema.Draft7Validator.check_schema(json.loads(text))


def test_each_command_that_prints_json_is_documented_with_its_schema() -> None:
    rows = dict(
        re.findall(
            r"^\| `sbatchgen ([^`]*)` \|.*\[[\w-]+\]\(../../schemas/output/([\w-]+)\.json\) \|$",
            PAGE.read_text(),
            re.MULTILINE,
        )
    )
    assert {*rows.values()} == {name.replace(" ", "-") for name in schemas()}
    printing = {name for name, command in commands("", cli) if "json" in formats(command)}
    assert printing == {re.sub(" (--|RUN|JOB|FILE|NAME|SCRIPT|PACK).*", "", name) for name in rows}


def commands(above: str, group: click.Group) -> list[tuple[str, click.Command]]:
    listed = [(f"{above}{name}", command) for name, command in commands_of(group).items()]
    inside = [
        each
        for name, command in listed
        if isinstance(command, click.Group)
        for each in commands(f"{name} ", command)
    ]
    return listed + inside


def formats(command: click.Command) -> tuple[str, ...]:
    """What --format of a command takes."""
    options = (option for option in command.get_params(click.Context(command)) if option.name == "form")
    return next(
        (tuple(option.type.choices) for option in options if isinstance(option.type, click.Choice)), ()
    )


@pytest.mark.parametrize("name", schemas())
def test_the_command_prints_each_schema(command: Command, name: str) -> None:
    assert command("schema", *name.split()).out == (FOLDER / f"{name.replace(' ', '-')}.json").read_text()


def test_a_schema_that_does_not_exist_is_an_error(command: Command) -> None:
    result = command("schema", "profile", "lst")
    assert (result.status, result.err) == (
        2,
        "error: no schema of 'profile lst'\n  fix: did you mean 'profile list'?\n",
    )


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("words", "status"),
    [
        ("review ddp --profile msu", 0),
        ("review ddp --profile msu --ntasks 2", 3),
        ("explain ddp --profile lumi --account me --lines", 0),
        ("profile list", 0),
        ("profile show lumi", 0),
        ("profile show ./broken.yaml", 3),
        ("profile check lumi", 0),
        ("profile check msu ./broken.yaml nothing", 3),
        ("profile sources lumi", 0),
        ("lint job.slurm", 0),
        ("plan job.slurm", 0),
        ("lint --rules", 0),
        ("lint --explain SB104,SB105", 0),
        ("adopt job.slurm", 0),
        ("status", 0),
    ],
)
def test_what_is_printed_fits_its_schema(folder: Path, command: Command, words: str, status: int) -> None:
    """The fixture `command` compares them, in every test."""
    (folder / "job.slurm").write_text(SCRIPT)
    (folder / "broken.yaml").write_text("name: broken\nx: 1\n")
    result = command(*words.split(), "--format", "json")
    assert result.status == status, result.err
    document = json.loads(result.out)
    assert words != "profile show ./broken.yaml" or document["error"]["problems"]
    assert "check msu" not in words or document["profiles"][1]["findings"]


@pytest.mark.proof
def test_every_profile_is_shown_as_its_schema_says(command: Command) -> None:
    for profile in json.loads(command("profile", "list", "--format", "json").out)["profiles"]:
        shown = json.loads(command("profile", "show", profile["name"], "--format", "json").out)["profile"]
        assert (shown["name"], shown["checked"]) == (profile["name"], profile["checked"])
