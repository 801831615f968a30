"""Weights in and out: what the tutorials' code saves is taken, and what a run leaves is taken by their code."""

from __future__ import annotations

import contextlib
import copy
import io
import json
import os
import re
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DataParallel

from sbatchgen.lab.prepare import digits
from training.config import parse
from training.data.arrays import read_mnist
from training.data.datasets import load_data
from training.model import precision
from training.model.models import build_model, load_weights
from training.run.export import check_export
from training.saving import checkpoint

from .states import equal, everything
from .trainers import ROOT, Here, Trainers, events, status

CLASSES = 12
WITHOUT_BF16 = (
    "Warning: this processor has neither amx_bf16 nor avx512_bf16: --precision bf16 is slower than fp32 on it"
)


class Net(nn.Module):
    """The network of pytorch/examples/mnist, by its layers' names; all five tutorials on MNIST have it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 32, 3), nn.Conv2d(32, 64, 3)
        self.dropout1, self.dropout2 = nn.Dropout(0.25), nn.Dropout(0.5)
        self.fc1, self.fc2 = nn.Linear(9216, 128), nn.Linear(128, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.relu(self.conv2(functional.relu(self.conv1(x))))
        x = self.dropout1(functional.max_pool2d(x, 2)).flatten(1)
        x = self.dropout2(functional.relu(self.fc1(x)))
        return functional.log_softmax(self.fc2(x), dim=1)


@pytest.fixture(scope="module")
def digits_28(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Digits of the size that their network takes."""
    folder = tmp_path_factory.mktemp("digits")
    digits.write(folder, train=50, test=101, seed=3)
    return folder


