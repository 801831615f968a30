"""The pictures of README and the site show what the commands print now: `pytest --update-golden tests/docs`."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from rich.text import Text

from sbatchgen.jobs.render import SECOND_PART
from sbatchgen.jobs.resolved.sweep import grid
from sbatchgen.jobs.review.screen import coloured
from sbatchgen.jobs.runs.index import Index, index_file
from sbatchgen.jobs.runs.points import POINTS_FILE
from sbatchgen.jobs.runs.record import Record, write_accepted
from tests.conftest import FIXTURES, REPOSITORY, Command
from tests.docs.pages import PAGES, blocks
from tests.docs.pictures import FOLDER, adapted, drawn, lines_of, named_parts, terminal, typed
from tests.plan.plans import needs_sandbox
from tests.slurm import fakes

PICTURES = REPOSITORY / FOLDER
REVIEW = "sbatchgen review ddp --profile torchrun --nproc-per-node 4 --run-dir /scratch/me/ddp --data-dir /scratch/mnist"
ABSENT = "/zcratch"  # as long as /scratch, which this machine may have
PLANNED = """\
#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=32
#SBATCH --gpus-per-node=4
#SBATCH --time=12:00:00
module load cuda
export OMP_NUM_THREADS=8 HF_HOME=/scratch/hf
head=$(scontrol show hostnames | head -n 1)
IMAGE=/scratch/images/train.sif
[[ -r $IMAGE ]] || exit 1
srun apptainer exec --nv "$IMAGE" bash -c "torchrun --nnodes=2 --nproc-per-node=4 --node-rank=\\$SLURM_NODEID \\
    --master-addr=$head train.py --epochs 90" &
