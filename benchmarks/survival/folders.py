"""A folder that another job has, or that takes no writes: F15, F18."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

from benchmarks.survival.place import Place, Row, one_line_failure
from sbatchgen.lab.prepare import digits
from tests.training import test_lock
from tests.training.trainers import (
    SPAWN_2,
    events,
    finish,
    wait_for,
)


def f15(place: Place) -> Iterator[Row]:
    """Two jobs in one folder."""
    run_dir = place.folder / "F15"
    first = place.trainers.start(run_dir, "--step-delay", "0.3", "--save-every", "1", "--sync-every", "1")
    wait_for(lambda: events(run_dir, "save"), "save")
    tries = [place.here(run_dir) for _ in range(5)]
    refused = sum(one_line_failure(ended) and f"process {first.pid} on" in ended.err for ended in tries)
    lives = first.poll() is None
    os.killpg(first.pid, signal.SIGKILL)
    finish(first)
    after = place.here(run_dir)
    yield Row(
        "a second job in the folder of a first, which is then killed",
        f"{refused} of 5 refused in one line, the first {'continues' if lives else 'ENDED'}, "
        f"then {'taken over' if after.code == 0 else 'NOT taken over'}",
        "all, continues, taken over",
        refused == 5 and lives and after.code == 0,
    )
    won = 0
    trials = place.times(5, 1)
    for trial in range(trials):
        with contextlib.suppress(AssertionError):
            test_lock.test_one_alone_takes_over(place.new(f"F15-{trial}"))
            won += 1
    yield Row(
        "six jobs find a dead one's folder at once",
        f"one alone gets it in {won} of {trials}",
        "all",
        won == trials,
    )


def f18(place: Place) -> Iterator[Row]:
    """No folder to write, no data."""
    folder = place.new("F18")
    (folder / "file").write_text("")
    digits.write(folder / "cut", train=250, test=101, seed=3)
    cut = next((folder / "cut").rglob("train-images*"))
    os.truncate(cut, cut.stat().st_size // 2)
    here = place.here
    ways = [
        here(folder / "file" / "run"),
        here(Path("/proc/run")),
        here(folder / "no-data", "--data-dir", str(folder / "nowhere")),
        here(folder / "cut-data", "--data-dir", str(folder / "cut")),
        place.trainers.run(folder / "two", "--data-dir", str(folder / "nowhere"), *SPAWN_2),
        place.trainers.run(Path("/proc/run"), *SPAWN_2),
    ]
    fine = sum(map(one_line_failure, ways))
    yield Row(
        "a run folder that takes no writes, missing data, cut data; one and two ranks",
        f"{fine} of {len(ways)} end with status 1 and one line",
        "all",
        fine == len(ways),
    )
