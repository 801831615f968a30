"""Answers for programs: a fix as words to run, errors as documents, and few words."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from sbatchgen.cli.typed_fix import argv_of_fix
from sbatchgen.jobs.runs.index import Index, index_file
from tests.conftest import Command
from tests.runs.test_snapshot import put
from tests.slurm import fakes
from tests.slurm.test_gpus import PROFILE

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
        ("as in: --time 5 --nodes 2", "", "submit j", ""),
        ("read the review, and if it is right: --reviewed 5a", "", "submit j", ""),
        ("start another run: --job-name NAME\n  or: scancel 3", "", "submit j", ""),
        ("scancel 3", "", "submit j", ""),
        ("sbatchgen cancel r", "", "submit j", ""),
        ("sbatchgen submit j --yes", "", "submit j", ""),
        ("write --time 123, ... in the script", "", "submit j", ""),
        ("write --time and --nodes before the --", "", "submit j -- --time 9", ""),
        ("--time 5", "", "submit j --yes --reviewed 5a -- --yes", "sbatchgen submit j --time 5 --dry-run -- --yes"),
        ("write --nodes. Arguments come after --", "no such option -N", "submit j -N 2", "sbatchgen submit j --nodes 2"),
        ("write --nodes. Arguments come after --", "no such option -N", "submit j -N2", "sbatchgen submit j --nodes=2"),
        ("set --partition a,b, or --time 5", "", "submit j", "sbatchgen submit j --partition a,b"),
        ("see sbatchgen status a,b, or wait", "", "submit j", "sbatchgen status a,b"),
        ("--partition 'a b'", "", "submit j", "sbatchgen submit j --partition a b"),
    ],
)  # fmt: skip
def test_a_fix_is_words_to_run(fix: str, what: str, typed: str, runs: str) -> None:
    made = argv_of_fix({"fix": fix, "what": what, "at": ""}, typed.split(), SUBMIT)
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


@pytest.fixture
def sbatch(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What an sbatch got that only prints an id."""
    (folder / "bin").mkdir()
    for name, text in (
        ("sbatch", f'cat -- "${{!#}}" >>{folder}/submitted; echo 4711'),
        ("squeue", ""),
        ("scontrol", ""),
    ):
        (folder / f"bin/{name}").write_text(f"#!/bin/bash\n{text}\n")
        (folder / f"bin/{name}").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}/bin:{os.environ['PATH']}")
    return folder / "submitted"


def waits(folder: Path) -> None:
    """Let squeue show all that was submitted."""
    rows = [
        {"JobArrayID": job.id, "State": "PENDING", "Reason": "Priority", "Command": f"/x/sbatchgen-{job.key}-x/job.slurm"}
        for job in Index(index_file(os.environ)).jobs()
    ]  # fmt: skip
    fakes.squeue(folder / "bin", rows)


@pytest.mark.usefixtures("sbatch")
def test_a_submission_is_a_document(command: Command, folder: Path) -> None:
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


def test_a_fix_of_a_record_without_a_problem_is_read_too() -> None:
    """As a cause in a diagnosis has."""
    assert argv_of_fix({"fix": "did you mean 'x'?"}, ["diagnose", "r"], {}) == []
    assert argv_of_fix({"fix": "see sbatchgen logs r"}, ["diagnose", "r"], {}) == ["sbatchgen", "logs", "r"]


