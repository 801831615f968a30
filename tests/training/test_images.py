"""Images that are not held in memory: loaders, what a run on them gives, and files that cannot be read."""

from __future__ import annotations

import contextlib
import importlib
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch.nn import functional

from training.data.images import import_torchvision
from training.data.own_module import import_function
from training.data.splits import FromLoaders, Keyed, Norm, move_to_device
from training.errors import UserError

from .states import equal, everything
from .trainers import (
    HANGS_S,
    ROOT,
    SLOW,
    Here,
    Trainers,
    alive,
    events,
    finish,
    quickly,
    status,
    wait_for,
)

CLASSES = ("ant", "bee", "cow")
TRAIN, VALIDATION = 9, 5

OWN = """
    import os
    from pathlib import Path

    import torch
    from torch import nn

    HERE = Path(__file__).parent

    class Images(torch.utils.data.Dataset):
        classes = ("dark", "light")

        def __init__(self, count, sample):
            self.count, self.sample = count, sample

        def __len__(self):
            return self.count

        def __getitem__(self, index):
            with (HERE / "readers").open("a") as file:
                file.write(f"{os.getpid()} ")
            return self.sample(index)

    def good(index):
        return torch.rand(3, 8, 8), index % 2

    def label(index):
        return torch.rand(3, 8, 8), 2 if index == 5 else index % 2

    def shape(index):
        return torch.rand(3, 8, 9 if index == 5 else 8), index % 2

    def lost(index):
        if index == 5:
            raise FileNotFoundError(2, "No such file or directory", "/data/5.npy")
        return good(index)

    def no_tensor(index):
        return [1, 2], 0

    def flat(index):
        return torch.rand(8, 8), 0

    def parts(config):
        return Images(16, good), Images(6, good)

    def wrong(name, count=16):
        return lambda config: (Images(count, globals()[name]), Images(6, good))

    wrong_label, wrong_shape, wrong_file = wrong("label"), wrong("shape"), wrong("lost")
    wrong_kind, wrong_flat, none = wrong("no_tensor"), wrong("flat"), wrong("good", 0)

    def no_validation(config):
        return Images(16, good), Images(0, good)

    def wrong_validation(config):
        return Images(16, good), Images(6, label)

    def wrong_validation_file(config):
        return Images(16, good), Images(6, lost)

    def held(train=((8, 3, 8, 8), torch.arange(8) % 2), validation=((4, 3, 8, 8), torch.arange(4) % 2)):
        pairs = [(torch.zeros(shape, dtype=torch.uint8), labels) for shape, labels in (train, validation)]
        return lambda config: tuple(pairs)

    held_negative = held(train=((2, 3, 8, 8), torch.tensor([0, -1])))
    held_floats = held(train=((2, 3, 8, 8), torch.tensor([0.5, 1.0])))
    held_none = held(validation=((0, 3, 8, 8), torch.zeros(0, dtype=torch.int64)))
    held_uneven = held(train=((8, 3, 8, 8), torch.arange(7) % 2))
    held_other = held(validation=((4, 3, 9, 8), torch.arange(4) % 2))
    held_good = held()

    def model(config, outputs=3):
        return nn.Sequential(nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(48, outputs))

    def narrow(config):
        return model(config, 1)

    def pairs(config):
        return nn.Bilinear(1, 1, 1)

    def normed(config):
        return nn.Sequential(nn.Flatten(), nn.BatchNorm1d(192), nn.Linear(192, 3))

    class Several(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = model(None)

        def forward(self, x):
            return self.inner(x), None

    def several(config):
        return Several()
"""
MODEL = "mobilenet_v3_small"  # with batch norms and dropout, and of all the quickest
TINY = ("--model", "images_own:model", "--batch-size", "8", "--optimizer", "sgd")


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small JPEGs, a colour a class: train/CLASS/N.jpg and val/CLASS/N.jpg."""
    root = tmp_path_factory.mktemp("photos")
    generator = torch.Generator().manual_seed(4)
    for part, count in (("train", TRAIN), ("val", VALIDATION)):
        for i in range(count):
            folder = root / part / CLASSES[i % 3]
            folder.mkdir(parents=True, exist_ok=True)
            pixels = torch.randint(60, (3 * 40 * 50,), generator=generator)
            pixels[i % 3 :: 3] += 150
            Image.frombytes("RGB", (50, 40), bytes(pixels.tolist())).save(folder / f"{i}.jpg")
    return root


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with data sets and models of one's own, and what a process needs to import them."""
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / "images_own.py").write_text(textwrap.dedent(OWN))
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("PYTHONPATH", str(folder))
    return folder


