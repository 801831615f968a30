"""Sweeps on a real Slurm whose arrays are short: each point runs once, and what failed is submitted again."""

from __future__ import annotations

import json
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sbatchgen.base.errors import SbatchgenError, SlurmError
from sbatchgen.check.sbatch.array import indices
from sbatchgen.jobs.resolved.sweep import divide_into_arrays, grid
from sbatchgen.jobs.review.review import review_of_script
from sbatchgen.jobs.runs import folder_check
from sbatchgen.jobs.runs.points import POINTS_FILE
from sbatchgen.jobs.runs.record import Record
from sbatchgen.jobs.slurm.client import Output
from sbatchgen.jobs.submit import sbatch
from sbatchgen.jobs.submit.attempt import Accepted
from sbatchgen.jobs.submit.sbatch import SubmittedRun, TooManyJobsError
from sbatchgen.jobs.submit.submission import Submission
from sbatchgen.jobs.submit.sweep_arrays import SubmitArray, keep_points, submit_arrays
from tests.cluster.fixtures import VISIBLE
from tests.cluster.slurm import Cluster
from tests.conftest import Command
from tests.jobs.jobs import TRAINING, Site, site_on

# Notes that it has run; fails where the file `bad` names its value.
TRAINER = """\
import os, sys
from pathlib import Path

value = dict(word[2:].split("=") for word in sys.argv[1:])["value"]
with open("ran", "a") as file:
    file.write(f"{value} {os.environ['RUN_DIR']}\\n")
sys.exit(3 if value in Path("bad").read_text().split() else 0)
"""
WAITING = """
import time
while not Path("go").exists():
    time.sleep(0.1)
sys.exit"""
LIMIT = 6
GENERAL = (
    "sbatch: error: Batch job submission failed: Job violates accounting/QOS policy (job submit limit, user's "
    "size and/or time limits)"
)


@pytest.fixture(scope="module")
def site(slurm_root: Path | None) -> Iterator[Site]:
    with Cluster(visible=VISIBLE, settings=f"MaxArraySize={LIMIT}\n", root=slurm_root) as running:
        running.put("work/sweep.py", TRAINER)
        yield site_on(running)


def sweep(site: Site, name: str, *flags: str) -> subprocess.CompletedProcess[str]:
    job = ("cpu", "--job-name", name, "--trainer", "sweep.py", "--mem", "100M", "--nodes", "1")
    return site.sbatchgen("sweep", *job, "--cpus-per-task", "1", "--yes", *flags)


def ran(site: Site) -> Counter[str]:
    """How often each value was run since the last question."""
    file = site.folder / "ran"
    lines = file.read_text().splitlines() if file.exists() else []
    file.unlink(missing_ok=True)
    return Counter(line.split()[0] for line in lines)


def points(site: Site, name: str) -> list[dict[str, Any]]:
    (run,) = json.loads(site.sbatchgen("status", name, "--format", "json").stdout)["runs"]
    return list(run["points"])


def until_ended(site: Site, name: str) -> list[dict[str, Any]]:
    site.cluster.until(lambda: not any(point["live"] for point in points(site, name)), f"the end of {name}")
    return points(site, name)


@pytest.mark.slow
def test_each_point_runs_once_and_what_failed_runs_again(site: Site) -> None:
    site.cluster.put("work/bad", "3 7 19")
    values = ",".join(map(str, range(20)))
    done = sweep(site, "many", "--param", f"value={values}")
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.split()) == 4  # arrays: of 6, 6, 6 and 2 points
    ended = until_ended(site, "many")
    assert ran(site) == Counter(map(str, range(20)))
    assert {point["number"] for point in ended if point["state"] == "failed"} == {3, 7, 19}
    assert {point["says"] for point in ended if point["state"] == "failed"} == {"exit status 3"}
    assert all(point["state"] == "done" for point in ended if point["number"] not in {3, 7, 19})
    log = site.sbatchgen("logs", "many", "--task", "19").stdout
    assert "Point 19: --value=19" in log

    site.cluster.put("work/bad", "7")
    again = site.sbatchgen("resubmit", "many", "--failed", "--yes")
    assert again.returncode == 0, again.stderr
    ended = until_ended(site, "many")
    assert ran(site) == Counter(["3", "7", "19"])
    assert [point["number"] for point in ended if point["state"] == "failed"] == [7]

    site.cluster.put("work/bad", "")
    assert site.sbatchgen("resubmit", "many", "--yes", "--time", "5").returncode == 0
    assert all(point["state"] == "done" for point in until_ended(site, "many"))
    assert ran(site) == Counter(["7"])
    nothing = site.sbatchgen("resubmit", "many", "--yes")
    assert (nothing.returncode, nothing.stdout) == (0, "")
    assert "no point to submit" in nothing.stderr


