#!/usr/bin/env python3
"""How the training package handles faults, as figures: one line for each fault F1 to F18.

    python benchmarks/faults.py              # all of them, some 15 minutes on two idle cores
    python benchmarks/faults.py F1 F5        # only these
    python benchmarks/faults.py --quick      # fewer trials, some 4 minutes

The faults are numbered as in tests/training/test_faults.py. Processes are killed, stopped and signalled,
files are damaged and disks are filled for real; nothing needs a GPU, Slurm or the network. Needs the
development tools, torch, and for F3 the right to mount a file system (root, or user namespaces). Other work
on the machine makes latencies longer: its load is printed.

Exit status: 1 where a figure misses its target.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.machine import machine
from benchmarks.survival.damage import f4, f5, f6, f16
from benchmarks.survival.evaluation import f14
from benchmarks.survival.folders import f15, f18
from benchmarks.survival.place import Place, Row
from benchmarks.survival.processes import f7, f8, f9, f10, f13
from benchmarks.survival.resumes import f11, f12, f17
from benchmarks.survival.saves import f1, f2, f3
from sbatchgen.lab.prepare import digits
from tests.training.trainers import Here, Trainers
from training.errors import one_line

IN_NAMESPACE = "FAULTS_IN_NAMESPACE"
FAULTS: dict[str, Callable[[Place], Iterator[Row]]] = {
    f"F{number}": made
    for number, made in enumerate(
        (f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12, f13, f14, f15, f16, f17, f18), start=1
    )
}
WAITING = ("F7", "F10")  # these mostly sleep: they do so beside the others


def main() -> int:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description="fault tests of the training package, as figures")
    parser.add_argument("faults", nargs="*", metavar="F1", help="which ones (default: all)")
    parser.add_argument("--quick", action="store_true", help="fewer trials")
    args = parser.parse_args()
    unknown = sorted(set(args.faults) - FAULTS.keys())
    if unknown:
        parser.error(f"no fault {', '.join(unknown)}: there are F1 to F18")
    own_namespace()
    warnings.filterwarnings("ignore", message="Failed to initialize NumPy")
    torch.set_num_threads(1)
    began = time.monotonic()
    print(machine(), flush=True)
    missed = 0
    with (
        tempfile.TemporaryDirectory(prefix="faults-") as name,
        pytest.MonkeyPatch.context() as patches,
        ThreadPoolExecutor() as pool,
    ):
        place = prepared(Path(name), patches, quick=args.quick)
        chosen = [fault for fault in FAULTS if not args.faults or fault in args.faults]
        beside = {fault: pool.submit(rows, fault, place) for fault in chosen if fault in WAITING}
        for fault in chosen:
            for row in beside[fault].result() if fault in beside else rows(fault, place):
                missed += not row.passed
                print(f"{fault:4} {'PASS' if row.passed else 'MISS'}  {row.what}")
                print(f"{'':11}{row.figure} (target: {row.target})", flush=True)
        place.trainers.end()
    print(f"{missed} missed, {time.monotonic() - began:.0f} s; {machine()}")
    return 1 if missed else 0


def rows(fault: str, place: Place) -> list[Row]:
    """The lines of a fault, or one line that says why it could not be measured."""
    rows: list[Row] = []
    try:
        for row in FAULTS[fault](place):
            rows.append(row)  # noqa: PERF402 - what there was before an error counts
    except Exception as error:  # noqa: BLE001 - the other faults are measured all the same
        rows.append(Row("not measured", one_line(error), "-", passed=False))
    return rows


def prepared(folder: Path, patches: pytest.MonkeyPatch, *, quick: bool) -> Place:
    """Small data, and trainers without the variables of this process's launcher."""
    digits.write(folder / "digits", train=250, test=101, seed=3)
    for name in [name for name in os.environ if name.startswith("SLURM")]:
        patches.delenv(name)
    patches.setenv("OMP_NUM_THREADS", "1")
    return Place(
        folder=folder,
        quick=quick,
        trainers=Trainers(folder / "digits"),
        here=Here(folder / "digits"),
        patches=patches,
    )


def own_namespace() -> None:
    """Start again in a mount namespace of this process, if the system allows one."""
    command = ["unshare", "--mount", *(() if os.geteuid() == 0 else ("--map-root-user",))]
    if IN_NAMESPACE in os.environ or not shutil.which("unshare"):
        return
    if subprocess.run([*command, "true"], check=False, capture_output=True).returncode == 0:
        os.execvpe(  # noqa: S606
            command[0], [*command, sys.executable, *sys.argv], os.environ | {IN_NAMESPACE: "1"}
        )


if __name__ == "__main__":
    sys.exit(main())
