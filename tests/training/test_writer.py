"""Saving beside the training: copies, order, errors, and what is left when the process is killed."""

from __future__ import annotations

import io
import os
import random
import signal
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from training.saving import checkpoint
from training.saving.reading import State, load
from training.saving.writer import Copies, Writer

from .states import encoded, found_step, names, save, state
from .trainers import Here, all_events, events, status, wait_for

KILLS = int(os.environ.get("FAULT_TRIALS", "20"))


def test_the_copy_stays_as_it_was() -> None:
    weight = torch.ones(3)
    value = {
        "tied": [weight, weight.view(3), weight.view(3, 1)],
        "empty": torch.empty(0),
        "plain": (1, "two"),
        "model": torch.nn.BatchNorm1d(2).state_dict(),
    }
    copy = Copies().take(value)
    weight += 1
    value["tied"].append("more")  # type: ignore[attr-defined]

    assert [tensor.tolist() for tensor in copy["tied"]] == [[1, 1, 1], [1, 1, 1], [[1], [1], [1]]]
    assert copy["tied"][0] is copy["tied"][1]
    assert copy["plain"] == (1, "two")
    assert isinstance(copy["model"], OrderedDict)
    assert copy["model"]._metadata == {"": {"version": 2}}  # type: ignore[attr-defined]
    back = load(io.BytesIO(encoded(state(1) | {"model": copy["model"]})))
    assert back["model"].keys() == copy["model"].keys()


def test_the_next_copy_takes_the_memory_of_the_last() -> None:
    copies = Copies()
    weights = [torch.ones(2, 3), torch.ones(3), torch.ones(2, 3).t()]
    places = [tensor.data_ptr() for tensor in copies.take(weights)]
    weights[1] = torch.ones(4)
    again = copies.take([weight * 2 for weight in weights])

    assert [tensor.tolist() for tensor in again] == [[[2] * 3] * 2, [2] * 4, [[2] * 2] * 3]
    assert again[0].data_ptr() == places[0]
    assert again[2].data_ptr() == places[2]
    assert [tensor.stride() for tensor in again] == [tensor.stride() for tensor in weights]


def test_one_after_the_other_and_errors_are_told_once() -> None:
    writer, done, may_end = Writer(), list[str](), threading.Event()

    def slow() -> None:
        may_end.wait()
        done.append("slow")

    def broken() -> None:
        raise ValueError("of the thread")

    writer.start(slow)
    assert not done
    may_end.set()
    writer.start(lambda: done.append("next"))
    writer.wait()
    assert done == ["slow", "next"]
    writer.start(broken)
    with pytest.raises(ValueError, match="of the thread"):
        writer.start(slow)
    writer.wait()


def test_a_work_that_nobody_waits_for_is_tried_again() -> None:
    writer, tried = Writer(), list[str]()
    has_paused = [threading.Event(), threading.Event()]

    def retries(name: str, paused: threading.Event, seconds: float) -> None:
        while writer.pause(seconds):
            tried.append(name)
            paused.set()

    writer.start(lambda: retries("first", has_paused[0], 0.01))
    writer.start(lambda: retries("second", has_paused[1], 0.01), after=True)
    has_paused[0].clear()
    assert has_paused[0].wait(9), "the first is tried again, although another work was started after it"
    assert not has_paused[1].is_set()
    writer.wait()  # ends both
    assert not writer.is_busy
    tried.clear()
    has_paused[1].clear()
    writer.start(lambda: None)
    writer.start(lambda: retries("second", has_paused[1], 0.01), after=True)
    assert has_paused[1].wait(9), "no caller waits for the second"
    assert writer.ends_within(9), "the training waits for it"
    writer.wait()
    assert set(tried) == {"second"}


def test_a_signal_in_the_middle_of_a_start_is_handled_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A data loader's process dies: torch's handler raises."""
    writer, done, begin = Writer(), list[str](), threading.Thread.start

    def interrupted(thread: threading.Thread) -> None:
        signal.raise_signal(signal.SIGCHLD)
        begin(thread)

    def handler(*_: object) -> None:
        raise RuntimeError("a worker is killed")

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    before = signal.signal(signal.SIGCHLD, handler)
    try:
        with pytest.raises(RuntimeError, match="a worker is killed"):
            writer.start(lambda: done.append("written"))
        assert signal.getsignal(signal.SIGCHLD) is handler
    finally:
        signal.signal(signal.SIGCHLD, before)
    writer.wait()
    assert done == ["written"]


def in_child(work: Callable[[], None]) -> int:
    """Do it in a copy of this process; its number."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return child


