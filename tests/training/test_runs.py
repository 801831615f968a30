"""Whole runs in processes of their own: launchers, stopping, resuming, failing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from .forks import QUICKLY
from .states import equal, weights
from .trainers import (
    ALONE,
    SLOW,
    SPAWN_2,
    TORCHRUN_2,
    Here,
    Trainers,
    events,
    finish,
    status,
    tasks,
    wait_for,
)


def score_lines(out: str) -> list[str]:
    """The part of the epoch lines that people grep for."""
    return [line.split("%")[0] for line in out.splitlines() if " - Avg Loss: " in line]


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory, small_digits: Path) -> Any:
    """An uninterrupted run of two torchrun processes: its folder and what it printed."""
    run_dir = tmp_path_factory.mktemp("reference")
    return run_dir, finish(Trainers(small_digits).start(run_dir, launcher=TORCHRUN_2))


@pytest.mark.proof
def test_torchrun_tells_what_people_look_for(reference: Any) -> None:
    run_dir, ended = reference
    lines = ended.out.splitlines()

    assert ended.code == 0, ended.err
    assert lines[0] == "Starting distributed training on 2 processes (cpu, gloo)"
    assert lines[1].startswith("Master node: ")
    assert [line.split(" on ")[0] for line in lines if line.startswith("rank ")] == [
        "rank 0 of 2",
        "rank 1 of 2",
    ]
    assert [line.split(":")[0] for line in score_lines(ended.out)] == [
        "Epoch 1 - Avg Loss",
        "Epoch 2 - Avg Loss",
    ]
    assert list(status(run_dir)) == ["state", "step", "epoch", "checkpoint", "reason", "time"]
    assert (
        (run_dir / "status.json")
        .read_text()
        .startswith('{"state": "done", "step": 16, "epoch": 2, "checkpoint": "checkpoints/step-')
    )
    assert {event["samples"] for event in events(run_dir, "epoch")} == {101}


@pytest.mark.proof
def test_a_stop_file_half_way_and_going_on_change_nothing(
    trainers: Trainers, tmp_path: Path, reference: Any
) -> None:
    process = trainers.start(tmp_path, *SLOW, launcher=TORCHRUN_2)
    wait_for(lambda: events(tmp_path, "train"), "progress")
    (tmp_path / "stop").touch()
    stopped = finish(process)
    half = status(tmp_path)

    assert stopped.code == 1  # torchrun's own, for whatever status its processes have
    assert "exitcode  : 75" in stopped.err
    assert (half["state"], half["reason"], half["epoch"]) == ("preempted", "stop file", 0)
    assert 0 < half["step"] < 8
    assert (
        f"Stopped by stop file at step {half['step']}; checkpoint {half['checkpoint']} saved; without "
        in stopped.out
    )

    (tmp_path / "stop").unlink()
    resumed = trainers.run_ranks(2, tmp_path)

    assert resumed.code == 0, resumed.err
    assert f"Resuming from {half['checkpoint']}: epoch 1, step {half['step']}" in resumed.out
    assert status(tmp_path)["state"] == "done"
    assert score_lines(resumed.out) == score_lines(reference[1].out)
    assert equal(weights(tmp_path), weights(reference[0]))


@pytest.mark.proof
def test_spawn_under_nohup_is_the_same_run_as_torchrun(
    trainers: Trainers, tmp_path: Path, reference: Any
) -> None:
    """The end of the terminal is nothing to it, nor are ranks that pyxis has set."""
    pyxis = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # what nohup leaves to what it starts
    try:
        process = trainers.start(tmp_path, *SLOW, *SPAWN_2, env=pyxis)
    finally:
        signal.signal(signal.SIGHUP, before)
    wait_for(lambda: events(tmp_path, "train"), "progress")
    os.killpg(process.pid, signal.SIGHUP)
    ended = finish(process)

    assert ended.code == 0, ended.err
    assert score_lines(ended.out) == score_lines(reference[1].out)
    assert equal(weights(tmp_path), weights(reference[0]))


def test_srun_is_the_same_run_as_torchrun(trainers: Trainers, tmp_path: Path, reference: Any) -> None:
    ended = [finish(task) for task in tasks(trainers, (tmp_path, tmp_path))]

    assert [process.code for process in ended] == [0, 0], ended
    assert ended[1].out == ""
    assert score_lines(ended[0].out) == score_lines(reference[1].out)
    assert equal(weights(tmp_path), weights(reference[0]))


@pytest.mark.proof
def test_another_number_of_processes_goes_on_and_more_epochs_are_done(
    trainers: Trainers, here: Here, tmp_path: Path
) -> None:
    nothing = "Nothing left to do: 1 of 1 epochs are done"
    first = trainers.run_ranks(2, tmp_path, "--epochs", "1")
    again = here(tmp_path, "--epochs", "1")
    more = here(tmp_path, "--epochs", "2")

    assert [first.code, again.code, more.code] == [0, 0, 0], more.err
    assert nothing in again.out
    assert nothing not in first.out
    assert "The checkpoint was saved by 2 processes, now there are 1" in more.out
    assert (status(tmp_path)["state"], status(tmp_path)["step"], status(tmp_path)["epoch"]) == ("done", 16, 2)
    assert [event["epoch"] for event in events(tmp_path, "epoch")] == [1, 2]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP])
def test_a_signal_saves_and_exits_75(trainers: Trainers, tmp_path: Path, number: signal.Signals) -> None:
    process = trainers.start(tmp_path, *SLOW)
    wait_for(lambda: events(tmp_path, "train"), "progress")
    for _ in range(2):  # Slurm and a launcher may both send it
        process.send_signal(number)
    ended = finish(process)

    assert ended.code == 75, ended.err
    assert (status(tmp_path)["state"], status(tmp_path)["reason"]) == ("preempted", number.name)
    assert (
        torch.load(tmp_path / status(tmp_path)["checkpoint"], weights_only=True)["step"]
        == status(tmp_path)["step"]
        < 8
    )


def test_a_signal_during_the_start_is_not_lost(trainers: Trainers, tmp_path: Path) -> None:
    process = trainers.start(tmp_path)
    wait_for((tmp_path / "status.json").exists, "status")
    process.send_signal(signal.SIGUSR2)
    ended = finish(process)

    assert ended.code == 75, ended.err
    assert status(tmp_path)["reason"] == "SIGUSR2"


@pytest.mark.proof
def test_three_go_on_exactly(trainers: Trainers, tmp_path: Path) -> None:
    """With three, a sum depends on its order: the gradients must be laid out alike in both runs."""
    flags = ("--dataset", "fake", "--fake-samples", "150", "--epochs", "1", "--batch-size", "30")
    whole = trainers.run_ranks(3, tmp_path / "whole", *flags)
    ranks = tasks(trainers, (tmp_path / "halves",) * 3, *flags, *SLOW)
    wait_for(lambda: events(tmp_path / "halves", "train"), "progress")
    ranks[1].send_signal(signal.SIGTERM)
    stopped = [finish(rank).code for rank in ranks]
    half = status(tmp_path / "halves")
    resumed = trainers.run_ranks(3, tmp_path / "halves", *flags)

    assert [whole.code, *stopped, resumed.code] == [0, 75, 75, 75, 0], resumed.err
    assert half["state"] == "preempted"
    assert 0 < half["step"] < 5
    assert equal(weights(tmp_path / "halves"), weights(tmp_path / "whole"))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("launcher", [ALONE, (*ALONE, *SPAWN_2)])
def test_missing_data_is_one_line_and_a_failed_state(
    trainers: Trainers, tmp_path: Path, launcher: tuple[str, ...]
) -> None:
    ended = trainers.run(tmp_path / "run", "--data-dir", str(tmp_path / "nowhere"), launcher=launcher)
    lines = ended.err.strip().splitlines()

    assert ended.code == 1
    assert len(lines) == 1
    assert lines[0].startswith("error: ")
    assert "fix: sbatchgen data mnist --to" in lines[0]
    assert status(tmp_path / "run")["state"] == "failed"
    assert status(tmp_path / "run")["reason"] == lines[0].removeprefix("error: ")


def test_a_loss_that_explodes_exits_3_and_keeps_the_good_checkpoint(here: Here, tmp_path: Path) -> None:
    here(tmp_path)
    ended = here(tmp_path, "--optimizer", "sgd", "--lr", "1e30", "--epochs", "2", "--allow-config-change")

    assert ended.code == 3, ended.err
    assert ended.err.count("\n") == 1
    assert "not finite" in ended.err
    assert status(tmp_path)["state"] == "failed"
    assert all(torch.isfinite(weight).all() for weight in weights(tmp_path).values())


def test_a_stop_is_told_to_the_script_that_reads_it(
    here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Launchers take anything but 0 for a failure, and kill the other processes."""
    (tmp_path / "stop").touch()
    assert here(tmp_path).code == 75
    assert not (tmp_path / "exit").exists()
    monkeypatch.setenv("SBATCHGEN_EXIT_FILE", str(tmp_path / "exit"))
    assert here(tmp_path).code == 0
    assert (tmp_path / "exit").read_text() == "75\n"
    assert status(tmp_path)["state"] == "preempted"


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("asked", "after_steps", "reason", "again"),
    [
        ("limit\n", True, "time limit", True),
        ("limit\n", False, "time limit", False),
        ("cancelled\n", True, "cancelled", False),
        ("", True, "stop file", False),
        ("x[$(touch pwned)]", True, "stop file", False),
    ],
)
def test_only_a_training_that_ran_out_of_time_and_got_on_asks_for_a_restart(
    trainers: Trainers, tmp_path: Path, *, asked: str, after_steps: bool, reason: str, again: bool
) -> None:
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    if not after_steps:
        (run_dir / "stop").write_text(asked)
    files = {"SBATCHGEN_AGAIN_FILE": str(run_dir / "again"), "SBATCHGEN_EXIT_FILE": str(run_dir / "exit")}
    process = trainers.start(run_dir, *SLOW, env=files)
    if after_steps:
        wait_for(lambda: events(run_dir, "train"), "progress")
        (run_dir / "stop").write_text(asked)
    ended = finish(process)

    assert (ended.code, status(run_dir)["reason"]) == (0, reason), ended.err
    assert (run_dir / "again").exists() is again
    assert (run_dir / "exit").read_text() == "75\n"
    assert ("Not asking for a restart" in ended.out) == (not after_steps)


