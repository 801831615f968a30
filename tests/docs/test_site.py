"""The documentation is built as a site, without a warning and without the network; its links lead somewhere."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest

from tests.conftest import REPOSITORY
from tests.docs.pages import PAGES
from tests.page.conftest import PACKAGES, need

# The page of assistants is printed by `help --skill`.
ON_SITE = [page for page in PAGES[1:] if page.name != "SKILL.md"]


class Links(HTMLParser):
    """What a page of the site loads, where its links lead, and the places in it that links can lead to."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.links: list[str] = []
        self.places: set[str] = set()
        self.feed(page.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what the tag names."""
        said = {name: value or "" for name, value in attrs}
        self.places.add(said.get("id", ""))
        if tag == "a":
            self.links.append(said.get("href", ""))
        elif said.get("rel") not in {"canonical", "search", "index", "next", "prev"}:
            self.loads += [said[name] for name in ("src", "href") if name in said]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as `make docs` builds it."""
    folder = tmp_path_factory.mktemp("site")
    (line,) = re.findall(r"-m (sphinx .*) build/site$", (REPOSITORY / "Makefile").read_text(), re.MULTILINE)
    words = [sys.executable, "-m", *line.split(), str(folder)]
    done = subprocess.run(words, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return folder


@pytest.mark.proof
@pytest.mark.slow
def test_every_page_is_on_the_site_and_every_link_leads_somewhere(site: Path) -> None:
    pages = {page: Links(page) for page in site.rglob("*.html")}
    assert {site / page.relative_to(REPOSITORY).with_suffix(".html") for page in ON_SITE} <= {*pages}
    for page, links in pages.items():
        for link in links.links:
            file, _, place = unquote(link).partition("#")
            if re.match(r"[a-z]+:", file) or (not file and not place):
                continue
            to = (page.parent / file).resolve() if file else page
            assert to.is_file(), f"{page}: {link}"
            assert not place or to not in pages or place in pages[to].places, f"{page}: {link}"


@pytest.mark.proof
@pytest.mark.slow
def test_the_site_loads_nothing_from_the_network(site: Path) -> None:
    loaded = {address for page in site.rglob("*.html") for address in Links(page).loads}
    assert len(loaded) > 5
    assert not [address for address in loaded if re.match(r"(https?:)?//", address)]
    for style in site.rglob("*.css"):
        assert not re.search(r"url\(['\"]?(https?:)?//|@import", style.read_text()), style


def test_the_links_of_the_readme_lead_somewhere() -> None:
    readme = (REPOSITORY / "README.md").read_text()
    links = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", readme)
    assert len(links) > 15
    assert [link for link in links if not link.startswith("http") and not (REPOSITORY / link).exists()] == []


def test_each_page_is_reached_from_the_first_one() -> None:
    """By links that a reader sees: the list of pages at the side is not all that leads there."""
    reached: set[Path] = set()
    waiting = [REPOSITORY / "docs/index.md"]
    while waiting:
        page = waiting.pop()
        if page not in reached:
            reached.add(page)
            links = re.findall(r"\]\(([^)#:]+\.md)(?:#[^)]*)?\)", page.read_text())
            waiting += [to for link in links if (to := (page.parent / link).resolve()).is_file()]
    assert {*ON_SITE} - reached == set()


# The pages of how-to in 0.3.0, to which others link.
PAGES_BEFORE = """
    add-a-cluster after-a-failure bundled-trainer choose-gpus editors hangs-and-bad-nodes large-machines lint-scripts
    own-data own-trainer plan preflight programs publish-a-profile rehearse resume-and-requeue review-and-submit
    several-programs sweep use-containers watch-a-job work-in-a-group
""".split()


@pytest.mark.proof
@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES_BEFORE)
def test_an_address_of_an_earlier_release_still_leads_to_a_page(site: Path, page: str) -> None:
    text = (site / f"docs/how-to/{page}.html").read_text()
    moved = re.search(r'http-equiv="refresh" content="0; url=([\w./-]+)#([\w-]+)"', text)
    if moved:
        assert moved[2] in Links(site / "docs/how-to" / moved[1]).places
    else:
        assert "<h1>" in text


@pytest.mark.proof
@pytest.mark.slow
def test_five_tasks_of_a_newcomer_are_found_in_a_browser(site: Path) -> None:
    """From the first page, by links at the side; tasks.mjs has them."""
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    need("the site in a browser", "node", *([] if chromium else ["chromium"]))
    call = [
        "node",
        str(Path(__file__).with_name("tasks.mjs")),
        str(site),
        str(PACKAGES / "tests/node_modules"),
    ]
    environment = os.environ | {"CHROMIUM": chromium or ""}
    done = subprocess.run(call, capture_output=True, text=True, check=False, env=environment)
    tasks = [json.loads(line) for line in done.stdout.splitlines()]
    assert {task["name"]: task["error"] for task in tasks if task["error"]} == {}
    assert len(tasks) == 5, done.stderr
    assert all(len(task["seen"]) <= 2 for task in tasks)


def test_the_readme_is_read_in_a_minute() -> None:
    assert len((REPOSITORY / "README.md").read_text().splitlines()) <= 100
