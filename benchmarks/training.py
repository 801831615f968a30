#!/usr/bin/env python3
"""How fast the training package is, next to the loops of pytorch/examples and to plain torch.save.

    python benchmarks/training.py --examples EXAMPLES    # a checkout of https://github.com/pytorch/examples
    python benchmarks/training.py --quick --only C1,C6   # to try it out: its figures mean little

Run it with a Python that has torch; the examples and C3 need torchvision (and Pillow, which comes with it). A
torchvision built for CUDA beside a torch built for CPUs will do. What cannot be measured is left out, and
said in one line. It takes about ten minutes on two idle cores.

Each round starts whole processes, one after the other, and every other round backwards (ABBA): a machine that
slows down slows all alike. A ratio is taken within its round; shown are the medians of the rounds, with the
lowest and the highest. The examples run unmodified, from a copy. A `sitecustomize` in front of all, of the
examples and of ours, writes down when each step of the optimizer ends, and ends a run that was long enough.

C1  MNIST (synthetic, in its own files), the example's Net, 64 images a step, Adadelta, fp32: images a second
C2  the same with --precision bf16, against the same example, which has fp32 alone
C3  ResNet-18 of 1000 classes from JPEGs of 500x375 pixels, cut to 224x224 as the example has it, 16 images a
    step, SGD, 2 loader processes; fp32, and bf16 with --channels-last
C4  two processes (gloo) of one thread each, 128 images a step, as against one process of one thread with 64
C5  from the start of the process to the end of the first step, of the runs of C1
C6  a checkpoint of 204 MB that has reached the disk (fsync), against torch.save and fsync; and the time for
    which the training stands still, which is that of the copy in memory
C7  from the start of a resumed process to the end of its first step, at 80 % of an epoch, against a fresh one
C8  all of the last checkpoint, resumed against uninterrupted: bit by bit

In C1 and C2 a run whose accuracy is GATE percentage points below the example's median does not count. C3 has
too few steps for an accuracy: there the loss has to be finite.

Exit status: 0 where all that was measured is on target, 1 where something is not, 2 where nothing was.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

CHECKOUT = Path(__file__).resolve().parents[1]
GATE = 2.0
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
    def note(*_):
        global left
        os.write(seen, struct.pack("d", time.time()))
        left -= 1
        if not left:
            sys.stdout.flush()
            os._exit(0)
    register_optimizer_step_post_hook(note)
"""


class UnmeasurableError(Exception):
    """Why there is no figure, in one line."""


@dataclass(frozen=True)
class Run:
    """What was seen of a process: seconds from its start to the end of each step, and what it printed."""

    steps_s: list[float]
    output: str

    def rate(self, batch: int, *, skip: int, last: int) -> float:
        """Images per second after the first `skip` steps, up to step `last`."""
        if len(self.steps_s) < last:
            raise UnmeasurableError(f"it made {len(self.steps_s)} steps of {last}")
        return batch * (last - skip) / (self.steps_s[last - 1] - self.steps_s[skip - 1])


@dataclass
class Figure:
    """One line of the table: ours against theirs, round by round.

    Args:
        higher: Whether a higher ratio is better.
        target: Of the ratio ours/theirs.
    """

    name: str
    unit: str
    target: float
    higher: bool
    ours: list[float] = field(default_factory=list)
    theirs: list[float] = field(default_factory=list)
    against: str = "examples"
    left_out: str = ""

    @property
    def ratios(self) -> list[float]:
        """Ours by theirs, within each round."""
        return [one / other for one, other in zip(self.ours, self.theirs, strict=True)]

    @property
    def verdict(self) -> str:
        """PASS, MISS, or a dash where nothing was measured."""
        if self.left_out or not self.ours:
            return "-"
        ratio = median(self.ratios)
        return "PASS" if (ratio >= self.target if self.higher else ratio <= self.target) else "MISS"


@dataclass(frozen=True)
class Bench:
    """Where things lie, and how much is measured."""

    scratch: Path
    options: argparse.Namespace
    shim: bool

    @property
    def steps(self) -> int:
        """Of an epoch of MNIST, without the last one, which is short."""
        return self.images // 64

    @property
    def images(self) -> int:
        """To train on."""
        return 1100 if self.options.quick else 12000

    @property
    def skip(self) -> int:
        """Steps that warm up."""
        return 4 if self.options.quick else 20

    @property
    def rounds(self) -> int:
        """How many."""
        return 1 if self.options.quick else int(self.options.rounds)


