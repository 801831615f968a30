"""When the use of an ended job is taken from sacct: slurmdbd may hear of a task later than squeue shows it."""

from __future__ import annotations

from typing import Any

import pytest

from sbatchgen.jobs.budget import spent
from sbatchgen.jobs.budget.ledger import Charge
from sbatchgen.jobs.slurm import accounting
from sbatchgen.jobs.slurm.accounting import JobUsage
from sbatchgen.jobs.slurm.queue import SlurmJob
from sbatchgen.jobs.slurm.state import State


def row(task: str, state: str, used_s: int) -> SlurmJob:
    ended = State(name=state, words="", ended=True)
    times: dict[str, Any] = {"start": None, "end": None, "used_s": used_s, "limit_s": 3600}
    ended_as: dict[str, Any] = {"nodes": 1, "node_list": "n1", "exit_code": 0, "signal": 0}
    command = "/x/sbatchgen-abc-x/job.slurm"
    return SlurmJob(
        id=f"7_{task}", base_id=7, task=task, state=ended, reason="None", command=command, **times, **ended_as
    )


@pytest.mark.parametrize(
    ("accounted", "used_s", "hours"),
    [
        ((("[0-9]", "CANCELLED", 0),), 0, 20.0),  # task 0 is not in the database yet
        ((("0", "COMPLETED", 36), ("[1-9]", "CANCELLED", 0)), 36, 0.02),
    ],
)
def test_a_task_that_ran_counts_once_the_database_has_it(
    monkeypatch: pytest.MonkeyPatch, accounted: tuple[tuple[str, str, int], ...], used_s: int, hours: float
) -> None:
    seen = [row("0", "COMPLETED", 36), row("[1-9]", "CANCELLED", 0)]
    monkeypatch.setattr(spent, "squeue_jobs", lambda _: seen)
    monkeypatch.setattr(accounting, "sacct_jobs", lambda *_: [row(*task) for task in accounted])
    starts = [JobUsage(job="7", task="0", used_s=used_s)] if used_s else []
    monkeypatch.setattr(accounting, "job_usages", lambda *_: starts)
    charge = Charge("abc", ("b.yaml",), 0.0, 10, 1, 2.0, 2, 20.0, 20.0, job="7")
    charges = {"abc": charge}
    spent.update_ended(charges, {})
    assert charges["abc"].gpu_hours == pytest.approx(hours)
    assert charges["abc"].is_reported == (used_s > 0)
