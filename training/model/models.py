"""The models of `--model`, and their weights. The head is the last module with weights."""

import fnmatch
from collections import OrderedDict

import torch
from torch import nn

from training.config import Config
from training.data.datasets import Data
from training.data.images import import_torchvision
from training.data.order import derive_seed
from training.data.own_module import import_function
from training.errors import UserError
from training.model.activation_checkpointing import checkpoint_activations

CONVNET_SIDE = 6  # the smallest side in pixels: two convolutions remove two each, and pooling halves the rest


def build_model(config: Config, data: Data) -> nn.Module:
    """Return a new model on the CPU, with random weights by the seed.

    The model maps x_BCHW (float32) to logits (B, classes). Raises UserError if the model is unknown or does
    not fit the images.
    """
    torch.manual_seed(derive_seed("weights", config.seed))
    if config.model == "convnet":
        model = _convnet(data.shape_CHW, data.classes)
    elif ":" in config.model:
        model = import_function(config.model, "--model")(config)
    else:
        model = _from_torchvision(config.model, data)
    return checkpoint_activations(model) if config.activation_checkpointing else model


def load_weights(model: nn.Module, weights: dict[str, torch.Tensor], origin: str) -> None:
    """Load weights, also those of a model in DataParallel; raise UserError if the weights do not fit."""
    try:
        model.load_state_dict({name.removeprefix("module."): value for name, value in weights.items()})
    except RuntimeError as error:
        first = str(error).splitlines()[1:2] or [str(error)]
        what = f"the weights are of another model: {first[0].strip()[:300]}"
        raise UserError(what, at=origin, fix="the same --model") from error


def _convnet(shape_CHW: tuple[int, ...], classes: int) -> nn.Module:
    """Return a model of two convolutions and two dense layers, with 1.2 million weights for MNIST.

    Raises UserError if the images are too small.
    """
    channels, height, width = shape_CHW
    if min(height, width) < CONVNET_SIDE:
        what = f"--model convnet needs images of {CONVNET_SIDE}x{CONVNET_SIDE} or larger"
        raise UserError(f"{what}, these are {height}x{width}", fix="another --model")
    layers = OrderedDict[str, nn.Module](  # the names of pytorch/examples/mnist
        conv1=nn.Conv2d(channels, 32, 3),
        relu1=nn.ReLU(),
        conv2=nn.Conv2d(32, 64, 3),
        pool=nn.MaxPool2d(2),  # before the ReLU: the same values, for a quarter of the work
        relu2=nn.ReLU(),
        dropout1=nn.Dropout(0.25),
        flatten=nn.Flatten(),
        fc1=nn.Linear(64 * ((height - 4) // 2) * ((width - 4) // 2), 128),
        relu3=nn.ReLU(),
        dropout2=nn.Dropout(0.5),
        fc2=nn.Linear(128, classes),
    )
    return nn.Sequential(layers)


def _from_torchvision(name: str, data: Data) -> nn.Module:
    """Return a model of torchvision with random weights; raises UserError for an unknown name."""
    models = import_torchvision(f"--model {name}").models
    try:
        model: nn.Module = models.get_model(name, weights=None, num_classes=data.classes)
    except ValueError as error:
        fix = "convnet, or one of torchvision.models.list_models()"
        raise UserError(f"--model {name} is not known", fix=fix) from error
    if data.shape_CHW[0] != 3:
        what = f"--model {name} needs 3 channels, the images have {data.shape_CHW[0]}"
        raise UserError(what, fix="--model convnet")
    return model


def load_all_but_head(
    model: nn.Module, weights: dict[str, torch.Tensor], origin: str, *, classes: int
) -> list[str]:
    """Load weights, also those for another number of classes; return the names of weights not loaded.

    `classes` is the number of the model's classes, or 0 if the head must fit too. Raises UserError if the
    weights do not fit.
    """
    new_weights = model.state_dict()
    old_weights = {name.removeprefix("module."): value for name, value in weights.items()}
    not_loaded = [name for name in head_of(model) if name not in old_weights]
    # A weight of the head may differ only in the number of classes.
    for name in new_weights.keys() & old_weights.keys():
        new, old = new_weights[name].shape, old_weights[name].shape
        if new[:1] != old[:1] and new[1:] == old[1:] and new[:1] == (classes,):
            not_loaded.append(name)
    load_weights(model, old_weights | {name: new_weights[name] for name in not_loaded}, origin)
    return sorted(not_loaded)


def head_of(model: nn.Module) -> list[str]:
    """Return the names of the head's weights."""
    modules = [name for name, module in model.named_modules() if [*module.parameters(recurse=False)]]
    prefix = modules[-1] + "." if modules and modules[-1] else ""
    return [name for name, _ in model.named_parameters() if name.startswith(prefix)]


def freeze(model: nn.Module, config: Config) -> None:
    """Freeze the weights that --freeze names.

    Raises UserError if a pattern names no weight, or if no weight is left to train.
    """
    weights = dict(model.named_parameters())
    for pattern in filter(None, config.freeze.split(",")):
        frozen = fnmatch.filter(weights, pattern)
        if not frozen:
            examples = ", ".join([*weights][:1] + [*weights][-1:])
            what = f"--freeze {pattern} names no weight of --model {config.model}"
            raise UserError(what, fix=f"a pattern for names such as {examples}")
        for name in frozen:
            weights[name].requires_grad_(False)
    if config.freeze and not any(weight.requires_grad for weight in model.parameters()):
        raise UserError(f"--freeze {config.freeze} leaves nothing to train", fix="another pattern")
    if config.freeze and config.head_lr and not any(weights[name].requires_grad for name in head_of(model)):
        what = f"--freeze {config.freeze} keeps the head, so --head-lr would change nothing"
        raise UserError(what, fix="leave --head-lr out, or another pattern")


def train_mode(model: nn.Module) -> None:
    """Set the modules to training, and frozen modules to evaluation, so that their norms keep statistics."""
    model.train()
    for module in model.modules():
        weights = list(module.parameters(recurse=False))
        if weights and not any(weight.requires_grad for weight in weights):
            module.eval()
