"""Pictures of the command's output for README and the site: SVG without fonts or files of others.

A picture of a terminal is dark by itself, so it can be read on a light page and on a dark one. A plot has the colours
that the reader's page has.
"""

from __future__ import annotations

import html
import io
import re
from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

FOLDER = "docs/pictures"
WIDTH = 112  # of a terminal, in characters: more would be too small to read
FORMAT = """\
<svg role="img" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{
    font-family: ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace;
    font-size: {char_height}px; line-height: {line_height}px;
}}
.{unique_id}-title {{ font-family: sans-serif; font-size: 18px }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal"><rect width="{terminal_width}" height="{terminal_height}"/></clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""
# Of the parts of a script: light ones, which differ for people who see few colours.
COLORS = ("#e6b450", "#56b4e9", "#e78ac3", "#7fd0a4", "#ff9d6f", "#9db7ff")
# Of a plot: what is on a light page, and what replaces it on a dark one.
DARK = {
    "#ffffff": "#161b22", "#000000": "#9ea7b3", "#e6e6e6": "#30363d", "#555555": "#c9d1d9", "#0072b2": "#56b4e9",
}  # fmt: skip


def terminal(name: str, title: str, lines: Sequence[Text]) -> str:
    """A picture of a terminal with these lines, each cut at its width."""
    width = min(WIDTH, max(map(len, lines)))
    console = Console(
        record=True, width=width, file=io.StringIO(), force_terminal=True, color_system="truecolor"
    )
    for line in (*lines, Text()):  # rich cuts the foot of the last line, such as an underscore
        line.truncate(width, overflow="ellipsis")
        console.print(line, no_wrap=True, crop=True)
    svg = console.export_svg(title=title, code_format=FORMAT, unique_id=name)
    return "".join(f"{line.rstrip()}\n" for line in svg.splitlines() if line.strip())


def typed(command: str, output: str) -> list[Text]:
    """A command and its output, which may have colours, as lines of a terminal."""
    return [Text(f"$ {command}", style="bold"), *(Text.from_ansi(line) for line in output.splitlines())]


def named_parts(script: str, parts: Sequence[tuple[str, str]]) -> list[Text]:
    """A script with a coloured bar along each part, and what it is for beside its first line.

    Args:
        script: The script.
        parts: How the first line of each part begins, and what it is for.
    """
    shown: list[Text] = []
    waiting, color = list(parts), "#808080"
    for line in script.splitlines():
        text, purpose = Text(line), ""
        if waiting and line.startswith(waiting[0][0]):
            color = COLORS[len(parts) - len(waiting)]
            purpose = f"   ◀ {waiting.pop(0)[1]}"
            text.stylize(color)
            text.truncate(WIDTH - len(purpose) - 2, overflow="ellipsis")
        shown.append(Text.assemble(("▌ ", color), text, (purpose, f"bold {color}")))
    return shown


def adapted(plot: str) -> str:
    """A plot of matplotlib that follows the colours of the page."""
    rules = [
        f'[style*="{kind}: {light}"] {{ {kind}: {dark} !important }}'
        for light, dark in DARK.items()
        for kind in ("fill", "stroke")
    ]
    rules.append(
        "svg { fill: #e6edf3 }"
    )  # words: matplotlib draws them as paths, in the colour of the picture
    style = "<style>@media (prefers-color-scheme: dark) {\n" + "\n".join(rules) + "\n}</style>\n"
    head, defs, rest = plot.partition(" <defs>\n")
    return f"{head}{style}{defs}{rest}"


def lines_of(svg: str) -> list[str]:
    """The lines of text in a picture of a terminal."""
    rows: dict[float, str] = {}
    for attributes, text in re.findall(r"<text ([^>]*-matrix[^>]*|[^>]*)>([^<]*)</text>", svg):
        if "-title" not in attributes:
            y = float(re.search(r'y="([\d.]+)"', attributes)[1])  # type: ignore[index]
            rows[y] = rows.get(y, "") + html.unescape(text).replace("\xa0", " ")
    return [text.rstrip() for _, text in sorted(rows.items())]


def drawn(svg: str) -> tuple[list[str], list[tuple[int, ...]]]:
    """The words of a plot, and its lines as whole points: what another release of matplotlib draws too."""
    curves = re.findall(r'<path d="([^"]*)" clip-path', svg)
    return re.findall(r"<!-- (.*?) -->", svg), [
        tuple(round(float(number)) for number in re.findall(r"[\d.]+", curve)) for curve in curves
    ]
