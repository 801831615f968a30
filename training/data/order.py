"""Which samples, in which order, for which process: functions of (seed, epoch, position), nothing to save.

The order of an epoch is one permutation for the whole run. A step takes the next `batch` entries of it, and
the processes deal these among themselves. So any number of processes sees each sample once an epoch, and a
run that stopped after `consumed` samples goes on at exactly the next one, at no cost.

Shape suffix: N samples.
"""

from __future__ import annotations

import hashlib

import torch


def mix(*parts: int | str) -> int:
    """A seed in 0..2^31-1 from some numbers and words: neighbouring numbers give unrelated seeds."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big") >> 1


def epoch_order(samples: int, *, seed: int, epoch: int) -> torch.Tensor:
    """The permutation of an epoch, order_N: int64, on the CPU, the same on every process."""
    generator = torch.Generator().manual_seed(mix("order", seed, epoch))
    return torch.randperm(samples, generator=generator)


def cuts(samples: int, *, batch: int, consumed: int = 0) -> list[tuple[int, int]]:
    """(first, count) of each step's samples in the order, from `consumed` on; the last may be short."""
    return [(first, min(batch, samples - first)) for first in range(consumed, samples, batch)]


def share(order_N: torch.Tensor, first: int, count: int, *, rank: int, size: int) -> torch.Tensor:
    """The part of a step's samples that falls to one of `size` processes: int64, 1-D; empty if too few.

    Args:
        order_N: The permutation of the epoch, int64 in 0..N-1.
        first: Where the step begins in it.
        count: How many samples the step has over all processes, at least 1.
        rank: The process, in 0..size-1.
        size: How many processes there are.
    """
    return order_N[first + rank : first + count : size]


def evaluation_share(samples: int, *, chunk: int, rank: int, size: int) -> list[torch.Tensor]:
    """Index lists of one process for an evaluation: every `size`-th sample, at most `chunk` at a time.

    Over all processes each sample occurs exactly once. Each gets equally many lists, the last ones perhaps
    empty, so that all can meet between them. They are int64 in 0..samples-1, 1-D, on the CPU.
    """
    mine = torch.arange(samples)[rank::size]  # empty where there are fewer samples than processes
    most = -(-samples // size)  # of any process
    return [mine[first : first + chunk] for first in range(0, most, chunk)]
