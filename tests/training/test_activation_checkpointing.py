"""Activations that are computed again: the same run to the bit, with less kept."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from training.config import parse
from training.data.datasets import Data
from training.data.images import import_torchvision
from training.data.splits import InMemory, Norm
from training.errors import UserError
from training.model.activation_checkpointing import Stages, checkpoint_activations
from training.model.models import build_model

from .states import equal

FLAG = "--activation-checkpointing"


def kept_bytes(model: nn.Module, x_BCHW: torch.Tensor) -> int:
    """Run a step's passes; what autograd keeps between them, each tensor counted once, weights not."""
    own_memory = {weight.data_ptr() for weight in model.parameters()} | {x_BCHW.data_ptr()}
    sizes: dict[int, int] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        sizes[tensor.data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    torch.manual_seed(2)
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        logits_BK = model(x_BCHW)
    torch.autograd.backward(logits_BK.square().mean())
    return sum(size for pointer, size in sizes.items() if pointer not in own_memory)


@pytest.mark.proof
@pytest.mark.parametrize("name", ["resnet18", "resnet50", "mobilenet_v2", "efficientnet_b0"])
def test_gradients_and_statistics_of_torchvisions_models_are_the_same(name: str) -> None:
    models = import_torchvision("").models
    x_BCHW = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(1))
    results, passes = [], list[int]()
    for change in (lambda model: model, checkpoint_activations):
        torch.manual_seed(1)
        model = change(models.get_model(name, num_classes=4)).train()
        blocks = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
        before = len(passes)
        handles = [block.register_forward_hook(lambda *_: passes.append(1)) for block in blocks]
        kept = kept_bytes(model, x_BCHW)
        for handle in handles:
            handle.remove()
        gradients = {key: weight.grad for key, weight in model.named_parameters()}
        results.append((kept, (len(passes) - before) / len(blocks), gradients, model.state_dict()))
    (kept, once, *plain), (less, often, *again) = results

    assert once == 1
    assert (
        1.5 < often <= 2
    )  # the first norm of a ResNet is in no stage, and a pass ends where nothing is missing
    assert less < 0.6 * kept
    assert equal(plain, again)


@pytest.mark.proof
def test_convnet_is_recomputed_in_pieces() -> None:
    images = torch.zeros(4, 1, 28, 28, dtype=torch.uint8)
    split = InMemory(images_NCHW=images, labels_N=torch.arange(4), norm=Norm())
    data = Data(train=split, validation=split, classes=4, shape_CHW=(1, 28, 28))
    plain, again = (build_model(parse(list(flags)), data).train() for flags in ((), (FLAG,)))
    x_BCHW = torch.randn(4, 1, 28, 28)

    assert kept_bytes(again, x_BCHW) < 0.6 * kept_bytes(plain, x_BCHW)
    assert isinstance(again, Stages)
    assert equal(plain.state_dict(), again.state_dict())
    assert equal(
        [weight.grad for weight in plain.parameters()], [weight.grad for weight in again.parameters()]
    )


@pytest.mark.parametrize("method", ["set_grad_checkpointing", "gradient_checkpointing_enable"])
def test_a_model_with_a_method_of_its_own_is_asked(method: str) -> None:
    asked = []
    model = nn.Sequential(nn.Linear(1, 1))
    setattr(model, method, lambda: asked.append(method))

    assert checkpoint_activations(model) is model
    assert asked == [method]


def test_a_model_that_offers_nothing_is_refused() -> None:
    for model in (nn.Linear(1, 1), nn.ModuleList([nn.Sequential(nn.ReLU())])):
        with pytest.raises(
            UserError, match=r"has no stages to recompute; fix: leave it out, or give the model"
        ):
            checkpoint_activations(model)