def damaged(photos: Path, tmp_path: Path) -> Path:
    """A copy to spoil."""
    return Path(shutil.copytree(photos, tmp_path / "photos"))


def one_error(err: str) -> str:
    """The only line."""
    lines = err.strip().splitlines()
    assert len(lines) == 1, err
    assert lines[0].startswith("error: ")
    return lines[0]


@pytest.mark.proof
def test_a_model_of_torchvision_goes_on_exactly_with_loaders_and_its_evaluation_is_right(
    here: Here, trainers: Trainers, photos: Path, own: Path, tmp_path: Path
) -> None:
    """In two processes: the last step of an epoch has one image, the last batch of the validation is uneven."""
    folders = ("--data-dir", str(photos / "train"), "--val-path", str(photos / "val"))
    model_and_data = ("--dataset", "imagefolder", "--model", MODEL, *folders)
    flags = (*model_and_data, "--batch-size", "4", "--epochs", "2", "--optimizer", "sgd", "--lr", "0.01")
    often = ("--workers", "0", "--save-every", "2", "--keep", "9")
    whole = trainers.run_ranks(2, tmp_path / "whole", *flags, *often)
    half = str(tmp_path / "whole" / "checkpoints" / "step-00000002.pt")
    rest = trainers.run_ranks(2, tmp_path / "rest", *flags, "--workers", "2", "--resume", half)
    score = here(tmp_path / "whole", *flags, "--workers", "0", "--evaluate")

    assert [whole.code, rest.code, score.code] == [0, 0, 0], whole.err + rest.err + score.err
    assert everything(tmp_path / "rest")["step"] == 6
    assert equal(everything(tmp_path / "rest"), everything(tmp_path / "whole"))
    epoch = events(tmp_path / "whole", "epoch")[-1]
    model = import_torchvision("").models.get_model(MODEL, num_classes=3).eval()
    model.load_state_dict(everything(tmp_path / "whole")["model"])
    x_BCHW, y_B = validation_images(photos / "val")
    with torch.no_grad():
        logits_BK = model(x_BCHW)
    loss = functional.cross_entropy(logits_BK, y_B).item()
    assert epoch["samples"] == VALIDATION
    assert epoch["loss"] == pytest.approx(loss, rel=1e-4)
    assert epoch["accuracy"] == pytest.approx((logits_BK.argmax(1) == y_B).float().mean().item())
    assert f"Avg Loss: {epoch['loss']:.4f}" in score.out.replace(f"{loss:.6f}", f"{loss:.4f}")


