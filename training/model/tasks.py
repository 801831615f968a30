"""Tasks: the loss and the metrics of a training.

Shape suffixes: B samples of a batch, K classes, T likeliest classes.
"""

import dataclasses
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

from training.config import Config
from training.data.datasets import Data
from training.data.images import import_torchvision
from training.data.own_module import import_function
from training.errors import UserError, one_line
from training.model import confusion

TOP = 5  # top-5 accuracy is reported if there are more than 10 classes

# Functions of the model's outputs and the targets, with a value for each sample, or such values by name.
Loss = Callable[[Any, torch.Tensor], torch.Tensor]
Metrics = Callable[[Any, torch.Tensor], dict[str, torch.Tensor]]


@dataclass(frozen=True, slots=True)
class Task:
    """The functions for the loss and the metrics of a training."""

    loss: Loss  # the loss of the validation
    training_loss: Loss  # the loss of the training steps
    metrics: Metrics  # the metrics of the validation; the best weights have the highest first metric
    score: Loss  # the first metric, for the training steps
    # The transform of images and targets by --mixup and --cutmix.
    mix: Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]] | None = None
    names: tuple[str, ...] = ("accuracy",)  # names of the metrics
    # The function for a batch's counts in the confusion matrix, and the number of these counts.
    counts: Loss = lambda _, y_B: torch.zeros(0, dtype=torch.float64, device=y_B.device)
    number_of_counts: int = 0


def build_task(config: Config, data: Data) -> Task:
    """Return the task of --task, or classification; raises UserError if the function can't be imported."""
    if not config.task:
        smooth = functools.partial(_cross_entropy, label_smoothing=config.label_smoothing)
        metrics = functools.partial(_accuracies, top=data.classes > 2 * TOP)
        task = Task(_cross_entropy, smooth, metrics, _correct, _build_mix(config, data))
        counted = min(data.classes, confusion.MAX_CLASSES)  # classes in the confusion matrix
        counts = functools.partial(confusion.count_confused, classes=counted)
        return dataclasses.replace(task, counts=counts, number_of_counts=counted * (counted + 1))
    loss, metrics = import_function(config.task, "--task")(config)
    return Task(loss, loss, metrics, lambda outputs, y_B: next(iter(metrics(outputs, y_B).values())))


def check_output(config: Config, task: Task, data: Data, outputs: Any, y_B: torch.Tensor) -> tuple[str, ...]:
    """Return the names of the metrics; raises UserError unless the loss and the metrics fit the output."""
    images, what = len(y_B), f"--model {config.model} gives "
    if not config.task:
        shape = tuple(outputs.shape) if isinstance(outputs, torch.Tensor) else type(outputs).__name__
        if not isinstance(shape, tuple) or len(shape) != 2 or shape[1] < data.classes:
            what += f"{shape} for {images} images of {data.classes} classes"
            raise UserError(what, fix=f"a model that gives a tensor of the shape ({images}, {data.classes})")
        return tuple(task.metrics(outputs, y_B))
    try:
        metrics = task.metrics(outputs, y_B)
        results = {"the loss": task.training_loss(outputs, y_B)} | metrics
    except (RuntimeError, ValueError, TypeError, LookupError, AttributeError) as error:
        what = f"--task {config.task} cannot take the model's output ({one_line(error)[:200]})"
        raise UserError(what, fix="another loss, or another --model") from error
    for name, values in results.items():
        if not isinstance(values, torch.Tensor) or values.shape != (images,):
            shape = tuple(values.shape) if isinstance(values, torch.Tensor) else type(values).__name__
            what = f"--task {config.task}: {name} is {shape} for {images} images"
            raise UserError(what, fix=f"a value for each image: a tensor of the shape ({images},)")
    if not metrics:
        what = f"--task {config.task} has no metric"
        raise UserError(what, fix="one or more; the first decides on best.pt")
    return tuple(metrics)


def _cross_entropy(logits_BK: Any, target: torch.Tensor, *, label_smoothing: float = 0.0) -> torch.Tensor:
    """Return the losses for labels (B,), or for the shares of classes that --mixup makes (B, classes)."""
    if target.ndim == 2:
        target = functional.pad(target, (0, logits_BK.shape[1] - target.shape[1]))
    return functional.cross_entropy(logits_BK, target, reduction="none", label_smoothing=label_smoothing)


def _correct(logits_BK: Any, y_B: torch.Tensor) -> torch.Tensor:
    """Return for each sample whether its likeliest class is the right one."""
    return torch.eq(logits_BK.argmax(dim=1), y_B)


def _accuracies(logits_BK: Any, y_B: torch.Tensor, *, top: bool) -> dict[str, torch.Tensor]:
    """Return for each sample whether it is right, and with `top` whether the right class is in the top 5."""
    metrics = {"accuracy": _correct(logits_BK, y_B)}
    if top:
        likeliest_BT = logits_BK.topk(min(TOP, logits_BK.shape[1]), dim=1).indices
        metrics["top5"] = (likeliest_BT == y_B.unsqueeze(1)).any(dim=1)
    return metrics


def _build_mix(config: Config, data: Data) -> Any:
    """Return the transform of --mixup and --cutmix, a random one if both are set; None without them."""
    if not (config.mixup or config.cutmix):
        return None
    v2 = import_torchvision("--mixup and --cutmix", "torchvision.transforms.v2")
    kinds = ((v2.MixUp, config.mixup), (v2.CutMix, config.cutmix))
    return v2.RandomChoice([kind(alpha=alpha, num_classes=data.classes) for kind, alpha in kinds if alpha])
