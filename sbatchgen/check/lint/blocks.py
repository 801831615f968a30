"""Blocks of code in documents: fences of Markdown, code blocks of reStructuredText, `<pre>` of HTML."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

# Fences of CommonMark, also within quotes and lists; the text after backticks holds no backtick.
_FENCE = re.compile(
    r"(?P<indent>[ \t>]*(?P<item>(?:[-*+]|\d{1,9}[.)])[ \t]+)?)"
    r"(?P<mark>`{3,}(?=[^`]*$)|~{3,})[ \t{.]*(?P<language>[\w+-]*)"
)
# An annotation of MkDocs at the end of a line, such as "# (2)!"; in a directive also without the #.
_ANNOTATION = re.compile(r"[ \t]+#[ \t]*(?:\(\d{1,2}\)!?[ \t]*)+$")
_BARE_ANNOTATION = re.compile(r"[ \t]+\(\d{1,2}\)!?[ \t]*$")
# Placeholders for readers: an ellipsis, <name>, [name], --gres=gpu:N, HH:MM:SS, an option without its value,
# or the word "options".
_ILLUSTRATION = re.compile(
    r"\.{2,}\]?[ \t]*$|\u2026|<[^<>]{1,60}>|\[[A-Za-z_ ]+\]|[=: \t][A-Z](?=[ \t,:]|$)"
    r"|\b[Hh]{1,2}:[Mm]{2}(?::[Ss]{2})?\b"
    r"|#SBATCH[ \t]+(?:(?:--)?(?:option|argument)[\w=-]*|(?:-\w|--[\w-]+=)[ \t]*$)"
)
_ELLIPSIS_LINE = re.compile(r"[ \t]*(?:\[?\.{2,}\]?|\u2026)[ \t]*$")
# A placeholder in a command, such as <...> and <your script>.
_COMMAND_PLACEHOLDER = re.compile(r"(?<![\w$<])<(\.{3}|[A-Za-z](?:[^<>\n]{0,60}[^\s<>])?)>(?!\w)")
# The line before a literal block: a directive for code, or a paragraph that ends in two colons.
_LITERAL = re.compile(
    r"(?P<indent>[ \t]*)(?:\.\.[ \t]+(?:code-block|code|sourcecode)::[ \t]*(?P<language>[\w+-]*)[ \t]*$"
    r"|(?![ \t]|\.\.[ \t]).*::[ \t]*$)"
)
_OPTION = re.compile(r"[ \t]+:[\w-]+:(?:[ \t].*)?$")  # an option of a directive of reStructuredText
_PRE = re.compile(r"<pre\b[^<>]*>\n?|</pre>", re.IGNORECASE)  # the begin or the end of preformatted text
_TAG = re.compile(r"<[^<>]*>")
# The languages of blocks that may be shell.
_SHELL = ("", "bash", "sh", "shell", "zsh", "slurm", "sbatch", "console", "text", "default", "none")


class CodeBlock(NamedTuple):
    """A block of a document."""

    text: str  # the lines of the block
    line: int  # the line of the document where the block starts, from 1
    # The number of characters that the document has before each line of the block. Columns in HTML count
    # the visible characters.
    indents: tuple[int, ...]


def blocks(text: str, suffix: str) -> Iterator[CodeBlock]:
    """Yield the blocks of a document that may be shell; `suffix` is the suffix of its file."""
    # Carriage returns at the ends of lines belong to the document, not to the script.
    yield from DOCUMENTS[suffix](text.replace("\r\n", "\n"))


def _markdown_blocks(text: str) -> Iterator[CodeBlock]:
    """Yield fenced blocks; a fence without an end ends with its quote or with the document."""
    opened: re.Match[str] | None = None  # the fence of the current block
    start = 0  # the line after this fence
    block: list[str] = []
    # The None after the last line ends an open block.
    for number, line in enumerate([*text.removesuffix("\n").split("\n"), None], start=1):
        match = _FENCE.match(line) if line is not None else None
        is_end = bool(opened and match and _closes(match, opened))
        if opened and (is_end or line is None or _leaves_quote(line, opened)):
            if opened["language"].lower() in _SHELL:
                width = len(opened["indent"])
                yield _block(block, start, [_indent_of_quote(part, width) for part in block])
            opened = None
        elif opened and line is not None:
            block.append(line)
            continue
        if match and not is_end:
            opened, start, block = match, number + 1, []


def _closes(match: re.Match[str], opened: re.Match[str]) -> bool:
    """Return whether a fence ends the block that another fence opened."""
    rest = match.string[match.end("mark") :]
    return not match["item"] and match["mark"].startswith(opened["mark"]) and not rest.strip()


def _leaves_quote(line: str, opened: re.Match[str]) -> bool:
    """Return whether a block is in a quote that a line does not continue."""
    return ">" in opened["indent"] and not line.lstrip(" \t").startswith(">")


def _indent_of_quote(line: str, width: int) -> int:
    """Return the width of the indent and quote marks before a line: at most `width`, that of the fence."""
    start = line[:width]
    return len(start) - len(start.lstrip(" \t>"))


def _restructured_text_blocks(text: str) -> Iterator[CodeBlock]:
    """Yield the indented blocks after a code directive, or a paragraph that ends in two colons."""
    lines = text.split("\n")
    at = 0
    while at < len(lines):
        match = _LITERAL.match(lines[at])
        at += 1
        if not match:
            continue
        while at < len(lines) and _OPTION.match(lines[at]):
            at += 1
        start, outer_indent = at, len(match["indent"])
        while at < len(lines) and (not lines[at].strip() or _indent(lines[at]) > outer_indent):
            at += 1
        block = lines[start:at]
        if (match["language"] or "").lower() in _SHELL and any(map(str.strip, block)):
            first = next(number for number, line in enumerate(block) if line.strip())
            width = min(_indent(line) for line in block if line.strip())
            yield _block(block[first:], start + first + 1, [width] * (len(block) - first))


def _indent(line: str) -> int:
    """Return the number of blanks before a line."""
    return len(line) - len(line.lstrip())


def _html_blocks(text: str) -> Iterator[CodeBlock]:
    """Yield the preformatted blocks, without their tags."""
    import html

    start: int | None = None  # the offset after the <pre> of the current block
    counted_to, line = 0, 1  # the offset up to which lines are counted, and its line
    for match in _PRE.finditer(text):
        if match[0].lower() != "</pre>":
            start = match.end() if start is None else start
        elif start is not None:
            line += text.count("\n", counted_to, start)
            counted_to = start
            lines = [html.unescape(_TAG.sub("", part)) for part in text[start : match.start()].split("\n")]
            yield _block(lines, line, [0] * len(lines))
            start = None


def _block(lines: Sequence[str], start: int, indents: Sequence[int]) -> CodeBlock:
    """Return a block of lines of a document, without their indents and without placeholders."""
    stripped = (_without_placeholders(line[indent:]) for line, indent in zip(lines, indents, strict=True))
    return CodeBlock("".join(f"{line}\n" for line in stripped), start, tuple(indents))


def _without_placeholders(line: str) -> str:
    """Return a line without annotations and placeholders for readers.

    A directive with a placeholder gets the word <value> at its end, by which rules know it. In a command,
    <NAME> becomes _NAME_, because bash would read a redirection. A line with only an ellipsis becomes a
    comment.
    """
    line = _ANNOTATION.sub("", line)
    if _ELLIPSIS_LINE.match(line):
        return f"#{line[1:]}"
    if line.startswith("#SBATCH"):
        line = _BARE_ANNOTATION.sub("", line)
        code = re.split(r"[ \t]#", line, maxsplit=1)[0]
        return f"{code} <value>{line[len(code) :]}" if _ILLUSTRATION.search(code) else line
    return _COMMAND_PLACEHOLDER.sub(lambda match: f"_{re.sub(r'[^A-Za-z0-9]', '_', match[1])}_", line)


DOCUMENTS = {  # suffix of a file -> reader of its blocks
    **dict.fromkeys((".md", ".markdown"), _markdown_blocks),
    **dict.fromkeys((".html", ".htm"), _html_blocks),
    ".rst": _restructured_text_blocks,
}
