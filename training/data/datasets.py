"""The data sets of `--dataset`. Shape suffixes: N samples, C channels, H height, W width."""

import functools
import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from training.config import FILE_DATA_SETS, Config
from training.data.arrays import read_cifar10, read_mnist
from training.data.images import MEAN, STD, images_in_files
from training.data.order import derive_seed
from training.data.own_module import import_function
from training.data.splits import Batch, FromLoaders, InMemory, Keyed, Norm, Split, as_target
from training.errors import UserError

# By data set: the function that reads its files, its norm, and the most pixels by which training images are
# shifted.
READ_DATA_SETS = {
    "mnist": (read_mnist, Norm(mean=(0.1307,), std=(0.3081,)), 0),
    "cifar10": (read_cifar10, Norm(mean=(0.4914, 0.4822, 0.4465), std=(0.2470, 0.2435, 0.2616)), 4),
}
FILES = ("imagefolder", "shards")  # data sets of images in files, which loaders read
FAKE_VALIDATION = 256  # validation images of --dataset fake


@dataclass(frozen=True, slots=True)
class Data:
    """A data set with labels 0..classes-1. With --task it has no classes, and targets of any kind."""

    train: Split
    validation: Split
    classes: int
    shape_CHW: tuple[int, ...]
    # A target of zeros, with the shape and type of all targets.
    target: torch.Tensor = field(default_factory=lambda: torch.zeros((), dtype=torch.int64))
    checksum: str = ""  # checksum of the training labels, and of the names of classes and files
    norm: Norm = field(default_factory=Norm)  # for images of the type uint8
    names: tuple[str, ...] = ()  # the names of the classes; () if the data set has none
    evaluated_CHW: tuple[int, ...] = ()  # shape of a validation image
    # The errors of samples that this process could not read. They are raised when the processes synchronise.
    problems: list[UserError] = field(default_factory=list)


def load_data(config: Config, device: torch.device) -> Data:
    """Return the data set of the configuration; raises UserError if the data are missing or broken.

    The function of --dataset PACKAGE.MODULE:FUNCTION gets the configuration, and returns (training,
    validation). Both are either pairs of tensors (images_NCHW, labels_N), which stay in memory, or map-style
    data sets of (x_CHW, label), which loaders read. A map-style training set has a list `classes`. A
    map-style data set may raise an OSError, or a UserError with a fix, for a sample that cannot be read. Any
    other exception is shown as a bug.
    """
    norm, shift = Norm(), 0
    if config.augment not in {"auto", "none"} and config.dataset not in FILE_DATA_SETS[1]:
        what = f"--augment {config.augment} is for --dataset {' and '.join(FILES)}, this is {config.dataset}"
        raise UserError(what, fix="leave it out; a data set of your own changes its images itself")
    train: Any
    validation: Any
    if config.dataset in READ_DATA_SETS:
        read_part, norm, shift = READ_DATA_SETS[config.dataset]
        train, validation = (read_part(Path(config.data_dir), part) for part in ("train", "test"))
    elif config.dataset == "fake":
        train, validation = _fake(config)
    elif config.dataset in FILES:
        train, validation = images_in_files(config)
        norm = Norm(mean=MEAN, std=STD)
    else:
        train, validation = import_function(config.dataset, "--dataset")(config)
    for part, name in ((train, "training"), (validation, "validation")):
        if not len(part[1] if isinstance(part, tuple) else part):
            raise UserError(f"there are no {name} images", fix="another data set")
    if isinstance(train, tuple):
        shift *= config.augment != "none"
        return _in_memory(train, validation, norm, device, config, shift=shift)
    return _from_loaders(train, validation, norm, device, config)


