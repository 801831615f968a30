"""Models: what `--model` names."""

from __future__ import annotations

import torch
from torch import nn

from .config import Config
from .data import Data, named, torchvision
from .errors import UserError
from .order import mix
from .recomputation import recomputed

CONVNET_SIDE = 6  # pixels: two lines are lost to each convolution, then two become one


def build(config: Config, data: Data) -> nn.Module:
    """A new model on the CPU, its weights decided by the seed; it maps x_BCHW to logits (B, classes).

    Both are float32, under autocast the logits may have its type. PACKAGE.MODULE:FUNCTION is called with the
    configuration and gives such a model, on the CPU.

    Raises:
        UserError: If there is no such model, or it cannot take the data set's images.
    """
    torch.manual_seed(mix("weights", config.seed))
    made: nn.Module
    if config.model == "convnet":
        made = _convnet(data.shape_CHW, data.classes)
    elif ":" in config.model:
        made = named(config.model, "--model")(config)
    else:
        made = _from_torchvision(config.model, data)
    return recomputed(made) if config.activation_checkpointing else made


def load_weights(model: nn.Module, weights: dict[str, torch.Tensor], origin: str) -> None:
    """Copy weights into a model; names that DistributedDataParallel or DataParallel made are understood.

    Raises:
        UserError: If they belong to another model.
    """
    try:
        model.load_state_dict({name.removeprefix("module."): value for name, value in weights.items()})
    except RuntimeError as error:
        first = str(error).splitlines()[1:2] or [str(error)]
        raise UserError(
            f"the weights are of another model: {first[0].strip()[:300]}", at=origin, fix="the same --model"
        ) from error


def _convnet(shape_CHW: tuple[int, int, int], classes: int) -> nn.Module:
    """Two convolutions and two dense layers: 1.2 million weights for 28x28 images of one channel."""
    channels, height, width = shape_CHW
    if min(height, width) < CONVNET_SIDE:
        what = f"--model convnet wants images of {CONVNET_SIDE}x{CONVNET_SIDE} or larger"
        raise UserError(f"{what}, these are {height}x{width}", fix="another --model")
    return nn.Sequential(
        nn.Conv2d(channels, 32, 3),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3),
        nn.MaxPool2d(2),  # before the ReLU: the same values, for a quarter of the work
        nn.ReLU(),
        nn.Dropout(0.25),
        nn.Flatten(),
        nn.Linear(64 * ((height - 4) // 2) * ((width - 4) // 2), 128),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(128, classes),
    )


def _from_torchvision(name: str, data: Data) -> nn.Module:
    models = torchvision(f"--model {name}").models
    if data.shape_CHW[0] != 3:
        raise UserError(
            f"--model {name} wants 3 channels, the images have {data.shape_CHW[0]}", fix="--model convnet"
        )
    try:
        model: nn.Module = models.get_model(name, weights=None, num_classes=data.classes)
    except ValueError as error:
        raise UserError(
            f"--model {name} is not known", fix="convnet, or one of torchvision.models.list_models()"
        ) from error
    return model
