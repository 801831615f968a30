"""The sources of a profile's facts, compared with newer checkouts of a made-up documentation."""

from __future__ import annotations

import subprocess
from datetime import datetime
from pathlib import Path

import pytest

from sbatchgen.base.git import git
from sbatchgen.base.texts import Citation
from tests.conftest import Command
from tests.runs.test_snapshot import git as run_git
from tools.sources import cli, digest

PAGE = ["# GPUs", "", "| gpu   | 2 days | 16 nodes |", "| debug | 1 hour | 2 nodes |", "", "Load cuda/12.4."]


def commit(repository: Path, lines: list[str]) -> str:
    """Write the page, commit it, and return the commit."""
    if not repository.exists():
        repository.mkdir(parents=True)
        run_git(Path(), "init", "-q", str(repository))
    (repository / "gpu.md").write_text("\n".join(lines) + "\n")
    run_git(repository, "add", ".")
    run_git(repository, "commit", "-q", "-m", "x")
    return git(repository, "rev-parse", "HEAD") or ""


def profile(at: str, keys: str = "[partitions.gpu.time_max]", checked: str = "") -> None:
    day = checked or f"{datetime.now().astimezone():%Y-%m-%d}"
    Path("lab.yaml").write_text(
        f"name: lab\nurl: https://example.org\nchecked: {day}\n"
        "partitions: {gpu: {time_max: 2-00:00:00}}\n"
        f"default_partition: gpu\nsources:\n  - {{at: {at}, keys: {keys}}}\n"
    )


def cited(repository: Path, line: int = 3) -> str:
    """A source with the digest of a line of the page as it was first."""
    return f"example/docs@{commit(repository, PAGE)} gpu.md:{line} {digest([PAGE[line - 1]])}"


CHANGED = (
    "error: partitions.gpu.time_max: gpu.md:3 changed, it was '| gpu | 2 days | 16 nodes |'; line 3 is now"
)


@pytest.mark.parametrize("place", ["docs", "all/docs", "all/example+docs/repo", "all/example/docs"])
def test_a_changed_line_is_named_with_what_it_was_and_is(command: Command, place: str) -> None:
    profile(cited(Path(place)))
    newest = commit(Path(place), [*PAGE[:2], "| gpu | 1 day | 16 nodes |", *PAGE[3:]])
    folder = place.split("/", maxsplit=1)[0]
    done = command("./lab.yaml", folder, program=cli)
    assert (done.status, done.out) == (3, "./lab.yaml: 1 changed\n")
    assert f"{CHANGED} '| gpu | 1 day | 16 nodes |'\n  at:  lab.yaml:7\n" in done.err
    new = digest(["| gpu | 1 day | 16 nodes |"])
    assert f"write at: example/docs@{newest[:10]} gpu.md:3 {new}\n" in done.err


def test_lines_that_move_or_are_aligned_again_are_the_same_facts(command: Command) -> None:
    profile(cited(Path("docs")))
    commit(Path("docs"), ["A new page.", *PAGE])
    done = command("./lab.yaml", "docs", program=cli)
    assert (done.status, done.out) == (0, "./lab.yaml: 1 moved\n")
    assert "info: partitions.gpu.time_max: gpu.md:3 is line 4 now\n" in done.err
    commit(Path("docs"), [line.replace(" ", "   ") for line in PAGE])
    done = command("./lab.yaml", "docs", program=cli)
    assert (done.status, done.out, done.err) == (0, "./lab.yaml: 1 unchanged\n", "")


def test_a_shallow_checkout_is_enough(command: Command) -> None:
    profile(cited(Path("docs")))
    commit(Path("docs"), [*PAGE[:2], "| gpu | 1 day | 16 nodes |", *PAGE[3:]])
    subprocess.run(
        ["git", "clone", "-q", "--bare", "--depth=1", f"file://{Path.cwd()}/docs", "shallow"], check=True
    )
    done = command("./lab.yaml", "shallow", program=cli)
    assert done.status == 3
    assert "gpu.md:3 changed; line 3 is now '| gpu | 1 day | 16 nodes |'" in done.err


