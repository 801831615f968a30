"""The page of a rule: why it is there, with bad and good examples, which are its tests too.

Pages are Markdown, one file a group, in `pages`. A rule's part starts with `## SB104 Title`. Its examples are
fenced blocks that begin with ```bash bad or ```bash good, or ```yaml bad or ```yaml good for a job. Settings
NAME=VALUE follow: `slurm=23.02` for the release, `submitted=yes` for a script about to be submitted,
`plan=yes` for one in which a dry run shows the same, `plan=only` where the text alone does not, others for
the environment of the submission; with `escapes=yes` a backslash with an r is a carriage return. Examples are
for the cluster of example.yaml, unless the part has a block ```yaml profile; a block ```python trainer is
their train.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from sbatchgen.base.frozen import frozen

FOLDER = Path(__file__).parent / "pages"
PROFILE = FOLDER / "example.yaml"
_HEADING = re.compile(r"^## (SB\d{3}) (.+)$", re.MULTILINE)
_BLOCK = re.compile(
    r"^```(\w+) (bad|good|profile|trainer)((?: \S+=\S*)*)\n(.*?)^```$", re.MULTILINE | re.DOTALL
)
_PARAGRAPHS = re.compile(r"\n\s*\n")
_SHOWN = ("trainer", "bad", "good")
PAGE_LINES = 30  # of a page, as it is read at once


@frozen()
class Example:
    """A script or a job, good or bad; `settings` are the words after it."""

    is_job: bool
    good: bool
    text: str
    settings: Mapping[str, str]


@frozen()
class Page:
    """All that is said about a rule."""

    rule: str
    title: str  # the rule's, as in its code
    text: str  # the whole part, in Markdown
    examples: tuple[Example, ...]  # at least a bad and a good one
    profile: str | None  # the YAML of the cluster of the examples; None for that of example.yaml
    trainer: str  # the text of train.py; "" if the part does not show it

    def short(self, source: str = "") -> str:
        """Return what is read at once: the prose, a bad example, a good example, and the source.

        Of several examples these are the first; the shortest, if the first would make the page too long.
        """
        blocks = [(kind, match[0]) for match in _BLOCK.finditer(self.text) if (kind := match[2]) in _SHOWN]
        prose = [part.strip() for part in _PARAGRAPHS.split(_BLOCK.sub("\n", self.text))]
        is_lead = [
            part.endswith(":") and not after.startswith("- ")
            for part, after in zip(prose, [*prose[1:], ""], strict=True)
        ]
        said = [part for part, leads in zip(prose, is_lead, strict=True) if part and not leads]
        said_source = [f"Source: {source}."] if source and "Source:" not in self.text else []

        def page(choose: Callable[[list[str]], str]) -> str:
            chosen = [
                choose(each) for kind in _SHOWN if (each := [text for its, text in blocks if its == kind])
            ]
            return "\n\n".join([*said, *said_source, *chosen]) + "\n"

        whole = page(lambda each: each[0])
        shortest = page(lambda each: min(each, key=lambda text: text.count("\n")))
        return whole if whole.count("\n") <= PAGE_LINES else shortest


def pages(folder: Path = FOLDER) -> dict[str, Page]:
    """Return every page by its rule, in the order of the files."""
    return {page.rule: page for file in sorted(folder.glob("*.md")) for page in _pages(file)}


def _pages(file: Path) -> Iterator[Page]:
    text = file.read_text(encoding="utf-8")
    headings = list(_HEADING.finditer(text))
    for heading, following in zip(headings, [*headings[1:], None], strict=True):
        part = text[heading.start() : following.start() if following else len(text)].strip() + "\n"
        examples, profile, trainer = [], None, ""
        for language, kind, settings, block in _BLOCK.findall(part):
            pairs = dict(word.split("=", 1) for word in settings.split())
            code = block.replace("\\r", "\r") if pairs.pop("escapes", "") else block
            if kind == "profile":
                profile = code
            elif kind == "trainer":
                trainer = code
            else:
                examples.append(Example(language == "yaml", kind == "good", code, pairs))
        yield Page(heading[1], heading[2], part, tuple(examples), profile, trainer)