def main() -> int:
    """Measure and print; the exit status."""
    options = _options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # nothing is left behind
    sys.path.insert(0, str(CHECKOUT))  # before this file's folder
    with tempfile.TemporaryDirectory(prefix="speed-benchmark-", dir=options.scratch) as folder:
        bench = Bench(Path(folder), options, shim=_needs_shim())
        machine = _machine(options)
        print(machine, flush=True)
        _prepare(bench)
        figures: list[Figure] = []
        for names, part in PARTS.items():
            if set(names) & set(options.only):
                print(f"measuring {' '.join(names)}", file=sys.stderr, flush=True)
                figures += part(bench)
    print("\n".join([*table(figures), f"load average at the end: {_load()}"]))
    if options.json:
        options.json.write_text(
            json.dumps({"machine": machine, "figures": [asdict(one) for one in figures]}, indent=2) + "\n"
        )
    verdicts = {figure.verdict for figure in figures}
    return 1 if "MISS" in verdicts else 0 if "PASS" in verdicts else 2


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure how fast the training package is.")
    parser.add_argument("--examples", type=Path, metavar="DIR", help="a checkout of pytorch/examples")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="of each measurement [5]")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), metavar="N")
    parser.add_argument("--only", type=lambda text: text.split(","), metavar="C1,C6", default=list(ALL))
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


def _machine(options: argparse.Namespace) -> str:
    import torch

    known = Path("/proc/cpuinfo")
    said = known.read_text(encoding="utf-8") if known.exists() else ""
    models = re.findall(r"model name\s*: (.*)", said)
    processor = models[0] if models else platform.machine()
    features = (
        ", ".join(sorted(set(re.findall(r"\b(?:amx|avx512)_bf16\b", said))))
        or "neither amx_bf16 nor avx512_bf16"
    )
    return (
        f"{processor} ({features}), {len(os.sched_getaffinity(0))} CPUs, {options.threads} threads, "
        f"Python {platform.python_version()}, torch {torch.__version__}, load average {_load()}"
    )


def _load() -> str:
    return " ".join(f"{load:.1f}" for load in os.getloadavg())


def _needs_shim() -> bool:
    done = subprocess.run(
        [sys.executable, "-c", "import torchvision"], capture_output=True, text=True, check=False
    )
    return SHIMMED in done.stderr


def _prepare(bench: Bench) -> None:
    """The sitecustomize, and MNIST where the example looks for it: ../data, seen from its own folder."""
    from training import digits

    site = bench.scratch / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(SITE, encoding="utf-8")
    digits.write(bench.scratch / "data" / "MNIST" / "raw", train=bench.images, test=2000, seed=1)


def launch(bench: Bench, command: list[str], *, threads: int, end: int = 0) -> Run:
    """Run a Python of this environment, with the sitecustomize in front; `end`: the step after which it ends.

    Raises:
        UnmeasurableError: It failed.
    """
    seen = bench.scratch / "steps"
    seen.unlink(missing_ok=True)
    work = bench.scratch / "work"  # the examples write their checkpoints where they stand
    work.mkdir(exist_ok=True)
    environ = {name: value for name, value in os.environ.items() if not name.startswith(LAUNCHERS)}
    environ |= {
        "PYTHONPATH": os.pathsep.join([str(bench.scratch / "site"), str(CHECKOUT)]),
        "OMP_NUM_THREADS": str(threads),
        "SPEED_STEPS": str(seen),
        "SPEED_END": str(end),
        "SPEED_SHIM": "1" if bench.shim else "",
    }
    files = [bench.scratch / "stdout", bench.scratch / "stderr"]
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
    return Run([when - began for (when,) in struct.iter_unpack("d", data)], output)


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


def mnist(bench: Bench, seed: int) -> list[str]:
    """The example's MNIST."""
    return [_example(bench, "mnist"), "--epochs", "1", "--no-accel", "--seed", str(seed)]


def _example(bench: Bench, name: str) -> str:
    """A copy of its script, so that nothing is written in the checkout.

    Raises:
        UnmeasurableError: If there is none.
    """
    if bench.options.examples is None:
        raise UnmeasurableError("needs --examples DIR, a checkout of pytorch/examples")
    script = bench.options.examples / name / "main.py"
    if not script.is_file():
        raise UnmeasurableError(f"{script} is not there")
    return str(shutil.copy(script, bench.scratch / f"{name}.py"))


