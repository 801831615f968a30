"""Augmentation and recipes: the values of torchvision's references, image by image and epoch by epoch."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import nn

from training.config import parse
from training.data.datasets import Data
from training.data.images import MEAN, STD, evaluation_transform, training_transform
from training.data.splits import InMemory, Norm
from training.errors import UserError
from training.model.optimizer import build_optimizer, lr_at
from training.model.tasks import build_task

from . import vision
from .trainers import Here, events

vision.fit()
from torchvision import models, transforms  # type: ignore[import-untyped,unused-ignore]  # noqa: E402 - after vision.fit

STEPS = 5  # of an epoch


def a_photo(seed: int, width: int = 320, height: int = 280) -> Image.Image:
    """Smooth colours, as no noise has them: resizing differs little between programs."""
    generator = torch.Generator().manual_seed(seed)
    small = torch.randint(256, (8, 8, 3), dtype=torch.uint8, generator=generator)
    return Image.fromarray(small.numpy()).resize((width, height), Image.Resampling.BICUBIC)


def ours(image_CHW: torch.Tensor) -> torch.Tensor:
    """As the model gets it."""
    return Norm(mean=MEAN, std=STD).on(torch.device("cpu"))(image_CHW[None])[0]


@pytest.mark.parametrize("seed", range(20))
def test_training_images_of_the_recipe_are_those_of_the_reference(seed: int) -> None:
    reference = transforms.Compose(
        [
            transforms.RandomResizedCrop(224),
            transforms.RandomHorizontalFlip(0.5),
            transforms.PILToTensor(),
            transforms.ConvertImageDtype(torch.float),
            transforms.Normalize(MEAN, STD),
        ]
    )
    torch.manual_seed(seed)
    theirs = reference(a_photo(seed))
    torch.manual_seed(seed)
    mine = ours(training_transform(parse(["--recipe", "torchvision-resnet50"]))(a_photo(seed)))
    assert torch.allclose(mine, theirs, atol=1e-5)


@pytest.mark.parametrize("seed", range(20))
def test_validation_images_of_the_recipe_are_those_of_the_published_weights(seed: int) -> None:
    theirs = models.ResNet50_Weights.IMAGENET1K_V1.transforms()(a_photo(seed))
    mine = ours(evaluation_transform(parse(["--recipe", "torchvision-resnet50"]))(a_photo(seed)))
    assert torch.allclose(mine, theirs, atol=1e-5)


@pytest.mark.parametrize(
    ("recipe", "epochs", "lr", "decay", "step", "gamma"),
    [
        ("torchvision-resnet50", 90, 0.1, 1e-4, 30, 0.1),
        ("torchvision-resnext50", 100, 0.1, 1e-4, 30, 0.1),
        ("torchvision-mobilenet-v2", 300, 0.045, 4e-5, 1, 0.98),
    ],
)
def test_the_optimizer_of_a_recipe_is_that_of_the_reference_in_each_epoch(
    recipe: str, epochs: int, lr: float, decay: float, step: int, gamma: float
) -> None:
    config = parse(["--recipe", recipe])
    model = nn.Sequential(nn.Conv2d(3, 2, 3), nn.BatchNorm2d(2))
    theirs = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9, weight_decay=decay)
    scheduler = torch.optim.lr_scheduler.StepLR(theirs, step_size=step, gamma=gamma)
    assert (config.epochs, config.batch_size, config.dataset) == (epochs, 256, "imagefolder")
    for group in build_optimizer(config, model).param_groups:
        same = ("momentum", "weight_decay", "nesterov", "dampening")
        assert [group[name] for name in same] == [theirs.param_groups[0][name] for name in same]
    for epoch in range(epochs):
        for done in range(STEPS):
            rate = lr_at(config, epoch, done, steps_per_epoch=STEPS)
            assert rate == pytest.approx(theirs.param_groups[0]["lr"], rel=1e-9)
        theirs.step()
        scheduler.step()


def test_what_is_typed_replaces_a_part_of_a_recipe() -> None:
    config = parse(["--recipe", "torchvision-resnet50", "--schedule", "cosine", "--batch-size-per-gpu", "8"])
    assert (config.schedule, config.batch_size, config.lr, config.model) == ("cosine", 0, 0.1, "resnet50")


@pytest.mark.parametrize("kind", ["crop", "randaugment", "trivialaugment", "none"])
def test_augmentation_gives_the_asked_size_and_depends_on_the_seed_alone(kind: str) -> None:
    erased = ("--random-erase", "0.9") if kind != "none" else ()
    transform = training_transform(
        parse(["--dataset", "imagefolder", "--augment", kind, "--train-crop", "64", *erased])
    )
    made = []
    for seed in (1, 1, 2, 3, 4):
        torch.manual_seed(seed)
        random.seed(seed)
        made.append(transform(a_photo(0)))
    assert {(tuple(image.shape), image.dtype) for image in made} == {((3, 64, 64), torch.uint8)}
    assert torch.equal(made[0], made[1])
    assert any(not torch.equal(made[0], other) for other in made[2:]) == (kind != "none")


@pytest.mark.parametrize(
    ("flags", "side", "of"), [([], 224, 256), (["--eval-crop", "64", "--eval-resize", "64"], 64, 64)]
)
def test_a_validation_image_is_scaled_and_cut(flags: list[str], side: int, of: int) -> None:
    image = evaluation_transform(parse(["--dataset", "imagefolder", *flags]))(a_photo(1))
    scaled = a_photo(1).resize((of * 320 // 280, of), Image.Resampling.BILINEAR)
    left, top = (round((scaled.width - side) / 2), round((scaled.height - side) / 2))
    cut = transforms.functional.pil_to_tensor(scaled.crop((left, top, left + side, top + side)))
    assert image.shape == (3, side, side)
    assert (image.int() - cut.int()).abs().max() <= 1


def a_task(*flags: str, classes: int = 3) -> Any:
    split = InMemory(images_NCHW=torch.zeros(1, 3, 8, 8), labels_N=torch.zeros(1), norm=Norm())
    data = Data(train=split, validation=split, classes=classes, shape_CHW=(3, 8, 8))
    return build_task(parse([*flags]), data)


@pytest.mark.parametrize(
    "flags", [("--mixup", "0.2"), ("--cutmix", "1"), ("--mixup", "0.2", "--cutmix", "1")]
)
def test_mixed_images_have_the_shares_of_their_classes(flags: tuple[str, ...]) -> None:
    """Images of one value each: what is left of it is the share."""
    task, y_B = a_task(*flags), torch.tensor([0, 1, 2])
    x_BCHW = torch.tensor([0.0, 1.0, 2.0]).view(3, 1, 1, 1).expand(3, 3, 8, 8)
    torch.manual_seed(4)
    mixed_BCHW, shares_BK = task.mix(x_BCHW.clone(), y_B)
    assert torch.allclose(
        mixed_BCHW.mean(dim=(1, 2, 3)), shares_BK @ torch.tensor([0.0, 1.0, 2.0]), atol=1e-6
    )
    assert torch.allclose(shares_BK.sum(dim=1), torch.ones(3))


def test_the_loss_of_mixed_images_is_that_of_their_parts() -> None:
    task, logits_BK = a_task("--mixup", "1"), torch.randn(2, 5)  # a model may have more outputs than classes
    shares_BK = torch.tensor([[0.25, 0.75, 0.0], [1.0, 0.0, 0.0]])
    parts = [task.loss(logits_BK, torch.full((2,), label)) for label in (0, 1)]
    expected = shares_BK[:, 0] * parts[0] + shares_BK[:, 1] * parts[1]
    assert torch.allclose(task.training_loss(logits_BK, shares_BK), expected, atol=1e-6)


@pytest.fixture
def folders(tmp_path: Path) -> Path:
    """Two classes, 6 training and 4 validation images each."""
    for part, count in (("train", 6), ("val", 4)):
        for label in range(2):
            folder = tmp_path / "images" / part / f"class{label}"
            folder.mkdir(parents=True)
            for index in range(count):
                a_photo(10 * label + index, 40, 36).save(folder / f"{index}.png")
    return tmp_path / "images"


@pytest.mark.proof
def test_a_run_with_all_of_it_resumes_exactly(here: Here, folders: Path, tmp_path: Path) -> None:
    flags = (
        *("--dataset", "imagefolder", "--data-dir", str(folders), "--model", "mobilenet_v3_small"),
        *("--batch-size", "4", "--optimizer", "sgd", "--workers", "0", "--augment", "randaugment"),
        *(
            "--train-crop",
            "32",
            "--eval-crop",
            "40",
            "--mixup",
            "0.2",
            "--cutmix",
            "1",
            "--random-erase",
            "0.5",
        ),
    )
    whole, parted = tmp_path / "whole", tmp_path / "parted"
    assert here(whole, *flags, "--epochs", "2").code == 0
    assert here(parted, *flags).code == 0
    assert here(parted, *flags, "--epochs", "2").code == 0
    first, other = (torch.load(run / "model.pt", weights_only=True) for run in (whole, parted))
    assert all(torch.equal(first[name], other[name]) for name in first)
    assert events(whole, "epoch")[-1]["samples"] == 8


def test_augmentation_of_images_in_memory_is_refused(here: Here, tmp_path: Path) -> None:
    ended = here(tmp_path / "run", "--augment", "crop")
    assert ended.code == 1
    assert "--augment crop is for --dataset imagefolder and shards, this is mnist" in ended.err


def test_a_task_excludes_what_belongs_to_classes() -> None:
    with pytest.raises(UserError, match="--task and --mixup exclude each other"):
        parse(["--task", "own:task", "--mixup", "1"])
