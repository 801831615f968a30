"""A review or a Markdown page on a terminal: in its width, in colours unless NO_COLOR is set."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import IO

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.rule import Rule
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from sbatchgen.quoting import visible
from sbatchgen.review.review import Review
from sbatchgen.review.screen import Section, of_lines, origin, rows, sections

COLOURS = {
    "error": "bold red",
    "warning": "bold yellow",
    "info": "bold blue",
    "refuses": "bold red",
    "would": "bold green",
}
THEME = "ansi_dark"  # the sixteen colours of the user's terminal


def show(review: Review, stream: IO[str], folder: Path, *, width: int | None = None) -> None:
    """Write a review to a terminal; paths are relative to `folder`."""
    _console(stream, width, highlight=False).print(Group(*_blocks(review, folder)))


def show_markdown(text: str, stream: IO[str], *, width: int | None = None) -> None:
    """Write a page to a terminal."""
    from rich.markdown import Markdown

    _console(stream, width).print(Markdown(text, code_theme=THEME))


def _console(stream: IO[str], width: int | None, *, highlight: bool = True) -> Console:
    height = 25 if width else None  # without a height, Rich would use COLUMNS instead of the width
    return Console(
        file=stream,
        force_terminal=True,
        highlight=highlight,
        emoji=False,
        markup=False,
        width=width,
        height=height,
    )


def _blocks(review: Review, folder: Path) -> Iterator[RenderableType]:
    yield _table(rows(review))
    for section in sections(review, folder):
        yield Text(f"\n{visible(section.title)}", style="bold")
        yield Padding(_content(review, section, folder), (0, 0, 0, 2))
    if review.script is not None:
        yield Text(f"\n{of_lines(review, 'bright')}\n" if review.own_lines is not None else "", style="bold")
        code = visible(review.script)
        for part in review.parts:
            yield Rule(Text(visible(part.title), style="bold"), align="left", style="dim")
            # As bash, directives would be comments, which are dim.
            language = "text" if part.title == "Directives" else "bash"
            shown = _syntax(code, language, lines=(part.first, part.last))
            for number in range(part.first, part.last + 1):
                if review.own_lines is not None and number not in review.own_lines:
                    shown.stylize_range("dim", (number, 0), (number + 1, 0))
            yield shown


def _content(review: Review, section: Section, folder: Path) -> RenderableType:
    if section.kind == "surprises":
        return _table([(f"{one.name} {one.said.value}", origin(one, folder)) for one in review.surprises])
    if section.kind == "change" and review.last and review.last.diff:
        return _syntax(visible(section.text), "diff")
    text = Text(visible(section.text.rstrip("\n")))
    for word, style in COLOURS.items():
        text.highlight_regex(rf"(?m)^{word}\b", style)
    return text


def _table(lines: list[tuple[str, str]]) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="cyan", overflow="fold")
    table.add_column(overflow="fold")
    for name, text in lines:
        table.add_row(Text(visible(name)), Text(visible(text)))
    return table


def _syntax(code: str, language: str, lines: tuple[int, int] | None = None) -> Syntax:
    return Syntax(
        code,
        language,
        theme=THEME,
        background_color="default",
        line_numbers=lines is not None,
        line_range=lines,
        word_wrap=True,  # nothing is cut off
    )