def validation_images(folder: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """As torchvision's reference evaluates: resized to 256, the middle 224, normalised."""
    transforms = import_torchvision("").transforms
    steps = transforms.Compose(
        [
            transforms.Resize(256),
            transforms.CenterCrop(224),
            transforms.ToTensor(),
            transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
        ]
    )
    images, labels = [], []
    for label, name in enumerate(CLASSES):
        for path in (folder / name).iterdir():
            images.append(steps(Image.open(path)))
            labels.append(label)
    return torch.stack(images), torch.tensor(labels)


def test_loaders_live_as_long_as_the_run(trainers: Trainers, own: Path, tmp_path: Path) -> None:
    """Two for the training, and one that has the only batch of the validation, however many epochs."""
    flags = ("--dataset", "images_own:parts", *TINY, "--workers", "2", "--epochs", "3", "--eval-batch", "99")
    ended = trainers.run(tmp_path / "run", *flags)
    readers = set((own / "readers").read_text().split())

    assert ended.code == 0, ended.err
    assert ended.err == ""
    assert len(readers) == 4  # the run itself looks at the first image
    assert not any(alive(int(pid)) for pid in readers)


def test_loaders_end_with_a_killed_run(trainers: Trainers, own: Path, tmp_path: Path) -> None:
    flags = ("--dataset", "images_own:parts", *TINY, "--workers", "2", "--epochs", "9", *SLOW)
    process = trainers.start(tmp_path / "run", *flags)
    wait_for(lambda: events(tmp_path / "run", "epoch"), "epoch")
    readers = set((own / "readers").read_text().split())
    process.kill()
    process.wait()
    wait_for(lambda: not any(alive(int(pid)) for pid in readers), "end of the loaders")

    assert len(readers) == 4


def test_a_loader_that_is_killed_is_one_line(trainers: Trainers, own: Path, tmp_path: Path) -> None:
    flags = ("--dataset", "images_own:parts", *TINY, "--workers", "1", "--epochs", "99", *SLOW)
    process = trainers.start(tmp_path / "run", *flags)
    wait_for(lambda: events(tmp_path / "run", "epoch"), "epoch")
    reader = next(pid for pid in (own / "readers").read_text().split() if pid != str(process.pid))
    os.kill(int(reader), signal.SIGKILL)
    ended = finish(process)

    assert ended.code == 1
    assert "DataLoader worker" in one_error(ended.err)
    assert "fix: more memory for the job, or fewer --workers" in ended.err


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:200])


def replace_by_text(path: Path) -> None:
    path.write_text("<html>404</html>")


def replace_by_nowhere(path: Path) -> None:
    path.unlink()
    path.symlink_to("nowhere.jpg")


@pytest.mark.parametrize("spoil", [truncate, replace_by_text, replace_by_nowhere])
@pytest.mark.parametrize("part", ["train", "val"])
def test_a_file_that_is_no_image_is_named(
    here: Here, photos: Path, own: Path, tmp_path: Path, spoil: Callable[[Path], None], part: str
) -> None:
    path = damaged(photos, tmp_path) / part / "cow" / "2.jpg"
    spoil(path)
    flags = ("--dataset", "imagefolder", *TINY, "--data-dir", str(tmp_path / "photos"), "--workers", "0")
    error = one_error(here(tmp_path / "run", *flags, "--batch-size", "2", "--save-every", "2").err)

    assert "cannot read the image (" in error
    assert f"at: {path}; fix: replace the file, or remove it" in error
    assert status(tmp_path / "run")["state"] == "failed"
    assert status(tmp_path / "run")["reason"] == error.removeprefix("error: ")
    for file in (tmp_path / "run").glob("checkpoints/*"):  # nothing of the stand-ins
        assert part == "val" or torch.load(file, weights_only=True)["step"] < first_with(path)


def first_with(path: Path) -> int:
    """The step of epoch 1 that reads the image; the first is 1."""
    from training.data.order import epoch_order

    files = sorted(str(image) for image in path.parents[1].rglob("*.jpg"))
    return epoch_order(TRAIN, seed=1, epoch=0).tolist().index(files.index(str(path))) // 2 + 1


@pytest.mark.sampled(2)
@pytest.mark.parametrize("data", ["wrong_file", "wrong_validation_file"])
def test_a_sample_that_one_process_cannot_read_ends_all_in_one_line(
    trainers: Trainers, own: Path, tmp_path: Path, data: str
) -> None:
    ended = trainers.run_ranks(
        2, tmp_path / "run", "--dataset", f"images_own:{data}", *TINY, "--workers", "1"
    )

    assert ended.code == 1
    assert " of 2 on " in one_error(ended.err)
    assert ": cannot read sample 5 (" in one_error(ended.err)
    assert "/data/5.npy" in ended.err
    assert status(tmp_path / "run")["state"] == "failed"