def test_the_end_of_its_time_makes_a_training_ask_for_a_restart(
    here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = iter(range(1000))
    monkeypatch.setenv("SBATCHGEN_AGAIN_FILE", str(tmp_path / "again"))
    monkeypatch.setattr("training.processes.stop.time.time", lambda: 0.0 if next(looks) < 20 else 1e10)
    monkeypatch.setattr("training.processes.stop.LOOK_EVERY_S", 0.0)
    ended = here(
        tmp_path, "--deadline", "1e9", "--sync-every", "1", "--epochs", "50", "--tensorboard", "off"
    )  # TensorBoard asks for the time too
    assert (ended.code, status(tmp_path)["reason"]) == (75, "deadline"), ended.err
    assert status(tmp_path)["step"] > 0
    assert (tmp_path / "again").exists()


def test_a_failure_leaves_its_exit_status_and_the_first_one_counts(
    here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SBATCHGEN_EXIT_FILE", str(tmp_path / "exit"))
    assert here(tmp_path, "--optimizer", "sgd", "--lr", "1e30").code == 3
    assert here(tmp_path, "--model", "no_such_model").code == 1
    assert (tmp_path / "exit").read_text() == "3\n"


def test_other_settings_are_refused_by_name(here: Here, tmp_path: Path) -> None:
    here(tmp_path)
    ended = here(tmp_path, "--lr", "0.5")

    assert ended.code == 1
    assert "lr is 0.5, but was 1.0" in ended.err
    assert "--allow-config-change" in ended.err


def test_no_gpu_is_one_line(trainers: Trainers, tmp_path: Path) -> None:
    ended = trainers.run(tmp_path, "--device", "cuda", env={"CUDA_VISIBLE_DEVICES": ""})

    assert ended.code == 1
    assert ended.err.count("\n") == 1
    assert "--device cpu" in ended.err


@pytest.mark.proof
def test_dataparallel_without_gpus_runs_on_the_cpu(here: Here, tmp_path: Path) -> None:
    ended = here(tmp_path, "--dataparallel", "--precision", "bf16")

    assert ended.code == 0, ended.err
    assert "--dataparallel runs as one process on the CPU" in ended.out
    assert len(score_lines(ended.out)) == 1


def test_evaluation_of_own_weights_leaves_the_run_alone(here: Here, tmp_path: Path) -> None:
    here(tmp_path / "run")
    before = (tmp_path / "run" / "status.json").read_bytes()
    own = here(tmp_path / "run", "--evaluate")
    model = torch.load(tmp_path / "run" / "checkpoints" / "best.pt", weights_only=True)["model"]
    torch.save(
        {"state_dict": {f"module.{name}": weight for name, weight in model.items()}}, tmp_path / "theirs.pt"
    )
    theirs = here(tmp_path / "empty", "--evaluate", "--init-from", str(tmp_path / "theirs.pt"))
    nothing = here(tmp_path / "empty", "--evaluate")

    assert [own.code, theirs.code, nothing.code] == [0, 0, 1], theirs.err
    scores = [
        [line.split(" - ")[1] for line in each.out.splitlines() if " - " in line] for each in (own, theirs)
    ]
    assert scores[0][-1] == scores[1][-1]
    assert (tmp_path / "run" / "status.json").read_bytes() == before
    assert "no weights to evaluate" in nothing.err
    assert not (tmp_path / "empty").exists()


@pytest.mark.proof
def test_torch_alone_is_enough(trainers: Trainers, tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    for name in ("numpy", "torchvision", "PIL"):
        (site / f"{name}.py").write_text(f'raise ModuleNotFoundError("none here", name="{name}")\n')
    flags = ("--epochs", "1", "--tensorboard", "off")
    ended = trainers.run(tmp_path / "run", *flags, *SPAWN_2, env={"PYTHONPATH": str(site)})

    assert (ended.code, ended.err) == (0, "")


def test_help_needs_no_torch(tmp_path: Path, trainers: Trainers) -> None:
    code = """import sys, runpy
sys.argv[1:], sys.modules['torch'] = ['--help'], None
runpy.run_module('training', run_name='__main__')"""
    ended = trainers.run(tmp_path, launcher=("-c", code))

    assert ended.code == 0, ended.err
    assert "--batch-size-per-gpu" in ended.out
    assert "--step-delay" not in ended.out


def test_a_file_of_another_run_is_gone_on_from_where_it_was(here: Here, tmp_path: Path) -> None:
    here(tmp_path / "first")
    file = tmp_path / "first" / "checkpoints" / "step-00000008.pt"
    ended = here(tmp_path / "second", "--epochs", "2", "--resume", str(file))

    assert ended.code == 0, ended.err
    assert f"Resuming from {file}: epoch 1, step 8" in ended.out  # here it was not validated
    assert status(tmp_path / "second")["checkpoint"] == "checkpoints/step-00000016.pt"


def test_a_restarted_job_goes_on_from_its_own_checkpoint_not_from_the_one_it_first_started_from(
    here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And from the one that its command line names until it has saved."""
    here(tmp_path / "other")
    wanted = str(tmp_path / "other/checkpoints/step-00000008.pt")
    flags = ("--resume", wanted, "--epochs", "2")
    run_dir = tmp_path / "run"
    here(run_dir)  # an earlier run in this folder, whose checkpoint is not meant
    (run_dir / "checkpoints/step-00000008.pt").rename(run_dir / "checkpoints/step-00000007.pt")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    (run_dir / "stop").touch()
    assert f"Resuming from {wanted}" in here(run_dir, *flags).out
    (run_dir / "stop").unlink()
    events_file = run_dir / "events.jsonl"
    kept = [
        line for line in events_file.read_text().splitlines() if '"job": "7"' in line or "start" not in line
    ]
    saved = [line for line in kept if '"save"' in line][-1]
    events_file.write_text("\n".join(line for line in kept if line != saved) + "\n")
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    assert f"Resuming from {wanted}" in here(run_dir, *flags).out, "it had not saved"
    assert "Nothing left to do" in here(run_dir, *flags).out
    monkeypatch.setenv("SLURM_RESTART_COUNT", "0")
    assert f"Resuming from {wanted}" in here(run_dir, *flags).out, "a start of its own"


def test_other_epochs_under_a_cosine_are_allowed_and_said(here: Here, tmp_path: Path) -> None:
    here(tmp_path, "--schedule", "cosine")
    ended = here(tmp_path, "--schedule", "cosine", "--epochs", "2")

    assert ended.code == 0, ended.err
    assert "the cosine schedule changes from here on" in ended.out


LATE = """
import sys
import torch.distributions, torch.nested
sys.modules.pop("sitecustomize", None)
sys.path.insert(0, sys.argv[1])
import sitecustomize
import torch.fx.experimental.symbolic_shapes as shapes
assert isinstance(shapes.__spec__.loader, sitecustomize.NoCompiler)
torch.zeros_like(torch.nn.Linear(2, 2).to("meta").weight)  # asks for more of it
"""


@pytest.mark.proof
def test_what_was_loaded_before_the_stand_ins_stays() -> None:
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    assert subprocess.run([sys.executable, "-c", LATE, str(QUICKLY)], env=clean, check=False).returncode == 0


def test_the_trainers_of_these_tests_load_no_compiler(trainers: Trainers, tmp_path: Path) -> None:
    """With another torch, one more module may ask for it, and each of a thousand starts takes three times as long."""
    code = "import sys; from training.command import main; sys.exit(main(sys.argv[1:]) or 'sympy' in sys.modules)"
    ended = trainers.run(tmp_path, "--epochs", "1", launcher=("-c", code))
    assert ended.code == 0, ended.err
