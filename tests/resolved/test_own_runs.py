"""The folder of a user's runs, where several users share a folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sbatchgen.jobs.resolved import own_runs as module
from sbatchgen.jobs.resolved.own_runs import own_runs

ANNA, ME = 65533, 65532


@pytest.fixture(autouse=True)
def _me(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """This user is one without a name; who may write is as the mode says, although root asks."""
    monkeypatch.setattr(module, "user_id", lambda: ME)
    monkeypatch.setattr(os, "access", lambda path, _: bool(Path(path).stat().st_mode & 0o002))
    os.chown(tmp_path, ME, ME)


def made(path: Path, owner: int, mode: int = 0o755) -> Path:
    path.mkdir()
    os.chown(path, owner, owner)
    path.chmod(mode)
    return path


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to another user")
def test_runs_of_another_user_are_left_to_that_user(tmp_path: Path) -> None:
    assert own_runs(tmp_path, "ddp") == ("runs", "")
    runs = made(tmp_path / "runs", ME)
    assert own_runs(tmp_path, "ddp") == ("runs", "")
    os.chown(runs, ANNA, ANNA)
    why = f"runs belongs to uid {ANNA}"
    assert own_runs(tmp_path, "ddp") == (f"runs-{ME}", why)
    runs.chmod(0o777)
    assert own_runs(tmp_path, "ddp") == (f"runs/{ME}", why)
    taken = made(runs / str(ME), ANNA)  # a run of anna's, of this name
    assert own_runs(tmp_path, "ddp") == (f"runs-{ME}", why)
    taken.rmdir()
    made(made(tmp_path / f"runs-{ME}", ME) / "ddp", ME)  # what was begun continues
    assert own_runs(tmp_path, "ddp") == (f"runs-{ME}", why)
    assert own_runs(tmp_path, "other") == (f"runs/{ME}", why)
    made(runs / "ddp", ME)
    assert own_runs(tmp_path, "ddp") == ("runs", "")
