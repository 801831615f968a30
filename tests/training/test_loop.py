"""The mathematics of a step and of an evaluation, with the processes played one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from training.config import Config, parse
from training.data.datasets import Data
from training.data.order import share
from training.data.splits import InMemory, Norm
from training.errors import NotFiniteError, UserError
from training.model import optimizer
from training.model.optimizer import Ema, Updater, build_optimizer, lr_at
from training.model.precision import build_scaler
from training.model.tasks import build_task
from training.output.log import Log
from training.processes.stop import REASONS, Stop
from training.processes.world import World
from training.run import agreement, evaluation, loop
from training.run.session import Progress, Session


class Silent(Stop):
    """Asks for nothing, and leaves the signals of the test process alone."""

    def __init__(self) -> None:
        self._requested = [False] * len(REASONS)
        self._file = None


def session(tmp_path: Path, *, rank: int, size: int, samples: int = 13) -> Session:
    """One of `size` processes, without a process group."""
    config: Config = replace(
        parse(["--optimizer", "sgd", "--lr", "1", "--momentum", "0", "--eval-batch", "4"]),
        run_dir=str(tmp_path),
        batch_size=16 if size == 8 else 6,
    )
    generator = torch.Generator().manual_seed(5)
    images = torch.randn(samples, 1, 2, 2, generator=generator)
    split = InMemory(images_NCHW=images.double(), labels_N=torch.arange(samples) % 3, norm=Norm())
    torch.manual_seed(7)
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3)).double()
    world = World(
        rank=rank,
        size=size,
        local_rank=rank,
        device=torch.device("cpu"),
        backend="gloo" if size > 1 else "",
        threads=1,
        host="here",
    )
    data = Data(train=split, validation=split, classes=3, shape_CHW=(1, 2, 2))
    return Session(
        config=config,
        world=world,
        log=Log(run_dir=tmp_path, speaks=False),
        stop=Silent(),
        data=data,
        task=build_task(config, data),
        model=model,
        training_model=model,
        updater=Updater(optimizer=build_optimizer(config, model)),
    )


def unfused(kind: Callable[..., torch.optim.Optimizer], groups: Any, **how: Any) -> torch.optim.Optimizer:
    """In place of `optimizer._fused`."""
    return kind(groups, **how)


def batch(made: Session, index_B: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return next(iter(made.data.train.batches([index_B], epoch=0)))


def gradient(made: Session) -> torch.Tensor:
    weight = next(made.model.parameters())
    assert weight.grad is not None
    return weight.grad


@pytest.mark.parametrize("count", [1, 2, 5, 6])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_averaged_gradients_are_those_of_one_process(tmp_path: Path, size: int, count: int) -> None:
    order_N = torch.arange(13)
    gradients = []
    sums = torch.zeros(3, dtype=torch.float64)
    for rank in range(size):
        made = session(tmp_path, rank=rank, size=size)
        tally = loop.Tally(made)
        mine = share(order_N, 4, count, rank=rank, size=size)
        loop.train_step(made, iter([batch(made, mine)]), [count], tally, step=0)
        sums += tally.total()
        gradients.append(gradient(made))
    alone = session(tmp_path, rank=0, size=1)
    x, y = batch(alone, order_N[4 : 4 + count])
    loss = nn.functional.cross_entropy(alone.model(x), y)
    torch.autograd.backward(loss)

    assert torch.allclose(torch.stack(gradients).mean(dim=0), gradient(alone), atol=1e-6)
    assert sums[0].item() == pytest.approx(count * loss.item(), rel=1e-6)
    assert sums[2] == count


@pytest.mark.sampled(12)
@pytest.mark.parametrize("samples", range(1, 34))
@pytest.mark.parametrize("size", [1, 2, 3])
def test_an_evaluation_is_exact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, samples: int, size: int
) -> None:
    parts: list[torch.Tensor] = []

    def keep(_world: World, values: torch.Tensor) -> torch.Tensor:
        if (
            len(values) == 4 + 3 * 4
        ):  # with the counts of three classes; not those of a synchronisation on the way
            parts.append(values.clone())
        return torch.cat((values[:3].clamp(min=1), values[3:]))

    monkeypatch.setattr(evaluation, "copy_from_rank0", lambda _world, _tensors: None)
    monkeypatch.setattr(agreement, "reduce_sum", keep)
    for rank in range(size):
        evaluation.evaluate(session(tmp_path, rank=rank, size=size, samples=samples))
    loss, correct, count, *confused, problems = torch.stack(parts).sum(dim=0).tolist()
    whole = session(tmp_path, rank=0, size=1, samples=samples)
    x, y = batch(whole, torch.arange(samples))
    logits = whole.model(x).float()

    assert (count, problems) == (samples, 0) == (sum(confused), 0)
    assert correct == (logits.argmax(dim=1) == y).sum()
    assert loss == pytest.approx(nn.functional.cross_entropy(logits, y, reduction="sum").item(), rel=1e-5)


@pytest.mark.parametrize("classes", [10, 11, 40])
def test_the_top_5_accuracy_is_told_of_more_than_10_classes(tmp_path: Path, classes: int) -> None:
    made = session(tmp_path, rank=0, size=1, samples=300)
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, classes)).double()
    split = made.data.validation
    assert isinstance(split, InMemory)
    split = InMemory(split.images_NCHW, torch.arange(300) % classes, Norm())
    data = replace(made.data, validation=split, classes=classes)
    names = ("accuracy", "top5")[: 1 + (classes > 10)]
    made = replace(made, model=model, data=data, task=replace(build_task(made.config, data), names=names))
    score = evaluation.evaluate(made)
    logits = model(split.images_NCHW.flatten(1)).tolist()
    first_5 = [sorted(range(classes), key=row.__getitem__)[-5:] for row in logits]
    share = sum(int(label) in best for label, best in zip(split.labels_N, first_5, strict=True)) / 300

    assert score.metrics.get("top5") == (share if classes > 10 else None)
    assert str(score).partition("%")[2] == (f", Top-5: {100 * share:.2f}%" if classes > 10 else "")


@pytest.mark.parametrize("count", [1, 3, 4, 6])
@pytest.mark.parametrize("part", [1, 2, 4])
def test_parts_of_a_step_add_up_to_the_whole(tmp_path: Path, part: int, count: int) -> None:
    """Also where the last part is short."""
    whole, parted = (session(tmp_path, rank=0, size=1) for _ in range(2))
    cuts = [torch.arange(first, min(first + part, count)) for first in range(0, count, part)]
    tallies = loop.Tally(whole), loop.Tally(parted)
    loop.train_step(whole, iter([batch(whole, torch.arange(count))]), [count], tallies[0], step=0)
    lengths = [len(cut) for cut in cuts]
    loop.train_step(parted, iter([batch(parted, cut) for cut in cuts]), lengths, tallies[1], step=0)

    assert torch.allclose(gradient(whole), gradient(parted), atol=1e-7)
    assert torch.allclose(tallies[0].total(), tallies[1].total())


def test_gradients_are_cut_to_the_length_asked_for(tmp_path: Path) -> None:
    made = session(tmp_path, rank=0, size=1)
    made = replace(made, config=replace(made.config, clip_norm=0.01))
    loop.train_step(made, iter([batch(made, torch.arange(6))]), [6], loop.Tally(made), step=0)

    lengths = [weight.grad.norm() for weight in made.model.parameters() if weight.grad is not None]
    assert torch.stack(lengths).norm().item() == pytest.approx(0.01, rel=1e-3)


@pytest.mark.skipif(not hasattr(torch.amp, "GradScaler"), reason="this torch has no loss scale for the CPU")
def test_an_overflow_under_a_loss_scale_changes_no_weight(tmp_path: Path) -> None:
    made = session(tmp_path, rank=0, size=1)
    scaler = build_scaler(parse(["--precision", "fp16"]), made.world.device)
    scaler.load_state_dict(scaler.state_dict() | {"scale": 1e38})
    made = replace(made, updater=replace(made.updater, scaler=scaler))
    before = [weight.detach().clone() for weight in made.model.float().parameters()]
    x, y = batch(made, torch.arange(6))
    loop.train_step(made, iter([(x.float() * 1e9, y)]), [6], loop.Tally(made), step=0)

    assert all(map(torch.equal, before, made.model.parameters()))
    assert scaler.get_scale() < 1e38


@pytest.fixture
def poisoned(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Memory without contents is NaN."""
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", True)
    torch._C._set_deterministic_algorithms(True, warn_only=False)
    yield
    torch._C._set_deterministic_algorithms(False, warn_only=False)


