"""Processes that are lost, hang or go wrong alone; and which test shows what of all that can go wrong.

| fault | what goes wrong | where it is shown |
|---|---|---|
| F1 | kill -9 while saving | test_writer: test_killed_at_any_moment_of_saving (FAULT_TRIALS: how often) |
| F2 | an end at each call of a save | test_writer: test_dying_at_each_step_of_a_save |
| F3 | disk full, quota, I/O errors; the log's too | test_disk |
| F4 | a truncated newest checkpoint | test_checkpoint: test_a_truncated_one_is_passed_over |
| F5 | flipped bytes, zeroed pages | test_checkpoint: test_no_damage_is_loaded |
| F6 | all checkpoints corrupt | test_checkpoint: test_without_a_good_one_nothing_starts_afresh |
| F7 | a file system that is slow, or not shared | test_moments; here: test_rank_0_alone_needs_the_run_folder; test_writer |
| F8 | signals, to one or all, twice, at any time | test_moments, test_runs, test_stop, test_exact |
| F9 | a rank that dies | here: test_a_dead_rank_ends_the_job_at_once |
| F10 | a rank that hangs | here: test_a_hung_rank_ends_the_job_in_time |
| F11 | another number of processes or loaders | test_runs, test_order, test_exact |
| F12 | a stop at each step, in validation | test_exact: test_stopped_at_each_moment_of_two_epochs |
| F13 | not a number, on one rank | here: test_one_rank_with_a_loss_that_is_not_finite_ends_all |
| F14 | an evaluation that cannot be shared evenly | test_loop: test_an_evaluation_is_exact |
| F15 | two jobs in one folder | test_lock |
| F16 | code in a checkpoint | test_checkpoint: test_code_in_a_checkpoint_is_not_run |
| F17 | twenty stops in one run | test_exact: test_twenty_stops_in_one_run |
| F18 | no folder to write, no data | test_lock: test_a_folder_that_takes_no_writes_is_one_line; test_runs |

benchmarks/faults.py prints each of them as a figure.
"""

from __future__ import annotations

import os
import signal
import sys
import textwrap
from pathlib import Path
from socket import gethostname

import pytest
import torch

from training.processes import spawn

from .states import weights
from .trainers import SLOW, SPAWN_2, Trainers, children, events, finish, status, tasks, wait_for

OWN = """
    import os
    import torch

    class Breaks(torch.nn.Linear):
        steps = -3  # three more before the first, which are undone

        def forward(self, x):
            self.steps += self.training
            bad = os.environ.get("SLURM_PROCID") == "1" and self.steps > 5  # step 6 saves
            seen = torch.nn.functional.adaptive_avg_pool2d(x, 2).flatten(1)
            return super().forward(seen) * (float("nan") if bad else 1.0)

    def model(config):
        return Breaks(4, 10)
"""


@pytest.mark.proof
def test_rank_0_alone_needs_the_run_folder(trainers: Trainers, tmp_path: Path) -> None:
    """Fault F7: another rank may see an old state of it, or nothing at all."""
    run_dirs = (tmp_path / "run", tmp_path / "unseen" / "run")
    for epochs in ("1", "2"):
        ended = [finish(task) for task in tasks(trainers, run_dirs, "--epochs", epochs, "--save-every", "3")]
        assert [process.code for process in ended] == [0, 0], ended

    assert "Resuming from checkpoints/step-00000008.pt" in ended[0].out
    assert status(run_dirs[0])["step"] == 16
    assert not run_dirs[1].exists()


def test_a_dead_rank_ends_the_job_at_once(trainers: Trainers, tmp_path: Path) -> None:
    process = trainers.start(tmp_path, *SPAWN_2, *SLOW)
    wait_for(lambda: events(tmp_path, "train"), "progress")
    ranks = children(process)
    os.kill(ranks[1], signal.SIGKILL)
    ended = finish(process)

    assert ended.code == 137, ended.err
    assert status(tmp_path)["state"] == "failed"
    assert not any(Path(f"/proc/{pid}").exists() for pid in ranks)


@pytest.mark.parametrize(
    ("end", "status_of_node", "said"),
    [
        ("kill -KILL $$", 137, "was ended by SIGKILL"),
        ("kill -RTMIN $$", 162, "was ended by SIGRTMIN"),
        ("exit 137", 137, ""),
    ],
)
def test_only_a_signal_that_came_is_named(
    end: str,
    status_of_node: int,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    rank = tmp_path / "rank"
    rank.write_text(f"#!/bin/bash\n{end}\n")
    rank.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(rank))
    assert spawn.run([], 1, nodes=1) == status_of_node
    assert capfd.readouterr().err.removesuffix("\n") == (said and f"error: a rank on {gethostname()} {said}")


@pytest.mark.proof
def test_a_hung_rank_ends_the_job_in_time(trainers: Trainers, tmp_path: Path) -> None:
    """The time that the others wait for it, and then what spawn gives it to end by itself."""
    process = trainers.start(tmp_path, *SPAWN_2, *SLOW, "--dist-timeout", "5")
    wait_for(lambda: events(tmp_path, "train"), "progress")
    ranks = children(process)
    os.kill(ranks[1], signal.SIGSTOP)
    ended = finish(process)

    assert ended.code == 1, ended.err
    assert status(tmp_path)["state"] == "failed"
    assert not any(Path(f"/proc/{pid}").exists() for pid in ranks)


def test_one_rank_with_a_loss_that_is_not_finite_ends_all(trainers: Trainers, tmp_path: Path) -> None:
    (tmp_path / "breaks.py").write_text(textwrap.dedent(OWN))
    run_dir = tmp_path / "run"
    flags = ("--model", "breaks:model", "--save-every", "2", "--sync-every", "4", "--epochs", "1")
    ended = [
        finish(task)
        for task in tasks(trainers, (run_dir, run_dir), *flags, env={"PYTHONPATH": str(tmp_path)})
    ]

    assert [process.code for process in ended] == [3, 3], ended
    assert [process.err.count("\n") for process in ended] == [1, 0]  # rank 0 tells it
    assert ended[0].err.startswith("error: the loss is not finite at step 6; at: rank 1 of 2 on "), ended[
        0
    ].err
    assert ended[0].err.endswith("; newest checkpoint: checkpoints/step-00000004.pt\n")
    assert status(run_dir)["state"] == "failed"
    assert all(torch.isfinite(weight).all() for weight in weights(run_dir).values())