def accuracy(output: str) -> float:
    """In percent, of what the example or ours printed last.

    Raises:
        UnmeasurableError: If neither did.
    """
    if found := re.findall(r"Accuracy: (\d+)/(\d+)", output):
        return 100 * int(found[-1][0]) / int(found[-1][1])
    if found := re.findall(r"Accuracy: ([\d.]+)%", output):
        return float(found[-1])
    raise UnmeasurableError("it printed no accuracy")


def in_rounds(rounds: int, contenders: dict[str, Callable[[int], Any]]) -> Iterator[dict[str, Any]]:
    """What each contender gives, round by round, every other round backwards."""
    for number in range(rounds):
        names = list(contenders) if number % 2 == 0 else list(contenders)[::-1]
        found = {name: contenders[name](number) for name in names}
        yield {name: found[name] for name in contenders}


def _guarded(figures: list[Figure], work: Callable[[], None]) -> list[Figure]:
    """The figures, filled by the work, or left out with its reason."""
    try:
        work()
    except UnmeasurableError as reason:
        for figure in figures:
            if not figure.ours:
                figure.left_out = str(reason)
    return figures


def part_mnist(bench: Bench) -> list[Figure]:
    """MNIST against the example."""
    fp32, bf16 = (
        Figure(f"{name} MNIST {precision}", "images/s", target, higher=True)
        for name, precision, target in (("C1", "fp32", 1.1), ("C2", "bf16", 1.8))
    )
    first = Figure("C5 start to first step", "s", 1.05, higher=False)
    batch, end = 64, bench.steps if bench.options.quick else 0
    flags = ("--optimizer", "adadelta", "--lr", "1", "--batch-size", str(batch))

    def work() -> None:
        runs = list(
            in_rounds(
                bench.rounds,
                {
                    "theirs": lambda i: launch(
                        bench, mnist(bench, i + 1), threads=bench.options.threads, end=end
                    ),
                    "fp32": lambda i: launch(
                        bench,
                        ours(bench, *flags, "--seed", str(i + 1)),
                        threads=bench.options.threads,
                        end=end,
                    ),
                    "bf16": lambda i: launch(
                        bench,
                        ours(bench, *flags, "--seed", str(i + 1), "--precision", "bf16"),
                        threads=bench.options.threads,
                        end=end,
                    ),
                },
            )
        )
        for figure, name in ((fp32, "fp32"), (bf16, "bf16")):
            valid = runs if end else _valid(runs, name)
            if not valid:
                figure.left_out = f"no run came within {GATE} points of the example's accuracy"
            for run in valid:
                figure.ours.append(run[name].rate(batch, skip=bench.skip, last=bench.steps))
                figure.theirs.append(run["theirs"].rate(batch, skip=bench.skip, last=bench.steps))
        for run in runs:
            first.ours.append(run["fp32"].steps_s[0])
            first.theirs.append(run["theirs"].steps_s[0])

    return _guarded([fp32, bf16, first], work)


def _valid(runs: list[dict[str, Run]], name: str) -> list[dict[str, Run]]:
    """The rounds that count."""
    wanted = median(accuracy(run["theirs"].output) for run in runs) - GATE
    reached = [accuracy(run[name].output) for run in runs]
    print(f"accuracy of {name}: {_spread(reached)} %, at least {wanted:.2f} % is wanted", flush=True)
    return [run for run, percent in zip(runs, reached, strict=True) if percent >= wanted]


