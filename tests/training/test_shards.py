"""Images in tar files: the same training as with single files, and what is refused."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest
import torch
from PIL import Image

from . import vision
from .states import equal, weights
from .trainers import Here

vision.fit()
FLAGS = (
    *("--model", "mobilenet_v3_small", "--batch-size", "4", "--optimizer", "sgd", "--workers", "0"),
    *("--train-crop", "32", "--epochs"),
)


def images(folder: Path) -> None:
    """Two classes with 5 training images each, and 2 for the validation."""
    for part, count in (("train", 5), ("val", 2)):
        for label in range(2):
            (folder / part / str(label)).mkdir(parents=True)
            for index in range(count):
                pixels = torch.randint(
                    256, (36, 40, 3), dtype=torch.uint8, generator=torch.manual_seed(index)
                )
                Image.fromarray(pixels.numpy()).save(folder / part / str(label) / f"{index}.png")


def add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    archive.addfile(member, io.BytesIO(data))


def pack(folder: Path, to: Path) -> None:
    """The same images in the same order, in a tar file for each class."""
    for part in ("train", "val"):
        (to / part).mkdir(parents=True)
        for label in range(2):
            with tarfile.open(to / part / f"{label}.tar", "w") as archive:
                for path in sorted((folder / part / str(label)).iterdir()):
                    add(archive, f"./v1.0/{path.stem}.cls", str(label).encode())
                    add(archive, f"./v1.0/{path.stem}.png", path.read_bytes())


@pytest.mark.proof
def test_a_training_is_that_of_single_files_and_resumes_exactly(here: Here, tmp_path: Path) -> None:
    images(tmp_path / "files")
    pack(tmp_path / "files", tmp_path / "shards")
    for run, dataset, epochs in (
        ("files", "imagefolder", 2),
        ("shards", "shards", 1),
        ("shards", "shards", 2),
    ):
        data = ("--dataset", dataset, "--data-dir", str(tmp_path / dataset.replace("imagefolder", "files")))
        ended = here(tmp_path / f"run-{run}", *data, *FLAGS, str(epochs))
        assert ended.code == 0, ended.err
    assert equal(weights(tmp_path / "run-files"), weights(tmp_path / "run-shards"))


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"a.png": b""}, "a has no label"),
        ({"a.cls": b"0"}, "a has no image"),
        ({"a.png": b"", "a.cls": b"cat"}, "cannot read it (ValueError: invalid literal"),
        ({"a.png": b"no image", "a.cls": b"0"}, "cannot read the image 0.tar/a"),
        (None, "no .tar files"),
    ],
)
def test_wrong_shards_are_named(
    here: Here, tmp_path: Path, members: dict[str, bytes] | None, message: str
) -> None:
    for part in ("train", "val"):
        (tmp_path / part).mkdir()
        if members is not None:
            with tarfile.open(tmp_path / part / "0.tar", "w") as archive:
                for name, data in members.items():
                    add(archive, name, data)
    ended = here(tmp_path / "run", "--dataset", "shards", "--data-dir", str(tmp_path), *FLAGS, "1")
    assert ended.code == 1
    assert message in ended.err
    assert str(tmp_path / "train") in ended.err
