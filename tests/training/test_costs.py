"""What a run records of its steps, traces of them, and the buffers of batch norms."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from training.run.loop import norm_of
from training.run.setup import only_norms_have_buffers

from .trainers import ROOT, Here, Trainers, events


@pytest.mark.proof
def test_a_line_of_the_events_has_the_costs_of_a_step(here: Here, tmp_path: Path) -> None:
    assert here(tmp_path, "--log-every", "2", "--sync-every", "2", "--step-delay", "0.01").code == 0
    logged = events(tmp_path, "train")
    assert all(event["step_s"] >= 0.01 and 0 <= event["data_wait"] < 1 for event in logged)
    assert all(event["grad_norm"] > 0 for event in logged)


def test_the_norm_of_the_gradient_is_that_of_clipping() -> None:
    model = nn.Linear(5, 3)
    model(torch.rand(4, 5)).square().sum().backward()
    assert norm_of(model.parameters()) == pytest.approx(
        float(nn.utils.clip_grad_norm_(model.parameters(), 1e9))
    )


@pytest.mark.proof
def test_a_trace_has_as_many_steps_as_asked_for(small_digits: Path, tmp_path: Path) -> None:
    """In a process of its own: the profiler loads torch's compiler, which the tests' torch is without."""
    flags = ["--profile-steps", "2", "--epochs", "2", "--device", "cpu", "--batch-size", "64"]
    call = [
        sys.executable,
        "-m",
        "training",
        "--run-dir",
        str(tmp_path),
        "--data-dir",
        str(small_digits),
        *flags,
    ]
    ended = subprocess.run(call, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert f"Trace of 2 steps written to {tmp_path / 'trace.json.gz'}" in ended.stdout
    with gzip.open(tmp_path / "trace.json.gz") as file:
        names = [event.get("name", "") for event in json.load(file)["traceEvents"]]
    assert sum(name.startswith("ProfilerStep#") for name in names) == 2
    assert "aten::convolution" in names


@pytest.mark.proof
@pytest.mark.parametrize(
    ("steps", "epochs", "traced"), [("2", "1", 2), ("3", "1", 3), ("4", "1", 0), ("9", "2", 0)]
)
def test_a_short_training_is_traced_as_far_as_it_goes(
    small_digits: Path, tmp_path: Path, steps: str, epochs: str, traced: int
) -> None:
    """An epoch has four steps, of which one comes before the trace; what can't be traced is said."""
    flags = ["--profile-steps", steps, "--epochs", epochs, "--device", "cpu", "--batch-size", "64"]
    folders = ["--run-dir", str(tmp_path), "--data-dir", str(small_digits)]
    call = [sys.executable, "-m", "training", *folders, *flags]
    ended = subprocess.run(call, cwd=ROOT, capture_output=True, text=True, check=False)

    assert ended.returncode == 0, ended.stderr
    if traced:
        with gzip.open(tmp_path / "trace.json.gz") as file:
            names = [event.get("name", "") for event in json.load(file)["traceEvents"]]
        assert sum(name.startswith("ProfilerStep#") for name in names) == traced
    else:
        left = 4 * int(epochs)
        said = f"No trace: --profile-steps {steps} needs {int(steps) + 1} steps, and {left} are left"
        assert f"{said}; fix: at most {left - 1}" in ended.stdout
        assert not (tmp_path / "trace.json.gz").exists()


class Counter(nn.Module):
    """A buffer that a step could depend on."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(1))


@pytest.mark.parametrize(
    ("module", "only"), [(nn.BatchNorm2d(2), True), (nn.Linear(2, 2), True), (Counter(), False)]
)
def test_buffers_are_left_alone_if_norms_have_them_all(module: nn.Module, *, only: bool) -> None:
    assert only_norms_have_buffers(nn.Sequential(nn.BatchNorm1d(3), module)) == only


A_RANK = """
import sys, warnings, torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

folder, rank = sys.argv[1], int(sys.argv[2])
dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
states = []
warnings.simplefilter("ignore")  # torch 2.13 has another name for it
for broadcasts in (True, False):
    torch.manual_seed(1)
    model = DistributedDataParallel(
        nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 2)),
        broadcast_buffers=broadcasts,
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(5):
        torch.manual_seed(10 * step + rank)
        optimizer.zero_grad()
        model(torch.rand(3, 1, 4, 4)).square().sum().backward()
        optimizer.step()
    states.append(model.module.state_dict())
torch.save(states, f"{folder}/{rank}.pt")
dist.destroy_process_group()
"""


@pytest.mark.proof
def test_the_state_of_rank_0_is_the_same_without_a_broadcast(tmp_path: Path) -> None:
    command = [sys.executable, "-c", A_RANK, str(tmp_path)]
    ranks = [subprocess.Popen([*command, str(rank)]) for rank in range(2)]
    assert [rank.wait() for rank in ranks] == [0, 0]
    first, other = torch.load(tmp_path / "0.pt", weights_only=True)
    assert all(torch.equal(first[name], other[name]) for name in first)


def test_norms_over_all_processes_need_gpus(trainers: Trainers, tmp_path: Path) -> None:
    ended = trainers.run_ranks(2, tmp_path, "--sync-bn")
    assert ended.code == 1
    assert ended.err.count("--sync-bn needs GPUs") == 1