@pytest.mark.skipif(not hasattr(torch.amp, "GradScaler"), reason="this torch has no loss scale for the CPU")
@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize(
    "first", [0, 1], ids=["logged", "fused"]
)  # the log's step unscales before the optimizer
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("kind", ["sgd", "sgd --momentum 0", "adamw", "adadelta"])
def test_no_step_reads_memory_without_contents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, precision: str, first: int
) -> None:
    """With fp16 the first step overflows: that of torch's fused SGD would leave its momentum unwritten."""
    config = parse(["--precision", precision, "--lr", "0.01", "--optimizer", *kind.split()])
    states = []
    for plain in (False, True):
        made = session(tmp_path, rank=0, size=1)
        model = made.model.float()
        with monkeypatch.context() as patched:
            if plain:
                patched.setattr(optimizer, "_fused", unfused)
            updater = Updater(build_optimizer(config, model), build_scaler(config, made.world.device))
        made = replace(made, config=config, updater=updater)
        assert torch.empty(3).isnan().all()
        for step, loud in enumerate((1e9 if precision == "fp16" else 1.0, 1.0, 1.0), start=first):
            x, y = batch(made, torch.arange(6))
            loop.train_step(made, iter([(x.float() * loud, y)]), [6], loop.Tally(made), step=step)
        states.append([kept for state in updater.optimizer.state.values() for kept in state.values()])
        states[-1] += [weight.detach() for weight in model.parameters()]
        assert updater.scaler is None or updater.scaler.get_scale() < 65536

    assert all(map(torch.allclose, *states)), states