REFUSED = {  # by kind of refusal: the command, and its status
    "a finding": (("review", "crlf.sh"), 3),
    "a finding of a job": (("review", "ddp", "--profile", "msu", "--partition", "nope"), 4),
    "a submission": (("submit", "crlf.sh", "--yes"), 3),
    "a sweep": (("sweep", "single", "--profile", "msu", "--param", "lr=[0.1,0.2]"), 2),
    "a sweep without a terminal": (("sweep", "single", "--profile", "torchrun", "--param", "lr=1,2"), 2),
    "explain": (("explain", "ddp", "--profile", "msu", "--partition", "nope"), 4),
    "plan": (("plan", "refused.sh"), 3),
    "an option": (("status", "--al"), 2),
    "a run": (("resume", "none", "--yes"), 2),
    "points": (("resubmit", "none"), 2),
    "a log": (("logs", "none"), 2),
    "cancel": (("cancel", "none"), 2),
    "diagnose": (("diagnose", "none"), 2),
    "lint": (("lint", "none.sh"), 3),
    "adopt": (("adopt", "refused.sh"), 3),
    "a profile": (("profile", "check", "none"), 3),
    "a file": (("submit", "ddp", "--profile", "torchrun", "--budget", "none.yaml", "--dry-run"), 7),
}  # fmt: skip


@pytest.mark.parametrize(("words", "status"), REFUSED.values(), ids=REFUSED)
def test_each_refusal_is_an_error_in_the_document(
    command: Command, folder: Path, words: tuple[str, ...], status: int
) -> None:
    (folder / "crlf.sh").write_text(SCRIPT.replace("\n", "\r\n"))
    (folder / "refused.sh").write_text("#!/bin/bash\n#SBATCH -gpus=1\npython train.py\n")
    done = command(*words, "--format", "json")
    error = json.loads(done.out)["error"]
    assert (done.status, error["status"]) == (status, status)
    assert error["problems"]
    assert all(each.keys() == {"what", "at", "fix", "argv"} for each in error["problems"])
    for argv in (each["argv"] for each in error["problems"] if each["argv"]):
        assert (
            argv[0] != "sbatchgen"
            or "json" in argv
            or argv[1:3] in (["lint", "--fix"], ["profile", "discover"])
        )


def test_an_option_before_the_command_is_told_where_it_goes(command: Command, folder: Path) -> None:
    done = command("--format", "json", "status", "--all")
    (problem,) = json.loads(done.out)["error"]["problems"]
    assert problem["fix"].endswith(
        "options come after the command, as in: sbatchgen status --all --format json"
    )
    assert problem["argv"] == ["sbatchgen", "status", "--all", "--format", "json"]
    assert json.loads(command(*problem["argv"][1:]).out)["runs"] == []
    wrong = json.loads(command("--format", "json", "submit", "none.sh", "--yes").out)["error"]
    assert wrong["problems"][0]["argv"] == []  # it would submit


def test_of_an_option_that_is_there_twice_the_wrong_value_is_mended(command: Command, folder: Path) -> None:
    words = ("sweep", "single", "--profile", "torchrun", "--format", "json", "--param", "a=1,2", "--param")
    (problem,) = json.loads(command(*words, "lr=[0.1, 0.2]", "--dry-run").out)["error"]["problems"]
    assert problem["fix"] == "--param lr=0.1,0.2"
    assert problem["argv"] == ["sbatchgen", *words[:-1], "--dry-run", "--param", "lr=0.1,0.2"]
    done = json.loads(command(*problem["argv"][1:]).out)
    assert (done["jobs"], len(done["digests"])) == ([], 1)


@pytest.mark.parametrize(
    ("named", "typed"), [("../ours.yaml", "../ours.yaml"), ("site/old one.yaml", "'site/old one.yaml'"), ("mine", "mine")]
)  # fmt: skip
def test_an_old_profile_is_checked_as_it_was_named(
    command: Command, folder: Path, monkeypatch: pytest.MonkeyPatch, named: str, typed: str
) -> None:
    """By its file, where no name finds the profile."""
    monkeypatch.setenv("SBATCHGEN_PATH", str(folder / "path"))
    file = folder / "jobs" / named if "/" in named else folder / "path/profiles/mine.yaml"
    put(file, PROFILE.replace("2026-01-01", "2020-01-01").replace("ours", file.stem.replace(" ", "")))
    put(folder / "jobs/train.py", "import torch\n")
    monkeypatch.chdir(folder / "jobs")
    said = command("review", "single", "--trainer", "train.py", "--profile", named, "--format", "json")
    (old,) = [each for each in json.loads(said.out)["findings"] if each["rule"] == "SB054"]
    assert old["fix"] == f"sbatchgen profile check {typed} --live, on the cluster"
    assert command(*old["argv"][1:4]).status == 0


