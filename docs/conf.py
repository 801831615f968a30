"""How Sphinx makes a site of the documentation: `make docs`.

Pages are read in place, so that a link is the same in the repository and on the site: docs/, the pages of
rules in the package, CONTRIBUTING.md and CHANGELOG.md. Neither the build nor a reader needs the network.
"""

import re
from pathlib import Path

from sphinx.application import Sphinx

ROOT = Path(__file__).parents[1]

PAGE = ROOT / "build/page/public/job/index.html"  # made by `make docs`: sbatchgen page

project = "sbatchgen"
author = "the authors of sbatchgen"
copyright = author
extensions = ["myst_parser", "sphinx_copybutton"]
root_doc = "docs/index"
include_patterns = ["docs/**.md", "sbatchgen/check/rules/pages/*.md", "CONTRIBUTING.md", "CHANGELOG.md"]
exclude_patterns = [
    f"{path.name}" for path in ROOT.iterdir() if path.name not in {"docs", "sbatchgen"} and path.is_dir()
]
myst_heading_anchors = 3
suppress_warnings = ["misc.highlighting_failure"]  # bad examples are no bash
copybutton_prompt_text = "$ "
smartquotes = False  # it makes a dash of the -- of options
html_theme = "furo"
html_title = "sbatchgen"
html_show_sourcelink = html_copy_source = html_show_copyright = False
html_extra_path = ["site", *(["../build/page/public"] if PAGE.is_file() else [])]
html_css_files = ["../tables.css"]

_EXAMPLE = re.compile(r"^```(\w+) (bad|good|profile)((?: \S+=\S*)*)$", re.MULTILINE)
_WORDS = {"bad": "Bad", "good": "Good", "profile": "With this profile"}


_RULES = [path.stem for path in sorted((ROOT / "sbatchgen/check/rules/pages").glob("*.md"))]
# What a page of an earlier release has become: its address leads there.
MOVED = {
    "docs/how-to/after-a-failure": "watch-a-job.html#find-out-why-it-failed",
    **{f"sbatchgen/rules/pages/{page}": f"../../check/rules/pages/{page}.html" for page in _RULES},
}
MOVED_PAGE = """\
<!doctype html>
<meta charset="utf-8">
<meta http-equiv="refresh" content="0; url={to}">
<title>sbatchgen</title>
<script>if (location.hash) location.replace("{to}" + location.hash)</script>
<a href="{to}">This page has moved</a>
"""

# The pages below a page in the list of pages: those of who changes sbatchgen are below the page for them.
PARTS = {
    "CONTRIBUTING": [
        *(f"docs/design/{path.stem}" for path in sorted((ROOT / "docs/design").glob("*.md"))),
        *(f"docs/about/{name}" for name in ("plan", "script", "values")),
    ],
    "docs/migrate/index": sorted(path.stem for path in (ROOT / "docs/migrate").glob("*.md")),
    "docs/reference/rules": [f"../../sbatchgen/check/rules/pages/{page}" for page in _RULES],
}


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("source-read", _label_examples)
    app.connect("source-read", _list_parts)
    app.connect("source-read", _link_page)
    app.connect("build-finished", _keep_addresses)


def _list_parts(_: Sphinx, page: str, source: list[str]) -> None:
    """Add the list of pages here: in the page it would show as code in the repository."""
    if page in PARTS:
        parts = "\n".join(part for part in PARTS[page] if part != "index")
        source[0] += f"\n```{{toctree}}\n:hidden:\n\n{parts}\n```\n"


def _keep_addresses(app: Sphinx, _: Exception | None) -> None:
    """Write a page at each address of an earlier release that leads to the present page."""
    for page, to in MOVED.items():
        file = Path(app.outdir) / f"{page}.html"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(MOVED_PAGE.format(to=to))


def _link_page(_: Sphinx, page: str, source: list[str]) -> None:
    """Add a link to the page that makes scripts: the repository has no such file."""
    if page == "docs/index" and PAGE.is_file():
        source[0] += '\n<p><a href="../job/index.html">Write or check a script in the browser</a></p>\n'


def _label_examples(_: Sphinx, page: str, source: list[str]) -> None:
    """Label bad and good examples of a rule: a site does not show the word after ```bash."""
    if page.startswith("sbatchgen/check/rules/pages/"):
        source[0] = _EXAMPLE.sub(
            lambda match: f"**{_WORDS[match[2]]}**{_settings(match[3])}:\n\n```{match[1]}", source[0]
        )


def _settings(words: str) -> str:
    shown = [f"`{word}`" for word in words.split() if not word.startswith("escapes=")]
    return f" ({', '.join(shown)})" if shown else ""
