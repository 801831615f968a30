"""The features of --constraint and --prefer, as slurmctld reads them.

Source: build_feature_list of slurmctld, 22.05 to 26.05. Counts in brackets are not checked.
"""

from __future__ import annotations

import re

_BRACKETS = re.compile(r"[^\[\]]*(?:\[[^\[\]]+\][^\[\]]*)?")
_PARENTHESES = re.compile(r"[^()]*(?:\([^()*]+\)[^()]*)*")


def names(text: str) -> tuple[str, ...]:
    """Return the names of the features, each as often as it is given.

    Raises:
        ValueError: slurmctld refuses the list whatever features its nodes have; the text says why.
    """
    text = text.replace(",", "&")
    if not _BRACKETS.fullmatch(text) or not _PARENTHESES.fullmatch(text):
        raise ValueError("a bracket or parenthesis is not closed, not opened, or misplaced")
    if re.search(r"(?:^|[&|(\[])[&|]", text):
        raise ValueError("& or | needs a feature before it")
    items = re.split(r"[&|\[\]()]", text)
    return tuple(name for name in (item.partition("*")[0] for item in items) if name)
