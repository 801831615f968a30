"""Tables and short lines of plain text, for people."""

from collections.abc import Iterable, Sequence
from textwrap import TextWrapper

from sbatchgen.base.quoting import one_line


def table(rows: Iterable[Sequence[str]], *, widest: int | None = None) -> str:
    """Return rows as lines with aligned columns; a cell longer than `widest` pushes its row to the right."""
    rows = list(rows)
    widths = [max(map(len, column)) for column in zip(*(row[:-1] for row in rows), strict=True)]
    padded = [width if widest is None else min(width, widest) for width in widths] + [0]
    return "".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, padded, strict=True)).rstrip() + "\n"
        for row in rows
    )


def cut(text: str, width: int, indent: int = 0) -> list[str]:
    """Return a text as at most two lines, the second indented; an empty text gives no line."""
    pad = " " * indent
    style = TextWrapper(width, subsequent_indent=pad, max_lines=2, placeholder=" ...", break_on_hyphens=False)
    return style.wrap(one_line(text))
