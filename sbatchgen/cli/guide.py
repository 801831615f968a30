"""The pages of the documentation that come with the command: `sbatchgen help guide`."""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from sbatchgen.base.errors import CommandLineError, nearest
from sbatchgen.jobs.inputs.search import bundled

FIRST_PAGES = ("install", "tutorial", "first-hour", "glossary")  # how-to pages follow them in the list
_COMMENT = re.compile(r"<!--.*?-->\n*", re.DOTALL)  # comments that the tests of pages read


def pages() -> dict[str, Path]:
    """Return name -> file of each page; a wheel has them inside the package."""
    inside = bundled("guide")
    folder = inside if inside.is_dir() else bundled("code") / "docs"
    files = (*(folder / f"{name}.md" for name in FIRST_PAGES), *sorted(folder.glob("how-to/*.md")))
    return {file.stem: file for file in files}


def titles() -> Iterator[tuple[str, str]]:
    """Yield the name and the title of each page."""
    for name, file in pages().items():
        title = re.search(r"^# (.+)", file.read_text(encoding="utf-8"), re.MULTILINE)
        yield name, title[1].replace("`", "") if title else ""


def page(name: str, commands: Iterable[str]) -> str:
    """Return a page in Markdown; raises CommandLineError if no page and none of the commands has the name."""
    known = pages()
    if name not in known:
        near = nearest(name, [*commands, *known], 0.66)
        fix = f"did you mean '{near}'?" if near else "sbatchgen help guide lists the pages"
        raise CommandLineError.of(f"no such command or page '{name}'", fix=fix)
    return without_comments(known[name].read_text(encoding="utf-8"))


def without_comments(text: str) -> str:
    """Return a page in Markdown without comments."""
    return _COMMENT.sub("", text)
