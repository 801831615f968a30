"""The options of a command, read by what the table says of its program.

The sandbox of a dry run loads this module for each step, so it imports nothing.
"""

from __future__ import annotations

TYPE_CHECKING = False  # loading typing takes longer than all the rest
if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator, Sequence
    from typing import Any

    from sbatchgen.check.executables.program import Program

# A long name, or a letter without one; its value, or ""; the places of the words that hold name and value.
Given = tuple[str, str, int, "int | None"]


def program_name(
    words: Sequence[Any], known: Container[str], text: Callable[[Any], str] = str
) -> tuple[str, int]:
    """Return the name of what words start, such as "uv run", and where its options begin.

    `known` has the names of programs, with their verbs; `text` returns the text of a word.
    """
    name = text(words[0]).rpartition("/")[2]
    if name.startswith("python") and name[6:].replace(".", "").isdigit():
        name = "python"
    for at, word in enumerate(words[1:6] if name not in known else (), 2):
        verb = text(word)
        if f"{name} {verb}" in known:
            return f"{name} {verb}", at
        if not verb.startswith("-"):
            break
    return name, 1


def read_options(
    words: Sequence[Any], at: int, program: Program, text: Callable[[Any], str] = str
) -> tuple[list[Given], int]:
    """Return the options of a command, which begin `at` a word, and where the first is that is not one."""
    given: list[Given] = []
    while at < len(words) and not (given and given[-1][0] in program.last):
        word, place = text(words[at]), at
        if word[:1] == "+" and "shell" in program.kinds:
            at += 1
            continue
        if len(word) < 2 or word[0] != "-":
            break
        at += 1
        if word == "--":
            break
        is_long = word.startswith("--") or "single-dash" in program.kinds
        for name, value in _long(word, program) if is_long else _letters(word, program):
            if value is not None:
                given.append((name, value, place, place))
            elif name in program.values and name not in program.optional and at < len(words):
                given.append((name, text(words[at]), place, at))
                at += program.counts.get(name, 1)
            else:
                given.append((name, "", place, None))
    return given, at


def _long(word: str, program: Program) -> Iterator[tuple[str, str | None]]:
    """Yield the option that a word with its long name is, and the value that is glued to it."""
    name, equals, value = word.lstrip("-").partition("=")
    name = name.replace("_", "-") if "underscores" in program.kinds else name
    # -W, -X and -m of python.
    if word[1] != "-" and name not in program.values and name[:1] in program.values:
        yield name[0], word[2:]
    else:
        yield program.letters.get(name, name), value if equals else None


def _letters(word: str, program: Program) -> Iterator[tuple[str, str | None]]:
    """Yield the options of a word of letters, and the value that is glued to the last."""
    for end, letter in enumerate(word[1:], 2):
        name = program.letters.get(letter, letter)
        if name in program.values:  # what follows is its value
            yield name, word[end:] or None
            return
        yield name, None
