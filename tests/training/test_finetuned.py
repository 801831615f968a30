"""A model of torchvision, tuned on 200 images, is as good as after the plain loop that people write."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader

from . import vision
from .trainers import Here, events

vision.fit()
from torchvision import datasets, models, transforms  # type: ignore[import-untyped,unused-ignore]  # noqa: E402 - after vision.fit

SIDE, CLASSES, EPOCHS, BATCH, RATE = 32, 4, 6, 20, 0.02


def stripes(folder: Path, each: int, seed: int) -> None:
    """Images of stripes in four directions, at any distance and place, with noise."""
    generator = torch.Generator().manual_seed(seed)
    down_H1, across_W = torch.arange(SIDE).view(-1, 1), torch.arange(SIDE)
    for label, (y, x) in enumerate(((1, 0), (0, 1), (1, 1), (1, -1))):
        (folder / str(label)).mkdir(parents=True)
        for index in range(each):
            pitch, phase = torch.rand(2, generator=generator).tolist()
            wave_HW = torch.sin((y * down_H1 + x * across_W) * (0.5 + pitch) + 6.28 * phase)
            noise_HWC = torch.randn(SIDE, SIDE, 3, generator=generator)
            pixels_HWC = (128 + 60 * wave_HW.unsqueeze(2) + 25 * noise_HWC).clamp(0, 255).to(torch.uint8)
            Image.fromarray(pixels_HWC.numpy()).save(folder / str(label) / f"{index}.png")


def plain_loop(folder: Path, weights: Path) -> float:
    """The accuracy after the same number of epochs."""
    to_tensor = transforms.Compose(
        [
            transforms.PILToTensor(),
            transforms.ConvertImageDtype(torch.float),
            transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
        ]
    )
    train, val = (datasets.ImageFolder(str(folder / part), to_tensor) for part in ("train", "val"))
    torch.manual_seed(0)
    model = models.resnet18(num_classes=1000)
    model.load_state_dict(torch.load(weights, weights_only=True))
    model.fc = nn.Linear(model.fc.in_features, CLASSES)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS * len(train) // BATCH)
    for _ in range(EPOCHS):
        model.train()
        for x_BCHW, y_B in DataLoader(train, BATCH, shuffle=True):
            optimizer.zero_grad()
            torch.autograd.backward(functional.cross_entropy(model(x_BCHW), y_B))
            optimizer.step()
            schedule.step()
    model.eval()
    with torch.no_grad():
        right = sum(int((model(x_BCHW).argmax(1) == y_B).sum()) for x_BCHW, y_B in DataLoader(val, BATCH))
    return right / len(val)


@pytest.mark.slow
def test_200_images_are_learnt_as_by_a_plain_loop(here: Here, tmp_path: Path) -> None:
    stripes(tmp_path / "data" / "train", 50, seed=1)
    stripes(tmp_path / "data" / "val", 25, seed=2)
    torch.manual_seed(3)
    torch.save(models.resnet18(num_classes=1000).state_dict(), tmp_path / "resnet18.pth")
    ended = here(
        tmp_path / "run",
        *("--dataset", "imagefolder", "--data-dir", str(tmp_path / "data"), "--augment", "none"),
        *("--train-crop", str(SIDE), "--eval-resize", str(SIDE), "--workers", "0"),
        *("--model", "resnet18", "--init-from", str(tmp_path / "resnet18.pth"), "--optimizer", "sgd"),
        *("--schedule", "cosine"),
        *("--lr", str(RATE), "--batch-size", str(BATCH), "--epochs", str(EPOCHS)),
    )
    assert ended.code == 0, ended.err
    assert "not of another number of classes: fc.bias, fc.weight" in ended.out
    ours = events(tmp_path / "run", "epoch")[-1]["accuracy"]
    theirs = plain_loop(tmp_path / "data", tmp_path / "resnet18.pth")
    print(f"accuracy {ours:.2f}, of the plain loop {theirs:.2f}")
    assert min(ours, theirs) > 0.7
    assert abs(ours - theirs) <= 0.1
