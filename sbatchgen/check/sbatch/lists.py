"""Reads the lists in --dependency, --constraint and --licenses, as slurmctld does.

The functions do not know which jobs, features or licences exist, and ignore numbers of features.
Source: update_job_dependency, build_feature_list and _build_license_list of slurmctld, 22.05 to 26.05.
"""

import re
from collections.abc import Collection

from sbatchgen.base.units import number
from sbatchgen.check.sbatch.values import fold

_KINDS = ("after", "afterany", "afterok", "afternotok", "aftercorr", "afterburstbuffer", "expand")
# The text after a job id, such as _3 in 12_3 or +5 in 12+5, is not checked.
_JOB_ID = re.compile(r"\s*[+-]?0*[1-9][0-9]*([_+].*)?", re.DOTALL)
_BRACKETS = re.compile(r"[^\[\]]*(?:\[[^\[\]]+\][^\[\]]*)?")  # a text with one pair of brackets at most
# Features that are joined only by & and commas, or only by |, such as a100&ib and a100|v100.
_FLAT = re.compile(r"[^&|,*\[\]()]+(?:[&,][^&|,*\[\]()]+)*|[^&|,*\[\]()]+(?:\|[^&|,*\[\]()]+)*")
_PARENTHESES = re.compile(r"[^()]*(?:\([^()*]+\)[^()]*)*")  # a text where each parenthesis is closed
_LICENSE = re.compile(r"\s*([^:=\s]*)(?:[:=](.*))?", re.DOTALL | re.ASCII)  # such as matlab:2


def check_dependency(text: str) -> None:
    """Raise ValueError, with the reason, if slurmctld refuses a --dependency, such as afterok:12,singleton.

    A text with brackets or parentheses, such as 1(failed), is not checked.
    """
    if text in ("", "0") or "(" in text or "[" in text:
        return
    for condition in re.split("[,?]", text):
        kind, colon, jobs = condition.partition(":")
        if colon and fold(kind) not in _KINDS:
            raise ValueError(f"'{kind}' is not a kind of dependency")
        if not condition:
            raise ValueError("a condition is empty")
        if fold(condition) == "singleton":
            continue
        if not colon and not condition[0].isdecimal():
            raise ValueError(f"'{condition}' is not a condition")
        for job in jobs.split(":") if colon else (condition,):
            if not _JOB_ID.fullmatch(job):
                raise ValueError(f"'{job}' is not a job id" if job else "a job id is missing")


def features(text: str) -> tuple[str, ...]:
    """Return the names of the features in a --constraint, such as a100 and ib of a100&ib, with repetitions.

    Raises:
        ValueError: slurmctld refuses the list on each cluster, for the reason in the error.
    """
    text = text.replace(",", "&")
    if not _BRACKETS.fullmatch(text) or not _PARENTHESES.fullmatch(text):
        raise ValueError("a bracket or parenthesis is not closed, not opened, or misplaced")
    if re.search(r"(?:^|[&|(\[])[&|]", text):
        raise ValueError("& or | needs a feature before it")
    items = re.split(r"[&|\[\]()]", text)
    return tuple(name for name in (item.partition("*")[0] for item in items) if name)


def is_flat(text: str) -> bool:
    """Return whether a --constraint joins features only by & or only by |, without numbers and brackets."""
    return bool(_FLAT.fullmatch(text))


def may_match(text: str, node_features: Collection[str]) -> bool:
    """Return whether a node with these features may match a --constraint; true if that is not flat."""
    if not is_flat(text):
        return True
    names = re.split(r"[&,|]", text)
    any_or_all = any if "|" in text else all
    return any_or_all(name in node_features for name in names)


def licenses(text: str) -> dict[str, int]:
    """Return the requested number of each licence: 1 for matlab, 2 for matlab:2, 0 for matlab: and no digits.

    Raises:
        ValueError: slurmctld refuses the list on each cluster, for the reason in the error.
    """
    counts: dict[str, int] = {}
    for item in filter(None, re.split("[,;|]", text)):
        match = _LICENSE.fullmatch(item)
        if match is None:
            raise ValueError(f"'{item}' has a space in its name")
        if not match[1]:
            raise ValueError(f"'{item}' has no name")
        if match[2] is not None and not re.fullmatch(r"\s*\+?[0-9]*", match[2], re.ASCII):
            raise ValueError(f"'{match[2]}' is not a number of licences")
        digits = re.sub("[^0-9]", "", match[2] or "")
        counts[match[1]] = counts.get(match[1], 0) + (1 if match[2] is None else number(digits))
    return counts
