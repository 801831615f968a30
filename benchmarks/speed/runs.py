"""Processes that are timed: each step of them, from outside."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import struct
import subprocess
import sys
import time
from bisect import bisect_right
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.speed.figures import UnmeasurableError

CHECKOUT = Path(__file__).resolve().parents[2]


TIMEOUT_S = 600


LAUNCHERS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_", "SLURM", "PYTHON", "OMP_")


SHIMMED = "operator torchvision::nms does not exist"  # a torchvision built for CUDA beside a torch for CPUs


SITE = """
import os, struct, sys, time
if os.environ.get("SPEED_SHIM"):
    # torchvision adds to these two operators, which are not there where its own library does not load
    import torch
    library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        library.define(name + "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
if os.environ.get("SPEED_STEPS") and os.environ.get("RANK", "0") == "0":
    from torch.optim.optimizer import register_optimizer_step_post_hook
    seen = os.open(os.environ["SPEED_STEPS"], os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    left = int(os.environ["SPEED_END"])
    def cpu_s():
        ticks = 0
        for child in open(f"/proc/self/task/{os.getpid()}/children").read().split():  # its loaders
            try:
                ticks += sum(map(int, open(f"/proc/{child}/stat").read().rpartition(")")[2].split()[11:15]))
            except OSError:  # it has ended, and is counted below
                pass
        return sum(os.times()[:4]) + ticks / os.sysconf("SC_CLK_TCK")
    def note(*_):
        global left
        os.write(seen, struct.pack("2d", time.time(), cpu_s()))
        left -= 1
        if not left:
            sys.stdout.flush()
            os._exit(0)
    register_optimizer_step_post_hook(note)
"""


@dataclass(frozen=True)
class Run:
    """A measured process: seconds from its start to the end of each step, CPU seconds, and its output."""

    steps_s: list[float]
    output: str
    cpu_s: list[float] = field(default_factory=list)

    def step_at(self, second: float) -> float:
        """Return how many steps had ended at a second after the start, with the part of the step in work."""
        after = bisect_right(self.steps_s, second)
        if not 0 < after < len(self.steps_s):
            return after
        begin, end = self.steps_s[after - 1 : after + 1]
        return after + (second - begin) / (end - begin)

    def rate(self, batch: int, *, skip: int, last: int, cpu: bool = False) -> float:
        """Images per second, or per CPU second, after the first `skip` steps, up to step `last`."""
        seconds = self.cpu_s if cpu else self.steps_s
        if len(seconds) < last:
            raise UnmeasurableError(f"it made {len(seconds)} steps of {last}")
        return batch * (last - skip) / (seconds[last - 1] - seconds[skip - 1])


@dataclass(frozen=True)
class Bench:
    """The folders, and how much is measured."""

    scratch: Path
    options: argparse.Namespace
    shim: bool

    @property
    def steps(self) -> int:
        """The steps of an epoch of MNIST, without the last, which is short."""
        return self.images // 64

    @property
    def images(self) -> int:
        """The number of training images."""
        return 1100 if self.options.quick else 12000

    @property
    def skip(self) -> int:
        """The number of steps that warm up."""
        return 4 if self.options.quick else 20

    @property
    def rounds(self) -> int:
        """The number of rounds."""
        return 1 if self.options.quick else int(self.options.rounds)


def needs_shim() -> bool:
    """Whether torchvision is built for CUDA, and torch for CPUs."""
    done = subprocess.run(
        [sys.executable, "-c", "import torchvision"], capture_output=True, text=True, check=False
    )
    return SHIMMED in done.stderr


def prepare(bench: Bench) -> None:
    """The sitecustomize, and MNIST where the example looks for it: ../data, seen from its own folder."""
    from sbatchgen.lab.prepare import digits

    site = bench.scratch / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(SITE, encoding="utf-8")
    digits.write(bench.scratch / "data" / "MNIST" / "raw", train=bench.images, test=2000, seed=1)


def launch(bench: Bench, command: list[str], *, threads: int, end: int = 0, name: str = "") -> Run:
    """Run a Python of this environment, with the sitecustomize in front; `end`: the step after which it ends.

    Two processes at the same time need names: their files carry the names.

    Raises:
        UnmeasurableError: It failed.
    """
    seen = bench.scratch / f"steps{name}"
    seen.unlink(missing_ok=True)
    work = bench.scratch / f"work{name}"  # the examples write their checkpoints to the working folder
    work.mkdir(exist_ok=True)
    environ = {name: value for name, value in os.environ.items() if not name.startswith(LAUNCHERS)}
    environ |= {
        "PYTHONPATH": os.pathsep.join([str(bench.scratch / "site"), str(CHECKOUT)]),
        "OMP_NUM_THREADS": str(threads),
        "SPEED_STEPS": str(seen),
        "SPEED_END": str(end),
        "SPEED_SHIM": "1" if bench.shim else "",
    }
    files = [bench.scratch / f"stdout{name}", bench.scratch / f"stderr{name}"]
    with files[0].open("w") as stdout, files[1].open("w") as stderr:
        began = time.time()
        process = subprocess.Popen(
            [sys.executable, *command],
            cwd=work,
            env=environ,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
        )
        try:
            status = process.wait(TIMEOUT_S)
        except subprocess.TimeoutExpired:
            status = -signal.SIGALRM
        finally:
            _end(process)
    output, errors = (file.read_text(encoding="utf-8", errors="replace") for file in files)
    if status:
        last = (errors.strip() or "it said nothing").splitlines()[-1]
        raise UnmeasurableError(f"{command[0]} {command[1]} failed with exit status {status}: {last}")
    data = seen.read_bytes() if seen.exists() else b""
    steps = list(struct.iter_unpack("2d", data))
    return Run([when - began for when, _ in steps], output, [cpu_s for _, cpu_s in steps])


def _end(process: subprocess.Popen[bytes]) -> None:
    """The process and its loaders, which a run that was ended has left."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    finally:
        process.wait()


def ours(bench: Bench, *flags: str, run: str = "run", keep: bool = False) -> list[str]:
    """A command of the training package on MNIST, in a new run folder unless it is to be kept."""
    folder = bench.scratch / run
    if not keep:
        shutil.rmtree(folder, ignore_errors=True)
    common = ["--run-dir", str(folder), "--data-dir", str(bench.scratch / "data"), "--device", "cpu"]
    return ["-m", "training", *common, "--epochs", "1", *flags]


def example(bench: Bench, name: str) -> str:
    """A copy of its script, so that nothing is written in the checkout.

    Raises:
        UnmeasurableError: If it was not found.
    """
    if bench.options.examples is None:
        raise UnmeasurableError("needs --examples DIR, a checkout of pytorch/examples")
    script = bench.options.examples / name / "main.py"
    if not script.is_file():
        raise UnmeasurableError(f"{script} is not there")
    return str(shutil.copy(script, bench.scratch / f"{name}.py"))