wait
"""
# The runs of the picture of `status`: what squeue says of each, and the last epoch that it has written.
RUNS = {
    "mnist": ({"State": "COMPLETED", "TimeUsed": "3:02"}, {"epoch": 10, "loss": 0.0261, "accuracy": 0.9915}, 10),
    "lr": ({"State": "RUNNING", "TimeUsed": "41:10", "NodeList": "gpu5", "TimeLimit": "4:00:00"}, None, 0),
    "resnet": (
        {"State": "RUNNING", "TimeUsed": "5:12:07", "TimeLimit": "12:00:00", "NodeList": "gpu[1-4]", "RestartCnt": "1"},
        {"epoch": 34, "loss": 1.842, "accuracy": 0.581},
        90,
    ),
    "vit": ({"State": "PENDING", "Reason": "Priority"}, None, 0),
    "vit-large": ({"State": "PENDING", "Reason": "Dependency"}, None, 0),
}  # fmt: skip
POINTS_NOW = (0.842, 0.871, 0.613, None)  # the accuracy of each point of the sweep


@pytest.mark.parametrize("name", ["review", "script"])
def test_a_picture_of_a_terminal_shows_what_is_printed(
    command: Command, folder: Path, request: pytest.FixtureRequest, name: str
) -> None:
    if name == "review":
        Path.home().joinpath("venv/bin").mkdir(parents=True)
        Path.home().joinpath("venv/bin/python3").touch()
        printed = command(*REVIEW.replace("/scratch", ABSENT).split()[1:]).out.partition("\n#!/bin/bash")[0]
        printed = printed.replace(ABSENT, "/scratch")
        printed = re.sub(
            r"(?m)^(digest +)\w{40}$", rf"\g<1>{'3f2a91c0' * 5}", printed
        )  # of the paths here too
        lines = typed(REVIEW, coloured(printed))
    else:
        lines = named_parts(*script_of_page())
    compare(name, terminal(name, "sbatchgen", lines), request)


@needs_sandbox
def test_the_picture_of_a_plan_shows_what_is_printed(
    command: Command, folder: Path, request: pytest.FixtureRequest
) -> None:
    (folder / "job.slurm").write_text(PLANNED.replace("/scratch", ABSENT))
    printed = (
        command("plan", "job.slurm").out.replace(str(folder), "/home/me/job").replace(ABSENT, "/scratch")
    )
    compare("plan", terminal("plan", "sbatchgen", typed("sbatchgen plan job.slurm", printed)), request)


def script_of_page() -> tuple[str, list[tuple[str, str]]]:
    """The script that a page explains, and how its parts begin and what they are for."""
    page = REPOSITORY / "docs/reference/script.md"
    script = next(block.text for block in blocks(page) if block.kind == "bash")
    first, mark, second = script.partition(SECOND_PART)
    table = page.read_text().partition("| purpose |")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| (`#SBATCH` lines|[\w ]+) \| ([^.;|]+)", table, re.MULTILINE)
    starts = {"`#SBATCH` lines": "#SBATCH", "The same in every job": mark, "RUN_DIR": "RUN_DIR="}
    parts = [(starts.get(part, f"{part}()"), purpose.strip()) for part, purpose in rows]
    return f"{first}{mark}{second.partition(chr(10))[0]}\n", parts[: len(starts) + 2]


def test_the_picture_of_status_shows_what_is_printed(
    command: Command, folder: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    index = Index(index_file(os.environ))
    rows = []
    for number, (name, (row, epoch, epochs)) in enumerate(RUNS.items(), 4711):
        run = folder / "runs" / name
        rows.append(row | {"JobArrayID": str(number), "Command": f"/tmp/sbatchgen-{number}-x/job.slurm"})  # noqa: S108
        index.begin(str(number), run, name, shared=False)
        index.accept(str(number), str(number))
        run.mkdir(parents=True)
        if epoch:
            train(run, epoch, epochs)
    sweep = folder / "runs/lr"
    (sweep / POINTS_FILE).write_text(grid(["lr=0.1,0.01", "batch-size=64,128"]).as_csv())
    write_accepted(
        sweep, Record(name="lr", job="4712", shared=False, folder=str(sweep), array="0-3", key="4712")
    )
    for number, accuracy in enumerate(POINTS_NOW):
        if accuracy:
            train(sweep / str(number), {"epoch": 5, "loss": 1 - accuracy, "accuracy": accuracy}, 5)
            (sweep / str(number) / "exit").write_text("0\n")
    rows[1]["JobArrayID"] = "4712_3"
    fakes.squeue(folder / "bin", rows)
    fakes.failing(folder / "bin", "sacct", "Slurm accounting storage is disabled")
    monkeypatch.setenv("PATH", f"{folder / 'bin'}:{os.environ['PATH']}")
    runs = command("status").out
    points = command("status", "lr").out.splitlines()[-7:]
    lines = [
        *typed("sbatchgen status", runs),
        Text(),
        *typed("sbatchgen status lr | tail -n 7", "\n".join(points)),
    ]
    compare("status", terminal("status", "sbatchgen", lines), request)


def train(folder: Path, epoch: Mapping[str, object], epochs: int) -> None:
    """Write what a training has written after an epoch."""
    folder.mkdir(exist_ok=True)
    (folder / "events.jsonl").write_text(json.dumps({"event": "epoch", **epoch}) + "\n")
    (folder / "config.json").write_text(json.dumps({"epochs": epochs}))
    (folder / "status.json").write_text('{"state": "done"}')


@pytest.mark.proof
@pytest.mark.slow
def test_the_picture_of_curves_shows_what_plot_draws(
    command: Command, folder: Path, request: pytest.FixtureRequest
) -> None:
    """Of two trainings that were recorded; one was stopped, and resumed."""
    shutil.copytree(FIXTURES / "plot", folder / "runs")
    assert command("plot", "runs/lr-0.5", "runs/lr-0.1", "--output", "plot.svg").status == 0
    compare("plot", adapted(Path("plot.svg").read_text()), request)


def compare(name: str, svg: str, request: pytest.FixtureRequest) -> None:
    """Compare a picture with the one in the repository: what it shows, not how it is drawn."""
    file = PICTURES / f"{name}.svg"
    shown = drawn if name == "plot" else lines_of
    same = file.exists() and shown(file.read_text()) == shown(svg)
    if not same and request.config.getoption("--update-golden"):
        file.write_text(svg)
    assert same, f"{name}.svg is not what is printed now: pytest --update-golden tests/docs"


@pytest.mark.parametrize("file", sorted(PICTURES.glob("*.svg")), ids=lambda file: file.stem)
def test_a_picture_needs_nothing_from_elsewhere(file: Path) -> None:
    text = file.read_text()
    ET.fromstring(text)  # noqa: S314 - our own
    assert not re.search(r"(?:href|src|url)\W+(?:https?:|data:)", text)
    assert len(text) < 120_000


@pytest.mark.parametrize("name", ["review", "script", "plan", "status"])
def test_no_line_of_a_terminal_is_cut_at_its_foot(name: str) -> None:
    svg = (PICTURES / f"{name}.svg").read_text()
    clip = re.search(r'clip-terminal"><rect width="[\d.]+" height="([\d.]+)"', svg)
    assert clip
    below = 0.25 * 20  # how far letters of 20 pixels, such as an underscore, reach below their line
    shown = [float(y) for y in re.findall(r'<text class="\w+-r\d" x="[\d.]+" y="([\d.]+)"[^>]*>[^<\n]', svg)]
    assert max(shown) + below <= float(clip[1])


def test_the_pictures_of_the_readme_show_whole_lines() -> None:
    names = re.findall(r"docs/pictures/(\w+)\.svg", (REPOSITORY / "README.md").read_text())
    assert len(names) == 2
    cut = [line for name in names for line in lines_of((PICTURES / f"{name}.svg").read_text()) if "…" in line]
    assert cut == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_each_picture_of_a_page_exists_and_has_words_for_who_cannot_see_it(page: Path) -> None:
    for words, target in re.findall(r"!\[([^\]]*)\]\(([^)\s]+)\)", page.read_text()):
        assert (page.parent / target).is_file(), target
        assert len(words.split()) >= 8, target