def empty_class(root: Path) -> None:
    (root / "train" / "elk").mkdir()


def no_classes(root: Path) -> None:
    shutil.rmtree(root / "train")
    (root / "train").mkdir()


def no_training_folder(root: Path) -> None:
    shutil.rmtree(root)


def no_validation_folder(root: Path) -> None:
    shutil.rmtree(root / "val")


def fewer_classes(root: Path) -> None:
    shutil.rmtree(root / "val" / "bee")


def other_classes(root: Path) -> None:
    (root / "val" / "bee").rename(root / "val" / "fly")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (empty_class, "Found no valid file for the classes elk); at: {}/train; fix: --data-dir DIR"),
        (no_classes, "Couldn't find any class folder in {}/train); at: {}/train; fix: --data-dir DIR"),
        (no_training_folder, "No such file or directory: '{}'); at: {}; fix: --data-dir DIR with"),
        (
            no_validation_folder,
            "'{}/val'); at: {}/val; fix: --val-path DIR with one folder of images per class",
        ),
        (fewer_classes, "classes that are only in {}/train: bee; at: {}/val; fix: the same class folders"),
        (other_classes, "classes that are only in {}/train: bee; at: {}/val"),
    ],
)
def test_folders_that_are_wrong(
    here: Here, photos: Path, own: Path, tmp_path: Path, spoil: Callable[[Path], None], message: str
) -> None:
    root = damaged(photos, tmp_path)
    spoil(root)
    ended = here(tmp_path / "run", "--dataset", "imagefolder", *TINY, "--data-dir", str(root))

    assert ended.code == 1
    assert message.replace("{}", str(root)) in one_error(ended.err)


@pytest.mark.parametrize(
    ("data", "model", "message"),
    [
        (
            "wrong_label",
            "model",
            "the label of sample 5 is 2, but there are 2 classes; fix: labels from 0 on",
        ),
        ("wrong_validation", "model", "the label of sample 5 is 2, but there are 2 classes"),
        ("wrong_shape", "model", "sample 5 has the shape (3, 8, 9), the first one (3, 8, 8); fix: make all"),
        ("wrong_file", "model", "cannot read sample 5 (FileNotFoundError: [Errno 2] No such file"),
        ("wrong_kind", "model", "the first image is not a tensor (C, H, W), but list"),
        ("wrong_flat", "model", "the first image is not a tensor (C, H, W), but (8, 8)"),
        ("none", "model", "there are no training images"),
        ("no_validation", "model", "there are no validation images"),
        ("held_negative", "model", "the labels of the training images are torch.int64, from -1 on"),
        ("held_floats", "model", "the labels of the training images are torch.float32, from 0.5 on"),
        ("held_none", "model", "there are no validation images"),
        ("held_uneven", "model", "the training images have the shape (8, 3, 8, 8), with 7 labels"),
        ("held_other", "model", "the validation images have the shape (4, 3, 9, 8), with 4 labels"),
        (
            "parts",
            "narrow",
            "--model images_own:narrow gives (2, 1) for 2 images of 2 classes; fix: a model that",
        ),
        ("held_good", "narrow", "gives (2, 1) for 2 images of 2 classes"),
        ("parts", "several", "--model images_own:several gives tuple for 2 images"),
        ("parts", "convnet", "cannot take 2 images of 3x8x8"),
    ],
)
def test_own_data_sets_and_models_that_are_wrong(
    here: Here, own: Path, tmp_path: Path, data: str, model: str, message: str
) -> None:
    named = f"images_own:{model}"
    if model == "convnet":  # of torchvision, which takes 28x28 and more
        named = "alexnet"
    flags = ("--dataset", f"images_own:{data}", *TINY, "--model", named, "--workers", "0")
    ended = here(tmp_path / "run", *flags)

    assert ended.code == 1
    assert message in one_error(ended.err)


