"""Pages are shown as they were meant: rendered as a site or GitHub renders them, no block falls apart, no link is broken."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

from tests.conftest import REPOSITORY
from tests.docs.pages import PAGES

MARKDOWN = MarkdownIt("commonmark").enable("table")
READ = [
    *PAGES,
    REPOSITORY / "CHANGELOG.md",
    *sorted((REPOSITORY / "sbatchgen/check/rules/pages").glob("*.md")),
    *sorted((REPOSITORY / "changes").glob("*.md")),
]
CODE = re.compile(r"(`+).+?\1")
DIRECTIVE = re.compile(r"^```\{\w+\}")  # of Sphinx


def name(page: Path) -> str:
    return str(page.relative_to(REPOSITORY))


def faults(text: str) -> Iterator[str]:
    """Yield what is not shown as it was meant, with its line."""
    lines = text.splitlines()
    tokens = MARKDOWN.parse(text)
    inside = {"table": 0, "list_item": 0}
    offset = 0
    for token in tokens:
        kind, _, turn = token.type.rpartition("_")
        if kind in inside:
            inside[kind] += {"open": 1, "close": -1}[turn]
        if token.type == "list_item_open":
            offset = len(re.match(r"\s*(?:[-*+]|\d+[.)])\s+|", lines[token.map[0]])[0])  # type: ignore[index]
        if token.type in {"inline", "table_open", "fence", "html_block"}:
            start, end = token.map or (0, 0)
            yield from faults_of(
                token, lines[start:end], start + 1, offset * bool(inside["list_item"]), inside["table"]
            )


def faults_of(token: Token, lines: list[str], start: int, offset: int, table: int) -> Iterator[str]:
    if token.type == "fence" and not (len(lines) > 1 and lines[-1].strip().startswith(token.markup)):
        yield f"{start}: a block of code without its end"
    if token.type == "html_block" and "-->" not in token.content.rstrip()[-3:]:
        yield f"{start}: a comment that does not end, or text after it"
    if token.type == "table_open":
        cells = [len(re.findall(r"(?<!\\)\|", line)) for line in lines]
        yield from (
            f"{start + at}: a row with {count} bars, the head has {cells[0]}"
            for at, count in enumerate(cells)
            if count != cells[0]
        )
    if token.type != "inline" or table:
        return
    for at, line in enumerate(lines):
        deep = (
            offset + 4 if at or not offset else offset + 1
        )  # a later paragraph of an item begins at its text
        if re.match(rf" {{{deep},}}(?![-*+] |\d+[.)] )\S", line):
            yield f"{start + at}: code is shown as prose"
        if line.lstrip().startswith("|"):
            yield f"{start + at}: a row outside of its table"
    shown = "".join(part.content for part in token.children or () if part.type == "text")
    yield from (f"{start}: {mark} is shown" for mark in ("<!--", "-->", "](", "**", "```") if mark in shown)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("page", READ, ids=name)
def test_no_part_of_a_page_falls_apart(page: Path) -> None:
    assert [f"{name(page)}:{fault}" for fault in faults(page.read_text())] == []


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("- a list\n\n    sbatchgen review\n", "3: code is shown as prose"),
        ("- a list\n\n  with a paragraph\n\n      and code\n", None),
        ("text\n    sbatchgen review\n", "2: code is shown as prose"),
        ("- item\n      sbatchgen review\n", "2: code is shown as prose"),
        ("| a | b |\n|---|---|\n| c | d |\n\n| e | f |\n", "5: a row outside of its table"),
        ("| a | b |\n|---|---|\n| `c|d` | e |\n", "3: a row with 4 bars, the head has 3"),
        ("<!-- run: a -->\ntext\n\n<!-- run: b\n", "4: a comment that does not end, or text after it"),
        ("text <!-- run: a\n", "1: <!-- is shown"),
        ("```bash\nls\n", "1: a block of code without its end"),
        ("see [a page](two words.md)\n", "1: ]( is shown"),
    ],
)
def test_each_fault_is_found(text: str, fault: str | None) -> None:
    assert [*faults(text)] == ([fault] if fault else [])


def places(page: Path) -> set[str]:
    """The anchors of the headings of a page, as GitHub and the site make them."""
    tokens = MARKDOWN.parse(page.read_text())
    headings = [after for token, after in itertools.pairwise(tokens) if token.type == "heading_open"]
    counts: dict[str, int] = {}
    made = set()
    for heading in headings:
        words = "".join(part.content for part in heading.children or ())
        slug = re.sub(r"[^\w\- ]", "", words.lower()).replace(" ", "-")
        made.add(f"{slug}-{counts[slug]}" if slug in counts else slug)
        counts[slug] = counts.get(slug, 0) + 1
    return made


def links(page: Path) -> Iterator[str]:
    for token in MARKDOWN.parse(page.read_text()):
        for part in token.children or ():
            address = part.attrs.get("href") or part.attrs.get("src")
            if address and not re.match(r"[a-z]+:", str(address)):
                yield str(address)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("page", [page for page in READ if "changes" not in page.parts], ids=name)
def test_each_link_of_a_page_leads_to_a_file_and_a_heading(page: Path) -> None:
    broken = []
    for link in links(page):
        file, _, place = link.partition("#")
        to = (page.parent / file).resolve() if file else page
        if not to.exists() or (place and to.suffix == ".md" and place not in places(to)):
            broken.append(link)
    assert broken == []
