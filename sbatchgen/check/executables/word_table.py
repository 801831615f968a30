"""Reads tables in text files, such as programs.txt, whose rows have the form HEAD: WORDS."""

import re
from collections.abc import Iterator
from pathlib import Path


def rows(module: str, name: str) -> Iterator[tuple[str, str]]:
    """Yield the head and the words of each row of the file `name` next to a module; `module` is its __file__.

    A line that begins with a blank continues the previous row. A line that begins with # is a comment.
    """
    text = Path(module).with_name(name).read_text(encoding="utf-8")
    for row in re.sub(r"(?m)^#.*\n|\n +", lambda match: " " * match[0].startswith("\n"), text).splitlines():
        head, _, words = row.partition(": ")
        yield head, words