@pytest.mark.proof
@pytest.mark.slow
def test_a_point_that_is_requeued_goes_on_alone(site: Site) -> None:
    site.cluster.put("work/bad", "")
    site.cluster.put("work/sweep.py", TRAINER.replace("sys.exit", WAITING))
    done = sweep(site, "again", "--resume", "auto", "--param", "value=a,b", "--throttle", "2")
    array = done.stdout.strip()

    def noted(*values: str) -> bool:
        file = site.folder / "ran"
        lines = file.read_text().splitlines() if file.exists() else []
        return Counter(line.split()[0] for line in lines) == Counter(values)

    site.cluster.until(lambda: noted("a", "b"), "both points")
    live = {point["number"]: point["state"] for point in points(site, "again")}
    assert live == {0: "running", 1: "running"}
    nothing = site.sbatchgen("resubmit", "again", "--yes")
    assert (nothing.returncode, nothing.stdout) == (0, "")
    site.cluster.run(["scontrol", "requeue", f"{array}_1"], check=True)
    site.cluster.until(lambda: noted("a", "b", "b"), "the second start of a point")
    site.cluster.put("work/go", "")
    assert [point["state"] for point in until_ended(site, "again")] == ["done", "done"]
    assert ran(site) == Counter(["a", "b", "b"])
    site.cluster.put("work/sweep.py", TRAINER)


@pytest.mark.proof
@pytest.mark.slow
def test_the_table_of_a_sweep_starts_with_the_best_point(site: Site) -> None:
    job = ("cpu", "--job-name", "lr", "--yes", "--param", "lr=1e-9,0.5", "--", *TRAINING)
    done = site.sbatchgen("sweep", *job)
    assert done.returncode == 0, done.stderr
    ended = until_ended(site, "lr")
    worse, better = (point["training"]["best"] for point in ended)
    assert worse < better
    page = site.sbatchgen("status", "lr").stdout.splitlines()
    first, second = page[-2:]
    assert not any(line.startswith("  training") for line in page)  # of one of the points
    assert page[-5:-2] == ["2 points: 2 done", "", "POINT  lr    STATE  TRAINING"]
    assert first.split()[:3] == ["1", "0.5", "done"]
    assert first.endswith("best")
    assert second.split()[:3] == ["0", "1e-9", "done"]
    by_lr = site.sbatchgen("status", "lr", "--sort", "lr").stdout.splitlines()
    assert [line.split()[0] for line in by_lr[-2:]] == ["0", "1"]
    unknown = site.sbatchgen("status", "lr", "--sort", "f1")
    assert unknown.returncode == 2
    assert "choose one of lr, accuracy, " in unknown.stderr


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--param", "value=1", "--file", "p.csv"), "give the points by --param"),
        ((), "give the points by --param"),
        (("--param", "value=1", "--array", "0-3"), "a sweep makes its own array"),
        (("--param", "value=1", "--profile", "local"), "profile 'local' has no Slurm"),
        (("--file", "missing.csv"), "can't read missing.csv"),
    ],
)
def test_a_wrong_sweep_is_told(command: Command, folder: Path, flags: tuple[str, ...], said: str) -> None:
    (folder / "t.py").write_text("")
    done = command(
        "sweep", "cpu", "--profile", "msu", "--runtime", "host", "--trainer", "t.py", "--yes", *flags
    )
    assert done.status in {2, 3}
    assert said in done.err


def test_values_that_the_bundled_trainer_refuses_are_told_before(command: Command) -> None:
    values = ("--param", "lr=0.1,fast", "--param", "epochs=1,2")
    done = command(
        "sweep", "cpu", "--profile", "msu", "--runtime", "host", "--run-dir", "runs", "--dry-run", *values
    )
    assert done.status == 3
    assert "argument --lr: invalid float value: 'fast'" in done.err
    assert done.err.count("the trainer refuses") == 1


@pytest.mark.parametrize(
    ("values", "refused"),
    [("100,101", ["100", "101"]), ("96,160", []), ("102,80", ["102"])],
)
def test_the_values_of_a_sweep_are_checked_with_all_processes(
    command: Command, values: str, refused: list[str]
) -> None:
    words = ("--profile", "perlmutter", "--account", "x", "--param", f"batch-size={values}", "--dry-run")
    done = command("sweep", "ddp", *words, "--", "--dataset", "fake")
    batch_sizes = re.findall(
        r"the trainer refuses its arguments: --batch-size (\d+) cannot be shared", done.err
    )
    assert (batch_sizes, done.status) == (refused, 3 if refused else 0), done.err


def test_values_that_the_trainer_refuses_only_together_are_told(command: Command) -> None:
    """Both values of each parameter occur in points that the trainer accepts: 100 with 1, 96 with 8."""
    words = ("--profile", "msu", "--runtime", "host", "--run-dir", "runs", "--dry-run")
    values = ("--param", "accumulate=1,8", "--param", "batch-size=96,100")
    done = command("sweep", "cpu", *words, *values, "--", "--dataset", "fake")
    assert (done.err.count("the trainer refuses"), done.status) == (1, 3), done.err
    assert "--batch-size 100" in done.err