def part_images(bench: Bench) -> list[Figure]:
    """ResNet-18 from JPEGs against the example."""
    fp32 = Figure("C3 ResNet-18 fp32", "images/s", 1.0, higher=True)
    bf16 = Figure("C3 ResNet-18 bf16, channels last", "images/s", 1.8, higher=True)
    batch, skip, last = (16, 2, 4) if bench.options.quick else (16, 4, 14)

    def command(i: int, *flags: str) -> list[str]:
        folders = ("--data-dir", str(jpegs / "train"), "--val-path", str(jpegs / "val"), "--workers", "2")
        how = ("--optimizer", "sgd", "--lr", "0.1", "--momentum", "0.9", "--weight-decay", "1e-4")
        model = ("--dataset", "imagefolder", "--model", "resnet18", "--schedule", "constant")
        seed = ("--batch-size", str(batch), "--seed", str(i + 1), "--log-every", "10")
        return ours(bench, *folders, *how, *model, *seed, *flags)

    def theirs(_: int) -> list[str]:
        return [
            *(_example(bench, "imagenet"), str(jpegs), "-a", "resnet18", "-b", str(batch), "-j", "2"),
            *("--epochs", "1", "--no-accel", "--lr", "0.1"),
        ]

    def timed(words: list[str]) -> Run:
        run = launch(bench, words, threads=bench.options.threads, end=last)
        if re.search(r"loss \D*(nan|inf)|Loss (nan|inf)", run.output):
            raise UnmeasurableError("a loss was not finite")
        return run

    jpegs = bench.scratch / "jpegs"

    def work() -> None:
        _example(bench, "imagenet")
        draw(jpegs, classes=100 if bench.options.quick else 1000)
        runs = in_rounds(
            bench.rounds,
            {
                "theirs": lambda i: timed(theirs(i)),
                "fp32": lambda i: timed(command(i)),
                "bf16": lambda i: timed(command(i, "--precision", "bf16", "--channels-last")),
            },
        )
        for run in runs:
            for figure, name in ((fp32, "fp32"), (bf16, "bf16")):
                figure.ours.append(run[name].rate(batch, skip=skip, last=last))
                figure.theirs.append(run["theirs"].rate(batch, skip=skip, last=last))

    return _guarded([fp32, bf16], work)


def draw(folder: Path, *, classes: int) -> None:
    """A JPEG of 500x375 pixels a class, as large in bytes as photographs are; the same for the validation.

    Raises:
        UnmeasurableError: Without Pillow.
    """
    try:
        from PIL import Image  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ImportError as error:
        raise UnmeasurableError("needs torchvision and Pillow") from error
    for number in range(classes):
        place = folder / "train" / f"c{number:04}"
        place.mkdir(parents=True)
        coarse = Image.effect_noise((125, 94), 60 + number % 40)
        colours = [coarse.rotate(90 * turn).resize((500, 375), Image.Resampling.BICUBIC) for turn in range(3)]
        Image.merge("RGB", colours).save(place / "image.jpg", quality=90)
    (folder / "val").symlink_to(folder / "train")


def part_processes(bench: Bench) -> list[Figure]:
    """Two processes against one."""
    figure = Figure("C4 2 processes / (2 x 1 process)", "images/s", 0.8, higher=True, against="2 x one")
    last, skip = bench.steps // 2, bench.skip // 2
    two = ("--launcher", "spawn", "--nproc-per-node", "2", "--batch-size", "128")

    def work() -> None:
        runs = in_rounds(
            bench.rounds,
            {
                "two": lambda _: launch(bench, ours(bench, *two), threads=1),
                "one": lambda _: launch(bench, ours(bench, "--batch-size", "64"), threads=1, end=last + skip),
            },
        )
        for run in runs:
            figure.ours.append(run["two"].rate(128, skip=skip, last=last))
            figure.theirs.append(2 * run["one"].rate(64, skip=skip, last=last + skip))

    return _guarded([figure], work)


def part_saves(bench: Bench) -> list[Figure]:
    """Checkpoints against torch.save."""
    import torch

    from training.saving import checkpoint
    from training.saving.writer import Copies

    plain = "torch.save, fsync"
    sync = Figure("C6 save, on the disk", "ms", 1.25, higher=False, against=plain)
    stall = Figure("C6 save, training stands still", "ms", 1.25, higher=False, against=plain)
    torch.set_num_threads(bench.options.threads)
    tensors = {f"weight{i}": torch.randn(1_000_000) for i in range(51)}
    state = {"model": tensors, "optimizer": {}, "step": 0}
    folder = bench.scratch / "saves"
    folder.mkdir()
    copies = Copies()

    def plainly(_: int) -> None:
        path = folder / "plain.pt"
        torch.save(state, path)
        with path.open("rb") as file:
            os.fsync(file.fileno())

    def timed(work: Callable[[int], Any]) -> Callable[[int], float]:
        def call(number: int) -> float:
            began = time.perf_counter()
            work(number)
            return (time.perf_counter() - began) * 1000

        return call

    saves = {
        "plain": timed(plainly),
        "ours": timed(lambda number: checkpoint.save(folder, state, step=number, keep=1, best=False)),
        "copy": timed(lambda _: copies.take(state)),
    }
    for save in saves.values():
        save(0)  # the first ones find no file to replace, and no memory
    for found in in_rounds(4 * bench.rounds, {name: _later(save) for name, save in saves.items()}):
        sync.ours.append(found["ours"])
        stall.ours.append(found["copy"])
        for figure in (sync, stall):
            figure.theirs.append(found["plain"])
    shutil.rmtree(folder)
    return [sync, stall]


