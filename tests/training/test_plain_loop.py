"""21 settings of the trainer, each beside a plain loop of torch: the same losses in each step, and the same weights.

The loop takes from the trainer which images a step has, and the seeds: nothing else of the training package.
"""

from __future__ import annotations

import contextlib
import copy
import importlib
import math
import sys
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import nn
from torch.nn import functional

from training.data.images import MEAN, STD
from training.data.order import derive_seed, epoch_order

from . import vision
from .states import everything
from .test_exact import SCALED
from .test_shards import images, pack
from .trainers import Here, events

vision.fit()
from torchvision import transforms  # type: ignore[import-untyped,unused-ignore]  # noqa: E402 - after vision.fit
from torchvision.transforms import v2  # type: ignore[import-untyped,unused-ignore]  # noqa: E402 - after vision.fit

pytestmark = pytest.mark.proof

EPOCHS, BATCH, CLASSES, RATE, SEED = 3, 8, 3, 0.1, 1
STEPS = 4  # of an epoch of 29 images
# How far a mean loss, and a weight, may be from the loop's: four roundings of a float32 near 1 for a weight. Gradients are
# summed in another order. bf16 keeps 8 bits of each factor.
LOSS, LOSS_OF_BF16, WEIGHT = 2.5e-7, 4.5e-6, 4.8e-7
OWN = """
    import torch
    from torch import nn

    def images(config):
        generator = torch.Generator().manual_seed(3)
        parts = [torch.randint(256, (n, 1, 8, 8), dtype=torch.uint8, generator=generator) for n in (29, 13)]
        return tuple((part, part.long().sum((1, 2, 3)) % 3) for part in parts)

    def numbers(config):
        return tuple((part, part.float().mean((1, 2, 3)) / 255) for part, _ in images(config))

    # A convolution before BatchNorm has no bias: its gradient would be rounding alone, of which AdamW makes whole steps.
    def made(channels, outputs):
        layers = nn.Conv2d(channels, 6, 3, bias=False), nn.BatchNorm2d(6), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten()
        return nn.Sequential(*layers, nn.Linear(24, outputs))

    def model(config):
        return made(1, 3)

    def of_colours(config):
        return made(3, 2)

    def of_numbers(config):
        return made(1, 1)

    def task(config):
        def loss(outputs, y):
            return (outputs[:, 0] - y).square()

        return loss, lambda outputs, y: {"close": loss(outputs, y) < 0.01}
"""
Factor = Callable[[int], float]
Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
Batch = tuple[torch.Tensor, torch.Tensor]


def constant(_step: int) -> float:
    return 1.0


