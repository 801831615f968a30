"""The resources that a training uses, as Linux and torch count them, and the trace of --profile-steps."""

import contextlib
import json
import math
import os
import re
import statistics
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from training.config import Config
from training.output.log import Log
from training.processes.proc import children, read
from training.processes.world import World, gather_text

TRACE = "trace.json.gz"
MAX_FIRST_STEPS = 5  # the first steps, which the trace excludes, because they choose and compile kernels
SAMPLE_S = 5.0  # seconds between two samples of the GPUs' utilisation, which NVML measures over a second


def _cpu_s() -> float:
    """Return the CPU time of this process and of its children, such as loaders."""
    cpu = os.times()
    # In proc_pid_stat(5), fields 14 to 17 are the CPU times of a process and of its ended children.
    stats = [read(child, "stat").rpartition(")")[2].split() for child in children(os.getpid())]
    ticks = sum(sum(map(int, stat[11:15])) for stat in stats)
    return cpu.user + cpu.system + cpu.children_user + cpu.children_system + ticks / os.sysconf("SC_CLK_TCK")


@dataclass(kw_only=True, slots=True)
class Usage:
    """The resources that this process has used since the training began."""

    gpus: tuple[int, ...] = ()  # the numbers of the GPUs of this process
    data_s: float = 0.0  # seconds in which this process waited for data, or made batches itself
    began: float = field(default_factory=time.perf_counter)
    cpu_s_at_start: float = field(default_factory=_cpu_s)
    sampled_at: float = field(default_factory=time.perf_counter)  # inf if the GPUs are no longer sampled
    utilisations: list[float] = field(default_factory=list)  # of the GPUs, in percent, at each sample
    # Peak bytes of tensors at the last sample. Torch needs 400 us for this number, too long for each step.
    allocated: int = 0

    def sample(self) -> None:
        """Sample the utilisation and the memory of the GPUs, at most every SAMPLE_S seconds."""
        if not self.gpus or time.perf_counter() - self.sampled_at < SAMPLE_S:
            return
        self.sampled_at = time.perf_counter()
        self.allocated = max(map(torch.cuda.max_memory_allocated, self.gpus))
        try:
            self.utilisations += [torch.cuda.utilization(gpu) for gpu in self.gpus]
        except Exception:  # noqa: BLE001 - no pynvml, a MIG slice, ...: stop sampling
            self.sampled_at = math.inf

    def facts(self) -> dict[str, Any]:
        """Return the resources that this process has used, as facts for `add_up`."""
        # The peak memory of this process (VmHWM) and the memory of its loaders (Pss), in KiB. Pss counts a
        # shared page in part for each process. The sum is 0 if Linux does not give these numbers.
        me = os.getpid()
        texts = [read(me, "status"), *(read(child, "smaps_rollup") for child in children(me))]
        memory = re.findall(r"^(?:VmHWM|Pss):\s+(\d+)", "\n".join(texts), re.MULTILINE)
        facts: dict[str, Any] = {
            "seconds": round(time.perf_counter() - self.began, 2),
            "cpu_s": round(_cpu_s() - self.cpu_s_at_start, 2),
            "data_s": round(self.data_s, 2),
            "memory_bytes": 1024 * sum(map(int, memory)),
        }
        if self.utilisations:
            facts["gpu_utilization"] = round(statistics.fmean(self.utilisations), 1)
        if self.gpus:
            fullest = max(self.gpus, key=torch.cuda.max_memory_reserved)
            facts["gpu_allocated_bytes"] = torch.cuda.max_memory_allocated(fullest)
            facts["gpu_reserved_bytes"] = torch.cuda.max_memory_reserved(fullest)
            facts["gpu_bytes"] = torch.cuda.get_device_properties(fullest).total_memory
        return facts


def gpu_numbers(device: torch.device, *, all_gpus: bool) -> tuple[int, ...]:
    """Return the number of this process's GPU, or with `all_gpus` the numbers of all GPUs; () on a CPU."""
    if device.type != "cuda":
        return ()
    return tuple(range(torch.cuda.device_count())) if all_gpus else (device.index or 0,)


def add_up(world: World, usage: Usage) -> dict[str, Any]:
    """Return the resources that all processes have used: the facts of the event "resources"."""
    texts = gather_text(world, json.dumps({"host": world.host[:100]} | usage.facts()))
    ranks = [json.loads(text) for text in texts]
    memory_by_host = Counter[str]()
    for rank in ranks:
        memory_by_host[rank["host"]] += rank["memory_bytes"]
    facts = {
        "processes": world.size,
        "seconds": ranks[0]["seconds"],
        "cpu_s": round(sum(rank["cpu_s"] for rank in ranks), 2),
        "data_s": max(rank["data_s"] for rank in ranks),
    }
    if all(memory_by_host.values()):
        facts["memory_bytes"] = max(memory_by_host.values())
    if known := [rank["gpu_utilization"] for rank in ranks if "gpu_utilization" in rank]:
        facts["gpu_utilization"] = round(statistics.fmean(known), 1)
    fullest = max(ranks, key=lambda rank: rank.get("gpu_reserved_bytes", 0))
    names = ("gpu_allocated_bytes", "gpu_reserved_bytes", "gpu_bytes")
    return facts | {name: fullest[name] for name in names if name in fullest}


@contextlib.contextmanager
def trace(config: Config, log: Log, remaining_steps: int) -> Iterator[Any]:
    """Record steps of rank 0 within this context; yield torch's profiler, or None if no step is recorded.

    The caller calls the profiler's `step` after each step. `remaining_steps` is the number of steps to
    the end. The first steps, at most MAX_FIRST_STEPS, are not recorded.
    """
    steps, path = config.profile_steps, log.run_dir / TRACE
    skipped = min(MAX_FIRST_STEPS, remaining_steps - steps)
    if not steps or not log.speaks:
        yield None
        return
    if skipped < 1:
        fix = f"at most {remaining_steps - 1}" if remaining_steps > 1 else "more --epochs"
        needed = f"--profile-steps {steps} needs {steps + 1} steps"
        log.say(f"No trace: {needed}, and {remaining_steps} are left; fix: {fix}")
        yield None
        return
    from torch import profiler

    def write(done: Any) -> None:
        try:
            path.unlink(missing_ok=True)  # the old file may be a link
            done.export_chrome_trace(str(path))
            log.say(f"Trace of {steps} steps written to {path}: open it in https://ui.perfetto.dev")
        except (OSError, RuntimeError) as error:
            log.say(f"Cannot write {path} ({error}): training continues")

    plan = profiler.schedule(wait=skipped - 1, warmup=1, active=steps, repeat=1)
    with profiler.profile(schedule=plan, on_trace_ready=write, record_shapes=True) as recording:
        yield recording