def _later(save: Callable[[int], float]) -> Callable[[int], float]:
    return lambda number: save(number + 1)


def part_resume(bench: Bench) -> list[Figure]:
    """Resumed against fresh and uninterrupted."""
    when = Figure("C7 resume at 80 %, to first step", "s", 1.0, higher=False, against="fresh+load+0.5")
    same = Figure("C8 equal to the bit, resumed", "values", 1.0, higher=True, against="uninterrupted")
    every, threads = round(0.8 * bench.steps), bench.options.threads
    flags = ("--batch-size", "64", "--save-every", str(every))

    def work() -> None:
        launch(bench, ours(bench, *flags, run="cut"), threads=threads, end=every + bench.skip)
        cut = bench.scratch / "cut" / "checkpoints" / f"step-{every:08}.pt"
        if not cut.is_file():
            raise UnmeasurableError(f"{cut.name} was not there in time")

        def resumed(_: int) -> Run:
            shutil.rmtree(bench.scratch / "resumed", ignore_errors=True)
            shutil.copytree(bench.scratch / "cut", bench.scratch / "resumed")
            return launch(bench, ours(bench, *flags, run="resumed", keep=True), threads=threads, end=1)

        fresh = ours(bench, *flags)
        for found in in_rounds(
            bench.rounds,
            {"resumed": resumed, "fresh": lambda _: launch(bench, fresh, threads=threads, end=1)},
        ):
            when.ours.append(found["resumed"].steps_s[0])
            when.theirs.append(found["fresh"].steps_s[0] + _load_s(cut) + 0.5)
        ends = []
        for run in ("cut", "whole"):
            launch(bench, ours(bench, *flags, run=run, keep=True), threads=threads)
            ends.append(max((bench.scratch / run / "checkpoints").glob("step-*.pt")))
        equal, total = compared(*ends)
        same.ours, same.theirs = [float(equal)], [float(total)]

    return _guarded([when, same], work)


def _load_s(path: Path) -> float:
    """Seconds to check and load a checkpoint."""
    from training.saving import checkpoint

    began = time.perf_counter()
    checkpoint.decode(path)
    return time.perf_counter() - began


def compared(one: Path, other: Path) -> tuple[int, int]:
    """How many of the values in two checkpoints are equal, and how many there are; a tensor is one value."""
    import torch

    left, right = (dict(_values(torch.load(path, weights_only=True))) for path in (one, other))
    equal = 0
    for key in left.keys() & right.keys():
        a, b = left[key], right[key]
        both = isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)
        equal += (a.dtype == b.dtype and torch.equal(a, b)) if both else a == b
    return equal, len(left.keys() | right.keys())


def _values(value: Any, *keys: Any) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """What is in dictionaries and lists, each with the keys that lead to it."""
    if isinstance(value, (dict, list, tuple)):
        for key, one in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _values(one, *keys, key)
    else:
        yield keys, value


PARTS = {
    ("C1", "C2", "C5"): part_mnist,
    ("C3",): part_images,
    ("C4",): part_processes,
    ("C6",): part_saves,
    ("C7", "C8"): part_resume,
}
ALL = tuple(sorted(name for names in PARTS for name in names))


def table(figures: list[Figure]) -> Iterator[str]:
    """The lines to print."""
    rows = [("", "ours", "against", "", "unit", "ratio", "target", "")]
    for one in figures:
        if one.left_out or not one.ours:
            continue
        sign = ">=" if one.higher else "<="
        rows.append(
            (
                *(one.name, _spread(one.ours), _spread(one.theirs), one.against, one.unit),
                *(_spread(one.ratios), f"{sign} {one.target:g}", one.verdict),
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        yield "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
    for one in figures:
        if one.left_out:
            yield f"{one.name}: left out: {one.left_out}"


def _spread(values: list[float]) -> str:
    """The median, with the lowest and the highest."""
    middle = median(values)
    digits = max(0, 2 - int(math.log10(max(abs(middle), 1))))
    low, mid, high = (f"{value:.{digits}f}" for value in (min(values), middle, max(values)))
    return mid if len(values) == 1 else f"{mid} ({low}..{high})"


if __name__ == "__main__":
    sys.exit(main())
