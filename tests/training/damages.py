"""Checkpoints that are damaged, at random and each bit of the directory, and what is loaded of them."""

from __future__ import annotations

import io
import itertools
import random
from collections import Counter
from collections.abc import Callable

import torch

from training.saving.reading import CorruptError, State, load

from .states import encoded, equal, state

PAGE = 4096

Damage = Callable[[bytearray, random.Random, bytes], None]


def sample(seed: int) -> State:
    """A state with a tensor of some pages and a small one, the contents by the seed."""
    dice = torch.Generator().manual_seed(seed)
    shapes = {"large": (64, 64), "small": (33,)}
    return state(1) | {"model": {name: torch.rand(shape, generator=dice) for name, shape in shapes.items()}}


def flip(data: bytearray, place: int) -> None:
    data[place // 8] ^= 1 << place % 8


def swap(data: bytearray, chance: random.Random, _: bytes) -> None:
    first, other = (slice(start, start + 512) for start in chance.sample(range(0, len(data) - 512, 512), 2))
    data[first], data[other] = data[other], data[first]


def copy(data: bytearray, chance: random.Random, _: bytes) -> None:
    start, to = chance.sample(range(0, len(data) - 512, 512), 2)
    data[to : to + 512] = data[start : start + 512]


def insert(data: bytearray, chance: random.Random, _: bytes) -> None:
    place = chance.randrange(len(data))
    data[place:place] = chance.randbytes(chance.choice((1, 64, 4096)))


def remove(data: bytearray, chance: random.Random, _: bytes) -> None:
    place = chance.randrange(len(data))
    del data[place : place + chance.choice((1, 64, 4096))]


def change_page(data: bytearray, chance: random.Random, *, zero: bool) -> None:
    start = chance.randrange(0, len(data), PAGE)
    length = len(data[start : start + PAGE])
    data[start : start + PAGE] = bytes(length) if zero else chance.randbytes(length)


def replace_tail(data: bytearray, chance: random.Random, other: bytes) -> None:
    start = chance.randrange(len(data))
    data[start:] = other[start:]


def overwrite_header(data: bytearray, chance: random.Random, _: bytes) -> None:
    start = data.rindex(b"PK\1\2") if chance.random() < 0.5 else 0
    data[start : start + 32] = chance.randbytes(32)


def cut(data: bytearray, chance: random.Random, _: bytes) -> None:
    del data[chance.randrange(len(data)) :]


def append(data: bytearray, chance: random.Random, _: bytes) -> None:
    data += chance.randbytes(chance.choice((1, 22, 4096)))


KINDS: dict[str, Damage] = {
    "a flipped bit": lambda data, chance, _: flip(data, chance.randrange(8 * len(data))),
    "a cut file": cut,
    "a page of zeros": lambda data, chance, _: change_page(data, chance, zero=True),
    "a random page": lambda data, chance, _: change_page(data, chance, zero=False),
    "swapped blocks": swap,
    "a block twice": copy,
    "more bytes": insert,
    "fewer bytes": remove,
    "another header": overwrite_header,
    "bytes at the end": append,
    "the end of another file": replace_tail,
}


def at_random(count: int, seed: int = 1) -> Counter[str]:
    """How many of so many damages are refused, or load the same; what loads something else, by its kind."""
    chance = random.Random(seed)  # noqa: S311 - of damages
    whole, other = encoded(sample(1)), encoded(sample(2))
    outcomes = Counter[str]()
    for kind in itertools.islice(itertools.cycle(KINDS), count):
        data = bytearray(whole)
        KINDS[kind](data, chance, other)
        outcomes["the same" if data in (whole, other) else _loaded(data, kind)] += 1
    return outcomes


def each_bit_of_the_directory() -> Counter[str]:
    """The same, of each bit that can flip in the central directory of the archive and after it."""
    whole, outcomes = encoded(sample(1)), Counter[str]()
    for place in range(8 * int.from_bytes(whole[-6:-2], "little"), 8 * len(whole)):
        data = bytearray(whole)
        flip(data, place)
        outcomes[_loaded(data, "a flipped bit")] += 1
    return outcomes


def _loaded(data: bytearray, kind: str) -> str:
    try:
        back = load(io.BytesIO(data))
    except CorruptError:
        return "refused"
    del back["format"]
    return "the same" if equal(back, sample(1)) else kind
