"""Fine-tuning: weights of another number of classes, parts that are not trained, the rate of the head.

The head is the last module that has weights of its own, in the order in which the model makes them.
"""

from __future__ import annotations

import fnmatch

import torch
from torch import nn

from training.config import Config
from training.errors import UserError
from training.model.models import load_weights


def load_all_but_head(
    model: nn.Module, weights: dict[str, torch.Tensor], origin: str, *, classes: int
) -> list[str]:
    """Load weights, also of another number of classes; returns the names of those that it leaves.

    These are the head if the file has none, and each weight that differs only in the number of classes.
    UserError if they are of another model.
    """
    own = model.state_dict()
    given = {name.removeprefix("module."): value for name, value in weights.items()}
    left = [name for name in head_of(model) if name not in given]
    for name in own.keys() & given.keys():
        new, old = own[name].shape, given[name].shape
        if new[:1] != old[:1] and new[1:] == old[1:] and new[:1] == (classes,):
            left.append(name)
    load_weights(model, given | {name: own[name] for name in left}, origin)
    return sorted(left)


def head_of(model: nn.Module) -> list[str]:
    """The names of the head's weights."""
    having = [name for name, module in model.named_modules() if [*module.parameters(recurse=False)]]
    last = having[-1] + "." if having and having[-1] else ""
    return [name for name, _ in model.named_parameters() if name.startswith(last)]


def freeze(model: nn.Module, config: Config) -> None:
    """Keep the weights that --freeze names; UserError if a pattern names none, or all are frozen."""
    names = [name for name, _ in model.named_parameters()]
    for pattern in filter(None, config.freeze.split(",")):
        frozen = set(fnmatch.filter(names, pattern))
        if not frozen:
            some = ", ".join([names[0], names[-1]] if names else [])
            what = f"--freeze {pattern} names no weight of --model {config.model}"
            raise UserError(what, fix=f"a pattern for names such as {some}")
        for name, weight in model.named_parameters():
            weight.requires_grad_(weight.requires_grad and name not in frozen)
    if config.freeze and not any(weight.requires_grad for weight in model.parameters()):
        raise UserError(f"--freeze {config.freeze} leaves nothing to train", fix="another pattern")


def train_mode(model: nn.Module) -> None:
    """Set the modules to training, but frozen ones to evaluation: a frozen norm keeps its statistics."""
    model.train()
    for module in model.modules():
        weights = list(module.parameters(recurse=False))
        if weights and not any(weight.requires_grad for weight in weights):
            module.eval()
