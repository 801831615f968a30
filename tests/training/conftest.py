"""Small synthetic digits, and real processes of the trainer that end with the test."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import pytest

from training import digits
from training.command import main
from training.processes.stop import SIGNALS

ROOT = Path(__file__).parents[2]
LAUNCHER_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
TORCHRUN_2 = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "training")
SCRIPTS_TORCHRUN_2 = (
    str(ROOT / "training" / "torchrun.py"),
    "--nproc-per-node=2",
    "--",
    str(ROOT / "training"),
)
ALONE = ("-m", "training")


@dataclass
class Trainers:
    """Starts trainers from the checkout root, each in a process group of its own."""

    data_dir: Path
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    def start(
        self,
        run_dir: Path,
        *flags: str,
        launcher: tuple[str, ...] = ALONE,
        env: dict[str, str] | None = None,
        output: IO[str] | None = None,
    ) -> subprocess.Popen[str]:
        """A running trainer on the small digits, one thread a process; what it says is kept, or in `output`."""
        clean = {
            k: v for k, v in os.environ.items() if k not in LAUNCHER_VARIABLES and not k.startswith("SLURM")
        }
        common = (
            "--data-dir",
            str(self.data_dir),
            "--run-dir",
            str(run_dir),
            "--device",
            "cpu",
            "--batch-size",
            "32",
        )
        process = subprocess.Popen(
            [sys.executable, *launcher, *common, *flags],
            cwd=ROOT,
            env=clean | {"OMP_NUM_THREADS": "1"} | (env or {}),
            stdout=output or subprocess.PIPE,
            stderr=output or subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.started.append(process)
        return process

    def run(
        self, run_dir: Path, *flags: str, launcher: tuple[str, ...] = ALONE, env: dict[str, str] | None = None
    ) -> Ended:
        """The same, waited for."""
        return finish(self.start(run_dir, *flags, launcher=launcher, env=env))

    def end(self) -> None:
        """Kill what still runs, and what it started: torchrun gives each of its processes a session."""
        for process in self.started:
            listed = Path(f"/proc/{process.pid}/task/{process.pid}/children")
            below = listed.read_text().split() if process.poll() is None else []
            for pid in (process.pid, *map(int, below)):
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)
            process.communicate()


class Here:
    """The trainer inside the test's own process: saves the time of the imports."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir

    def __call__(self, run_dir: Path, *flags: str) -> Ended:
        """Run it on the small digits."""
        common = [
            "--data-dir",
            str(self.data_dir),
            "--run-dir",
            str(run_dir),
            "--device",
            "cpu",
            "--batch-size",
            "32",
        ]
        with (
            contextlib.redirect_stdout(io.StringIO()) as out,
            contextlib.redirect_stderr(io.StringIO()) as err,
        ):
            code = main([*common, "--epochs", "1", *flags])
        return Ended(code, out.getvalue(), err.getvalue())


@pytest.fixture
def here(small_digits: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Here]:
    """A trainer in this process, whose signal handlers do not outlive the test."""
    for name in (*LAUNCHER_VARIABLES, *(name for name in os.environ if name.startswith("SLURM"))):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield Here(small_digits)
    for number, handler in before.items():
        signal.signal(number, handler)


@dataclass
class Ended:
    """What is left of a process."""

    code: int
    out: str
    err: str


def finish(process: subprocess.Popen[str], timeout_s: float = 90) -> Ended:
    """Wait for a trainer."""
    out, err = process.communicate(timeout=timeout_s)
    return Ended(process.returncode, out, err)


def wait_for(condition: Callable[[], Any], what: str, timeout_s: float = 60) -> None:
    """Poll until the condition holds."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"no {what} in {timeout_s} s"
        time.sleep(0.03)


def all_events(run_dir: Path) -> list[dict[str, Any]]:
    """The events so far."""
    path = run_dir / "events.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [json.loads(line) for line in lines]


def events(run_dir: Path, kind: str) -> list[dict[str, Any]]:
    """The events of one kind so far."""
    return [event for event in all_events(run_dir) if event["event"] == kind]


def status(run_dir: Path) -> dict[str, Any]:
    """What status.json says."""
    found: dict[str, Any] = json.loads((run_dir / "status.json").read_text())
    return found


@pytest.fixture(scope="session")
def small_digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """250 training images: 8 steps of 32, the last one short; and 101 test images."""
    folder = tmp_path_factory.mktemp("digits")
    digits.write(folder, train=250, test=101, seed=3)
    return folder


@pytest.fixture
def trainers(small_digits: Path) -> Iterator[Trainers]:
    """Trainers whose processes, and their children, end with the test."""
    made = Trainers(small_digits)
    yield made
    made.end()
