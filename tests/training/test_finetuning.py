"""Fine-tuning: weights of another number of classes, frozen parts, a rate of the head."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from training.config import parse
from training.errors import UserError
from training.model.models import freeze, head_of, load_all_but_head, train_mode
from training.model.optimizer import build_optimizer, set_lr

from . import vision
from .states import weights
from .trainers import Here

vision.fit()
from torchvision import models  # type: ignore[import-untyped,unused-ignore]  # noqa: E402 - after vision.fit

OLD, NEW = 1000, 4
# one of each family: their heads are layers of several kinds, places and names
FAMILIES = (
    *("resnet18", "vgg11", "densenet121", "mobilenet_v3_small", "squeezenet1_1", "googlenet", "inception_v3"),
    *(
        "efficientnet_b0",
        "convnext_tiny",
        "vit_b_16",
        "swin_t",
        "shufflenet_v2_x0_5",
    ),
)


def made(name: str, classes: int, **how: Any) -> nn.Module:
    """A model without memory for its weights."""
    with torch.device("meta"):
        model: nn.Module = models.get_model(name, weights=None, num_classes=classes, **how)
    return model


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("name", FAMILIES)
def test_the_head_of_torchvisions_models_has_an_output_for_each_class(name: str) -> None:
    model = made(name, NEW)
    sizes = {tuple(model.get_parameter(weight).shape)[:1] for weight in head_of(model)}
    assert sizes == {(NEW,)}


def a_net(classes: int, *, side: int = 3) -> nn.Module:
    torch.manual_seed(classes)
    return nn.Sequential(nn.Conv2d(3, 8, side), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(8, classes))


@pytest.mark.parametrize("prefix", ["", "module."])
def test_weights_of_other_classes_are_taken_without_their_head(prefix: str) -> None:
    old, new = a_net(OLD), a_net(NEW)
    first = new[3].weight.clone()  # type: ignore[index]
    given = {f"{prefix}{name}": value for name, value in old.state_dict().items()}
    assert load_all_but_head(new, given, "old.pt", classes=NEW) == ["3.bias", "3.weight"]
    assert torch.equal(new[0].weight, old[0].weight)  # type: ignore[index]
    assert torch.equal(new[3].weight, first)  # type: ignore[index]


def test_a_file_without_a_head_is_taken() -> None:
    old, new = a_net(OLD), a_net(NEW)
    given = {name: value for name, value in old.state_dict().items() if not name.startswith("3.")}
    assert load_all_but_head(new, given, "old.pt", classes=NEW) == ["3.bias", "3.weight"]


def test_both_heads_of_a_model_with_two_are_left() -> None:
    old, new = (
        models.get_model("googlenet", weights=None, num_classes=n, init_weights=False) for n in (9, NEW)
    )
    left = load_all_but_head(new, old.state_dict(), "old.pt", classes=NEW)
    assert left == [
        f"{head}.{part}" for head in ("aux1.fc2", "aux2.fc2", "fc") for part in ("bias", "weight")
    ]


def test_another_body_is_refused() -> None:
    with pytest.raises(UserError, match="weights are of another model"):
        load_all_but_head(a_net(NEW), a_net(OLD, side=5).state_dict(), "old.pt", classes=NEW)


def test_frozen_weights_and_statistics_stay_and_the_others_do_not() -> None:
    model = a_net(NEW)
    freeze(model, parse(["--freeze", "0.*,1.*"]))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    optimizer = build_optimizer(parse(["--optimizer", "sgd"]), model)
    train_mode(model)
    model(torch.rand(4, 3, 3, 3)).square().sum().backward()
    optimizer.step()
    changed = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert changed == {"3.weight", "3.bias"}


@pytest.mark.parametrize(
    ("pattern", "message"), [("fc.*", "names no weight"), ("*", "leaves nothing to train")]
)
def test_a_pattern_that_cannot_be_meant_is_refused(pattern: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        freeze(a_net(NEW), parse(["--freeze", pattern]))


def test_a_rate_for_a_head_that_is_kept_is_refused() -> None:
    flags = ("--optimizer", "sgd", "--head-lr", "1", "--freeze")
    with pytest.raises(UserError, match=r"keeps the head, so --head-lr would change nothing; fix: leave"):
        freeze(a_net(NEW), parse([*flags, "3.*"]))
    freeze(a_net(NEW), parse([*flags, "0.*"]))


def test_the_head_has_a_rate_in_proportion() -> None:
    model = a_net(NEW)
    optimizer = build_optimizer(parse(["--optimizer", "sgd", "--lr", "0.1", "--head-lr", "1"]), model)
    set_lr(optimizer, 0.05)
    rates = {id(weight): group["lr"] for group in optimizer.param_groups for weight in group["params"]}
    assert rates[id(model[3].weight)] == pytest.approx(0.5)  # type: ignore[index]
    assert rates[id(model[0].weight)] == 0.05  # type: ignore[index]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("ending", ["pt", "safetensors"])
def test_a_run_says_what_it_left_and_resumes(here: Here, tmp_path: Path, ending: str) -> None:
    assert here(tmp_path / "digits").code == 0
    given = torch.load(tmp_path / "digits" / "model.pt", weights_only=True)
    given |= {"fc2.weight": torch.zeros(5, 128), "fc2.bias": torch.zeros(5)}
    path = tmp_path / f"five.{ending}"
    if ending == "pt":
        torch.save(given, path)
    else:
        pytest.importorskip("safetensors.torch").save_file(given, path)
    flags = ("--init-from", str(path), "--freeze", "conv*", "--head-lr", "0.5")
    ended = here(tmp_path / "tuned", *flags)
    assert ended.code == 0, ended.err
    assert f"Weights of {path}, but not of another number of classes: fc2.bias, fc2.weight" in ended.out
    trained = weights(tmp_path / "tuned")
    assert torch.equal(trained["conv1.weight"], given["conv1.weight"])
    assert not torch.equal(trained["fc1.weight"], given["fc1.weight"])
    assert here(tmp_path / "tuned", *flags, "--epochs", "2").code == 0


def test_an_evaluation_takes_no_weights_of_other_classes(here: Here, tmp_path: Path) -> None:
    assert here(tmp_path / "digits").code == 0
    given = torch.load(tmp_path / "digits" / "model.pt", weights_only=True)
    torch.save(given | {"fc2.weight": torch.zeros(5, 128), "fc2.bias": torch.zeros(5)}, tmp_path / "five.pt")
    ended = here(tmp_path / "other", "--init-from", str(tmp_path / "five.pt"), "--evaluate")
    assert ended.code == 1
    assert "weights are of another model" in ended.err


def test_safetensors_are_asked_for_by_name(
    tmp_path: Path, here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "safetensors.torch", None)
    (tmp_path / "w.safetensors").write_bytes(b"")
    ended = here(tmp_path / "run", "--init-from", str(tmp_path / "w.safetensors"))
    assert "pip install safetensors" in ended.err
