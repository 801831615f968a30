#!/usr/bin/env python3
"""How soon `sbatchgen lsp` shows a finding after a key: with a client over stdin and stdout, as an editor.

    python benchmarks/lsp.py

A script of a hundred lines, made of those in tests/fixtures/scripts, and the job of docs/reference are typed
into: the time from a key until the client has the findings of the whole file is taken, without a profile and
with one. Completion and hover are timed as well.

Exit status: 1 if the findings of the script take more than 50 ms at the median.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median, quantiles

CHECKOUT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(CHECKOUT))

from tests.editor.client import Editor, editor  # noqa: E402 - the checkout's

LIMIT_MS = 50
LINES = 100
PROFILES = ("", "lumi")


def main() -> int:
    """Measure and print; the exit status."""
    parser = argparse.ArgumentParser(description="Measure how soon `sbatchgen lsp` shows a finding.")
    parser.add_argument("--keys", type=int, default=100, metavar="N", help="of each file [100]")
    keys = parser.parse_args().keys
    print(f"Python {platform.python_version()}, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}")
    worst = 0.0
    for profile in PROFILES:
        options = ["--profile", profile] if profile else []
        with (
            tempfile.TemporaryDirectory(prefix="lsp-benchmark-") as folder,
            editor(Path(folder), *options) as made,
        ):
            name = profile or "no profile"
            script = _script()
            made.open(Path(folder) / "job.slurm", script)
            worst = max(
                worst, _report(f"findings, {script.count(chr(10))} lines, {name}", _typed(made, script, keys))
            )
            _report(f"completion, {name}", _timed(lambda: made.complete("#SBATCH --"), keys))
            _report(f"hover, {name}", _timed(lambda: made.hover("#SBATCH --"), keys))
            job = (CHECKOUT / "docs/reference/job-example.yaml").read_text(encoding="utf-8")
            made.open(Path(folder) / "job.yaml", job)
            _report(f"findings, a job, {name}", _typed(made, job, keys))
    print(f"at most {LIMIT_MS} ms at the median")
    return int(worst > LIMIT_MS)


def _script() -> str:
    """A script as people have them, of about a hundred lines."""
    text = ""
    for path in sorted((CHECKOUT / "tests/fixtures/scripts").glob("*.slurm")):
        text += path.read_text(encoding="utf-8")
        if text.count("\n") >= LINES:
            break
    return "\n".join(text.split("\n")[:LINES]) + "\n"


def _typed(made: Editor, text: str, keys: int) -> list[float]:
    return _timed_each(lambda number: made.type(f"{text}# {number}\n"), keys)


def _timed(ask: Callable[[], object], times: int) -> list[float]:
    return _timed_each(lambda _: ask(), times)


def _timed_each(ask: Callable[[int], object], times: int) -> list[float]:
    """Milliseconds of each call."""
    taken = []
    for number in range(times):
        start = time.perf_counter()
        ask(number)
        taken.append((time.perf_counter() - start) * 1000)
    return taken


def _report(what: str, times: list[float]) -> float:
    middle = median(times)
    print(f"{what}: {middle:.0f} ms, 95 % within {quantiles(times, n=20)[-1]:.0f} ms")
    return middle


if __name__ == "__main__":
    sys.exit(main())