def test_one_image_where_a_norm_wants_two_is_seen_at_the_start(here: Here, own: Path, tmp_path: Path) -> None:
    """16 images in batches of 5: the last is alone. An evaluation does not mind."""
    flags = ("--dataset", "images_own:parts", "--model", "images_own:normed", "--workers", "0")
    refused = here(tmp_path / "run", *flags, "--batch-size", "5")
    done = here(tmp_path / "run", *flags, "--batch-size", "6")
    evaluated = here(tmp_path / "run", *flags, "--batch-size", "5", "--evaluate")

    assert [refused.code, done.code, evaluated.code] == [1, 0, 0], done.err + evaluated.err
    assert "fix: another --batch-size: the last step of an epoch has one image per process" in one_error(
        refused.err
    )


def test_images_that_are_too_small_for_convnet(
    here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "small_own.py").write_text(
        "import torch\n\ndef data(config):\n"
        "    return ((torch.zeros(4, 1, 5, 9), torch.arange(4) % 2),) * 2\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    error = one_error(here(tmp_path / "run", "--dataset", "small_own:data").err)

    assert "--model convnet needs images of 6x6 or larger, these are 5x9; fix: another --model" in error


def test_what_own_data_calls_random_depends_on_the_sample_and_the_epoch_alone() -> None:
    """Whichever of the three libraries it asks, and whatever was read before."""
    keyed = Keyed(dataset=Random(), seed=3, classes=1, shape_CHW=(3, 1, 1))
    split = FromLoaders(keyed, norm=Norm(), device=torch.device("cpu"), workers=0)

    def read(lists: list[list[int]], epoch: int) -> torch.Tensor:
        batches = split.batches([torch.tensor(indices, dtype=torch.int64) for indices in lists], epoch=epoch)
        return torch.cat([x_BCHW.flatten(1) for x_BCHW, _ in batches if len(x_BCHW)])

    whole = read([[0, 1, 2, 3]], 1)
    assert torch.equal(read([[3], [], [1, 2]], 1), whole[[3, 1, 2]])
    other = read([[0, 1, 2, 3]], 2)
    assert (whole != other).all()
    assert len(set(whole.flatten().tolist() + other.flatten().tolist())) == 24


class Random(torch.utils.data.Dataset[Any]):
    """A number of each library that has any."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        import random

        import numpy as np

        numbers = [random.random(), float(np.random.rand()), torch.rand(()).item()]  # noqa: NPY002, S311
        return torch.tensor(numbers).view(3, 1, 1), 0


class Recorder:
    """Stands for the GPU: notes what is asked of it, in which order."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.current = "computing"

    def stream(self, name: str) -> FakeStream:
        return FakeStream(self, name)


class FakeStream:
    def __init__(self, recorder: Recorder, name: str) -> None:
        self.recorder, self.name = recorder, name

    def wait_stream(self, other: FakeStream) -> None:
        self.recorder.calls.append(f"{self.name} waits for {other.name}")


class FakePart:
    """A tensor on the host."""

    def __init__(self, recorder: Recorder, name: str) -> None:
        self.recorder, self.name = recorder, name

    def to(self, device: torch.device, *, non_blocking: bool) -> FakePart:
        assert device.type == "cuda"
        assert non_blocking
        self.recorder.calls.append(f"{self.recorder.current} copies {self.name}")
        return self

    def record_stream(self, stream: FakeStream) -> None:
        self.recorder.calls.append(f"{self.name} is used by {stream.name}")


def test_the_next_batch_is_copied_while_this_one_is_computed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """The order of what is asked of the GPU, not the GPU: none is needed here."""
    recorder = Recorder()

    @contextlib.contextmanager
    def within(stream: FakeStream) -> Iterator[None]:
        recorder.current = stream.name
        yield
        recorder.current = "computing"

    monkeypatch.setattr(torch.cuda, "Stream", lambda _device: recorder.stream("copying"))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _device: recorder.stream("computing"))
    monkeypatch.setattr(torch.cuda, "stream", within)
    batches: Any = ((FakePart(recorder, f"x{i}"), FakePart(recorder, f"y{i}")) for i in range(3))
    for x, _ in move_to_device(batches, torch.device("cuda")):
        recorder.calls.append(f"step with {x.name}")  # type: ignore[attr-defined]

    waited = "computing waits for copying"
    assert recorder.calls == [
        *("copying copies x0", "copying copies y0"),
        *(waited, "x0 is used by computing", "y0 is used by computing"),
        *("copying copies x1", "copying copies y1", "step with x0"),
        *(waited, "x1 is used by computing", "y1 is used by computing"),
        *("copying copies x2", "copying copies y2", "step with x1"),
        *(waited, "x2 is used by computing", "y2 is used by computing", "step with x2"),
    ]


