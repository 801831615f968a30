"""The texts that sbatchgen prints, read from the code: messages, fixes, and comments of scripts.

`python -m tests.messages` prints the sentences that break two rules of docs/design/prose.md.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from functools import cache
from typing import NamedTuple

import yaml

from tests.conftest import REPOSITORY
from tests.fixes import TABLES, UNKNOWN, fixes, module_of
from tests.sentences import CODE, LEAST_WORDS, Reading, Sentence, broken, split

_WHAT = {  # the position of the text among the arguments of a function
    "Problem": 0,
    "of": 0,  # DocumentError.of and its like
    "note": 0,
    "Hit": 1,
    "KeyFault": 1,
    "Row": 2,
    "error": 2,
}
_COMMENT = re.compile(r"(?:^|\s)# (?!shellcheck|sbatchgen|Rendered)(\S.*)$")
_LABEL = re.compile(r"^ *(?:also|or|note|warning): ")
_VALUE = re.compile(r"\{\{.*?\}\}")


class Text(NamedTuple):
    """A text, and where it is."""

    at: str  # file:line
    text: str


def _messages() -> Iterator[Text]:
    """Yield what errors, findings, notes and rows say."""
    for file in sorted((REPOSITORY / "sbatchgen").rglob("*.py")):
        module = module_of(file)
        for node in module.nodes:
            for value in _given(node):
                at = f"{file.relative_to(REPOSITORY)}:{value.lineno}"
                yield from (Text(at, text) for text in module.texts(value))


def _given(node: ast.AST) -> Iterator[ast.expr]:
    match node:
        case ast.Call(func=function, args=arguments, keywords=keywords):
            name = function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")
            place = _WHAT.get(name, len(arguments))
            yield from arguments[place : place + 1]
            yield from (each.value for each in keywords if each.arg in ("what", "means"))
        case ast.Assign(targets=[ast.Name(id="means")], value=value):
            yield value


def _causes() -> Iterator[Text]:
    """Yield what the tables of texts say of Slurm's words and of logs."""
    for name in TABLES:
        file = REPOSITORY / "sbatchgen" / name
        for node in _nodes(yaml.compose(file.read_text())):
            for key, value in node.value if isinstance(node, yaml.MappingNode) else ():
                if key.value == "means" and isinstance(value, yaml.ScalarNode):
                    at = f"sbatchgen/{name}:{value.start_mark.line + 1}"
                    yield Text(at, re.sub(r"\{[^{}]*\}", UNKNOWN, value.value))


def _nodes(node: yaml.Node | None) -> Iterator[yaml.Node]:
    if node:
        yield node
        for child in node.value if isinstance(node, yaml.CollectionNode) else ():
            for each in child if isinstance(child, tuple) else (child,):
                yield from _nodes(each)


def _lines_of_fixes() -> Iterator[Text]:
    return (Text(fix.at, line) for fix in fixes() for line in fix.lines)


def _comments() -> Iterator[Text]:
    """Yield the comments of the scripts that are rendered: those of lines that follow each other as a text."""
    for file in sorted((REPOSITORY / "templates").rglob("*.j2")):
        at, comment = 0, ""
        for number, line in enumerate([*file.read_text().splitlines(), ""], 1):
            match = _COMMENT.search(line)
            follows = bool(match and comment and line.lstrip().startswith("# "))
            if comment and not follows:
                yield Text(f"{file.relative_to(REPOSITORY)}:{at}", _VALUE.sub(UNKNOWN, comment))
            at, comment = (
                (at, f"{comment} {match[1]}") if match and follows else (number, match[1] if match else "")
            )


KINDS: dict[str, Callable[[], Iterator[Text]]] = {
    "messages": _messages,
    "causes": _causes,
    "fixes": _lines_of_fixes,
    "comments": _comments,
}


@cache
def reading(kind: str) -> Reading:
    """Read the texts of a kind; the texts of a line count once, by the worst of them."""
    worst: dict[str, tuple[Sentence, list[str]]] = {}
    for at, text in KINDS[kind]():
        for words in split(_LABEL.sub("", text).replace(UNKNOWN, CODE)):
            if len(words.split()) < LEAST_WORDS:
                continue
            sentence = Sentence(int(at.rpartition(":")[2]), words)
            rules = broken(sentence)
            if at not in worst or len(rules) > len(worst[at][1]):
                worst[at] = sentence, rules
    return Reading(len(worst), [each for each in worst.values() if len(each[1]) > 1])


if __name__ == "__main__":
    for kind in KINDS:
        whole = reading(kind)
        print(f"{kind} {whole.share} % of {whole.sentences}")
        for sentence, rules in whole.twice:
            print(f"  {sentence.line}: {', '.join(rules)}: {sentence.text}")
