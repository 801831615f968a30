"""The start of sbatchgen in a browser, where JavaScript reads bash in place of tree-sitter and `bash -n`."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tree_sitter

SITE = "/site"  # the folder of the centre's profiles and templates
FOLDER = "/job"  # the working folder of commands
PLACE = Path("/place")  # a file with the folder of the package, which scripts name
_HEREDOC = re.compile(r"unclosed here-document '?(.*?)'?$")


def start() -> Callable[..., Any]:
    """Return the function with which JavaScript runs a command line.

    Its arguments are the words and the files by name. It returns the exit status, stdout and stderr.
    """
    sys.path.append(PLACE.read_text())
    from sbatchgen.cli.answer import answer

    os.makedirs(FOLDER, exist_ok=True)  # noqa: PTH103
    os.chdir(FOLDER)

    def run(argv: Any, files: Any) -> tuple[int, str, str]:
        texts: Mapping[str, str] = files.to_py()
        words: Sequence[str] = argv.to_py()
        contents = {name: text.encode() for name, text in texts.items()}
        status, out, err = answer(words, contents, site=SITE)
        for name in texts:
            os.unlink(name)  # noqa: PTH108
        return status, out.decode(), err.decode()

    return run


def read_with(rows: Callable[[str, float], Any], kinds: Any, faults: Callable[[str], Any]) -> None:
    """Use JavaScript's readers of bash.

    Args:
        rows: Returns the syntax tree of a text, see `tree_sitter`.
        kinds: The kinds of the tree's nodes.
        faults: Returns the line and the message of the first part that bash can't parse; else None.
    """
    from sbatchgen.check.rules import syntax

    def faults_of_bash(text: str) -> list[tuple[int, str]]:
        fault = faults(text.encode("utf-8", "replace").decode())
        return [] if fault is None else [_in_words_of_bash(*fault)]

    vars(tree_sitter).update(rows=rows, kinds=[tuple(kind) for kind in kinds.to_py()])
    vars(syntax).update(faults_of_bash=faults_of_bash)


def _in_words_of_bash(line: int, message: str) -> tuple[int, str]:
    """Return a fault with its line, in the words of bash if a rule looks for these words."""
    if match := _HEREDOC.search(message):
        return line, f"here-document at line {line} delimited by end-of-file (wanted `{match[1]}')"
    return line, message
