"""Trainers that wait at a chosen moment for a signal, so that each moment is met every time.

The module MODULE is the data set and the model of the run. It holds a process where HOLD_AT says, until the file
`go` is there, and notes what it trained on; the trainer itself knows nothing of it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import textwrap
import time
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from .forks import QUICKLY
from .states import equal
from .trainers import (
    SCRIPTS_TORCHRUN_2,
    SPAWN_2,
    Trainers,
    children,
    finish,
    status,
    tasks,
    wait_for,
)

MODULE = """
    import os
    import signal
    import time
    from pathlib import Path

    import torch
    from torch import nn

    from training.saving import checkpoint
    from training.run import loop
    from training.saving import writer

    NOTES = Path(os.environ["NOTES_DIR"])
    HOLD_AT = os.environ.get("HOLD_AT", "")
    SIGNAL_AT = int(os.environ.get("SIGNAL_AT", "-9"))  # the step of this life in which it stops itself
    RANK = os.environ.get("RANK", os.environ.get("SLURM_PROCID", "0"))
    SIZE = int(os.environ.get("WORLD_SIZE", os.environ.get("SLURM_NTASKS", "1")))
    SAMPLES, VALIDATION = 250, 1100
    WARM_UP = 2 if SIZE > 1 else 0  # steps before the first one, which are undone

    # Each signal that arrives is a byte in this file
    arrived = os.open(NOTES / f"signals-{RANK}", os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK)
    signal.set_wakeup_fd(arrived, warn_on_full_buffer=False)


    def hold(moment):
        global HOLD_AT
        if moment == HOLD_AT:
            HOLD_AT = ""
            (NOTES / f"held-{RANK}").touch()
            give_up = time.monotonic() + 600
            while not (NOTES / "go").exists() and time.monotonic() < give_up:
                time.sleep(0.01)


    def note(kind, text):
        with (NOTES / f"{kind}-{RANK}").open("a") as file:
            file.write(f"{text}\\n")


    def numbered(count):
        numbers = torch.arange(count)
        images = torch.randint(256, (count, 1, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
        images[:, 0, 0, 0], images[:, 0, 0, 1] = numbers // 256, numbers % 256  # each shows its number
        return images, numbers % 2


    class Read(torch.utils.data.Dataset):
        classes = ("even", "odd")

        def __init__(self, count):
            self.images, self.labels = numbered(count)

        def __len__(self):
            return len(self.labels)

        def __getitem__(self, index):
            return self.images[index], int(self.labels[index])


    def data(config):
        hold("start-up")
        return numbered(SAMPLES), numbered(VALIDATION)


    def read(config):
        return Read(SAMPLES), Read(VALIDATION)


    class Held(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner
            self.steps = -WARM_UP

        def forward(self, x):
            if self.training and not torch.is_grad_enabled():
                return self.inner(x)  # the trial before the first step
            if self.training:
                self.steps += 1
                if self.steps > 0:
                    shown = (x[:, 0, 0, :2] * 255).round().int()
                    note("step", f"{time.time()} {(shown[:, 0] * 256 + shown[:, 1]).tolist()}")
                if self.steps == SIGNAL_AT and RANK == "0":
                    os.kill(os.getpid(), signal.SIGTERM)
                if self.steps == 2 and RANK == "0":
                    hold("step")
            elif RANK == "0":
                hold("validation")
            return self.inner(x)


    def model(config):
        return Held(nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.3), nn.Flatten(), nn.Linear(144, 2)
        ))


    def plain(config):
        return Held(nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Tanh(), nn.Linear(8, 2)))


    written = checkpoint.save

    def save(*args, **how):
        began = time.time()
        last = how["step"] == int(os.environ.get("LAST_STEP", "0")) and not args[1]  # its other names
        hold("last save" if last else "save")
        size = written(*args, **how)
        note("save", time.time() - began)
        return size

    checkpoint.save = save


    def timed(owner, name, kind):
        call = getattr(owner, name)

        def wrapped(*args, **how):
            began = time.time()
            result = call(*args, **how)
            note(kind, time.time() - began)
            return result

        setattr(owner, name, wrapped)


    timed(loop, "save", "stall")  # what the training waits for
    timed(writer.Copies, "take", "copy")  # of that, what it takes to copy the state
