"""The features of --constraint, --prefer and --batch, as slurmctld reads them.

Source: build_feature_list of slurmctld, 22.05 to 26.05; benchmarks/values.py asks slurmctld 22.05.8 and
26.05.5. Features that a plugin changes on the nodes (node_features) are taken for those that stay.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import NamedTuple

from sbatchgen.sbatch.grammar import leading_number, wrapped

_TOKEN = re.compile(r"\*(?:[ \t\n\v\f\r]*[+-]?[0-9]+)?|[&|\[\]()]|[^*&|\[\]()]+")


class _Feature(NamedTuple):
    """A feature: its number of nodes (0 for none), whether it is in parentheses, and the joint after it.

    A joint is & or |, with a [ before it in brackets; "" after the last feature.
    """

    name: str
    number: int
    inside: bool
    joint: str


def names(text: str, *, slurm: str) -> tuple[str, ...]:
    """The names of the features, each as often as it is given.

    Raises:
        ValueError: slurmctld refuses it whatever features its nodes have; the text says why.
    """
    reader = _Reader(slurm=slurm)
    for token in _TOKEN.findall(text.replace(",", "&")):
        reader.take(token)
    features = reader.end()
    _check_counts(features)
    return tuple(feature.name for feature in features)


def batch_names(text: str) -> tuple[str, ...]:
    """The names in the value of --batch."""
    return tuple(name for name in re.split("[&|]", text) if name)


@dataclass(kw_only=True, slots=True)
class _Reader:
    """What was read of a list; `last` is the token before."""

    slurm: str
    features: list[_Feature] = field(default_factory=list)
    name: str = ""
    count: int = 0
    bracket: bool = False
    paren: bool = False
    groups: int = 0
    starred: bool = False
    last: str = ""

    def take(self, token: str) -> None:
        """Read a token."""
        take = {
            "*": self._count,
            "&": self._join,
            "|": self._join,
            "[": self._open_bracket,
            "]": self._close_bracket,
            "(": self._open_paren,
            ")": self._close_paren,
        }
        take.get(token[0], self._word)(token)
        self.last = token

    def end(self) -> list[_Feature]:
        """The features, once all is read."""
        if self.bracket or self.paren:
            raise ValueError(f"'{'[' if self.bracket else '('}' is not closed")
        if self.name:
            self._keep("")
        if self.starred and len(self.features) > 1 and self.slurm >= "23.02":
            raise ValueError("counts of several features belong in brackets, as [a*2&b*4]")
        return self.features

    def _keep(self, joint: str) -> None:
        self.features.append(_Feature(self.name, self.count, self.paren, joint))
        self.name, self.count = "", 0

    def _count(self, token: str) -> None:
        self.count = wrapped(leading_number(token[1:])[0] or 0)
        self.starred = self.starred or not self.bracket
        if not self.name or self.count <= 0 or self.paren:
            raise ValueError("* needs a feature before it, outside of parentheses, and a number after it")

    def _join(self, token: str) -> None:
        if not self.name:
            raise ValueError(f"'{token}' needs a feature before it")
        self._keep("[" * (self.bracket and not self.paren) + token)

    def _open_bracket(self, _: str) -> None:
        self.groups += 1
        if self.name or self.groups > 1 or (self.paren and self.slurm >= "23.02"):
            raise ValueError("a second '[', or one after a feature or in parentheses")
        self.bracket = True

    def _close_bracket(self, _: str) -> None:
        if not self.name or not self.bracket or (self.paren and self.slurm >= "23.02"):
            raise ValueError("']' without '[', or without a feature before it")
        self.bracket = False

    def _open_paren(self, _: str) -> None:
        if self.name or self.paren:
            raise ValueError("'(' after a feature, or within parentheses")
        self.paren = True

    def _close_paren(self, _: str) -> None:
        if not self.name or not self.paren:
            raise ValueError("')' without '(', or without a feature before it")
        self.paren = False

    def _word(self, token: str) -> None:
        """A name; what follows a name without a sign between is passed over, up to 23.02."""
        if not self.name:
            self.name = token
        elif self.last in ("]", ")") and self.slurm >= "23.11":
            raise ValueError(f"'{token}' follows a closed group without & or |")


def _check_counts(features: list[_Feature]) -> None:
    """In brackets, features that are joined by & have counts, and those joined by | have none."""
    joints: set[str] = set()  # of the brackets so far
    for feature in features:
        checked: set[str] = set()
        if feature.joint.startswith("["):
            joints.add(feature.joint)
            checked = {feature.joint}
        elif not feature.inside:
            checked, joints = joints, checked
        if ("[&" in checked and not feature.number) or ("[|" in checked and feature.number):
            raise ValueError("in brackets, & needs a count for each feature, as [a*2&b*4], and | takes none")
