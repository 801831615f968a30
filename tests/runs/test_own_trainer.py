"""Findings about a trainer of one's own, before it is submitted."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from sbatchgen.check.rules import judge
from sbatchgen.jobs.judge import trainers
from sbatchgen.jobs.runs.index import Index, index_file
from tests.conftest import Command
from tests.scripts import first_part
from tests.slurm import fakes

PLAIN = "import torch\nprint(torch.nn.Linear(8, 1))\n"
SAVES = f"{PLAIN}torch.save(1, 'last.pt')\n"
SPAWNS = "import torch.multiprocessing as mp\nmp.spawn(print, nprocs=4)\ntorch.save(1, 'last.pt')\n"


def review(command: Command, *words: str, mode: str = "ddp", trainer: str = "train.py") -> dict[str, Any]:
    result = command("review", mode, "--profile", "msu", "--trainer", trainer, *words, "--format", "json")
    made: dict[str, Any] = json.loads(result.out)
    return made


def says(made: dict[str, Any]) -> list[str]:
    """The findings about trainers."""
    ids = {rule.id for rule in judge.rules(judge.TRAINERS)}
    about = (finding for finding in made["findings"] if finding["rule"] in {"", *ids})
    return [f"{finding['severity']}: {finding['what']}" for finding in about]


COPIES = "warning: 8 copies of the same training: train.py uses no torch.distributed"
AGAIN = "warning: train.py saves nothing: each restart begins at the first step"
LOST = "info: train.py saves nothing: at the time limit its work is lost"
TWICE = "warning: train.py starts its own processes (mp.spawn), and torchrun starts it 8 times"


@pytest.mark.parametrize(
    ("text", "words", "expected"),
    [
        (SAVES, (), [COPIES]),
        (PLAIN, (), [COPIES, LOST]),
        (PLAIN, ("--requeue-on-timeout",), [COPIES, AGAIN]),
        (PLAIN, ("--chain", "3"), [COPIES, AGAIN]),
        (PLAIN, ("--max-restarts", "0"), [COPIES]),
        (PLAIN, ("--nodes", "1", "--nproc-per-node", "1"), [LOST]),
        (SPAWNS, (), [TWICE]),
        (SPAWNS, ("--launcher", "spawn"), []),
        (f"import horovod\n{PLAIN}", (), []),
    ],
)
def test_what_is_wrong_with_a_trainer(
    command: Command, folder: Path, text: str, words: tuple[str, ...], expected: list[str]
) -> None:
    (folder / "train.py").write_text(text)
    assert says(review(command, *words)) == expected


@pytest.mark.parametrize("text", [PLAIN, SAVES])
@pytest.mark.parametrize(
    ("words", "ends"),
    [
        (("--chain", "3"), "also: without --chain nothing starts it again"),
        (("--requeue-on-timeout",), "also: --max-restarts 0 promises no restart"),
    ],
)
def test_what_else_ends_the_restarts_of_a_trainer(
    command: Command, folder: Path, text: str, words: tuple[str, ...], ends: str
) -> None:
    (folder / "train.py").write_text(text)
    findings = review(command, *words)["findings"]
    (fix,) = [finding["fix"] for finding in findings if finding["rule"] in ("SB048", "SB050")]
    assert fix.rpartition("\n")[2].strip() == ends


NEEDS_RANK = "import os\nimport torch\nprint('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'])\n"


@pytest.mark.parametrize("mode", ["single", "cpu", "dataparallel"])
@pytest.mark.parametrize("verb", ["review", "sweep"])
def test_a_trainer_of_several_processes_gets_the_mode_that_starts_it(
    command: Command, folder: Path, verb: str, mode: str
) -> None:
    (folder / "train.py").write_text(NEEDS_RANK)
    words = [verb, mode, "--profile", "torchrun", "--partition", "gpu", "--trainer", "train.py"]
    words += ["--param", "lr=1,2", "--dry-run"] if verb == "sweep" else []
    what = f"warning SB058: train.py needs RANK (train.py:3), and mode {mode} sets none: it ends there"
    first = command(*words)
    shown = first.out + first.err
    assert what in shown
    fix = shown.partition(what)[2].partition("also for one process: ")[2].splitlines()[0]
    again = command(*words, *fix.split())
    assert again.status in (0, None), again.err
    assert "SB058" not in again.out + again.err
    assert "mode ddp, launcher" in again.out + again.err


@pytest.mark.proof
def test_the_mode_that_starts_it_runs_it_and_the_other_is_diagnosed(
    command: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    (folder / "train.py").write_text(NEEDS_RANK)
    words = ("single", "--profile", "local", "--job-name", "alone", "--trainer", "train.py", "--yes")
    assert command("submit", *words).status == 1
    (cause,) = json.loads(command("diagnose", "alone", "--format", "json").out)["causes"]
    assert cause["means"].startswith("RANK is not set")
    fix = re.search(r"sbatchgen (resume alone .*) starts it again", cause["fix"])
    assert fix
    assert command(*fix[1].split(), "--yes").status == 0
    assert "rank 0 of 1" in command("logs", "alone").out


LIGHTNING = "import lightning as L\nL.Trainer({}).fit(None)\n"


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("call", "differs"),
    [
        ("max_epochs=3", {"num_nodes": (1, 2)}),
        ("num_nodes=1)\nL.Trainer(", {}),
        ("devices=4, num_nodes=2", {}),
        ("devices=2, num_nodes=3", {"devices": (2, 4), "num_nodes": (3, 2)}),
        ("devices='auto', num_nodes=int(os.environ['SLURM_NNODES'])", {}),
        ("devices=-1, num_nodes=2", {}),
        ("**vars(args)", {}),
    ],
)
def test_the_size_that_lightning_expects_is_that_of_the_job(
    command: Command, folder: Path, call: str, differs: dict[str, tuple[int, int]]
) -> None:
    (folder / "train.py").write_text(LIGHTNING.format(call))
    words = ("--nodes", "2", "--gpus-per-node", "4")
    made = review(command, *words)
    findings = [each for each in made["findings"] if each["rule"] == "SB059"]
    assert [each["what"] for each in findings] == [
        f"Trainer() of train.py has {name}={given}, and the job {asked}: it ends there"
        for name, (given, asked) in differs.items()
    ]
    again = [word for each in findings for word in each["fix"].partition("; or ")[2].split()]
    assert not any(each["rule"] == "SB059" for each in review(command, *words, *again)["findings"])
    (folder / "train.py").write_text(f"from own import Trainer\n{LIGHTNING.format(call).replace('L.T', 'T')}")
    (folder / "own.py").write_text("from transformers import Trainer\n")
    assert not any(each["rule"] == "SB059" for each in review(command, *words)["findings"])


def test_a_rank_that_the_user_has_set_is_there(
    command: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "train.py").write_text(NEEDS_RANK)
    needs = "warning: train.py needs RANK (train.py:3), and mode single sets none: it ends there"
    assert needs in says(review(command, mode="single"))
    monkeypatch.setenv("RANK", "0")
    assert needs not in says(review(command, mode="single"))


@pytest.mark.parametrize("mode", ["ddp", "cpu"])
def test_a_program_in_place_of_a_job_keeps_the_mode_that_was_typed(
    command: Command, folder: Path, mode: str
) -> None:
    (folder / "train.py").write_text("print(1)\n")
    said = command("submit", mode, "train.py", "--profile", "local").err
    assert f"fix: sbatchgen submit {mode} --trainer train.py\n" in said


def test_one_process_trains_alone(command: Command, folder: Path) -> None:
    (folder / "train.py").write_text(SAVES)
    assert says(review(command, mode="single")) == []


def test_restarts_are_counted_where_there_may_be_some(command: Command, folder: Path) -> None:
    (folder / "train.py").write_text(SAVES)
    asks_for_none = review(command, mode="single")
    assert asks_for_none["request"]["restarts"] == 0
    assert asks_for_none["job"]["restarts"].startswith(
        "none at the time limit, because train.py never loads what it saves"
    )
    assert review(command, "--requeue-on-timeout", mode="single")["request"]["restarts"] == 10
    (folder / "train.py").write_text(f"{SAVES}import own_library\n")
    assert review(command, mode="single")["request"]["restarts"] == 10


@pytest.mark.parametrize(
    ("lines", "proposed"),
    [
        ('parser.add_argument("--resume")', 'set checkpoint, and resume_args: [--resume, "{checkpoint}"]'),
        ("", "add --requeue-on-timeout, if the trainer finds its checkpoint by itself"),
    ],
)
def test_the_way_to_resume_follows_from_the_source(
    command: Command, folder: Path, lines: str, proposed: str
) -> None:
    (folder / "train.py").write_text(
        f"import argparse, torch\nparser = argparse.ArgumentParser()\n{lines}\n"
        "model = torch.nn.Linear(1, 1)\nmodel.load_state_dict(torch.load('m.pt'))\n"
        "torch.save(model.state_dict(), 'm.pt')\n"
    )
    restarts = review(command, mode="single")["job"]["restarts"]
    assert restarts == f"none at the time limit, because train.py asks for none: {proposed}"


def test_a_trainer_that_never_asks_for_a_restart_has_no_lines_for_one(command: Command, folder: Path) -> None:
    """Slurm starts it again after a failure of a node, unless it would overwrite what it has saved."""
    words = ("render", "single", "--profile", "torchrun", "--runtime", "host", "--trainer", "train.py")
    (folder / "train.py").write_text(SAVES)
    script = command(*words).out
    for line in ("trap", "stop", "SBATCHGEN_", "SLURM_RESTART_COUNT", "--signal", "--requeue", "kill -0"):
        assert line not in script
    assert len(first_part(script).splitlines()) <= 30
    (folder / "train.py").write_text(SAVES + "model.load_state_dict(torch.load('m.pt'))\n")
    script = command(*words).out
    assert "#SBATCH --requeue\n" in script
    assert "#SBATCH --open-mode=append\n" in script
    assert "trap" not in script
    explained = command("explain", *words[1:]).out
    assert re.search(r"(?m)^resume +off +follows from: train.py never asks for a restart$", explained)


@pytest.mark.parametrize(
    "asks",
    [
        ("--resume", "auto"),
        ("--max-restarts", "3"),
        ("--chain", "2"),
        ("--requeue-on-timeout",),
        ("--signal", "B:USR1@9"),
        ("--", "--from", "{resume}"),
    ],
)
def test_what_asks_for_a_restart_keeps_its_lines(
    command: Command, folder: Path, asks: tuple[str, ...]
) -> None:
    (folder / "train.py").write_text(SAVES)
    words = ("render", "single", "--profile", "torchrun", "--trainer", "train.py")
    assert "\ntrap " in command(*words, *asks).out


@pytest.mark.parametrize("more", ["import signal\nsignal.signal(15, print)\n", "import lightning\n"])
def test_bash_waits_for_a_trainer_that_may_handle_a_signal(command: Command, folder: Path, more: str) -> None:
    (folder / "train.py").write_text(f"{SAVES}{more}")
    words = ("render", "single", "--profile", "torchrun", "--trainer", "train.py")
    assert "\ntrap " in command(*words).out


def test_a_job_file_says_whether_it_is_resumed(command: Command, folder: Path) -> None:
    (folder / "train.py").write_text(SAVES)
    (folder / "job.yaml").write_text("mode: single\ntrainer: train.py\nresume: auto\n")
    assert "\ntrap " in command("render", "job.yaml", "--profile", "torchrun").out
    (folder / "job.yaml").write_text("mode: single\ntrainer: train.py\n")
    assert "\ntrap " not in command("render", "job.yaml", "--profile", "torchrun").out


@pytest.mark.parametrize("trainer", ["torchrun", "accelerate", "./job.sh", "torch.distributed.run"])
def test_a_launcher_and_a_script_of_shell_are_no_trainers(
    command: Command, folder: Path, trainer: str
) -> None:
    (folder / "job.sh").write_text("#!/bin/bash -l\ntorchrun train.py\n")
    (finding,) = says(review(command, trainer=trainer))
    severity = "warning" if trainer.startswith("torch.") else "error"
    assert finding.startswith(f"{severity}: ")


def test_a_trainer_that_is_a_pipe_does_not_stop_a_review(command: Command, folder: Path) -> None:
    os.mkfifo(folder / "train.py")
    assert says(review(command)) == []


def test_a_script_of_python_may_have_any_name(command: Command, folder: Path) -> None:
    (folder / "train").write_text(f"#!/usr/bin/env python3\nimport os\n{SAVES}")
    assert says(review(command, mode="single", trainer="./train")) == []


def environment(place: Path, *packages: str) -> Path:
    """An environment whose Python must not be run, with these packages."""
    (place / "lib/python3.12/site-packages").mkdir(parents=True)
    for package in packages:
        (place / "lib/python3.12/site-packages" / package).write_text("")
    (place / "bin").mkdir()
    (place / "bin/python3").write_text("#!/bin/sh\ntouch ran\n")
    (place / "bin/python3").chmod(0o755)
    return place


VENV = ("review", "single", "--profile", "local", "--runtime", "venv", "--format", "json", "--venv")


@pytest.mark.parametrize("trainer", [(), ("--trainer", "train.py")])
def test_an_environment_without_torch_is_found(
    command: Command, folder: Path, trainer: tuple[str, ...]
) -> None:
    (folder / "data").mkdir()
    (folder / "train.py").write_text(SAVES)
    place = environment(folder / "env", "numpy.py", "distutils-precedence.pth")
    assert says(json.loads(command(*VENV, str(place), *trainer).out)) == [
        f"warning: the Python of the job has no torch: {place}/bin/python3"
    ]
    (place / "pyvenv.cfg").write_text("include-system-site-packages = true\n")
    assert says(json.loads(command(*VENV, str(place), *trainer).out)) == []
    assert not (folder / "ran").exists()


@pytest.mark.parametrize("package", ["torch", "torch.py", "site-of-the-centre.pth"])
def test_an_environment_that_may_have_torch_is_no_finding(
    command: Command, folder: Path, package: str
) -> None:
    (folder / "train.py").write_text(SAVES)
    made = command(*VENV, str(environment(folder / "env", package)), "--trainer", "train.py")
    assert says(json.loads(made.out)) == []


@pytest.mark.torch
def test_the_python_of_this_shell_is_looked_at_if_it_is_that_of_the_job(
    command: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = environment(folder / "mine")
    monkeypatch.setenv("PATH", f"{mine}/bin:{os.environ['PATH']}")
    (folder / "train.py").write_text(SAVES)
    words = ("review", "single", "--profile", "local", "--trainer", "train.py", "--format", "json")
    assert says(json.loads(command(*words).out)) == []  # it may be another one on a node
    monkeypatch.setenv("VIRTUAL_ENV", str(mine))
    expected = f"warning: the Python of the job has no torch: {mine}/bin/python3"
    assert says(json.loads(command(*words).out)) == [expected]
    (folder / "train.py").write_text("print('no torch')\n")
    assert says(json.loads(command(*words).out)) == []


def test_the_python_of_the_system_without_torch_is_an_info(
    command: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    system = environment(folder / "system", "numpy.py")
    monkeypatch.setattr(trainers, "_SYSTEM_FOLDERS", (system / "bin",))
    monkeypatch.setattr(trainers, "_SYSTEM_PREFIXES", ())
    monkeypatch.setenv("PATH", f"{system}/bin:{os.environ['PATH']}")
    (folder / "train.py").write_text(SAVES)
    words = (
        "review",
        "single",
        "--profile",
        "public_cluster",
        "--runtime",
        "host",
        "--trainer",
        "train.py",
        "--format",
        "json",
    )

    def found(*more: str) -> list[str]:
        return [line for line in says(json.loads(command(*words, *more).out)) if "torch" in line]

    expected = f"info: the job starts {system}/bin/python3, which has no torch on this machine: "
    assert found() == [f"{expected}if the nodes have none either, the job ends there"]
    for more in ("modules=cuda", "setup=source env", "env.PYTHONPATH=/packages"):
        assert found("--set", more) == []
    (system / "lib/python3.12/site-packages/torch").mkdir()
    assert found() == []


def test_a_trainer_is_read_and_never_run(command: Command, folder: Path) -> None:
    (folder / "train.py").write_text(f"{SAVES}open('ran', 'w')\n")
    (folder / "torch.py").write_text("open('ran', 'w')\n")
    review(command)
    assert not (folder / "ran").exists()


def test_what_happens_at_the_time_limit_is_said_once(command: Command, folder: Path) -> None:
    for text, row in ((SAVES, 1), (PLAIN, 0)):
        (folder / "train.py").write_text(text)
        lines = command("review", "single", "--profile", "msu", "--trainer", "train.py").out.splitlines()
        assert len([line for line in lines if line.startswith("restarts ")]) == row
        assert (
            len([line for line in lines if "none at the time limit" in line or "work is lost" in line]) == 1
        )


EPOCHS = """
import argparse
import torch

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float)
model = torch.nn.Linear(8, 1)
for epoch in range(90):
    torch.save(model.state_dict(), "model.pt")
