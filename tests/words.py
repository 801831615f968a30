"""Look for words that this project does not use: `python tests/words.py [FOLDER or FILE ...]`.

Markdown is read without its code; of Python the docstrings, comments, strings of several words and names. A line with
the comment `words: ok` is left out. Pages must also keep to their share of hard sentences (tests/sentences.py).
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = "sbatchgen training tests benchmarks examples docs changes README.md CONTRIBUTING.md CHANGELOG.md"
# values.md is generated; others hold such words on purpose
NOT_READ = tuple(
    "tests/fixtures/ tests/golden/ tests/words.py tests/test_words.py docs/about/values.md".split()
)
WORDS = {  # a regular expression, in which a blank is any white space -> what to write instead
    "told": "reported, printed or shown",
    "tells? of": "describes, reports",
    "besides": "also, in addition, apart from",
    "(?:stands?|stood)(?! for| still|-)": "is, is in",
    "(?:go|goes|went|gone|going) on(?! stdout| stderr)": "continues, resumes",
    "as far as": "if, where, up to what",
    "nobody": "no one, no user; or name what is missing",
    "(?:is|are|or|if) (?-i:none)": "no ..., not any",
    "anew": "again",
    "unasked": "by default",
    "what for": "why",
    "no other than": "the same as",
    r"(?<!there) is no (?!longer|more|less|later|newer|older|\w+ than)": "is not a ...",
    "behind": "after",
}
NAMES = {"one": "row, run, job ...", "found": "match, finding ...", "told": "line, message ..."}
_REGEXES = [re.compile(rf"\b{word}\b".replace(" ", r"\s+"), re.IGNORECASE) for word in WORDS]
_ANY = re.compile("|".join(f"(?:{regex.pattern})" for regex in _REGEXES), re.IGNORECASE)
_CODE = re.compile(r"^( *)```.*?^\1```|`[^`\n]+`|<!--.*?-->", re.MULTILINE | re.DOTALL)
Hit = tuple[int, str, str]  # a line, from 1, the words, and what to write instead


def prose_hits(text: str, start: int = 1) -> Iterator[Hit]:
    """Yield the hits in a text that starts on a line."""
    if not _ANY.search(text):
        return
    for regex, better in zip(_REGEXES, WORDS.values(), strict=True):
        for match in regex.finditer(text):
            yield start + text.count("\n", 0, match.start()), " ".join(match[0].split()), better


def python_hits(text: str) -> Iterator[Hit]:
    """Yield the hits in the comments, strings and names of a Python file."""
    if next(
        prose_hits(text), None
    ):  # to take a file apart costs 20 times as much as to search in all of its text
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT:
                yield from prose_hits(token.string, token.start[0])
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield from prose_hits(node.value, node.lineno)
        elif isinstance(node, ast.arg) and node.arg in NAMES:
            yield node.lineno, f"the name {node.arg}", NAMES[node.arg]
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in NAMES:
            yield node.lineno, f"the name {node.id}", NAMES[node.id]


def hits(file: Path) -> Iterator[str]:
    """Yield a line for each hit in a file."""
    text = file.read_text()
    prose = _CODE.sub(lambda match: re.sub(r"[^\n]", "`", match[0]), text)
    lines = text.splitlines()
    for line, words, better in sorted(set(python_hits(text) if file.suffix == ".py" else prose_hits(prose))):
        if "words: ok" not in lines[line - 1]:
            yield f"{file.relative_to(ROOT)}:{line}: '{words}': write '{better}'"


def main(names: list[str]) -> int:
    """Print the hits in files and folders; return 1 if there are any."""
    from tests import sentences

    places = [ROOT / name for name in names or FOLDERS.split()]
    files = [file for place in places for file in (sorted(place.rglob("*")) if place.is_dir() else [place])]
    read = [file for file in files if file.suffix in {".py", ".md", ".yaml"}]
    lines = [
        line for file in read if not str(file.relative_to(ROOT)).startswith(NOT_READ) for line in hits(file)
    ]
    lines += sentences.too_many(str(file.relative_to(ROOT)) for file in read)
    print(*lines, sep="\n", end="\n" * bool(lines))
    return 1 if lines else 0


if __name__ == "__main__":
    sys.path[0] = str(ROOT)  # by `python tests/words.py` it is the folder of this file
    sys.exit(main(sys.argv[1:]))
