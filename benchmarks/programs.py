#!/usr/bin/env python3
"""Start public training programs by the job files of docs/how-to/programs.md, on a real Slurm without GPUs.

    PYTHON benchmarks/programs.py CHECKOUTS                      # half an hour on two cores
    PYTHON benchmarks/programs.py CHECKOUTS --only timm dino/srun

CHECKOUTS is a folder with a checkout of each program, named as OWNER+NAME. PYTHON has what the programs
import, and what sbatchgen and its tests do; nothing is downloaded. Each job has two nodes with two processes
each (single: one process), is requeued once it has saved, and has to say in its log that it resumes. The
trainings are tiny. Programs that demand CUDA get it from benchmarks/cuda_on_cpu. Needs root and Slurm, as the
tests of jobs do. Exit status: 1 if a job did not work.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import shutil
import struct
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.cluster.slurm import Cluster  # noqa: E402
from tests.docs.pages import blocks  # noqa: E402
from tests.training.vision import fit  # noqa: E402

PAGE = ROOT / "docs/how-to/programs.md"
SHIM = ROOT / "benchmarks/cuda_on_cpu"
LAUNCHERS = ("single", "torchrun", "srun")
LONGEST_S = 1200
PROFILE = f"""
name: testing
url: https://slurm.schedmd.com
checked: 2026-11-20
default_partition: gpu
partitions:
  gpu: {{time_max: 1-00:00:00, nodes_max: 4, cpus_per_node: 8, gpus_per_node: 4}}
network: {{gloo_socket_ifname: hsn0}}
options: {{mem: 2G, time: 00:30:00, cpus_per_task: 1}}
runtime: venv
runtimes:
  venv: {{path: {sys.prefix}}}
"""
# For references/classification/train.py of pytorch/vision: it starts, resumes and saves in the same way.
STAND_IN = """
import argparse, os, torch
from torch import distributed

parser = argparse.ArgumentParser()
for name in ("--data-path", "--model", "--device", "--output-dir", "--resume", "--dist-url"):
    parser.add_argument(name, default="")
parser.add_argument("--epochs", type=int)
args = parser.parse_args()
distributed_mode = True
if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
    rank, world, gpu = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
elif "SLURM_PROCID" in os.environ:
    rank = int(os.environ["SLURM_PROCID"])
    gpu, world = rank % torch.cuda.device_count(), args.world_size
else:
    print("Not using distributed mode")
    distributed_mode, rank = False, 0
model = torch.nn.Linear(4, 1).to(args.device)
if distributed_mode:
    torch.cuda.set_device(gpu)
    distributed.init_process_group(backend="nccl", init_method="env://", world_size=world, rank=rank)
    distributed.barrier()
    model = torch.nn.parallel.DistributedDataParallel(model, device_ids=[gpu])
optimizer, start = torch.optim.SGD(model.parameters(), 0.1), 0
if args.resume:
    start = torch.load(args.resume, map_location="cpu")["epoch"] + 1
for epoch in range(start, args.epochs):
    print("Epoch", epoch, "of", distributed.get_world_size() if distributed_mode else 1)
    model(torch.randn(8, 4, device=args.device)).mean().backward()
    optimizer.step()
    if rank == 0:
        torch.save({"epoch": epoch}, os.path.join(args.output_dir, "checkpoint.pth"))
if distributed_mode:
    distributed.destroy_process_group()
"""


@dataclass(frozen=True)
class Program:
    """A program, and what makes it small.

    Attributes:
        checkout: Its checkout, and the folder in it where its job is submitted.
        small: Further arguments.
        saved: Its first checkpoint, below the run folder.
        resumed: What its log says when it resumes.
        cuda: The launchers under which it demands CUDA.
        launchers: Those that start it.
        prepare: Puts data into its folder.
        flags: Further options of sbatchgen.
    """

    checkout: str
    small: str
    saved: str
    resumed: str
    cuda: tuple[str, ...] = ()
    launchers: tuple[str, ...] = LAUNCHERS
    prepare: Callable[[Path], None] = lambda _: None
    flags: tuple[str, ...] = ()


@dataclass
class Run:
    """A program with a launcher."""

    name: str
    launcher: str
    program: Program
    folder: Path = field(default_factory=Path)
    job: int = 0
    signalled: bool = False
    began: float = 0.0

    @property
    def run_dir(self) -> Path:
        """The run folder."""
        return self.folder / "runs" / f"{self.name}-{self.launcher}"

    @property
    def log(self) -> str:
        """All that its job has written."""
        logs = sorted(self.run_dir.glob("*.out"))
        return "".join(log.read_text(errors="replace") for log in logs)


def images(folder: Path, *, count: int = 8, flat: bool = False) -> None:
    """Write images of two classes: train/CLASS/N.jpg and val/CLASS/N.jpg, or CLASS_N.jpg."""
    from PIL import Image

    chance = random.Random(0)  # noqa: S311 - no secret
    for part in ("",) if flat else ("train", "val"):
        for kind in ("cat", "dog"):
            for number in range(count):
                path = folder / (f"{kind}_{number}.jpg" if flat else f"{part}/{kind}/{number}.jpg")
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.frombytes("RGB", (64, 64), chance.randbytes(64 * 64 * 3)).save(path)


def image_folder(folder: Path) -> None:
    """Write images as torchvision's ImageFolder reads them."""
    images(folder / "data")


