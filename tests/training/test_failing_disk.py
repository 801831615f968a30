"""A file system that fails in twelve ways while a training saves: each is reported at once, and the next save is whole."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster.pyxis import COMPILER
from training.saving.reading import load

from .states import names
from .trainers import HANGS_S, Trainers, events, status

FAILS = {
    "full": ("write", errno.ENOSPC),
    "quota": ("write", errno.EDQUOT),
    "broken": ("write", errno.EIO),
    "read-only": ("open", errno.EROFS),
    "forbidden": ("open", errno.EACCES),
    "stale": ("open", errno.ESTALE),
    "not synced": ("fsync", errno.EIO),
    "not renamed": ("rename", errno.EIO),
}
PACE = (
    "--step-delay",
    "0.05",
    "--sync-every",
    "1",
    "--log-every",
    "1",
    "--save-every",
    "1",
    "--epochs",
    "900",
)


class Disk:
    """The file system of a run that trains, and what it says."""

    def __init__(self, folder: Path, trainers: Trainers) -> None:
        self.run, self._how, self._log = folder / "run", folder / "how", folder / "log"
        library = folder / "faults.so"
        source = Path(__file__).with_name("faults.c")
        subprocess.run([*COMPILER, "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
        env = {"LD_PRELOAD": str(library), "FAULT": str(self._how), "FAULT_UNDER": f"{self.run}/checkpoints/"}
        self.fail("")
        with self._log.open("w") as log:
            flags = (*PACE, "--tensorboard", "off")
            self.training = trainers.start(self.run, *flags, env=env, output=log, fresh=True)

    def fail(self, how: str, number: int = 0) -> None:
        """Fail in this way from now on; "" is a healthy file system."""
        new = self._how.with_suffix(".new")
        new.write_text(f"{how} {number}" if how else "")
        new.replace(self._how)

    def said(self) -> str:
        return self._log.read_text()

    def until(self, there: Callable[[], bool]) -> None:
        """Wait for something while it trains."""
        began = time.monotonic()
        while not there():
            assert self.training.poll() is None, self.said()
            assert time.monotonic() - began < HANGS_S, self.said()
            time.sleep(0.02)

    def until_it_saves(self) -> None:
        """Wait for a whole save that begins from now on; the last step of an epoch, a short one, has no train event."""
        done = self.steps("train") + 1
        self.until(lambda: self.steps("save") > done)

    def steps(self, kind: str) -> int:
        """The last step of an event; -1 before there is any."""
        return max((int(event["step"]) for event in events(self.run, kind)), default=-1)


@pytest.mark.proof
def test_each_failure_is_reported_and_over_when_the_disk_is_well(trainers: Trainers, tmp_path: Path) -> None:
    disk = Disk(tmp_path, trainers)
    disk.until_it_saves()
    for name, (how, number) in FAILS.items():
        before = disk.said()
        disk.fail(how, number)
        why = f"[Errno {number}] {os.strerror(number)}"
        disk.until(lambda before=before, why=why: why in disk.said()[len(before) :])  # type: ignore[misc]
        disk.until(lambda why=why: why in str(status(disk.run)["reason"]))  # type: ignore[misc]
        lines = disk.said()[len(before) :]
        assert re.search(r"Could not save step \d+ \(.*\): training continues", lines), (name, lines)
        disk.fail("")
        disk.until_it_saves()
        disk.until(lambda: status(disk.run)["reason"] is None)
    for how in ("slow", "partial"):
        before = disk.said()
        disk.fail(how)
        disk.until_it_saves()
        assert "Could not save" not in disk.said()[len(before) :], how
        disk.fail("")
    (disk.run / "checkpoints").rename(tmp_path / "removed")  # at once: rmtree fails beside a save
    disk.until_it_saves()
    assert disk.said().count("was removed, and is made again") == 1
    disk.run.rename(tmp_path / "moved")
    disk.until(disk.run.is_dir)
    disk.until_it_saves()
    assert disk.said().count("was removed, and is made again") == 2

    (disk.run / "stop").touch()
    assert disk.training.wait(timeout=HANGS_S) == 75, disk.said()
    last = status(disk.run)
    newest = disk.run / str(last["checkpoint"])
    with newest.open("rb") as file:
        assert load(file)["step"] == last["step"]
    assert not [name for name in names(newest.parent) if ".tmp-" in name]
    tried = {
        int(event["step"])
        for folder in (disk.run, tmp_path / "moved")
        for kind in ("save", "save_failed")
        for event in events(folder, kind)
    }
    trained = range(1, int(last["step"]) + 1)
    assert not {*trained} - tried, "each step was saved, or the failure is reported"
