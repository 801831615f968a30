"""What is done on GPUs, without one: the order of calls, torch's own threads, shapes on the meta device, 8 ranks."""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import json
import os
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from training.config import parse
from training.data.splits import FromLoaders, InMemory, Norm
from training.errors import TORCH_ERRORS, UserError, explain
from training.model import optimizer
from training.model.optimizer import build_optimizer
from training.model.precision import Autocast, choose_kernels, wants_channels_last
from training.model.tasks import _accuracies
from training.processes import stacks, world
from training.processes.ranks import Place
from training.run import agreement, evaluation, loop, setup
from training.run.session import Progress, Session
from training.saving.writer import Copies

from .test_loop import batch, session, unfused
from .trainers import Here, Trainers, tasks, wait_for

OWN = """
    import os
    import threading
    import torch
    from torch import nn

    class Stuck(torch.utils.data.Dataset):
        classes = ("a", "b")

        def __init__(self, count):
            self.count = count

        def __len__(self):
            return self.count

        def __getitem__(self, index):
            if os.environ.get("SLURM_PROCID") == "1" and index == 20:
                threading.Event().wait()  # where_it_is_stuck
            return torch.rand(1, 8, 8), index % 2

    def data(config):
        return Stuck(32), Stuck(8)

    class Half(nn.Linear):
        def __init__(self):
            super().__init__(196, 10)
            self.unused = nn.Linear(3, 3)

        def forward(self, x):
            return super().forward(x.flatten(1))

    def half(config):
        return Half()

    def plain(config):
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 2))
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What a process needs to import it."""
    (tmp_path / "gpu_own.py").write_text(textwrap.dedent(OWN))
    monkeypatch.syspath_prepend(str(tmp_path))
    return {"PYTHONPATH": str(tmp_path)}


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Put torch's settings back."""
    for name in ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE", "CUBLAS_WORKSPACE_CONFIG"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.benchmark
    # torch's function loads the compiler, which torch of these tests leaves out, to set the same there
    choose = functools.partial(torch._C._set_deterministic_algorithms, warn_only=False)
    monkeypatch.setattr(torch, "use_deterministic_algorithms", choose)
    yield
    choose(False)
    torch.set_float32_matmul_precision(before[0])
    torch.backends.cudnn.benchmark = before[1]


def test_a_gpu_is_chosen_before_nccl_connects(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []

    def meet(backend: str, *, device_id: torch.device, **_: Any) -> None:
        calls.append(("init_process_group", backend, str(device_id)))

    store = dist.HashStore()  # type: ignore[attr-defined,unused-ignore]
    store.add("ready", 7)
    monkeypatch.setattr(world, "rendezvous", lambda *_, **_more: iter([(store, 6, 8)]))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: calls.append(("set_device", str(device))))
    monkeypatch.setattr(dist, "init_process_group", meet)
    place = Place(launcher="torchrun", rank=6, size=8, local_rank=2, local_size=4)
    joined = world.join(place, lambda: None, device="auto", backend="auto", timeout_s=9)

    assert calls == [("set_device", "cuda:2"), ("init_process_group", "nccl", "cuda:2")]
    assert (joined.backend, str(joined.device)) == ("nccl", "cuda:2")


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("backend", "ends"), [("nccl", ["destroy"]), ("gloo", [])])
def test_the_group_is_left_after_the_last_sum_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: str, ends: list[str]
) -> None:
    """NCCL's sums are asynchronous: reading the value waits. gloo's destructor may never end."""
    calls: list[str] = []
    read = torch.Tensor.item

    def item(tensor: torch.Tensor) -> Any:
        calls.append("item")
        return read(tensor)

    monkeypatch.setattr(torch.Tensor, "item", item)
    monkeypatch.setattr(dist, "all_reduce", lambda _tensor: calls.append("all_reduce"))
    monkeypatch.setattr(dist, "destroy_process_group", lambda: calls.append("destroy"))
    world.leave(replace(session(tmp_path, rank=0, size=2).world, backend=backend))

    assert calls == ["all_reduce", "item", *ends]


