"""The way through the training package that its first file shows: complete, and short enough for one sitting."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from pathlib import Path

import training

PACKAGE = Path(training.__file__).parent
SITTING = 1337  # lines of code
SILENT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef)


def _shown() -> tuple[list[str], list[str]]:
    """The modules to read, and the rest."""
    text = (PACKAGE / "__init__.py").read_text(encoding="utf-8")
    first, rest = text.split("# To read it in one sitting")[1].split("The rest is")
    ways = [re.findall(r"^#     (\S.*?)  ", part, re.MULTILINE) for part in (first, rest)]
    return tuple([name for line in way for name in line.split(", ")] for way in ways)  # type: ignore[return-value]


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


def test_every_module_is_on_the_way_once() -> None:
    first, rest = _shown()
    modules = {
        str(path.relative_to(PACKAGE).with_suffix(""))
        for path in PACKAGE.rglob("*.py")
        if path.name != "__init__.py"
    }
    assert sorted(first + rest) == sorted(modules)


def test_what_keeps_the_promises_can_be_read_in_one_sitting() -> None:
    first, _ = _shown()
    count = sum(_lines(PACKAGE / f"{name}.py") for name in first)
    assert count <= SITTING
