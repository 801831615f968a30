"""A run that is stopped anywhere resumes as if it had not been: all of its state is equal, bit by bit."""

from __future__ import annotations

import os
import signal
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from training.model import optimizer
from training.processes import stop
from training.processes.stop import REASONS, Stop

from .states import equal, everything, weights
from .test_loop import unfused
from .trainers import SLOW, Here, Trainers, events, finish, status, tasks, wait_for

OWN = """
    import torch
    from torch import nn

    class Noisy(torch.utils.data.Dataset):
        classes = ("dark", "light")

        def __init__(self, count):
            self.count = count

        def __len__(self):
            return self.count

        def __getitem__(self, index):
            return torch.rand(1, 8, 8) * 0.2 + 0.8 * (index % 2), index % 2

    def data(config):
        return Noisy(29), Noisy(13)

    def plain_data(config):
        generator = torch.Generator().manual_seed(1)
        parts = [torch.randint(256, (n, 1, 8, 8), dtype=torch.uint8, generator=generator) for n in (29, 13)]
        return tuple((part, torch.arange(len(part)) % 2) for part in parts)

    def model(config):
        return nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.3), nn.Flatten(), nn.Linear(144, 2)
        )

    class Loud(nn.Sequential):
        def forward(self, x):
            return super().forward(x) * 100

    def loud_model(config):
        return Loud(*model(config))

    def plain_model(config):
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Tanh(), nn.Linear(8, 2))
"""
OURS = ("--dataset", "exact_own:data", "--model", "exact_own:model", "--workers", "0", "--batch-size", "8")
PLAIN = ("--dataset", "exact_own:plain_data", "--model", "exact_own:plain_model", "--batch-size", "8")
AGAIN = ("--activation-checkpointing",)
OFTEN = ("--sync-every", "1", "--save-every", "3", "--eval-batch", "13")
EACH = [
    ("--optimizer", "sgd", "--schedule", "cosine", "--warmup-epochs", "0.5"),
    ("--accumulate", "2", "--ema", "0.9", "--clip-norm", "0.5", "--label-smoothing", "0.1"),
    ("--precision", "fp16", "--accumulate", "4", "--ema", "0.99", "--clip-norm", "1", "--optimizer", "adamw"),
    ("--precision", "bf16", "--channels-last", "--ema", "0.5", "--optimizer", "adamw"),
    ("--precision", "fp16", "--optimizer", "sgd", "--weight-decay", "0.01", "--channels-last"),
    (
        "--precision",
        "fp16",
        "--optimizer",
        "sgd",
        "--model",
        "exact_own:loud_model",
    ),  # its first steps overflow
]

WITH_EACH_STATE = (
    EACH[0],
    EACH[2],
    EACH[5],
)  # schedule; mean, parts of a step and loss scale; steps that overflow
SCALED = pytest.mark.skipif(
    not hasattr(torch.amp, "GradScaler"), reason="this torch has no loss scale for the CPU"
)

