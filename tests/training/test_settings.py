"""What a run is without flags, by its optimizer: as torch's own optimizers and schedulers have it."""

from __future__ import annotations

import math
import re
from dataclasses import fields
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

from training.config import Config, parse, unused_settings
from training.errors import UserError
from training.flags_of_others import FLAGS
from training.model.optimizer import build_optimizer, lr_at
from training.runfolder import forecast_start

from .trainers import Here, Trainers, events

EPOCHS, STEPS = 90, 7  # of the curves, and steps an epoch


def rates(config: Config) -> list[float]:
    """The learning rate of the first step of each epoch."""
    return [lr_at(config, epoch, 0, steps_per_epoch=STEPS) for epoch in range(config.epochs)]


def rates_of_torch(lr: float, schedule: str, **how: float) -> list[float]:
    """The same by torch's own scheduler, called once an epoch as the examples do."""
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=lr)
    kinds = {"step": lr_scheduler.StepLR, "constant": lr_scheduler.ConstantLR}
    scheduler = kinds[schedule](optimizer, **how)
    settings = []
    for _ in range(EPOCHS):
        settings.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return settings


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("flags", "lr", "schedule", "how"),
    [
        (["--optimizer", "adadelta"], 1.0, "step", {"step_size": 1, "gamma": 0.7}),
        (["--optimizer", "sgd"], 0.01, "constant", {"factor": 1}),
        (["--optimizer", "adamw"], 0.001, "constant", {"factor": 1}),
        (["--optimizer", "sgd", "--schedule", "step"], 0.01, "step", {"step_size": 30, "gamma": 0.1}),
        (["--optimizer", "sgd", "--step-size", "30"], 0.01, "step", {"step_size": 30, "gamma": 0.1}),
        (
            ["--optimizer", "sgd", "--lr", "0.4", "--gamma", "0.5"],
            0.4,
            "step",
            {"step_size": 30, "gamma": 0.5},
        ),
        (["--step-size", "4"], 1.0, "step", {"step_size": 4, "gamma": 0.7}),
        (["--schedule", "constant"], 1.0, "constant", {"factor": 1}),
    ],
)
def test_the_learning_rates_are_those_of_torch(
    flags: list[str], lr: float, schedule: str, how: dict[str, float]
) -> None:
    config = parse(["--epochs", str(EPOCHS), *flags])

    assert rates(config) == pytest.approx(rates_of_torch(lr, schedule, **how), rel=1e-12)


@pytest.mark.parametrize("kind", ["sgd", "adamw", "adadelta"])
def test_rates_and_decays_without_flags_are_usual(kind: str) -> None:
    """AdamW's are torch's own, Adadelta's those of the MNIST example, which gives no decay."""
    config = parse(["--optimizer", kind])
    usual = {"sgd": (0.01, 0.9, 0), "adamw": (None, None, None), "adadelta": (1.0, None, 0)}[kind]
    model = nn.Linear(2, 2)
    group = build_optimizer(config, model).param_groups[0]
    torchs = torch.optim.AdamW(model.parameters()).param_groups[0]

    assert group["lr"] == (usual[0] or torchs["lr"])
    assert group["weight_decay"] == (torchs["weight_decay"] if usual[2] is None else usual[2])
    assert group.get("momentum") == usual[1]


@pytest.mark.parametrize(
    ("flags", "decayed"),
    [
        (["--optimizer", "sgd"], {"matrices", "biases and norms"}),
        (["--optimizer", "adadelta"], {"matrices", "biases and norms"}),
        (["--optimizer", "adamw"], {"matrices"}),
        (["--optimizer", "sgd", "--weight-decay-on", "matrices"], {"matrices"}),
        (["--optimizer", "adamw", "--weight-decay-on", "all"], {"matrices", "biases and norms"}),
    ],
)
def test_what_decays(flags: list[str], decayed: set[str]) -> None:
    """Without a gradient a step of SGD or AdamW changes the weights by their decay alone."""
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, 3))
    optimizer = build_optimizer(parse([*flags, "--weight-decay", "0.5"]), model)
    groups = optimizer.param_groups
    settings = {
        "matrices" if parameter.ndim > 1 else "biases and norms"
        for group in groups
        for parameter in group["params"]
        if group["weight_decay"] == 0.5
    }

    assert settings == decayed
    assert sum(len(group["params"]) for group in groups) == len(list(model.parameters()))


