"""Saves that are cut short: F1 to F3."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import os
import pickle
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from benchmarks.survival.damage import PAGE
from benchmarks.survival.place import Place, Row, ended_with
from tests.training import test_loop, test_writer
from tests.training.moments import FLAGS
from tests.training.states import equal, everything
from tests.training.trainers import (
    events,
    finish,
    status,
    wait_for,
)
from training.model.optimizer import Updater
from training.run import resume
from training.run.session import Progress, Session
from training.saving import checkpoint

BIG = 3200  # rows and columns of a weight of 41 MB


def f1(place: Place) -> Iterator[Row]:
    """Kill -9 while saving."""
    trials = place.times(200, 20)
    good = lost = 0
    for trial in range(trials):
        said, newest, whole = killed_while_saving(place.new(f"F1/{trial}"), moment(trial, 0.4))
        good += whole and newest >= said
        lost = max(lost, said - newest)
        shutil.rmtree(place.folder / f"F1/{trial}")
    plain = sum(plain_is_lost(place.folder / "plain.pt", moment(trial, 0.4)) for trial in range(trials // 4))
    yield Row(
        f"kill -9 while a state of {BIG * BIG * 4 / 1e6:.0f} MB is saved over and over",
        f"{good} of {trials} resume, at most {max(lost, 0)} steps lost that were said to be saved "
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
        training_model=model,
        updater=Updater(optimizer=optimizer),
    )


def killed_while_saving(run_dir: Path, after_s: float) -> tuple[int, int, bool]:
    """The step reported as saved before the kill, the step loaded after it, and whether it is whole."""
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
    reading, tells = os.pipe()

    def saves() -> None:
        step = 0
        while True:
            step += 1
            torch.save({"model": {"weight": weight.fill_(step)}}, path)
            os.write(tells, b".")

    child = test_writer.in_child(saves)
    os.read(reading, 1)
    time.sleep(after_s)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(reading)
    os.close(tells)
    try:
        torch.load(path, weights_only=True)
    except (RuntimeError, OSError, EOFError, pickle.UnpicklingError):
        return True
    return False


def killed_trainer(place: Place, kills: int) -> tuple[int, bool]:
    """Kill a run `kills` times, then let it end: steps done twice, and whether its state is right."""
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
            f"{calls if fine else calls - 1} of {calls} resume",
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