@pytest.mark.parametrize(
    ("values", "count", "last"),
    [
        (("a=1,2", "b=1,2", "c=1,2"), 7, ("2", "2", "1")),  # 2 2 2 has only pairs of other points
        ((f"a={','.join(map(str, range(99)))}", f"b={','.join(map(str, range(99)))}"), 96, ("1", "32")),
    ],
)
def test_the_trainer_checks_points_with_new_values_and_pairs(
    values: tuple[str, ...], count: int, last: tuple[str, ...]
) -> None:
    checked = folder_check._points_to_check(grid(values, None, 0))
    assert (len(checked), len({*checked}), checked[-1]) == (count, count, last)


def send(limit: int, sent: list[tuple[str, ...]], why: SbatchgenError) -> SubmitArray:
    """Accepts arrays while there are no more elements than a limit."""

    def submit(submission: Submission, options: tuple[str, ...], arguments: tuple[str, ...]) -> SubmittedRun:
        elements = sum(len(range_) for words, _ in sent for range_ in indices(words) or ())
        if elements + sum(map(len, indices(submission.record.array) or ())) > limit:
            raise why
        sent.append((submission.record.array, " ".join((*options, *arguments))))
        return SubmittedRun(
            Accepted("1", "", ""), replace(submission.record, job=str(len(sent))), Path(), is_in_index=True
        )

    return submit


def test_a_limit_of_submitted_jobs_is_filled_and_the_rest_is_told(command: Command, folder: Path) -> None:
    sent: list[tuple[str, ...]] = []
    submission = submission_of("0-5")
    runs: list[SubmittedRun] = []
    with pytest.raises(SlurmError, match="too many; 5 points are not submitted: 15-19"):
        submit_arrays(
            submission,
            divide_into_arrays(range(20), 6),
            None,
            send(15, sent, TooManyJobsError.of("too many")),
            runs,
        )
    assert len(runs) == 3
    assert [words for words, _ in sent] == ["0-5", "0-5", "0-2"]
    assert [words for _, words in sent] == ["", "--array=0-5 6", "--array=0-2 12"]


def test_arrays_with_a_throttle_start_one_after_the_other() -> None:
    sent: list[tuple[str, ...]] = []
    submit_arrays(
        submission_of("0-5%2"), divide_into_arrays(range(9), 6), 2, send(99, sent, SlurmError.of("")), []
    )
    assert sent == [("0-5%2", ""), ("0-2%2", "--array=0-2%2 --dependency=afterany:1 6")]


def test_another_refusal_ends_a_sweep() -> None:
    sent: list[tuple[str, ...]] = []
    refused = send(0, sent, SlurmError.of("no such partition"))
    with pytest.raises(SlurmError, match="no such partition"):
        submit_arrays(submission_of("0-5"), divide_into_arrays(range(9), 6), None, refused, [])
    with pytest.raises(SlurmError, match="down; 3 points are not submitted: 6-8"):
        submit_arrays(
            submission_of("0-5"),
            divide_into_arrays(range(9), 6),
            None,
            send(8, sent, SlurmError.of("down")),
            [],
        )


@pytest.mark.parametrize("submitted", [0, 1])
def test_the_points_stay_once_an_array_is_submitted(tmp_path: Path, submitted: int) -> None:
    submission = replace(submission_of("0-1"), run_dir=tmp_path)
    accepted = SubmittedRun(Accepted("1", "", ""), submission.record, tmp_path, is_in_index=True)
    with (
        pytest.raises(KeyboardInterrupt),
        keep_points(grid(("x=1,2",), None, 0), submission, [accepted] * submitted),
    ):
        raise KeyboardInterrupt
    assert (tmp_path / POINTS_FILE).exists() == bool(submitted)


@pytest.mark.parametrize(
    ("said", "too_many"),
    [
        (f"sbatch: error: AssocMaxSubmitJobLimit\n{GENERAL}", True),
        ("sbatch: error: QOSMaxSubmitJobPerUserLimit\n", True),
        (GENERAL, True),
        (f"sbatch: error: AssocMaxWallDurationPerJobLimit\n{GENERAL}", False),
        ("sbatch: error: invalid partition specified: x", False),
    ],
)  # fmt: skip
def test_a_limit_of_submitted_jobs_is_known(said: str, *, too_many: bool) -> None:
    error = sbatch.refusal_error({}, Output("sbatch", 1, "", said, 1.0))
    assert isinstance(error, TooManyJobsError) is too_many


def submission_of(array: str) -> Submission:
    about = Record(shared=False, name="x", folder="/", array=array)
    return Submission(
        script=b"", name="job.slurm", option_sources={}, log_folders=(), run_dir=None, local=False, review=review_of_script(""),
        record=about,
    )  # fmt: skip


def test_a_sweep_runs_a_snapshot_of_the_code(command: Command, folder: Path) -> None:
    (folder / "t.py").write_text("")
    for words in (["init", "--quiet"], ["add", "t.py"]):
        subprocess.run(["git", *words], check=True, cwd=folder)
    job = ("cpu", "--profile", "msu", "--runtime", "host", "--trainer", "t.py", "--run-dir", "runs")
    done = command("sweep", *job, "--param", "value=1,2", "--snapshot", "--dry-run")
    assert done.status == 0, done.err
    assert f'SNAPSHOT="{folder}/runs/code-' in done.err
