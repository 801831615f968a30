"""Checks of many small cases in one test: as tests of their own, each would take longer to start than to run."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any


def hold(check: Callable[..., None], cases: Iterable[tuple[Any, ...]]) -> None:
    """Assert a check of all cases, and name each case that fails."""
    wrong = []
    for case in cases:
        try:
            check(*case)
        except AssertionError as error:
            wrong.append(f"{', '.join(str(part)[:80] for part in case)}: {error}")
    assert not wrong, "\n\n".join(wrong)
