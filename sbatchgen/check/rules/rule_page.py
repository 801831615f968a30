"""The page of a rule: the reason for the rule, and bad and good examples, which are also its tests.

Pages are Markdown in `pages`, a file for each group. A page starts with `## SB104 Title`. Examples are fenced
blocks that begin with ```bash bad or ```bash good, or with ```yaml bad or ```yaml good for a job. Settings
NAME=VALUE may follow: `slurm=23.02` for the release, `submitted=yes` for a script about to be submitted,
`plan=yes` if a dry run shows the same mistake, `plan=only` if only a dry run shows the mistake. With
`escapes=yes` a backslash and an r stand for a carriage return. Other settings are variables of the
submission's environment. example.yaml describes the cluster of the examples, unless the page has a block
```yaml profile. A block ```python trainer is the train.py of the examples.
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
_SHOWN_KINDS = ("trainer", "bad", "good")  # kinds of blocks on a short page, in this order
PAGE_LINES = 30  # lines of a short page


@frozen()
class Example:
    """A script or a job, good or bad; `settings` are the pairs NAME=VALUE in the first line of its block."""

    is_job: bool  # whether the text is the YAML of a job, not a script
    good: bool  # whether the rule finds nothing in the text
    text: str
    settings: Mapping[str, str]


@frozen()
class Page:
    """The page of a rule."""

    rule: str
    title: str  # the rule's title, as in its code
    text: str  # the whole page, in Markdown
    examples: tuple[Example, ...]  # at least a bad example and a good example
    profile: str | None  # the YAML of the cluster of the examples; None for example.yaml
    trainer: str  # the text of train.py; "" if the page does not show it

    def short(self, source: str = "") -> str:
        """Return a short page: the prose, the source, a bad example and a good example.

        The first examples are shown, or the shortest examples if the first make the page too long.
        """
        blocks: dict[str, list[str]] = {}  # kind -> the blocks of this kind
        for match in _BLOCK.finditer(self.text):
            blocks.setdefault(match[2], []).append(match[0])
        parts = [part.strip() for part in _PARAGRAPHS.split(_BLOCK.sub("\n", self.text))]
        prose = []
        for part, following in zip(parts, [*parts[1:], ""], strict=True):
            announces_block = part.endswith(":") and not following.startswith("- ")  # the block is gone
            if part and not announces_block:
                prose.append(part)
        if source and "Source:" not in self.text:
            prose.append(f"Source: {source}.")

        def page(choose: Callable[[list[str]], str]) -> str:
            """Return the page with the block of each kind that `choose` returns."""
            examples = [choose(blocks[kind]) for kind in _SHOWN_KINDS if kind in blocks]
            return "\n\n".join([*prose, *examples]) + "\n"

        first = page(lambda texts: texts[0])
        shortest = page(lambda texts: min(texts, key=lambda text: text.count("\n")))
        return first if first.count("\n") <= PAGE_LINES else shortest


def pages(folder: Path = FOLDER) -> dict[str, Page]:
    """Return the pages by the id of their rule, in the order of the files."""
    return {page.rule: page for file in sorted(folder.glob("*.md")) for page in _pages(file)}


def _pages(file: Path) -> Iterator[Page]:
    """Yield the pages in a file, in order."""
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
