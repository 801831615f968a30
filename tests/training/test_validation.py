"""A validation that fails costs no step, and needs no more memory than the training."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import IO

import pytest

from training.config import parse
from training.runfolder import forecast_start
from training.saving import checkpoint
from training.saving.reading import State

from .states import equal, everything
from .trainers import Here, events, status

OWN = """
    import os
    import torch
    from torch import nn

    SEEN = []

    class Fails(nn.Linear):
        def forward(self, x):
            if not self.training:
                SEEN.append(len(x))
            how = os.environ.get("VALIDATION", "")
            if how == "full" and not self.training:
                raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB.")
            if how and not self.training:
                raise KeyError("of the model")
            return super().forward(x.flatten(1))

    def model(config):
        return Fails(196, 10)
"""


@pytest.fixture
def flags(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    (tmp_path / "validation_own.py").write_text(textwrap.dedent(OWN))
    monkeypatch.syspath_prepend(str(tmp_path))
    return ("--model", "validation_own:model", "--epochs", "2")


@pytest.mark.parametrize("how", ["broken", "full"])
def test_an_epoch_is_saved_before_its_validation(
    here: Here, tmp_path: Path, flags: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    assert here(tmp_path / "whole", *flags).code == 0
    monkeypatch.setenv("VALIDATION", how)
    failed = here(tmp_path / "run", *flags)
    left = everything(tmp_path / "run")
    monkeypatch.delenv("VALIDATION")
    resumed = here(tmp_path / "run", *flags)

    assert (failed.code, resumed.code) == (1, 0), resumed.err
    assert (left["step"], left["epoch"], left["consumed"]) == (8, 1, 0)
    assert "Resuming from checkpoints/step-00000008.pt: epoch 1, step 8" in resumed.out
    assert equal(everything(tmp_path / "run"), everything(tmp_path / "whole"))
    assert [event["epoch"] for event in events(tmp_path / "run", "epoch")] == [1, 2]


def test_a_full_gpu_is_one_line_with_a_fix(
    here: Here, tmp_path: Path, flags: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VALIDATION", "full")
    ended = here(tmp_path / "run", *flags)

    assert ended.err.count("\n") == 1
    assert (
        "the GPU has no more memory (torch.OutOfMemoryError: CUDA out of memory. Tried"
        in ended.err.replace("torch.cuda.OutOf", "torch.OutOf")
    )
    assert "in the validation --eval-batch" in ended.err
    assert "no more memory" in str(status(tmp_path / "run")["reason"])


@pytest.mark.parametrize(
    ("more", "most"), [((), 32), (("--accumulate", "4"), 8), (("--eval-batch", "50"), 50)]
)
def test_it_takes_the_batch_of_the_training(
    here: Here, tmp_path: Path, flags: tuple[str, ...], more: tuple[str, ...], most: int
) -> None:
    import validation_own  # type: ignore[import-not-found]

    validation_own.SEEN.clear()
    assert here(tmp_path / "run", *flags, "--epochs", "1", *more).code == 0
    assert max(validation_own.SEEN) == most


@pytest.mark.parametrize("more", [(), ("--save-every", "4", "--keep-epochs"), ("--ema", "0.9")])
def test_a_step_is_written_once(
    here: Here, tmp_path: Path, flags: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, more: tuple[str, ...]
) -> None:
    steps: list[int] = []
    encode = checkpoint.encode

    def counted(state: State, file: IO[bytes]) -> None:
        steps.append(state["step"])
        encode(state, file)

    monkeypatch.setattr(checkpoint, "encode", counted)
    assert here(tmp_path, *flags, *more).code == 0
    assert steps == ([4, 8, 12, 16] if "--save-every" in more else [8, 16])
    assert (tmp_path / "checkpoints" / "best.pt").samefile(tmp_path / "checkpoints" / "step-00000016.pt")


def test_a_run_is_not_done_before_its_last_validation(
    here: Here, tmp_path: Path, flags: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    last = (*flags, "--epochs", "1", "--batch-size", "48")  # the last batch is smaller
    config = parse([*last, "--run-dir", str(tmp_path)])
    monkeypatch.setenv("VALIDATION", "broken")
    assert here(tmp_path, *last).code == 1
    start = forecast_start(config, 1)
    assert (start.state, start.step, start.steps) == ("resume", 6, 6)
    assert status(tmp_path)["epoch"] == 0
    monkeypatch.delenv("VALIDATION")
    ended = here(tmp_path, *last)

    assert ended.code == 0, ended.err
    assert forecast_start(config, 1).state == "done"


@pytest.mark.parametrize("noted", [True, False])
def test_a_validation_that_is_noted_is_not_repeated(
    here: Here, tmp_path: Path, flags: tuple[str, ...], *, noted: bool
) -> None:
    """The checkpoint was written before it."""
    assert here(tmp_path / "whole", *flags).code == 0
    assert here(tmp_path / "run", *flags, "--epochs", "1").code == 0
    if not noted:
        (tmp_path / "run" / "events.jsonl").unlink()
    resumed = here(tmp_path / "run", *flags)

    assert resumed.code == 0, resumed.err
    assert [event["epoch"] for event in events(tmp_path / "run", "epoch")] == [1, 2]
    assert equal(everything(tmp_path / "run"), everything(tmp_path / "whole"))
    assert ("epoch 2, step 8" if noted else "epoch 1, step 8") in resumed.out


def test_a_result_of_other_weights_is_not_taken(here: Here, tmp_path: Path, flags: tuple[str, ...]) -> None:
    """A later start got to the step again, and was killed before its validation."""
    assert here(tmp_path, *flags, "--epochs", "1").code == 0
    note = {"event": "start", "step": 0}
    with (tmp_path / "events.jsonl").open("a") as file:
        file.write(json.dumps(note) + "\n")
    resumed = here(tmp_path, *flags)

    assert [event["epoch"] for event in events(tmp_path, "epoch")] == [1, 1, 2], resumed.err
