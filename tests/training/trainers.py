"""Trainers in processes of their own or in the test's, and what they leave in the run folder."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from training.command import main

from .forks import QUICKLY, Fork

ROOT = Path(__file__).parents[2]
HANGS_S = 600.0  # nothing takes so long, whatever else the machine does
LAUNCHER_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
TORCHRUN_2 = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "training")
SCRIPTS_TORCHRUN_2 = (
    str(ROOT / "training" / "torchrun.py"),
    "--nproc-per-node=2",
    "--",
    str(ROOT / "training"),
)
ALONE = ("-m", "training")
SLOW = ("--step-delay", "0.2", "--sync-every", "2", "--log-every", "1")
SPAWN_2 = ("--launcher", "spawn", "--nproc-per-node", "2")


def without_launcher() -> dict[str, str]:
    """The environment of this process, without the variables of a launcher or of Slurm."""
    return {
        name: value
        for name, value in os.environ.items()
        if name not in LAUNCHER_VARIABLES and "SLURM" not in name
    }


def quickly(env: dict[str, str]) -> dict[str, str]:
    """The same environment, in which torch starts without its compiler; a sitecustomize of `env` comes first."""
    return env | {"PYTHONPATH": ":".join([*filter(None, [env.get("PYTHONPATH")]), str(QUICKLY)])}


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
        fresh: bool = False,
    ) -> subprocess.Popen[str]:
        """A running trainer on the small digits, one thread a process; what it says is kept, or in `output`.

        With `fresh`, or code to run, it is a new interpreter, not a fork of one that has imported torch.
        """
        common = _common(self.data_dir, run_dir)
        process = (subprocess.Popen if fresh or launcher[0] == "-c" else Fork)(
            [sys.executable, *launcher, *common, *flags],
            cwd=ROOT,
            env=quickly(without_launcher() | {"OMP_NUM_THREADS": "1"} | (env or {})),
            stdout=output or subprocess.PIPE,
            stderr=output or subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.started.append(process)
        return process

    def run(
        self,
        run_dir: Path,
        *flags: str,
        launcher: tuple[str, ...] = ALONE,
        env: dict[str, str] | None = None,
        fresh: bool = False,
    ) -> Ended:
        """The same, waited for."""
        return finish(self.start(run_dir, *flags, launcher=launcher, env=env, fresh=fresh))

    def run_ranks(self, count: int, run_dir: Path, *flags: str, env: dict[str, str] | None = None) -> Ended:
        """Ranks as srun starts them, waited for: of all ways the quickest. They have ended alike."""
        ended = [*map(finish, tasks(self, (run_dir,) * count, *flags, env=env))]
        assert len({process.code for process in ended}) == 1, ended
        return Ended(
            ended[0].code,
            "".join(process.out for process in ended),
            "".join(process.err for process in ended),
        )

    def end(self) -> None:
        """Kill what still runs, and what it started: torchrun gives each of its processes a session."""
        for process in self.started:
            listed = Path(f"/proc/{process.pid}/task/{process.pid}/children")
            below = listed.read_text().split() if process.poll() is None else []
            for pid in (process.pid, *map(int, below)):
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)
            process.communicate()


def _common(data_dir: Path, run_dir: Path) -> list[str]:
    """The flags of every run."""
    return ["--data-dir", str(data_dir), "--run-dir", str(run_dir), "--device", "cpu", "--batch-size", "32"]


class Here:
    """The trainer inside the test's own process: saves the time of the imports."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir

    def __call__(self, run_dir: Path, *flags: str) -> Ended:
        """Run it on the small digits."""
        common = _common(self.data_dir, run_dir)
        with (
            contextlib.redirect_stdout(io.StringIO()) as out,
            contextlib.redirect_stderr(io.StringIO()) as err,
        ):
            code = main([*common, "--epochs", "1", *flags])
        return Ended(code, out.getvalue(), err.getvalue())


@dataclass
class Ended:
    """What is left of a process."""

    code: int
    out: str
    err: str


def finish(process: subprocess.Popen[str], timeout_s: float = HANGS_S) -> Ended:
    """Wait for a trainer."""
    out, err = process.communicate(timeout=timeout_s)
    return Ended(process.returncode, out, err)


def wait_for(condition: Callable[[], Any], what: str, timeout_s: float = HANGS_S) -> None:
    """Poll until the condition holds."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"no {what} in {timeout_s} s"
        time.sleep(0.03)


def alive(pid: int) -> bool:
    """Whether a process exists and has not ended, also one that is not waited for yet."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


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
    state: dict[str, Any] = json.loads((run_dir / "status.json").read_text())
    return state


def tasks(
    trainers: Trainers,
    run_dirs: tuple[Path, ...],
    *flags: str,
    env: dict[str, str] | None = None,
    fresh: bool = False,
) -> list[subprocess.Popen[str]]:
    """Ranks as srun starts them: no launcher replaces their exit statuses."""
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = str(probe.getsockname()[1])
    meeting = {"MASTER_ADDR": "localhost", "MASTER_PORT": port, "SLURM_NTASKS": str(len(run_dirs))} | (
        env or {}
    )
    return [
        trainers.start(
            run_dir, *flags, env=meeting | {"SLURM_PROCID": rank, "SLURM_LOCALID": rank}, fresh=fresh
        )
        for rank, run_dir in zip(map(str, range(len(run_dirs))), run_dirs, strict=True)
    ]


def children(process: subprocess.Popen[str]) -> list[int]:
    """The ranks that a trainer with --launcher spawn has started, in order."""
    return [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]
