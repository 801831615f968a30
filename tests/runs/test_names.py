"""A name that was printed means that run in each command, also where ./runs/NAME is another run."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from sbatchgen.jobs.runs import record
from sbatchgen.jobs.runs.index import Index, index_file
from sbatchgen.jobs.runs.record import Record
from tests.conftest import Command
from tests.runs.test_typed_fixes import end, submit
from tests.slurm import fakes

pytestmark = pytest.mark.usefixtures("programs")

READING = ("status", "logs", "diagnose", "report", "plot --text")
AFTER = "submit cpu --profile public_cluster --trainer train.py --job-name next --after RUN"
CHANGING = ("cancel", "resume", "resubmit", "exec RUN -- true", f"{AFTER} --dry-run")


@pytest.fixture
def two(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two runs of jobs with the same name, from two folders; the command runs in the second one."""
    index = Index(index_file(os.environ))
    for number, name in enumerate(("a", "b"), 1):
        work = folder / name
        runs = work / "runs/beta"
        runs.mkdir(parents=True)
        (work / "train.py").write_text("print(1)\n")
        run = index.begin(str(number), runs, "beta", shared=False)
        kept = Record(
            key=str(number), run=run.name, shared=False, name="beta", job=f"4{number}", folder=str(work)
        )
        record.write_accepted(runs, kept)
        (runs / f"beta-4{number}.out").write_text("epoch 1: loss 0.5\n")
        index.accept(str(number), f"4{number}")
    monkeypatch.chdir(folder / "b")
    return folder


def called(command: Command, verb: str, name: str) -> tuple[int, str]:
    """The status of a command about a run, and all that it prints."""
    words = verb.replace("RUN", name) if "RUN" in verb else f"{verb} {name}"
    result = command(*words.split())
    return result.status, result.out + result.err


@pytest.mark.parametrize("verb", READING)
def test_a_command_that_reads_says_which_run_it_shows(two: Path, command: Command, verb: str) -> None:
    _, shown = called(command, verb, "beta")
    assert (
        f"note: 'beta' is the run in {two}/a/runs/beta, and ./runs/beta is run beta-2; this command shows beta\n"
        in shown
    )
    for name in ("beta-2", "runs/beta", f"{two}/a/runs/beta", "41"):
        assert "this command shows" not in called(command, verb, name)[1]


@pytest.mark.parametrize("verb", CHANGING)
def test_a_command_that_changes_a_run_asks_which_is_meant(two: Path, command: Command, verb: str) -> None:
    status, shown = called(command, verb, "beta")
    assert status == 2
    assert f"error: 'beta' is the run in {two}/a/runs/beta, and ./runs/beta is run beta-2\n" in shown
    assert f"fix: name one: {two}/a/runs/beta or beta-2\n" in shown
    for name in ("beta-2", f"{two}/a/runs/beta"):  # as the fix says
        assert "name one" not in called(command, verb, name)[1]


