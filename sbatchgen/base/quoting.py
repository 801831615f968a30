"""Texts for bash, sbatch and people: quoted words, #SBATCH lines, lists and tables.

A directive is not quoted like a word of bash, because sbatch reads a backslash as an escape even between
single quotes (Slurm's src/sbatch/opt.c).
"""

import functools
import re
from collections.abc import Iterable, Sequence

from sbatchgen.base.units import VARIABLE

EMPTY_LINE_MARK = "\x01"  # a mark in the user's empty lines, which keeps several of them from being joined
WIDTH = 110  # columns of a line of words in a script; a longer word has a line of its own
_PLAIN = re.compile(r"[A-Za-z0-9_@%+=:,./-]+")  # a word that needs no quotes
_SPECIAL = re.compile(r'[\\"`$]')  # a character that keeps its meaning between double quotes
_EXPANDED = re.compile(f"({VARIABLE.pattern})|{_SPECIAL.pattern}")  # a variable, or a special character


def is_plain(text: str) -> bool:
    """Return whether a shell reads the text as one word without quotes."""
    return _PLAIN.fullmatch(text) is not None


def word(text: str) -> str:
    """Return the text quoted as one word of bash; control characters are escaped."""
    if is_plain(text):
        return text
    if any(ord(char) < 32 or ord(char) == 127 for char in text):
        escaped = text.replace("\\", "\\\\").replace("'", "\\'")
        return "$'" + re.sub(r"[\x00-\x1f\x7f]", lambda match: f"\\x{ord(match[0]):02x}", escaped) + "'"
    return "'" + text.replace("'", "'\"'\"'") + "'"


def words(texts: tuple[str, ...]) -> str:
    """Return several texts quoted as words of bash, with blanks between them."""
    return " ".join(word(text) for text in texts)


def packed(words: Iterable[str]) -> Sequence[str]:
    """Return words on as few lines as possible; only a line with a single word is longer than WIDTH."""
    lines: list[str] = []
    for text in words:
        if lines and len(lines[-1]) + len(text) < WIDTH:
            lines[-1] += f" {text}"
        else:
            lines.append(text)
    return lines


def inside_quotes(text: str) -> str:
    """Return the text escaped for the inside of double quotes."""
    return _SPECIAL.sub(r"\\\g<0>", text)


@functools.lru_cache(maxsize=256)
def shell_text(lines: Sequence[str]) -> str:
    """Return lines of shell as one quoted word of bash; "" without lines.

    Several lines begin on a line of their own, below the opening quote.
    """
    quoted = "\n".join(mark_empty_lines(lines)).replace("'", "'\\''")
    if not lines:
        return ""
    return f"'{quoted}'" if len(lines) == 1 else f"'\n{quoted}'"


def mark_empty_lines(lines: Sequence[str]) -> tuple[str, ...]:
    """Return the user's lines of shell with a mark in the empty lines; the renderer removes the marks."""
    return tuple(line or EMPTY_LINE_MARK for line in lines)


def path(text: str) -> str:
    """Return a path as one word of bash, which expands only ${NAME} in it."""
    return f'"{_EXPANDED.sub(lambda match: match[1] or inside_quotes(match[0]), text)}"'


def value(text: str) -> str:
    """Return the value of a variable as one word of bash, which expands only ${NAME} in it."""
    return path(text) if VARIABLE.search(text) else word(text)


def directive(option: str, value: str) -> str:
    """Return `--option=value` quoted so that sbatch of every release from 20.11 on reads this value.

    An empty value gives `--option`. Raises ValueError for a control character, because a line break would
    start a new line of the script.
    """
    if not value:
        return f"--{option}"
    # sbatch reads hetjob and packjob as separators, but not with quotes.
    if is_plain(value) and value.lower() not in ("hetjob", "packjob"):
        return f"--{option}={value}"
    if re.search(r"[\x00-\x1f\x7f]", value):
        raise ValueError(f"{value!r} holds a control character")
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'--{option}="{escaped}"'


def visible(text: str) -> str:
    """Return the text with control characters escaped, except newlines and tabs."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char in "\n\t" else repr(char)[1:-1] for char in text)


def one_line(text: str) -> str:
    """Return a text of another user, such as a file's name, for people, as a part of one line.

    Line breaks, tabs and other control characters are escaped, so that no text imitates lines of sbatchgen.
    """
    return visible(text).replace("\n", "\\n").replace("\t", "\\t")


# The prefixes of lines below a fix: a further fact, another fix, and code to copy.
ALSO, OR, CODE = "\n  also: ", "\n  or: ", "\n  | "
BELOW = re.compile(r"\n(?=  (?:also: |or: |\| ))")  # the line break before such a prefix


def fix_lines(fix: str, *, indent: int) -> list[str]:
    """Return the printed lines of a fix; a line break starts a new line only before a known prefix."""
    lines = [one_line(line) for line in BELOW.split(f"fix: {fix}")] if fix else []
    return [" " * indent + line for line in lines]


def counted(count: int, noun: str) -> str:
    """Return a number with its noun, such as 1 GPU, 2 GPUs, 3 processes."""
    return f"{count} {noun}" + ("" if count == 1 else "es" if noun.endswith("s") else "s")


def listed(words: Sequence[str]) -> str:
    """Return words as an enumeration such as "a, b and c"."""
    return " and ".join([*filter(None, [", ".join(words[:-1])]), *words[-1:]])


def first_names(names: Sequence[str], count: int) -> str:
    """Return the first names and the number of the others, such as "a, b and 3 more"."""
    return ", ".join(names[:count]) + (f" and {len(names) - count} more" if len(names) > count else "")


def numbers_as_text(numbers: Iterable[int]) -> str:
    """Return ascending numbers as ranges, such as 0-9,12."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)


def table(rows: Iterable[Sequence[str]], *, widest: int | None = None) -> str:
    """Return rows as lines with aligned columns; a cell longer than `widest` pushes its row to the right."""
    rows = list(rows)
    widths = [max(map(len, column)) for column in zip(*(row[:-1] for row in rows), strict=True)]
    padded = [width if widest is None else min(width, widest) for width in widths] + [0]
    return "".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, padded, strict=True)).rstrip() + "\n"
        for row in rows
    )


def cut(text: str, width: int, indent: int = 0) -> list[str]:
    """Return a text as at most two lines of `width` columns, the second indented; [] for an empty text."""
    from textwrap import TextWrapper

    pad = " " * indent
    style = TextWrapper(width, subsequent_indent=pad, max_lines=2, placeholder=" ...", break_on_hyphens=False)
    return style.wrap(one_line(text))
