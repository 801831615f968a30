"""Every test asserts something, on each way through it."""

from __future__ import annotations

import ast
import functools
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from tests.conftest import REPOSITORY

RAISING = {"raises", "warns", "fail"}


@dataclass(frozen=True)
class Function:
    """A function of the tests, and the names in its file that are not the tests' own."""

    file: str
    line: int
    name: str
    body: Sequence[ast.stmt]
    foreign: frozenset[str]


def functions(text: str, file: str) -> Iterator[Function]:
    tree = ast.parse(text)
    imports = [each for each in ast.walk(tree) if isinstance(each, ast.ImportFrom)]
    foreign = frozenset(
        name.asname or name.name
        for each in imports
        for name in each.names
        if not each.level and not (each.module or "").startswith("tests")
    )
    for each in ast.walk(tree):
        if isinstance(each, ast.FunctionDef):
            yield Function(file, each.lineno, each.name, each.body, foreign)


@functools.cache
def called(node: ast.AST) -> frozenset[str]:
    """The names of the functions and methods that are called there."""
    functions = [each.func for each in ast.walk(node) if isinstance(each, ast.Call)]
    return frozenset(
        each.id if isinstance(each, ast.Name) else each.attr
        for each in functions
        if isinstance(each, ast.Name | ast.Attribute)
    )


def asserts(body: Sequence[ast.stmt], helpers: Collection[str]) -> bool:
    """Whether each way through these statements comes to an assertion; a loop counts as run once.

    Args:
        body: The statements.
        helpers: The functions that assert.
    """
    if not body:
        return False
    first, *rest = body
    match first:
        case ast.Assert() | ast.Raise():
            proven = True
        case ast.If():
            proven = all(asserts([*part, *rest], helpers) for part in (first.body, first.orelse))
        case ast.For() | ast.While():
            proven = asserts([*first.body, *rest], helpers)
        case ast.With():
            entered = {name for item in first.items for name in called(item.context_expr)}
            proven = bool(entered & set(helpers)) or asserts([*first.body, *rest], helpers)
        case ast.Try():
            proven = asserts([*first.body, *first.orelse, *first.finalbody, *rest], helpers)
        case ast.FunctionDef() | ast.ClassDef():
            proven = asserts(rest, helpers)
        case _:
            asked = not called(first).isdisjoint(helpers)
            proven = asked or (not isinstance(first, ast.Return) and asserts(rest, helpers))
    return proven


def silent(all_of_them: Sequence[Function]) -> list[str]:
    """The tests among these functions that can end without an assertion."""
    by_name: defaultdict[str, list[Function]] = defaultdict(list)
    for each in all_of_them:
        by_name[each.name].append(each)
    helpers, before = set(RAISING), 0
    while len(helpers) > before:
        before = len(helpers)
        helpers |= {
            name
            for name, tests in by_name.items()
            if name not in helpers and all(asserts(each.body, helpers - each.foreign) for each in tests)
        }
    tests = [each for each in all_of_them if each.name.startswith("test_") and "test_" in each.file]
    return [
        f"{each.file}:{each.line} {each.name}"
        for each in tests
        if not asserts(each.body, helpers - each.foreign)
    ]


def test_each_test_asserts() -> None:
    every = [
        each
        for path in (REPOSITORY / "tests").rglob("*.py")
        for each in functions(path.read_text(), str(path.relative_to(REPOSITORY)))
    ]
    assert len(every) > 700
    assert "\n".join(silent(every)) == ""


def test_a_test_that_asserts_nothing_is_found() -> None:
    text = """
from elsewhere import check

def helper():
    assert True

def test_good():
    helper()

def test_raises():
    with pytest.raises(ValueError):
        int("x")

def test_two_ways(x):
    if x:
        assert x
        return
    helper()

def test_nothing():
    int("1")

def test_asked_elsewhere():
    check()

def test_left_early(x):
    if x:
        return
    assert not x

def test_sometimes(x):
    if x:
        assert x
"""
    names = [place.split()[1] for place in silent([*functions(text, "test_this.py")])]
    assert names == ["test_nothing", "test_asked_elsewhere", "test_left_early", "test_sometimes"]
