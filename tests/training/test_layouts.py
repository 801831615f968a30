"""The state of an optimizer follows the memory format of its weights, whatever it was when it was saved."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
import torch
from torch import nn

from training.config import parse
from training.model import optimizer
from training.model.optimizer import build_optimizer, load_state

from .states import equal, everything, weights
from .test_finetuned import stripes
from .test_loop import unfused
from .trainers import Here, status

OWN = """
    from torch import nn

    def model(config):
        layers = nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(1600, 10)
        made = nn.Sequential(*layers).double()
        made.register_forward_pre_hook(lambda _, inputs: inputs[0].double())
        return made
"""
KINDS = pytest.mark.parametrize("kind", ["sgd", "adamw", "adadelta"])


@pytest.fixture
def flags(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    (tmp_path / "layouts_own.py").write_text(textwrap.dedent(OWN))
    monkeypatch.syspath_prepend(str(tmp_path))
    return ("--model", "layouts_own:model", "--lr", "0.01")


def far(first: Path, other: Path) -> float:
    """The largest difference of a weight."""
    both = weights(first), weights(other)
    return max((both[0][name] - both[1][name]).abs().max().item() for name in both[0])


@pytest.mark.proof
@KINDS
@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("last", [True, False])
def test_channels_last_may_change_at_a_resume(
    here: Here,
    tmp_path: Path,
    flags: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    *,
    fused: bool,
    last: bool,
) -> None:
    """In float64: the formats round differently, and in float32 that gives a ReLU's input near 0 another sign.

    The gradient then lacks one pixel, and weights differ by 5e-5, as they do without a resume.
    """
    if not fused:
        monkeypatch.setattr(optimizer, "_fused", unfused)
    first, then = ((), ("--channels-last",)) if last else (("--channels-last",), ())
    for name, more in (("same", first), ("changed", then)):
        here(tmp_path / name, *flags, "--optimizer", kind, *first)
        ended = here(tmp_path / name, *flags, "--optimizer", kind, *more, "--epochs", "2")
        assert ended.code == 0, ended.err

    assert far(tmp_path / "same", tmp_path / "changed") < 1e-12


@pytest.mark.proof
@pytest.mark.parametrize("kind", ["sgd", "adamw"])
def test_a_checkpoint_of_a_gpu_resumes_on_a_cpu(here: Here, tmp_path: Path, kind: str) -> None:
    """There a convnet is laid out plainly, here by channels."""
    flags = ("--optimizer", kind, "--lr", "0.01")
    for name in ("cpu", "gpu"):
        assert here(tmp_path / name, *flags).code == 0
    state = everything(tmp_path / "gpu")
    for kept in state["optimizer"]["state"].values():
        kept.update({name: value.contiguous() for name, value in kept.items()})
    torch.save(state, tmp_path / "gpu" / status(tmp_path / "gpu")["checkpoint"])
    for name in ("cpu", "gpu"):
        assert here(tmp_path / name, *flags, "--epochs", "2").code == 0

    assert far(tmp_path / "cpu", tmp_path / "gpu") < 1e-6


@KINDS
def test_a_state_takes_the_strides_of_its_weight(kind: str) -> None:
    """On GPUs a fused optimizer refuses others."""
    config = parse(["--optimizer", kind])
    plain = nn.Conv2d(4, 8, 3)
    last = nn.Conv2d(4, 8, 3).to(memory_format=torch.channels_last)  # type: ignore[call-overload,unused-ignore]
    saved, loaded = build_optimizer(config, plain), build_optimizer(config, last)
    plain(torch.ones(1, 4, 5, 5)).sum().backward()
    saved.step()
    load_state(loaded, saved.state_dict())

    for weight, kept in loaded.state.items():
        for name in kept.keys() - {"step"}:
            assert kept[name].stride() == weight.stride()
    kept_before = list(saved.state_dict()["state"].values())
    kept_after = list(loaded.state_dict()["state"].values())
    for before, after in zip(kept_before, kept_after, strict=True):
        assert all(equal(before[name], after[name]) for name in before)


def test_steps_that_torch_2_2_has_counted_are_taken() -> None:
    """Its Adadelta counts by an int."""
    made = [build_optimizer(parse([]), nn.Linear(2, 2)) for _ in range(2)]
    torch.autograd.backward(sum(weight.sum() for group in made[0].param_groups for weight in group["params"]))
    made[0].step()
    stored = made[0].state_dict()
    for kept in stored["state"].values():
        kept["step"] = 1
    load_state(made[1], stored)

    assert [float(kept["step"]) for kept in made[1].state.values()] == [1, 1]


@pytest.mark.sampled(2, first=1)
@pytest.mark.parametrize("name", ["resnet18", "layouts_own:model"])
def test_models_of_torchvision_have_channels_last_on_a_cpu(
    here: Here, tmp_path: Path, flags: tuple[str, ...], name: str
) -> None:
    """There a step of ResNet-18 takes 0.87 of the time; of own models nothing is known."""
    for part in ("train", "val"):
        stripes(tmp_path / "data" / part, 2, seed=1)
    images = ("--dataset", "imagefolder", "--data-dir", str(tmp_path / "data"), "--train-crop", "32")
    if name == "resnet18":
        ended = here(tmp_path, *images, "--model", name, "--epochs", "1", "--workers", "0")
        assert ended.code == 0, ended.err
        assert "Chosen: 0 loaders, as many for validation (--workers)" in ended.out
    else:
        assert here(tmp_path, *flags, "--epochs", "1").code == 0
    weight = next(value for value in weights(tmp_path).values() if value.ndim == 4 and value.shape[1] > 1)
    assert weight.is_contiguous(memory_format=torch.channels_last) == (name == "resnet18")