def imagenet(folder: Path) -> None:
    """Write images, and leave a line out that fails in each distributed run that resumes."""
    image_folder(folder)
    main = folder / "main.py"
    main.write_text(main.read_text().replace("best_acc1 = best_acc1.to(args.gpu)", "pass"))


def pets(folder: Path) -> None:
    """Write images whose names begin with their class."""
    images(folder / "data", count=20, flat=True)


def mnist(folder: Path) -> None:
    """Write MNIST of noise as IDX files, of 600 images."""
    chance = random.Random(0)  # noqa: S311 - no secret
    raw = folder / "data/MNIST/raw"
    raw.mkdir(parents=True, exist_ok=True)
    for part, count in (("train", 400), ("t10k", 200)):
        pixels, labels = chance.randbytes(count * 784), bytes(number % 10 for number in range(count))
        (raw / f"{part}-images-idx3-ubyte").write_bytes(struct.pack(">4i", 2051, count, 28, 28) + pixels)
        (raw / f"{part}-labels-idx1-ubyte").write_bytes(struct.pack(">2i", 2049, count) + labels)


def tokens(folder: Path) -> None:
    """Write the two files that nanoGPT's prepare.py would make, with 5,000 tokens."""
    chance = random.Random(0)  # noqa: S311 - no secret
    (folder / "data/tiny").mkdir(parents=True)
    for part in ("train", "val"):
        numbers = [chance.randrange(50) for _ in range(5000)]
        (folder / f"data/tiny/{part}.bin").write_bytes(struct.pack("<5000H", *numbers))


def tiny_language_model(folder: Path) -> None:
    """Write a model and a tokenizer of ten words, and texts, as folders."""
    fit()
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    special = {"pad_token": "<pad>", "eos_token": "<eos>", "unk_token": "<unk>"}
    words = {word: number for number, word in enumerate([*special.values(), *"abcdefg"])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token=special["unk_token"]))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    fast: Any = PreTrainedTokenizerFast
    fast(tokenizer_object=tokenizer, **special).save_pretrained(folder / "model")
    sizes: dict[str, Any] = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    config = LlamaConfig(vocab_size=len(words), num_attention_heads=2, **sizes)
    LlamaForCausalLM(config).save_pretrained(folder / "model")
    (folder / "texts").mkdir()
    (folder / "texts/train.jsonl").write_text('{"text": "a b c d e f g"}\n' * 64)


def tiny_clip(folder: Path) -> None:
    """Write the configuration of a small model."""
    import json

    config = {
        "embed_dim": 16,
        "vision_cfg": {"image_size": 32, "layers": 1, "width": 64, "patch_size": 16},
        "text_cfg": {"context_length": 77, "vocab_size": 49408, "width": 64, "heads": 1, "layers": 1},
    }
    (folder / "open_clip/model_configs/tiny.json").write_text(json.dumps(config))


def lightning_main(folder: Path) -> None:
    """Write a program that is LightningCLI and nothing else, and its config file."""
    (folder / "main.py").write_text(
        "from lightning.pytorch.cli import LightningCLI\n\n"
        'LightningCLI(save_config_kwargs={"overwrite": True})\n'
    )
    boring = "lightning.pytorch.demos.boring_classes"
    (folder / "config.yaml").write_text(
        f"model: {{class_path: {boring}.BoringModel}}\ndata: {{class_path: {boring}.BoringDataModule}}\n"
        "trainer: {max_epochs: 3, accelerator: cpu, enable_progress_bar: false}\n"
    )


def stand_in(folder: Path) -> None:
    """Write the stand-in."""
    (folder / "train.py").write_text(STAND_IN)


