"""What torch's allocator gives out in the steps of a training, on the CPU with real tensors.

As a program, it does so for each case of a JSON list: the arguments of the trainer, and how many processes there are.
It prints a list of pairs: the peak that is computed, and that of the allocator.
"""

from __future__ import annotations

import itertools
import json
import sys
from typing import Any

from torch.profiler import ProfilerActivity, profile

from tests.training import vision
from training.config import parse
from training.memory import peak


def most_bytes(arguments: list[str], processes: int) -> int:
    """The most bytes that it has given out at one time."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as followed:
        peak(parse(arguments), processes, fake=False)
    profiler: Any = followed.profiler
    changes = [event for event in profiler.kineto_results.events() if event.name() == "[memory]"]
    start = "start_ns" if hasattr(changes[0], "start_ns") else "start_us"  # of torch 2.2
    changes.sort(key=lambda event: int(getattr(event, start)()))
    return max(itertools.accumulate(int(event.nbytes()) for event in changes))


if __name__ == "__main__":
    vision.fit()
    cases = json.loads(sys.argv[1])
    print(
        json.dumps(
            [(peak(parse(words), count)["peak_bytes"], most_bytes(words, count)) for words, count in cases]
        )
    )
