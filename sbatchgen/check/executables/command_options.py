"""Reads the options of a command, with the row of its program in programs.txt.

The sandbox of a dry run loads this module for each step, so it imports nothing.
"""

from __future__ import annotations

TYPE_CHECKING = False  # importing it from typing would take longer than loading this whole module
if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator, Sequence
    from typing import Any

    from sbatchgen.check.executables.program import Program

# An option of a command, in four parts:
# - its long name; its letter if it has no long name
# - its value; "" without a value
# - the index of the word with the name
# - the index of the word with the value; None without a value
ReadOption = tuple[str, str, int, "int | None"]


def program_name(
    words: Sequence[Any], known: Container[str], text: Callable[[Any], str] = str
) -> tuple[str, int]:
    """Return the name of the program in a command, such as "uv run", and the index of the word after it.

    `known` has the names of programs, with their verbs. `text` returns the text of a word.
    """
    name = text(words[0]).rpartition("/")[2]
    if name.startswith("python") and name[6:].replace(".", "").isdigit():
        name = "python"
    # Up to four options may be before the verb. `at` is the index after the word.
    for at, word in enumerate(words[1:6] if name not in known else (), 2):
        verb = text(word)
        if f"{name} {verb}" in known:
            return f"{name} {verb}", at
        if not verb.startswith("-"):
            break
    return name, 1


def read_options(
    words: Sequence[Any], at: int, program: Program, text: Callable[[Any], str] = str
) -> tuple[list[ReadOption], int]:
    """Return the options of a command from the word `at` on, and the index of the first word after them."""
    options: list[ReadOption] = []
    while at < len(words) and not (options and options[-1][0] in program.ending_options):
        word, name_at = text(words[at]), at
        if word[:1] == "+" and "shell" in program.kinds:  # such as +x of bash
            at += 1
            continue
        if len(word) < 2 or word[0] != "-":
            break
        at += 1
        if word == "--":
            break
        is_long = word.startswith("--") or "single-dash" in program.kinds
        for name, value in _long_option(word, program) if is_long else _letter_options(word, program):
            if value is not None:
                options.append((name, value, name_at, name_at))
            elif name in program.values and name not in program.optional_values and at < len(words):
                options.append((name, text(words[at]), name_at, at))
                at += program.value_counts.get(name, 1)
            else:
                options.append((name, "", name_at, None))
    return options, at


def _long_option(word: str, program: Program) -> Iterator[tuple[str, str | None]]:
    """Yield the name of the long option in a word, and the value in the same word; None without a value."""
    name, equals, value = word.lstrip("-").partition("=")
    name = name.replace("_", "-") if "underscores" in program.kinds else name
    # A letter with its value in a word with one dash, such as -Werror of python.
    if word[1] != "-" and name not in program.values and name[:1] in program.values:
        yield name[0], word[2:]
    else:
        yield program.name_of_letter.get(name, name), value if equals else None


def _letter_options(word: str, program: Program) -> Iterator[tuple[str, str | None]]:
    """Yield the names of the options in a word of letters, such as -vn4, each with its value in the word."""
    for end, letter in enumerate(word[1:], 2):
        name = program.name_of_letter.get(letter, letter)
        if name in program.values:  # the rest of the word is the value
            yield name, word[end:] or None
            return
        yield name, None