DDP = ("torchrun", "srun")
PROGRAMS = {
    "nanogpt": Program(
        "karpathy+nanoGPT",
        "--dataset=tiny --device=cpu --compile=False --n_layer=1 --n_head=1 --n_embd=8 --block_size=8 "
        "--batch_size=2 --gradient_accumulation_steps=4 --wandb_log=False --max_iters=40 --eval_interval=10 "
        "--eval_iters=1 --dtype=float32",
        "ckpt.pt",
        "Resuming training from",
        cuda=DDP,
        prepare=tokens,
    ),
    "imagenet": Program(
        "pytorch+examples/imagenet",
        "-b 4 -j 0 --epochs 2 -a squeezenet1_1",
        "../../checkpoint.pth.tar",
        "=> loaded checkpoint",
        cuda=("single", "spawn"),
        launchers=("single", "spawn"),
        prepare=imagenet,
        flags=("--data-dir", "data"),
    ),
    "timm": Program(
        "huggingface+pytorch-image-models",
        "--model test_vit -b 2 -j 1 --epochs 2 --warmup-epochs 0 --cooldown-epochs 0 --num-classes 2 "
        "--device cpu",
        "*/last.pth.tar",
        "Loaded checkpoint",
        cuda=DDP,
        prepare=image_folder,
        flags=("--data-dir", "data"),
    ),
    "trl": Program(
        "huggingface+trl/examples",
        "--model_name_or_path model --dataset_name texts --save_steps 2 --max_steps 6 "
        "--per_device_train_batch_size 2 --report_to none --logging_steps 1 --bf16 False "
        "--gradient_checkpointing False",
        "checkpoint-*/trainer_state.json",
        "checkpoint",
        prepare=tiny_language_model,
    ),
    "accelerate": Program(
        "huggingface+accelerate/examples",
        "",
        "epoch_*/random_states_0.pkl",
        "Resumed from checkpoint",
        prepare=pets,
        flags=("--data-dir", "data"),
    ),
    "lightning": Program(
        "Lightning-AI+pytorch-lightning/examples/pytorch/basics",
        "",
        "lightning_logs/*/checkpoints/*.ckpt",
        "Restored all states from the checkpoint",
        prepare=lightning_main,
    ),
    "hydra": Program(
        "ashleve+lightning-hydra-template",
        "trainer.accelerator=cpu trainer.sync_batchnorm=False trainer.max_epochs=3 data.batch_size=40 "
        "data.train_val_test_split=[400,100,100] callbacks.rich_progress_bar=null extras.print_config=False",
        "checkpoints/last.ckpt",
        "Restored all states from the checkpoint",
        prepare=mnist,
    ),
    "open_clip": Program(
        "mlfoundations+open_clip/src",
        "--model tiny --dataset-type synthetic --train-num-samples 16 --batch-size 2 --workers 0 --epochs 2 "
        "--precision fp32 --device cpu",
        "train/checkpoints/epoch_*.pt",
        "=> resuming checkpoint",
        cuda=DDP,
        prepare=tiny_clip,
    ),
    "dino": Program(
        "facebookresearch+dino",
        "--arch vit_tiny --patch_size 32 --out_dim 64 --local_crops_number 2 --batch_size_per_gpu 2 "
        "--epochs 2 --warmup_epochs 0 --num_workers 1 --use_fp16 false --saveckp_freq 1",
        "checkpoint.pth",
        "Found checkpoint at",
        cuda=LAUNCHERS,
        prepare=image_folder,
        flags=("--data-dir", "data"),
    ),
    "torchvision": Program(
        "",
        "--epochs 3 --device cuda",
        "checkpoint.pth",
        "Epoch 1 of 4|Epoch 1 of 1",
        cuda=LAUNCHERS,
        prepare=stand_in,
    ),
}