@pytest.mark.parametrize(
    ("error", "cuda", "message"),
    [
        (
            ImportError("No module named 'torchvision'"),
            None,
            "needs torchvision (ImportError: No module named",
        ),
        (
            RuntimeError("operator torchvision::nms does not exist"),
            None,
            "torch is for CPUs, torchvision for GPUs",
        ),
        (
            RuntimeError("operator torchvision::nms does not exist"),
            "12.6",
            "they do not match (RuntimeError: operator",
        ),
        (
            RuntimeError("operator torchvision::nms does not exist"),
            "hip 6.4",
            "they do not match (RuntimeError: operator",
        ),
    ],
)
def test_a_torchvision_that_cannot_be_imported(
    monkeypatch: pytest.MonkeyPatch, error: Exception, cuda: str | None, message: str
) -> None:
    def fail(_name: str) -> Any:
        raise error

    monkeypatch.setattr(importlib, "import_module", fail)
    monkeypatch.setattr(torch.version, "cuda", None if cuda and cuda.startswith("hip") else cuda)
    monkeypatch.setattr(torch.version, "hip", cuda if cuda and cuda.startswith("hip") else None)
    with pytest.raises(UserError) as raised:
        import_torchvision("--model resnet18")

    assert message in str(raised.value)
    assert str(torch.__version__) in str(raised.value)
    assert "fix: install" in str(raised.value)


@pytest.mark.proof
def test_a_program_that_read_with_loaders_ends(tmp_path: Path) -> None:
    """Python's exit sends its children a SIGTERM, which loaders leave to their parent, and waits for them."""
    program = """
        import torch
        from training.data.splits import FromLoaders, Keyed, Norm

        class Blank:
            def __len__(self):
                return 8

            def __getitem__(self, index):
                return torch.zeros(1, 4, 4), 0

        keyed = Keyed(dataset=Blank(), seed=1, classes=2, shape_CHW=(1, 4, 4))
        split = FromLoaders(keyed, norm=Norm(), device=torch.device("cpu"), workers=2)
        print(sum(len(y_B) for _, y_B in split.batches([torch.arange(8)], epoch=0)))
    """
    command, env = [sys.executable, "-c", textwrap.dedent(program)], quickly({**os.environ})
    done = subprocess.run(
        command, cwd=ROOT, env=env, capture_output=True, text=True, check=True, timeout=HANGS_S
    )
    assert done.stdout == "8\n"


@pytest.mark.parametrize(
    ("name", "fix"), [("textwrap:no", "name a function of that module"), ("gone:data", "put its folder on")]
)
def test_a_function_that_is_not_there_is_told_apart_from_its_module(name: str, fix: str) -> None:
    with pytest.raises(UserError, match=fix):
        import_function(name, "--dataset")
