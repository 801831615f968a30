"""The layers of a job laid over each other, with the origin of each value and what it overrode."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sbatchgen.inputs.layers import BY_DEFAULT, Layer, Level, Origin


class DecidedValues:
    """The value of each key so far, where it is from, and what it overrode."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.origins: dict[str, Origin] = {}
        self.overridden: dict[str, tuple[tuple[Any, Origin], ...]] = {}
        self.why_gpus = "mode and partition"  # why the job has that number of GPUs
        self.ranks: dict[str, int] = {}  # of the layer of each value

    def lay(self, over: Layer) -> None:
        """Lay a layer over all that are there; `KEY+` adds to the list that is there."""
        rank = max(self.ranks.values(), default=0) + 1
        for written, value in over.values.items():
            key = written.removesuffix("+")
            whole = value if key == written else (*self.values.get(key, ()), *value)
            place = over.places.get(written)  # none for a default of the profile's own
            self.set(key, whole, Origin(over.level, place) if place else BY_DEFAULT)
            self.ranks[key] = rank

    def set(self, key: str, value: Any, origin: Origin) -> None:
        """Set a value, which overrides the one that is there."""
        if key in self.values:
            self.overridden[key] = ((self.values[key], self.origins[key]), *self.overridden.get(key, ()))
        self.values[key] = value
        self.origins[key] = origin

    def derive(self, key: str, value: Any, why: str) -> None:
        """Set what no layer sets, and note the rule it follows from."""
        if value is not None and key not in self.values:
            self.set(key, value, Origin(Level.DEFAULT, why))

    def drop(self, key: str) -> None:
        """Forget a value."""
        self.values.pop(key, None)
        self.origins.pop(key, None)

    def highest(self, rivals: Sequence[str]) -> list[str]:
        """Drop all but the highest layer's values of keys that exclude each other, and return their keys."""
        given = [key for key in rivals if key in self.values]
        top = max((self.ranks.get(key, 0) for key in given), default=0)
        for key in given:
            if self.ranks.get(key, 0) < top:
                self.drop(key)
        return [key for key in given if key in self.values]

    def get(self, key: str, default: Any = None) -> Any:
        """Return a value, or the default."""
        return self.values.get(key, default)
