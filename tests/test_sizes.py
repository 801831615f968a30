"""A function fits a screen, and a module is read at once: the numbers that a change may not raise."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.conftest import REPOSITORY

PACKAGE = REPOSITORY / "sbatchgen"
SCREEN, LONGEST = 40, 60  # lines of a function
MOST_LONGER = 10  # functions that are longer than a screen
MODULE = 450  # lines


def functions(path: Path) -> dict[str, int]:
    """The lines of each function of a module, from its `def` on, by its place."""
    return {
        f"{path.relative_to(PACKAGE)}:{node.lineno} {node.name}": (node.end_lineno or 0) - node.lineno + 1
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def test_functions_fit_a_screen() -> None:
    lines = {place: count for path in PACKAGE.rglob("*.py") for place, count in functions(path).items()}
    assert len(lines) > 2000
    longer = {place: count for place, count in lines.items() if count > SCREEN}
    assert len(longer) <= MOST_LONGER, longer
    assert max(longer.values()) <= LONGEST, longer


def test_modules_are_read_at_once() -> None:
    lines = {path: path.read_text().count("\n") for path in PACKAGE.rglob("*.py")}
    assert len(lines) > 200
    assert {str(path.relative_to(PACKAGE)) for path, count in lines.items() if count > MODULE} == set()
