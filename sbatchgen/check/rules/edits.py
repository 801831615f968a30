"""Edits for the fixes of rules: insertions of a word or line that leave the rest of a script as it is."""

from __future__ import annotations

import re

from sbatchgen.base.finding import Edit
from sbatchgen.check.bash import Command, Word
from sbatchgen.check.script.script import JobScript


def insert_before(script: JobScript, word: Word, text: str) -> tuple[Edit, ...]:
    """Return the insertion of a text before a word; () if the script does not show the word as it is."""
    return (Edit(word.line, word.column, word.column, text),) if _is_plain(script, word) else ()


def insert_after(script: JobScript, word: Word, text: str) -> tuple[Edit, ...]:
    """Return the insertion of a text after a word; () if the script does not show the word as it is."""
    return (Edit(word.line, word.end_column, word.end_column, text),) if _is_plain(script, word) else ()


def _is_plain(script: JobScript, word: Word) -> bool:
    """Return whether the script's own text holds a word, without quotes and expansions."""
    return word.source is script.body.source and word.text != "" and word.text == word.value


def insert_line_before(script: JobScript, command: Command, text: str) -> tuple[Edit, ...]:
    """Return the insertion of a line before a command's line.

    The result is () if the command does not always run, or if other text precedes the command in its line.
    """
    text_before = _line(script, command.line)[: command.column - 1]
    if not _always_runs(script, command) or text_before.strip():
        return ()
    return (Edit(command.line, 1, 1, f"{text}\n"),)


def insert_line_after(script: JobScript, command: Command, text: str) -> tuple[Edit, ...]:
    """Return the insertion of a line after the line of a background command.

    The result is () if the command does not always run, or if other text follows its & in the line.
    """
    line = _line(script, command.end_line)
    ends_line = re.fullmatch(r"\s*&\s*(?:#.*)?", line[command.end_column - 1 :])  # such as " &  # comment"
    if not _always_runs(script, command) or not ends_line:
        return ()
    return (Edit(command.end_line, len(line) + 1, 0, f"\n{text}"),)


def _always_runs(script: JobScript, command: Command) -> bool:
    """Return whether the script's own text holds a command, and the script always runs the command."""
    return command.context.is_top_level and command.source is script.body.source


def _line(script: JobScript, number: int) -> str:
    """Return a line of the script; "" for a number without a line."""
    return script.lines[number - 1] if 0 < number <= len(script.lines) else ""
