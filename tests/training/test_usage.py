"""What a training uses: what its processes tell, and what becomes of it in the events."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from training.processes.world import World
from training.run import usage
from training.run.usage import Usage, add_up, gpu_numbers

from .trainers import Here, Trainers, events

CPU = torch.device("cpu")
WORLD = World(rank=0, size=1, local_rank=0, device=CPU, backend="", threads=1, host="n1")
GIB = 1 << 30


def test_each_epoch_tells_what_was_used_since_the_start(here: Here, tmp_path: Path) -> None:
    assert here(tmp_path, "--epochs", "2").code == 0
    first, second = events(tmp_path, "resources")
    assert (first["step"], second["step"]) == (8, 16)
    assert (first["samples"], second["samples"]) == (250, 500)
    assert second["cpu_s"] > 0
    assert first["seconds"] <= second["seconds"]
    assert 0 <= second["data_s"] <= second["seconds"]
    assert 50 << 20 < first["memory_bytes"] < 64 * GIB  # torch alone takes as much
    assert not [name for name in second if name.startswith("gpu")]


def test_a_training_that_is_stopped_tells_it_too_and_all_ranks_count(
    trainers: Trainers, tmp_path: Path
) -> None:
    tmp_path.joinpath("stop").touch()
    ended = trainers.run_ranks(2, tmp_path, "--epochs", "1")
    assert ended.code == 75, ended.err
    (facts,) = events(tmp_path, "resources")
    assert facts["samples"] == 0
    assert facts["memory_bytes"] > 100 << 20


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Two GPUs, as torch describes them: the second is fuller."""
    fake = SimpleNamespace(looks=0, busy=80)

    def utilization(gpu: int) -> int:
        fake.looks += 1
        if fake.busy < 0:
            raise ModuleNotFoundError("pynvml module not found, please install pynvml")
        return int(fake.busy) - 20 * gpu

    for name, value in {
        "device_count": lambda: 2,
        "utilization": utilization,
        "max_memory_reserved": lambda gpu: (gpu + 1) * GIB,
        "max_memory_allocated": lambda gpu: (gpu + 1) * GIB // 2,
        "get_device_properties": lambda gpu: SimpleNamespace(total_memory=16 * GIB + gpu),
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(usage, "SAMPLE_S", 0.0)
    return fake


def test_gpus_are_told_as_torch_counts_them(gpu: SimpleNamespace) -> None:
    used = Usage(gpus=gpu_numbers(torch.device("cuda", 0), all_gpus=True))
    used.sample()
    gpu.busy = 40
    used.sample()
    facts = add_up(WORLD, used)
    assert facts["gpu_utilization"] == 50  # of 80, 60, 40 and 20
    assert (facts["gpu_reserved_bytes"], facts["gpu_allocated_bytes"], facts["gpu_bytes"]) == (
        2 * GIB,
        GIB,
        16 * GIB + 1,
    )
    assert gpu_numbers(torch.device("cuda", 1), all_gpus=False) == (1,)
    assert gpu_numbers(CPU, all_gpus=True) == ()


def test_without_nvml_nobody_says_how_busy_a_gpu_is_and_it_is_asked_once(gpu: SimpleNamespace) -> None:
    gpu.busy = -1
    used = Usage(gpus=(0,))
    for _ in range(3):
        used.sample()
    assert gpu.looks == 1
    facts = add_up(WORLD, used)
    assert "gpu_utilization" not in facts
    assert facts["gpu_bytes"] == 16 * GIB


def test_gpus_are_looked_at_now_and_then(gpu: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage, "SAMPLE_S", 1000.0)
    used = Usage(gpus=(0,))
    used.sample()
    assert gpu.looks == 0


def test_memory_is_that_of_the_fullest_node(monkeypatch: pytest.MonkeyPatch) -> None:
    def gathered(_world: World, text: str) -> list[str]:
        assert len(text.encode()) < 1024  # what gather_text takes
        mine = json.loads(text) | {"seconds": 10.0, "cpu_s": 4.0, "data_s": 1.0, "memory_bytes": 3}
        others: list[dict[str, Any]] = [{"data_s": 2.5}, {"host": "n2", "memory_bytes": 5}]
        return [json.dumps(mine | other) for other in ({}, *others)]

    monkeypatch.setattr(usage, "gather_text", gathered)
    facts = add_up(WORLD, Usage())
    assert facts == {"processes": 1, "seconds": 10.0, "cpu_s": 12.0, "data_s": 2.5, "memory_bytes": 6}


@pytest.mark.skipif(
    not Path(f"/proc/self/task/{os.getpid()}/children").exists(), reason="needs Linux's /proc"
)
def test_what_loaders_use_counts() -> None:
    """A loader is a child that lives as long as the run: only /proc shows it."""
    used = Usage()
    before = used.facts()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        held = b"x" * (300 << 20)
        while os.times().user + os.times().system < 0.5:
            hash(held[:1000])
        os.write(writing, b"x")
        signal.pause()
        os._exit(0)
    try:
        os.read(reading, 1)
        after = used.facts()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert after["cpu_s"] - before["cpu_s"] >= 0.4
    assert after["memory_bytes"] - before["memory_bytes"] > 250 << 20
