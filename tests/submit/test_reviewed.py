"""`submit --reviewed`: the job that was reviewed, to the byte, and no other."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from sbatchgen.cli.jobs import render
from sbatchgen.cli.resubmit import _SUBMISSION_OPTIONS
from sbatchgen.cli.submit import submit
from tests.conftest import Command
from tests.runs.test_snapshot import git, put

JOB = ("ddp", "--profile", "torchrun")
SCRIPT = "#!/bin/bash\n#SBATCH --nodes=1 --time=60\nsrun python train.py\n"
OWN = """
name: own
url: x
checked: 2026-01-01
default_partition: gpu
partitions: {gpu: {gpus_per_node: 1, cpus_per_node: 4}}
runtime: host
setup: ["source tools.sh"]
"""


@pytest.fixture(autouse=True)
def sbatch(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What an sbatch got that only prints an id."""
    put(folder / "bin/sbatch", f'#!/bin/bash\ncat -- "${{!#}}" >>{folder}/submitted\necho 4711\n', 0o755)
    for name in ("squeue", "scontrol"):
        put(folder / f"bin/{name}", "#!/bin/bash\n", 0o755)
    monkeypatch.setenv("PATH", f"{folder}/bin:{os.environ['PATH']}")
    return folder / "submitted"


def digest_in(shown: str) -> str:
    match = re.search(r"^digest +(\w{40})$", shown, re.MULTILINE)
    assert match, shown
    return match[1]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "job", [JOB, ("cpu", "--profile", "local", "--trainer", "train.py"), ("ddp", "--profile", "msu")]
)
def test_a_digest_stays_until_a_byte_changes(command: Command, folder: Path, job: tuple[str, ...]) -> None:
    put(folder / "train.py", "import torch\n")
    digests = [
        digest_in(command("review", *words, "--", "--lr", rate).out)
        for rate in ("0.1", "0.2")
        for words in (job, (*job, "--env", "A=b"), job)
    ]
    assert digests[0] == digests[2]
    assert len({*digests}) == 4


def test_what_was_reviewed_is_submitted_and_nothing_else(command: Command, sbatch: Path) -> None:
    digest = digest_in(command("review", *JOB, "--", "--lr", "0.1").out)
    assert (
        json.loads(command("review", *JOB, "--format", "json", "--", "--lr", "0.1").out)["digest"] == digest
    )
    refused = command("submit", *JOB, "--reviewed", digest, "--yes", "--", "--lr", "0.2")
    assert (refused.status, sbatch.exists()) == (3, False)
    (new,) = re.findall(r"fix: read the review, and if it is right: --reviewed (\w{40})\n", refused.err)
    assert f"its digest is {new} now, not {digest}\n" in refused.err
    assert re.search(r"^  -.*--lr 0\.1", refused.err, re.MULTILINE)
    assert re.search(r"^  \+.*--lr 0\.2", refused.err, re.MULTILINE)
    assert command("submit", *JOB, "--reviewed", digest, "--yes", "--", "--lr", "0.1").status == 0
    assert "--lr 0.1" in sbatch.read_text()


def test_a_setup_line_that_gains_a_command_is_refused(command: Command, folder: Path, sbatch: Path) -> None:
    """The script starts the same processes as before."""
    words = ("single", "--profile", "./own.yaml")
    put(folder / "own.yaml", OWN)
    digest = digest_in(command("review", *words).out)
    put(folder / "own.yaml", OWN.replace("tools.sh", "tools.sh; rm -rf ~/results"))
    refused = command("submit", *words, "--yes", "--reviewed", digest)
    assert (refused.status, sbatch.exists()) == (3, False)
    assert "\n  -source tools.sh\n  +source tools.sh; rm -rf ~/results\n" in refused.err


@pytest.mark.parametrize("digest", ["../../x", "0" * 40, "", "3f2a91c0"])
def test_a_digest_that_nobody_knows_is_refused_without_a_difference(command: Command, digest: str) -> None:
    refused = command("submit", *JOB, "--reviewed", digest, "--yes")
    assert (refused.status, f"now, not {digest}\n  at:" in refused.err) == (3, True)


def test_a_part_of_the_digest_is_not_enough(command: Command) -> None:
    digest = digest_in(command("review", *JOB).out)
    assert command("submit", *JOB, "--reviewed", digest[:39], "--yes").status == 3


def test_a_finished_script_is_submitted_as_reviewed_too(command: Command, folder: Path) -> None:
    put(folder / "job.slurm", SCRIPT)
    digest = digest_in(command("submit", "job.slurm", "--dry-run").err)
    assert command("submit", "job.slurm", "--dry-run", "--reviewed", digest).status == 0
    put(folder / "job.slurm", SCRIPT.replace("train.py", "train.py "))
    refused = command("submit", "job.slurm", "--dry-run", "--reviewed", digest)
    assert (refused.status, "\n  -srun python train.py\n  +srun python train.py \n" in refused.err) == (
        3,
        True,
    )


