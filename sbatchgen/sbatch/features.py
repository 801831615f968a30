"""The features of --constraint, --prefer and --batch, as slurmctld reads them.

Source: build_feature_list of slurmctld, 22.05 to 26.05; benchmarks/values.py asks slurmctld 22.05.8 and
26.05.5. Features that a plugin changes on the nodes (node_features) are taken for those that stay.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_FEATURE = re.compile(r"([^*&|\[\]()]*)((?:\*[^*&|\[\]()]*)*)")  # its name, and its number of nodes
_NUMBER = re.compile(r"(?:\*[ \t\n\v\f\r]*\+?0*[1-9][0-9]*[^*]*)*")
_BRACKETS = re.compile(r"[^\[\]]*(?:\[[^\[\]]+\][^\[\]]*)?")
_PARENTHESES = re.compile(r"[^()]*(?:\([^()*]+\)[^()]*)*")

_PASSED_OVER = re.compile(r"(?<=[\])])[^*&|\[\]()]+")
_BESIDE = re.compile(r"[^&|(\[][(\[]|[\])][^&|\])*]|[&|][\])]")


def names(text: str, *, slurm: str) -> tuple[str, ...]:
    """The names of the features, each as often as it is given.

    Raises:
        ValueError: slurmctld refuses it whatever features its nodes have; the text says why.
    """
    text = text.replace(",", "&")
    if not _BRACKETS.fullmatch(text) or not _PARENTHESES.fullmatch(text):
        raise ValueError("a bracket or parenthesis is not closed, not opened, or misplaced")
    if slurm >= "23.02" and re.search(r"\([^()]*\[", text):
        raise ValueError("'[' in parentheses")
    if slurm < "23.11":
        text = _PASSED_OVER.sub("", text)
    if _BESIDE.search(text):
        raise ValueError("a bracket or parenthesis needs & or | around it, and none at its end")
    items = re.split("[&|]", re.sub(r"[\[\]()]", "", text))
    if len(items) > 1 and not items[-1]:
        items.pop()  # slurmctld passes over a joint at the end
    features = [match.groups() for item in items if (match := _FEATURE.fullmatch(item))]
    if any(not name for name, _ in features) and text:
        raise ValueError("& or | needs a feature before it")
    if not all(_NUMBER.fullmatch(number) for _, number in features):
        raise ValueError("* needs a number of nodes after it")
    _check_numbers(text, features, slurm)
    return tuple(name for name, _ in features if name)


def batch_names(text: str) -> tuple[str, ...]:
    """The names in the value of --batch."""
    return tuple(name for name in re.split("[&|]", text) if name)


def _check_numbers(text: str, features: Sequence[tuple[str, ...]], slurm: str) -> None:
    """In brackets, features that are joined by & have numbers, and those joined by | have none."""
    if "[" not in text and len(features) > 1 and any(number for _, number in features) and slurm >= "23.02":
        raise ValueError("counts of several features belong in brackets, as [a*2&b*4]")
    brackets = re.search(r"\[([^\[\]]*)\](\*?)", text)
    inside = re.sub(r"\([^()]*\)", "x", "".join(brackets.groups())) if brackets else ""
    items = re.split("[&|]", inside)
    if "&" in inside and "|" not in inside and not all("*" in item for item in items):
        raise ValueError("in brackets, & needs a count for each feature, as [a*2&b*4]")
    if "|" in inside and "&" not in inside and any("*" in item for item in items):
        raise ValueError("in brackets, | takes no counts")
