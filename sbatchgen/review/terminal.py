"""Colours for the text of a review, and Markdown, on a terminal."""

from __future__ import annotations

import re
from typing import IO

# Above the script: what is coloured, and how, as codes of ECMA-48.
_STYLES = (
    (r"(?m)^\S.*(?=\n  )", "1"),  # the title of a section
    (r"(?m)^[a-z][a-z ]*?(?=  )", "36"),  # the name of a row
    (r"(?m)^  (?:error|refuses)\b", "1;31"),
    (r"(?m)^  warning\b", "1;33"),
    (r"(?m)^  info\b", "1;34"),
    (r"(?m)^  (?:\+.*|would\b)", "32"),
    (r"(?m)^  -(?!-\w).*", "31"),
)
_SAME = re.compile(r"(?m)^(?!\|).+")  # a line of the script that neither the job nor the profile decides


def coloured(text: str) -> str:
    """Return a review with colours; it holds no control characters but line breaks."""
    above, *rest = re.split(r"(?m)^(?=Script: |#!)", text, maxsplit=1)
    for pattern, style in _STYLES:
        above = re.sub(pattern, f"\x1b[{style}m\\g<0>\x1b[0m", above)
    if not rest or rest[0].startswith("#!"):  # all of it is the user's
        return "".join([above, *rest])
    title, line_break, script = rest[0].partition("\n")
    return f"{above}{title}{line_break}" + _SAME.sub("\x1b[2m\\g<0>\x1b[0m", script)


def show_markdown(text: str, stream: IO[str], *, width: int) -> None:
    """Write a page to a terminal."""
    from rich.console import Console
    from rich.markdown import Markdown

    height = 25  # without a height, Rich would use COLUMNS instead of the width
    console = Console(file=stream, force_terminal=True, emoji=False, markup=False, width=width, height=height)
    console.print(Markdown(text, code_theme="ansi_dark"))  # the sixteen colours of the user's terminal