def main() -> int:
    """Run them all, print a table; return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkouts", type=Path)
    parser.add_argument("--only", nargs="+", default=[], metavar="PROGRAM[/LAUNCHER]")
    parser.add_argument("--at-once", type=int, default=2, metavar="JOBS")
    parser.add_argument("--logs", type=Path, help="keep the logs here")
    args = parser.parse_args()
    runs = [
        Run(name, launcher, program)
        for name, program in PROGRAMS.items()
        for launcher in program.launchers
        if not args.only or {name, f"{name}/{launcher}"} & {*args.only}
    ]
    visible = [Path(sys.base_prefix), Path(sys.prefix), ROOT]
    results = {}
    with Cluster(visible=visible) as cluster:
        cluster.put("testing.yaml", PROFILE)
        for run, says in outcomes(cluster, runs, args.checkouts, args.at_once):
            results[run.name, run.launcher] = says
            print(f"{run.name} {run.launcher}: {says}  ({time.monotonic() - run.began:.0f} s)", flush=True)
            if args.logs:
                args.logs.mkdir(parents=True, exist_ok=True)
                (args.logs / f"{run.name}-{run.launcher}.log").write_text(run.log)
    columns = ("single", "torchrun", "srun", "spawn")
    print(f"\n| program | {' | '.join(columns)} |\n|---|{'---|' * len(columns)}")
    for name in dict.fromkeys(run.name for run in runs):
        print(f"| {name} | {' | '.join(results.get((name, column), '-') for column in columns)} |")
    return int(any("ok" not in says for says in results.values()))


def outcomes(cluster: Cluster, runs: list[Run], checkouts: Path, at_once: int) -> Iterator[tuple[Run, str]]:
    """Yield each run with what became of it; so many jobs run at the same time."""
    waiting, live = [*runs], list[Run]()
    while waiting or live:
        while waiting and len(live) < at_once:
            run = waiting.pop(0)
            run.began = time.monotonic()
            checkout = checkouts / run.program.checkout.partition("/")[0]
            if not checkout.is_dir():
                yield run, f"no checkout {checkout}"
            elif refusal := submit(cluster, run, checkout):
                yield run, refusal
            else:
                live.append(run)
        time.sleep(1)
        for run in [*live]:
            if says := outcome(cluster, run):
                live.remove(run)
                yield run, says


def submit(cluster: Cluster, run: Run, checkout: Path) -> str:
    """Submit a run in a copy of its program's checkout; return why that did not work, or ""."""
    program, home = run.program, cluster.home / f"{run.name}-{run.launcher}"
    if program.checkout:
        shutil.copytree(checkout, home)
    run.folder = home / program.checkout.partition("/")[2]
    run.folder.mkdir(parents=True, exist_ok=True)
    program.prepare(run.folder)
    files = {block.file: block.text for block in blocks(PAGE)}
    (run.folder / f"{run.name}.yaml").write_text(files[f"{run.name}.yaml"])
    cluster.root(["chown", "-R", cluster.user, str(home)])
    variables = {
        "PYTHONPATH": str(SHIM),
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "ACCELERATE_USE_CPU": "true",
        "PAUSE": str(run.run_dir / program.saved),
        "WITHOUT_NETWORK": "1" if run.name in ("accelerate", "dino") else "",
        "CUDA_ON_CPU": "2" if run.launcher in program.cuda else "",
    }
    shape: list[str | Path] = ["--launcher", run.launcher, "--nodes", "2", "--gpus-per-node", "2"]
    if run.launcher == "single":
        shape = ["--set", "mode=single"]
    done = cluster.run(
        [
            *(sys.executable, "-m", "sbatchgen", "submit", f"{run.name}.yaml", "--yes"),
            *(
                "--profile",
                cluster.home / "testing.yaml",
                "--job-name",
                run.run_dir.name,
                *shape,
                *program.flags,
            ),
            *(word for item in variables.items() for word in ("--env", "=".join(item))),
            *("--", *program.small.split()),
        ],
        cwd=run.folder,
        env={"PYTHONPATH": str(ROOT)},
    )
    run.job = int(done.stdout) if done.returncode == 0 else 0
    return "" if run.job else f"not submitted: {done.stderr.strip()}"


def outcome(cluster: Cluster, run: Run) -> str:
    """What became of a run, "" while it is not known; requeues it once it has saved."""
    record = cluster.job(run.job)
    if not run.signalled and any(map(written, run.run_dir.glob(run.program.saved))):
        cluster.run(["scancel", "--batch", "--signal=USR1", str(run.job)])
        run.signalled = True
    state = record["JobState"]
    if time.monotonic() - run.began > LONGEST_S:
        cluster.run(["scancel", str(run.job)])
        return f"after {LONGEST_S} s: {last_line(run.log)}"
    if state in {"PENDING", "RUNNING", "COMPLETING", "CONFIGURING", "REQUEUED"}:
        return ""
    if state != "COMPLETED":
        return f"{state} {record['ExitCode']}: {last_line(run.log)}"
    if record["Restarts"] != "1" or not re.search(run.program.resumed, run.log.partition("restart 1 of")[2]):
        return f"not resumed: restarts {record['Restarts']}"
    return "ok"


def written(path: Path) -> bool:
    """Whether nothing was written to a file for five seconds."""
    return time.time() - path.stat().st_mtime > 5


def last_line(log: str) -> str:
    """Return the last line that names an error, else the last line of all."""
    lines = log.splitlines() or ["no log"]
    errors = [line for line in lines if re.search(r"Error|error:|exception", line)]
    return (errors or lines)[-1].strip()[:150]


if __name__ == "__main__":
    os.umask(0o022)
    sys.exit(main())
