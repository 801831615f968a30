"""The order of the N samples in an epoch.

The order is a function of the seed, the epoch and the position, so checkpoints need not hold it.
"""

import hashlib

import torch


def derive_seed(*parts: int | str) -> int:
    """Return a seed in 0..2^31-1 from numbers and words. Even similar parts give unrelated seeds."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big") >> 1


def epoch_order(samples: int, *, seed: int, epoch: int) -> torch.Tensor:
    """Return the permutation order_N of an epoch for all processes together (int64, on the CPU)."""
    return torch.randperm(samples, generator=torch.Generator().manual_seed(derive_seed("order", seed, epoch)))


def cut_steps(samples: int, *, batch: int, consumed: int = 0) -> list[tuple[int, int]]:
    """Return the first sample and the number of samples of each step after `consumed` samples.

    The last step may be short.
    """
    return [(first, min(batch, samples - first)) for first in range(consumed, samples, batch)]


def share(order_N: torch.Tensor, first: int, count: int, *, rank: int, size: int) -> torch.Tensor:
    """Return the samples of process `rank` of `size` in a step of `count` samples from `first` on.

    A process without a sample gets the first sample of the step as a stand-in.
    """
    return order_N[first + rank : first + count : size] if rank < count else order_N[first : first + 1]


def evaluation_share(samples: int, *, chunk: int, rank: int, size: int) -> list[torch.Tensor]:
    """Return the index lists of a process: every `size`-th sample, at most `chunk` samples in a list.

    All processes get the same number of lists, so the last list of a process may be empty.
    """
    own_N = torch.arange(samples)[rank::size]  # may be empty if there are more processes than samples
    most_samples = -(-samples // size)  # of a process, rounded up
    return [own_N[first : first + chunk] for first in range(0, most_samples, chunk)]
