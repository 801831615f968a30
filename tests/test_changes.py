"""The files of changes/, and the release that makes an entry of CHANGELOG.md of them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sbatchgen import __version__
from tests.conftest import REPOSITORY

CHANGES = sorted(path.name for path in (REPOSITORY / "changes").glob("*"))
KINDS = re.findall(r"^(\w+) = \{\}$", (REPOSITORY / "pyproject.toml").read_text(), re.MULTILINE)
CHANGELOG = (REPOSITORY / "CHANGELOG.md").read_text()


def faults(name: str, text: str) -> list[str]:
    """What is wrong with a file of changes/."""
    wrong = {
        f"its name is not +NAME.KIND.md with a KIND of {KINDS}": not re.fullmatch(
            rf"\+[a-z0-9-]+\.({'|'.join(KINDS)})\.md", name
        ),
        "it is not one entry, without `- `": not re.fullmatch(r"(?!- )(\S.*\n)+", text),
        "a line is too long": max(map(len, text.splitlines())) > 124,
        "a link leads nowhere": not all(
            (REPOSITORY / path).is_file() for path in re.findall(r"\]\((?!https:)([^)#]+)", text)
        ),
    }
    return [fault for fault, is_so in wrong.items() if is_so]


def test_a_change_is_one_entry_of_a_kind() -> None:
    wrong = {name: faults(name, (REPOSITORY / "changes" / name).read_text()) for name in CHANGES}
    assert not any(wrong.values()), wrong  # of a release, none is left


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("+plan.md", "A.\n"),
        ("plan.added.md", "A.\n"),
        ("+plan.new.md", "A.\n"),
        ("+plan.added.md", "- A.\n"),
        ("+plan.added.md", "A.\n\n- B.\n"),
        ("+plan.added.md", "A\n  b.\n"),
        ("+plan.added.md", "A."),
        ("+plan.added.md", "A. " * 50 + "\n"),
        ("+plan.added.md", "[A](docs/none.md#a).\n"),
    ],
)
def test_a_file_of_another_form_is_a_fault(name: str, text: str) -> None:
    assert len(faults(name, text)) == 1


def test_no_two_changes_say_the_same() -> None:
    """Not even with different ends, as entries that were written twice have."""
    begins = [(REPOSITORY / "changes" / name).read_text()[:60] for name in CHANGES]
    assert sorted({*begins}) == sorted(begins)


def test_the_changelog_has_no_entry_but_of_releases() -> None:
    _, start, releases = CHANGELOG.partition("\n<!-- towncrier release notes start -->\n")
    assert start
    heads = re.findall(r"^## .*", CHANGELOG, re.MULTILINE)
    assert releases.startswith(f"\n## [{__version__}] - ")
    assert [head for head in heads if not re.fullmatch(r"## \[[\d.]+\] - \d{4}-\d\d-\d\d", head)] == []


def test_a_release_takes_all_changes_into_the_changelog(tmp_path: Path) -> None:
    pytest.importorskip("towncrier", reason="a development dependency: make .venv/.test")
    kept = ["pyproject.toml", "CHANGELOG.md", "release", "sbatchgen/__init__.py"]
    kept += ["tests/golden/ddp-msu.sh", "docs/reference/script.md"]
    for name in kept:
        copy = shutil.copytree if (REPOSITORY / name).is_dir() else shutil.copy
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        copy(REPOSITORY / name, tmp_path / name)
    (tmp_path / "changes").mkdir()
    (tmp_path / "changes/+b.added.md").write_text("B has\ntwo lines.\n")
    (tmp_path / "changes/+a.fixed.md").write_text("A.\n")
    who = {f"GIT_{role}_{what}": "user" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    environment = {**os.environ, **who, "PYTHONDONTWRITEBYTECODE": "1"}

    def run(*command: str) -> str:
        return subprocess.check_output(command, cwd=tmp_path, env=environment, text=True)

    run("git", "init", "--quiet")
    run("git", "add", ".")
    run("git", "commit", "--quiet", "--message", "All")
    for _ in range(2):  # a second time there is nothing left to do
        run(sys.executable, "-m", "release.version", "99.1")
    assert run("git", "log", "--format=%s") == "Release 99.1\nAll\n"
    assert run("git", "status", "--porcelain", "--untracked-files=no") == ""
    entry = "\n\n### Added\n\n- B has\n  two lines.\n\n### Fixed\n\n- A.\n\n## ["
    new = re.sub(r"(## \[99\.1\]) - \d{4}-\d\d-\d\d", r"\1", (tmp_path / "CHANGELOG.md").read_text())
    assert f"<!-- towncrier release notes start -->\n\n## [99.1]{entry}" in re.sub("\n{3,}", "\n\n", new)
    assert not [*tmp_path.glob("changes/*")]
    for name in kept[3:]:
        assert "99.1" in (tmp_path / name).read_text(), name
        assert (tmp_path / name).read_text().replace("99.1", __version__) == (REPOSITORY / name).read_text()
