"""Which steps of a job srun ends, as its lines in the log say."""

from __future__ import annotations

from pathlib import Path

import pytest

from training import step_end

OLD, NEW = "srun: launch/slurm: _step_signal: Terminating StepId=7.1", "srun: Terminating StepId=7.1"


@pytest.mark.parametrize(
    ("log", "steps"),
    [
        (f"step 3\n{OLD}\nstep 4\n", ["7.1"]),
        (f"{NEW}\n", ["7.1"]),
        ("srun: Terminating job step 7.1\n", ["7.1"]),
        (f"  5%|#         | 1/20{NEW}\n", ["7.1"]),  # a progress bar ends no line
        (f"{NEW}\nsrun: Terminating StepId=7.2\n", ["7.1", "7.2"]),
        (NEW, []),  # not whole yet: StepId=7.12?
        ("srun: Terminating StepId=71.1\n", []),  # of another job
        (f"is there a line {NEW} in the log?\n", []),
        ("srun: error: n4: task 1: Exited with exit code 1\n", []),
    ],
)
def test_a_step_that_srun_ends_is_told_by_its_line(tmp_path: Path, log: str, steps: list[str]) -> None:
    path = tmp_path / "log"
    path.write_text(f"{NEW}\n{log}")  # the first line is of an earlier start
    with path.open("rb") as lines:
        done, ended = step_end.ended_steps(lines, len(NEW) + 1, "7")
        assert ended == steps
        assert step_end.ended_steps(lines, done, "7")[1] == []


def test_nothing_is_due_while_slurm_does_not_say_how_long_a_save_may_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # no scontrol: as if slurmctld does not answer
    assert step_end.kill_wait_s() is None
