#!/usr/bin/env python3
"""Rehearse healthy jobs, and count what is taken for a fault: `python benchmarks/rehearse.py 100`.

The jobs: the bundled trainer in all modes and launchers with many of its flags, the examples, the trainers of
the pages on trainers with their libraries, and trainers as people write them, without the contract. With
--examples FOLDER, a checkout of pytorch/examples, also programs of it. Each row that is not ok is printed; a
`failed` row is a false alarm, and the exit status is 1.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.jobs import test_own_trainer as page  # noqa: E402
from tests.plan.rehearsal_faults import KEEPS, PROFILE, RANKS  # noqa: E402
from tests.training.forks import QUICKLY  # noqa: E402

SBATCHGEN = str(Path(sys.executable).with_name("sbatchgen"))
OWN_PROFILE = (
    PROFILE.format(path=f"{QUICKLY}:{ROOT}:{ROOT}/examples")
    .replace("gpus_per_node: 4", "gpus_per_node: 4, gpu_memory: 40G")
    .replace("OMP_NUM_THREADS: 1", 'OMP_NUM_THREADS: 1, ACCELERATE_USE_CPU: "true"')
)
FLAGS = (
    "--optimizer sgd", "--optimizer adamw", "--precision bf16", "--accumulate 2", "--ema 0.9",
    "--activation-checkpointing", "--save-every 7", "--keep 1", "--schedule cosine", "--clip-norm 1",
    "--channels-last", "--keep-epochs", "--sync-every 1", "--tensorboard off", "--deterministic",
    "--log-every 5",
)  # fmt: skip
DATA = ("", "", "--dataset fake --fake-samples 400 --model convnet", "--dataset own:data --model own:model")
OPTIONS = ("", "", "--signal B:USR1@60", "--resume off", "--max-restarts 1", "--time 01:00:00", "--chain 2")
NODES = ("--nodes 1 --gpus-per-node 2", "--nodes 2 --gpus-per-node 1", "--nodes 2 --gpus-per-node 2")
LAUNCHED = [
    f"ddp --launcher {launcher} {nodes}" for launcher in ("torchrun", "srun", "spawn") for nodes in NODES
]
SHAPES = [tuple(shape.split()) for shape in (*LAUNCHED, "single", "cpu", "dataparallel --gpus-per-node 2")]
SLOWLY = """
import time
from tests.training import vision
from torch.optim.optimizer import register_optimizer_step_post_hook

vision.fit()
register_optimizer_step_post_hook(lambda *_: time.sleep(0.1))
"""
# As people write them: no stop file, a checkpoint after each epoch in the folder of the start.
STUDENT = """
import os, time, torch
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(20):
    for batch in range(5):
        loss = (model(torch.randn(8, 4)) - 1).square().mean()
        optimizer.zero_grad(); loss.backward(); optimizer.step()
        time.sleep(0.05)
    print(f"Epoch {epoch}: loss {loss.item():.4f}")
    torch.save(model.state_dict(), "model.pt")
