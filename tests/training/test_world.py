"""The memory of a process that trains on the CPU, and the GPU that a process uses."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from training.errors import UserError
from training.processes.ranks import Place
from training.processes.world import M_MMAP_THRESHOLD, M_TRIM_THRESHOLD, _choose_device, keep_memory

from .states import equal, everything
from .trainers import Trainers, events, quickly

# Steps, each of which makes 16 blocks of 8 MB and frees them; printed are the pages that the kernel had to bring in
# for the last five. The first ten warm up: the heap still grows.
HUGE = Path("/sys/kernel/mm/transparent_hugepage/enabled")
STEPS = """
import resource, sys, torch
from training.errors import UserError
from training.processes.ranks import Place
from training.processes.world import M_MMAP_THRESHOLD, M_TRIM_THRESHOLD, _choose_device, keep_memory
if sys.argv[1] == "kept":
    assert keep_memory()
def step():
    blocks = [torch.ones(1 << 21) for _ in range(16)]
for _ in range(10):
    step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def _pages(how: str) -> int:
    fixed = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "131072"}  # where glibc begins; it may go up by itself
    done = subprocess.run(
        [sys.executable, "-c", STEPS, how], capture_output=True, text=True, check=True, env=quickly(fixed)
    )
    return int(done.stdout)


@pytest.mark.proof
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="mallopt is glibc's")
def test_freed_memory_stays_with_the_process() -> None:
    given_back = _pages("given back")
    assert given_back > 300  # 5 x 128 MB in pages of 2 MiB would be 320
    assert _pages("kept") < given_back / 10


@pytest.mark.proof
@pytest.mark.skipif("[never]" in HUGE.read_text() if HUGE.exists() else True, reason="Linux gives none")
def test_large_tensors_have_huge_pages() -> None:
    code = "from training.processes.world import keep_memory; import torch; keep_memory(); x = torch.ones(8 << 20);"
    code += "print(open('/proc/self/smaps_rollup').read())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    (huge,) = (line.split()[1] for line in done.stdout.splitlines() if line.startswith("AnonHugePages:"))
    assert int(huge) >= 8 << 10  # KiB, of 32 MiB


def test_a_c_library_without_mallopt_is_no_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ctypes.CDLL", lambda _name: object())
    assert not keep_memory()


def test_an_old_c_library_is_given_what_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: dict[int, int] = {}

    class Old:
        @staticmethod
        def mallopt(parameter: int, value: int) -> int:
            if value > 32 << 20:  # HEAP_MAX_SIZE / 2 of malloc/arena.c
                return 0
            taken[parameter] = value
            return 1

    monkeypatch.setattr("ctypes.CDLL", lambda _name: Old)
    assert keep_memory()
    assert taken == {M_MMAP_THRESHOLD: 32 << 20, M_TRIM_THRESHOLD: -1}


@pytest.mark.parametrize(
    ("visible", "place", "number"),
    [
        (4, Place(launcher="srun", rank=3, size=4, local_rank=3, local_size=4), 3),
        (
            1,
            Place(launcher="srun", rank=3, size=4, local_rank=3, local_size=4),
            0,
        ),  # bound to its own by Slurm
        (1, Place(launcher="srun", rank=5, size=8, local_rank=1, local_size=4), 0),
        (1, Place(), 0),
    ],
)
def test_a_rank_uses_its_own_gpu_also_where_it_sees_no_other(
    monkeypatch: pytest.MonkeyPatch, visible: int, place: Place, number: int
) -> None:
    used: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: visible)
    monkeypatch.setattr(torch.cuda, "set_device", used.append)
    assert _choose_device(place, "cuda", "auto") == torch.device("cuda", number)
    assert used == [torch.device("cuda", number)]


def test_ranks_of_torchrun_can_not_share_the_one_gpu_that_all_see(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    place = Place(launcher="torchrun", rank=1, size=2, local_rank=1, local_size=2)
    with pytest.raises(UserError, match="local rank 1 has no GPU: 1 visible"):
        _choose_device(place, "cuda", "auto")


@pytest.mark.parametrize(
    ("built", "message"),
    [("cuda", "no GPU is visible"), ("hip", "no GPU is visible"), ("", "built for CPUs only")],
)
def test_without_a_gpu_it_says_whether_torch_could_use_one(
    monkeypatch: pytest.MonkeyPatch, built: str, message: str
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    for name in ("cuda", "hip"):
        monkeypatch.setattr(torch.version, name, "6.4" if name == built else None)
    with pytest.raises(UserError, match=message):
        _choose_device(Place(), "cuda", "auto")


@pytest.mark.proof
def test_one_process_of_a_launcher_has_a_process_group(trainers: Trainers, tmp_path: Path) -> None:
    """So that one GPU shows what NCCL does; it trains the same as a process without."""
    by_srun = {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NTASKS": "1"}
    ways: dict[str, dict[str, str]] = {"none": {}, "step": by_srun | {"SLURM_STEP_ID": "0"}}
    ways["batch script"] = by_srun | {"SLURM_STEP_ID": "-5"}
    for name, env in ways.items():
        assert trainers.run(tmp_path / name, "--epochs", "1", env=env).code == 0
    torchrun = ("-m", "torch.distributed.run", "--standalone", "-m", "training")
    assert trainers.run(tmp_path / "torchrun", "--epochs", "1", launcher=torchrun).code == 0

    groups = {name: events(tmp_path / name, "start")[0]["process_group"] for name in (*ways, "torchrun")}
    assert groups == {"none": "", "step": "gloo", "batch script": "", "torchrun": "gloo"}
    assert equal(everything(tmp_path / "none"), everything(tmp_path / "step"))
    assert equal(everything(tmp_path / "none"), everything(tmp_path / "torchrun"))
