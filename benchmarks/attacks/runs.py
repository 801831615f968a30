"""Attacks on files of runs that commands and job scripts read: records, the index, chains."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.attacks.place import OF_SLURM, SBATCHGEN, TRAINER, Place

KEY, OTHER = "0123456789abcdef", "fedcba9876543210"
COMMANDS = ("status", "logs", "report", "diagnose", "cancel", "resume", "resubmit")
DIGITS = "9" * 5000
STRANGE: tuple[Any, ...] = (
    None, True, -1, 2**63, 1e308, "", "0-4294967295", DIGITS, "$(touch pwned)", "a[$(touch pwned)]",
    "\x1b[2J\n", "../..", [], {}, ["--yes", "$(touch pwned)"], [[]] * 50, "x" * 100_000, "\udcff",
)  # fmt: skip
FILES = (
    "status.json",
    "events.jsonl",
    "config.json",
    "points.csv",
    "exit",
    "stop",
    "again",
    "chain",
    "submitting.json",
)
WORDS_OF_EXIT = ("a[$(touch pwned)]", "$(touch pwned)", "08", "-1", "1\n2", "")
SQUEUE = """#!/bin/bash
[[ $* == *--jobs=* ]] && echo "/tmp/sbatchgen-{own}00-x/job.slurm" && exit
for job in 11 12; do echo "$job /tmp/sbatchgen-{own}0$job-y/job.slurm"; done
for job in 21 22; do echo "$job /tmp/sbatchgen-{other}00-z/job.slurm"; done
echo "23 /home/ann/job.slurm"
"""


def folders(place: Place) -> Iterator[str]:
    """Strange records and files in a run folder: each command ends with a clear error or an answer."""
    run_dir = place.folder / "runs" / "r"
    for _ in range(place.times(300)):
        shutil.rmtree(run_dir, ignore_errors=True)
        run_dir.mkdir(parents=True)
        about: dict[str, Any] = {
            "format": 1, "key": KEY, "run": "r", "shared": False, "name": "r", "submitted": 1.0,
            "folder": str(place.folder), "command": ["sbatchgen", "sweep", "single"], "array": "0-1",
            "log": f"{run_dir}/r-%j.out",
        }  # fmt: skip
        (run_dir / "points.csv").write_text("lr\n0.1\n0.2\n")
        for _ in range(place.chance.randint(0, 3)):
            about[place.chance.choice(sorted(about))] = place.chance.choice(STRANGE)
        (run_dir / "job-7.json").write_text(json.dumps(about))
        for name in place.chance.sample((*FILES, "job-8.json", f"job-{'9' * 200}.json"), 3):
            _plant(place, run_dir / name)
        words = (place.chance.choice(COMMANDS), "r")
        place.run(*SBATCHGEN, "status", "--scan", "runs")
        yield _wrong(place, words, run_dir)


def _plant(place: Place, file: Path) -> None:
    """Make a file that a run folder should not hold."""
    file.unlink(missing_ok=True)
    kind = place.chance.randrange(6)
    if kind == 0:
        os.mkfifo(file)
    elif kind == 1:
        file.mkdir()
    elif kind == 2:
        file.symlink_to(place.chance.choice(("/dev/zero", "/etc/passwd", file.name, "../../secret")))
    elif kind == 3:
        file.write_bytes(place.chance.randbytes(5000))
    else:
        value = {"state": "running", "step": place.chance.choice(STRANGE), "event": "epoch"}
        file.write_text(
            json.dumps(value) if kind == 4 else str(place.chance.choice((DIGITS, *WORDS_OF_EXIT)))
        )


def _wrong(place: Place, words: tuple[str, ...], run_dir: Path) -> str:
    """Return how a command went wrong; "" if it did not. It may use 2 GiB of addresses and 20 s."""
    bound = ("bash", "-c", 'ulimit -v 2097152; exec "$@"', "bash")
    try:
        done = subprocess.run(
            [*bound, *SBATCHGEN, *words], cwd=place.folder, env=place.environment(), stdin=subprocess.DEVNULL,
            capture_output=True, timeout=20, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"{words}: it hangs: {sorted(run_dir.iterdir())}"
    acted = [*(place.folder / "sent").glob("*"), *place.folder.rglob("pwned")]
    fine = done.returncode in {0, 2, 3, 4, 5} and b"Traceback" not in done.stderr and not acted
    return (
        ""
        if fine
        else f"{words}: {done.returncode} {acted} {done.stderr[-300:]!r} {sorted(run_dir.iterdir())}"
    )


def index(place: Place) -> Iterator[str]:
    """Damage in the index: it is made again, and names only runs that exist."""
    (place.folder / "train.py").write_text("print('trained')\n")
    for name in "abc":
        place.run(
            *SBATCHGEN,
            "submit",
            "cpu",
            "--profile",
            "local",
            "--yes",
            "--trainer",
            "train.py",
            "--job-name",
            name,
        )
    file = place.folder / ".local/state/sbatchgen/runs.jsonl"
    whole = file.read_bytes()
    for _ in range(place.times(300)):
        data = bytearray(whole)
        for _ in range(place.chance.randint(1, 4)):
            start = place.chance.randrange(len(data))
            data[start : start + place.chance.choice((0, 1, 1, 30))] = place.chance.randbytes(
                place.chance.choice((0, 1, 1, 30))
            )
        file.write_bytes(data)
        done = place.run(*SBATCHGEN, "status", "--all", "--format", "json")
        names = {run["name"] for run in json.loads(done.stdout or "{}").get("runs", [])}
        fine = done.returncode == 0 and names <= {*"abc"} and b"Traceback" not in done.stderr
        yield "" if fine else f"{names}: {done.returncode} {done.stderr[-300:]!r}"


def chains(place: Place) -> Iterator[str]:
    """Hostile files where a script of a chain looks: it evaluates none, and cancels only its own chain."""
    (place.folder / "dump.py").write_text(f"import sys\n{TRAINER}sys.exit(int(sys.argv[1]))\n")
    for name, text in {
        "squeue": SQUEUE.format(own=KEY, other=OTHER),
        "scancel": '#!/bin/bash\necho "$@" >>cancelled\n',
    }.items():
        (place.folder / "bin" / name).write_text(text)
        (place.folder / "bin" / name).chmod(0o755)
    words = (
        "single",
        "--profile",
        "./public.yaml",
        "--chain",
        "3",
        "--run-dir",
        "runs/r",
        "--trainer",
        "./dump.py",
    )
    for _ in range(place.times(200)):
        shutil.rmtree(place.folder / "runs", ignore_errors=True)
        run_dir = place.folder / "runs" / "r"
        run_dir.mkdir(parents=True)
        (place.folder / "cancelled").unlink(missing_ok=True)
        for name in place.chance.sample(FILES, 3):
            _plant(place, run_dir / name)
        script = place.run(*SBATCHGEN, "render", *words, "--", place.chance.choice("019")).stdout
        try:
            job = subprocess.run(
                ["bash", "-s"], input=script, cwd=place.folder, capture_output=True, timeout=30, check=False,
                env=place.environment(SLURM_SUBMIT_DIR=str(place.folder), **OF_SLURM),
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            yield f"it hangs: {sorted(run_dir.iterdir())}"
            continue
        file = place.folder / "cancelled"
        cancelled = set(re.findall(r"\d+", file.read_text())) if file.exists() else set()
        pwned = [*place.folder.rglob("pwned")]
        fine = cancelled <= {"11", "12"} and not pwned
        yield "" if fine else f"{cancelled} {pwned} {job.stderr[-300:]!r}"