def test_copies_of_a_state_are_complete_before_they_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are asynchronous, into pinned memory."""
    calls: list[str] = []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: calls.append("synchronize"))

    def copy(_self: Copies, tensor: torch.Tensor, _place: int) -> torch.Tensor:
        calls.append("copy")
        return tensor

    monkeypatch.setattr(Copies, "_copy_tensor", copy)
    Copies().take({"a": torch.ones(2), "b": torch.ones(3)})

    assert calls == ["copy", "copy", "synchronize"]


@pytest.mark.parametrize(
    ("version", "names"),
    [
        ("2.2.2", ("TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")),
        ("2.14.1+cu130", ("TORCH_FR_BUFFER_SIZE", "TORCH_FR_DUMP_TEMP_FILE")),
    ],
)
def test_nccl_records_what_it_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, names: tuple[str, str]
) -> None:
    monkeypatch.setattr(importlib.metadata, "version", {"torch": version}.get)
    environment = stacks.with_recorder({names[0]: "77"}, str(tmp_path))

    file = f"{tmp_path}/nccl-rank-"
    assert environment == {names[0]: "77", names[1]: file, "TORCH_NCCL_DUMP_ON_TIMEOUT": "1"}


@pytest.mark.parametrize(("flags", "same"), [([], False), (["--deterministic"], True)])
def test_which_kernels_a_gpu_may_use(settings: None, flags: list[str], *, same: bool) -> None:
    choose_kernels(parse(flags), torch.device("cuda"))

    assert torch.are_deterministic_algorithms_enabled() is same
    assert torch.backends.cudnn.benchmark is not same
    assert torch.get_float32_matmul_precision() == "high"
    assert os.environ.get("CUBLAS_WORKSPACE_CONFIG") == (":4096:8" if same else None)


PLAIN = nn.Sequential(nn.Flatten(), nn.Linear(4, 4))
CONVOLVES = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten())


@pytest.mark.parametrize(
    ("flags", "device", "model", "wanted"),
    [
        ("--precision bf16", "cuda", CONVOLVES, True),
        ("--precision fp16 --model resnet50", "cuda", CONVOLVES, True),
        ("--precision bf16 --no-channels-last", "cuda", CONVOLVES, False),
        ("--precision bf16", "cuda", PLAIN, False),
        ("", "cuda", CONVOLVES, False),
        ("--channels-last", "cuda", CONVOLVES, True),
        ("--precision bf16 --model mine:model", "cuda", CONVOLVES, False),
        ("--precision bf16 --model mine:model --channels-last", "cuda", CONVOLVES, True),
        ("", "cpu", CONVOLVES, True),
        ("--no-channels-last", "cpu", CONVOLVES, False),
    ],
)
def test_which_memory_format_a_model_gets(flags: str, device: str, model: nn.Module, *, wanted: bool) -> None:
    assert wants_channels_last(parse(flags.split()), device, model) is wanted


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (
            "--precision bf16 --workers 3 --channels-last",
            "channels_last (--no-channels-last); the fastest kernels of cuDNN (--deterministic); 3",
        ),
        (
            "--deterministic --workers 0",
            "TF32 for products of fp32 (NVIDIA_TF32_OVERRIDE=0); channels_last: no (--channels-last); 0",
        ),
    ],
)
def test_what_was_chosen_on_a_gpu_is_said(tmp_path: Path, flags: str, line: str) -> None:
    made = session(tmp_path, rank=0, size=1)
    loaders = FromLoaders(cast("Any", [0]), norm=Norm(), device=torch.device("cpu"), workers=0)
    made = replace(made, config=parse(flags.split()), data=replace(made.data, train=loaders))
    made = replace(made, world=replace(made.world, device=torch.device("cuda")))

    loaded = " loaders with pinned memory, as many for validation (--workers)"
    assert "; ".join(setup._choices(made)) == line + loaded


def test_a_cpu_keeps_its_precision(settings: None, here: Here, tmp_path: Path) -> None:
    assert here(tmp_path, "--deterministic").code == 0

    assert torch.are_deterministic_algorithms_enabled()
    assert torch.get_float32_matmul_precision() == "highest"


@pytest.mark.skipif(not hasattr(torch, "accelerator"), reason="DataParallel of this torch needs a GPU")
@pytest.mark.parametrize(("precision", "dtype"), [("bf16", torch.bfloat16), ("fp32", torch.float32)])
def test_threads_of_dataparallel_compute_in_the_type_asked_for(
    monkeypatch: pytest.MonkeyPatch, precision: str, dtype: torch.dtype
) -> None:
    """In torch's own threads, which have autocast's default type, and on the CPU no autocast."""
    from torch.nn.parallel.parallel_apply import parallel_apply

    nothing = contextlib.nullcontext()
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_stream", lambda _device: nothing)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"))
    monkeypatch.setattr(torch.accelerator, "device_index", lambda _device: nothing)
    model = Autocast(nn.Linear(4, 3), parse(["--precision", precision]), torch.device("cpu"))
    outputs = parallel_apply([model, model], [torch.ones(2, 4)] * 2, devices=[0, 1])

    assert [output.dtype for output in outputs] == [dtype, dtype]


def test_dataparallel_has_the_model_that_computes_in_autocast(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = session(tmp_path, rank=0, size=1)
    made = replace(
        made,
        config=parse(["--dataparallel", "--precision", "bf16"]),
        world=replace(made.world, device=torch.device("cuda")),
    )
    monkeypatch.setattr(nn, "DataParallel", lambda model: [model])
    wrapped: Any = setup.wrap(made)[0]  # type: ignore[index]

    assert isinstance(wrapped, Autocast)
    assert wrapped.model is made.model


def test_a_model_is_compiled_inside_ddp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Around it, torch compiles nothing of an nn.Sequential (pytorch#140416)."""
    monkeypatch.setattr(torch, "compile", lambda model, **_: ("compiled", model))
    monkeypatch.setattr(setup, "DistributedDataParallel", lambda model, **_: ("DDP", model))
    made = session(tmp_path, rank=0, size=2)
    wrapped: Any = setup.wrap(replace(made, config=parse(["--compile"])))

    assert wrapped == ("DDP", ("compiled", made.model))