def digits_test(folder: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """The test images as the tutorials' transforms make them, and the labels."""
    images, labels = read_mnist(folder, "test")
    return (images.float() / 255 - 0.1307) / 0.3081, labels.long()


def score(model: nn.Module, folder: Path) -> tuple[float, float]:
    """Loss and accuracy as the tutorials' test functions count them."""
    x_BCHW, y_B = digits_test(folder)
    with torch.no_grad():
        log_p = model.eval()(x_BCHW)
    return functional.nll_loss(log_p, y_B).item(), (log_p.argmax(1) == y_B).float().mean().item()


@pytest.mark.proof
def test_their_net_takes_what_a_run_leaves(here: Here, digits_28: Path, tmp_path: Path) -> None:
    ended = here(tmp_path, "--data-dir", str(digits_28))
    net = Net()
    net.load_state_dict(torch.load(tmp_path / "model.pt"))
    (epoch,) = events(tmp_path, "epoch")

    assert f"Weights saved to {tmp_path / 'model.pt'}" in ended.out
    assert score(net, digits_28) == pytest.approx((epoch["loss"], epoch["accuracy"]), rel=1e-5)


FORMS: dict[str, Any] = {
    "state_dict alone": lambda model: model.state_dict(),
    "model_state_dict and more": lambda model: {
        "epoch": 3,
        "model_state_dict": DataParallel(model).state_dict(),  # names with "module.", as of DDP
        "optimizer_state_dict": torch.optim.Adadelta(model.parameters()).state_dict(),
        "best_accuracy": 97.5,
    },
    "state_dict and a scheduler": lambda model: {
        "epoch": 3,
        "arch": "net",
        "state_dict": DataParallel(model).state_dict(),
        "best_acc1": torch.tensor(97.5),
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1).state_dict(),
        "scheduler": torch.optim.lr_scheduler.StepLR(
            torch.optim.SGD(model.parameters(), lr=0.1), step_size=30
        ).state_dict(),
    },
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("form", FORMS)
def test_what_their_code_saves_is_taken(here: Here, digits_28: Path, tmp_path: Path, form: str) -> None:
    torch.manual_seed(5)
    net = Net()
    torch.save(FORMS[form](net), tmp_path / "theirs.pt")
    flags = ("--evaluate", "--init-from", str(tmp_path / "theirs.pt"), "--export", str(tmp_path / "back.pt"))
    ended = here(tmp_path / "run", *flags, "--data-dir", str(digits_28))
    loss, accuracy = score(net, digits_28)
    back = torch.load(tmp_path / "back.pt")

    assert f" - Avg Loss: {loss:.6f}, Accuracy: {100 * accuracy:.2f}% " in ended.out
    assert back.keys() == net.state_dict().keys()
    assert all(torch.equal(value, back[name]) for name, value in net.state_dict().items())
    assert not (tmp_path / "run").exists()


def test_a_checkpoint_of_theirs_is_no_state_to_resume(here: Here, digits_28: Path, tmp_path: Path) -> None:
    theirs, data = tmp_path / "checkpoint_epoch_10.pt", ("--data-dir", str(digits_28))
    torch.save({"epoch": 10, "model_state_dict": Net().state_dict()}, theirs)
    ended = here(tmp_path / "run", *data, "--resume", str(theirs))

    assert ended.code == 1
    assert "it holds no training state" in ended.err
    assert f"weights of another trainer: --init-from {theirs}" in ended.err
    assert here(tmp_path / "run", *data, "--init-from", str(theirs)).code == 0


@pytest.mark.proof
def test_a_resnet_of_torchvision_goes_there_and_back(here: Here, tmp_path: Path) -> None:
    """Torchvision's own model takes the export of a run, and a run takes a whole checkpoint of it."""
    from torchvision.models import (  # type: ignore[import-not-found,import-untyped,unused-ignore]
        resnet18,
    )

    for number in range(CLASSES):
        for part in ("train", "val"):
            place = tmp_path / "images" / part / f"c{number:02}"
            place.mkdir(parents=True)
            Image.new("RGB", (24, 24), (20 * number, 255 - 20 * number, 99)).save(place / "0.png")
    flags: tuple[str, ...] = (
        "--dataset",
        "imagefolder",
        "--data-dir",
        str(tmp_path / "images"),
        "--workers",
        "0",
    )
    flags = (*flags, "--model", "resnet18", "--optimizer", "sgd", "--lr", "0.1")
    assert here(tmp_path / "run", *flags).code == 0
    model = resnet18(num_classes=CLASSES)
    model.load_state_dict(torch.load(tmp_path / "run/model.pt"))
    assert _accuracy_of_the_example(tmp_path) == events(tmp_path / "run", "epoch")[-1]["accuracy"]
    state = {"arch": "resnet18", "state_dict": DataParallel(model).state_dict(), "best_acc1": 1.0}
    torch.save(state, tmp_path / "model_best.pth.tar")
    ended = here(
        tmp_path / "again", *flags, "--evaluate", "--init-from", str(tmp_path / "model_best.pth.tar")
    )
    (epoch,) = events(tmp_path / "run", "epoch")

    said = (
        f"Avg Loss: {epoch['loss']:.6f}, Accuracy: {100 * epoch['accuracy']:.2f}%, "
        f"Top-5: {100 * epoch['top5']:.2f}%"
    )
    assert said in ended.out


def test_each_epoch_is_kept_by_its_name(here: Here, tmp_path: Path) -> None:
    assert here(tmp_path, "--epochs", "3", "--keep", "1", "--keep-epochs").code == 0
    folder = tmp_path / "checkpoints"
    names = {path.name for path in folder.iterdir()}

    assert names == {
        "best.pt",
        "step-00000024.pt",
        *(f"checkpoint_epoch_{epoch}.pt" for epoch in (1, 2, 3)),
    }
    kept = [torch.load(folder / f"checkpoint_epoch_{epoch}.pt") for epoch in (1, 2, 3)]
    assert [(state["epoch"], state["step"]) for state in kept] == [(1, 8), (2, 16), (3, 24)]
    assert (folder / "checkpoint_epoch_3.pt").samefile(folder / "step-00000024.pt")

    whole = everything(tmp_path)
    ended = here(tmp_path, "--epochs", "3", "--resume", "checkpoint_epoch_2.pt")
    assert "Resuming from checkpoints/checkpoint_epoch_2.pt: epoch 3, step 16" in ended.out
    assert equal(everything(tmp_path), whole)


def test_without_the_flag_no_epoch_has_a_name(here: Here, tmp_path: Path) -> None:
    assert here(tmp_path, "--save-every", "3").code == 0
    names = {path.name for path in (tmp_path / "checkpoints").iterdir()}
    assert names == {"best.pt", "step-00000003.pt", "step-00000006.pt", "step-00000008.pt"}


def test_the_running_mean_is_what_is_exported(here: Here, tmp_path: Path) -> None:
    assert here(tmp_path, "--ema", "0.9").code == 0
    exported, state = torch.load(tmp_path / "model.pt"), everything(tmp_path)

    assert equal(exported, state["model"] | state["ema"])
    assert not equal(exported, state["model"])


def test_the_export_is_on_the_cpu_and_laid_out_plainly(here: Here, tmp_path: Path) -> None:
    assert here(tmp_path, "--channels-last").code == 0
    exported = torch.load(tmp_path / "model.pt")
    assert {(value.device.type, value.is_contiguous()) for value in exported.values()} == {("cpu", True)}


@pytest.mark.parametrize(
    ("flags", "there"),
    [
        (("--export", "off"), set()),
        (("--export", "mnist_cnn.pt"), {"run/mnist_cnn.pt"}),
        (("--export", "new/mnist_cnn.pt"), {"new/mnist_cnn.pt"}),
    ],
)
def test_where_the_export_goes(
    here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...], there: set[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert here(Path("run"), *flags).code == 0
    names = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.pt")}
    assert {path for path in names if "checkpoints" not in path} == there


@pytest.mark.parametrize("export", ["file/model.pt", "folder", f"{'long' * 60}.pt"])
def test_an_export_that_cannot_be_written_is_told_before_the_training(
    here: Here, tmp_path: Path, export: str
) -> None:
    (tmp_path / "file").write_text("no folder")
    (tmp_path / "folder").mkdir()
    ended = here(tmp_path / "run", "--export", str(tmp_path / export))

    assert ended.code == 1
    assert "the weights could not be written after the training (" in ended.err
    assert "fix: another --export, or --export off" in ended.err
    assert not events(tmp_path / "run", "start")


def test_the_try_of_an_export_leaves_the_older_file_and_no_other(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out/model.pt").write_text("older")
    check_export(parse(["--export", str(tmp_path / "out/model.pt")]))

    assert [path.name for path in (tmp_path / "out").iterdir()] == ["model.pt"]
    assert (tmp_path / "out/model.pt").read_text() == "older"


def test_an_export_whose_folder_is_lost_meanwhile_is_told(here: Here, tmp_path: Path) -> None:
    folder = tmp_path / "folder"

    def lose_the_folder() -> None:
        while not events(tmp_path / "run", "train"):
            time.sleep(0.05)
        folder.rmdir()
        folder.write_text("no folder")

    loser = threading.Thread(target=lose_the_folder)
    loser.start()
    slow = ("--log-every", "1", "--sync-every", "1", "--step-delay", "0.3")
    ended = here(tmp_path / "run", "--export", str(folder / "model.pt"), *slow)
    loser.join()

    assert ended.code == 1
    assert "cannot write the weights (" in ended.err
    assert status(tmp_path / "run")["state"] == "failed"
    again = here(tmp_path / "run", "--export", "model.pt")  # the training is done, and its weights are there
    assert "Nothing left to do: 1 of 1 epochs are done" in again.out
    assert (tmp_path / "run/model.pt").is_file()


def test_two_processes_export_once(trainers: Trainers, tmp_path: Path) -> None:
    ended = trainers.run_ranks(2, tmp_path, "--epochs", "1")

    assert ended.out.count("Weights saved to") == 1, ended.err
    assert equal(torch.load(tmp_path / "model.pt"), everything(tmp_path)["model"])


def test_a_convnet_is_their_net(digits_28: Path) -> None:
    """The same weights give the same logits, and gradients, without dropout."""
    config = parse(["--data-dir", str(digits_28)])
    ours, net = build_model(config, load_data(config, torch.device("cpu"))), Net()
    load_weights(ours, copy.deepcopy(net.state_dict()), "theirs")
    x_BCHW, y_B = digits_test(digits_28)
    torch.autograd.backward(functional.cross_entropy(ours.eval()(x_BCHW), y_B))
    torch.autograd.backward(functional.nll_loss(net.eval()(x_BCHW), y_B))

    for (name, mine), (other_name, other) in zip(
        ours.named_parameters(), net.named_parameters(), strict=True
    ):
        assert name == other_name
        assert mine.grad is not None
        assert other.grad is not None
        assert torch.allclose(mine.grad, other.grad, rtol=1e-4, atol=1e-7)


def test_a_file_that_is_replaced_stays_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.pt"
    checkpoint.export(path, {"a": torch.ones(3)})
    before = path.read_bytes()

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        checkpoint.export(path, {"a": torch.zeros(3)})
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("cpuinfo", "warned"),
    [
        ("flags\t\t: fpu sse4_2 avx2 avx512f avx512_vnni", True),
        ("flags\t\t: fpu avx512f avx512_bf16 avx512_vnni", False),
        ("flags\t\t: fpu avx2 amx_bf16 amx_tile", False),
        ("Features\t: fp asimd bf16 i8mm", False),
        ("Features\t: fp asimd i8mm", True),
        ("isa\t\t: rv64imafdc", False),  # not known
        (None, False),
    ],
)
def test_bf16_on_a_processor_without_it_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cpuinfo: str | None, *, warned: bool
) -> None:
    file = tmp_path / "cpuinfo"
    if cpuinfo is not None:
        file.write_text(f"processor\t: 0\n{cpuinfo}\n\nprocessor\t: 1\n{cpuinfo}\n")
    monkeypatch.setattr(precision, "CPUINFO", file)

    assert precision.warn_of_bf16() == (WITHOUT_BF16 if warned else None)


def test_only_bf16_is_warned_of(here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cpuinfo").write_text("flags\t\t: fpu avx2\n")
    monkeypatch.setattr(precision, "CPUINFO", tmp_path / "cpuinfo")

    assert here(tmp_path / "bf16", "--precision", "bf16").out.count(WITHOUT_BF16) == 1
    assert WITHOUT_BF16 not in here(tmp_path / "fp32").out


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("nope", "--model nope is not known"),
        ("resnet18", "--model resnet18 needs 3 channels, the images have 1"),
    ],
)
def test_a_model_that_does_not_fit_is_told_by_its_own_fault(
    here: Here, tmp_path: Path, model: str, said: str
) -> None:
    ended = here(tmp_path, "--model", model)

    assert ended.code == 1
    assert said in ended.err


