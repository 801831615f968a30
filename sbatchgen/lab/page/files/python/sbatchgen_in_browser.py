"""sbatchgen in a browser, with JavaScript's readers of bash in place of tree-sitter and of `bash -n`."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tree_sitter

SITE, FOLDER = "/site", "/job"  # the folders of the centre's profiles and templates, and of commands
PLACE = Path("/place")  # a file with the path of the package, which scripts name
_HEREDOC = re.compile(r"unclosed here-document '?(.*?)'?$")


def start() -> Callable[..., Any]:
    """Return the function that answers command lines and files of JavaScript."""
    sys.path.append(PLACE.read_text())
    from sbatchgen.cli.answer import answer

    os.makedirs(FOLDER, exist_ok=True)  # noqa: PTH103
    os.chdir(FOLDER)

    def answered(argv: Any, files: Any) -> tuple[int, str, str]:
        texts: Mapping[str, str] = files.to_py()
        words: Sequence[str] = argv.to_py()
        given = {name: text.encode() for name, text in texts.items()}
        status, out, err = answer(words, given, site=SITE)
        for name in texts:
            os.unlink(name)  # noqa: PTH108
        return status, out.decode(), err.decode()

    return answered


def read_with(rows: Callable[[str, float], Any], kinds: Any, faults: Callable[[str], Any]) -> None:
    """Use JavaScript's readers of bash.

    Args:
        rows: Gives the syntax tree of a text, see `tree_sitter`.
        kinds: The kinds of its nodes.
        faults: Gives the line and the message of the first thing in a text that bash can't parse, or None.
    """
    from sbatchgen.check.rules import syntax

    def faults_of_bash(text: str) -> list[tuple[int, str]]:
        fault = faults(text.encode("utf-8", "replace").decode())
        return [] if fault is None else [_in_words_of_bash(*fault)]

    vars(tree_sitter).update(rows=rows, kinds=[tuple(each) for each in kinds.to_py()])
    vars(syntax).update(faults_of_bash=faults_of_bash)


def _in_words_of_bash(line: int, message: str) -> tuple[int, str]:
    """Return a fault in the words of bash, if a rule looks for these words."""
    if match := _HEREDOC.search(message):
        return line, f"here-document at line {line} delimited by end-of-file (wanted `{match[1]}')"
    return line, message