@pytest.mark.parametrize(("flags", "images"), [([], 3), (["--accumulate", "3"], 1)])
def test_the_warm_up_has_a_whole_batch_in_autocast(tmp_path: Path, flags: list[str], images: int) -> None:
    """Else what is compiled for it is of no use."""
    seen: list[tuple[int, torch.dtype]] = []

    class Sees(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            logits = super().forward(x.flatten(1))
            seen.append((len(x), logits.dtype))
            return logits

    made = session(tmp_path, rank=0, size=2)
    model = Sees(4, 3)
    setup.warm_up(
        replace(
            made,
            config=parse(["--precision", "bf16", "--batch-size", "6", *flags]),
            model=model,
            training_model=model,
        )
    )

    assert seen == [(images, torch.bfloat16)] * 2


@pytest.mark.parametrize("kind", ["sgd", "adamw", "adadelta"])
def test_a_step_has_the_right_shapes_on_the_meta_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Forward, backward, optimizer and metrics, where they need no values."""
    monkeypatch.setattr(optimizer, "_fused", unfused)
    model = session(tmp_path, rank=0, size=1).model.to("meta")
    made = build_optimizer(parse(["--optimizer", kind]), model)
    x_BCHW, y_B = torch.empty(6, 1, 2, 2, device="meta").double(), torch.empty(6, device="meta").long()
    logits_BK = model(x_BCHW)
    losses_B = nn.functional.cross_entropy(logits_BK, y_B, reduction="none")
    torch.autograd.backward(losses_B.sum())
    made.step()
    sums = loop.sums_of(losses_B, *_accuracies(logits_BK, y_B, top=True).values())

    assert (sums.device.type, sums.shape, sums.dtype) == ("meta", (4,), torch.float64)
    assert all(weight.grad is not None and weight.grad.is_meta for weight in model.parameters())


def done(tensor: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
    """What the fake group has instead of a sum."""
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    future.set_result(tensor)
    return future


@pytest.fixture
def eight(tmp_path: Path) -> Iterator[Session]:
    """Rank 0 of 8, whose collectives move nothing."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=8, store=FakeStore())
    made = session(tmp_path, rank=0, size=8, samples=40)
    assert isinstance(made.data.train, InMemory)
    split = InMemory(made.data.train.images_NCHW.float(), made.data.train.labels_N, Norm())
    made.model.float()
    data = replace(made.data, train=split, validation=split)
    trained = setup.wrap(made)
    assert isinstance(trained, DistributedDataParallel)
    trained.register_comm_hook(None, lambda _, bucket: done(bucket.buffer()))
    yield replace(made, data=data, training_model=trained)
    dist.destroy_process_group()


def test_eight_ranks_warm_up_step_and_agree(eight: Session) -> None:
    setup.warm_up(eight)
    tally = loop.Tally(eight)
    loop.train_step(eight, iter([batch(eight, torch.arange(2))]), [16], tally, step=0)
    progress = Progress(step=1)
    agreement.synchronise(eight, progress, tally.total(), saves=True)
    score = evaluation.evaluate(eight)

    assert progress.sums[2] == 2  # of this rank: nothing is added up
    assert score.samples == 5


@pytest.mark.parametrize("text", [part for part, _, _ in TORCH_ERRORS])
def test_errors_of_torch_are_explained(tmp_path: Path, text: str) -> None:
    line = explain(
        RuntimeError(f"of torch: {text}\nmore lines"), session(tmp_path, rank=1, size=2).world.name
    )

    assert line is not None
    assert "(RuntimeError: of torch: " in str(line)
    assert "at: rank 1 of 2 on here; fix: " in str(line)
    own = "Caught RuntimeError in DataLoader worker process 0."
    for other in ("shape '[3]' is invalid", own):
        assert explain(RuntimeError(other), "rank 1 of 2 on here") is None


def test_an_error_of_cuda_is_not_the_models_fault(tmp_path: Path) -> None:
    class Old(nn.Linear):
        def forward(self, _x: torch.Tensor) -> torch.Tensor:
            raise RuntimeError("CUDA error: no kernel image is available for execution on the device")

    made = replace(session(tmp_path, rank=0, size=1), model=Old(4, 3))

    with pytest.raises(UserError, match=r"this torch is not made for the GPU .*fix: a torch for this GPU"):
        setup.try_out(made)


@pytest.mark.proof
def test_a_rank_that_is_stuck_shows_where(trainers: Trainers, own: dict[str, str], tmp_path: Path) -> None:
    """By the line that its loader is in."""
    flags = ("--dataset", "gpu_own:data", "--model", "gpu_own:plain", "--batch-size", "8", "--workers", "1")
    run_dir = tmp_path / "run"
    tasks(
        trainers, (run_dir,) * 2, *flags, env=own | {"HANG_AFTER": "3"}, fresh=True
    )  # it reads their environ
    wait_for((run_dir / "hang.json").exists, "report")

    says = json.loads((run_dir / "hang.json").read_text())["says"]
    assert "; rank 1 on " in says
    assert " of a loader for " in says


@pytest.mark.parametrize(("more", "code"), [((), 1), (("--find-unused-parameters",), 0)])
def test_weights_without_a_part_in_the_loss_are_one_line(
    trainers: Trainers, own: dict[str, str], tmp_path: Path, more: tuple[str, ...], code: int
) -> None:
    flags = ("--model", "gpu_own:half", "--epochs", "1")
    ended = trainers.run_ranks(2, tmp_path / "run", *flags, *more, env=own)

    assert ended.code == code, ended.err
    assert "Traceback" not in ended.err
    assert ("error: some weights have no part in the loss (RuntimeError: Expected" in ended.err) == bool(code)


def other_labels(change: Callable[[torch.Tensor], torch.Tensor], tmp_path: Path) -> None:
    """The small digits with other labels."""
    path = tmp_path / "train-labels-idx1-ubyte"
    data = bytearray(path.read_bytes())
    labels = torch.frombuffer(data, dtype=torch.uint8)[8:]
    labels.copy_(change(labels))
    path.write_bytes(data)


def test_another_data_set_of_the_same_size_is_not_taken_for_the_old_one(here: Here, tmp_path: Path) -> None:
    for path in here.data_dir.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    flags = ("--data-dir", str(tmp_path), "--epochs", "2")
    assert here(tmp_path / "run").code == 0
    moved = here(tmp_path / "run", *flags)
    other_labels(lambda labels: labels.flip(0), tmp_path)
    other = here(tmp_path / "run", *flags[:2], "--epochs", "3")

    assert (moved.code, other.code) == (0, 1), moved.err
    assert "data_checksum is " in other.err
