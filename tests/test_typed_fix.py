"""Answers for programs: a fix as words to run, errors as documents, and few words."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from sbatchgen.cli.typed_fix import arguments
from tests.conftest import Command

SUBMIT = dict.fromkeys(("--time", "--partition", "--nodes", "--gpus-per-node"), True)
SUBMIT |= dict.fromkeys(("--yes", "--again", "--dry-run"), False) | {"--reviewed": True}
SCRIPT = (
    "#!/bin/bash\n#SBATCH --time=01:00:00\n#SBATCH --nodes=1\n#SBATCH --gpus-per-node=1\npython train.py\n"
)
TOKENS = 1500  # counted as characters / 4


@pytest.mark.parametrize(
    ("fix", "what", "typed", "runs"),
    [
        ("--time 0-02:15:00", "", "submit j", "sbatchgen submit j --time 0-02:15:00"),
        ("set --time 1 or less", "", "submit j --time=9 -- --time 3", "sbatchgen submit j --time 1 -- --time 3"),
        ("see sbatchgen status; to submit it, add --again", "", "submit j", "sbatchgen status"),
        ("chmod go-w /a/b.yaml", "", "submit j", "chmod go-w /a/b.yaml"),
        ("add --yes to submit, or --dry-run", "", "submit j", "sbatchgen submit j --dry-run"),
        ("did you mean 'gpu'?", "there is no partition 'gp'", "submit j", "sbatchgen submit j --partition gpu"),
        ("did you mean '--time'?", "no such option --tme", "submit j --tme 5", "sbatchgen submit j --time 5"),
        ("set --gpus-per-node 4 and --nodes 2", "", "submit j", "sbatchgen submit j --gpus-per-node 4 --nodes 2"),
        ("add --time HH:MM:SS", "", "submit j", ""),
        ("edit the script", "", "submit j", ""),
        ("read the review, and if it is right: --reviewed 5a", "", "submit j", ""),
        ("start another run: --job-name NAME\n  or: scancel 3", "", "submit j", ""),
        ("scancel 3", "", "submit j", ""),
        ("sbatchgen cancel r", "", "submit j", ""),
        ("sbatchgen submit j --yes", "", "submit j", ""),
        ("write --time 123, ... in the script", "", "submit j", ""),
        ("write --time and --nodes before the --", "", "submit j -- --time 9", ""),
        ("--time 5", "", "submit j --yes --reviewed 5a -- --yes", "sbatchgen submit j --time 5 --dry-run -- --yes"),
    ],
)  # fmt: skip
def test_a_fix_is_words_to_run(fix: str, what: str, typed: str, runs: str) -> None:
    made = arguments({"fix": fix, "what": what, "at": ""}, typed.split(), SUBMIT)
    assert " ".join(made) == runs


def test_an_error_is_a_document_with_what_to_run(command: Command, folder: Path) -> None:
    (folder / "job.sh").write_text(SCRIPT)
    done = command("submit", "job.sh", "--format", "json")
    error = json.loads(done.out)["error"]
    assert (done.status, error["status"]) == (2, 2)
    assert error["problems"][0]["argv"] == ["sbatchgen", "submit", "job.sh", "--format", "json", "--dry-run"]
    assert "error: no terminal to ask" in done.err
    wrong = json.loads(command("review", "job.sh", "--format", "json", "--tme", "5").out)["error"]
    assert wrong["problems"][0]["argv"] == [
        "sbatchgen",
        "review",
        "job.sh",
        "--format",
        "json",
        "--time",
        "5",
    ]


def test_a_submission_is_a_document(command: Command, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "bin").mkdir()
    (folder / "bin/sbatch").write_text("#!/bin/sh\necho 4711\n")
    (folder / "bin/sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}/bin:{os.environ['PATH']}")
    (folder / "job.sh").write_text(SCRIPT)
    reviewed = json.loads(command("review", "job.sh", "--format", "json", "--brief").out)
    words = ("submit", "job.sh", "--yes", "--format", "json", "--reviewed", reviewed["digest"])
    dry = json.loads(command(*words, "--dry-run").out)
    done = json.loads(command(*words).out)
    assert (dry["jobs"], [job["job"] for job in done["jobs"]]) == ([], ["4711"])
    assert done["digests"] == dry["digests"] == [reviewed["digest"]]
    assert done["cost"][0]["gpu_hours"] == 1


def test_a_script_with_an_error_names_what_mends_it(command: Command, folder: Path) -> None:
    (folder / "job.sh").write_text(SCRIPT.replace("\n", "\r\n"))
    done = command("submit", "job.sh", "--yes", "--format", "json")
    runs = [finding["argv"] for finding in json.loads(done.out)["findings"] if finding["severity"] == "error"]
    assert (done.status, runs[0]) == (3, ["sbatchgen", "lint", "--fix", "job.sh"])


@pytest.mark.parametrize(
    "words",
    [("review", "ddp", "--profile", "msu", "--brief"), ("review", "job.sh"), ("plan", "ddp", "--profile", "msu"), ("plan", "job.sh"),
     ("plan", "ddp", "--profile", "msu", "--nodes", "8", "--brief"), ("lint", "job.sh"), ("status",)],
)  # fmt: skip
def test_an_answer_is_short(command: Command, folder: Path, words: tuple[str, ...]) -> None:
    (folder / "job.sh").write_text(SCRIPT)
    (folder / "train.py").write_text("import torch\n")
    done = command(*words, "--format", "json")
    assert done.status in (0, 3), done.err
    assert 2 < len(done.out) / 4 < TOKENS
