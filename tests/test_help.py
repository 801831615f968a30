"""The help: its groups, `sbatchgen help`, and man pages."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from release import man
from sbatchgen.cli import GROUPS, cli, guide
from tests.conftest import REPOSITORY, Command, commands_of


def test_the_help_shows_each_command_once_in_its_group(command: Command) -> None:
    text = command("--help").out
    assert re.findall(r"^(\w.*):$", text, re.MULTILINE) == ["Options", *GROUPS]
    shown = re.findall(r"^  (\w+)  ", text.partition("\nWrite a script:")[2], re.MULTILINE)
    assert shown == [name for names in GROUPS.values() for name in names]
    assert set(shown) == set(commands_of(cli))
    assert max(map(len, text.splitlines())) < 80


@pytest.mark.parametrize("names", [[], ["render"], ["profile"], ["profile", "check"], ["help"]])
def test_help_of_a_command_is_what_its_option_prints(command: Command, names: list[str]) -> None:
    shown = command("help", *names)
    assert (shown.status, shown.out) == (0, command(*names, "--help").out)


def test_the_guide_lists_the_pages_and_shows_each(command: Command) -> None:
    rows = command("help", "guide").out.splitlines()
    names = {row.split()[0] for row in rows[1:]}
    assert names == {*guide.FIRST_PAGES, *(file.stem for file in (REPOSITORY / "docs/how-to").glob("*.md"))}
    for row in rows[1:]:
        name, _, title = row.partition("  ")
        text = command("help", "guide", name).out
        assert text.replace("`", "").startswith(f"# {title.strip()}\n")
        assert "<!--" not in text
    assert command("help", "own-trainer").out == command("help", "guide", "own-trainer").out
    assert command("help", "plan").out.startswith("Usage: ")  # a command and a page have the name


@pytest.mark.parametrize(
    ("names", "what", "fix"),
    [
        (["rendr"], "no such command or page 'rendr'", "did you mean 'render'?"),
        (["own-traner"], "no such command or page 'own-traner'", "did you mean 'own-trainer'?"),
        (["guide", "xyz"], "no such command or page 'xyz'", "sbatchgen help guide lists the pages"),
        (["profile", "chek"], "no such command 'chek'", "did you mean 'check'?"),
        (
            ["render", "ddp"],
            "unexpected extra argument (ddp)",
            "write sbatchgen help [OPTIONS] [COMMAND|PAGE]...",
        ),
    ],
)
def test_help_of_no_command_is_an_error(command: Command, names: list[str], what: str, fix: str) -> None:
    result = command("help", *names)
    assert (result.status, result.err) == (2, f"error: {what}\n  fix: {fix}\n")


def test_each_command_has_a_man_page_with_all_its_options(command: Command) -> None:
    pages = man.pages()
    assert {f"sbatchgen-{name}.1" for name in commands_of(cli)} < {*pages}
    assert "sbatchgen-profile-check.1" in pages
    for option in re.findall(r"^  (?:-\w, )?(--[a-z-]+)", command("render", "--help-all").out, re.MULTILINE):
        assert option.replace("-", "\\-") in pages["sbatchgen-render.1"]


@pytest.mark.proof
@pytest.mark.skipif(shutil.which("man") is None, reason="needs man")
def test_man_shows_the_pages_without_a_warning(tmp_path: Path) -> None:
    for name, text in man.pages().items():
        (tmp_path / name).write_text(text)
        line = ["man", "--warnings=w", "-l", str(tmp_path / name)]
        done = subprocess.run(
            line, capture_output=True, text=True, check=True, env={"MANWIDTH": "80", "PATH": "/usr/bin:/bin"}
        )
        assert done.stderr == ""
        assert "SYNOPSIS" in done.stdout
