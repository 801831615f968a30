"""Images in folders, one for each class, and what is done to them (`--dataset imagefolder`)."""

from __future__ import annotations

import importlib
import importlib.metadata
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch

from training.config import Config
from training.errors import UserError, one_line

T = TypeVar("T")
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet


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


def image_folders(config: Config) -> tuple[Any, Any]:
    """Training and validation images with one folder per class, cropped to squares, as uint8."""
    import_torchvision("--dataset imagefolder")
    sets = read_both(config, _images)
    for first, other in (sets, sets[::-1]):
        if missing := sorted(set(first.classes) - set(other.classes)):
            some = ", ".join(missing[:3]) + ", ..." * (len(missing) > 3)
            what = f"classes that are only in {first.root}: {some}"
            raise UserError(what, at=other.root, fix="the same class folders in both")
    return sets


def read_both(config: Config, read: Callable[[Path, Any, str], T]) -> tuple[T, T]:
    """Training and validation images, as `read` makes them from a folder, a transform and its flag."""
    root = Path(config.data_dir)
    train = root / "train" if (root / "train").is_dir() else root
    validation = Path(config.val_path) if config.val_path else root / "val"
    return (
        read(train, training_transform(config), "--data-dir"),
        read(validation, evaluation_transform(config), "--val-path"),
    )


def _images(folder: Path, transform: Any, flag: str) -> Any:
    from torchvision import datasets  # type: ignore[import-not-found,import-untyped,unused-ignore]

    fix = "replace the file, or remove it"
    try:
        return datasets.ImageFolder(
            str(folder), transform, loader=lambda path: decode(path, "the image", at=path, fix=fix)
        )
    except OSError as error:  # no folder, none in it, or one without images
        reason = str(error).partition(" Supported")[0].strip().rstrip(".")
        fix = f"{flag} DIR with one folder of images per class"
        raise UserError(f"not a folder of images ({reason})", at=str(folder), fix=fix) from error


def training_transform(config: Config) -> Any:
    """What --augment does to a training image: from Pillow's to uint8 (3, side, side)."""
    from torchvision.transforms import v2  # type: ignore[import-not-found,import-untyped,unused-ignore]

    if config.augment == "none":
        return _middle(config, config.train_crop)
    steps = [v2.RandomResizedCrop(config.train_crop, antialias=True), v2.RandomHorizontalFlip()]
    if config.augment in {"randaugment", "trivialaugment"}:
        policy = v2.RandAugment if config.augment == "randaugment" else v2.TrivialAugmentWide
        steps.append(policy(interpolation=v2.InterpolationMode.BILINEAR))
    steps.append(v2.PILToTensor())
    if config.random_erase:  # grey, which the norm makes 0
        steps.append(v2.RandomErasing(config.random_erase, value=[round(255 * mean) for mean in MEAN]))
    return v2.Compose(steps)


def evaluation_transform(config: Config) -> Any:
    """The middle of a validation image."""
    return _middle(config, config.eval_crop or config.train_crop)


def _middle(config: Config, side: int) -> Any:
    from torchvision.transforms import v2  # type: ignore[import-not-found,import-untyped,unused-ignore]

    shorter = config.eval_resize or side * 8 // 7
    return v2.Compose([v2.Resize(shorter, antialias=True), v2.CenterCrop(side), v2.PILToTensor()])


def decode(file: Any, name: str, *, at: str, fix: str) -> Any:
    """An image from a path or an open file, as torchvision's own reader decodes it (Pillow)."""
    from PIL import Image

    try:
        return Image.open(file).convert("RGB")
    except Exception as error:  # Pillow raises many types for a damaged file
        raise UserError(f"cannot read {name} ({one_line(error)[:200]})", at=at, fix=fix) from error
