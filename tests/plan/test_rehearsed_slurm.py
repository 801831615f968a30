"""The stand-ins for Slurm's commands in a rehearsal, run outside of its sandbox."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from sbatchgen.jobs.judge.job_check import check
from sbatchgen.jobs.resolved.request import read_request
from sbatchgen.lab.plan.batch_job import JOB_ID
from sbatchgen.lab.rehearsal import rehearsal
from sbatchgen.lab.sandbox.box import PLAN_FOLDER


def test_squeue_shows_the_steps_of_the_job_under_its_id(folder: Path) -> None:
    """Two rehearsals on one machine have jobs of two ids."""
    given = {"profile": "public_cluster", "trainer": "train.py"}
    request = read_request("single", (), given, environment=os.environ, folder=folder, check=check)
    rehearsed = rehearsal._rehearsed_job(request, os.environ, folder)
    played = rehearsal._played_job(rehearsed, seconds=1, stop_after=1)
    text, mode = rehearsal._sandbox_files(rehearsed, played)[f"{PLAN_FOLDER}/bin/squeue"]
    (folder / "squeue").write_bytes(text.replace(PLAN_FOLDER.encode(), os.fsencode(folder)))
    (folder / "squeue").chmod(mode)
    (folder / "steps").mkdir()
    (folder / "steps" / "77").write_text("train\n")
    job = rehearsed.batch_environment["SLURM_JOB_ID"]
    assert job == rehearsed.batch_environment["SLURM_JOBID"] == str(JOB_ID + os.getpid() % 9000)
    asked = [str(folder / "squeue"), "--noheader", "--steps", f"--jobs={job}", "--format=%i %j"]
    assert subprocess.run(asked, capture_output=True, text=True, check=True).stdout == f"{job}.77 train\n"


@pytest.mark.parametrize(
    ("args", "makes_folder"),
    [
        (("--dataset", "fake"), True),
        (("--dataset=fake",), True),
        (("--dataset", "mnist", "--dataset=fake"), True),
        (("--dataset", "fake", "--dataset", "mnist"), False),
        (("--tensorboard", "fake"), False),
        ((), False),
    ],
)
def test_the_data_folder_is_made_for_a_trainer_that_draws_its_images(
    folder: Path, args: tuple[str, ...], *, makes_folder: bool
) -> None:
    given = {"profile": "public_cluster"}
    request = read_request("single", args, given, environment=os.environ, folder=folder, check=check)
    rehearsed = rehearsal._rehearsed_job(request, os.environ, folder)
    played = rehearsal._played_job(rehearsed, seconds=1, stop_after=1)
    box = rehearsal._box(rehearsed, played, 0, rehearsal._limits(0, seconds=1), has_network=False)
    assert (str(folder / "data") in box.files) == makes_folder
