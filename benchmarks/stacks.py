#!/usr/bin/env python3
"""Ask processes for their stacks while their frames come and go: does one end, or compute something else?

    python benchmarks/stacks.py [--asks 3000] [--python PYTHON] [--way new|old] [KIND...]

The kinds are those of hanging/churn.py, all at once. `new` asks a program and those below as the watcher of
hangs does: by the signal for a main thread that runs, by that for one that sleeps, by /proc. `old` sends one
to a thread that waits for a lock, whose handler walks the frames of all threads, as up to 0.3.0.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import IO, cast

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from training.processes import proc, rank, stacks  # noqa: E402

CHURN = Path(__file__).parent / "hanging" / "churn.py"
OLD = 5  # as in churn.py
KINDS = ["exec", "threads", "released GIL", "loaders", "imports", "import torch"]
COMPILES = ["compile aot_eager", "compile inductor"]


class Program:
    """A program that churns, with the results that it prints."""

    def __init__(self, kind: str, python: str, way: str) -> None:
        call, env = [python, str(CHURN), kind], {**os.environ, "WAY": way}
        self.process = subprocess.Popen(
            call, env=stacks.with_hook(env), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._input, self._output = cast("IO[str]", self.process.stdin), cast("IO[str]", self.process.stdout)
        self.results: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        while not self.results and self.process.poll() is None:
            time.sleep(0.1)

    def _read(self) -> None:
        for line in self._output:
            self.results.append(line.strip())

    def end(self) -> tuple[int, set[str], int]:
        """Its exit status, its different results, and how many rounds it took."""
        with contextlib.suppress(OSError):
            self._input.close()
        status = self.process.wait()
        self._reader.join()
        self._output.close()
        rounds = [result for result in self.results if result != "end"]
        return status, set(rounds), len(rounds)


def ask(pid: int, way: str) -> str:
    """Ask a process once; what it was asked by, with "answered" if it did."""
    if way == "old":
        waits = [
            task for task in proc.threads(pid) if proc.read(pid, f"task/{task}/wchan").startswith("futex")
        ]
        if waits:
            ctypes.CDLL(None).syscall(
                stacks.TGKILL[os.uname().machine], pid, waits[-1], signal.SIGRTMAX - OLD
            )
            time.sleep(0.03)
        return "old"
    rank.sample(pid, {})
    if proc.state(pid) == "R":
        return "awake, answered" if stacks.stack_awake(pid) else "awake"
    return "asleep, answered" if stacks.stack_asleep(pid, tries=2) else "asleep, not asked"


def churn(kind: str, asks: int, python: str, way: str) -> tuple[str, Counter[str], int, int, int]:
    """Ask a kind so often: what came, ends by a signal, different results beside the first, and rounds."""
    counts: Counter[str] = Counter()
    ends = changed = rounds = 0
    while sum(counts.values()) < asks:
        program = Program(kind, python, way)
        while sum(counts.values()) < asks and program.process.poll() is None:
            for pid in (
                program.process.pid,
                *(proc.descendants(program.process.pid) if way == "new" else ()),
            ):
                counts[ask(pid, way)] += 1
        status, results, count = program.end()
        ends += status != 0
        changed += max(len(results) - 1, 0)
        rounds += count
        if way == "new" and (status or len(results) > 1):
            print(kind, status, results, file=sys.stderr)
    return kind, counts, ends, changed, rounds


def main() -> int:
    """Print a line for each kind; 1 if a program has ended, or has computed something else."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("kinds", nargs="*", metavar="KIND")
    parser.add_argument("--asks", type=int, default=3000, help="of each kind")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--way", default="new", choices=("new", "old"))
    asked = parser.parse_args()
    kinds = asked.kinds or KINDS + COMPILES
    total: Counter[str] = Counter()
    bad = 0
    with concurrent.futures.ThreadPoolExecutor(len(kinds)) as pool:
        runs = [pool.submit(churn, kind, asked.asks, asked.python, asked.way) for kind in kinds]
        for run in concurrent.futures.as_completed(runs):
            kind, counts, ends, changed, rounds = run.result()
            total += counts
            bad += ends + changed
            said = ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))
            print(f"{kind:18} ended {ends}, other results {changed}, of {rounds} rounds; {said}", flush=True)
    print(f"{sum(total.values())} asked, {bad} ended or changed; {dict(total)}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