def _in_memory(
    train: Batch, validation: Batch, norm: Norm, device: torch.device, config: Config, *, shift: int
) -> Data:
    """Return both parts on the device. Training images are shifted by up to `shift` pixels, and flipped."""
    splits: list[InMemory] = []
    shapes = [tensor.shape[1:] for tensor in train]
    for (images, targets), part, pixels in ((train, "training", shift), (validation, "validation", 0)):
        has_shape = [images.shape[1:], targets.shape[1:]] == shapes and len(images) == len(targets)
        if images.ndim != 4 or not has_shape:
            what = f"the {part} images have the shape {tuple(images.shape)}, with {len(targets)} labels"
            raise UserError(what, fix="images (N, C, H, W), the same C, H, W in both parts, and N labels")
        if not config.task and (targets.is_floating_point() or int(targets.min()) < 0):
            what = f"the labels of the {part} images are {targets.dtype}, from {targets.min().item()} on"
            raise UserError(what, fix="whole numbers from 0 on")
        labels_N = targets.to(device, None if config.task else torch.int64)
        splits.append(InMemory(images.to(device), labels_N, norm, pixels, config.seed))
    classes = 0 if config.task else max(int(split.labels_N.max()) for split in splits) + 1
    target = torch.zeros_like(splits[0].labels_N[0], device="cpu")
    shape_CHW, checksum = tuple(shapes[0]), _checksum(train[1].tolist())
    return Data(
        splits[0], splits[1], classes, shape_CHW, target, checksum, norm=norm, evaluated_CHW=shape_CHW
    )


def _from_loaders(train: Any, validation: Any, norm: Norm, device: torch.device, config: Config) -> Data:
    """Return two map-style data sets that loaders read; raises UserError if the first sample is wrong."""
    if not config.task and not hasattr(train, "classes"):
        what = f"--dataset {config.dataset} does not list its classes"
        raise UserError(what, fix="give its training set a list 'classes'")
    first, target = train[0]
    target = as_target(target)
    if not isinstance(first, torch.Tensor) or first.ndim != 3:
        shape = tuple(first.shape) if isinstance(first, torch.Tensor) else type(first).__name__
        raise UserError(f"the first image is not a tensor (C, H, W), but {shape}", fix="give such tensors")
    shape_CHW = tuple(first.shape)
    side = config.eval_crop if config.dataset in FILES else 0
    evaluated_CHW = (shape_CHW[0], side, side) if side else shape_CHW
    classes = 0 if config.task else len(train.classes)
    keyed = functools.partial(Keyed, seed=config.seed, classes=classes, target_shape=tuple(target.shape))
    load = functools.partial(FromLoaders, norm=norm, device=device, workers=max(0, config.workers))
    train_split = load(keyed(dataset=train, shape_CHW=shape_CHW))
    validation_split = load(keyed(dataset=validation, shape_CHW=evaluated_CHW))
    samples = getattr(train, "samples", ())
    pair = samples[0] if isinstance(samples, list) and samples else None
    # As in torchvision's ImageFolder, the samples are pairs of a path and a label.
    are_files = isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], str)
    files = [(path.rpartition("/")[2], label) for path, label in samples] if are_files else []
    names = [*getattr(train, "classes", ())]
    checksum = _checksum(names, files)
    zero, class_names = torch.zeros_like(target), tuple(map(str, names))
    return Data(
        train_split, validation_split, classes, shape_CHW, zero, checksum, norm, class_names, evaluated_CHW
    )


def _checksum(*parts: list[Any]) -> str:
    return hashlib.blake2b(repr(parts).encode(), digest_size=8).hexdigest()


def _fake(config: Config) -> tuple[Batch, Batch]:
    """Return random images to measure speed: of MNIST's shape for convnet, else of ImageNet's shape."""
    shape, classes = ((1, 28, 28), 10) if config.model == "convnet" else ((3, 224, 224), 1000)
    generator = torch.Generator().manual_seed(derive_seed("fake", config.seed))
    parts = []
    for samples in (config.fake_samples, FAKE_VALIDATION):
        images_NCHW = torch.randint(256, (samples, *shape), dtype=torch.uint8, generator=generator)
        labels_N = torch.randint(classes, (samples,), generator=generator)
        labels_N[-1] = classes - 1  # the largest label tells how many classes there are
        parts.append((images_NCHW, labels_N))
    return parts[0], parts[1]