def test_in_another_folder_nothing_is_asked(
    two: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in (two, two / "a"):
        monkeypatch.chdir(folder)
        for verb in (*READING, *CHANGING):
            assert "is run beta-2" not in called(command, verb, "beta")[1]


@pytest.mark.parametrize(("name", "job"), [("beta-2", "42"), ("{two}/a/runs/beta", "41"), ("41", "41")])
def test_a_job_waits_for_the_run_that_is_named(
    two: Path, command: Command, programs: Path, name: str, job: str
) -> None:
    (programs / "sbatch").write_text(f'#!/bin/sh\necho "$*" >{two}/words\necho 43\n')
    (programs / "sbatch").chmod(0o755)
    done = called(command, f"{AFTER} --yes", name.format(two=two))
    assert done[0] == 0, done
    assert f"--dependency=afterok:{job} " in (two / "words").read_text()


def test_at_a_terminal_the_user_is_asked(two: Path) -> None:
    ours, theirs = pty.openpty()
    os.write(ours, b"n\n")
    done = subprocess.run(
        [sys.executable, "-m", "sbatchgen", "cancel", "beta"],
        check=False,
        stdin=theirs,
        capture_output=True,
        text=True,
        cwd=two / "b",
    )
    os.close(theirs)
    os.close(ours)
    assert done.returncode == 130
    assert "Do you mean run beta? [y/N]" in done.stderr


@pytest.fixture
def thrice(folder: Path) -> Path:
    """A run with three jobs: 51 and 52 have failed in different ways, 53 was completed."""
    runs = folder / "runs/ddp"
    runs.mkdir(parents=True)
    index = Index(index_file(os.environ))
    ends = {"51": "ValueError: first", "52": "ModuleNotFoundError: No module named 'second'", "53": "done"}
    for job, says in ends.items():
        index.begin(job, runs, "ddp", shared=False)
        log = f"{runs}/ddp-%j.out"
        submitted = 1e9 + int(job)
        kept = Record(key=job, run="ddp", shared=False, name="ddp", job=job, folder=str(folder), log=log)
        record.write_accepted(runs, replace(kept, submitted=submitted))
        (runs / f"ddp-{job}.out").write_text(f"this is {job}\n{says}\n")
        index.accept(job, job)
        state = "COMPLETED" if job == "53" else "FAILED"
        index.update_states([index.jobs("ddp")[-1]._replace(state=state, ended=True)])
    return folder


@pytest.mark.parametrize("job", ["51", "52", "53"])
@pytest.mark.parametrize("word", ["{job}", "runs/ddp/ddp-{job}.out"])
def test_the_id_and_the_log_of_a_job_mean_that_job_of_its_run(
    thrice: Path, command: Command, job: str, word: str
) -> None:
    word = word.format(job=job)
    assert command("logs", word).out.startswith(f"this is {job}\n")
    status = command("status", word)
    assert f"  job {job} " in status.out
    assert ("sbatchgen status ddp" in status.out) == (job != "53")
    assert f"ddp-{job}.out" in status.out
    diagnosed = command("diagnose", word).out
    assert diagnosed.startswith(f"ddp: job {job} ")
    assert ("ValueError: first" in diagnosed, "'second'" in diagnosed) == (job == "51", job == "52")
    assert json.loads(command("diagnose", word, "--format", "json").out)["job"] == job * (job != "53")
    followed = command("logs", word, "--follow")
    assert (followed.out.splitlines()[0], followed.status) == (f"this is {job}", 0)
    assert f"job {job} " in followed.err


def test_cancel_of_a_job_that_has_ended_cancels_no_later_one(
    thrice: Path, programs: Path, command: Command
) -> None:
    index = Index(index_file(os.environ))
    index.begin("c0ffee", thrice / "runs/ddp", "ddp", shared=False)
    index.accept("c0ffee", "54")
    fakes.squeue(programs, [{"JobArrayID": "54", "State": "RUNNING"}])
    fakes.failing(programs, "scancel", "nothing was to be cancelled")
    result = command("cancel", "--yes", "51")
    assert (result.status, result.err) == (0, "note: job 51 of run ddp has ended already\n")
    assert "nothing was to be cancelled" in command("cancel", "--yes", "ddp", "--now").err


@pytest.mark.proof
def test_a_task_of_an_older_job_of_a_sweep_means_that_job(
    folder: Path, programs: Path, command: Command
) -> None:
    submit("sweep", folder, programs, command)
    end("sweep", folder, programs, "FAILED 1:0", "ValueError: first")
    assert command("resubmit", "job", "--yes", "--points", "0").status == 0
    (programs / "scancel").write_text("#!/bin/sh\necho nothing was to be cancelled >&2; exit 1\n")
    (programs / "scancel").chmod(0o755)
    fakes.squeue(programs, [])
    assert command("cancel", "--yes", "4711_0").err == "note: job 4711 of run job has ended already\n"
    end("sweep", folder, programs, "FAILED 1:0", "ModuleNotFoundError: No module named 'second'")
    assert "'second'" in command("diagnose", "job/0").out
    assert "'second'" in command("diagnose", "4712_0").out
    older = command("diagnose", "4711_0").out
    assert older.startswith("job: point 0 of job 4711 ")
    assert "ValueError: first" in older
