"""What a training uses: CPU time, memory of its nodes and GPUs, how busy the GPUs are, waiting for data.

The counters are those of Linux and torch; values that they don't have here are left out.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from training.processes.world import World, gather_text

SAMPLE_S = 5.0  # between two looks at how busy the GPUs are; NVML's own figure is of up to a second


def _cpu_s() -> float:
    """CPU time of this process and of those that it has started, such as loaders."""
    own = os.times()
    ticks = sum(sum(map(int, _stat(child)[11:15])) for child in _children())
    return own.user + own.system + own.children_user + own.children_system + ticks / os.sysconf("SC_CLK_TCK")


@dataclass(kw_only=True, slots=True)
class Usage:
    """What this process uses, from the beginning of the training on.

    Attributes:
        gpus: Their numbers.
        data_s: Seconds that it has waited for data, or made batches itself.
    """

    gpus: tuple[int, ...] = ()
    data_s: float = 0.0
    began: float = field(default_factory=time.perf_counter)
    cpu_began_s: float = field(default_factory=_cpu_s)
    sampled: float = field(default_factory=time.perf_counter)
    busy: list[float] = field(default_factory=lambda: [0.0, 0.0])  # sum of all samples, and their number

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Count the time meanwhile as waiting for data."""
        began = time.perf_counter()
        yield
        self.data_s += time.perf_counter() - began

    def sample(self) -> None:
        """Sample how busy the GPUs are, every SAMPLE_S seconds at most."""
        if not self.gpus or time.perf_counter() - self.sampled < SAMPLE_S:
            return
        try:
            percents = [torch.cuda.utilization(gpu) for gpu in self.gpus]
        except Exception:  # noqa: BLE001 - without pynvml, with a MIG slice, ...: never again
            self.sampled = math.inf
            return
        self.sampled = time.perf_counter()
        self.busy = [self.busy[0] + sum(percents), self.busy[1] + len(percents)]

    def facts(self) -> dict[str, Any]:
        """What is known of this process."""
        facts: dict[str, Any] = {
            "seconds": round(time.perf_counter() - self.began, 2),
            "cpu_s": round(_cpu_s() - self.cpu_began_s, 2),
            "data_s": round(self.data_s, 2),
            "memory_bytes": _memory_bytes(),
        }
        if self.busy[1]:
            facts["gpu_utilization"] = round(self.busy[0] / self.busy[1], 1)
        if self.gpus:
            fullest = max(self.gpus, key=torch.cuda.max_memory_reserved)
            facts["gpu_allocated_bytes"] = torch.cuda.max_memory_allocated(fullest)
            facts["gpu_reserved_bytes"] = torch.cuda.max_memory_reserved(fullest)
            facts["gpu_bytes"] = torch.cuda.get_device_properties(fullest).total_memory
        return facts


def gpus_of(device: torch.device, *, every: bool) -> tuple[int, ...]:
    """The numbers of the GPUs of this process: its device's, or every one that it sees; none on a CPU."""
    if device.type != "cuda":
        return ()
    return tuple(range(torch.cuda.device_count())) if every else (device.index or 0,)


def add_up(world: World, usage: Usage) -> dict[str, Any]:
    """What all processes have used: the facts of the event "resources"."""
    texts = gather_text(world, json.dumps({"host": world.host[:100]} | usage.facts()))
    every = [json.loads(text) for text in texts]
    first, memory = every[0], Counter[str]()
    for rank in every:
        memory[rank["host"]] += rank["memory_bytes"]
    facts = {
        "processes": world.size,
        "seconds": first["seconds"],
        "cpu_s": round(sum(rank["cpu_s"] for rank in every), 2),
        "data_s": max(rank["data_s"] for rank in every),
    }
    if all(memory.values()):
        facts["memory_bytes"] = max(memory.values())
    known = [rank["gpu_utilization"] for rank in every if "gpu_utilization" in rank]
    if known:
        facts["gpu_utilization"] = round(sum(known) / len(known), 1)
    fullest = max(every, key=lambda rank: rank.get("gpu_reserved_bytes", 0))
    return facts | {
        name: value for name, value in fullest.items() if name.startswith("gpu_") and "bytes" in name
    }


def _memory_bytes() -> int:
    """The most that this process had in memory, and what its loaders have; 0 if Linux does not show it.

    Loaders are forked: pages that they share with this process or each other count once for all of them
    (Pss, proc_pid_smaps(5)).
    """
    own = _kib(Path("/proc/self/status"), "VmHWM")
    return 1024 * (own + sum(_kib(Path(f"/proc/{child}/smaps_rollup"), "Pss") for child in _children()))


def _kib(file: Path, name: str) -> int:
    """A value of a file of /proc; 0 if it is not there."""
    with contextlib.suppress(OSError):
        for line in file.read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1])
    return 0


def _children() -> list[int]:
    """The processes that the main thread has started, such as loaders; empty if Linux does not show them."""
    with contextlib.suppress(OSError):
        pid = os.getpid()
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def _stat(pid: int) -> list[str]:
    """What proc_pid_stat(5) has after the name of a process; nothing if it has ended."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return []
