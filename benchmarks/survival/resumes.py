"""Runs that resume after a stop, in other processes or again and again: F11, F12, F17."""

from __future__ import annotations

import sys
import textwrap
import time
from collections import Counter
from collections.abc import Iterator

import pytest

from benchmarks.survival.place import Place, Row, ended_with
from tests.training import moments, test_cifar, test_exact
from tests.training.moments import FLAGS
from tests.training.states import equal, everything
from tests.training.trainers import (
    SPAWN_2,
    events,
    status,
)

READ = ("--dataset", "moments_own:read")
NO_SCRIPT = {"SBATCHGEN_EXIT_FILE": ""}  # which reads the exit status: a stopped trainer exits with 75


def f11(place: Place) -> Iterator[Row]:
    """Other numbers of processes and loaders in between."""
    held = place.held
    flags = (*FLAGS, "--model", "moments_own:plain", "--epochs", "1", "--ema", "0")
    alone = place.trainers.run(held.folder / "alone", *flags, env=held.environment(held.notes("alone")))
    ended_with(0, alone)
    (right,) = events(held.folder / "alone", "epoch")
    plans: dict[str, list[tuple[int, tuple[str, ...]]]] = {
        "1, 2, 1 processes": [(1, ()), (2, ()), (1, ())],
        "2, 4 processes": [(2, ()), (4, ())],
        "2 processes; 0, 2 loaders": [(2, (*READ, "--workers", "0")), (2, (*READ, "--workers", "2"))],
    }
    for name, plan in plans.items():
        run_dir, samples = held.folder / name, Counter[int]()
        for life, (size, more) in enumerate(plan):
            notes = held.notes(f"{name}-{life}")
            ends = life == len(plan) - 1
            env = held.environment(notes, **NO_SCRIPT, **({} if ends else {"SIGNAL_AT": "3"}))
            many = ("--launcher", "spawn", "--nproc-per-node", str(size)) if size > 1 else ()
            change = ("--allow-config-change",) if more and not life else ()
            ended = place.trainers.run(run_dir, *flags, *more, *many, *change, env=env)
            ended_with(0 if ends else 75, ended)
            samples.update(sample for step in moments.seen(notes) for sample in step)
        once = sum(samples[sample] == 1 for sample in range(moments.SAMPLES))
        (epoch,) = events(run_dir, "epoch")
        off = max(abs(epoch[kind] - right[kind]) for kind in ("loss", "train_loss"))
        yield Row(
            name,
            f"{once} of {moments.SAMPLES} samples exactly once, losses differ by {off:.0e}",
            "all, <= 1e-05",
            once == moments.SAMPLES and off <= 1e-5,
        )


def f12(place: Place) -> Iterator[Row]:
    """A stop at each step, in validation too."""
    own = place.new("F12/own")
    (own / "exact_own.py").write_text(textwrap.dedent(test_exact.OWN))
    sys.path.insert(0, str(own))
    test_cifar.write(own / "cifar")
    cifar = ("--dataset", "cifar10", "--data-dir", str(own / "cifar"), "--batch-size", "16")
    cases = {" ".join(flags): (*test_exact.OURS, *flags) for flags in test_exact.EACH} | {
        "cifar10, moved and mirrored": cifar
    }
    total = good = 0
    with pytest.MonkeyPatch.context() as patches:
        ask = test_exact.asking(patches)
        chosen = list(cases.values())[: place.times(99, 2)]
        for number, flags in enumerate(chosen):
            stops = list(test_exact.each_stop(place.here, ask, place.new(f"F12/{number}"), *flags))
            total += len(stops)
            good += sum(exact for *_, exact in stops)
    yield Row(
        f"a stop at each step of two epochs and in validation, {len(chosen)} kinds of runs "
        "(fp16, bf16, EMA, accumulation, clipping, augmentation)",
        f"{good} of {total} resume with equal losses and end with equal state, bit by bit",
        "all",
        good == total > 0,
    )


def f17(place: Place) -> Iterator[Row]:
    """Stopped again and again."""
    held, stops = place.held, place.times(20, 4)
    flags = (*FLAGS, "--epochs", str(stops // 4 + 1), *SPAWN_2)
    began = time.monotonic()
    whole = place.trainers.run(held.folder / "calm", *flags, env=held.environment(held.notes("calm")))
    calm_s = time.monotonic() - began
    ended_with(0, whole)
    began, lives, done, code = time.monotonic(), 0, 0, 75
    while code == 75 and lives <= 2 * stops:
        notes = held.notes(f"storm-{lives}")
        env = held.environment(notes, **NO_SCRIPT, **({"SIGNAL_AT": "2"} if lives < stops else {}))
        code = place.trainers.run(held.folder / "storm", *flags, env=env).code
        done += len((notes / "step-0").read_text().splitlines())
        lives += 1
    each_s = (time.monotonic() - began - calm_s) / max(lives - 1, 1)
    exact = equal(everything(held.folder / "storm"), everything(held.folder / "calm"))
    redone = done - status(held.folder / "storm")["step"]
    yield Row(
        f"{stops} preemptions in one run of two ranks",
        f"{lives - 1} stops, {redone} steps done twice, state {'equal, bit by bit' if exact else 'DIFFERS'}; "
        f"overhead {each_s:.1f} s each, {each_s / 36:.2f} % of lives of an hour",
        f"{stops}, 0, equal",
        (code, lives - 1, redone, exact) == (0, stops, 0, True),
    )
