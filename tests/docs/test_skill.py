"""The page for assistants: its tables are those of the code, and it is short. test_pages.py runs its commands."""

from __future__ import annotations

import re

import click
import pytest

from sbatchgen.cli import GROUPS, cli
from tests.conftest import REPOSITORY, Command, commands_of

PAGE = REPOSITORY / "templates/SKILL.md"
LINES = 200
USED = ("Write a script", "Run jobs", "Watch runs", "Check")  # by an assistant
OPTIONS = {  # that matter, by the commands that have them
    "submit": ("--yes", "--dry-run", "--reviewed", "--budget", "--again", "--after", "--snapshot", "--format"),
    "review": ("--profile", "--job-name", "--run-dir", "--nodes", "--gpus-per-node", "--time", "--mem", "--partition", "--account", "--brief"),
    "sweep": ("--param", "--throttle"),
}  # fmt: skip


def tables() -> dict[str, str]:
    """The text between the marks of the page."""
    commands = commands_of(cli)
    lines = {name: command.get_short_help_str(200) for name, command in commands.items()}
    listed = [f"- `{name}`: {lines[name]}" for group in USED for name in GROUPS[group] if name != "lsp"]
    options = []
    for name, wanted in OPTIONS.items():
        context = click.Context(commands[name], info_name=name)
        known = {flag: each for each in commands[name].get_params(context) for flag in each.opts}
        records = [known[flag].get_help_record(context) for flag in wanted]
        options += [
            f"- `{name} {record[0].split(', ')[-1]}`: {record[1].partition('  [')[0]}"
            for record in records
            if record
        ]
    text = (REPOSITORY / "docs/reference/exit-status.md").read_text().partition("## Of a job")[0]
    rows = re.findall(r"^\| (\d+) \| (.*) \|$", text, re.MULTILINE)
    plain = [(number, re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", meaning)) for number, meaning in rows]
    statuses = [f"- {number}: {meaning}" for number, meaning in plain]
    made = {"commands": listed, "options": options, "statuses": statuses}
    return {name: "\n".join(each) for name, each in made.items()}


def test_its_tables_are_those_of_the_code(request: pytest.FixtureRequest) -> None:
    text = made = PAGE.read_text()
    for name, table in tables().items():
        before, _, rest = made.partition(f"<!-- {name} -->\n")
        assert rest, name
        made = f"{before}<!-- {name} -->\n{table}\n<!-- end -->{rest.partition('<!-- end -->')[2]}"
    if request.config.getoption("--update-golden"):
        PAGE.write_text(made)
    assert text == made, "pytest --update-golden tests/docs/test_skill.py"


def test_it_is_printed_and_short(command: Command) -> None:
    printed = command("help", "--skill").out
    assert printed.startswith("---\nname: sbatchgen\n")
    assert "<!--" not in printed
    assert 100 < len(printed.splitlines()) <= LINES
    assert all(f"- `{name}`" in printed for name in GROUPS["Run jobs"])


def test_each_command_in_it_has_its_real_output() -> None:
    assert "\n...\n" not in PAGE.read_text()
