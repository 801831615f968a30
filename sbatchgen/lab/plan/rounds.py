"""Counts the steps of a script by the loops in its text.

A plan that reaches its limit shows only the first steps. From this count, the plan tells how many other steps
the script starts at least.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from sbatchgen.check.bash import Body

# The first lines of loops: for x in WORDS; for ((i = 0; i < 8; i++)).
_FOR_WORDS = re.compile(r"for\s+\w+\s+in\s+([^;\n]*)")
_FOR_COUNTED = re.compile(
    r"for\s*\(\(\s*(\w+)\s*=\s*(\d+)\s*;\s*\1\s*(<=?)\s*(\d+)\s*;\s*(?:\1\+\+|\+\+\1)\s*\)\)"
)
# The words of a loop: $(seq 8) or $(seq 1 8); {1..8}; words that bash does not expand.
_SEQ = re.compile(r"\$\(\s*seq(?:\s+(\d+))?\s+(\d+)\s*\)")
_RANGE = re.compile(r"\{(\d+)\.\.(\d+)\}")
_PLAIN_WORDS = re.compile(r"[\w./:,=@%+\s-]*")


def rounds_of_loop(text: str) -> int:
    """Return how often a loop runs, by the first line of its text; 1 if the line does not show this."""
    if match := _FOR_COUNTED.match(text):
        _, first, operator, limit = match.groups()
        return max(int(limit) - int(first) + (operator == "<="), 1)
    match = _FOR_WORDS.match(text)
    words = match[1].strip() if match else ""
    if match := _SEQ.fullmatch(words) or _RANGE.fullmatch(words):
        first, last = match.groups()
        return max(int(last) - int(first or 1) + 1, 1)
    return max(len(words.split()), 1) if _PLAIN_WORDS.fullmatch(words) else 1


def least_steps(body: Body, lines: Iterable[int]) -> int:
    """Return how many steps the commands in `lines` start at least, in all rounds of their loops."""
    text, total = body.source.text, 0
    for line in {*lines}:
        offsets = (command.at for command in body.commands if command.line <= line <= command.end_line)
        offset = next(offsets, None)  # the first command of the line
        rounds = 1
        for start, end in body.loop_spans:
            if offset is not None and start <= offset < end:
                rounds *= rounds_of_loop(text[start:end])
        total += rounds
    return total
