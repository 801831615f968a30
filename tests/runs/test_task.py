"""--task of diagnose and logs: a task that the run has not, or a word that is not a number, is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sbatchgen.base.errors import SlurmError
from sbatchgen.cli import running_jobs
from sbatchgen.jobs.runs.record import Record, write_accepted
from tests.conftest import Command
from tests.runs.test_diagnosis import run_of
from tests.runs.test_failure import OOM
from tests.slurm import fakes

_ABOUT = Record(key="c0ffee", run="ddp", shared=True, name="ddp", job="4711", folder="/", array="2-4")


@pytest.fixture
def array(folder: Path, programs: Path) -> Path:
    """The folder of a run with an array of the tasks 2 to 4, which have all failed."""
    run_of(folder, programs, "FAILED", 256)
    run_dir = folder / "runs" / "ddp"
    write_accepted(run_dir, replace(_ABOUT, log=f"{run_dir}/%A_%a.out"))
    (run_dir / "4711_4.out").write_text(f"{OOM}\n")
    rows = [{"JobArrayID": f"4711_{task}", "State": "FAILED", "exit_code": "256"} for task in (2, 3, 4)]
    fakes.squeue(programs, rows)
    return run_dir


@pytest.mark.parametrize("verb", ["diagnose", "logs", "cancel"])
@pytest.mark.parametrize("typed", ["abc", "-1", "2-3", "4_1", "12345678901"])
@pytest.mark.parametrize("run", ["ddp", "4711"])
def test_a_task_is_a_number(command: Command, array: Path, verb: str, typed: str, run: str) -> None:
    refused = command(verb, run, f"--task={typed}")
    assert (refused.status, refused.out) == (2, "")
    assert refused.err.splitlines()[0] == f"error: '{typed}' is not the number of a task"


@pytest.mark.parametrize("verb", ["diagnose", "logs"])
@pytest.mark.parametrize("words", [("ddp", "--task", "99"), ("4711", "--task", "1"), ("ddp/5",), ("4711_0",)])
def test_a_task_that_an_array_has_not_is_refused(
    command: Command, array: Path, verb: str, words: tuple[str, ...]
) -> None:
    refused = command(verb, *words)
    assert (refused.status, refused.out) == (2, "")
    assert refused.err.startswith("error: run ddp has no task ")
    assert "fix: sbatchgen status ddp" in refused.err


@pytest.mark.parametrize("verb", ["diagnose", "logs"])
def test_a_point_that_a_sweep_has_not_is_refused(command: Command, array: Path, verb: str) -> None:
    (array / "points.csv").write_text("lr\n0.1\n0.2\n0.3\n0.4\n0.5\n")
    for typed in (("ddp", "--task=5"), ("ddp/5",)):
        refused = command(verb, *typed)
        assert (refused.status, refused.out) == (2, "")
        assert refused.err.startswith("error: run ddp has no point 5")
    assert command("diagnose", "ddp", "--task", "0").out == "ddp: point 0 has not failed\n"


@pytest.mark.parametrize("verb", ["diagnose", "logs"])
def test_a_run_of_one_job_has_no_task(folder: Path, programs: Path, command: Command, verb: str) -> None:
    run_of(folder, programs, "FAILED", 256, OOM.encode())
    refused = command(verb, "ddp", "--task", "0")
    assert (refused.status, refused.out) == (2, "")
    assert refused.err.startswith("error: run ddp is not a sweep or an array")


def test_the_newest_job_with_a_task_is_diagnosed(command: Command, array: Path) -> None:
    """Tasks 2 and 3 were submitted again, as another job of the run."""
    about = replace(_ABOUT, job="4712", key="f00d", array="2-3", submitted=1.0)
    write_accepted(array, replace(about, log=f"{array}/%A_%a.out"))
    assert command("diagnose", "ddp", "--task", "04").out.startswith(
        "ddp: task 4 of job 4711 failed, exit status 1\nmost likely: there is not enough memory on the GPU"
    )


def test_the_log_of_another_job_has_no_task(folder: Path, programs: Path, command: Command) -> None:
    fakes.failing(programs, "scontrol", "slurm_load_jobs error: Invalid job id specified")
    (folder / "slurm-99999_3.out").write_text(f"{OOM}\n")
    (folder / "mine.log").write_text(f"{OOM}\n")
    assert "on the GPU" in command("diagnose", "slurm-99999_3.out", "--task", "3").out
    assert "on the GPU" in command("diagnose", "99999", "--task", "3").out
    for name, task in (("slurm-99999_3.out", "5"), ("mine.log", "5")):
        refused = command("diagnose", name, "--task", task)
        assert (refused.status, refused.out) == (2, "")
        assert refused.err.startswith(f"error: {name} is the log of one job or task")
    assert command("diagnose", "99999", "--task", "x").status == 2


def test_a_job_whose_id_is_not_known_is_not_called_a_missing_task() -> None:
    """The submission of such a job was killed before sbatch answered."""
    lost, known = (SimpleNamespace(id=id_, ended=False, cluster="") for id_ in ("", "4711"))
    state: Any = SimpleNamespace(run=SimpleNamespace(name="lr"), jobs=[lost], job="")
    with pytest.raises(SlurmError, match="the job of run lr is not known"):
        running_jobs._jobs_to_cancel(state, "", "")
    state.jobs = [known, lost]
    assert [job.job_id for job in running_jobs._jobs_to_cancel(state, "", "")] == ["4711"]


def test_the_status_of_an_array_has_no_points(command: Command, array: Path) -> None:
    refused = command("status", "ddp/3")
    assert refused.err == (
        "error: run ddp is not a sweep: it has no points\n  fix: sbatchgen status ddp shows the whole run\n"
    )
    assert "job 4711" in command("status", "ddp").out