"""
# Loaded by Python at its start: calls on files below SLOW_DIR take long, and rank 1 sees nothing there.
SLOW_DISK = """
    import builtins
    import errno
    import functools
    import io
    import os
    import random
    import time

    PLACE = os.environ.get("SLOW_DIR")
    LEAST, MOST = (float(text) for text in os.environ.get("SLOW_S", "0 0").split())
    RANK = os.environ.get("RANK", os.environ.get("SLURM_PROCID", "0"))


    def slow(module, name):
        call = getattr(module, name)

        @functools.wraps(call)
        def wrapped(file, *args, **how):
            path = file
            if isinstance(file, int):
                path = os.readlink(f"/proc/self/fd/{file}") if name == "fsync" else ""
            if os.fsdecode(path).startswith(PLACE):
                if RANK != "0":
                    raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), path)
                time.sleep(random.uniform(LEAST, MOST))
            return call(file, *args, **how)

        setattr(module, name, wrapped)


    if PLACE:
        for name in ("open", "fsync", "replace", "rename", "link", "listdir", "scandir"):
            slow(os, name)
        slow(io, "open")
        builtins.open = io.open
"""
SAMPLES, STEPS, EPOCHS = 250, 8, 2  # images and steps of an epoch, epochs
LAST = STEPS * EPOCHS
SYNC_EVERY = 2
DELAY_S = 0.05
FLAGS = (
    "--model moments_own:model --dataset moments_own:data --optimizer adamw --ema 0.9 "
    f"--sync-every {SYNC_EVERY} --save-every 3 --step-delay {DELAY_S} --epochs {EPOCHS} --keep 99"
).split()

NUMBERS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT)
MOMENTS = ("start-up", "step", "save", "validation", "last save")
TARGETS = {  # by launcher
    "torchrun": ("agent", "one rank", "all", "all, twice"),
    "spawn": ("parent", "one rank", "all", "all, twice"),
    "srun": ("one rank", "all", "all, twice"),
}


@dataclass(frozen=True)
class Stopped:
    """One life of a run that was signalled in it."""

    launcher: str
    number: signal.Signals
    target: str
    moment: str
    codes: list[int]
    state: dict[str, Any]
    latency_s: float  # from the signal to the state in status.json
    problems: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Which one of the matrix."""
        return f"{self.launcher}: {self.number.name} to {self.target} at {self.moment}"


@dataclass
class Held:
    """Runs of two processes that are stopped again and again, each time at another moment."""

    trainers: Trainers
    folder: Path
    longest_step_s: float = 0.0
    longest_save_s: float = 0.0

    def __post_init__(self) -> None:
        """Write what the trainers import."""
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "moments_own.py").write_text(textwrap.dedent(MODULE))
        started = (QUICKLY / "sitecustomize.py").read_text()
        (self.folder / "sitecustomize.py").write_text(f"{started}\n{textwrap.dedent(SLOW_DISK)}")

    @cached_property
    def whole(self) -> Path:
        """An uninterrupted run with a checkpoint of each step, to compare with."""
        run_dir, notes = self.folder / "whole", self.notes("whole")
        environment = self.environment(notes)
        ended = self.trainers.run_ranks(2, run_dir, *FLAGS, "--save-every", "1", env=environment)
        assert ended.code == 0, ended
        times = [float(line.split()[0]) for line in (notes / "step-0").read_text().splitlines()]
        self.longest_step_s = max(later - earlier for earlier, later in pairwise(times))
        self.longest_save_s = max(noted(notes, "save"))
        return run_dir

    def notes(self, name: str) -> Path:
        """A new folder for what a life notes."""
        folder = self.folder / "notes" / name
        folder.mkdir(parents=True)
        return folder

    def environment(self, notes: Path, **more: str) -> dict[str, str]:
        """What the module of the run looks at, and where a script would read the exit status."""
        own = {"PYTHONPATH": str(self.folder), "NOTES_DIR": str(notes), "LAST_STEP": str(LAST)}
        return own | {"SBATCHGEN_EXIT_FILE": str(notes / "exit")} | more

    @property
    def bound_s(self) -> float:
        """The longest that a stop may take: the steps until all agree, and a save, which may follow another."""
        return SYNC_EVERY * self.longest_step_s + 2 * self.longest_save_s

    def lives(self, name: str, launcher: str, plan: list[tuple[signal.Signals, str, str]]) -> list[Stopped]:
        """One run, signalled as planned in each of its lives; the last one ends it."""
        run_dir = self.folder / name
        reached = []
        for life, (number, target, moment) in enumerate(plan):
            before = status(run_dir)["step"] if life else 0
            notes = self.notes(f"{name}-{life}")
            env = self.environment(notes, HOLD_AT=moment)
            processes = started(self.trainers, launcher, run_dir, *FLAGS, env=env)
            held = [notes / f"held-{rank}" for rank in ("01" if moment == "start-up" else "0")]
            wait_for(partial(_all_there, held), f"{moment} of {name}")
            ranks = _ranks(launcher, processes)
            asked = time.time()
            for again in range(1 + target.endswith("twice")):
                time.sleep(0.05 * again)
                for pid in _pids(target, processes, ranks):
                    os.kill(pid, number)
            if target in {"agent", "parent"}:  # which has to pass it on
                wait_for(partial(_all_heard, notes), f"signal in {name}")
            (notes / "go").touch()
            ended = [finish(process) for process in processes]
            state = status(run_dir)
            stopped = Stopped(
                launcher,
                number,
                target,
                moment,
                [process.code for process in ended],
                state,
                state["time"] - asked,
            )
            stopped.problems.extend(self._problems(stopped, run_dir, notes, before))
            if stopped.problems:
                stopped.problems.append(" | ".join(process.err[-300:] for process in ended))
            reached.append(stopped)
        return reached

    def _problems(self, stopped: Stopped, run_dir: Path, notes: Path, before: int) -> list[str]:
        """What is not as it should be."""
        ends, state = stopped.moment == "last save", stopped.state
        # An agent that was signalled itself ends with 1, whatever its processes end with.
        code = int(stopped.launcher == "torchrun" and stopped.target != "one rank")
        left = (notes / "exit").read_text() if (notes / "exit").exists() else ""
        wanted: list[tuple[str, str | None]] = (
            [("done", None)] if ends else [("preempted", stopped.number.name)]
        )
        if (stopped.launcher, stopped.target, ends) == ("torchrun", "all, twice", False):
            wanted.append(("preempted", "SIGTERM"))  # what an agent sends that was interrupted while it waits
        saved = torch.load(run_dir / state["checkpoint"], weights_only=True)
        whole = (
            torch.load(self.whole / "checkpoints" / f"step-{saved['step']:08}.pt", weights_only=True)
            if saved["step"]
            else None
        )
        steps = {
            len((notes / f"step-{rank}").read_text().splitlines()) if (notes / f"step-{rank}").exists() else 0
            for rank in "01"
        }
        checks = {
            f"exit status {stopped.codes}": set(stopped.codes) == {code},
            f"exit status {left!r} left for the script": left == ("" if ends else "75\n"),
            f"state {state}": (state["state"], state["reason"]) in wanted,
            f"steps of the ranks {steps}, {before} before": steps == {state["step"] - before},
            f"checkpoint of step {saved['step']}, state of {state['step']}": saved["step"] == state["step"],
            "the weights are others": whole is None
            or all(equal(saved[part], whole[part]) for part in ("model", "optimizer", "ema")),
        }
        return [text for text, fine in checks.items() if not fine]


