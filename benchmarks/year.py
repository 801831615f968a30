#!/usr/bin/env python3
"""A year of runs: how the time of commands grows with the number of runs and points and the size of a log.

    python benchmarks/year.py            # 100 and 1,000 runs and points, logs of 4 and 40 MB
    python benchmarks/year.py --runs 1000

Each command is measured with n and with 10 n, in CPU seconds without those of a start. Above 15 times as long
is a miss. The runs have ended long ago; nothing is asked of Slurm.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from sbatchgen.jobs.runs import record
from sbatchgen.jobs.runs.index import Index, Run, RunJob, RunWithJobs, index_file

MOST = 15.0
LEAST_S = 0.1  # CPU seconds of n below which a ratio says nothing
DAY_S = 86400.0
COMMAND = [sys.executable, "-m", "sbatchgen"]


def make_runs(folder: Path, count: int) -> None:
    """Make runs that ended in the last year, each with a log and a status, and their index."""
    now, entered = time.time(), []
    for number in range(count):
        name, when = f"r{number}", now - 300 * DAY_S * (count - number) / count - 30 * DAY_S
        run_dir = folder / "runs" / name
        run_dir.mkdir(parents=True)
        about = record.Record(
            key=f"{number:016x}",
            run=name,
            shared=False,
            name=name,
            job=str(number + 1),
            submitted=when,
            folder=str(folder),
            log=f"{run_dir}/{name}-%j.out",
        )
        # As record.write_accepted writes it, which waits for the disk
        record.record_file(run_dir, about.job).write_text(json.dumps({"format": 1, **_fields(about)}))
        record.record_file(run_dir, about.job).chmod(0o600)
        (run_dir / f"{name}-{about.job}.out").write_text("epoch 1 loss 0.5\n" * 20)
        (run_dir / "status.json").write_text('{"state": "done", "step": 10, "epoch": 2}')
        jobs = [RunJob(about.key, name, about.job, "", when, "COMPLETED", ended=True, seen=when)]
        entered.append(RunWithJobs(Run(name, str(run_dir), shared=False, created=when), jobs))
    Index(index_file({"XDG_STATE_HOME": str(folder / "state")})).add(entered)


def _fields(about: record.Record) -> dict[str, object]:
    known = {name: getattr(about, name) for name in ("key", "run", "shared", "name", "folder", "log")}
    return {**known, "submitted": about.submitted}


def make_sweep(folder: Path, count: int) -> None:
    """Make a sweep whose points have ended, submitted by ten jobs."""
    run_dir = folder / "runs" / "sweep"
    run_dir.mkdir(parents=True)
    (run_dir / "points.csv").write_text("lr\n" + "".join(f"0.{number + 1}\n" for number in range(count)))
    for job in range(10):
        first, last = job * count // 10, (job + 1) * count // 10 - 1
        about = {"format": 1, "key": f"abc{job}", "run": "sweep", "shared": False, "name": "sweep"}
        about |= {"folder": str(folder), "array": f"0-{last - first}", "first": first, "submitted": 1e9 + job}
        file = record.record_file(run_dir, str(job + 1))
        file.write_text(json.dumps({**about, "log": f"{run_dir}/%a/%A.out"}))
        file.chmod(0o600)
    for number in range(count):
        (run_dir / str(number)).mkdir()
        (run_dir / str(number) / "exit").write_text("0\n")
    jobs = [
        RunJob(f"abc{job}", "sweep", str(job + 1), "", 1e9 + job, "COMPLETED", ended=True)
        for job in range(10)
    ]
    index = Index(index_file({"XDG_STATE_HOME": str(folder / "state")}))
    index.add([RunWithJobs(Run("sweep", str(run_dir), shared=False, created=1e9), jobs)])


def make_log(folder: Path, mebibytes: int) -> None:
    """Make a log of steps, of a job that Slurm has forgotten."""
    line = "INFO step {} of 1000000000 finished in 0.1 s, throughput 1000 samples/s, memory 70 GB\n"
    text = "".join(line.format(number) for number in range(12_000))
    with (folder / "slurm-99999.out").open("w") as file:
        for _ in range(mebibytes):
            file.write(text)
        file.writelines(f"epoch {number} loss {1 / number}\n" for number in range(1, 20))


def cpu_s(folder: Path, words: Sequence[str]) -> float:
    """Return the CPU seconds of a command, of three starts the least."""
    environment = {**os.environ, "XDG_STATE_HOME": str(folder / "state")}
    environment |= {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(folder.parent / "compiled")}
    least = float("inf")
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(
            [*COMMAND, *words],
            cwd=folder,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            check=False,
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        if done.returncode:
            raise SystemExit(f"{' '.join(words)}: {done.stderr.decode()}")
        least = min(least, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return least


def rows() -> Iterator[tuple[str, Sequence[str]]]:
    """Yield a title and the words of each command; all are the same in both folders."""
    yield "status", ["status"]
    yield "status --all", ["status", "--all"]
    yield "status RUN", ["status", "r7"]
    yield "logs by the path of a log", ["logs", "-n", "1", "runs/r7/r7-8.out"]
    yield "status --scan", ["status", "--scan", "runs"]
    yield "status of a sweep", ["status", "sweep"]
    yield "status of a point", ["status", "sweep/7"]
    yield "logs -n 0", ["logs", "-n", "0", "slurm-99999.out"]
    yield "diagnose of a log", ["diagnose", "slurm-99999.out"]
    yield "plot --text of a log", ["plot", "--text", "slurm-99999.out"]


def main() -> int:
    """Print a line for each command; return 1 if one of them grows too fast."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=100, metavar="N")
    parser.add_argument("--log", type=int, default=4, metavar="MEBIBYTES")
    given = parser.parse_args()
    missed = 0
    with tempfile.TemporaryDirectory(prefix="year-") as top:
        small, large = Path(top, "small"), Path(top, "large")
        for folder, factor in ((small, 1), (large, 10)):
            folder.mkdir()
            make_runs(folder, factor * given.runs)
            make_sweep(folder, factor * given.runs)
            make_log(folder, factor * given.log)
        start = cpu_s(small, ["--version"])
        print(
            f"load {os.getloadavg()[0]:.1f}; start {start:.2f} s; {given.runs} runs, logs of {given.log} MiB"
        )
        for title, words in rows():
            once, ten = (max(cpu_s(folder, words) - start, 0.0) for folder in (small, large))
            ratio = ten / max(once, LEAST_S)
            missed += ratio > MOST
            print(f"{title:28} {once:6.2f} {ten:6.2f}  x {ratio:4.1f}  {'MISS' if ratio > MOST else 'PASS'}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
