"""The way through the training package that its page shows: what is there, and short enough for one sitting."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from pathlib import Path

import training

PACKAGE = Path(training.__file__).parent
PAGE = Path(__file__).parents[1] / "docs/design/training.md"
SITTING = 1380  # lines of code
SILENT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef)


def _shown() -> list[str]:
    """The modules to read."""
    order = PAGE.read_text().split("## The order to read its modules in")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (`.*?) \|", order, re.MULTILINE)
    return [name for row in rows for name in re.findall(r"`(\S+)`", row)]


def _lines(path: Path) -> int:
    """Lines with code on them: no comments, no docstrings."""
    text = path.read_text(encoding="utf-8")
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in SILENT:
            lines |= set(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node) is not None:
            lines -= set(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    return len(lines)


def test_what_keeps_the_promises_can_be_read_in_one_sitting() -> None:
    shown = _shown()
    assert "run/engine" in shown
    assert sum(_lines(PACKAGE / f"{name}.py") for name in shown) <= SITTING
