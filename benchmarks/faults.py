#!/usr/bin/env python3
"""What the training package does when things go wrong, as figures: one line for each fault F1 to F18.

    python benchmarks/faults.py              # all of them, some 15 minutes on two idle cores
    python benchmarks/faults.py F1 F5        # only these
    python benchmarks/faults.py --quick      # fewer trials, some 4 minutes

The faults are numbered as in tests/training/test_faults.py. Processes are killed, stopped and signalled,
files are damaged and disks are filled for real; nothing needs a GPU, Slurm or the network. Needs the
development tools, torch, and for F3 the right to mount a file system (root, or user namespaces). Latencies
suffer where the machine has other work: its load is printed.

Exit status: 1 where a figure misses its target.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import io
import os
import pickle
import platform
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import textwrap
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DistributedSampler, TensorDataset

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.training import moments, test_cifar, test_exact, test_faults, test_lock, test_loop, test_writer
from tests.training.moments import FLAGS, MOMENTS, NUMBERS, TARGETS, Held
from tests.training.states import Evil, equal, everything
from tests.training.trainers import (
    SCRIPTS_TORCHRUN_2,
    SPAWN_2,
    Ended,
    Here,
    Trainers,
    children,
    events,
    finish,
    status,
    tasks,
    wait_for,
)
from training import digits
from training.config import critical_settings
from training.errors import UserError, one_line
from training.run import loop, resume
from training.run.session import Progress, Session
from training.saving import checkpoint

Weights = dict[str, torch.Tensor]
BIG = 3200  # rows and columns of a weight of 41 MB
PAGE = 4096
IN_NAMESPACE = "FAULTS_IN_NAMESPACE"


@dataclass(frozen=True)
class Row:
    """A line of the table."""

    what: str
    figure: str
    target: str
    passed: bool


@dataclass
class Place:
    """Where the faults happen, and with how many trials."""

    folder: Path
    quick: bool
    trainers: Trainers
    here: Here
    patches: pytest.MonkeyPatch

    def times(self, full: int, quick: int) -> int:
        """How many trials."""
        return quick if self.quick else full

    def new(self, name: str) -> Path:
        """A folder that is not there yet, or an empty one."""
        folder = self.folder / name
        folder.mkdir(parents=True)
        return folder

    @cached_property
    def held(self) -> Held:
        """Trainers that can be met at chosen moments."""
        return Held(self.trainers, self.folder / "held")

    @cached_property
    def finished(self) -> Path:
        """A run of one epoch."""
        ended_with(0, self.here(self.folder / "finished", "--save-every", "4"))
        return self.folder / "finished"


def ended_with(code: int, ended: Ended) -> None:
    """What a figure rests on went as it should.

    Raises:
        RuntimeError: If not.
    """
    if ended.code != code:
        raise RuntimeError(f"exit status {ended.code}, not {code}: {ended.err[-300:]}")


def f1(place: Place) -> Iterator[Row]:
    """Kill -9 while saving."""
    trials = place.times(200, 20)
    good = lost = 0
    for trial in range(trials):
        said, found, whole = killed_while_saving(place.new(f"F1/{trial}"), moment(trial, 0.4))
        good += whole and found >= said
        lost = max(lost, said - found)
        shutil.rmtree(place.folder / f"F1/{trial}")
    plain = sum(plain_is_lost(place.folder / "plain.pt", moment(trial, 0.4)) for trial in range(trials // 4))
    yield Row(
        f"kill -9 while a state of {BIG * BIG * 4 / 1e6:.0f} MB is saved over and over",
        f"{good} of {trials} go on, at most {max(lost, 0)} steps lost that were said to be saved "
        f"(torch.save alone: {plain} of {trials // 4} lost all)",
        "all, 0",
        good == trials,
    )
    kills = place.times(20, 4)
    redone, exact = killed_trainer(place, kills)
    yield Row(
        "kill -9 of a trainer that saves each step",
        f"{kills} kills in one run, {redone} steps done twice, weights {'equal' if exact else 'DIFFER'}",
        "<= 2 a kill, equal",
        exact and redone <= 2 * kills,
    )


def moment(trial: int, most_s: float) -> float:
    """A random time to wait, the same in each run."""
    return random.Random(trial).uniform(0, most_s)  # noqa: S311 - of moments


def big_session(folder: Path) -> Session:
    """A run whose state is one large weight."""
    made = test_loop.session(folder, rank=0, size=1)
    model = nn.Linear(BIG, BIG, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=1)
    return dataclasses.replace(
        made,
        model=model,
        trained=model,
        optimizer=optimizer,
        settings=critical_settings(made.config, batch=1, train_samples=1),
    )


def killed_while_saving(run_dir: Path, after_s: float) -> tuple[int, int, bool]:
    """The step that was said to be saved before the kill, that found after it, and whether it is whole."""
    session = big_session(run_dir)
    session = dataclasses.replace(session, log=dataclasses.replace(session.log, speaks=True))
    (weight,) = session.model.parameters()
    folder = resume.checkpoint_folder(session.config)
    checkpoint.prepare(folder, "auto", print)

    def saves() -> None:
        progress = Progress()
        while True:
            progress.step += 1
            weight.data.fill_(progress.step)
            resume.save(session, progress)

    child = test_writer.in_child(saves)
    wait_for((run_dir / "status.json").exists, "save")
    time.sleep(after_s)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    with contextlib.redirect_stdout(io.StringIO()) as out:
        checkpoint.prepare(folder, "auto", print)
        progress = resume.restore(session)
    whole = bool((weight == progress.step).all()) and "corrupt" not in out.getvalue()
    return status(run_dir)["step"], progress.step, whole


def plain_is_lost(path: Path, after_s: float) -> bool:
    """The same with torch.save and nothing else."""
    path.unlink(missing_ok=True)
    weight = torch.empty(BIG, BIG)
    told, tells = os.pipe()

    def saves() -> None:
        step = 0
        while True:
            step += 1
            torch.save({"model": {"weight": weight.fill_(step)}}, path)
            os.write(tells, b".")

    child = test_writer.in_child(saves)
    os.read(told, 1)
    time.sleep(after_s)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(told)
    os.close(tells)
    try:
        torch.load(path, weights_only=True)
    except (RuntimeError, OSError, EOFError, pickle.UnpicklingError):
        return True
    return False


def killed_trainer(place: Place, kills: int) -> tuple[int, bool]:
    """Kill a run so often, then let it end: the steps done twice, and whether its state is right."""
    held = place.held
    flags = (*FLAGS, "--save-every", "1", "--keep", "2", "--epochs", str(max(2, kills // 2)))
    done = 0
    for life in range(kills + 1):
        notes = held.notes(f"killed-{life}")
        process = place.trainers.start(held.folder / "killed", *flags, env=held.environment(notes))
        if life < kills:
            wait_for((notes / "save-0").exists, "save")
            time.sleep(moment(life, 0.2))
            os.killpg(process.pid, signal.SIGKILL)
        ended = finish(process)
        done += len((notes / "step-0").read_text().splitlines())
    ended_with(0, ended)
    env = held.environment(held.notes("unkilled"))
    whole = place.trainers.run(held.folder / "unkilled", *flags, "--step-delay", "0", env=env)
    ended_with(0, whole)
    exact = equal(everything(held.folder / "killed"), everything(held.folder / "unkilled"))
    return done - status(held.folder / "killed")["step"], exact


def f2(place: Place) -> Iterator[Row]:
    """An end at each call of a save that changes the disk."""
    for links in (True, False):
        folder = place.new(f"F2/{links}")
        calls = 0
        with pytest.MonkeyPatch.context() as patches:
            try:
                test_writer.test_dying_at_each_step_of_a_save(folder, patches, links=links)
                fine = True
            except AssertionError:
                fine = False
        calls = len(list(folder.iterdir())) - 1
        yield Row(
            f"an end at each call of a save, {'with' if links else 'without'} hard links",
            f"{calls if fine else calls - 1} of {calls} go on",
            "all",
            fine,
        )


def f3(place: Place) -> Iterator[Row]:
    """A disk that is full."""
    disk = place.new("F3")
    what = "a full disk below run folder and log, then room again"
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64m", "faults", str(disk)], check=False, capture_output=True
    ).returncode:
        yield Row(what, "not measured: this user can mount nothing", "-", passed=False)
        return
    run_dir, ballast = disk / "run", disk / "ballast"
    flags = ("--step-delay", "0.1", "--save-every", "1", "--sync-every", "1", "--epochs", "4", "--keep", "2")
    with (disk / "log").open("w") as log:
        process = place.trainers.start(run_dir, *flags, output=log)
        wait_for(lambda: len(events(run_dir, "save")) > 4, "saves")
        full_at = status(run_dir)["step"]
        with ballast.open("wb", buffering=0) as file:
            until = time.monotonic() + 1.5
            while time.monotonic() < until:  # also what older checkpoints leave when they make way
                with contextlib.suppress(OSError):
                    file.write(bytes(PAGE))
        intact = checkpoint.find(run_dir / "checkpoints", "auto", print) is not None
        ballast.unlink()
        code = finish(process).code
    saved = {event["step"] for event in events(run_dir, "save")}
    missed = sorted(set(range(1, 33)) - saved)
    end = status(run_dir)
    readable = everything(run_dir)["step"] == 32
    subprocess.run(["umount", str(disk)], check=False)
    yield Row(
        what,
        f"{len(missed)} of 32 saves failed (full from step {full_at} on), exit status {code}, "
        f"{end['state']}, last one {'whole' if readable else 'BROKEN'}",
        "some, 0, done, whole",
        bool(missed) and intact and (code, end["state"], readable) == (0, "done", True),
    )
    with Path("/dev/full").open("w") as log:
        process = place.trainers.start(place.folder / "full-log", "--epochs", "1", output=log)
        code = finish(process).code
    yield Row("a log on a disk that is always full", f"exit status {code}", "0", code == 0)


def damaged(data: bytes, place: int, *, zeroed: bool) -> bytes:
    """A flipped bit at a place, or a page of zeros around it."""
    changed = bytearray(data)
    if zeroed:
        page = place // PAGE * PAGE
        changed[page : page + PAGE] = bytes(len(changed[page : page + PAGE]))
    else:
        changed[place] ^= 1 << place % 8
    return bytes(changed)


def newest(run_dir: Path) -> Path:
    """The newest checkpoint of a run."""
    found: str = status(run_dir)["checkpoint"]
    return run_dir / found


def f4(place: Place) -> Iterator[Row]:
    """A truncated newest checkpoint."""
    shares = (0, 0.1, 0.5, 0.9, 0.999)
    passed_over = 0
    for share in shares:
        run_dir = place.folder / f"F4/{share}"
        shutil.copytree(place.finished, run_dir)
        path = newest(run_dir)
        os.truncate(path, int(path.stat().st_size * share))
        ended = place.here(run_dir)
        aside = path.with_name(f"{path.name}.corrupt").exists()
        passed_over += ended.code == 0 and aside and "Resuming from checkpoints/step-00000004.pt" in ended.out
    yield Row(
        "the newest checkpoint cut to 0, 10, 50, 90, 99.9 %",
        f"{passed_over} of 5 go on from the one before",
        "all",
        passed_over == len(shares),
    )


def f5(place: Place) -> Iterator[Row]:
    """Flipped bits and zeroed pages."""
    data = newest(place.finished).read_bytes()
    sound = everything(place.finished)
    folder = place.new("F5")
    path = folder / "step-00000008.pt"
    places = torch.randint(len(data), (100,), generator=torch.Generator().manual_seed(1)).tolist()
    for zeroed in (False, True):
        wrong = unseen = changed = 0
        for spot in places:
            bad = damaged(data, spot, zeroed=zeroed)
            changed += bad != data
            loaded = None
            with contextlib.suppress(Exception):  # torch.load raises many kinds
                loaded = torch.load(io.BytesIO(bad), weights_only=True)
            unseen += loaded is not None and not equal(loaded, sound)
            path.write_bytes(bad)
            with contextlib.suppress(UserError):  # all checkpoints are corrupt
                checkpoint.find(folder, "auto", lambda _line: None)
                wrong += loaded is None or not equal(loaded, sound)
        yield Row(
            f"{'a zeroed page' if zeroed else 'a flipped bit'} in {len(data) / 1e6:.0f} MB, 100 places",
            f"{wrong} of {changed} loaded (torch.load alone: {unseen} of {changed})",
            "0",
            wrong == 0 and changed > 90,
        )


def f6(place: Place) -> Iterator[Row]:
    """No good checkpoint at all."""
    run_dir = place.folder / "F6"
    shutil.copytree(place.finished, run_dir)
    for path in (run_dir / "checkpoints").glob("step-*"):
        os.truncate(path, 1000)
    starts = [place.here(run_dir) for _ in range(2)]
    refused = sum(one_line_failure(ended) and "all checkpoints are corrupt" in ended.err for ended in starts)
    yield Row(
        "all checkpoints corrupt, two starts", f"{refused} of 2 refused in one line", "all", refused == 2
    )


def one_line_failure(ended: Ended) -> bool:
    """Whether it ended with status 1 and one line that says why."""
    return ended.code == 1 and ended.err.startswith("error: ") and ended.err.count("\n") == 1


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
        processes = started(place, launcher, run_dir, flags, held.environment(notes))
        wait_for((notes / "save-0").exists, "save")
        ranks = [one.pid for one in processes] if launcher == "srun" else children(processes[0])
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


def started(
    place: Place, launcher: str, run_dir: Path, flags: tuple[str, ...], env: dict[str, str]
) -> list[subprocess.Popen[str]]:
    """Two ranks under one of the launchers."""
    if launcher == "srun":
        return tasks(place.trainers, (run_dir, run_dir), *flags, env=env)
    if launcher == "spawn":
        return [place.trainers.start(run_dir, *flags, *SPAWN_2, env=env)]
    return [place.trainers.start(run_dir, *flags, launcher=SCRIPTS_TORCHRUN_2, env=env)]


def f10(place: Place) -> Iterator[Row]:
    """A rank that hangs."""
    held, notes = place.held, place.held.notes("hung")
    flags = (*FLAGS, "--epochs", "50", "--dist-timeout", "5")
    (process,) = started(place, "spawn", held.folder / "hung", flags, held.environment(notes))
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


def f11(place: Place) -> Iterator[Row]:
    """Other numbers of processes and loaders on the way."""
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
            env = held.environment(notes, **({} if ends else {"SIGNAL_AT": "3"}))
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


READ = ("--dataset", "moments_own:read")


def f12(place: Place) -> Iterator[Row]:
    """A stop at each step, in validation too."""
    own = place.new("F12/own")
    (own / "exact_own.py").write_text(textwrap.dedent(test_exact.OWN))
    sys.path.insert(0, str(own))
    test_cifar.write(own / "cifar", binary=True)
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
        f"{good} of {total} go on with equal losses and end with equal state, bit by bit",
        "all",
        good == total > 0,
    )


def f13(place: Place) -> Iterator[Row]:
    """Not a number, on one rank."""
    own = place.new("F13")
    (own / "breaks.py").write_text(textwrap.dedent(test_faults.OWN))
    run_dir = own / "run"
    flags = ("--model", "breaks:model", "--save-every", "2", "--sync-every", "4", "--epochs", "1")
    ended = [
        finish(one) for one in tasks(place.trainers, (run_dir, run_dir), *flags, env={"PYTHONPATH": str(own)})
    ]
    finite = all(weight.isfinite().all() for weight in everything(run_dir)["model"].values())
    codes = [one.code for one in ended]
    yield Row(
        "NaN on rank 1 alone, in step 6",
        f"exit statuses {codes}, newest checkpoint {'finite' if finite else 'NOT FINITE'}, "
        f"state {status(run_dir)['state']}",
        "3 and 3, finite, failed",
        codes == [3, 3] and finite and status(run_dir)["state"] == "failed",
    )


def f14(place: Place) -> Iterator[Row]:
    """An evaluation that cannot be shared evenly."""
    place.patches.setattr(loop, "EVALUATION_BATCH", 4)
    right = evaluated(place.new("F14/1"), 1)
    worst, padded, equal_counts = 0.0, 0.0, 0
    for size in (1, 2, 3):
        found = evaluated(place.new(f"F14/of-{size}"), size)
        for samples, score in found.items():
            equal_counts += score[1:] == (right[samples][1], samples)
            worst = max(worst, abs(score[0] - right[samples][0]))
            padded = max(padded, padding_error(place.folder, samples, size))
    yield Row(
        "evaluation of 1 to 33 images, batches of 4, on 1, 2 and 3 processes",
        f"accuracy and count equal in {equal_counts} of 99, loss within {worst:.0e} "
        f"(with a DistributedSampler accuracy is off by up to {100 * padded:.0f} points)",
        "all, 1e-12",
        equal_counts == 99 and worst <= 1e-12,
    )


def evaluated(folder: Path, size: int) -> dict[int, tuple[float, float, int]]:
    """The score by number of images: loss, accuracy, images."""

    def rank_of(rank: int) -> None:
        dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=size)
        for samples in range(1, 34):
            score = loop.evaluate(test_loop.session(folder, rank=rank, size=size, samples=samples))
            if rank == 0:
                line = f"{samples} {score.loss!r} {score.accuracy!r} {score.samples}\n"
                with (folder / "scores").open("a") as file:
                    file.write(line)

    ranks = [test_writer.in_child(partial(rank_of, rank)) for rank in range(size)]
    codes = [test_writer.ended(child) for child in ranks]
    if any(codes):
        raise RuntimeError(f"a rank of {size} failed")
    lines = [line.split() for line in (folder / "scores").read_text().splitlines()]
    return {
        int(samples): (float(loss), float(accuracy), int(count)) for samples, loss, accuracy, count in lines
    }


def padding_error(folder: Path, samples: int, size: int) -> float:
    """How far off the accuracy is if a DistributedSampler shares the images."""
    made = test_loop.session(folder, rank=0, size=1, samples=samples)
    images, labels = test_loop.batch(made, torch.arange(samples))
    correct = (made.model(images).argmax(dim=1) == labels).double()
    dataset = TensorDataset(labels)
    shares: list[list[int]] = [
        list(DistributedSampler(dataset, size, rank, shuffle=False)) for rank in range(size)
    ]
    counted = correct[[index for share in shares for index in share]]
    return abs(float(counted.mean() - correct.mean()))


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
        f"{refused} of 5 refused in one line, the first {'goes on' if lives else 'ENDED'}, "
        f"then {'taken over' if after.code == 0 else 'NOT taken over'}",
        "all, goes on, taken over",
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


def f16(place: Place) -> Iterator[Row]:
    """Code in a checkpoint."""
    ran = place.folder / "F16-ran"
    place.patches.setenv("EVIL", str(ran))
    state = everything(place.finished)
    cases = refused = 0
    for kind in ("a value", "a weight", "old format", "bare pickle"):
        evil = state | ({"model": {"w": Evil()}} if kind == "a weight" else {"step": Evil()})
        buffer = io.BytesIO()
        if kind == "bare pickle":
            pickle.dump(evil, buffer)
        else:
            torch.save(evil, buffer, _use_new_zipfile_serialization=kind != "old format")
        for flags in (
            (),
            ("--resume", "{}"),
            ("--evaluate", "--resume", "{}"),
            ("--init-from", "{}", "--resume", "off"),
        ):
            run_dir = place.folder / f"F16/{cases}"
            path = run_dir / "checkpoints" / "step-00000009.pt"
            path.parent.mkdir(parents=True)
            path.write_bytes(buffer.getvalue())
            if "--init-from" in flags:
                path = path.replace(run_dir / "weights.pt")
            ended = place.here(run_dir, *(flag.format(path) for flag in flags))
            cases += 1
            refused += one_line_failure(ended) and not ran.exists()
    yield Row(
        "a pickle that runs code: in 4 kinds of files, on 4 ways in",
        f"{refused} of {cases} refused in one line, code {'RAN' if ran.exists() else 'not run'}",
        "all, not run",
        refused == cases and not ran.exists(),
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
        env = held.environment(notes, **({"SIGNAL_AT": "2"} if lives < stops else {}))
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


FAULTS: dict[str, Callable[[Place], Iterator[Row]]] = {
    f"F{number}": made
    for number, made in enumerate(
        (f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12, f13, f14, f15, f16, f17, f18), start=1
    )
}
WAITING = ("F7", "F10")  # these mostly sleep: they do so beside the others


def main() -> int:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description="fault tests of the training package, as figures")
    parser.add_argument("faults", nargs="*", metavar="F1", help="which ones (default: all)")
    parser.add_argument("--quick", action="store_true", help="fewer trials")
    args = parser.parse_args()
    unknown = sorted(set(args.faults) - FAULTS.keys())
    if unknown:
        parser.error(f"no fault {', '.join(unknown)}: there are F1 to F18")
    own_namespace()
    warnings.filterwarnings("ignore", message="Failed to initialize NumPy")
    torch.set_num_threads(1)
    began = time.monotonic()
    print(machine(), flush=True)
    missed = 0
    with (
        tempfile.TemporaryDirectory(prefix="faults-") as name,
        pytest.MonkeyPatch.context() as patches,
        ThreadPoolExecutor() as pool,
    ):
        place = prepared(Path(name), patches, quick=args.quick)
        chosen = [fault for fault in FAULTS if not args.faults or fault in args.faults]
        beside = {fault: pool.submit(rows, fault, place) for fault in chosen if fault in WAITING}
        for fault in chosen:
            for row in beside[fault].result() if fault in beside else rows(fault, place):
                missed += not row.passed
                print(f"{fault:4} {'PASS' if row.passed else 'MISS'}  {row.what}")
                print(f"{'':11}{row.figure} (target: {row.target})", flush=True)
        place.trainers.end()
    print(f"{missed} missed, {time.monotonic() - began:.0f} s; {machine()}")
    return 1 if missed else 0


def rows(fault: str, place: Place) -> list[Row]:
    """The lines of a fault; one that says so where it could not be measured."""
    found: list[Row] = []
    try:
        for row in FAULTS[fault](place):
            found.append(row)  # noqa: PERF402 - what there was before an error counts
    except Exception as error:  # noqa: BLE001 - the other faults are measured all the same
        found.append(Row("not measured", one_line(error), "-", passed=False))
    return found


def prepared(folder: Path, patches: pytest.MonkeyPatch, *, quick: bool) -> Place:
    """Small data, and trainers that nothing of this process's launcher reaches."""
    digits.write(folder / "digits", train=250, test=101, seed=3)
    for name in [name for name in os.environ if name.startswith("SLURM")]:
        patches.delenv(name)
    patches.setenv("OMP_NUM_THREADS", "1")
    return Place(
        folder=folder,
        quick=quick,
        trainers=Trainers(folder / "digits"),
        here=Here(folder / "digits"),
        patches=patches,
    )


def own_namespace() -> None:
    """Start anew where mounts are this process's alone, and where it may make them, if it can be had."""
    command = ["unshare", "--mount", *(() if os.geteuid() == 0 else ("--map-root-user",))]
    if IN_NAMESPACE in os.environ or not shutil.which("unshare"):
        return
    if subprocess.run([*command, "true"], check=False, capture_output=True).returncode == 0:
        os.execvpe(  # noqa: S606
            command[0], [*command, sys.executable, *sys.argv], os.environ | {IN_NAMESPACE: "1"}
        )


def machine() -> str:
    """What the figures were measured on."""
    load = os.getloadavg()[0]
    python = platform.python_version()
    return f"{os.cpu_count()} cores, load {load:.1f}; Python {python}, torch {torch.__version__}"


if __name__ == "__main__":
    sys.exit(main())