def test_a_torch_without_a_loss_scale_for_the_cpu_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.amp, "GradScaler", raising=False)

    with pytest.raises(UserError, match=r"needs torch 2.3 or later.*fix: --precision bf16"):
        build_scaler(parse(["--precision", "fp16"]), torch.device("cpu"))


def test_a_mean_of_the_weights(tmp_path: Path) -> None:
    model = nn.Linear(1, 1, bias=False)
    model.weight.data.fill_(1)
    mean = Ema(model, 0.5)
    model.weight.data.fill_(3)
    mean.update(0)  # so early it forgets more: 1/10 stays
    assert mean.means["weight"].item() == pytest.approx(2.8)
    mean.update(1000)
    assert mean.means["weight"].item() == pytest.approx(2.9)
    with mean.in_place():
        assert model.weight.item() == pytest.approx(2.9)
    assert model.weight.item() == 3


def test_a_loss_that_is_not_finite_ends_the_run(tmp_path: Path) -> None:
    values = torch.tensor([float("nan"), 0, 6], dtype=torch.float64)

    with pytest.raises(NotFiniteError, match="loss is not finite at step 7"):
        agreement.synchronise(session(tmp_path, rank=0, size=1), Progress(step=7), values, saves=False)


def test_a_weight_that_is_not_finite_is_not_saved(tmp_path: Path) -> None:
    made = session(tmp_path, rank=0, size=1)
    list(made.model.parameters())[1].data[0] = float("inf")

    with pytest.raises(NotFiniteError, match="a weight"):
        agreement.synchronise(made, Progress(step=7), torch.ones(3, dtype=torch.float64), saves=True)


@pytest.mark.parametrize(
    ("flags", "rates"),
    [
        (["--schedule", "constant"], [1, 1, 1, 1]),
        (["--schedule", "step", "--gamma", "0.5"], [1, 1, 0.5, 0.5]),
        (["--optimizer", "sgd", "--gamma", "0.5", "--step-size", "2"], [1, 1, 1, 1]),
        (["--schedule", "cosine"], [1, 0.8536, 0.5, 0.1464]),
        (["--schedule", "constant", "--warmup-epochs", "1"], [1 / 3, 2 / 3, 1, 1]),
    ],
)
def test_learning_rates(flags: list[str], rates: list[float]) -> None:
    config = parse(["--lr", "1", "--epochs", "2", *flags])

    all_rates = [lr_at(config, *divmod(step, 2), steps_per_epoch=2) for step in range(4)]
    assert all_rates == pytest.approx(rates, abs=1e-4)


def test_the_sum_of_the_losses_does_not_depend_on_where_a_run_was_interrupted() -> None:
    torch.manual_seed(1)
    steps = [loop.sums_of(losses_B) for losses_B in torch.rand(200, 8) ** 12 * 5]
    for cut in (1, 60, 133):
        parts = (sum(part, torch.zeros(2, dtype=torch.float64)) for part in (steps[:cut], steps[cut:]))
        assert torch.equal(next(parts) + next(parts), sum(steps, torch.zeros(2, dtype=torch.float64)))


@pytest.mark.parametrize(
    ("parts", "small"), [(1, 1 << 20), (3, 1 << 20), (16, 1 << 20), (16, 0), (16, 5 * 3)]
)
def test_sums_are_the_same_however_many_outputs_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parts: int, small: int
) -> None:
    """To the bit: an interrupted run adds them up at other steps. The last two keep none, or the short one."""
    made = session(tmp_path, rank=0, size=1)
    torch.manual_seed(2)
    steps = [(torch.rand(n), torch.randn(n, 3), torch.randint(3, (n,))) for n in (6,) * 40 + (5,)]
    parts_of = [loop.sums_of(losses_B, logits_BK.argmax(1) == y_B) for losses_B, logits_BK, y_B in steps]
    whole = torch.stack(parts_of).sum(dim=0)
    monkeypatch.setattr(loop, "MAX_KEPT_PARTS", parts)
    monkeypatch.setattr(loop, "MAX_KEPT_VALUES", small)
    tally = loop.Tally(made)
    for step in steps:
        tally.add(*step)
        assert len(tally._parts) < parts

    assert torch.equal(tally.total(), whole)
    assert tally.total()[2] == 245
