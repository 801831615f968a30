"""Find sentences that break the style sheet of docs/design/prose.md: `python -m tests.sentences PAGE ...`.

Markdown is rendered, so that code, addresses and the marks of a table are no words. A sentence that breaks two rules is
rewritten. Each page has a ceiling in sentences.txt, the share of such sentences, which may only fall.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).resolve().parents[1]
CEILINGS = Path(__file__).with_suffix(".txt")
MOST_WORDS = 25
LEAST_WORDS = 4  # fewer are a label or a cell of a table
CODE = "\N{SYMBOL FOR SUBSTITUTE FORM TWO}"  # stands for `code`: a noun
_END = re.compile(rf"(?<=[.!?])[\"')]* +(?=[A-Z{CODE}(\"'-])|(?<=[\"')][.!?]) +(?=[A-Z{CODE}(\"'-])")
MARKDOWN = MarkdownIt("commonmark").enable("table")
PAGES = ("README.md", "docs", "sbatchgen/check/rules/pages", "CONTRIBUTING.md")
LIMITS = {  # in percent, by how the page's name begins; the first that fits counts
    "docs/design/": 100.0,  # for who changes sbatchgen: only the ceiling of its row
    "CONTRIBUTING.md": 100.0,
    "docs/about/": 4.0,
    "sbatchgen/check/rules/pages/": 4.0,
    "": 3.0,
}


@dataclass(frozen=True)
class Sentence:
    """A sentence of a page.

    Attributes:
        line: Where its paragraph or row begins, from 1.
        text: Its words, with CODE for each piece of code.
        cell: Whether it is in a table, where a colon takes the place of a verb.
        after_code: Whether it is the first after a block of code.
    """

    line: int
    text: str
    cell: bool = False
    after_code: bool = False


def _count(pattern: str, least: int) -> Callable[[str], bool]:
    regex = re.compile(pattern, re.IGNORECASE)
    return lambda text: len(regex.findall(text)) >= least


_AUXILIARY = (
    "is are was were has have had does do did can may must will would should could needs also then never only"
)
_VERB = rf"(?:{_AUXILIARY.replace(' ', '|')}|(?!(?:this|process|class|access|address|alias|status)\b)[a-z]{{2,}}[^su\W]s)\b"
_NOT = r"\b(?:no|not|never|nothing|without|nor|neither|nobody|cannot|unless)\b|n't\b"
_DETERMINER = (
    "the a an this that each another other older newer next last first new own same only which no its every"
)
_INSTEAD_OF_NOUN = "too so either neither none also else".replace(" ", "|")
_WORDS = (  # in senses that a reader does not expect
    r"(?<!leaves it )(?<!leaves the job )(?<!left )\balone\b",
    r"\bbeside\b",
    r"\bin vain\b",
    r"\bmostly\b",
    r"\b(?:is|are|was) (?:said|gone|left out)\b",
    r"\btakes? (?:it|them|this|\w+) for\b",
    r"\bbegins? at the beginning\b",
    r"\bfolder of submission\b",
    r"\bscripts? of shell\b",
    r"(?<!place )(?<!folder )(?<!sandbox )(?<!line )\bwhere (?:it|they|there|no|one|that)\b (?!\w+ed\b)",
    r"\balso (?:where|if)\b",
)
RULES: dict[str, Callable[[str], bool]] = {
    f"more than {MOST_WORDS} words": lambda text: len(text.split()) > MOST_WORDS,
    "two colons or semicolons": _count(r"[:;](?=\s|$)", 2),
    "begins with a pronoun": _count(
        rf"^(?:it|they|(?:this|that|these|those|each|both|so|such|all) {_VERB})\b", 1
    ),
    "'what' for a noun": lambda text: (
        not text.endswith("?")
        and bool(re.search(r"^What\b|\b(?:of|in|from|with|than|for|to|and|after|before|by) what\b", text))
    ),
    "'one' for a noun": _count(
        rf"\bones\b|\b(?:{_DETERMINER.replace(' ', '|')}) one\b(?=[.,;:)]| (?:is|are|has|that|which|of|with|in|by|for)\b)"
        r"|\b(?:that|those) of\b",
        1,
    ),
    "two negations": _count(_NOT, 2),
    "'as' for an example": _count(
        rf", as (?:an? |{CODE}|(?:in|of|by|with|on) )|\b(?:names?|words?|files?) as {CODE}", 1
    ),
    "'of' at the start": lambda text: text.startswith("Of "),
    "three times 'of'": _count(r"\bof\b", 3),
    "a word in another sense": _count("|".join(_WORDS), 1),
    "leans on the sentence before": _count(rf"\b(?:{_INSTEAD_OF_NOUN})(?=[.;:])", 1),
}


def sentences(text: str) -> Iterator[Sentence]:
    """Yield the sentences of a page, without those of its headings."""
    before, heading, cell = "", False, False
    for token in MARKDOWN.parse(text):
        heading = token.type == "heading_open" or (heading and token.type != "heading_close")
        cell = token.type in {"td_open", "th_open"} or (cell and token.type not in {"td_close", "th_close"})
        if token.type == "inline" and not heading:
            after_code = before in {"fence", "code_block"}
            line = token.map[0] + 1 if token.map else 1
            for place, words in enumerate(split(words_of(token))):
                if len(words.split()) >= LEAST_WORDS:
                    yield Sentence(line, words, cell, after_code and place == 0)
        if not token.type.endswith("_open") and token.type != "html_block":
            before = token.type


def split(paragraph: str) -> list[str]:
    """Return the sentences of a paragraph."""
    return _END.split(paragraph)


def words_of(inline: Token) -> str:
    """Return what a reader reads of a paragraph, with CODE for code."""
    shown = {"code_inline": CODE, "softbreak": " ", "hardbreak": " "}
    return "".join(
        part.content if part.type == "text" else shown.get(part.type, "") for part in inline.children or ()
    )


def broken(sentence: Sentence) -> list[str]:
    """Return the rules that a sentence breaks."""
    rules = [name for name, breaks in RULES.items() if breaks(sentence.text)]
    if sentence.cell and "two colons or semicolons" in rules:
        rules.remove("two colons or semicolons")
    if sentence.after_code and sentence.text[0].islower():
        rules.append("begins in the code before")
    return rules


@dataclass(frozen=True)
class Reading:
    """What was found in a page: its number of sentences, and those that break two rules."""

    sentences: int
    twice: list[tuple[Sentence, list[str]]]

    @property
    def share(self) -> float:
        """The share of sentences that break two rules, in percent."""
        return round(100 * len(self.twice) / max(self.sentences, 1), 1)


def read(text: str) -> Reading:
    """Read a page."""
    all_of_them = [(sentence, broken(sentence)) for sentence in sentences(text)]
    return Reading(len(all_of_them), [(sentence, rules) for sentence, rules in all_of_them if len(rules) > 1])


def limit(name: str) -> float:
    """Return the share that no page of this kind may pass in the end."""
    return next(most for start, most in LIMITS.items() if name.startswith(start))


def ceilings() -> dict[str, float]:
    """Return the ceiling of each page that has one."""
    rows = [line.split() for line in CEILINGS.read_text().splitlines() if not line.startswith("#")]
    return {name: float(share) for name, share in rows}


def pages() -> Iterator[tuple[str, Reading]]:
    """Yield each page's name and what was found in it."""
    for place in (ROOT / name for name in PAGES):
        for file in sorted(place.rglob("*.md")) if place.is_dir() else [place]:
            yield str(file.relative_to(ROOT)), read(file.read_text())


def too_many(names: Iterable[str]) -> Iterator[str]:
    """Yield lines on each of these pages that has more such sentences than its ceiling."""
    listed, chosen = ceilings(), {*names}
    for name, reading in pages():
        most = listed.get(name, limit(name))
        if name in chosen and reading.share > most:
            yield f"{name}: {reading.share} % of the sentences break two rules, {most} % may: write them again"
            yield from (
                f"  {name}:{each.line}: {', '.join(rules)}: {each.text}" for each, rules in reading.twice
            )


def main(names: list[str]) -> None:
    """Print the share of each page, or the sentences of the pages that are named."""
    for name in names:
        for sentence in sentences((ROOT / name).read_text()):
            for rule in broken(sentence):
                print(f"{name}:{sentence.line}: {rule}: {sentence.text}")
    for name, reading in pages() if not names else ():
        print(f"{name} {reading.share} % of {reading.sentences}")


if __name__ == "__main__":
    main(sys.argv[1:])
