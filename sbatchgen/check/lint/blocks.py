"""Finds blocks of code in documents: fences of Markdown, code blocks of reStructuredText, `<pre>` of HTML.

A block has the lines of the document, but placeholders for readers are replaced, so that rules can judge it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

# A fence of CommonMark, such as ```bash or ~~~, also in a quote or a list. No backtick may follow after ```.
_FENCE = re.compile(
    r"(?P<indent>[ \t>]*(?P<item>(?:[-*+]|\d{1,9}[.)])[ \t]+)?)"
    r"(?P<mark>`{3,}(?=[^`]*$)|~{3,})[ \t{.]*(?P<language>[\w+-]*)"
)
# An annotation of MkDocs at the end of a line, such as "# (2)!".
_ANNOTATION = re.compile(r"[ \t]+#[ \t]*(?:\(\d{1,2}\)!?[ \t]*)+$")
_BARE_ANNOTATION = re.compile(r"[ \t]+\(\d{1,2}\)!?[ \t]*$")  # "(2)!" at the end of a directive
# A placeholder for readers in a directive: ... at the end, <name>, [name], --gres=gpu:N, HH:MM:SS, an option
# without its value, such as --time=, or the words "option" and "argument".
_DIRECTIVE_PLACEHOLDER = re.compile(
    r"\.{2,}\]?[ \t]*$|\u2026|<[^<>]{1,60}>|\[[A-Za-z_ ]+\]|[=: \t][A-Z](?=[ \t,:]|$)"
    r"|\b[Hh]{1,2}:[Mm]{2}(?::[Ss]{2})?\b"
    r"|#SBATCH[ \t]+(?:(?:--)?(?:option|argument)[\w=-]*|(?:-\w|--[\w-]+=)[ \t]*$)"
)
_ELLIPSIS_LINE = re.compile(r"[ \t]*(?:\[?\.{2,}\]?|\u2026)[ \t]*$")  # a line such as ... or [...]
# A placeholder for readers in a command, such as <...> and <your script>.
_COMMAND_PLACEHOLDER = re.compile(r"(?<![\w$<])<(\.{3}|[A-Za-z](?:[^<>\n]{0,60}[^\s<>])?)>(?!\w)")
# The line of reStructuredText before a block, such as ".. code-block:: bash", or "Write this script::".
_BLOCK_START = re.compile(
    r"(?P<indent>[ \t]*)(?:\.\.[ \t]+(?:code-block|code|sourcecode)::[ \t]*(?P<language>[\w+-]*)[ \t]*$"
    r"|(?![ \t]|\.\.[ \t]).*::[ \t]*$)"
)
_OPTION = re.compile(r"[ \t]+:[\w-]+:(?:[ \t].*)?$")  # a line below ".. code-block::", such as "   :linenos:"
_PRE = re.compile(r"<pre\b[^<>]*>\n?|</pre>", re.IGNORECASE)  # the start or the end of preformatted text
_TAG = re.compile(r"<[^<>]*>")
# The languages of blocks that may hold a shell script; "" if the block names no language.
_SHELL_LANGUAGES = ("", "bash", "sh", "shell", "zsh", "slurm", "sbatch", "console", "text", "default", "none")


class CodeBlock(NamedTuple):
    """A block of code in a document."""

    text: str  # the lines of the block, without their indents
    line: int  # the line of the document where the block starts, from 1
    # The number of characters that the document has before each line of the block. In HTML it is 0, as only
    # visible characters count there.
    indents: tuple[int, ...]


def blocks(text: str, suffix: str) -> Iterator[CodeBlock]:
    """Yield the blocks of a document that may hold a script; `suffix` is a key of DOCUMENTS."""
    # Carriage returns at the ends of lines belong to the document, not to the script.
    yield from DOCUMENTS[suffix](text.replace("\r\n", "\n"))


def _markdown_blocks(text: str) -> Iterator[CodeBlock]:
    """Yield the blocks between fences. A block without a second fence ends with its quote or the document."""
    opening_fence: re.Match[str] | None = None  # the first fence of the current block
    start = 0  # the number of the line after this fence
    block: list[str] = []
    # The None after the last line ends a block that is still open.
    for number, line in enumerate([*text.removesuffix("\n").split("\n"), None], start=1):
        match = _FENCE.match(line) if line is not None else None
        is_end = bool(opening_fence and match and _closes(match, opening_fence))
        if opening_fence and (is_end or line is None or _leaves_quote(line, opening_fence)):
            if opening_fence["language"].lower() in _SHELL_LANGUAGES:
                width = len(opening_fence["indent"])
                yield _block(block, start, [_indent_of_quote(part, width) for part in block])
            opening_fence = None
        elif opening_fence and line is not None:
            block.append(line)
            continue
        if match and not is_end:
            opening_fence, start, block = match, number + 1, []


def _closes(fence: re.Match[str], opening_fence: re.Match[str]) -> bool:
    """Return whether a fence ends the block that another fence opened."""
    rest = fence.string[fence.end("mark") :]
    return not fence["item"] and fence["mark"].startswith(opening_fence["mark"]) and not rest.strip()


def _leaves_quote(line: str, opening_fence: re.Match[str]) -> bool:
    """Return whether a block is in a quote, and a line is not in the quote."""
    return ">" in opening_fence["indent"] and not line.lstrip(" \t").startswith(">")


def _indent_of_quote(line: str, width: int) -> int:
    """Return the number of blanks and quote marks before a line, at most those before the fence (`width`)."""
    start = line[:width]
    return len(start) - len(start.lstrip(" \t>"))


def _restructured_text_blocks(text: str) -> Iterator[CodeBlock]:
    """Yield the indented blocks after a code directive, or after a paragraph that ends in two colons."""
    lines = text.split("\n")
    at = 0
    while at < len(lines):
        match = _BLOCK_START.match(lines[at])
        at += 1
        if not match:
            continue
        while at < len(lines) and _OPTION.match(lines[at]):  # options of the directive
            at += 1
        start, outer_indent = at, len(match["indent"])
        while at < len(lines) and (not lines[at].strip() or _indent(lines[at]) > outer_indent):  # the block
            at += 1
        block = lines[start:at]
        if (match["language"] or "").lower() in _SHELL_LANGUAGES and any(map(str.strip, block)):
            blank_lines = next(number for number, line in enumerate(block) if line.strip())  # at the start
            width = min(_indent(line) for line in block if line.strip())
            yield _block(block[blank_lines:], start + blank_lines + 1, [width] * (len(block) - blank_lines))


def _indent(line: str) -> int:
    """Return the number of blanks before a line."""
    return len(line) - len(line.lstrip())


def _html_blocks(text: str) -> Iterator[CodeBlock]:
    """Yield the preformatted blocks, without their tags."""
    import html

    start: int | None = None  # the offset after the <pre> of the current block
    counted_to, line = 0, 1  # an offset before the current block, and the number of the line there
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
    """Return lines of a document as a block that starts at the line `start`, without placeholders."""
    stripped = (_without_placeholders(line[indent:]) for line, indent in zip(lines, indents, strict=True))
    return CodeBlock("".join(f"{line}\n" for line in stripped), start, tuple(indents))


def _without_placeholders(line: str) -> str:
    """Return a line with annotations removed and placeholders for readers replaced.

    A directive with a placeholder gets the word <value> at its end, by which rules know the placeholder. In a
    command, <NAME> becomes _NAME_, because bash would read a redirection. A line that is only an ellipsis
    becomes a comment.
    """
    line = _ANNOTATION.sub("", line)
    if _ELLIPSIS_LINE.match(line):
        return f"#{line[1:]}"
    if line.startswith("#SBATCH"):
        line = _BARE_ANNOTATION.sub("", line)
        code = re.split(r"[ \t]#", line, maxsplit=1)[0]
        return f"{code} <value>{line[len(code) :]}" if _DIRECTIVE_PLACEHOLDER.search(code) else line
    return _COMMAND_PLACEHOLDER.sub(lambda match: f"_{re.sub(r'[^A-Za-z0-9]', '_', match[1])}_", line)


DOCUMENTS = {  # suffix of a file -> the function that yields its blocks
    **dict.fromkeys((".md", ".markdown"), _markdown_blocks),
    **dict.fromkeys((".html", ".htm"), _html_blocks),
    ".rst": _restructured_text_blocks,
}
