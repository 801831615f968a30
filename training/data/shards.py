"""Images in tar files, as WebDataset lays them out: KEY.jpg and KEY.cls, the label as a number.

https://github.com/webdataset/webdataset, "The WebDataset Format". The files are read by index, not as
a stream: an epoch is the same permutation as of single files, and resumes at the sample.
"""

from __future__ import annotations

import functools
import io
import os
import tarfile
from pathlib import Path
from typing import Any

from training.config import Config
from training.data.images import decode, import_torchvision, read_both
from training.errors import UserError, one_line

IMAGES = ("jpg", "jpeg", "png", "webp")
FORMAT = "DIR with files such as 000.tar, which have KEY.jpg and KEY.cls"


def shards(config: Config) -> tuple[Shards, Shards]:
    """Training and validation images in tar files."""
    import_torchvision("--dataset shards")
    return read_both(config, Shards)


class Shards:
    """A map-style data set of all tar files in a folder."""

    def __init__(self, folder: Path, transform: Any, flag: str) -> None:
        self._transform = transform
        self._places: list[tuple[Path, int, int]] = []  # file, first byte, bytes
        self.samples: list[tuple[str, int]] = []  # key and label, as torchvision's folders have them
        paths = sorted(folder.glob("*.tar"))
        if not paths:
            raise UserError("no .tar files", at=str(folder), fix=f"{flag} {FORMAT}")
        for path in paths:
            try:
                self._read_index(path)
            except (OSError, tarfile.TarError, ValueError) as error:
                what = f"cannot read it ({one_line(error)[:200]})"
                raise UserError(what, at=str(path), fix=FORMAT) from error
        self.classes = list(range(1 + max((label for _, label in self.samples), default=-1)))

    def _read_index(self, path: Path) -> None:
        """Note where the images of a tar file are; ValueError for one without a label."""
        images: dict[str, tuple[int, int]] = {}
        labels: dict[str, int] = {}
        with tarfile.open(path, "r:") as archive:
            for member in archive:
                ending = member.name.rpartition("/")[2].partition(".")[2]
                key = member.name[: -len(ending) - 1]
                if member.isfile() and ending.lower() in IMAGES:
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
        """An image as the transform gives it, and its label."""
        path, first, size = self._places[index]
        key, label = self.samples[index]
        data = io.BytesIO(os.pread(_open(path).fileno(), size, first))
        image = decode(data, f"the image {key}", at=str(path), fix="make the file again")
        return self._transform(image), label


@functools.lru_cache(maxsize=64)
def _open(path: Path) -> Any:
    """A tar file, opened once in each loader."""
    return path.open("rb")
