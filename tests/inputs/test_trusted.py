"""sbatchgen trust: the list of trusted folders counts only if it is the user's own, and only for what it names."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from sbatchgen.base.machine.trusted import list_file
from tests.conftest import Command
from tests.inputs.test_trust import NOBODY, everybody, give_away, give_to_group, needs_root, project

__all__ = ["project"]
pytestmark = needs_root


def planted(command: Command) -> bool:
    return "--account=planted" in command("render", "ddp", "--profile", "msu").out


@pytest.fixture
def shared(project: Path) -> Path:
    """The project, which a group can write."""
    give_to_group(project)
    return project


def test_who_can_put_another_folder_in_its_place_is_named_too(project: Path, command: Command) -> None:
    give_to_group(project)
    (project / "inner").mkdir()
    said = command("trust", str(project / "inner")).err
    assert "decide with you what your jobs run: the group nogroup" in said


def test_a_folder_of_a_group_is_trusted_once_and_for_all(shared: Path, command: Command) -> None:
    refused = command("render", "ddp", "--profile", "msu").err
    assert f"or to trust it: sbatchgen trust {shared}\n" in refused
    said = command("trust", str(shared))
    assert (said.status, said.out) == (0, "")
    assert (
        f"note: {shared} is trusted: sbatchgen.yaml, .sbatchgen and .git in it and below count as yours\n"
        in said.err
    )
    assert "these can write the folder, and decide with you what your jobs run: the group nogroup" in said.err
    assert planted(command)
    give_to_group(shared / "sbatchgen.yaml")
    give_away(shared / ".sbatchgen/templates/job.sh.j2")  # a member has put it there
    assert planted(command)
    assert command("trust").out == f"{shared}\n"
    assert command("trust", "--remove", str(shared)).status == 0
    assert not planted(command)
    assert command("trust").out == ""


def test_where_a_link_of_another_user_leads_is_not_trusted(shared: Path, command: Command) -> None:
    link = shared / "link"
    link.symlink_to("/")
    os.lchown(link, NOBODY, NOBODY)
    mine = shared / "mine"
    mine.symlink_to("link/usr")
    for named in (link, link / "usr", mine):
        said = command("trust", str(named))
        assert (said.status, f"error: {link} is a link that another user has made, to /\n" in said.err) == (
            2,
            True,
        )
    for whole in ("/", "/usr"):
        said = command("trust", whole)
        assert said.err == f"note: only you and root can write {whole}: it needs no trust, and is not added\n"
    assert command("trust").out == ""


@pytest.mark.parametrize("part", [".", "sbatchgen.yaml", ".sbatchgen/templates/job.sh.j2"])
def test_what_everybody_can_write_is_not_trusted(shared: Path, command: Command, part: str) -> None:
    command("trust", str(shared))
    everybody(shared / part)
    assert "echo planted" not in command("render", "ddp", "--profile", "msu").out
    if part == ".":
        said = command("trust", str(shared))
        assert (said.status, said.err.count(f"fix: its owner can mend that: chmod o-w {shared}\n")) == (2, 1)


def test_a_folder_beside_a_trusted_one_is_not_trusted(shared: Path, command: Command) -> None:
    (shared / "sub").mkdir()
    command("trust", str(shared / "sub"))
    assert not planted(command)


def others(file: Path) -> None:
    file.chmod(0o620)
    os.chown(file, -1, NOBODY)


def pipe(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


@pytest.mark.parametrize(
    "spoil",
    [
        others,
        give_away,
        lambda file: give_to_group(file.parent),
        lambda file: give_away(file.parent.parent),
        lambda file: file.write_text("["),
        lambda file: file.write_text('{"a": "/"}'),
        lambda file: file.write_text('["relative", 3, null]'),
        lambda file: (file.rename(file.with_name("real")), file.symlink_to("real")),
        pipe,
    ],
)
def test_a_list_that_others_could_have_written_does_not_count(
    shared: Path, command: Command, spoil: Callable[[Path], object]
) -> None:
    command("trust", str(shared))
    file = list_file(os.environ)
    assert file
    assert json.loads(file.read_text()) == [str(shared)]
    assert file.stat().st_mode & 0o777 == 0o600
    spoil(file)
    assert not planted(command)


def test_the_trust_in_a_folder_that_others_have_replaced_ends(shared: Path, command: Command) -> None:
    command("trust", str(shared))
    shared.rename(shared.with_name("moved"))
    shared.symlink_to(shared.with_name("moved"))
    assert command("trust", "--remove", str(shared)).status == 0
    assert command("trust").out == ""


def test_a_folder_that_can_not_be_trusted_is_said(shared: Path, command: Command) -> None:
    assert "there is no folder" in command("trust", "nothere").err
    assert "is not trusted" in command("trust", "--remove", ".").err
    assert "--remove needs a folder" in command("trust", "--remove").err
    below = shared / "open" / "below"
    below.mkdir(parents=True)
    everybody(below.parent)
    said = command("trust", str(below)).err
    assert f"error: everybody can write {below.parent}, and so replace {below}\n" in said