def _accuracy_of_the_example(folder: Path) -> float:
    """How many validation images the example of the documentation names rightly, with weights and card alone."""
    page = (ROOT / "docs/how-to/bundled-trainer.md").read_text()
    (example,) = re.findall(r"```python\n(import json.*?)```", page, re.DOTALL)
    images = sorted((folder / "images/val").glob("*/*.png"))
    right = 0
    for image in images:
        said = io.StringIO()
        with (
            contextlib.redirect_stdout(said),
            pytest.MonkeyPatch.context() as patch,
        ):
            patch.chdir(folder / "run")
            patch.setattr(sys, "argv", ["example.py", str(image)])
            exec(compile(example, "example.py", "exec"), {})  # noqa: S102 - of our own documentation
        right += said.getvalue().strip() == image.parent.name
    return right / len(images)


def test_the_card_says_what_the_weights_are_and_replaces_no_other_file(here: Here, tmp_path: Path) -> None:
    ended = here(tmp_path / "run")
    assert ended.code == 0
    card = json.loads((tmp_path / "run/model.json").read_text())
    assert (card["weights"], card["model"], card["classes"]) == ("model.pt", "convnet", 10)
    assert card["images"] == {"shape": [1, 14, 14], "mean": [0.1307], "std": [0.3081]}
    assert card["run"] == str(tmp_path / "run")
    config = (tmp_path / "run/config.json").read_bytes()
    again = here(tmp_path / "run", "--export", "config.pt")
    assert "config.json is another file: the weights have no card" in again.out
    assert json.loads((tmp_path / "run/config.json").read_text()).keys() == json.loads(config).keys()