"""
EATS = "warning: train.py never loads what it saves: {} begins at the first step, and may overwrite what it has saved"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((), []),
        (("--requeue-on-timeout",), [EATS.format("each restart")]),
        (("--chain", "3"), [EATS.format("each restart")]),
        (("--array", "1-3%1"), [EATS.format("each restart")]),
        (("--requeue-on-timeout", "--resume", "off"), []),
    ],
)
def test_a_restart_that_eats_the_model_is_a_warning(
    command: Command, folder: Path, words: tuple[str, ...], expected: list[str]
) -> None:
    (folder / "train.py").write_text(EPOCHS)
    made = review(command, *words, mode="single")
    assert [says for says in says(made) if "never loads" in says] == expected
    fixes = [finding["fix"] for finding in made["findings"] if finding["rule"] == "SB050"]
    for line in (
        'torch.save({"model": model.state_dict(), "epoch": epoch}',
        'model.load_state_dict(state["model"])',
    ):
        assert all(line in fix for fix in fixes)
    (folder / "train.py").write_text(f"{EPOCHS}model.load_state_dict(torch.load('model.pt'))\n")
    assert "never loads" not in str(review(command, *words, mode="single"))


def test_points_that_save_to_one_file_are_found(command: Command, folder: Path) -> None:
    (folder / "train.py").write_text(EPOCHS)
    words = (
        "sweep",
        "single",
        "--profile",
        "msu",
        "--trainer",
        "train.py",
        "--dry-run",
        "--run-dir",
        "runs/lr",
        "--param",
        "lr=0.1,0.2",
    )
    shown = command(*words).err
    assert "warning SB051: 2 points save to model.pt" in shown
    assert 'os.path.join(os.environ["RUN_DIR"], "model.pt")' in shown
    option = 'parser.add_argument("--out", default="model.pt")\ntorch.save(model, parser.parse_args().out)\n'
    (folder / "train.py").write_text(f"import argparse, torch\nparser = argparse.ArgumentParser()\n{option}")
    assert "fix: -- --out {run_dir}/model.pt" in command(*words).err
    assert "SB051" in command(*words, "--", "--out", "other.pt").err
    assert "SB051" not in command(*words, "--", "--out", "{run_dir}/model.pt").err
    assert "SB051" not in command(*words, "--param", "out=a.pt,b.pt").err
    assert "SB051" not in command(*words[:-1], "lr=0.1").err


SCRIPT = "#!/bin/bash\n#SBATCH --job-name=old --time=5 --requeue\npython3 -u train.py\n"


@pytest.mark.parametrize(
    "words",
    [("single", "--profile", "public_cluster", "--job-name", "old", "--trainer", "train.py"), ("old.sh",)],
)
def test_nothing_that_starts_a_run_again_hides_that_its_trainer_never_loads(
    command: Command, folder: Path, programs: Path, words: tuple[str, ...]
) -> None:
    (folder / "train.py").write_text(EPOCHS)
    (folder / "old.sh").write_text(SCRIPT)
    fakes.saying(programs, "sbatch", "4711")
    first = command("submit", *words, "--yes")
    assert (first.status, first.out) == (0, "4711\n")
    assert ("never loads" in first.err) is True
    (folder / "model.pt").write_text("the model")
    row = {"JobArrayID": "4711", "State": "TIMEOUT", "exit_code": "15"}
    (job,) = Index(index_file(os.environ)).jobs()
    fakes.squeue(programs, [row | {"Command": f"{folder}/sbatchgen-{job.key}-x/job.slurm"}])
    says = (
        "train.py never loads what it saves: it begins at the first step, and may overwrite what it has saved"
    )
    assert f"a restart  {says}" in command("status", "old").out
    shown = command("diagnose", "old").out
    assert says in shown
    assert "continues" not in shown
    again = command("resume", "old", "--yes")
    assert (again.status, says in again.err) == (0, True), again.err
    if words[0] == "single":
        assert f"warning SB050: {says}" in command("submit", *words, "--dry-run").err
