"""The pages of docs/migrate: each command trains as the job of the tutorial that it replaces.

tests/fixtures/tutorials.yaml says what each job does, as its files say it. Here the same is computed of the command on
the page: of the script that it renders, of the settings that the training package reads from that script, of torch's
own schedulers, and of a run of it on this machine, with small data and at most two processes.
"""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from PIL import Image
from torch import nn
from torch.optim import lr_scheduler

from sbatchgen.lab.prepare import digits
from tests.cluster.slurm import Cluster
from tests.conftest import REPOSITORY, Command
from tests.training import vision
from tests.training.forks import QUICKLY
from training.config import Config, global_batch, parse
from training.data.datasets import Data, load_data
from training.data.order import epoch_order
from training.model.models import build_model
from training.model.optimizer import build_optimizer, lr_at

FOLDER = REPOSITORY / "docs" / "migrate"
TUTORIALS = yaml.safe_load((REPOSITORY / "tests/fixtures/tutorials.yaml").read_text())["jobs"]
JOBS = [(page, name) for page, tutorial in TUTORIALS.items() for name in tutorial["jobs"]]
DATA_SETS = {"mnist": (60_000, (1, 28, 28), 10), "imagefolder": (1_281_167, (3, 224, 224), 1000)}
SHAPE = ("nodes", "processes", "launcher", "gpus", "cpus", "memory", "time")
TRAINING = ("model", "optimizer", "momentum", "weight_decay", "precision", "seed", "batch", "epochs", "order")
RUN = ("augmented", "checkpoints", "logs", "evaluation")
LOGS = {
    "where it runs": r"^Starting (distributed )?training on \d+ ",
    "first node": r"^Master node: \S+$",
    "loss while training": r"^Epoch 2: step 1 of \d+, loss \d",
    "loss and accuracy of each epoch": r"^Epoch 2 - Avg Loss: [\d.]+, Accuracy: [\d.]+%",
    "top-5 accuracy": r"^Epoch 2 - .*, Top-5: [\d.]+%",
    "seconds of each epoch": r"^Epoch 2 .*\d+(\.\d+)? ?s(ec|econds)?\b(?<!samples/s)",
    "end": r"^Training completed",
}
CLASSES, TRAIN, VALIDATION = 12, 1, 1  # of the small ImageFolder: images a class


@dataclass(frozen=True)
class Page:
    """A page and what it tells people to type."""

    name: str

    @cached_property
    def text(self) -> str:
        return (FOLDER / f"{self.name}.md").read_text().replace("\\\n", " ")  # commands on several lines

    @property
    def lines(self) -> list[str]:
        """All commands of ours."""
        return re.findall(r"^    (sbatchgen .*)$", self.text, re.MULTILINE)

    def under(self, heading: str) -> str:
        """The command under a heading."""
        part = self.text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
        (line,) = re.findall(r"^    (sbatchgen .*)$", part, re.MULTILINE)
        return str(line)


PAGES = {path.stem: Page(path.stem) for path in sorted(FOLDER.glob("*.md")) if path.stem != "index"}


