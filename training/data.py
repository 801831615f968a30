"""Data sets: what `--dataset` names.

Shape suffixes: N samples, C channels, H height, W width.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from .cifar import read_cifar10
from .config import Config
from .errors import UserError
from .idx import read_mnist
from .order import mix
from .splits import Batch, Held, Loaded, Norm, Split

CIFAR10_NORM = Norm(mean=(0.4914, 0.4822, 0.4465), std=(0.2470, 0.2435, 0.2616))
CIFAR10_SHIFT = 4  # pixels, as is usual
MNIST_NORM = Norm(mean=(0.1307,), std=(0.3081,))
IMAGENET_NORM = Norm(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
FAKE_VALIDATION = 256


@dataclass(frozen=True, kw_only=True, slots=True)
class Data:
    """A data set; labels are 0..classes-1."""

    train: Split
    validation: Split
    classes: int
    shape_CHW: tuple[int, int, int]


def load(config: Config, device: torch.device) -> Data:
    """The data set that the configuration names.

    PACKAGE.MODULE:FUNCTION is called with the configuration and gives (training, validation), each either a
    pair of tensors (images_NCHW, labels_N), held in memory, or a map-style data set of (x_CHW, label), read
    by loaders; the training one then has a list `classes`.

    Raises:
        UserError: If it is not there or is broken.
    """
    norm = Norm()
    train: Any
    validation: Any
    if config.dataset == "mnist":
        train, validation = (read_mnist(Path(config.data_dir), part) for part in ("train", "test"))
        norm = MNIST_NORM
    elif config.dataset == "cifar10":
        train, validation = (read_cifar10(Path(config.data_dir), part) for part in ("train", "test"))
        return _held(train, validation, CIFAR10_NORM, device, shift=CIFAR10_SHIFT, seed=config.seed)
    elif config.dataset == "fake":
        train, validation = _fake(config)
    elif config.dataset == "imagefolder":
        train, validation = _image_folders(config)
        norm = IMAGENET_NORM
    else:
        train, validation = named(config.dataset, "--dataset")(config)
    if isinstance(train, tuple):
        return _held(train, validation, norm, device)
    return _loaded(train, validation, norm, device, config)


def named(name: str, flag: str) -> Callable[..., Any]:
    """The function that PACKAGE.MODULE:FUNCTION names.

    Raises:
        UserError: If it cannot be imported.
    """
    module, colon, function = name.partition(":")
    if not colon:
        raise UserError(
            f"{flag} {name} is not known", fix=f"one of those in --help, or {flag} PACKAGE.MODULE:FUNCTION"
        )
    try:
        found: Callable[..., Any] = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise UserError(f"{flag} {name}: {error}", fix="put its folder on PYTHONPATH") from error
    return found


def _held(
    train: Batch, validation: Batch, norm: Norm, device: torch.device, *, shift: int = 0, seed: int = 0
) -> Data:
    """Both parts on the device; the training images are moved by up to `shift` pixels, and mirrored."""
    splits = [
        Held(images_NCHW=images.to(device), labels_N=labels.to(device), norm=norm, shift=most, seed=seed)
        for (images, labels), most in ((train, shift), (validation, 0))
    ]
    _, channels, height, width = train[0].shape
    classes = max(int(labels_N.max()) for _, labels_N in (train, validation)) + 1
    return Data(train=splits[0], validation=splits[1], classes=classes, shape_CHW=(channels, height, width))


def _loaded(train: Any, validation: Any, norm: Norm, device: torch.device, config: Config) -> Data:
    if not hasattr(train, "classes"):
        raise UserError(
            f"--dataset {config.dataset} does not say its classes",
            fix="give its training set a list 'classes'",
        )
    splits = [
        Loaded(dataset=dataset, norm=norm, device=device, workers=config.workers, seed=config.seed)
        for dataset in (train, validation)
    ]
    channels, height, width = train[0][0].shape
    return Data(
        train=splits[0], validation=splits[1], classes=len(train.classes), shape_CHW=(channels, height, width)
    )


def _fake(config: Config) -> tuple[Batch, Batch]:
    """Noise of MNIST's shape for convnet, else of ImageNet's: for measuring speed."""
    shape, classes = ((1, 28, 28), 10) if config.model == "convnet" else ((3, 224, 224), 1000)
    generator = torch.Generator().manual_seed(mix("fake", config.seed))

    def part(samples: int) -> Batch:
        images_NCHW = torch.randint(256, (samples, *shape), dtype=torch.uint8, generator=generator)
        labels_N = torch.randint(classes, (samples,), generator=generator)
        labels_N[-1] = classes - 1  # the largest label tells how many classes there are
        return images_NCHW, labels_N

    return part(config.fake_samples), part(FAKE_VALIDATION)


def _image_folders(config: Config) -> tuple[Any, Any]:
    """Training and validation images with one folder a class, cut to 224x224, as uint8."""
    try:
        from torchvision import datasets, transforms  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except (ImportError, RuntimeError) as error:  # RuntimeError: a torchvision made for another torch
        fix = "install the torchvision that belongs to this torch, both from the same index"
        raise UserError(f"--dataset imagefolder needs torchvision ({error})", fix=fix) from error
    root = Path(config.data_dir)
    train = root / "train" if (root / "train").is_dir() else root
    validation = Path(config.val_path) if config.val_path else root / "val"
    for folder, flag in ((train, "--data-dir"), (validation, "--val-path")):
        if not folder.is_dir():
            raise UserError(f"{folder} is not a folder", fix=f"{flag} DIR with one folder of images a class")
    random_cut = [
        transforms.RandomResizedCrop(224),
        transforms.RandomHorizontalFlip(),
        transforms.PILToTensor(),
    ]
    middle_cut = [transforms.Resize(256), transforms.CenterCrop(224), transforms.PILToTensor()]
    sets = (
        datasets.ImageFolder(str(train), transforms.Compose(random_cut)),
        datasets.ImageFolder(str(validation), transforms.Compose(middle_cut)),
    )
    if sets[0].classes != sets[1].classes:
        raise UserError(
            f"{train} and {validation} have different classes", fix="the same class folders in both"
        )
    return sets
