"""The pages of rules: each has the reason for its rule, and bad and good examples, which are also tests.

Pages are Markdown in the folder `pages`, with a file for each group of rules. A page starts with the line
`## SB104 Title`. Its fenced blocks begin with one of these lines:

    ```bash bad, ```bash good     a script in which the rule finds a mistake, or finds none
    ```yaml bad, ```yaml good     a job file, likewise
    ```yaml profile               the cluster of the examples; without such a block it is that of example.yaml
    ```python trainer             the train.py of the examples

Settings NAME=VALUE may follow `bad` and `good`:

    slurm=23.02                   the release of Slurm
    submitted=yes                 the script is about to be submitted
    plan=yes, plan=only           a dry run shows the same mistake; only a dry run shows it
    escapes=yes                   a backslash and an r stand for a carriage return

Other settings are variables in the environment of the submission.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from sbatchgen.base.frozen import frozen

FOLDER = Path(__file__).parent / "pages"
PROFILE = FOLDER / "example.yaml"
_HEADING = re.compile(r"^## (SB\d{3}) (.+)$", re.MULTILINE)
# A fenced block. Its groups are the language, the kind, the settings and the text.
_BLOCK = re.compile(
    r"^```(\w+) (bad|good|profile|trainer)((?: \S+=\S*)*)\n(.*?)^```$", re.MULTILINE | re.DOTALL
)
_PARAGRAPH_BREAK = re.compile(r"\n\s*\n")
_SHOWN_KINDS = ("trainer", "bad", "good")  # kinds of blocks on a short page, in this order
PAGE_LINES = 30  # the most lines of a short page


@frozen()
class Example:
    """A script or a job on the page of a rule."""

    is_job: bool  # whether the text is the YAML of a job, not a script
    is_good: bool  # whether the rule finds nothing in the text
    text: str
    settings: Mapping[str, str]  # NAME=VALUE in the first line of the block, without `escapes`


@frozen()
class Page:
    """The page of a rule."""

    rule: str
    title: str  # the rule's title, as in its code
    text: str  # the whole page, in Markdown
    examples: tuple[Example, ...]  # at least a bad example and a good example
    profile: str | None  # the YAML that describes the cluster of the examples; None for example.yaml
    trainer: str  # the text of train.py; "" if the page does not show it

    def short(self, source: str = "") -> str:
        """Return the page for a terminal: the prose, the source of the rule, a bad and a good example.

        These are the first examples of the page, or the shortest ones if the first make the page too long.
        """
        blocks: dict[str, list[str]] = {}  # kind -> the blocks of this kind
        for match in _BLOCK.finditer(self.text):
            blocks.setdefault(match[2], []).append(match[0])
        paragraphs = [part.strip() for part in _PARAGRAPH_BREAK.split(_BLOCK.sub("\n", self.text))]
        prose = []
        for paragraph, following in zip(paragraphs, [*paragraphs[1:], ""], strict=True):
            # The paragraph ends in a colon, but no list follows: a block followed, which is removed.
            announces_block = paragraph.endswith(":") and not following.startswith("- ")
            if paragraph and not announces_block:
                prose.append(paragraph)
        if source and "Source:" not in self.text:
            prose.append(f"Source: {source}.")

        def page(choose: Callable[[list[str]], str]) -> str:
            """Return the page with one block of each kind; `choose` takes it from the blocks of the kind."""
            examples = [choose(blocks[kind]) for kind in _SHOWN_KINDS if kind in blocks]
            return "\n\n".join([*prose, *examples]) + "\n"

        with_first = page(lambda texts: texts[0])
        with_shortest = page(lambda texts: min(texts, key=lambda text: text.count("\n")))
        return with_first if with_first.count("\n") <= PAGE_LINES else with_shortest


def pages(folder: Path = FOLDER) -> dict[str, Page]:
    """Return the pages in a folder by the id of their rule, in the order of the files."""
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