print("Error rate: 0.03; finished without errors")
"""
RESUMES = STUDENT.replace(
    "model = ", "last = os.path.join(os.environ['RUN_DIR'], 'last.pth.tar')\nmodel = ", 1
)
RESUMES = RESUMES.replace(
    "for epoch in range(20)",
    "first = torch.load(last)['epoch'] if os.path.exists(last) else 0\nfor epoch in range(first, 20)",
)
RESUMES = RESUMES.replace(
    'torch.save(model.state_dict(), "model.pt")', "torch.save({'epoch': epoch + 1}, last)"
)
METRICS = ("--metrics", r"Epoch (?P<epoch>\d+): loss (?P<loss>[\d.]+)")


LONGER = {
    "EPOCHS = 3": "EPOCHS = 12",
    "max_epochs=3": "max_epochs=12, enable_progress_bar=False",
    "TrainingArguments(run)": "TrainingArguments(run, num_train_epochs=12, logging_steps=1)",
}
SHORT = ("--stop-after", "12", "--format", "json")


class Job(NamedTuple):
    """A healthy job: the words of its command, and its trainer."""

    words: tuple[str, ...]
    trainer: str = ""


def bundled(pick: random.Random) -> Job:
    """A job of the bundled trainer."""
    shape, flags = pick.choice(SHAPES), [word for flag in pick.sample(FLAGS, 2) for word in flag.split()]
    option = pick.choice(OPTIONS).split()
    common = ["--batch-size", "16", "--epochs", "4", "--step-delay", "0.03", "--model", "small_model:make"]
    return Job((*shape, "--data-dir", "data", *option, "--", *common, *flags, *pick.choice(DATA).split()))


def on_page(pick: random.Random) -> Job:
    """A job of a page on trainers."""
    name = pick.choice(list(page.YOURS))
    code = page.code(name)
    yours = (
        page.YOURS[name]
        .replace("epochs = 3", "epochs = 12")
        .replace("left.with_suffix", "Path(run).with_suffix")
    )
    for old, new in LONGER.items():
        code = code.replace(old, new)
    shape = SHAPES[pick.choice((0, 3) if name != page.PLAIN else range(6))]
    devices = ("--env", "PL_TRAINER_DEVICES=2") if name == page.LIGHTNING else ()
    start = f"from pathlib import Path\nimport os, torch\nrun = os.environ['RUN_DIR']\n{SLOWLY}{yours}"
    return Job((*shape, *devices), start + code)


def own(pick: random.Random) -> Job:
    """A job of a trainer without a library."""
    by_pattern = ("--requeue-on-timeout", *METRICS)
    return pick.choice((
        Job(("single",), KEEPS), Job(("cpu",), KEEPS), Job(SHAPES[1], RANKS), Job(SHAPES[4], RANKS),
        Job(("single", "--resume", "off"), STUDENT), Job(("single", "--resume", "off", *METRICS), STUDENT),
        Job(("single", *by_pattern), RESUMES), Job(("cpu", *by_pattern), RESUMES),
    ))  # fmt: skip


def of_examples(folder: Path) -> Iterator[Job]:
    """Yield jobs of pytorch/examples."""
    words = ("single", "--resume", "off")
    series = folder / "distributed/ddp-tutorial-series"
    for name, shape in (("multigpu_torchrun.py", SHAPES[0]), ("single_gpu.py", ("single",))):
        text = (
            (series / name)
            .read_text()
            .replace("from datautils", (series / "datautils.py").read_text() + "\n#")
        )
        yield Job((*shape, "--resume", "off", "--", "50", "10"), text)
    text = (
        (folder / "imagenet/main.py")
        .read_text()
        .replace("import torchvision", f"{SLOWLY}\nimport torchvision", 1)
    )
    yield Job((*words, "--", "--dummy", "--epochs", "1", "-b", "4"), text)


def rehearsed(job: Job, seconds: str) -> tuple[float, int, list[dict[str, Any]]]:
    """Rehearse a job; return how long it took, its exit status and its rows."""
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        (place / "testing.yaml").write_text(OWN_PROFILE)
        (place / "sbatchgen.yaml").write_text("profile: ./testing.yaml\n")
        drawing = ("--to", "data", "--synthetic", "--train", "400", "--test", "100")
        subprocess.run(
            [SBATCHGEN, "data", "mnist", "--to", "data", *drawing], cwd=place, check=True, capture_output=True
        )
        mode, *words = job.words
        if job.trainer:
            (place / "train.py").write_text(job.trainer)
            words = ["--trainer", "train.py", *words]
        began = time.monotonic()
        done = subprocess.run(
            [SBATCHGEN, "rehearse", mode, "--seconds", seconds, *SHORT, *words],
            cwd=place, capture_output=True, text=True, check=False, env=os.environ | {"USER": "me"},
        )  # fmt: skip
        rows = json.loads(done.stdout)["rows"] if done.stdout.startswith("{") else []
        return (
            time.monotonic() - began,
            done.returncode,
            rows or [{"what": "command", "outcome": "failed", "detail": done.stderr[-300:]}],
        )


def main() -> int:
    """Rehearse the jobs; print each row that is not ok."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("jobs", type=int)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--seconds", default="60")
    options.add_argument("--parallel", type=int, default=2)
    options.add_argument("--examples", type=Path)
    chosen = options.parse_args()
    pick = random.Random(chosen.seed)  # noqa: S311 - jobs, not keys
    jobs = [*(of_examples(chosen.examples) if chosen.examples else ())]
    jobs += [pick.choice((bundled, bundled, on_page, own))(pick) for _ in range(chosen.jobs - len(jobs))]
    outcomes: Counter[str] = Counter()
    seconds, alarms = [], 0
    with ThreadPoolExecutor(chosen.parallel) as pool:
        for job, (took, status, rows) in zip(
            jobs, pool.map(lambda each: rehearsed(each, chosen.seconds), jobs), strict=True
        ):
            seconds.append(took)
            alarms += bool(status)
            outcomes.update(row["outcome"] for row in rows)
            print(f"{took:4.0f} s  {status}  {' '.join(job.words)[:150]}", flush=True)
            for row in rows:
                if row["outcome"] != "ok":
                    print(f"          {row['what']}: {row['outcome']}: {row['detail'][:200]}", flush=True)
    print(f"seed {chosen.seed}: {len(jobs)} healthy jobs, {alarms} false alarms; rows: {dict(outcomes)}")
    print(f"{sorted(seconds)[len(seconds) // 2]:.0f} s at the median, {max(seconds):.0f} s at most")
    return bool(alarms)


if __name__ == "__main__":
    sys.exit(main())
