"""The features of --constraint and --prefer, as slurmctld reads them.

Source: build_feature_list of slurmctld, 22.05 to 26.05. Counts in brackets are not checked.
"""

from __future__ import annotations

import re
from collections.abc import Collection

_BRACKETS = re.compile(r"[^\[\]]*(?:\[[^\[\]]+\][^\[\]]*)?")
_FLAT = re.compile(r"[^&|,*\[\]()]+(?:[&,][^&|,*\[\]()]+)*|[^&|,*\[\]()]+(?:\|[^&|,*\[\]()]+)*")
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


def is_flat(text: str) -> bool:
    """Whether a list has features that are all wanted, or of which any is, without counts and brackets."""
    return bool(_FLAT.fullmatch(text))


def matches(text: str, having: Collection[str]) -> bool:
    """Whether a node with these features may be what the list wants; true of a list that is not flat."""
    if not is_flat(text):
        return True
    wanted = re.split(r"[&,|]", text)
    return any(name in having for name in wanted) if "|" in text else all(name in having for name in wanted)
