"""Data sets: what `--dataset` names.

Shape suffixes: N samples, C channels, H height, W width.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.metadata
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from training.config import Config
from training.data.cifar import read_cifar10
from training.data.mnist import read_mnist
from training.data.order import mix
from training.data.splits import Batch, FromLoaders, InMemory, Norm, Split
from training.errors import UserError, one_line

# How they are read, their norm, and by how many pixels training images are shifted.
IN_FILES = {
    "mnist": (read_mnist, Norm(mean=(0.1307,), std=(0.3081,)), 0),
    "cifar10": (read_cifar10, Norm(mean=(0.4914, 0.4822, 0.4465), std=(0.2470, 0.2435, 0.2616)), 4),
}
IMAGENET_NORM = Norm(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
FAKE_VALIDATION = 256


@dataclass(frozen=True, kw_only=True, slots=True)
class Data:
    """A data set; labels are 0..classes-1."""

    train: Split
    validation: Split
    classes: int
    shape_CHW: tuple[int, int, int]
    checksum: str = ""  # of the training labels, and of the names of classes and files


def load_data(config: Config, device: torch.device) -> Data:
    """The data set that the configuration names; raises UserError if it is missing or broken.

    PACKAGE.MODULE:FUNCTION is called with the configuration and returns (training, validation), each either a
    pair of tensors (images_NCHW, labels_N), held in memory, or a map-style data set of (x_CHW, label), read
    by loaders; the training one then has a list `classes`. For a sample that cannot be read it may raise an
    OSError, or a UserError with a fix; any other exception is shown as a bug.
    """
    norm, shift = Norm(), 0
    train: Any
    validation: Any
    if config.dataset in IN_FILES:
        read, norm, shift = IN_FILES[config.dataset]
        train, validation = (read(Path(config.data_dir), part) for part in ("train", "test"))
    elif config.dataset == "fake":
        train, validation = _fake(config)
    elif config.dataset == "imagefolder":
        train, validation = _image_folders(config)
        norm = IMAGENET_NORM
    else:
        train, validation = import_function(config.dataset, "--dataset")(config)
    if isinstance(train, tuple):
        return _in_memory(train, validation, norm, device, shift=shift, seed=config.seed)
    return _from_loaders(train, validation, norm, device, config)


def import_function(name: str, flag: str) -> Callable[..., Any]:
    """The function that PACKAGE.MODULE:FUNCTION names; raises UserError if it cannot be imported."""
    module, colon, function = name.partition(":")
    if not colon:
        fix = f"one of those in --help, or {flag} PACKAGE.MODULE:FUNCTION"
        raise UserError(f"{flag} {name} is not known", fix=fix)
    try:
        factory: Callable[..., Any] = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        missing = isinstance(error, ModuleNotFoundError)
        fix = "put its folder on PYTHONPATH, or install it" if missing else "name a function of that module"
        raise UserError(f"{flag} {name}: {error}", fix=fix) from error
    return factory


def _in_memory(
    train: Batch, validation: Batch, norm: Norm, device: torch.device, *, shift: int, seed: int
) -> Data:
    """Both parts on the device; training images are shifted by up to `shift` pixels, and flipped."""
    for pair, part in ((train, "training"), (validation, "validation")):
        _check_tensors(*pair, train[0].shape[1:], part)
    splits = [
        InMemory(
            images_NCHW=images.to(device), labels_N=labels.to(device).long(), norm=norm, shift=most, seed=seed
        )
        for (images, labels), most in ((train, shift), (validation, 0))
    ]
    _, channels, height, width = train[0].shape
    classes = max(int(labels_N.max()) for _, labels_N in (train, validation)) + 1
    return Data(
        train=splits[0],
        validation=splits[1],
        classes=classes,
        shape_CHW=(channels, height, width),
        checksum=_checksum(train[1].tolist()),
    )


def _check_tensors(images: torch.Tensor, labels: torch.Tensor, shape: torch.Size, part: str) -> None:
    if images.ndim != 4 or images.shape[1:] != shape or len(images) != len(labels):
        what = f"the {part} images have the shape {tuple(images.shape)}, with {len(labels)} labels"
        raise UserError(what, fix="images (N, C, H, W), the same C, H, W in both parts, and N labels")
    if not len(labels):
        raise UserError(f"there are no {part} images", fix="another data set")
    if labels.is_floating_point() or int(labels.min()) < 0:
        what = f"the labels of the {part} images are {labels.dtype}, from {labels.min().item()} on"
        raise UserError(what, fix="whole numbers from 0 on")


def _from_loaders(train: Any, validation: Any, norm: Norm, device: torch.device, config: Config) -> Data:
    if not hasattr(train, "classes"):
        what = f"--dataset {config.dataset} does not list its classes"
        raise UserError(what, fix="give its training set a list 'classes'")
    for dataset, part in ((train, "training"), (validation, "validation")):
        if not len(dataset):
            raise UserError(f"there are no {part} images", fix="another data set")
    first = train[0][0]
    if not isinstance(first, torch.Tensor) or first.ndim != 3:
        shape = tuple(first.shape) if isinstance(first, torch.Tensor) else type(first).__name__
        raise UserError(f"the first image is not a tensor (C, H, W), but {shape}", fix="give such tensors")
    channels, height, width = first.shape
    shape_CHW = (channels, height, width)
    classes = len(train.classes)
    splits = [
        FromLoaders(
            dataset,
            norm=norm,
            device=device,
            workers=config.workers,
            seed=config.seed,
            classes=classes,
            shape_CHW=shape_CHW,
        )
        for dataset in (train, validation)
    ]
    samples = getattr(train, "samples", ())  # as torchvision's folders have them: (path, label)
    names = [(path.rpartition("/")[2], label) for path, label in samples] if _are_files(samples) else []
    return Data(
        train=splits[0],
        validation=splits[1],
        classes=classes,
        shape_CHW=shape_CHW,
        checksum=_checksum([*train.classes], names),
    )


def _are_files(samples: Any) -> bool:
    """Whether it lists (path, label)."""
    first = samples[0] if isinstance(samples, list) and samples else None
    return isinstance(first, tuple) and len(first) == 2 and isinstance(first[0], str)


def _checksum(*parts: list[Any]) -> str:
    return hashlib.blake2b(repr(parts).encode(), digest_size=8).hexdigest()


def _fake(config: Config) -> tuple[Batch, Batch]:
    """Random images of MNIST's shape for convnet, else of ImageNet's: to measure speed."""
    shape, classes = ((1, 28, 28), 10) if config.model == "convnet" else ((3, 224, 224), 1000)
    generator = torch.Generator().manual_seed(mix("fake", config.seed))

    def part(samples: int) -> Batch:
        images_NCHW = torch.randint(256, (samples, *shape), dtype=torch.uint8, generator=generator)
        labels_N = torch.randint(classes, (samples,), generator=generator)
        labels_N[-1] = classes - 1  # the largest label tells how many classes there are
        return images_NCHW, labels_N

    return part(config.fake_samples), part(FAKE_VALIDATION)


def import_torchvision(flag: str) -> Any:
    """The module torchvision; raises UserError if it is missing, or built for another torch.

    A torchvision for GPUs raises a RuntimeError with a torch for CPUs: its operators are missing.
    """
    try:
        return importlib.import_module("torchvision")
    except ImportError as error:
        what = f"{flag} needs torchvision ({one_line(error)[:200]})"
        raise UserError(what, fix=f"install the one made for torch {torch.__version__}") from error
    except RuntimeError as error:
        gpus = torch.version.cuda or torch.version.hip
        kind = "they do not match" if gpus else "torch is for CPUs, torchvision for GPUs"
        what = (
            f"{flag}: torchvision {importlib.metadata.version('torchvision')} cannot be used with "
            f"torch {torch.__version__}: {kind} ({one_line(error)[:200]})"
        )
        raise UserError(what, fix="install both by one command, from one package index") from error


def _image_folders(config: Config) -> tuple[Any, Any]:
    """Training and validation images with one folder per class, cropped to 224x224, as uint8."""
    import_torchvision("--dataset imagefolder")
    from torchvision import datasets, transforms  # type: ignore[import-not-found,import-untyped,unused-ignore]

    root = Path(config.data_dir)
    train = root / "train" if (root / "train").is_dir() else root
    validation = Path(config.val_path) if config.val_path else root / "val"
    random_cut = [
        transforms.RandomResizedCrop(224),
        transforms.RandomHorizontalFlip(),
        transforms.PILToTensor(),
    ]
    middle_cut = [transforms.Resize(256), transforms.CenterCrop(224), transforms.PILToTensor()]

    def images(folder: Path, steps: list[Any], flag: str) -> Any:
        try:
            return datasets.ImageFolder(str(folder), transforms.Compose(steps), loader=_open_image)
        except OSError as error:  # no folder, none in it, or one without images
            reason = str(error).partition(" Supported")[0].strip().rstrip(".")
            fix = f"{flag} DIR with one folder of images per class"
            raise UserError(f"not a folder of images ({reason})", at=str(folder), fix=fix) from error

    sets = images(train, random_cut, "--data-dir"), images(validation, middle_cut, "--val-path")
    for first, other, ours, theirs in (
        (*sets, train, validation),
        (*reversed(sets), validation, train),
    ):
        missing = sorted(set(first.classes) - set(other.classes))
        if missing:
            some = ", ".join(missing[:3]) + ", ..." * (len(missing) > 3)
            what = f"classes that are only in {ours}: {some}"
            raise UserError(what, at=str(theirs), fix="the same class folders in both")
    return sets


def _open_image(path: str) -> Any:
    """An image, decoded by torchvision's own reader (Pillow)."""
    from torchvision.datasets.folder import default_loader  # type: ignore[import-not-found,import-untyped,unused-ignore]

    try:
        return default_loader(path)
    except Exception as error:  # Pillow raises many types for a damaged file
        what = f"cannot read the image ({one_line(error)[:200]})"
        raise UserError(what, at=path, fix="replace the file, or remove it") from error
