#!/usr/bin/env python3
"""How fast the training package is, compared with the loops of pytorch/examples and plain torch.save.

    python benchmarks/training.py --examples EXAMPLES    # a checkout of https://github.com/pytorch/examples
    python benchmarks/training.py --quick --only C1,C6   # to try it out: its figures mean little

Run it with a Python that has torch; the examples and C3 need torchvision (and Pillow, which comes with it). A
torchvision built for CUDA with a torch built for CPUs will do. One line names each figure that cannot be
measured. It takes about ten minutes on two idle cores.

Each round starts whole processes, one after the other, and every other round backwards (ABBA): a machine that
slows down slows all alike. A ratio is taken within its round; the table has the median, the lowest and the
highest of the rounds. The examples run unmodified, from a copy. A `sitecustomize` for the examples and our
trainer notes when each step of the optimizer ends, and ends a run that is long enough.

C1  MNIST (synthetic, in its own files), the example's Net, 64 images a step, Adadelta, fp32: images a second
C2  the same with --precision bf16, against the same example, which has fp32 alone
C3  ResNet-18 of 1000 classes from JPEGs of 500x375 pixels, cut to 224x224 as the example has it, 16 images a
    step, SGD, 2 loader processes; fp32, and bf16 with --channels-last
C4  two processes (gloo) of one thread each, 128 images a step, as against one process of one thread with 64
C5  from the start of the process to the end of the first step, of the runs of C1
C6  a checkpoint of 204 MB that has reached the disk (fsync), against torch.save and fsync; and the time for
    which the training is stopped, which is that of the copy in memory
C7  from the start of a resumed process to the end of its first step, at 80 % of an epoch, against a fresh one
C8  all of the last checkpoint, resumed against uninterrupted: bit by bit
C9  a step of a linear model with 8 images, CPU time beyond that of a bare loop
C10 CPU time up to the first step, beyond that of a process that imports torch and does a step
C11 the trainings of C3 and the example at the same time, beside --busy processes that only compute: images a
    second, while both train

CPU seconds, of a process and its loaders, say more than seconds on a busy machine.

In C1 and C2 a run whose accuracy is GATE percentage points below the example's median does not count. C3 has
too few steps for an accuracy: there the loss has to be finite.

Exit status: 0 if all measured figures are on target, 1 if one is not, 2 if nothing was measured.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # before this file's folder

from benchmarks.machine import load, machine
from benchmarks.speed.figures import Figure, table
from benchmarks.speed.images import part_busy, part_images
from benchmarks.speed.mnist import part_mnist
from benchmarks.speed.processes import part_processes
from benchmarks.speed.resume import part_resume
from benchmarks.speed.runs import Bench, needs_shim, prepare
from benchmarks.speed.saves import part_saves
from benchmarks.speed.steps import part_steps

PARTS = {
    ("C1", "C2", "C5"): part_mnist,
    ("C3",): part_images,
    ("C4",): part_processes,
    ("C6",): part_saves,
    ("C7", "C8"): part_resume,
    ("C9", "C10"): part_steps,
    ("C11",): part_busy,
}
ALL = tuple(name for names in PARTS for name in names)


def main() -> int:
    """Measure and print; the exit status."""
    options = _options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # removes all files
    with tempfile.TemporaryDirectory(prefix="speed-benchmark-", dir=options.scratch) as folder:
        bench = Bench(Path(folder), options, shim=needs_shim())
        where = f"{machine()}; {options.threads} threads"
        print(where, flush=True)
        prepare(bench)
        figures: list[Figure] = []
        for names, part in PARTS.items():
            if set(names) & set(options.only):
                print(f"measuring {' '.join(names)}", file=sys.stderr, flush=True)
                figures += part(bench)
    print("\n".join([*table(figures), f"load average at the end: {load()}"]))
    if options.json:
        options.json.write_text(
            json.dumps({"machine": where, "figures": [asdict(figure) for figure in figures]}, indent=2) + "\n"
        )
    verdicts = {figure.verdict for figure in figures}
    return 1 if "MISS" in verdicts else 0 if "PASS" in verdicts else 2


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure how fast the training package is.")
    parser.add_argument("--examples", type=Path, metavar="DIR", help="a checkout of pytorch/examples")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="of each measurement [5]")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), metavar="N")
    parser.add_argument("--only", type=lambda text: text.split(","), metavar="C1,C6", default=list(ALL))
    parser.add_argument(
        "--busy",
        type=lambda text: [int(number) for number in text.split(",")],
        metavar="0,4",
        default=[0, 4, 8, 16],
        help="numbers of busy processes, for C11",
    )
    parser.add_argument("--quick", action="store_true", help="one round of few steps: to try it out")
    parser.add_argument(
        "--scratch", type=Path, metavar="DIR", help="a folder on the disk to measure [TMPDIR]"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every single figure to FILE")
    options = parser.parse_args()
    if options.rounds < 1 or options.threads < 1:
        parser.error("--rounds and --threads must be at least 1")
    if unknown := set(options.only) - set(ALL):
        parser.error(f"--only knows {', '.join(ALL)}, not {', '.join(sorted(unknown))}")
    return options


if __name__ == "__main__":
    sys.exit(main())
