"""Images in files, and their transforms: `--dataset imagefolder`, with a folder for each class, and `shards`.

Shards are tar files in WebDataset's layout (https://github.com/webdataset/webdataset, "The WebDataset
Format"): KEY.jpg is an image, and KEY.cls its label as a number. Shards are read by index, not as a stream.
"""

import functools
import importlib
import importlib.metadata
import io
import os
import tarfile
from pathlib import Path
from typing import Any

import torch

from training.config import Config
from training.errors import UserError, one_line

# Of each channel of ImageNet's images, for values in 0..1.
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
ENDINGS = ("jpg", "jpeg", "png", "webp")  # of images in shards
SHARDS_FIX = "DIR with files such as 000.tar, which have KEY.jpg and KEY.cls"


def import_torchvision(flag: str, module: str = "torchvision") -> Any:
    """Return torchvision, or a module of torchvision, for a flag.

    Raises UserError if torchvision is missing, or was built for another torch.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        what = f"{flag} needs torchvision ({one_line(error)[:200]})"
        raise UserError(what, fix=f"install the one made for torch {torch.__version__}") from error
    except RuntimeError as error:  # operators are missing, for example of a torchvision for GPUs
        gpus = torch.version.cuda or torch.version.hip
        kind = "they do not match" if gpus else "torch is for CPUs, torchvision for GPUs"
        both = f"torchvision {importlib.metadata.version('torchvision')} cannot be used with torch"
        what = f"{flag}: {both} {torch.__version__}: {kind} ({one_line(error)[:200]})"
        raise UserError(what, fix="install both by one command, from one package index") from error


def images_in_files(config: Config) -> tuple[Any, Any]:
    """Return the training and validation sets of imagefolder or shards, whose images are uint8 squares.

    Raises UserError if a folder is wrong, or if the two sets have different classes.
    """
    read_folder: Any = Shards if config.dataset == "shards" else _class_folders
    root = Path(config.data_dir)
    train = root / "train" if (root / "train").is_dir() else root
    validation = Path(config.val_path) if config.val_path else root / "val"
    train_set = read_folder(train, training_transform(config), "--data-dir")
    validation_set = read_folder(validation, evaluation_transform(config), "--val-path")
    pairs = ((train_set, validation_set), (validation_set, train_set))
    if read_folder is _class_folders:
        for first, other in pairs:
            if missing := sorted(set(first.classes) - set(other.classes)):
                examples = ", ".join(missing[:3]) + ", ..." * (len(missing) > 3)
                what = f"classes that are only in {first.root}: {examples}"
                raise UserError(what, at=other.root, fix="the same class folders in both")
    return train_set, validation_set


def _class_folders(folder: Path, transform: Any, flag: str) -> Any:
    """Return the data set of a folder with a folder for each class; raises UserError if that is wrong."""
    datasets = import_torchvision("--dataset imagefolder").datasets
    try:
        return datasets.ImageFolder(str(folder), transform, loader=lambda path: _decode(path, at=path))
    except OSError as error:  # the folder is missing, or has no folders, or has a folder without images
        reason = str(error).partition(" Supported")[0].strip().rstrip(".")
        fix = f"{flag} DIR with one folder of images per class"
        raise UserError(f"not a folder of images ({reason})", at=str(folder), fix=fix) from error


class Shards:
    """A map-style data set of all tar files in a folder."""

    def __init__(self, folder: Path, transform: Any, flag: str) -> None:
        self._transform = transform
        self._places: list[tuple[Path, int, int]] = []  # by image: tar file, offset, bytes
        self.samples: list[tuple[str, int]] = []  # key and label, like torchvision's ImageFolder
        paths = sorted(folder.glob("*.tar"))
        if not paths:
            raise UserError("no .tar files", at=str(folder), fix=f"{flag} {SHARDS_FIX}")
        for path in paths:
            try:
                self._read_index(path)
            except (OSError, tarfile.TarError, ValueError) as error:
                what = f"cannot read it ({one_line(error)[:200]})"
                raise UserError(what, at=str(path), fix=SHARDS_FIX) from error
        self.classes = list(range(1 + max((label for _, label in self.samples), default=-1)))

    def _read_index(self, path: Path) -> None:
        """Note the places and labels of a tar file's images; raise ValueError for one without the other."""
        images: dict[str, tuple[int, int]] = {}
        labels: dict[str, int] = {}
        with tarfile.open(path, "r:") as archive:
            for member in archive:
                ending = member.name.rpartition("/")[2].partition(".")[2]
                key = member.name[: -len(ending) - 1]
                if member.isfile() and ending.lower() in ENDINGS:
                    images[key] = (member.offset_data, member.size)
                elif member.isfile() and ending == "cls" and (file := archive.extractfile(member)):
                    labels[key] = int(file.read(32))
        if wrong := sorted(images.keys() ^ labels.keys()):
            raise ValueError(f"{wrong[0]} has no {'label' if wrong[0] in images else 'image'}")
        self._places += [(path, *images[key]) for key in images]
        self.samples += [(f"{path.name}/{key}", labels[key]) for key in images]

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        """Return the transformed image, and its label."""
        path, offset, size = self._places[index]
        key, label = self.samples[index]
        data = io.BytesIO(os.pread(_open(path).fileno(), size, offset))
        return self._transform(_decode(data, f" {key}", at=str(path), fix="make the file again")), label


@functools.lru_cache(maxsize=64)
def _open(path: Path) -> Any:
    """Return an open tar file, which each loader process opens once."""
    return path.open("rb")


def training_transform(config: Config) -> Any:
    """Return the transform of --augment, which makes a training image of Pillow uint8 (3, side, side)."""
    v2 = import_torchvision(f"--dataset {config.dataset}", "torchvision.transforms.v2")
    if config.augment == "none":
        return evaluation_transform(config, config.train_crop)
    steps = [v2.RandomResizedCrop(config.train_crop, antialias=True), v2.RandomHorizontalFlip()]
    if config.augment in {"randaugment", "trivialaugment"}:
        policy = v2.RandAugment if config.augment == "randaugment" else v2.TrivialAugmentWide
        steps.append(policy(interpolation=v2.InterpolationMode.BILINEAR))
    steps.append(v2.PILToTensor())
    if config.random_erase:  # with the mean colour, which the norm makes 0
        steps.append(v2.RandomErasing(config.random_erase, value=[round(255 * mean) for mean in MEAN]))
    return v2.Compose(steps)


def evaluation_transform(config: Config, side: int = 0) -> Any:
    """Return the transform that resizes an image, and cuts out its middle square.

    `side` is the side of the square in pixels; 0 means the side of validation images.
    """
    v2 = import_torchvision(f"--dataset {config.dataset}", "torchvision.transforms.v2")
    side = side or config.eval_crop or config.train_crop
    return v2.Compose(
        [v2.Resize(shorter_side(config, side), antialias=True), v2.CenterCrop(side), v2.PILToTensor()]
    )


def shorter_side(config: Config, side: int) -> int:
    """Return the shorter side in pixels to which images are resized, before a square of `side` is cut out."""
    return config.eval_resize or side * 8 // 7


def _decode(file: Any, key: str = "", *, at: str, fix: str = "replace the file, or remove it") -> Any:
    """Return the image in a path or an open file, decoded by Pillow like torchvision's own reader.

    Raises UserError if the image cannot be read.
    """
    from PIL import Image

    try:
        with Image.open(file) as image:
            return image.convert("RGB")
    except Exception as error:  # Pillow raises many types for a damaged file
        raise UserError(f"cannot read the image{key} ({one_line(error)[:200]})", at=at, fix=fix) from error
