"""A run folder whose path leads nowhere any more, as in a container whose image has ended, still gets the last save."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from training import files
from training.errors import DONE, PREEMPTED
from training.processes import resident

from .trainers import Here

# After its first step the path of the run folder ends, and the job is to stop.
MODEL = """
    import pathlib, signal
    from torch import nn

    class Model(nn.Sequential):
        steps = 0

        def forward(self, x):
            self.steps += 1
            if self.steps == 2:
                pathlib.Path({before!r}).rename({after!r})
                signal.raise_signal(signal.SIGTERM)
            return super().forward(x)

    def make(config):
        return Model(nn.Flatten(), nn.Linear(196, 10))
"""


@pytest.fixture(params=[True, False], ids=["mounted", "disk"])
def is_mounted(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[bool]:
    """Whether a process mounts the root folder; the folder of this process is put back."""
    monkeypatch.setattr(resident, "is_mounted", lambda: request.param)
    monkeypatch.setattr(files, "_held", [])
    monkeypatch.chdir(tmp_path)
    yield request.param
    files.release_run_folder()


def test_a_path_leads_to_the_folder_that_was_opened(tmp_path: Path, *, is_mounted: bool) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    if is_mounted:
        files.hold_run_folder(folder)
    assert files.reachable(folder / "file") == folder / "file"
    files.enter_run_folder()
    folder.rename(tmp_path / "moved")

    assert files.reachable(folder / "file") == (Path("file") if is_mounted else folder / "file")
    assert Path.cwd() == (tmp_path / "moved" if is_mounted else tmp_path)


def test_what_is_saved_at_a_stop_needs_no_path_from_the_root_folder(
    here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_mounted: bool
) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    source = textwrap.dedent(MODEL).format(before=str(before), after=str(after))
    (tmp_path / f"moving_{is_mounted}.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    ended = here(
        before / "run", "--model", f"moving_{is_mounted}:make", "--sync-every", "1", "--tensorboard", "off"
    )

    saved = [path.name for path in (after / "run/checkpoints").glob("step-*.pt")]
    assert ended.code in (DONE, PREEMPTED), ended.err
    if is_mounted:
        assert len(saved) == 1
        status = json.loads((after / "run/status.json").read_text())
        assert (status["state"], status["checkpoint"]) == ("preempted", f"checkpoints/{saved[0]}")
        assert not (after / "run/lock.json").exists()
        assert not before.exists()
    else:
        assert saved == []
        assert f"{before / 'run'}/checkpoints was removed, and is made again" in ended.out
