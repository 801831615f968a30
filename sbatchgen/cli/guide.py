"""The pages of the documentation that are installed with sbatchgen, for `sbatchgen help guide`."""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from sbatchgen.base.errors import CommandLineError, nearest
from sbatchgen.jobs.inputs.search import bundled

FIRST_PAGES = ("install", "tutorial", "first-hour", "glossary")  # the how-to pages follow them in the list
# A comment of Markdown, such as <!-- not run -->. Only the tests of the pages read these comments.
_COMMENT = re.compile(r"<!--.*?-->\n*", re.DOTALL)


def pages() -> dict[str, Path]:
    """Return the files of the pages by name. A wheel has them in the package, a checkout in docs/."""
    packaged = bundled("guide")
    folder = packaged if packaged.is_dir() else bundled("code") / "docs"
    files = (*(folder / f"{name}.md" for name in FIRST_PAGES), *sorted(folder.glob("how-to/*.md")))
    return {file.stem: file for file in files}


def titles() -> Iterator[tuple[str, str]]:
    """Yield the name and the title of each page."""
    for name, file in pages().items():
        heading = re.search(r"^# (.+)", file.read_text(encoding="utf-8"), re.MULTILINE)
        yield name, heading[1].replace("`", "") if heading else ""


def page(name: str, command_names: Iterable[str]) -> str:
    """Return a page in Markdown.

    Raises CommandLineError for an unknown name, with the nearest page or command as its fix.
    """
    files = pages()
    if name not in files:
        suggestion = nearest(name, [*command_names, *files], 0.66)
        fix = f"did you mean '{suggestion}'?" if suggestion else "sbatchgen help guide lists the pages"
        raise CommandLineError.of(f"no such command or page '{name}'", fix=fix)
    return without_comments(files[name].read_text(encoding="utf-8"))


def without_comments(text: str) -> str:
    """Return a page in Markdown without comments."""
    return _COMMENT.sub("", text)
