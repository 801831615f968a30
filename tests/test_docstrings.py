"""The first line of a docstring says what a function does, as an order: "Return ...", "Write ..."."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.conftest import REPOSITORY

# Words with which a description begins that is not an order. ruff (D401) finds verbs in another form.
NO_ORDERS = set(
    "a all an any as at each every how if in it its no not of on one our so some such that the their there these"
    " this those to two what when where whether which who whose why with without".split()
)
PROPERTIES = {"property", "cached_property", "setter"}


def descriptions(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield where a function is described, and by which line. A property is described by a noun."""
    for path in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef) and (text := ast.get_docstring(node)):
                names = {ast.unparse(each).rpartition(".")[2] for each in node.decorator_list}
                if not names & PROPERTIES:
                    yield f"{path.relative_to(REPOSITORY)}:{node.lineno}", text.splitlines()[0]


def test_a_function_is_described_by_an_order() -> None:
    lines = [line for folder in ("sbatchgen", "training") for line in descriptions(REPOSITORY / folder)]
    assert len(lines) > 1800
    first = {where: text.split()[0].strip(".,;:") for where, text in lines}
    assert {where: word for where, word in first.items() if word.lower() in NO_ORDERS} == {}
    assert {where: word for where, word in first.items() if not word[:1].isalpha() or word.isupper()} == {}
