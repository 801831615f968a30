#!/usr/bin/env python3
"""How long `sbatchgen status` takes with many known runs, and how often it calls squeue.

    python benchmarks/status.py                        # 10,000 runs, 200 of them live
    python benchmarks/status.py --runs 1000 --live 50

A stand-in answers for squeue, so that only sbatchgen is measured, from its start to its end.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from sbatchgen.jobs.runs.index import Index, Run, RunJob, RunWithJobs, index_file  # noqa: E402
from tests.slurm import fakes  # noqa: E402

STATUS = [str(Path(sys.prefix, "bin", "sbatchgen")), "status"]
ROUNDS = 5


def main() -> int:
    """Print the figures; return 1 if squeue was called more than once."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--live", type=int, default=200)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="status-") as folder:
        home = Path(folder)
        environment = {"HOME": folder, "PATH": f"{home / 'bin'}:{os.defpath}"}
        _know(home, environment, options.runs, options.live)
        questions_file = home / "asked"
        for title, arguments in (("status", []), ("status --all", ["--all"])):
            best, lines, questions = min(_ask(environment, arguments, questions_file) for _ in range(ROUNDS))
            print(f"{title}: {lines:,} lines, {best:.2f} s (the best of {ROUNDS}), {questions} squeue")
            if questions > 1:
                return 1
        fakes.failing(
            home / "bin",
            "squeue",
            "slurm_load_jobs error: Unable to contact slurm controller (connect failure)",
        )
        print(f"controller down: {_ask(environment, [], questions_file)[0]:.2f} s")
    return 0


def _know(home: Path, environment: dict[str, str], runs: int, live: int) -> None:
    """Enter runs into the index, of which the last ones are live."""
    rows, entries = [], []
    for number in range(runs):
        run = Run(f"run-{number}", str(home / "runs" / str(number)), shared=True, created=time.time())
        run.folder.mkdir(parents=True)
        job = RunJob(f"{number:x}", run.name, str(number + 1), "", run.created, seen=run.created)
        ended = number < runs - live
        entries.append(RunWithJobs(run, [job._replace(state="COMPLETED" if ended else "", ended=ended)]))
        if number >= runs - live:
            command = f"/tmp/sbatchgen-{number:x}-x/job.slurm"  # noqa: S108 - where submit has them
            rows.append({"JobArrayID": str(number + 1), "State": "RUNNING", "Command": command})
    Index(index_file(environment)).add(entries)
    (home / "bin").mkdir()
    fakes.squeue(home / "bin", rows)
    program = home / "bin" / "squeue"
    program.rename(home / "bin" / "squeue-answer")
    program.write_text(f'#!/bin/sh\necho >>{home}/asked\nexec {home}/bin/squeue-answer "$@"\n')
    program.chmod(0o755)
    fakes.failing(home / "bin", "sacct", "Slurm accounting storage is disabled")


def _ask(environment: dict[str, str], arguments: list[str], log: Path) -> tuple[float, int, int]:
    """Seconds, lines, and how often squeue was asked."""
    log.unlink(missing_ok=True)
    began = time.perf_counter()
    done = subprocess.run([*STATUS, *arguments], env=environment, capture_output=True, text=True, check=True)
    seconds = time.perf_counter() - began
    questions = len(log.read_text().splitlines()) if log.exists() else 0
    return seconds, len(done.stdout.splitlines()), questions


if __name__ == "__main__":
    sys.exit(main())
