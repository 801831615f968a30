"""What torch's allocator gives out in the steps of a training, on the CPU with real tensors."""

from __future__ import annotations

import gc
import itertools
from typing import Any

from torch.profiler import ProfilerActivity, profile

from training.config import parse
from training.memory import peak


def most_bytes(arguments: list[str], processes: int) -> int:
    """The most bytes that it has given out at one time."""
    gc.collect()  # else what was made before may be freed meanwhile
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as followed:
        peak(parse(arguments), processes, fake=False)
    profiler: Any = followed.profiler
    changes = [event for event in profiler.kineto_results.events() if event.name() == "[memory]"]
    changes.sort(key=lambda event: int(event.start_ns()))
    return max(itertools.accumulate(int(event.nbytes()) for event in changes))
