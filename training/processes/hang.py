"""What a hang leaves: the stack of the process that keeps the others waiting, and NCCL's flight recorder."""

from __future__ import annotations

import multiprocessing
import os
import signal
import traceback
from pathlib import Path
from types import FrameType

import torch

from training.errors import complain
from training.processes.world import World

SHARE = 0.9  # of the time that the others wait, before they give up and the launcher ends all
CALLS = "2000"  # collective operations that the flight recorder keeps, torch's own default in later versions
_within: list[float] = []  # seconds; empty: no process is watched


def record(run_dir: Path) -> None:
    """Have NCCL record its last operations, for a file of each rank in the run folder if one hangs.

    Call it before the process group is made. torch 2.9 renamed two of the variables.
    """
    size, file = "TORCH_FR_BUFFER_SIZE", "TORCH_FR_DUMP_TEMP_FILE"
    if tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 9):
        size, file = "TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"
    os.environ.setdefault(size, CALLS)
    os.environ.setdefault(file, f"{run_dir.resolve()}/nccl-rank-")
    os.environ.setdefault("TORCH_NCCL_DUMP_ON_TIMEOUT", "1")


def watch(world: World, timeout_s: float) -> None:
    """Print where this process and its loaders are if it does not meet the others for most of `timeout_s`."""
    _within[:] = [SHARE * timeout_s] if world.size > 1 else []

    def show(_number: int, frame: FrameType | None) -> None:
        stack = "".join(traceback.format_stack(frame))
        complain(f"{world.name} has not met the other ranks for {_within[0]:.0f} s; it is here:\n{stack}")
        for loader in multiprocessing.active_children():
            os.kill(loader.pid or os.getpid(), signal.SIGALRM)

    if _within:
        signal.signal(signal.SIGALRM, show)
        met()


def met() -> None:
    """Count the time from zero: the processes have just met."""
    if _within:
        signal.setitimer(signal.ITIMER_REAL, _within[0])
