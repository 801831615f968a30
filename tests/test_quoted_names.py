"""A command that sbatchgen prints holds names and files in the form in which a shell takes them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.conftest import REPOSITORY

SOURCES = [*REPOSITORY.glob("sbatchgen/*/*.py"), *REPOSITORY.glob("sbatchgen/*/*/*.py")]
COMMAND = re.compile(r"(?:sbatchgen(?! is )(?: [a-z-]+)+ |bash -n |chmod \S+ |git add |--update |--write )$")
QUOTED = re.compile(r"\b(?:words?|quoted(?:_words)?|_profile_to_type)\(")
# The names of runs and jobs are words; numbers, dates and options are too.
WORD = re.compile(
    r"(?:.*\.)?(?:\w*run\.name|report\.name|run|job|id|id_|array_id|job_id)|time\.strftime\(.*|options|commands|[A-Z_]+"
)


def unquoted(source: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the value, of each value in a command of a text that nothing has quoted."""
    for function in ast.walk(ast.parse(source)):
        if not isinstance(function, ast.FunctionDef):
            continue
        texts = [node for node in ast.walk(function) if isinstance(node, ast.JoinedStr)]
        if unquoted_values := [(text.lineno, value) for text in texts for value in _values_in_commands(text)]:
            assignments = [node for node in ast.walk(function) if isinstance(node, ast.Assign)]
            quoted = {name for assignment in assignments for name in _names_of_words(assignment)}
            yield from ((line, value) for line, value in unquoted_values if value not in quoted)


def _names_of_words(assignment: ast.Assign) -> Iterator[str]:
    for target in assignment.targets:
        names, values = [target], [assignment.value]
        if isinstance(target, ast.Tuple) and isinstance(assignment.value, ast.Tuple):
            names, values = target.elts, assignment.value.elts
        for name, value in zip(names, map(ast.unparse, values), strict=False):  # a, *b = c, d, e
            if QUOTED.search(value) or WORD.fullmatch(value):
                yield ast.unparse(name)


def _values_in_commands(text: ast.JoinedStr) -> set[str]:
    before, values = "", set()
    for piece in text.values:
        if isinstance(piece, ast.FormattedValue) and COMMAND.search(before):
            value = ast.unparse(piece.value)
            if not QUOTED.search(value) and not WORD.fullmatch(value):
                values.add(value)
        before += str(piece.value) if isinstance(piece, ast.Constant) else "X"
    return values


def test_a_name_that_is_not_quoted_is_found() -> None:
    bad = 'def f(file):\n    name = run.name\n    return f"sbatchgen lint {file}; sbatchgen status {name}"\n'
    assert list(unquoted(bad)) == [(3, "file")]
    assert not list(unquoted(bad.replace("{file}", "{word(file)}")))


def test_printed_commands_quote_their_names() -> None:
    unquoted_values = {
        f"{path.relative_to(REPOSITORY)}:{line}: {value}"
        for path in SOURCES
        for line, value in unquoted(path.read_text())
    }
    assert len(SOURCES) > 300
    assert not unquoted_values