def test_sources_that_were_read_long_ago_are_to_be_read_again(command: Command) -> None:
    profile(cited(Path("docs")), checked="2020-01-31")
    done = command("./lab.yaml", "docs", program=cli)
    assert done.status == 0
    assert "warning: ./lab.yaml: the sources were last read " in done.err
    assert "on 2020-01-31\n  fix: compare the facts with them" in done.err


def test_a_source_without_a_digest_gets_one_to_write(command: Command) -> None:
    at = cited(Path("docs"), 6)
    profile(at.rpartition(" ")[0])
    done = command("./lab.yaml", "docs", program=cli)
    assert done.status == 0
    assert "gpu.md:6 has no digest\n" in done.err
    assert f"write at: example/docs@{at.split('@')[1][:10]} gpu.md:6 {digest([PAGE[5]])}\n" in done.err


def test_what_the_folder_lacks_is_counted_or_an_error(command: Command) -> None:
    profile("https://example.org/gpu")
    assert command("./lab.yaml", ".", program=cli).out == "./lab.yaml: 1 not in the folder\n"
    profile("example/docs@0123abc gpu.md:3")
    Path("empty").mkdir()
    done = command("./lab.yaml", "empty", program=cli)
    assert (done.status, "empty holds no repository of example/docs" in done.err) == (3, True)
    commit(Path("docs"), PAGE)
    profile("example/docs@0123abc old.md:3")
    assert "old.md:3 is gone" in command("./lab.yaml", "docs", program=cli).err


def test_sources_are_links_and_explain_shows_those_of_each_value(command: Command) -> None:
    profile("example/docs@0123abc docs/gpu.md:3-4", "[partitions.gpu, default_partition]")
    link = "https://github.com/example/docs/blob/0123abc/docs/gpu.md#L3-L4"
    assert command("profile", "sources", "./lab.yaml").out == f"partitions.gpu, default_partition  {link}\n"
    shown = command("explain", "single", "--profile", "./lab.yaml").out
    assert f"lab.yaml:5  ({link})\n" in shown, shown
    assert (
        Citation.parse("git.example.org/a/b@0123abc c:1").url
        == "https://git.example.org/a/b/blob/0123abc/c#L1"
    )


@pytest.mark.parametrize(
    ("at", "says"),
    [
        ("example/docs docs/gpu.md:3", "names no source"),
        ("example/docs@0123abc docs/gpu.md", "names no source"),
        ("example/docs@0123abc gpu.md:4-3", "ends before line 4"),
        ("--upload-pack=x/y@0123abc gpu.md:4", "names no source"),
    ],
)
def test_nonsense_is_refused(command: Command, at: str, says: str) -> None:
    profile(at)
    done = command("profile", "check", "./lab.yaml")
    assert (done.status, says in done.err) == (3, True), done.err


def test_a_key_that_the_profile_lacks_is_a_warning(command: Command) -> None:
    profile("https://example.org", "[partitions.gpu, partitions.gpuu]")
    done = command("profile", "check", "./lab.yaml")
    assert done.status == 0
    assert done.err.startswith("warning: sources: the profile does not set 'partitions.gpuu'\n")


def test_profiles_are_listed_by_site_with_the_age_of_their_facts(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path("shared/profiles")
    folder.mkdir(parents=True)
    for name, site, checked in (("b", "Lab", "2020-01-31"), ("a", "", "x"), ("c", "Lab", "2199-01-01")):
        line = f"site: {site}\n" if site else ""
        (folder / f"{name}.yaml").write_text(f"name: {name}\nurl: x\nchecked: {checked}\n{line}")
    monkeypatch.setenv("SBATCHGEN_PATH", "shared")
    shown = command("profile", "list").out
    assert "\nLab\n* b " in shown
    assert " months ago" in shown.partition("\n* b ")[2].partition("\n")[0]
    assert "ago" not in shown.partition("\n* c ")[2].partition("\n")[0]
    assert shown.startswith("* a ")
