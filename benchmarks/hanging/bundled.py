"""Data and a model for the bundled trainer, with the faults of loop.py, there train.py."""

import os, time
import torch, torch.distributed as dist
import train

AFTER, AT, HANGS = train.AFTER, train.AT, bool(os.environ["LOOP"])


class Data(torch.utils.data.Dataset):
    classes = ("a", "b")

    def __init__(self, count, slow):
        self.count, self.slow, self.seen = count, slow, 0
        self.other = train.Data(HANGS and slow and dist.get_rank() == train.BAD)

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        self.seen += 1
        self.other[AT if self.seen == AT * 16 else 0]
        until = time.monotonic() + self.slow
        while time.monotonic() < until:
            torch.ones(100, 100) @ torch.ones(100, 100)
        return torch.rand(1, 8, 8), index % 2


class Model(torch.nn.Sequential):
    steps = 0

    def forward(self, images):
        self.steps += 1
        if HANGS and self.steps == AT and dist.get_rank() == train.BAD:
            train.fault(train.BAD)
        return super().forward(images)


def data(config):
    return (Data(768, 0.001), Data(8, 0)) if HANGS else (Data(64, 0.01), Data(8, AFTER / 2))


def model(config):
    end = time.monotonic() + 2 * AFTER * (not HANGS)  # as a compiler
    while time.monotonic() < end:
        torch.ones(100, 100) @ torch.ones(100, 100)
    return Model(torch.nn.Flatten(), torch.nn.Linear(64, 2))
