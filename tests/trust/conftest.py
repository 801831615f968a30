"""What tests of two users share."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cluster.fixtures import _need
from tests.scripts import PUBLIC

from . import lab
from .lab import User, put


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


@pytest.fixture(params=["user", "root"])
def person(request: pytest.FixtureRequest, owner: User) -> User:
    """An ordinary user, and root."""
    if request.param == "user":
        return owner
    root = replace(owner, uid=0, home=owner.lab / "home-0")
    root.home.mkdir(mode=0o700)
    put(root.home / "public.yaml", PUBLIC, owner=0)
    put(root.queue, owner=0)
    return root


@pytest.fixture
def marks(person: User) -> Path:
    """Where each trap that goes off leaves a file."""
    folder = person.lab / "marks"
    folder.mkdir()
    folder.chmod(0o777)
    return folder
