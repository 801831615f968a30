"""Starts sbatchgen in a browser, where JavaScript reads bash in place of tree-sitter and `bash -n`."""

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
PLACE = Path("/place")  # the file that holds the path of the package's folder, which scripts name
_OPEN_HEREDOC = re.compile(r"unclosed here-document '?(.*?)'?$")  # a message of mvdan/sh


def start() -> Callable[..., Any]:
    """Return a function with which JavaScript runs a command of sbatchgen.

    The function takes the words of the command, and the texts of its files by name. It returns the exit
    status, stdout and stderr.
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
    """Let the modules of sbatchgen read bash with these functions of JavaScript.

    Args:
        rows: Returns the syntax tree of a text, as `tree_sitter.rows` describes it.
        kinds: The kinds of the tree's nodes, for `tree_sitter.kinds`.
        faults: Returns the line and the message of the first fault in the syntax of a text; None without one.
    """
    from sbatchgen.check.rules import syntax

    def bash_complaints(text: str) -> list[tuple[int, str]]:
        # Surrogates, which stand for bytes that are not UTF-8, become question marks.
        fault = faults(text.encode("utf-8", "replace").decode())
        return [] if fault is None else [_in_words_of_bash(*fault)]

    vars(tree_sitter).update(rows=rows, kinds=[tuple(kind) for kind in kinds.to_py()])
    vars(syntax).update(bash_complaints=bash_complaints)


def _in_words_of_bash(line: int, message: str) -> tuple[int, str]:
    """Return the line and the message of a fault; the message of bash, if a rule searches for its words."""
    if match := _OPEN_HEREDOC.search(message):
        return line, f"here-document at line {line} delimited by end-of-file (wanted `{match[1]}')"
    return line, message
