"""A model for tests of something else than the model: a step takes a millisecond, and convnet's thirty."""

from __future__ import annotations

from torch import nn

from training.config import Config


def make(_: Config) -> nn.Module:
    """Maps digits to logits; dropout, so that a resumed run needs its random numbers too."""
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 32), nn.ReLU(), nn.Dropout(0.25), nn.Linear(32, 10))
