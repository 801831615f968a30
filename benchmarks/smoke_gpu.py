#!/usr/bin/env python3
"""Whether the training package works on the GPUs of this machine: each way once, and a table for a report.

    make smoke-gpu                    # about ten minutes
    python benchmarks/smoke_gpu.py    # with a Python that has torch and torchvision for the GPUs

Each row is a run of the trainer as users start it: one GPU, all GPUs with NCCL, nn.DataParallel, bf16, fp16,
--compile, a checkpoint of the GPU resumed on the CPU and back, and images a second against a plain loop. A
run that is stopped in the middle and resumed with --deterministic has to end with the checkpoint of an
uninterrupted one, bit for bit.

On a machine without GPUs, this tries the program itself, with CPUs in the place of two (all rows but those
with --compile, whose compiler asks CUDA itself):

    CUDA_ON_CPU=2 PYTHONPATH=benchmarks/cuda_on_cpu python benchmarks/smoke_gpu.py --quick

Exit status: 0 if all is well, 1 if a row is not, 77 if nothing was run because no GPU is visible.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

NOT_RUN = 77  # as Automake's tests say "skipped"
LONGEST_S = 300.0  # for one run


@dataclass(frozen=True, kw_only=True)
class Row:
    """A row of the table."""

    what: str
    good: bool
    facts: str


@dataclass(frozen=True, kw_only=True)
class Smoke:
    """The folder of all runs, the number of GPUs, and how much is trained."""

    folder: Path
    gpus: int
    images: int = 2048
    batch: int = 128  # of ResNet-50

    @property
    def small(self) -> tuple[str, ...]:
        """The flags of a training of seconds."""
        data = ("--dataset", "fake", "--fake-samples", str(self.images), "--tensorboard", "off")
        return (*data, "--epochs", "2", "--batch-size", str(self.images // 16))

    @property
    def large(self) -> tuple[str, ...]:
        """The flags of a training that needs a GPU."""
        data = ("--dataset", "fake", "--fake-samples", str(32 * self.batch), "--batch-size", str(self.batch))
        return (*data, "--model", "resnet50", "--optimizer", "sgd", "--epochs", "1", "--log-every", "10")

    def train(self, name: str, *flags: str, processes: int = 1, stop: bool = False) -> None:
        """Run the trainer to its end, or `stop` it after its first steps; RuntimeError if it fails."""
        many = ("--launcher", "spawn", "--nproc-per-node", str(processes)) if processes > 1 else ()
        run_dir = self.folder / name
        command = [sys.executable, "-m", "training", "--run-dir", str(run_dir), *many, *flags]
        with (self.folder / f"{name}.log").open("w+") as log:
            process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)
            try:
                while stop and process.poll() is None and not self.event(name, "train"):
                    time.sleep(0.05)
                if stop:
                    (run_dir / "stop").touch()
                status = process.wait(LONGEST_S)
            finally:
                process.kill()
                process.wait()
            (run_dir / "stop").unlink(missing_ok=True)
            log.seek(0)
            if status != (75 if stop else 0):
                raise RuntimeError(f"exit status {status}: {log.read().strip()[-400:]}")

    def event(self, name: str, kind: str) -> dict[str, Any]:
        """The last event of a kind; empty before the first one."""
        file = self.folder / name / "events.jsonl"
        lines = reversed(file.read_text().splitlines() if file.exists() else [])
        events = (json.loads(line) for line in lines if line.endswith("}"))
        return next((event for event in events if event["event"] == kind), {})

    def state(self, name: str) -> dict[str, Any]:
        """The newest checkpoint."""
        import torch

        newest = json.loads((self.folder / name / "status.json").read_text())["checkpoint"]
        state: dict[str, Any] = torch.load(self.folder / name / newest, weights_only=True, map_location="cpu")
        return state


def runs(smoke: Smoke) -> Iterator[tuple[str, Callable[[], str]]]:
    """Each way of the trainer, and what does it; the result is what the table says."""

    def plain(name: str, *flags: str, processes: int = 1) -> Callable[[], str]:
        def run() -> str:
            began = time.monotonic()
            smoke.train(name, *smoke.small, *flags, processes=processes)
            return f"loss {smoke.event(name, 'epoch')['loss']:.4f}, {time.monotonic() - began:.0f} s"

        return run

    yield "one GPU, fp32 with TF32", plain("one")
    yield "bf16, channels_last, EMA", plain("bf16", "--precision", "bf16", "--channels-last", "--ema", "0.99")
    for optimizer in ("adamw", "sgd"):
        flags = ("--precision", "fp16", "--optimizer", optimizer)
        yield f"fp16 with a loss scale, {optimizer}", plain(f"fp16-{optimizer}", *flags)
    yield "--compile, bf16", plain("compile", "--compile", "--precision", "bf16")
    yield "checkpoint of the GPU on the CPU, and back", lambda: _there_and_back(smoke)
    yield "stopped and resumed, --deterministic", lambda: _resumed(smoke, "resume", 1)
    fp16 = ("--precision", "fp16")
    yield "the same in fp16", lambda: _resumed(smoke, "resume-fp16", 1, *fp16)
    yield "one GPU, NCCL", lambda: _alone(smoke)
    yield "memory: computed, and taken", lambda: _memory(smoke)
    if smoke.gpus > 1:
        yield f"{smoke.gpus} GPUs, NCCL", plain("nccl", processes=smoke.gpus)
        yield (
            f"{smoke.gpus} GPUs, --compile, bf16",
            plain("both", "--compile", "--precision", "bf16", processes=smoke.gpus),
        )
        yield (
            f"{smoke.gpus} GPUs, nn.DataParallel, bf16",
            plain("dp", "--dataparallel", "--precision", "bf16"),
        )
        yield (
            f"{smoke.gpus} GPUs, stopped and resumed, --deterministic",
            lambda: _resumed(smoke, "all", smoke.gpus),
        )
    yield "ResNet-50, bf16, against a plain loop", lambda: _throughput(smoke)


def _resumed(smoke: Smoke, name: str, processes: int, *more: str) -> str:
    """A run that is stopped in the middle of an epoch ends as one that is not."""
    flags = (*smoke.small, "--deterministic", "--optimizer", "sgd", *more)
    smoke.train(f"{name}-whole", *flags, processes=processes)
    smoke.train(name, *flags, "--step-delay", "0.2", "--log-every", "1", processes=processes, stop=True)
    at = smoke.state(name)["step"]
    smoke.train(name, *flags, processes=processes)
    if not equal(smoke.state(name), smoke.state(f"{name}-whole")):
        raise RuntimeError(f"stopped at step {at}: the state differs from that of the uninterrupted run")
    return f"stopped at step {at}: equal, bit by bit"


def _alone(smoke: Smoke) -> str:
    """A process of a launcher has a process group: it meets, adds up, saves and leaves by NCCL."""
    smoke.train("alone", *smoke.small, "--launcher", "spawn", "--nproc-per-node", "1", "--save-every", "3")
    group = smoke.event("alone", "start")["process_group"]
    if group not in ("nccl", "gloo"):
        raise RuntimeError(f"the process group is {group!r}")
    return f"{group}, loss {smoke.event('alone', 'epoch')['loss']:.4f}"


def _memory(smoke: Smoke) -> str:
    """The peak of the tensors that `rehearse` computes, and that torch counts, of ResNet-50 in bf16."""
    flags = (*smoke.large, "--precision", "bf16")
    smoke.train("memory", *flags)
    program = [
        sys.executable,
        str(ROOT / "training/memory.py"),
        *flags,
    ]
    done = subprocess.run(program, capture_output=True, text=True, check=True)
    computed = json.loads(done.stdout)["peak_bytes"] / 2**20
    taken = smoke.event("memory", "resources").get("gpu_allocated_bytes", 0) / 2**20
    if taken and not 0.9 * taken <= computed <= 1.1 * taken:
        raise RuntimeError(f"computed {computed:.0f} MiB, taken {taken:.0f} MiB")
    return f"computed {computed:.0f} MiB, taken {taken:.0f} MiB"


def _there_and_back(smoke: Smoke) -> str:
    """Each way the loss stays finite, and the optimizer takes the state."""
    for device, epochs in (("cuda", "1"), ("cpu", "2"), ("cuda", "3")):
        smoke.train("moved", *smoke.small, "--optimizer", "adamw", "--device", device, "--epochs", epochs)
    return f"loss {smoke.event('moved', 'epoch')['loss']:.4f} after 3 epochs"


def _throughput(smoke: Smoke) -> str:
    """Images a second on one GPU, ours and a loop without anything."""
    smoke.train("speed", *smoke.large, "--precision", "bf16", "--channels-last")
    ours = smoke.event("speed", "train")["samples_per_s"]
    bare = _bare_loop(smoke.batch)
    return f"{ours:.0f} and {bare:.0f} images/s: {ours / bare:.2f}"


def _bare_loop(batch: int, steps: int = 20) -> float:
    """Images a second of ResNet-50 on images that are on the GPU."""
    import torch
    from torchvision.models import resnet50  # type: ignore[import-not-found,import-untyped,unused-ignore]

    torch.backends.cudnn.benchmark = True
    model = resnet50(num_classes=1000).cuda().to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, fused=True)
    images = torch.randn(batch, 3, 224, 224, device="cuda").to(memory_format=torch.channels_last)
    labels = torch.randint(1000, (batch,), device="cuda")
    began = 0.0
    for step in range(steps + 5):
        if step == 5:
            torch.cuda.synchronize()
            began = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            logits = model(images)
        torch.autograd.backward(torch.nn.functional.cross_entropy(logits.float(), labels))
        optimizer.step()
    torch.cuda.synchronize()
    return steps * batch / (time.perf_counter() - began)


def equal(first: Any, other: Any) -> bool:
    """Whether two states are equal, bit by bit."""
    import torch

    if isinstance(first, torch.Tensor):
        return first.dtype == other.dtype and torch.equal(first, other)
    if isinstance(first, dict):
        return first.keys() == other.keys() and all(equal(first[key], other[key]) for key in first)
    if isinstance(first, (list, tuple)):
        return len(first) == len(other) and all(map(equal, first, other))
    return bool(first == other)


def main() -> int:
    """Run all and print the table; the exit status."""
    parser = argparse.ArgumentParser(description="Try the training package on the GPUs of this machine.")
    parser.add_argument("--scratch", type=Path, metavar="DIR", help="where the runs are kept [TMPDIR]")
    parser.add_argument(
        "--quick", action="store_true", help="few images: to try this program; its figures mean little"
    )
    options = parser.parse_args()
    try:
        import torch

        gpus = torch.cuda.device_count()
        kind = torch.cuda.get_device_name(0) if gpus else ""
    except (ImportError, RuntimeError) as error:
        gpus, kind = 0, str(error)
    if not gpus:
        print(f"not run: no GPU is visible to {sys.executable}{kind and f' ({kind})'}")
        return NOT_RUN
    os.environ["SBATCHGEN_EXIT_FILE"] = ""  # exit statuses as they are
    with tempfile.TemporaryDirectory(prefix="smoke-gpu-", dir=options.scratch) as folder:
        few = {"images": 256, "batch": 2} if options.quick else {}
        rows = [tried(what, run) for what, run in runs(Smoke(folder=Path(folder), gpus=gpus, **few))]
    print(f"\n{gpus} x {kind}, torch {torch.__version__}, CUDA {torch.version.cuda}, NCCL {_nccl()}\n")
    print("| what | result | facts |\n|---|---|---|")
    for row in rows:
        print(f"| {row.what} | {'good' if row.good else 'FAILED'} | {row.facts} |")
    return int(not all(row.good for row in rows))


def tried(what: str, run: Callable[[], str]) -> Row:
    """The row of a run, whatever happens in it."""
    print(f"{what} ...", file=sys.stderr, flush=True)
    try:
        return Row(what=what, good=True, facts=run())
    except Exception as error:  # noqa: BLE001 - the other rows are wanted too
        return Row(what=what, good=False, facts=" ".join(f"{type(error).__name__}: {error}".split())[:500])


def _nccl() -> str:
    import torch

    try:
        return ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]
    except Exception:  # noqa: BLE001 - a torch without NCCL
        return "-"


if __name__ == "__main__":
    sys.exit(main())