@dataclass
class Job:
    """A command, and what it comes to."""

    command: Command
    line: str

    @cached_property
    def words(self) -> list[str]:
        """What follows the mode, without --write FILE."""
        words = shlex.split(self.line)[2:]
        if "--write" in words:
            place = words.index("--write")
            del words[place : place + 2]
        return words

    @cached_property
    def profile(self) -> str:
        return self.words[self.words.index("--profile") + 1]

    @cached_property
    def script(self) -> str:
        result = self.command("render", *self.words)
        assert result.status == 0, result.err
        return result.out

    @cached_property
    def review(self) -> Any:
        return json.loads(self.command("review", "--format", "json", *self.words).out)

    @cached_property
    def directives(self) -> dict[str, str]:
        return dict(re.findall(r"^#SBATCH --([a-z-]+)=(.*)$", self.script, re.MULTILINE))

    @cached_property
    def arguments(self) -> list[str]:
        """What the script gives to the bundled trainer."""
        (words,) = re.findall(r'"\$CODE_DIR/training" (.*?)(?: &)?\n', self.script.replace("\\\n", " "))
        return shlex.split(words)

    @cached_property
    def config(self) -> Config:
        """What the trainer reads from them."""
        return parse(self.arguments)

    @cached_property
    def shape(self) -> dict[str, Any]:
        """What is asked of Slurm, and the processes; where there is no Slurm, what the platform gives."""
        said = self.directives
        nodes = int(said.get("nodes", self.review["request"]["nodes"]))
        tasks = int(said.get("ntasks-per-node", 1))
        gpus: Any = said.get("gpus-per-node") or said.get("gres", "gpu:0").removeprefix("gpu:")
        if "gpus-per-task" in said:
            gpus = tasks * int(said["gpus-per-task"])
        torchrun = re.search(
            r'training/torchrun\.py.* --nproc-per-node="?([$\w]+)', self.script.replace("\\\n", " ")
        )
        started = torchrun[1].replace("$SLURM_GPUS_ON_NODE", str(gpus)) if torchrun else tasks
        processes = nodes * int(started)
        assert processes == self.review["request"]["processes"]
        srun = self.config.launcher == "srun"
        return {
            "nodes": nodes,
            "processes": processes,
            "launcher": "torchrun" if torchrun else "srun" if srun else None,
            "gpus": int(gpus) if str(gpus).isdecimal() else gpus,
            "cpus": tasks * int(said.get("cpus-per-task", 0)),
            "memory": said.get("mem"),
            "time": said.get("time", "").removeprefix("0-"),
        }

    @cached_property
    def training(self) -> dict[str, Any]:
        """What the trainer is set to."""
        config = self.config
        model = built(config)
        optimizer = build_optimizer(config, model)
        orders = [epoch_order(99, seed=config.seed, epoch=epoch).tolist() for epoch in range(2)]
        assert sorted(orders[0]) == list(range(99)) != orders[0]
        decays = {group["weight_decay"] for group in optimizer.param_groups if group["params"]}
        layers = list(dict.fromkeys(name.split(".")[0] for name in model.state_dict()))
        return {
            "model": {
                "layers": [config.model] if len(layers) > 5 else layers,
                "weights": sum(weight.numel() for weight in model.parameters()),
            },
            "optimizer": type(optimizer).__name__,
            "momentum": optimizer.param_groups[0].get("momentum"),
            "weight_decay": decays.pop() if len(decays) == 1 else decays,
            "precision": config.precision,
            "seed": config.seed,
            "batch": global_batch(config, self.shape["processes"]) // self.shape["processes"],
            "epochs": config.epochs,
            "order": "new each epoch" if orders[0] != orders[1] else "the same each epoch",
        }

    def rates(self) -> list[float]:
        """The learning rate of the first step of each epoch."""
        samples, _, _ = DATA_SETS[self.config.dataset]
        steps = math.ceil(samples / global_batch(self.config, self.shape["processes"]))
        return [lr_at(self.config, epoch, 0, steps_per_epoch=steps) for epoch in range(self.config.epochs)]


def built(config: Config) -> nn.Module:
    """The model for the real data set."""
    vision.fit()
    _, shape, classes = DATA_SETS[config.dataset]
    nothing: Any = None
    return build_model(config, Data(train=nothing, validation=nothing, classes=classes, shape_CHW=shape))


def rates_of_theirs(facts: dict[str, Any], *, resumed_at: int) -> list[float]:
    """The learning rate of each epoch with torch's scheduler, called as the tutorials' programs call it.

    A program that resumes makes both again, and loads what was saved of the optimizer, which is done before the
    scheduler's step.
    """

    def start() -> tuple[torch.optim.Optimizer, Any]:
        kind: Any = getattr(torch.optim, facts["optimizer"])
        optimizer = kind([nn.Parameter(torch.zeros(1))], lr=facts["lr"])
        if facts["step_lr"] is None:
            return optimizer, lr_scheduler.ConstantLR(optimizer, factor=1)
        size, gamma = facts["step_lr"]
        return optimizer, lr_scheduler.StepLR(optimizer, step_size=size, gamma=gamma)

    rates = []
    optimizer, scheduler = start()
    for epoch in range(facts["epochs"]):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        saved = optimizer.state_dict()
        if epoch + 1 == resumed_at:
            optimizer, scheduler = start()
            optimizer.load_state_dict(saved)
        else:
            scheduler.step()
    return rates