def started(
    trainers: Trainers, launcher: str, run_dir: Path, *flags: str, env: dict[str, str]
) -> list[subprocess.Popen[str]]:
    """Two ranks under one of the launchers."""
    if launcher == "srun":
        return tasks(trainers, (run_dir, run_dir), *flags, env=env)
    if launcher == "spawn":
        return [trainers.start(run_dir, *flags, *SPAWN_2, env=env)]
    return [trainers.start(run_dir, *flags, launcher=SCRIPTS_TORCHRUN_2, env=env)]


def noted(notes: Path, kind: str) -> list[float]:
    """The seconds that rank 0 noted."""
    return [float(line) for line in (notes / f"{kind}-0").read_text().splitlines()]


def seen(notes: Path) -> list[list[int]]:
    """The samples of each step of a life, over all ranks."""
    ranks = [path.read_text().splitlines() for path in sorted(notes.glob("step-*"))]
    return [
        [sample for line in lines for sample in json.loads(line.partition(" ")[2])]
        for lines in zip(*ranks, strict=True)
    ]


def _all_there(files: list[Path]) -> bool:
    return all(file.exists() for file in files)


def _all_heard(notes: Path) -> bool:
    return all((notes / f"signals-{rank}").stat().st_size for rank in "01")


def _ranks(launcher: str, processes: list[subprocess.Popen[str]]) -> list[int]:
    """The processes that train, by rank."""
    if launcher == "srun":
        return [process.pid for process in processes]
    environments = {pid: Path(f"/proc/{pid}/environ").read_bytes() for pid in children(processes[0])}
    return [
        pid for rank in (0, 1) for pid, text in environments.items() if f"\0RANK={rank}\0".encode() in text
    ]


def _pids(target: str, processes: list[subprocess.Popen[str]], ranks: list[int]) -> list[int]:
    """Whom to signal."""
    if target in {"agent", "parent"}:
        return [processes[0].pid]
    return [ranks[1]] if target == "one rank" else sorted({processes[0].pid, *ranks})