def ended(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.proof
def test_killed_at_any_moment_of_saving(tmp_path: Path) -> None:
    """Fault F1: what was once said to be saved is there, whole, whenever the kill comes."""
    states = {step: state(step, torch.full((1 << 19,), step)) for step in range(1, 9)}
    chance = random.Random(1)  # noqa: S311 - of moments
    for trial in range(KILLS):
        folder = tmp_path / str(trial)
        folder.mkdir()
        reading, tells = os.pipe()

        def saves(folder: Path = folder, tells: int = tells) -> None:
            for step in range(1, 9):
                checkpoint.save(folder, states[step], step=step, keep=2, best=step % 2 == 0)
                os.write(tells, bytes([step]))

        child = in_child(saves)
        os.close(tells)
        assert os.read(reading, 1) == b"\1"
        time.sleep(chance.uniform(0, 0.05))
        os.kill(child, signal.SIGKILL)
        ended(child)
        said = max([1, *os.read(reading, 99)])
        os.close(reading)
        lines: list[str] = []
        checkpoint.prepare(folder, "auto", lines.append)

        assert said <= found_step(folder, lines) <= said + 1
        assert not lines
        assert not [name for name in names(folder) if "tmp" in name]


CHANGES = [(os, "fsync"), (Path, "replace"), (Path, "unlink"), (Path, "hardlink_to"), (Path, "open")]


def dies_at(folder: Path, k: int, monkeypatch: pytest.MonkeyPatch, *, links: bool) -> None:
    """Save step 3, and end at the k-th call that changes the disk."""
    left = [k]

    def counted(call: Callable[..., Any], name: str) -> Callable[..., Any]:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            left[0] -= 1
            if not left[0]:
                os._exit(9)
            if name == "hardlink_to" and not links:
                raise OSError(1, "no links here")
            return call(*args, **kwargs)

        return wrapped

    for owner, name in CHANGES:
        monkeypatch.setattr(owner, name, counted(getattr(owner, name), name))
    checkpoint.save(folder, state(3, torch.full((9,), 3)), step=3, keep=1, best=True)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("links", [True, False])
def test_dying_at_each_step_of_a_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, links: bool
) -> None:
    """Fault F2: the process ends before the k-th call that changes the disk, for each k."""
    for k in range(1, 99):
        folder = tmp_path / str(k)
        folder.mkdir()
        save(folder, 1, 2)
        code = ended(in_child(lambda: dies_at(folder, k, monkeypatch, links=links)))  # noqa: B023 - run at once
        lines: list[str] = []
        checkpoint.prepare(folder, "auto", lines.append)
        assert found_step(folder, lines) in {2, 3}
        assert not lines
        if (folder / "best.pt").exists():
            assert load(io.BytesIO((folder / "best.pt").read_bytes()))["step"] == 3
        if code == 0:
            break
        assert code == 9
    assert k > (8 if links else 9)  # all were died at
    assert names(folder) == ["best.pt", "step-00000003.pt"]


def test_the_training_goes_on_beside_a_slow_disk_and_ends_with_all_saved(
    here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = checkpoint.save

    def slow(folder: Path, state: State, *, step: int, **how: Any) -> int:
        if step == 3:
            wait_for(
                lambda: [event for event in events(folder.parent, "train") if event["step"] == 4], "next step"
            )
        return written(folder, state, step=step, **how)

    plain = here(tmp_path / "plain", "--save-every", "3")
    monkeypatch.setattr(checkpoint, "save", slow)
    ended = here(tmp_path / "slow", "--save-every", "3", "--log-every", "1", "--sync-every", "1")
    order = [
        (event["event"], event["step"])
        for event in all_events(tmp_path / "slow")
        if event["event"] in {"train", "save", "done"}
    ]

    assert [plain.code, ended.code] == [0, 0], ended.err
    assert order.index(("train", 4)) < order.index(("save", 3))
    assert [step for kind, step in order if kind == "save"] == [3, 6, 8, 8]  # before and after the validation
    assert order[-1] == ("done", 8)
    assert status(tmp_path / "slow")["checkpoint"] == "checkpoints/step-00000008.pt"
    for name in ("step-00000003.pt", "step-00000006.pt", "step-00000008.pt"):
        first, other = (
            torch.load(tmp_path / run / "checkpoints" / name, weights_only=True)["model"]
            for run in ("plain", "slow")
        )
        assert all(torch.equal(first[key], other[key]) for key in first)