def test_the_request_counts_as_well_as_the_script(
    command: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder, from which relative paths count; the name, which the job gets; the environment of sbatch."""
    put(folder / "job.slurm", SCRIPT)
    put(folder / "other.slurm", SCRIPT)
    put(folder / "deep/job.slurm", SCRIPT)
    monkeypatch.setenv("SBATCH_QOS", "high")

    def digest(*words: str) -> str:
        return digest_in(command("submit", *words, "--dry-run").err)

    plain = digest("job.slurm")
    kept = digest("job.slurm", "--keep-sbatch-env")
    monkeypatch.setenv("SBATCH_QOS", "low")
    assert digest("job.slurm") == plain
    others = [digest("other.slurm"), kept, digest("job.slurm", "--keep-sbatch-env")]
    monkeypatch.setattr("sbatchgen.cli.runs.find_point", lambda *_, **__: (None, ""))  # there is no run yet
    others.append(digest("job.slurm", "--after", "first"))
    monkeypatch.chdir("deep")
    others.append(digest("job.slurm"))
    assert len({plain, *others}) == 6


def test_the_name_of_a_snapshot_is_drawn_and_changes_no_digest(
    command: Command, folder: Path, monkeypatch: pytest.MonkeyPatch, sbatch: Path
) -> None:
    put(folder / "repo/train.py")
    git(folder, "init", "--quiet", "repo")
    git(folder / "repo", "add", ".")
    monkeypatch.chdir("repo")
    job = ("single", "--profile", "torchrun", "--trainer", "train.py", "--snapshot")
    words = ("submit", *job)
    digest = digest_in(command(*words, "--dry-run").err)
    assert digest_in(command("review", *job).out) == digest
    assert not Path("runs").exists()
    assert command(*words, "--yes", "--reviewed", digest).status == 0
    (copy,) = (folder / "repo/runs/single").glob("code-*")
    assert f'SNAPSHOT="{copy}"' in sbatch.read_text()
    other = command(*words, "--yes", "--reviewed", digest, "--env", "A=/code-12345678")
    assert (other.status, "A=/code-12345678" in other.err) == (3, True)


def test_a_review_of_a_snapshot_that_nobody_could_submit_is_refused(
    command: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    platform = command("review", "ddp", "--profile", "sensecore", "--snapshot")
    assert (platform.status, "has no scheduler to submit to" in platform.err) == (4, True)
    put(folder / "job.slurm", SCRIPT)
    script = command("review", "job.slurm", "--snapshot")
    assert (script.status, "it can't run a snapshot" in script.err) == (2, True)
    monkeypatch.setenv("SBATCHGEN_ELSEWHERE", "1")
    elsewhere = command("review", "single", "--profile", "torchrun", "--snapshot-file", "data")
    assert (elsewhere.status, "they are on another machine" in elsewhere.err) == (2, True)


def test_of_several_jobs_the_one_that_changed_is_named(command: Command, folder: Path, sbatch: Path) -> None:
    files = [put(folder / f"{name}.slurm", SCRIPT.replace("train", name)) for name in "ab"]
    names = [file.name for file in files]
    shown = command("submit", *names, "--dry-run").err
    given = [
        word
        for digest in re.findall(r"^digest +(\w+)$", shown, re.MULTILINE)
        for word in ("--reviewed", digest)
    ]
    assert len(given) == 4
    put(files[1], SCRIPT.replace("train", "c"))
    refused = command("submit", *names, "--yes", *given)
    assert (refused.status, sbatch.exists(), refused.err.count("error: the job is not")) == (3, False, 1)
    assert "\n  -srun python b.py\n  +srun python c.py\n" in refused.err
    put(files[1], SCRIPT.replace("train", "b"))
    assert command("submit", *names, "--yes", *given).status == 0


def test_a_run_is_resumed_as_reviewed(command: Command) -> None:
    assert command("submit", *JOB, "--yes").status == 0
    digest = digest_in(command("resume", "ddp", "--dry-run").err)
    assert command("resume", "ddp", "--yes", "--time", "9:00:00", "--reviewed", digest).status == 3
    assert command("resume", "ddp", "--yes", "--reviewed", digest).status == 0


def test_each_option_that_is_not_of_a_job_is_known() -> None:
    of_jobs, of_submit = ({each.name for each in command.params} for command in (render, submit))
    assert of_submit - of_jobs == {*_SUBMISSION_OPTIONS, "snapshot", "snapshot_file"}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("words", [["--yes"], ["-y"], ["--after", "ddp"], ["--reviewed", "sha256:0"]])
def test_a_record_does_not_answer_for_the_user(command: Command, words: list[str]) -> None:
    """A run folder that was copied may hold any record."""
    assert command("submit", *JOB, "--yes").status == 0
    (file,) = Path("runs/ddp").glob("job-*.json")
    record = json.loads(file.read_text())
    file.write_text(json.dumps(record | {"command": [*record["command"], *words]}))
    refused = command("resume", "ddp")
    assert (refused.status, "which does not describe a job" in refused.err) == (3, True)
    file.write_text(json.dumps(record))
    assert command("resume", "ddp", "--yes").status == 0


def test_only_the_user_reads_what_is_kept_and_it_is_little(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sbatchgen.jobs.submit.reviewed.MAX_KEPT", 2)
    for rate in "1234":
        command("review", *JOB, "--", "--lr", rate)
    place = Path(os.environ["HOME"], ".local/state/sbatchgen/reviewed")
    assert place.stat().st_mode & 0o777 == 0o700
    assert [path.stat().st_mode & 0o777 for path in place.iterdir()] == [0o600] * 2


def test_a_text_that_was_put_in_place_of_the_reviewed_one_is_not_shown(command: Command) -> None:
    digest = digest_in(command("review", *JOB).out)
    Path(os.environ["HOME"], ".local/state/sbatchgen/reviewed", digest).write_text("harmless\n")
    refused = command("submit", *JOB, "--yes", "--reviewed", digest, "--time", "9:00:00")
    assert (refused.status, "harmless" in refused.err) == (3, False)


def test_each_job_that_nobody_reviewed_is_refused(command: Command, folder: Path, sbatch: Path) -> None:
    names = [put(folder / f"{name}.slurm", SCRIPT.replace("train", name)).name for name in "abcd"]
    digest = digest_in(command("submit", "a.slurm", "--dry-run").err)
    refused = command("submit", *names, "--yes", "--reviewed", digest)
    assert (refused.status, sbatch.exists(), refused.err.count("error: the job is not")) == (3, False, 3)


def test_the_trainer_and_its_own_modules_count(command: Command, folder: Path, sbatch: Path) -> None:
    put(folder / "train.py", "import torch\nfrom nets import deep\n")
    put(folder / "nets/deep.py", "WIDTH = 8\n")
    job = ("single", "--profile", "torchrun", "--trainer", "train.py")
    digest = digest_in(command("review", *job).out)
    for file, text in (
        ("train.py", "import torch\nfrom nets import deep  #\n"),
        ("nets/deep.py", "WIDTH = 9\n"),
    ):
        before = (folder / file).read_text()
        put(folder / file, text)
        refused = command("submit", *job, "--yes", "--reviewed", digest)
        assert (refused.status, sbatch.exists()) == (3, False)
        assert f"\n  -reads {file}: " in refused.err
        put(folder / file, before)
    assert command("submit", *job, "--yes", "--reviewed", digest).status == 0


def test_what_a_finished_script_starts_counts(command: Command, folder: Path) -> None:
    put(folder / "job.slurm", SCRIPT)
    put(folder / "train.py", "import torch\n")
    digest = digest_in(command("submit", "job.slurm", "--dry-run").err)
    put(folder / "train.py", "import os\n")
    refused = command("submit", "job.slurm", "--dry-run", "--reviewed", digest)
    assert (refused.status, "\n  -reads train.py: " in refused.err) == (3, True)


def test_a_file_of_a_snapshot_counts(command: Command, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(folder / "repo/train.py")
    data = put(folder / "repo/data.csv", "1\n")
    git(folder, "init", "--quiet", "repo")
    git(folder / "repo", "add", ".")
    monkeypatch.chdir("repo")
    job = ("single", "--profile", "torchrun", "--trainer", "train.py", "--snapshot")
    digest = digest_in(command("review", *job).out)
    put(data, "2\n")
    assert digest_in(command("review", *job).out) != digest
    put(data, "1\n")
    assert digest_in(command("review", *job).out) == digest


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "spelled",
    [
        ("./job.yaml", "--time", "2:00:00", "--nodes", "2"),
        ("job.yaml", "--nodes=2", "--time=0-2"),
        ("job.yaml", "--time", "120", "--set", "options.nodes=2"),
        ("job.yaml", "--time", "120", "--nodes", "2", "--gpus-per-node", "1"),
    ],
)
def test_how_a_command_is_spelled_does_not_count(
    command: Command, folder: Path, sbatch: Path, spelled: tuple[str, ...]
) -> None:
    put(folder / "job.yaml", "mode: ddp\nprofile: torchrun\noptions: {gpus_per_node: 1}\n")
    digest = digest_in(command("review", "job.yaml", "--time", "02:00:00", "--nodes", "2").out)
    assert command("submit", *spelled, "--yes", "--reviewed", digest).status == 0
    put(folder / "job.slurm", SCRIPT)
    digest = digest_in(command("submit", "job.slurm", "--dry-run", "--time", "60", "--no-requeue").err)
    words = ("--no-requeue", "--time", "1:00:00")
    assert command("submit", "./job.slurm", "--dry-run", *words, "--reviewed", digest).status == 0