AskAt = Callable[[int], None]


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a data set and models that have all that is random."""
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / "exact_own.py").write_text(textwrap.dedent(OWN))
    monkeypatch.syspath_prepend(str(folder))
    return folder


@pytest.fixture
def ask_at(monkeypatch: pytest.MonkeyPatch) -> AskAt:
    """Ask the next run to stop the k-th time it looks; it looks at its start, each step and in validation."""
    return asking(monkeypatch)


def asking(monkeypatch: pytest.MonkeyPatch) -> AskAt:
    """What the fixture gives."""
    looks = [0]

    def requests(self: Stop) -> list[float]:
        looks[0] -= 1
        return [float(name == "SIGTERM" and looks[0] == 0) for name in REASONS]

    monkeypatch.setattr(stop.Stop, "requests", requests)

    def ask(k: int) -> None:
        looks[0] = k

    return ask


def each_stop(
    here: Here, ask: AskAt, folder: Path, *flags: str, every: int = 1
) -> Iterator[tuple[int, int, bool]]:
    """Stop a run of two epochs at each moment at which it looks, each time from the start, and let it resume to its end.

    With `every` at the first moment, and at each so many moments later.

    Gives the step and the samples of the epoch at the stop, and whether from there on all of the state, and the loss of
    each step, are those of the uninterrupted run.
    """
    both = (*flags, *OFTEN, "--log-every", "1", "--epochs", "2")
    ask(0)
    whole = here(folder / "whole", *both)
    assert whole.code == 0, whole.err
    for k in range(1, 99, every):
        run_dir = folder / str(k)
        ask(k)
        ended = here(run_dir, *both)
        if ended.code == 0:
            return
        assert ended.code == 75, ended.err
        step, consumed = status(run_dir)["step"], everything(run_dir)["consumed"]
        resumed = here(run_dir, *both)
        assert resumed.code == 0, resumed.err
        uninterrupted = [
            line for line in losses(folder / "whole") if line[0] != step
        ]  # its line is not written
        exact = equal(everything(run_dir), everything(folder / "whole"))
        yield step, consumed, exact and [line for line in losses(run_dir) if line[0] != step] == uninterrupted


def losses(run_dir: Path) -> list[tuple[int, float]]:
    """Of each step that has a line, in the order in which they were done."""
    return [(event["step"], event["loss"]) for event in events(run_dir, "train")]


@pytest.mark.parametrize(
    "flags",
    [pytest.param(flags, marks=SCALED if "fp16" in flags else (), id=" ".join(flags)) for flags in EACH],
)
def test_stopped_at_each_moment_of_two_epochs(
    here: Here, own: Path, tmp_path: Path, ask_at: AskAt, flags: tuple[str, ...]
) -> None:
    """Fault F12: the four steps of each epoch, its end, its validation; the last step is a short one.

    Settings whose state is in that of others have a few of these moments.
    """
    every = 1 if flags in WITH_EACH_STATE else 4
    stops = list(each_stop(here, ask_at, tmp_path, *OURS, *flags, every=every))
    assert all(exact for *_, exact in stops), stops
    positions = [position for *position, _ in stops]
    whole = everything(tmp_path / "whole")

    ends = [[0, 0], [1, 8], [2, 16], [3, 24], [4, 0], [4, 0], [5, 8], [6, 16], [7, 24], [8, 0], [8, 0]]
    assert positions == ends[::every]  # twice after a last step: before the validation, and in it
    assert set(whole["ema"]) == (
        {f"{layer}.{what}" for layer in (0, 1, 5) for what in ("weight", "bias")}
        | {"1.running_mean", "1.running_var"}
        if "--ema" in flags
        else set()
    )
    assert bool(whole["scaler"]) == ("fp16" in flags)


@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_a_checkpoint_without_fused_optimizers_will_do(
    here: Here, own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """As older versions made them, and older versions of torch. The steps differ in rounding at most."""
    flags = (*PLAIN, "--optimizer", name, "--lr", "0.01")

    with monkeypatch.context() as patched:
        patched.setattr(optimizer, "_fused", unfused)
        assert here(tmp_path / "run", *flags).code == 0
        assert here(tmp_path / "plain", *flags, "--epochs", "2").code == 0
    before = everything(tmp_path / "run")["optimizer"]["param_groups"]
    ended = here(tmp_path / "run", *flags, "--epochs", "2")
    after = everything(tmp_path / "run")["optimizer"]["param_groups"]

    assert ended.code == 0, ended.err
    there = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 4)  # the first that fuses on CPUs
    assert [bool(group.get("fused")) for group in before + after] == [False, False, there, there]
    fused, plain_ones = weights(tmp_path / "run"), weights(tmp_path / "plain")
    assert all(torch.allclose(fused[key], plain_ones[key], atol=1e-6) for key in fused)
    assert here(tmp_path / "run", *flags, "--epochs", "3").code == 0


def test_a_torch_without_fused_optimizers_will_do() -> None:
    def refuses(groups: list[dict[str, Any]], *, lr: float, fused: bool = False) -> torch.optim.Optimizer:
        """As AdamW of torch 2.2 on the CPU: it notes what was asked for, and then refuses."""
        for group in groups:
            group["fused"] = group.get("fused", fused)
        if fused:
            raise RuntimeError("`fused=True` requires all the params to be on a GPU")
        return torch.optim.SGD(groups, lr=lr)

    made = optimizer._fused(refuses, [{"params": [torch.zeros(2)]}], lr=0.1)

    assert [group["fused"] for group in made.param_groups] == [False]


def test_twenty_stops_in_one_run(here: Here, own: Path, tmp_path: Path, ask_at: AskAt) -> None:
    """Fault F17."""
    both = (*OURS, *OFTEN, *EACH[1], "--epochs", "6")
    ask_at(0)
    here(tmp_path / "whole", *both)
    codes = [75]
    while codes[-1] == 75 and len(codes) < 60:
        ask_at(2 + len(codes) % 2)  # a life that ends in its validation gains nothing, the next one does
        codes.append(here(tmp_path / "parts", *both).code)

    assert codes == [75] * (len(codes) - 1) + [0]
    assert len(codes) > 21
    assert equal(everything(tmp_path / "parts"), everything(tmp_path / "whole"))
    assert [epoch["loss"] for epoch in events(tmp_path / "parts", "epoch")] == [
        epoch["loss"] for epoch in events(tmp_path / "whole", "epoch")
    ]


def test_parts_and_processes_change_nothing_but_rounding(
    trainers: Trainers, here: Here, own: Path, tmp_path: Path
) -> None:
    """Two processes in two parts each, with a short last step, as against one process in one part."""
    both = (*PLAIN, "--ema", "0.9", "--clip-norm", "0.5", "--optimizer", "sgd", "--lr", "0.1")
    first = here(tmp_path / "one", *both)
    more = ("--epochs", "1", "--accumulate", "2")
    two = trainers.run_ranks(2, tmp_path / "two", *both, *more, env={"PYTHONPATH": str(own)})

    assert [first.code, two.code] == [0, 0], two.err
    alone, shared = everything(tmp_path / "one"), everything(tmp_path / "two")
    for part in ("model", "ema"):
        assert all(torch.allclose(alone[part][name], shared[part][name], atol=1e-6) for name in alone[part])
    assert alone["step"] == shared["step"] == 4


def test_the_mean_is_what_is_evaluated(here: Here, own: Path, tmp_path: Path) -> None:
    flags = (*OURS, "--ema", "0.9")
    here(tmp_path / "run", *flags)
    best = str(tmp_path / "run" / "checkpoints" / "best.pt")
    loss = f"{events(tmp_path / 'run', 'epoch')[0]['loss']:.6f}"
    scores = [
        here(tmp_path / "run", *flags, "--evaluate").out,
        here(tmp_path / "run", *OURS, "--evaluate").out,
        here(tmp_path / "none", *OURS, "--evaluate", "--init-from", best).out,
    ]

    assert [f"Avg Loss: {loss}" in score for score in scores] == [True] * 3
    assert not equal(weights(tmp_path / "run"), everything(tmp_path / "run")["ema"])


def test_a_setting_that_is_new_does_not_end_a_run_without_it(here: Here, own: Path, tmp_path: Path) -> None:
    here(tmp_path, *OURS)
    path = tmp_path / status(tmp_path)["checkpoint"]
    state = torch.load(path, weights_only=True)
    for name in ("scaler", "ema"):
        del state[name]
    for name in ("ema", "accumulate", "clip_norm", "label_smoothing"):
        del state["config"][name]
    torch.save(state, path)
    more = here(tmp_path, *OURS, "--epochs", "2")
    other = here(tmp_path, *OURS, "--epochs", "3", "--accumulate", "2")
    allowed = here(tmp_path, *OURS, "--epochs", "3", "--ema", "0.9", "--allow-config-change")

    assert [more.code, other.code, allowed.code] == [0, 1, 0], allowed.err
    assert "accumulate is 2, but was 1" in other.err


def test_compiling_is_asked_for(
    here: Here, own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = []

    def record(model: torch.nn.Module, *, dynamic: bool) -> torch.nn.Module:
        compiled.append(model)
        return model

    monkeypatch.setattr(torch, "compile", record)
    assert here(tmp_path / "plain", *OURS).code == 0
    assert not compiled
    assert here(tmp_path / "fast", *OURS, "--compile").code == 0
    assert len(compiled) == 1


@pytest.mark.parametrize("flags", [(), ("--precision", "bf16", "--accumulate", "2", "--ema", "0.9")])
def test_computing_activations_again_changes_nothing(
    here: Here, own: Path, tmp_path: Path, flags: tuple[str, ...]
) -> None:
    for name, more in (("kept", ()), ("recomputed", AGAIN)):
        ended = here(tmp_path / name, *OURS, *flags, *more)
        assert ended.code == 0, ended.err

    assert "1.running_mean" in everything(tmp_path / "kept")["model"]
    assert equal(everything(tmp_path / "kept"), everything(tmp_path / "recomputed"))


def test_nor_does_it_in_two_processes_for_a_part_of_the_run(
    trainers: Trainers, own: Path, tmp_path: Path
) -> None:
    env = {"PYTHONPATH": str(own)}
    flags = (*OURS, "--epochs", "2", "--save-every", "1", "--keep", "9")
    kept = trainers.run_ranks(2, tmp_path / "kept", *flags, env=env)
    half = str(tmp_path / "kept" / "checkpoints" / "step-00000003.pt")
    rest = trainers.run_ranks(2, tmp_path / "rest", *flags, *AGAIN, "--resume", half, env=env)

    assert [kept.code, rest.code] == [0, 0], kept.err + rest.err
    assert equal(everything(tmp_path / "kept"), everything(tmp_path / "rest"))


def test_with_loaders_that_are_signalled_too(trainers: Trainers, own: Path, tmp_path: Path) -> None:
    env = {"PYTHONPATH": str(own)}
    whole = trainers.run_ranks(2, tmp_path / "whole", *OURS, env=env)
    ranks = tasks(trainers, (tmp_path / "halves",) * 2, *OURS, *SLOW, "--workers", "1", env=env)
    wait_for(lambda: events(tmp_path / "halves", "train"), "progress")
    for rank in ranks:
        os.killpg(rank.pid, signal.SIGTERM)  # as Slurm does
    stopped = [finish(rank).code for rank in ranks]
    resumed = trainers.run_ranks(2, tmp_path / "halves", *OURS, "--workers", "2", env=env)

    assert [whole.code, *stopped, resumed.code] == [0, 75, 75, 0], resumed.err
    assert equal(everything(tmp_path / "halves"), everything(tmp_path / "whole"))
