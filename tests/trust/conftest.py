"""What tests of two users share."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.fixtures import _need

from . import lab
from .lab import User


@pytest.fixture
def members() -> Iterator[tuple[User, User]]:
    """The attacker and the owner of the runs, in a lab of their own."""
    _need(lab.why_not(), what="files of two users")
    with tempfile.TemporaryDirectory(prefix="lab-", ignore_cleanup_errors=True) as folder:
        yield lab.make(Path(folder).resolve())


@pytest.fixture
def attacker(members: tuple[User, User]) -> User:
    return members[0]


@pytest.fixture
def owner(members: tuple[User, User]) -> User:
    return members[1]
