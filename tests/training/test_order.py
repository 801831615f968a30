"""Each sample once an epoch, whatever the number of processes and wherever the run was stopped."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from training.data.order import cut_steps, derive_seed, epoch_order, evaluation_share, share


def seen(samples: int, batch: int, size: int, *, consumed: int = 0) -> list[list[int]]:
    """Samples of each step, over all processes."""
    order_N = epoch_order(samples, seed=1, epoch=0)
    return [
        [
            i
            for rank in range(min(size, count))
            for i in share(order_N, first, count, rank=rank, size=size).tolist()
        ]
        for first, count in cut_steps(samples, batch=batch, consumed=consumed)
    ]


@pytest.mark.parametrize("samples", [1, 5, 12, 13, 25])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_every_world_sees_the_same_samples_at_the_same_step(samples: int, size: int) -> None:
    steps = seen(samples, 12, size)

    assert [sorted(step) for step in steps] == [sorted(step) for step in seen(samples, 12, 1)]
    assert Counter(i for step in steps for i in step) == Counter(range(samples))


@pytest.mark.parametrize("consumed", [0, 12, 24])
def test_the_rest_of_an_epoch_is_what_was_not_consumed(consumed: int) -> None:
    assert seen(25, 12, 2, consumed=consumed) == seen(25, 12, 2)[consumed // 12 :]


def test_another_world_goes_on_at_any_position() -> None:
    begun = [i for step in seen(25, 12, 2)[:1] for i in step]
    rest = [i for step in seen(25, 6, 3, consumed=12) for i in step]

    assert sorted(begun + rest) == list(range(25))


def test_orders_differ_between_epochs_and_seeds_but_not_between_calls() -> None:
    order_N = epoch_order(100, seed=1, epoch=0)

    assert torch.equal(order_N, epoch_order(100, seed=1, epoch=0))
    assert not torch.equal(order_N, epoch_order(100, seed=1, epoch=1))
    assert not torch.equal(order_N, epoch_order(100, seed=2, epoch=0))
    assert derive_seed("a", 1, 2) != derive_seed("a", 12)
    assert 0 <= derive_seed("a", 1) < 2**31


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("samples", range(1, 14))
def test_an_evaluation_counts_each_sample_once_in_equally_many_lists(samples: int, size: int) -> None:
    shares = [evaluation_share(samples, chunk=4, rank=rank, size=size) for rank in range(size)]

    assert sorted(i for lists in shares for part in lists for i in part.tolist()) == list(range(samples))
    assert len({len(lists) for lists in shares}) == 1
    assert max(len(part) for lists in shares for part in lists) <= 4
