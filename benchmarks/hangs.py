#!/usr/bin/env python3
"""Planted hangs, each at each of four ranks: is the rank named, and the line where it is? And healthy runs.

    python benchmarks/hangs.py [--after 4] [--ranks 0 1 2 3] [--launchers torchrun srun spawn] [NAME...]
    python benchmarks/hangs.py --cost

Every case is a plain training loop with gloo on CPUs, the bundled trainer, or a loop of Accelerate,
Lightning or Transformers, which are run by name, with a --python that has them. `torchrun` and `spawn` are
what a job script starts, `srun` is a process a rank with the variables of Slurm. A healthy run must end with
0, without an alarm. With --after as two minutes it is silent for ten in a validation, three or four in the
first step, else six.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from training.processes import hang  # noqa: E402

RANKS = 4
WAIT = 20  # times --after: before its first step, a rank that may act again is named after 16
START_S = 900.0  # until then: on a busy machine the imports alone take minutes
TURNS, TURN_S, GAP_S, SETTLED = 12, 4.0, 0.02, 50

TRAINERS = Path(__file__).parent / "hanging"
TRAINER, BUNDLED = TRAINERS / "loop.py", TRAINERS / "bundled.py"
FLAGS = (
    *("--dataset", "own:data", "--model", "own:model", "--batch-size", "16", "--epochs", "2"),
    *("--save-every", "3", "--device", "cpu", "--workers", "1", "--log-every", "1"),
)
HANGS = [
    *("lock", "stopped", "dead thread", "barrier in one branch", "finished", "retry", "spins", "join"),
    *("subprocess", "fifo", "file lock", "socket", "recv", "event", "full queue", "holds the GIL"),
    *("another collective", "another order", "sleep in dataset", "loader lock", "skipped step"),
    *("upload at the end", "killed worker of a pool", "full pipe", "group of one rank", "key of the store"),
    *("two locks", "flag", "asyncio", "answer", "queue of a killed process", "loader that reads"),
    "FUSE without a server",  # as root
]
PLACELESS = ("stopped", "finished")  # the rank has no stack
HEALTHY = [
    "slow first step",
    "quiet first step",
    "validation of rank 0",
    "validation of all",
    "slow save",
    "download",
    "bundled",
]
LOOPS = [f"{loop}: {kind}" for loop in ("accelerate", "lightning") for kind in ("lock", "stopped", "socket")]
ELSEWHERE = ("lock", "stopped", "barrier in one branch", "sleep in dataset", "loader lock")
LOOPS += ["lightning: spins", "lightning: metric of one rank", "accelerate: two locks", "accelerate: flag"]
LOOPS += ["transformers: loader that reads", "transformers: asyncio", "torchrun: lock"]
LOOPS += [f"bundled: {kind}" for kind in ELSEWHERE]


class Outcome(NamedTuple):
    """What was said of a run."""

    says: str
    rank_is_right: bool
    place_is_right: bool
    seconds: float
    is_done: bool  # its processes ended with 0


def line_of(kind: str) -> int:
    """The line of the trainer where a planted hang is; 0 if it has none."""
    mark = f"# HERE {kind.rpartition(': ')[2]}"
    marked = (number for number, line in enumerate(TRAINER.read_text().splitlines(), 1) if mark in line)
    return next(marked, 0)


def free_port() -> str:
    """A port that no client is given by chance."""
    while True:
        with socket.socket() as probe, contextlib.suppress(OSError):
            port = random.randrange(15000, 32000)  # noqa: S311 - no secret
            probe.bind(("127.0.0.1", port))
            return str(port)


def start(
    launcher: str, folder: Path, kind: str, bad: int, after: float, *, python: str, steps: int = 12
) -> list[subprocess.Popen[bytes]]:
    """Start a training with a hang of this kind at this rank."""
    port, run_dir, training = free_port(), folder / "run", ROOT / "training"
    run_dir.mkdir()
    (folder / "train.py").write_text(TRAINER.read_text())
    (folder / "own.py").write_text(BUNDLED.read_text())
    known = {name: value for name, value in os.environ.items() if not name.startswith("SLURM")}
    loop, _, kind = kind.rpartition(": ")
    known |= {
        "RUN_DIR": str(run_dir),
        "HANG_AFTER": f"{after:g}" if after else "off",
        "KIND": kind,
        "BAD": str(bad),
    }
    known |= {"LOOP": loop, "STEPS": str(steps)}
    known |= {"AFTER": f"{after:g}", "THERE": str(folder), "OMP_NUM_THREADS": "1"}
    known |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    known |= {"PYTHONPATH": f"{ROOT / 'tests' / 'training' / 'quickly'}:{folder}"}
    is_bundled = "bundled" in (loop, kind)
    trainer = [str(training), *FLAGS, "--run-dir", str(run_dir)] if is_bundled else [str(folder / "train.py")]
    calls: list[tuple[list[str], dict[str, str]]] = []
    if launcher == "torchrun":
        calls = [([f"{training}/torchrun.py", f"--nproc-per-node={RANKS}", "--", *trainer], {})]
    elif launcher == "spawn":
        task, more = [f"{training}/task.py", "--launcher", "spawn", "--"], ["--launcher", "spawn"]
        more += ["--nproc-per-node", str(RANKS)]
        calls = [([*trainer, *more] if is_bundled else [*task, *trainer], {})]
    for rank in range(RANKS * (launcher == "srun")):
        of_slurm = {"SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank), "SLURM_NTASKS": str(RANKS)}
        of_slurm["SLURMD_NODENAME"] = f"n{rank // 2}"
        calls.append((trainer if is_bundled else [f"{training}/task.py", "--", *trainer], of_slurm))
    with (run_dir / "log").open("ab") as log:
        return [
            subprocess.Popen(
                [python, *call], env=known | more, stdout=log, stderr=log, start_new_session=True
            )
            for call, more in calls
        ]


def end(processes: list[subprocess.Popen[bytes]]) -> None:
    """Kill the launchers; their ranks end with them, or are killed by name of their session."""
    below: list[int] = []
    todo = [process.pid for process in processes]
    while todo:
        pid = todo.pop()
        for children in Path(f"/proc/{pid}/task").glob("*/children"):
            with contextlib.suppress(OSError):
                todo += map(int, children.read_text().split())
        below.append(pid)
    for pid in below:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    for process in processes:
        process.wait()


def trial(launcher: str, kind: str, bad: int, after: float, python: str) -> Outcome:
    """Run one case until something is said of it, or it has ended; a healthy one until its end."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        began = time.monotonic()
        processes = start(launcher, folder, kind, bad, after, python=python)
        report, log = folder / "run" / "hang.json", folder / "run" / "log"
        try:
            hung = False
            while time.monotonic() - began < (WAIT * after if hung else START_S):
                if not hung and (folder / "planted").exists():
                    hung, began = True, time.monotonic()
                if report.exists() and kind not in HEALTHY:
                    break
                if all(process.poll() is not None for process in processes):
                    break
                time.sleep(0.2)
            seconds, is_done = time.monotonic() - began, all(process.poll() == 0 for process in processes)
        finally:
            end(processes)
        alarms = [line for line in log.read_text(errors="replace").splitlines() if "hang: " in line]
        says = alarms[0].partition("hang: ")[2].partition("; stacks: ")[0] if alarms else ""
        if report.exists():  # the line in the log comes after it
            says = json.loads(report.read_text())["says"]
        if (kind in HEALTHY) != is_done or (kind in HEALTHY and says):
            print(log.read_text(errors="replace")[-1500:], file=sys.stderr)
            for path in sorted(folder.glob("run/stacks/*.txt")) if says or kind in HEALTHY else ():
                print(path.read_text()[:1200], file=sys.stderr)
    named = [part for part in says.split("; ") if part.startswith("rank ")]
    right = len(named) == 1 and named[0].startswith(f"rank {bad} ")
    at = f"train.py:{line_of(kind)}" if line_of(kind) else ""
    place = kind.endswith(PLACELESS) or (bool(at) and at in says)
    return Outcome(says, right, right and place, seconds, is_done)