def entropy(outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(outputs, y, reduction="none")


def smooth(outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(outputs, y, reduction="none", label_smoothing=0.1)


def distance(outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (outputs[:, 0] - y).square()


def sgd(model: nn.Module, **how: Any) -> torch.optim.Optimizer:
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    return torch.optim.SGD(trained, RATE, momentum=0.9, **how)


def in_groups(kind: Any, model: nn.Module, **how: Any) -> Any:
    """An optimizer with a decay of matrices alone."""
    matrices = [weight for weight in model.parameters() if weight.ndim > 1]
    others = [weight for weight in model.parameters() if weight.ndim <= 1]
    return kind([{"params": matrices, "weight_decay": 0.01}, {"params": others, "weight_decay": 0.0}], **how)


def with_a_head(model: nn.Module) -> torch.optim.Optimizer:
    *body, weight, bias = model.parameters()
    groups = [{"params": body, "lr": RATE}, {"params": [weight, bias], "lr": 5 * RATE}]
    return torch.optim.SGD(groups, momentum=0.9)


@dataclass(frozen=True, kw_only=True)
class Loop:
    """A setting as a plain loop has it."""

    flags: str = ""
    optimizer: Callable[[nn.Module], torch.optim.Optimizer] = sgd
    factor: Factor = constant  # of the learning rate
    model: str = "model"
    data: str = "images"
    parts: int = 1
    mixed: tuple[Any, ...] = ()
    clip: float = 0.0
    ema: float = 0.0
    dtype: torch.dtype | None = None
    tuned: bool = False
    frozen: int = 0  # layers
    trained: Loss = entropy
    validated: Loss = entropy


def cosine(step: int, warmup: int = 0) -> float:
    total = EPOCHS * STEPS - warmup
    return (
        (step + 1) / (warmup + 1)
        if step < warmup
        else 0.5 * (1 + math.cos(math.pi * (step - warmup) / total))
    )


MIXUP, CUTMIX = v2.MixUp(alpha=0.4, num_classes=CLASSES), v2.CutMix(alpha=1.0, num_classes=CLASSES)
SGD = "--optimizer sgd --lr 0.1 "
SETTINGS = {
    "sgd": Loop(flags=SGD + "--weight-decay 0.01", optimizer=lambda model: sgd(model, weight_decay=0.01)),
    "decay of matrices": Loop(
        flags=SGD + "--weight-decay 0.01 --weight-decay-on matrices",
        optimizer=lambda model: in_groups(torch.optim.SGD, model, lr=RATE, momentum=0.9),
    ),
    "adamw": Loop(
        flags="--optimizer adamw", optimizer=lambda model: in_groups(torch.optim.AdamW, model, lr=0.001)
    ),
    "adadelta": Loop(
        optimizer=lambda model: torch.optim.Adadelta(model.parameters(), lr=1.0),
        factor=lambda step: 0.7 ** (step // STEPS),
    ),
    "steps": Loop(flags=SGD + "--step-size 2 --gamma 0.3", factor=lambda step: 0.3 ** (step // (2 * STEPS))),
    "cosine": Loop(flags=SGD + "--schedule cosine", factor=cosine),
    "warm-up": Loop(
        flags=SGD + "--schedule cosine --warmup-epochs 1", factor=lambda step: cosine(step, STEPS)
    ),
    "label smoothing": Loop(flags=SGD + "--label-smoothing 0.1", trained=smooth),
    "mixup": Loop(flags=SGD + "--mixup 0.4", mixed=(MIXUP,)),
    "cutmix": Loop(flags=SGD + "--cutmix 1", mixed=(CUTMIX,)),
    "mixup and cutmix": Loop(flags=SGD + "--mixup 0.4 --cutmix 1", mixed=(MIXUP, CUTMIX)),
    "accumulation": Loop(flags=SGD + "--accumulate 2", parts=2),
    "clipping": Loop(flags=SGD + "--clip-norm 0.2", clip=0.2),
    "ema": Loop(flags=SGD + "--ema 0.5", ema=0.5),
    "bf16": Loop(flags=SGD + "--precision bf16", dtype=torch.bfloat16),
    "fp16": Loop(flags=SGD + "--precision fp16", dtype=torch.float16),
    "fine-tuning": Loop(flags=SGD + "--init-from old.pt", tuned=True),
    "frozen": Loop(flags=SGD + "--freeze 0.*,1.*", frozen=2),
    "rate of the head": Loop(flags=SGD + "--head-lr 0.5", optimizer=with_a_head),
    "own task": Loop(
        flags=SGD + "--task plain_own:task",
        model="of_numbers",
        data="numbers",
        trained=distance,
        validated=distance,
    ),
    "shards": Loop(
        flags=SGD + "--dataset shards --data-dir shards --augment none --train-crop 32 --workers 0",
        model="of_colours",
        data="",
    ),
}


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module with data and models, in the present folder, with the weights and the tar files that settings name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "plain_own", raising=False)
    (tmp_path / "plain_own.py").write_text(textwrap.dedent(OWN))
    module = importlib.import_module("plain_own")
    torch.manual_seed(7)
    torch.save(module.made(1, 5).state_dict(), tmp_path / "old.pt")
    images(tmp_path / "files")
    pack(tmp_path / "files", tmp_path / "shards")
    return module


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=SCALED if name == "fp16" else ()) for name in SETTINGS]
)
def test_a_training_is_that_of_a_plain_loop(here: Here, own: Any, tmp_path: Path, name: str) -> None:
    loop = SETTINGS[name]
    where = ("--dataset", f"plain_own:{loop.data}", "--model", f"plain_own:{loop.model}")
    often = ("--batch-size", str(BATCH), "--epochs", str(EPOCHS), "--log-every", "1", "--sync-every", "1")
    ended = here(tmp_path / "run", *where, *often, *loop.flags.split())
    assert ended.code == 0, ended.err
    theirs, near = train(loop, own), LOSS_OF_BF16 if loop.dtype == torch.bfloat16 else LOSS

    state, logged = everything(tmp_path / "run"), events(tmp_path / "run", "train")
    assert len(logged) >= EPOCHS, "the short last step of an epoch has no line"
    assert min(theirs.losses) < theirs.losses[0], "it learns"
    far = {
        "loss": max(abs(event["loss"] - theirs.losses[event["step"] - 1]) for event in logged),
        "validation": max(
            abs(event["loss"] - loss)
            for event, loss in zip(events(tmp_path / "run", "epoch"), theirs.validations, strict=True)
        ),
    }
    assert max(far.values()) <= near, far
    assert furthest(state["model"], theirs.weights) <= WEIGHT
    assert furthest(state["ema"], theirs.means) <= WEIGHT


def furthest(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> float:
    """The largest distance of two weights of one name."""
    assert ours.keys() == theirs.keys()
    return max([float((ours[name].double() - theirs[name].double()).abs().max()) for name in ours], default=0)


@dataclass
class Trained:
    """What a loop leaves: the mean loss of each step and of each validation, the weights, and their running means."""

    losses: list[float] = field(default_factory=list)
    validations: list[float] = field(default_factory=list)
    weights: dict[str, torch.Tensor] = field(default_factory=dict)
    means: dict[str, torch.Tensor] = field(default_factory=dict)


def train(loop: Loop, own: Any) -> Trained:
    """Train in a loop as in a tutorial."""
    (x_NCHW, y_N), validation = batches(loop, own)
    model, step = new_model(loop, own), 0
    optimizer, scaler = loop.optimizer(model), None
    if loop.dtype == torch.float16:
        scaler = torch.amp.GradScaler("cpu")
    rates = [group["lr"] for group in optimizer.param_groups]
    left = Trained(means=floats(model) if loop.ema else {})
    for epoch in range(EPOCHS):
        for index_B in cut(epoch_order(len(y_N), seed=SEED, epoch=epoch), BATCH):
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate * loop.factor(step)
            optimizer.zero_grad()
            left.losses.append(backward(loop, model, x_NCHW[index_B], y_N[index_B], step, scaler))
            if loop.clip:
                nn.utils.clip_grad_norm_(model.parameters(), loop.clip)
            if scaler:
                scaler.step(optimizer)
                scaler.update()
            else:
                optimizer.step()
            decay = min(loop.ema, (1 + step) / (10 + step))
            left.means = {
                name: decay * left.means[name] + (1 - decay) * weight
                for name, weight in floats(model).items()
                if loop.ema
            }
            step += 1
        left.validations.append(validate(loop, model, left.means, *validation))
    left.weights = model.state_dict()
    return left


def backward(
    loop: Loop, model: nn.Module, x_BCHW: torch.Tensor, y_B: torch.Tensor, step: int, scaler: Any
) -> float:
    """Compute the gradients of a step in its parts; return the mean loss."""
    model.train()
    for layer in [*model.children()][: loop.frozen]:
        layer.eval()
    mean, size = 0.0, BATCH // loop.parts
    for part, (x, y) in enumerate(zip(cut(x_BCHW, size), cut(y_B, size), strict=True), start=1):
        torch.manual_seed(derive_seed("step", SEED, step, 0, part))
        mixed = v2.RandomChoice([*loop.mixed])(x, y) if loop.mixed else (x, y)
        loss = loop.trained(outputs_of(loop, model, mixed[0]), mixed[1]).sum() / len(y_B)
        mean += loss.item()
        torch.autograd.backward(scaler.scale(loss) if scaler else loss)
    return mean


def validate(
    loop: Loop, model: nn.Module, means: dict[str, torch.Tensor], x_NCHW: torch.Tensor, y_N: torch.Tensor
) -> float:
    """The mean loss over all images, of the running means where there are some."""
    measured = copy.deepcopy(model).eval()
    measured.load_state_dict(means, strict=False)
    with torch.no_grad():
        losses = [
            loop.validated(outputs_of(loop, measured, x), y)
            for x, y in zip(cut(x_NCHW, BATCH), cut(y_N, BATCH), strict=True)
        ]
    return float(torch.cat(losses).double().mean())


def cut(all_N: torch.Tensor, size: int) -> list[torch.Tensor]:
    return [all_N[first : first + size] for first in range(0, len(all_N), size)]


def outputs_of(loop: Loop, model: nn.Module, x_BCHW: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", loop.dtype) if loop.dtype else contextlib.nullcontext():
        outputs: torch.Tensor = model(x_BCHW)
    return outputs.float()


def new_model(loop: Loop, own: Any) -> nn.Module:
    """The model of the seed; to be tuned, its body is that of the older weights."""
    torch.manual_seed(derive_seed("weights", SEED))
    model: nn.Module = getattr(own, loop.model)(None)
    if loop.tuned:
        older = torch.load("old.pt", weights_only=True)
        body = {name: weight for name, weight in older.items() if not name.startswith("5.")}
        model.load_state_dict(body, strict=False)
    for layer in [*model.children()][: loop.frozen]:
        layer.requires_grad_(False)
    return model


def floats(model: nn.Module) -> dict[str, torch.Tensor]:
    """Copies of the weights, and of the running statistics."""
    return {name: value.clone() for name, value in model.state_dict().items() if value.is_floating_point()}


def batches(loop: Loop, own: Any) -> tuple[Batch, Batch]:
    """Training and validation: all images as the model gets them, and all labels."""
    if loop.data:
        training, validation = (
            (part.float() / 255, labels) for part, labels in getattr(own, loop.data)(None)
        )
        return training, validation
    norm, to_tensor = (
        v2.Normalize(MEAN, STD),
        transforms.Compose([transforms.CenterCrop(32), transforms.ToTensor()]),
    )
    parts: list[Batch] = []
    for part in ("train", "val"):
        paths = sorted(Path("files", part).glob("*/*.png"))
        squares = [to_tensor(Image.open(path)) for path in paths]
        labels = torch.tensor([int(path.parent.name) for path in paths])
        parts.append((norm(torch.stack(squares)), labels))
    return parts[0], parts[1]
