"""`sbatchgen page`: what it refuses, and what a centre says about its page."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from sbatchgen.base.errors import SbatchgenError
from sbatchgen.jobs.inputs.document import read_document
from sbatchgen.jobs.inputs.profile import Profile
from sbatchgen.lab.page import packing, static_files
from sbatchgen.lab.page.form import model
from sbatchgen.lab.page.site import FILES, PACKAGES, Site, packages_folder, read_site, strings_of
from sbatchgen.lab.page.static_files import MARK
from tests.conftest import REPOSITORY, Command
from tests.page.conftest import need, write_page

LOCK = json.loads((FILES / "package-lock.json").read_text())


def site(folder: Path, text: str) -> Site:
    (folder / "site.yaml").write_text(text)
    return read_site(folder / "site.yaml")


def test_a_folder_of_other_files_is_not_replaced(tmp_path: Path) -> None:
    need("the page", "node", "npm")
    (tmp_path / "mine.html").touch()
    with pytest.raises(SbatchgenError, match="files that are not those of a page"):
        write_page(tmp_path, ["msu"])
    assert [file.name for file in tmp_path.iterdir()] == ["mine.html"]


def test_a_folder_that_comes_in_place_of_an_older_page_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(static_files, "_pack_python", lambda *_: None)
    page = write_page(tmp_path / "page", ["local"])
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis/years.tex").touch()

    def exchange(*_: object) -> None:  # by another user, while the page is packed
        page.rename(tmp_path / "away")
        (tmp_path / "thesis").rename(page)

    monkeypatch.setattr(static_files, "_write_texts", exchange)
    with pytest.raises(SbatchgenError, match="files that are not those of a page"):
        write_page(page, ["local"])
    assert [file.name for file in page.iterdir()] == ["years.tex"]
    assert {file.name for file in tmp_path.iterdir()} == {"page", "away"}


def test_a_page_is_written_again_with_what_the_centre_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(static_files, "_pack_python", lambda *_: None)  # test_identity has packed pages
    (tmp_path / "logo.svg").write_text("<svg xmlns='http://www.w3.org/2000/svg'/>")
    text = "title: A <University>\nstrings: {lead: Hello}\nlinks: [{text: Help, url: https://example.org}]\n"
    said = site(tmp_path, text)
    write_page(tmp_path / "page", ["local"])
    page = write_page(tmp_path / "page", ["lumi"], said)
    html = (page / "index.html").read_text()
    assert "A &lt;University&gt;" in html
    assert '<a href="https://example.org">Help</a>' in html
    assert '<p class="lead">Hello' in html
    assert "Everything happens in this page" not in html  # the lead of other pages
    assert (page / MARK).is_file()
    assert {file.name for file in tmp_path.iterdir()} == {"page", "logo.svg", "site.yaml"}


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("strings: {leed: x}", "no text 'leed'"),
        ("logo: nowhere.svg", "there is no logo"),
        ("links: [{text: a, url: 'javascript:alert(1)'}]", "is not an address"),
        ("titel: x", "unknown key 'titel'"),
    ],
)
def test_a_mistake_in_what_the_centre_says_is_found(tmp_path: Path, text: str, what: str) -> None:
    with pytest.raises(SbatchgenError, match=re.escape(what)):
        strings_of(site(tmp_path, text), tmp_path / "site.yaml")


def test_packages_that_are_not_there_are_named(tmp_path: Path) -> None:
    with pytest.raises(SbatchgenError, match="no package pyodide"):
        packages_folder(tmp_path, None, print)


def test_packages_are_not_kept_where_others_can_replace_them(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "group/mine"))
    (tmp_path / "group/mine").mkdir(parents=True)
    (tmp_path / "group").chmod(0o777)
    done = command("page", "--profile", "msu", "--to", str(tmp_path / "page"))
    assert (done.status, (tmp_path / "page").exists()) == (3, False)
    assert "error: there is no folder of your own for npm's packages\n" in done.err


def test_without_npm_it_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SbatchgenError, match="there is no npm here"):
        packages_folder(None, tmp_path, print)


def test_each_package_has_a_digest_and_runs_no_script() -> None:
    packages = {name: about for name, about in LOCK["packages"].items() if name}
    assert {f"node_modules/{name}" for name in PACKAGES} <= {*packages}
    assert all(about["integrity"].startswith("sha512-") for about in packages.values())
    assert not any("resolved" in about for about in packages.values())


def test_two_profiles_of_one_name_are_refused(command: Command, tmp_path: Path) -> None:
    result = command("page", "--profile", "msu", "--profile", "msu", "--to", str(tmp_path / "x"))
    assert result.status == 2
    assert "two profiles are named msu" in result.err


def test_every_text_of_the_page_is_used_and_in_one_file() -> None:
    texts = strings_of(Site(), None)
    used = "".join((FILES / name).read_text() for name in ("page.js", "index.html.j2"))
    fields = {field["name"] for field in form("msu")["fields"] if field["main"]}
    unused = {name for name in texts if not re.search(rf"\b{name}\b", used)} - fields
    assert not unused
    named = {*re.findall(r'say\("(\w+)"', used), *re.findall(r"\bt\.(\w+)", used)}
    assert named <= {*texts}


def form(name: str, *, has_code: bool = False) -> Any:
    file = REPOSITORY / f"profiles/{name}.yaml"
    return model({name: read_document(file, Profile).value}, {}, has_code=has_code)


def test_the_form_has_the_flags_of_a_job_with_their_help() -> None:
    fields = {field["flag"]: field for field in form("msu")["fields"]}
    assert fields["--time"]["help"] == "Time limit, HH:MM:SS or D-HH:MM:SS."
    assert fields["--launcher"]["choices"] == ["torchrun", "srun", "spawn", "ft_launcher"]
    assert "--profile" not in fields


def test_a_partition_says_what_it_has_and_allows() -> None:
    partitions = form("kestrel")["profiles"][0]["partitions"]
    about = {partition["name"]: partition["about"] for partition in partitions}
    assert about["debug"] == "4 GPUs, 128 CPUs, 360000M of memory, at most 0-01:00:00 and 2 nodes"


def test_where_the_bundled_trainer_is_unknown_the_form_begins_with_an_own_one() -> None:
    assert form("msu")["profiles"][0]["trainer"] == "train.py"
    assert form("msu", has_code=True)["profiles"][0]["trainer"] == ""


NODE = """#!/bin/sh
echo 'compiles two files'
{more}
echo 'compresses two files'
exec sleep 60
"""


@pytest.mark.parametrize(
    ("more", "end"),
    [
        ("echo complete", "note: this machine is busy: the page is a tenth larger than it could be"),
        ("", "Node.js could not make the page in 0 minutes: it compresses two files"),
        ("echo no such file >&2; exit 1", "Node.js could not make the page: no such file"),
    ],
)
def test_packing_says_how_far_it_is_and_has_an_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: str, end: str
) -> None:
    (tmp_path / "node").write_text(NODE.format(more=more))
    (tmp_path / "node").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    for name, seconds in {"SILENT_S": 0.2, "SMALLER_S": 0.1, "GIVE_UP_S": 0.1}.items():
        monkeypatch.setattr(packing, name, seconds)
    said: list[str] = []
    try:
        packing.pack(tmp_path / "plan.json", lambda line: said.append(str(line)))
    except SbatchgenError as error:
        said += [problem.what for problem in error.problems]
    assert said[0].startswith("note: packing the page: compiles two files (")
    assert said[-1].startswith(end)