@contextlib.contextmanager
def loaded(count: int) -> Iterator[None]:
    """So many busy loops of low priority."""
    loops = [subprocess.Popen(["nice", sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def main() -> int:
    """Print a table; 1 if a healthy run was reported, or did not end."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--after", type=float, default=4.0)
    parser.add_argument("--ranks", type=int, nargs="*", default=[*range(RANKS)])
    launchers = ("torchrun", "srun", "spawn")
    parser.add_argument("--launchers", nargs="+", default=launchers, choices=launchers)
    parser.add_argument("--healthy", type=int, default=2, help="runs of each healthy kind")
    parser.add_argument("--load", type=int, default=0, help="busy loops beside them")
    parser.add_argument("--python", default=sys.executable, help="that of the trainers")
    parser.add_argument("--cost", action="store_true", help="measure what the watcher costs")
    asked = parser.parse_args()
    if asked.cost:
        return cost(asked.python)
    with loaded(asked.load):
        return measure(asked)


def cost(python: str) -> int:
    """Print what the watcher costs a training: it looks every 15 seconds, and here all the time by turns."""
    rates: dict[bool, list[float]] = {False: [], True: []}
    looks, cpu_s, looked_s = 0, 0.0, 0.0
    with tempfile.TemporaryDirectory() as name:
        log = Path(name) / "run" / "log"
        processes = start("torchrun", Path(name), "", -1, 0.0, python=python, steps=1 << 20)
        try:
            while log.read_bytes().count(b"step") < SETTLED:
                time.sleep(0.2)
            watcher = hang.Watcher(log.parent, 0.0, spawns=False)
            watcher._root = processes[0].pid  # noqa: SLF001 - as if it ran there
            for turn in range(2 * TURNS):
                began, before, cpu = time.monotonic(), log.read_bytes().count(b"step"), time.thread_time()
                while time.monotonic() < began + TURN_S:
                    if turn % 2:
                        watcher.look()
                        looks += 1
                    time.sleep(GAP_S)
                seconds = time.monotonic() - began
                rates[bool(turn % 2)].append((log.read_bytes().count(b"step") - before) / seconds)
                cpu_s += (time.thread_time() - cpu) * (turn % 2)
                looked_s += seconds * (turn % 2)
        finally:
            end(processes)
    without, beside = (statistics.median(each) for each in rates.values())
    slower = without / beside - 1
    every_s = hang.DEFAULT_LIMIT_S / hang.LOOKS_PER_LIMIT
    often = looks / looked_s * every_s
    print(f"a look: {cpu_s / looks * 1000:.2f} ms of a CPU; {cpu_s / looks / every_s:.4%} of one")
    print(
        f"{without:.1f} steps a second; {beside:.1f} beside {often:.0f} times as many looks as the watcher's"
    )
    print(f"a step beside the watcher: {slower / often:+.4%}")
    return 0


def measure(asked: argparse.Namespace) -> int:
    """Run all cases, but those of other loops only by name."""
    right = place = count = alarms = healthy = ended = 0
    for launcher in asked.launchers:
        for kind in [kind for kind in HANGS + LOOPS if kind in (asked.names or HANGS)]:
            if launcher != "torchrun" and kind not in (asked.names or ELSEWHERE):
                continue
            for bad in asked.ranks:
                made = trial(launcher, kind, bad, asked.after, asked.python)
                count, right, place = count + 1, right + made.rank_is_right, place + made.place_is_right
                marks = f"{'rank' if made.rank_is_right else '-':4} {'line' * made.place_is_right or '-':4}"
                print(f"{launcher:8} {kind:22} {bad} {marks} {made.seconds:5.1f} s  {made.says}", flush=True)
        for kind in [kind for kind in HEALTHY if kind in (asked.names or HEALTHY)]:
            for _ in range(asked.healthy):
                made = trial(launcher, kind, -1, asked.after, asked.python)
                healthy, alarms, ended = healthy + 1, alarms + bool(made.says), ended + made.is_done
                end_of_it = "ended" if made.is_done else "-"
                print(f"{launcher:8} {kind:22} {end_of_it:6} {made.seconds:5.1f} s  {made.says}", flush=True)
    print(f"hangs: rank right {right} of {count}, line right {place}")
    print(f"healthy runs: alarms {alarms} of {healthy}, ended {ended}")
    return 1 if alarms or ended < healthy else 0


if __name__ == "__main__":
    sys.exit(main())
