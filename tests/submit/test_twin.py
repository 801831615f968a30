"""A job that waits already, once more: what is the same job, and what is another one on purpose."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sbatchgen.jobs.runs.index import Index, index_file
from tests.conftest import Command
from tests.runs.test_snapshot import put
from tests.slurm import fakes

JOB = "mode: single\nprofile: torchrun\ntrainer: train.py\nargs: [--seed, '1']\noptions: {time: '02:00:00'}\n"


@pytest.fixture
def submit(folder: Path, command: Command, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, str]]:
    """Submit a job; what was submitted before waits. Returns the exit status, and what was said."""
    put(folder / "train.py", "import torch\nimport net\n")
    put(folder / "net.py", "WIDTH = 8\n")
    put(folder / "a.yaml", JOB)
    put(folder / "bin/sbatch", f"#!/bin/sh\necho x >>{folder}/n; wc -l <{folder}/n\n", 0o755)
    put(folder / "bin/scontrol", "#!/bin/sh\n", 0o755)
    monkeypatch.setenv("PATH", f"{folder}/bin:{os.environ['PATH']}")

    def call(*words: str) -> tuple[int, str]:
        rows = [
            {"JobArrayID": job.id, "State": "PENDING", "Reason": "Priority", "Command": f"/x/sbatchgen-{job.key}-x/job.slurm"}
            for job in Index(index_file(os.environ)).jobs()
        ]  # fmt: skip
        fakes.squeue(folder / "bin", rows)
        done = command("submit", "--yes", *words)
        return done.status, done.err

    assert call("a.yaml")[0] == 0
    return call


def test_the_same_command_again_is_told_to_look_first(
    command: Command, submit: Callable[..., tuple[int, str]]
) -> None:
    """Its run folder is in use: another one would start a second run."""
    assert submit("a.yaml")[0] == 3
    refused = command("submit", "a.yaml", "--yes", "--format", "json")
    (problem,) = json.loads(refused.out)["error"]["problems"]
    assert problem["argv"] == ["sbatchgen", "status", "--format", "json"]
    (run,) = json.loads(command(*problem["argv"][1:]).out)["runs"]
    assert run["name"] == "a"


SAME = ("is the same job in", "with the same trainer, arguments and resources, and has not ended")


@pytest.mark.parametrize(
    "change", ["", "run_dir: runs/second\n", "options: {job_name: second, time: '120'}\n"]
)
def test_a_copied_job_file_is_the_same_job(
    folder: Path, submit: Callable[..., tuple[int, str]], change: str
) -> None:
    text = JOB if not change.startswith("options") else JOB.partition("options")[0]
    put(folder / "b.yaml", text + change)
    status, said = submit("b.yaml")
    assert status == 2
    assert all(words in said for words in SAME)
    assert submit("b.yaml", "--again")[0] == 0


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "words",
    [("--run-dir", "runs/second"), ("--job-name", "second"), ("--time", "1:00:00"), ("--env", "A=b"), ("--", "--seed", "2"), ("--after", "a")],
)  # fmt: skip
def test_what_is_typed_on_purpose_is_another_job(
    folder: Path, submit: Callable[..., tuple[int, str]], words: tuple[str, ...]
) -> None:
    put(folder / "b.yaml", JOB)
    assert submit("b.yaml", *words)[0] == 0


@pytest.mark.parametrize(("file", "text"), [("train.py", "import torch\n"), ("net.py", "WIDTH = 9\n")])
def test_a_trainer_that_was_edited_since_makes_another_job(
    folder: Path, submit: Callable[..., tuple[int, str]], file: str, text: str
) -> None:
    put(folder / file, text)
    put(folder / "b.yaml", JOB)
    assert submit("b.yaml")[0] == 0


def test_another_seed_in_the_file_is_another_job(
    folder: Path, submit: Callable[..., tuple[int, str]]
) -> None:
    put(folder / "b.yaml", JOB.replace("'1'", "'2'"))
    assert submit("b.yaml")[0] == 0


def test_a_sweep_beside_it_and_its_points_are_other_jobs(
    folder: Path, command: Command, submit: Callable[..., tuple[int, str]]
) -> None:
    put(folder / "b.yaml", JOB)
    assert command("sweep", "b.yaml", "--param", "lr=1,2", "--yes").status == 0
    put(folder / "c.yaml", JOB.replace("seed, '1'", "seed, '1', --lr, '1'"))
    assert submit("c.yaml")[0] == 0


def test_a_trainer_that_can_not_be_read_is_not_taken_for_the_same(
    folder: Path, submit: Callable[..., tuple[int, str]]
) -> None:
    for name in "cd":
        put(folder / f"{name}.yaml", JOB.replace("train.py", "nowhere.module"))
    assert [submit(f"{name}.yaml")[0] for name in "cd"] == [0, 0]


SEEDS = [
    ("python train.py --seed $SEED\n", "import torch\n"),
    ("python train.py\n", "import os\nSEED = int(os.environ['SEED'])\n"),
]


@pytest.mark.parametrize(("script", "trainer"), SEEDS)
def test_another_seed_in_the_environment_is_another_job(
    folder: Path,
    submit: Callable[..., tuple[int, str]],
    monkeypatch: pytest.MonkeyPatch,
    script: str,
    trainer: str,
) -> None:
    """As a loop submits one script: for s in 1 2 3; do SEED=$s sbatchgen submit job.sh --yes; done."""
    put(folder / "train.py", trainer)
    put(folder / "job.sh", f"#!/bin/bash\n#SBATCH --time=60\n{script}")
    for seed in "123":
        monkeypatch.setenv("SEED", seed)
        assert [submit("job.sh")[0] for _ in range(2)] == [0, 2]
    monkeypatch.setenv("NOT_NAMED", "1")
    monkeypatch.setenv("PATH", f"{os.environ['PATH']}:/other")
    assert submit("job.sh")[0] == 2


def test_another_virtual_environment_is_another_job(
    folder: Path, submit: Callable[..., tuple[int, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    put(folder / "job.sh", "#!/bin/bash\n#SBATCH --time=60\npython train.py\n")
    for made in ("/old", "/new"):
        monkeypatch.setenv("VIRTUAL_ENV", made)
        assert [submit("job.sh")[0] for _ in range(2)] == [0, 2]


SETTINGS = [
    ("conf/small.yaml", "python train.py --config conf/small.yaml\n", "import torch\n"),
    ("settings.json", "python train.py\n", "import json\nsettings = json.load(open('settings.json'))\n"),
    ("inner.sh", "bash ./inner.sh\n", "import torch\n"),
]


@pytest.mark.parametrize(("name", "script", "trainer"), SETTINGS)
def test_settings_that_were_edited_since_make_another_job(
    folder: Path, submit: Callable[..., tuple[int, str]], name: str, script: str, trainer: str
) -> None:
    put(folder / "train.py", trainer)
    put(folder / "job.sh", f"#!/bin/bash\n#SBATCH --time=60\n{script}")
    for text in ("lr=0.1\n", "lr=0.2\n"):
        put(folder / name, text)
        put(folder / "README.md", text)
        assert [submit("job.sh")[0] for _ in range(2)] == [0, 2]


def test_a_finished_script_whose_trainer_was_edited_is_another_job(
    folder: Path, submit: Callable[..., tuple[int, str]]
) -> None:
    put(folder / "job.sh", "#!/bin/bash\n#SBATCH --time=60\npython train.py\n")
    assert [submit("job.sh")[0] for _ in range(2)] == [0, 2]
    put(folder / "train.py", "import torch\n")
    assert submit("job.sh")[0] == 0


@pytest.mark.parametrize("asked", ["runs", "jobs"])
def test_a_job_of_another_command_may_enter_the_index_at_any_moment(
    folder: Path, submit: Callable[..., tuple[int, str]], monkeypatch: pytest.MonkeyPatch, asked: str
) -> None:
    put(folder / "job.sh", "#!/bin/bash\n#SBATCH --time=60\npython train.py\n")
    original, others = getattr(Index, asked), iter("bcdefgh")

    def answer_and_enter(index: Index, *args: Any, **options: Any) -> Any:
        answer = original(index, *args, **options)
        key = next(others)
        Index(index_file(os.environ)).begin(key, folder / f"runs/{key}", key, shared=False)
        return answer

    monkeypatch.setattr(Index, asked, answer_and_enter)
    status, said = submit("job.sh")
    assert (status, said.splitlines()[-1]) == (
        0,
        "note: run job.sh; see sbatchgen status, logs, cancel, resume",
    )