def test_with_decay_on_all_a_step_is_that_of_torch() -> None:
    torch.manual_seed(1)
    ours, theirs = (nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2)) for _ in range(2))
    theirs.load_state_dict(ours.state_dict())
    flags = ["--optimizer", "sgd", "--lr", "0.1", "--weight-decay", "1e-4"]
    optimizers = (
        build_optimizer(parse(flags), ours),
        torch.optim.SGD(theirs.parameters(), 0.1, momentum=0.9, weight_decay=1e-4),
    )
    images = torch.randn(5, 1, 6, 6, generator=torch.Generator().manual_seed(1))
    for model, optimizer in zip((ours, theirs), optimizers, strict=True):
        for _ in range(3):
            optimizer.zero_grad()
            (model(images) - images[..., 1:-1, 1:-1]).square().mean().backward()
            optimizer.step()

    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.allclose(mine, other, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(("flag", "value"), [("--gamma", "0.5"), ("--step-size", "3")])
@pytest.mark.parametrize("schedule", ["constant", "cosine"])
def test_a_step_without_a_schedule_of_steps_is_refused(flag: str, value: str, schedule: str) -> None:
    with pytest.raises(UserError, match=f"{flag} needs --schedule step, this is --schedule {schedule}"):
        parse([flag, value, "--schedule", schedule])


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--dataset own:data --random-erase 0.1", "--random-erase needs --dataset imagefolder or shards"),
        ("--dataset own:data --train-crop 64", "--train-crop needs --dataset imagefolder or shards"),
        ("--dataset mnist --eval-crop 64", "--eval-crop needs --dataset imagefolder or shards"),
        ("--eval-resize 64", "--eval-resize needs --dataset imagefolder or shards, this is --dataset mnist"),
        ("--dataset cifar10 --val-path x", "--val-path needs --dataset imagefolder or shards"),
        (
            "--dataset imagefolder --augment none --random-erase 0.1",
            "--augment none erases no part of an image; fix: leave --random-erase out",
        ),
        ("--fake-samples 64", "--fake-samples needs --dataset fake, this is --dataset mnist"),
        ("--momentum 0.5", "--momentum needs --optimizer sgd, this is --optimizer adadelta"),
        ("--optimizer sgd --weight-decay-on all", "--weight-decay-on needs a --weight-decay above 0"),
        ("--nnodes 2", "--nnodes needs --launcher spawn"),
        ("--node-rank 1", "--node-rank needs --launcher spawn"),
        ("--optimizer sgd --momentum 2", "--momentum is 2.0, but must be in 0..1, below 1"),
        ("--warmup-epochs 99 --epochs 1", "--warmup-epochs is 99, and the training has 1 epochs"),
    ],
)
def test_a_flag_that_would_change_nothing_is_refused(flags: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        parse(flags.split())


@pytest.mark.parametrize(
    "flags",
    [
        "--dataset imagefolder --train-crop 64 --eval-crop 64 --eval-resize 72 --random-erase 0.1 --val-path v",
        "--dataset fake --train-crop 64 --val-path v --random-erase 0.1 --fake-samples 64",  # as a rehearsal
        "--recipe torchvision-resnet50 --optimizer adamw",  # the recipe's momentum, which the command line does not have
        "--warmup-epochs 5 --epochs 5",
        "--optimizer adamw --weight-decay-on all",  # whose decay is 0.01
        "--dataset own:data --data-dir d --workers 2",
    ],
)
def test_a_flag_that_plays_a_part_is_taken(flags: str) -> None:
    assert parse(flags.split()).epochs > 0


@pytest.mark.parametrize(
    ("typed", "ours"),
    [
        ("--print-freq 10", "--log-every"),
        ("--output-dir=x", "--run-dir"),
        ("--per_device_train_batch_size 8", "--batch-size-per-gpu"),
        ("--max_epochs 3", "--epochs"),
        ("--epoch 3", "--epochs"),
        ("--learning_rate 0.1", "--lr"),
        ("--amp", "--precision bf16"),
        ("--devices 2", "--nproc-per-node"),
        ("--log-wandb", "--log-to wandb"),
    ],
)
def test_a_flag_of_another_trainer_is_told_by_ours(typed: str, ours: str) -> None:
    with pytest.raises(UserError) as refused:
        parse(typed.split())

    name = typed.partition(" ")[0].partition("=")[0]
    assert str(refused.value).endswith(
        f"; fix: {ours} in place of {name}; all flags: python -m training --help"
    )


@pytest.mark.parametrize("name", FLAGS)
def test_each_flag_of_another_trainer_stands_for_one_that_there_is(name: str) -> None:
    """The fix is typed, with the dataset, the schedule or the value that its flag needs."""
    flag, _, value = FLAGS[name].partition(" ")
    beside = ["--dataset", "imagefolder", "--schedule", "step"] if flag != "--dataset" else []
    beside += ["--launcher", "spawn", "--weight-decay", "0.1"]
    field = next(field for field in fields(Config) if f"--{field.name.replace('_', '-')}" == flag)
    if not value and not isinstance(field.default, bool):
        least = field.metadata["minimum"]
        number = str(max(field.default, least)) if isinstance(field.default, (float, int)) else "x"
        value = next(iter(field.metadata["choices"]), number)

    assert getattr(parse([*beside, flag, *filter(None, [value])]), field.name) not in (None, "")


def test_a_word_like_no_flag_gets_the_list_of_flags() -> None:
    with pytest.raises(UserError) as refused:
        parse(["--xyzzy", "1"])

    assert str(refused.value) == "unrecognized arguments: --xyzzy 1; fix: python -m training --help"


def test_a_step_size_is_whole_epochs() -> None:
    with pytest.raises(UserError, match="--step-size is 0, but must be at least 1"):
        parse(["--step-size", "0"])


def test_settings_that_play_no_part_are_not_compared() -> None:
    of_files = {"train_crop", "eval_crop", "eval_resize", "random_erase", "val_path", "fake_samples"}
    settings = {"optimizer": "adamw", "schedule": "cosine", "weight_decay": 0.0, "dataset": "own:data"}
    others = {"optimizer": "sgd", "schedule": "step", "weight_decay": 0.1, "dataset": "fake"}

    assert unused_settings(settings) == {"momentum", "step_size", "gamma", "weight_decay_on", *of_files}
    assert unused_settings(others) == set()


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--step-size", "2"), "step_size is 2, but was 1"),
        (("--gamma", "0.5"), "gamma is 0.5, but was 0.7"),
        (("--schedule", "constant"), "schedule is constant, but was step"),
        (("--weight-decay", "0.1"), "weight_decay is 0.1, but was 0.0"),
    ],
)
def test_another_schedule_or_decay_is_refused_at_resume(
    here: Here, tmp_path: Path, flags: tuple[str, ...], said: str
) -> None:
    assert here(tmp_path).code == 0
    ended = here(tmp_path, "--epochs", "2", *flags)

    assert ended.code == 1
    assert f"other settings than the checkpoint's: {said}" in ended.err
    assert here(tmp_path, "--epochs", "2", *flags, "--allow-config-change").code == 0


