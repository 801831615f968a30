"""The order of the N samples: a function of (seed, epoch, position), so that nothing needs to be saved."""

import hashlib

import torch


def mix(*parts: int | str) -> int:
    """Return a seed in 0..2^31-1 from numbers and words; similar ones give unrelated seeds."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big") >> 1


def epoch_order(samples: int, *, seed: int, epoch: int) -> torch.Tensor:
    """Return the permutation of an epoch, for all processes together, order_N: int64, on the CPU."""
    return torch.randperm(samples, generator=torch.Generator().manual_seed(mix("order", seed, epoch)))


def cut_steps(samples: int, *, batch: int, consumed: int = 0) -> list[tuple[int, int]]:
    """Return (first, count) of each step's samples, from `consumed` on; the last may be short."""
    return [(first, min(batch, samples - first)) for first in range(consumed, samples, batch)]


def share(order_N: torch.Tensor, first: int, count: int, *, rank: int, size: int) -> torch.Tensor:
    """Return the samples of process `rank` of `size` in a step of `count` from `first`, or a stand-in."""
    return order_N[first + rank : first + count : size] if rank < count else order_N[first : first + 1]


def evaluation_share(samples: int, *, chunk: int, rank: int, size: int) -> list[torch.Tensor]:
    """Index lists of a process: every `size`-th sample, `chunk` at once; as many for each, perhaps empty."""
    mine = torch.arange(samples)[rank::size]  # empty where there are fewer samples than processes
    largest = -(-samples // size)  # of any process
    return [mine[first : first + chunk] for first in range(0, largest, chunk)]