def test_what_a_resumed_run_would_change_is_typed_as_it_was(
    command: Command, folder: Path, sbatch: Path
) -> None:
    """The words of a fix are those of `resume`, not of the submission within it."""
    (folder / "job.sh").write_text(SCRIPT)
    assert command("submit", "job.sh", "--yes").status == 0
    words = ("resume", "job.sh", "--format", "json", "--yes")
    (problem,) = json.loads(command(*words, "--tme", "5").out)["error"]["problems"]
    assert problem["argv"] == [
        "sbatchgen",
        "resume",
        "job.sh",
        "--format",
        "json",
        "--time",
        "5",
        "--dry-run",
    ]
    assert [job["job"] for job in json.loads(command(*words).out)["jobs"]] == ["4711"]


@pytest.mark.proof
def test_a_sweep_its_log_and_its_end_are_documents(command: Command, folder: Path, sbatch: Path) -> None:
    words = ("sweep", "single", "--profile", "torchrun", "--param", "lr=1,2", "--format", "json")
    dry = json.loads(command(*words, "--dry-run").out)
    other = command(*words[:-3], "lr=1,3", *words[-2:], "--yes", "--reviewed", *dry["digests"])
    assert (other.status, json.loads(other.out)["error"]["status"], sbatch.exists()) == (3, 3, False)
    done = json.loads(command(*words, "--yes", "--reviewed", *dry["digests"]).out)
    assert [(job["job"], job["run"]) for job in done["jobs"]] == [("4711", "single")]
    (folder / "runs/single/single-4711_0.out").write_text("one\n\x1b[32m1%\r2%\x1b[0m\nthree\n")
    assert json.loads(command("logs", "single/0", "--format", "json").out)["lines"] == ["one", "2%", "three"]


def test_a_job_is_cancelled_without_a_terminal_only_with_yes(
    command: Command, folder: Path, sbatch: Path
) -> None:
    (folder / "job.sh").write_text(SCRIPT)
    assert command("submit", "job.sh", "--yes").status == 0
    waits(folder)
    (folder / "bin/scancel").write_text(f"#!/bin/sh\necho $* >>{folder}/cancelled\n")
    (folder / "bin/scancel").chmod(0o755)
    refused = command("cancel", "job.sh", "--format", "json")
    (problem,) = json.loads(refused.out)["error"]["problems"]
    assert problem["what"].endswith("job 4711 of run job.sh")
    assert (refused.status, (folder / "cancelled").exists()) == (2, False)
    assert problem["argv"] == ["sbatchgen", "status", "--format", "json"]
    assert command(*problem["argv"][1:]).status == 0
    done = json.loads(command("cancel", "job.sh", "--yes", "--format", "json").out)
    assert done["cancelled"] == [{"run": "job.sh", "job": "4711"}]
    assert (folder / "cancelled").read_text() == "4711\n"


def test_ten_runs_and_more_are_told_in_brief(command: Command, folder: Path, sbatch: Path) -> None:
    (folder / "bin/sbatch").write_text(f"#!/bin/sh\necho x >>{folder}/n; wc -l <{folder}/n\n")
    (folder / "job.sh").write_text(SCRIPT)
    for number in range(12):
        assert command("submit", "job.sh", "--job-name", f"resnet-{number}", "--yes").status == 0
    waits(folder)
    brief = command("status", "--format", "json", "--brief").out
    shown = json.loads(brief)
    assert len(brief) / 4 / len(shown["runs"]) < TOKENS / 10
    assert {run["name"] for run in shown["runs"] if not run["ended"]} == {
        f"resnet-{number}" for number in range(12)
    }


@pytest.mark.sampled(3)
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