def test_a_checkpoint_made_before_these_settings_goes_on(here: Here, tmp_path: Path) -> None:
    """Its decay was of matrices alone; with another one it is refused."""
    sgd = ("--optimizer", "sgd", "--weight-decay", "0.01")
    before = (
        *sgd,
        "--schedule",
        "step",
        "--gamma",
        "0.7",
        "--step-size",
        "1",
        "--weight-decay-on",
        "matrices",
    )
    assert here(tmp_path, *before).code == 0
    (path,) = (tmp_path / "checkpoints").glob("step-*")
    state = torch.load(path, weights_only=True)
    for name in ("step_size", "weight_decay_on"):
        del state["config"][name]
    torch.save(state, path)

    refused = here(tmp_path, *before, "--epochs", "2", "--weight-decay-on", "all")
    assert "weight_decay_on is all, but was matrices" in refused.err
    assert here(tmp_path, *before, "--epochs", "2").code == 0


def test_the_curve_of_the_longest_tutorial_ends_where_it_should() -> None:
    """90 epochs of StepLR(30, 0.1) from 0.1, as pytorch/examples/imagenet: 0.001 at the end, not 3e-15."""
    flags = ["--optimizer", "sgd", "--lr", "0.1", "--step-size", "30", "--epochs", "90"]
    last = rates(parse(flags))[-1]
    assert math.isclose(last, 0.001)


CHANGES = {
    "larger": ("--batch-size", "64"),
    "smaller": ("--batch-size", "8"),
    "in parts": ("--accumulate", "2"),
    "of two processes": ("--batch-size", "0", "--batch-size-per-gpu", "32"),
}


@pytest.mark.proof
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("stopped", [False, True])
def test_the_rate_of_an_epoch_stays_after_a_change_of_the_batch(
    here: Here, trainers: Trainers, tmp_path: Path, change: str, *, stopped: bool
) -> None:
    """Also if it is changed in the middle of an epoch."""
    flags = ("--optimizer", "sgd", "--step-size", "2", "--log-every", "1", "--sync-every", "1")
    begun = here(
        tmp_path, *flags, "--epochs", "2", *(("--save-every", "4", "--keep", "9") if stopped else ())
    )
    more = (*flags, "--epochs", "5", "--allow-config-change", *CHANGES[change])
    if stopped:
        more += ("--resume", "step-00000004.pt")
    two = change == "of two processes"
    ended = trainers.run_ranks(2, tmp_path, *more) if two else here(tmp_path, *more)
    torchs = rates_of_torch(0.01, "step", step_size=2, gamma=0.1)

    assert (begun.code, ended.code) == (0, 0), ended.err
    of_epoch = {(event["epoch"], event["lr"]) for event in events(tmp_path, "train")}
    assert sorted(epoch for epoch, _ in of_epoch) == [1, 2, 3, 4, 5]
    assert all(lr == pytest.approx(torchs[epoch - 1]) for epoch, lr in of_epoch)
    counted = re.findall(r"step (\d+) of (\d+),", ended.out)
    assert counted
    assert all(int(step) <= int(of) for step, of in counted)


def test_the_steps_that_are_left_are_those_of_the_present_batch(here: Here, tmp_path: Path) -> None:
    """8 steps of the first batch are done, and 2 epochs of 4 steps are left."""
    assert here(tmp_path).code == 0
    config = parse(
        ["--run-dir", str(tmp_path), "--batch-size", "64", "--epochs", "3", "--allow-config-change"]
    )

    assert (forecast_start(config, 1).step, forecast_start(config, 1).steps) == (8, 16)
