"""Processes that are signalled, die, hang or compute nonsense, and a slow file system: F7 to F10, F13."""

from __future__ import annotations

import os
import signal
import statistics
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.survival.place import Place, Row
from tests.training import moments, test_faults
from tests.training.moments import FLAGS, MOMENTS, NUMBERS, TARGETS, started
from tests.training.states import everything
from tests.training.trainers import (
    SPAWN_2,
    children,
    finish,
    status,
    tasks,
    wait_for,
)


def f7(place: Place) -> Iterator[Row]:
    """A file system that answers late, and shows another rank nothing."""
    least, most = (0.1, 0.3) if place.quick else (0.2, 2.0)
    held = place.held
    run_dir, notes = held.folder / "slow", held.notes("slow")
    slow = {"SLOW_DIR": str(run_dir), "SLOW_S": f"{least} {most}"}
    flags = (*FLAGS, "--epochs", "1", "--save-every", "4", *SPAWN_2)
    ended = finish(place.trainers.start(run_dir, *flags, env=held.environment(notes, **slow)), timeout_s=300)
    steps = [len((notes / f"step-{rank}").read_text().splitlines()) for rank in "01"]
    stall, copy, save = (max(moments.noted(notes, kind)) for kind in ("stall", "copy", "save"))
    yield Row(
        f"each open, fsync, rename, list takes {least}-{most} s, rank 1 sees no file",
        f"exit status {ended.code}, steps {steps}; a save of {save:.1f} s holds the training up for "
        f"{1e3 * stall:.1f} ms (of which the copy {1e3 * copy:.1f} ms)",
        "0, equal, < copy + 50 ms",
        ended.code == 0 and steps == [moments.STEPS] * 2 and stall < copy + 0.05,
    )


def f8(place: Place) -> Iterator[Row]:
    """Signals, to each process, at each moment."""
    for launcher, targets in TARGETS.items():
        pairs = [(number, target) for number in NUMBERS for target in targets]
        if (
            launcher != "torchrun" or place.quick
        ):  # each signal, target and moment, but not in each combination
            plans = [
                [
                    (NUMBERS[(i + run) % 4], targets[(i + 2 * run) % len(targets)], when)
                    for i, when in enumerate(MOMENTS)
                ]
                for run in range(1 if place.quick else 2)
            ]
        else:
            plans = [[(*pair, when) for when in MOMENTS] for pair in pairs]
        lives = [
            life
            for run, plan in enumerate(plans)
            for life in place.held.lives(f"{launcher}-{run}", launcher, plan)
        ]
        for life in lives:
            if life.problems:
                print(f"    {life.name}: {'; '.join(life.problems)}", flush=True)
        clean = sum(not life.problems for life in lives)
        times = [life.latency_s for life in lives if life.moment in {"step", "save"}]
        p95 = statistics.quantiles(times, n=20)[-1] if len(times) > 1 else times[0]
        bound = place.held.bound_s + 0.1  # the agent's and the poll's
        signals, whom = ({getattr(life, name) for life in lives} for name in ("number", "target"))
        names = f"{len(signals)} signals, {len(whom)} targets, {len(MOMENTS)} moments"
        yield Row(
            f"{launcher}, two ranks: {names}",
            f"{clean} of {len(lives)} clean, p95 {1e3 * p95:.0f} ms",
            f"all, <= {1e3 * bound:.0f} ms",
            clean == len(lives) and p95 <= bound,
        )


def f9(place: Place) -> Iterator[Row]:
    """A rank that dies."""
    times, left, lost = [], 0, 0
    for trial in range(place.times(9, 3)):
        launcher = ("spawn", "torchrun", "srun")[trial % 3]
        held, notes = place.held, place.held.notes(f"dead-{trial}")
        run_dir = held.folder / f"dead-{trial}"
        flags = (*FLAGS, "--save-every", "2", "--epochs", "50")
        processes = started(place.trainers, launcher, run_dir, *flags, env=held.environment(notes))
        wait_for((notes / "save-0").exists, "save")
        ranks = [process.pid for process in processes] if launcher == "srun" else children(processes[0])
        os.kill(ranks[1], signal.SIGKILL)
        began = time.monotonic()
        for process in processes:
            finish(process)
        times.append(time.monotonic() - began)
        left += sum(Path(f"/proc/{pid}").exists() for pid in ranks)
        saved = int(everything(run_dir)["step"])
        lost = max(lost, len((notes / "step-0").read_text().splitlines()) - saved)
    yield Row(
        "kill -9 of one rank under spawn, torchrun and srun, saving each 2nd step",
        f"down in {max(times):.1f} s at most, {left} processes left, {lost} steps lost at most",
        "< 5 s, 0, <= 4",  # those since the save before the one under way
        max(times) < 5 and not left and lost <= 4,
    )


def f10(place: Place) -> Iterator[Row]:
    """A rank that hangs."""
    held, notes = place.held, place.held.notes("hung")
    flags = (*FLAGS, "--epochs", "50", "--dist-timeout", "5")
    (process,) = started(place.trainers, "spawn", held.folder / "hung", *flags, env=held.environment(notes))
    wait_for((notes / "save-0").exists, "save")
    ranks = children(process)
    os.kill(ranks[1], signal.SIGSTOP)
    began = time.monotonic()
    finish(process)
    took = time.monotonic() - began
    left = sum(Path(f"/proc/{pid}").exists() for pid in ranks)
    yield Row(
        "one rank stopped by SIGSTOP, --dist-timeout 5",
        f"down in {took:.1f} s, {left} processes left",
        "<= 5 + 10 s, + 1 to notice",
        took <= 16 and not left,
    )


def f13(place: Place) -> Iterator[Row]:
    """Not a number, on one rank."""
    own = place.new("F13")
    (own / "breaks.py").write_text(textwrap.dedent(test_faults.OWN))
    run_dir = own / "run"
    flags = ("--model", "breaks:model", "--save-every", "2", "--sync-every", "4", "--epochs", "1")
    ended = [
        finish(task)
        for task in tasks(place.trainers, (run_dir, run_dir), *flags, env={"PYTHONPATH": str(own)})
    ]
    finite = all(weight.isfinite().all() for weight in everything(run_dir)["model"].values())
    codes = [process.code for process in ended]
    yield Row(
        "NaN on rank 1 alone, in step 6",
        f"exit statuses {codes}, newest checkpoint {'finite' if finite else 'NOT FINITE'}, "
        f"state {status(run_dir)['state']}",
        "3 and 3, finite, failed",
        codes == [3, 3] and finite and status(run_dir)["state"] == "failed",
    )