@dataclass
class Here:
    """Runs commands on this machine: the same mode and the same arguments, on CPUs, with small data."""

    folder: Path
    done: dict[tuple[str, ...], tuple[Path, str]] = field(default_factory=dict)

    @cached_property
    def mnist(self) -> Path:
        digits.write(self.folder / "mnist", train=600, test=101, seed=3)
        return self.folder / "mnist"

    @cached_property
    def images(self) -> Path:
        for number in range(CLASSES):
            for part, count in (("train", TRAIN), ("val", VALIDATION)):
                place = self.folder / "images" / part / f"c{number:02}"
                place.mkdir(parents=True)
                for i in range(count):
                    drawn = Image.linear_gradient("L").rotate(20 * number + i).resize((40, 30)).convert("RGB")
                    drawn.save(place / f"{i}.png")
        return self.folder / "images"

    def data_dir(self, config: Config) -> Path:
        return self.mnist if config.dataset == "mnist" else self.images

    def run(self, job: Job) -> tuple[Path, str]:
        """The folder of a run of two epochs, and what it printed."""
        trainer = job.words[job.words.index("--") + 1 :]
        if "--val-path" in trainer:
            place = trainer.index("--val-path")
            trainer[place : place + 2] = ["--val-path", str(self.images / "val")]
        trainer[trainer.index("--epochs") + 1] = "2"
        if job.config.dataset == "imagefolder":
            trainer[trainer.index("--batch-size-per-gpu") + 1] = "4"  # of 12 images
            trainer[trainer.index("--model") + 1] = "resnet18"
        key = (job.words[0], *trainer)
        if key not in self.done:
            run_dir = self.folder / f"run-{len(self.done)}"
            words = [job.words[0], "--profile", "local", "--env", "OMP_NUM_THREADS=1"]
            words += ["--run-dir", str(run_dir), "--data-dir", str(self.data_dir(job.config))]
            if job.words[0] == "ddp":
                words += ["--nproc-per-node", "2" if job.config.dataset == "mnist" else "1"]
            often = ("--log-every", "1", "--sync-every", "1", "--workers", "0", "--device", "cpu")
            result = job.command("render", *words, "--", *trainer, *often)
            assert result.status == 0, result.err
            self.done[key] = (
                run_dir,
                self._bash(result.out, run_dir.name, vision=job.config.dataset != "mnist"),
            )
        return self.done[key]

    def _bash(self, script: str, name: str, *, vision: bool) -> str:
        """What a script prints; with `vision` torchvision is made to fit, as in all tests."""
        lines = (QUICKLY / "sitecustomize.py").read_text()
        lines += f"import sys\nsys.path.insert(0, {str(REPOSITORY)!r})\n"
        lines += "from tests.training import vision\nvision.fit()\nsys.path.pop(0)\n"
        (self.folder / "sitecustomize.py").write_text(lines)
        (self.folder / f"{name}.sh").write_text(script)
        binaries = self.folder / "bin"
        binaries.mkdir(exist_ok=True)
        if not (binaries / "python3").exists():
            (binaries / "python3").symlink_to(sys.executable)
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        ended = subprocess.run(
            ["bash", f"{name}.sh"],
            cwd=self.folder,
            env={**os.environ, "PATH": path, "PYTHONPATH": str(self.folder if vision else QUICKLY)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout

    def facts(self, job: Job) -> dict[str, Any]:
        """What is seen of a run."""
        run_dir, out = self.run(job)
        names = {path.name for path in (run_dir / "checkpoints").iterdir()}
        kinds = {
            "each epoch": {"checkpoint_epoch_1.pt", "checkpoint_epoch_2.pt"} <= names,
            "newest": any(name.startswith("step-") for name in names),
            "best": "best.pt" in names,
            "weights": (run_dir / "model.pt").is_file(),
        }
        lines = (run_dir / "events.jsonl").read_text().splitlines()
        epochs = [event for event in map(json.loads, lines) if event["event"] == "epoch"]
        assert [event["epoch"] for event in epochs] == [1, 2]
        seen = [name for name in ("loss", "accuracy", "top5") if all(name in event for event in epochs)]
        return {
            "checkpoints": [kind for kind, there in kinds.items() if there],
            "logs": [name for name, line in LOGS.items() if re.search(line, out, re.MULTILINE)],
            "evaluation": seen,
            "augmented": self.augmented(job.config),
        }

    def augmented(self, config: Config) -> bool:
        """Whether an image of the training looks otherwise in the next epoch."""
        vision.fit()
        words = ["--dataset", config.dataset, "--data-dir", str(self.data_dir(config)), "--workers", "0"]
        train = load_data(parse(words), torch.device("cpu")).train
        first, second = (next(iter(train.batches([torch.arange(4)], epoch=epoch)))[0] for epoch in range(2))
        return not torch.equal(first, second)


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Here:
    return Here(tmp_path_factory.mktemp("tutorials"))


def facts_of(page: str, name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the tutorial's job does, and where the command differs."""
    facts = dict(TUTORIALS[page]["jobs"][name])
    return facts, facts.pop("differs", {})


def compared(
    cells: tuple[str, ...], facts: dict[str, Any], differs: dict[str, Any], ours: dict[str, Any]
) -> int:
    """Compare the cells which the facts have; a list says what is there at least. How many they were."""
    there = [cell for cell in cells if cell in facts]
    for cell in there:
        theirs, wanted = facts[cell], differs.get(cell, {"here": facts[cell]})["here"]
        if cell in differs:
            assert differs[cell]["why"]
            assert not _has(ours[cell], theirs), f"{cell}: no difference, {ours[cell]}"
        assert _has(ours[cell], wanted), f"{cell} is {ours[cell]}, not {wanted}"
    return len(there)


def _has(ours: Any, wanted: Any) -> bool:
    if isinstance(ours, list) and isinstance(wanted, list):
        return set(wanted) <= set(ours)
    return bool(ours == wanted)


@pytest.mark.parametrize(("page", "name"), JOBS)
def test_a_command_asks_for_what_its_original_asks_for(command: Command, page: str, name: str) -> None:
    facts, differs = facts_of(page, name)
    job = Job(command, PAGES[page].under(name))

    assert compared(SHAPE, facts, differs, job.shape) >= 3


@pytest.mark.parametrize(("page", "name"), JOBS)
def test_a_command_trains_as_its_original(command: Command, page: str, name: str) -> None:
    facts, differs = facts_of(page, name)
    job = Job(command, PAGES[page].under(name))

    assert compared(TRAINING, facts, differs, job.training) == len(TRAINING)


@pytest.mark.parametrize(("page", "name"), JOBS)
def test_the_learning_rates_are_those_of_the_original(command: Command, page: str, name: str) -> None:
    facts, differs = facts_of(page, name)
    ours = Job(command, PAGES[page].under(name)).rates()
    theirs = rates_of_theirs(facts, resumed_at=facts["resumed_at"])
    whole = rates_of_theirs(facts, resumed_at=0)

    assert len(ours) == facts["epochs"]
    assert ours == pytest.approx(whole, rel=1e-12)
    assert ("lr" in differs) == (theirs != pytest.approx(whole, rel=1e-12))


@pytest.mark.parametrize(("page", "name"), JOBS)
def test_a_run_leaves_and_tells_what_the_original_does(
    command: Command, here: Here, page: str, name: str
) -> None:
    facts, differs = facts_of(page, name)
    job = Job(command, PAGES[page].under(name))

    assert compared(RUN, facts, differs, here.facts(job)) == len(RUN)


@pytest.mark.parametrize(("page", "name"), JOBS)
def test_a_script_has_no_findings(command: Command, page: str, name: str) -> None:
    """But that shards do not divide a GPU's memory, which its reader should know."""
    job = Job(command, PAGES[page].under(name))
    Path("job.slurm").write_text(job.script)
    result = command("lint", "--no-shellcheck", "--profile", job.profile, "--format", "json", "job.slurm")
    rules = {finding["rule"] for finding in json.loads(result.out)}

    assert rules == ({"SB214"} if "shard" in job.script else set())


def test_all_differences_are_of_cells_that_are_compared() -> None:
    known = {*SHAPE, *TRAINING, *RUN, "lr"}
    for page, name in JOBS:
        facts, differs = facts_of(page, name)
        assert differs.keys() <= known & facts.keys()
        assert facts.keys() <= known | {"step_lr", "resumed_at"}


def test_every_job_has_a_heading_and_every_command_a_job_or_a_reason(command: Command) -> None:
    for name, page in PAGES.items():
        assert f"]({TUTORIALS[name]['source'].split('/tree/')[0]}" in page.text
        jobs = [page.under(job) for job in TUTORIALS[name]["jobs"]]
        others = [line for line in page.lines if line not in jobs]
        others += re.findall(r"`(sbatchgen (?:submit|render) [^`]*)`", page.text)
        assert len(set(jobs)) == len(jobs)
        Path("train.py").write_text("")
        for line in others:
            words = shlex.split(line)[1:]
            if words[0] == "data":
                words = [word.replace("/scratch/$USER", str(Path.cwd())) for word in words]
                assert command(*words, "--synthetic", "--train", "20", "--test", "10").status == 0
            else:
                script = words[1].endswith((".slurm", ".job", ".sh"))  # of the tutorial, submitted as it is
                assert script or command("render", *words[1:]).status == 0, line


def test_runs_of_a_page_do_not_share_a_folder_unless_they_go_on(command: Command) -> None:
    for name, page in PAGES.items():
        seen: dict[str, tuple[str, int]] = {}
        for job in TUTORIALS[name]["jobs"]:
            made = Job(command, page.under(job))
            folder = f"{made.profile}:{made.review['job']['run_dir']}"
            if folder in seen:
                assert (seen[folder][0], made.config.epochs > seen[folder][1]) == (made.words[0], True), job
            seen[folder] = (made.words[0], made.config.epochs)
        assert seen


def differences(page: str) -> Iterator[str]:
    """The table on a page."""
    yield "| job | what | there | here | why |\n|---|---|---|---|---|\n"
    rows: dict[tuple[str, ...], list[str]] = {}
    for name in TUTORIALS[page]["jobs"]:
        facts, differs = facts_of(page, name)
        for cell, difference in differs.items():
            there = facts[cell] if cell != "lr" else "an epoch late from epoch 11 on"
            ours = difference["here"]
            if isinstance(there, list):
                there, ours = (
                    [value for value in there if value not in ours],
                    [value for value in ours if value not in there],
                )
            row = (cell, _shown(there), _shown(ours), difference["why"])
            rows.setdefault(row, []).append(name)
    for (cell, theirs, own, why), names in rows.items():
        jobs = "all" if len(names) == len(TUTORIALS[page]["jobs"]) > 1 else "; ".join(names)
        yield f"| {jobs} | {cell} | {theirs} | {own} | {why} |\n"
    yield "\nAll else that [is compared](index.md#a-tutorials-file) is equal.\n"


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(value) or "-"
    return {"None": "-", "True": "yes", "False": "no"}.get(str(value), str(value))


@pytest.mark.parametrize("page", PAGES)
def test_a_page_tells_all_differences(request: pytest.FixtureRequest, page: str) -> None:
    path = FOLDER / f"{page}.md"
    head, mark, rest = path.read_text().partition("test_tutorials.py` -->\n")
    text = f"{head}{mark}{''.join(differences(page))}<!-- end -->{rest.partition('<!-- end -->')[2]}"
    if request.config.getoption("--update-golden") and path.read_text() != text:
        path.write_text(text)
        pytest.fail(f"{path} was written again: read the change")
    assert path.read_text() == text


RUNNING = (REPOSITORY / "docs/how-to/watch-a-job.md").read_text()
ADVICE = [
    line
    for line in re.findall(r"^    (\w.*)$", RUNNING, re.MULTILINE)
    if line.split()[0]
    in {"squeue", "scontrol", "srun", "sstat", "sacct", "scancel", "sinfo", "tail", "touch"}
]


def test_the_advice_works_on_a_real_slurm(cluster: Cluster) -> None:
    """While a job is on two nodes; that cluster keeps no account, so of sacct and sstat the columns are looked up."""
    cluster.put("bin/nvidia-smi", "#!/bin/sh\nhostname\n", mode=0o755)
    script = "#!/bin/bash\nsrun sleep 600\n"
    job = str(cluster.sbatch("--nodes=2", "--ntasks-per-node=1", script=script))
    cluster.put(f"runs/NAME/advice-{job}.out", "a line\n")
    cluster.wait(job, {"RUNNING"})
    node = cluster.job(job)["BatchHost"]
    path = {"PATH": f"{cluster.home}/bin:{os.environ['PATH']}"}
    printed: dict[str, str] = {}
    for line in ADVICE:
        typed = (
            line.replace("JOBID", job)
            .replace("show node NODE", f"show node {node}")
            .replace("tail -f", "tail")
        )
        words = shlex.split(typed)
        if words[0] in {"sacct", "sstat"}:
            (columns,) = [word.partition("=")[2].split(",") for word in words if word.startswith("--format")]
            program = Path(str(shutil.which(words[0]))).read_bytes()  # it lists none without accounting
            assert [column for column in columns if b"%s\0" % column.encode() not in program] == []
            continue
        ended = cluster.run(["bash", "-c", typed], env=path, input="hostname\n")
        assert ended.returncode == 0, f"{line}: {ended.stderr}"
        printed[line] = ended.stdout

    assert len(printed) >= 7
    assert sorted(printed["srun --jobid=JOBID --overlap nvidia-smi"].split()) == ["n1", "n2"]
    assert job in printed["squeue --me"]
    assert f"JobId={job} " in printed["scontrol show job JOBID"]
    cluster.wait(job, {"CANCELLED"})


def test_the_list_links_to_every_page_and_counts_its_jobs() -> None:
    index = (FOLDER / "index.md").read_text()
    rows = re.findall(r"^\| \[.*?\]\((\w+)\.md\).*? \| (\d+) \| ", index, re.MULTILINE)

    assert {page: int(count) for page, count in rows} == {
        page: len(tutorial["jobs"]) for page, tutorial in TUTORIALS.items()
    }
    assert "(../how-to/watch-a-job.md)" in index
