"""What people see of a run: the lines of a log, TensorBoard's curves."""

from __future__ import annotations

import errno
import os
import re
from itertools import pairwise
from pathlib import Path

import pytest

from sbatchgen.jobs.runs.plot import METRICS_BY_KIND, plot, read_history

from .trainers import Here, Trainers, all_events, events, status

PLAIN = re.compile(r"Epoch \d: step \d+ of 8, loss [\d.]+, lr [\d.]+, \d+ samples/s, [\d:]+ left")


def test_a_log_has_a_line_for_every_so_many_steps(trainers: Trainers, tmp_path: Path) -> None:
    ended = trainers.run(tmp_path, "--log-every", "4", "--sync-every", "2", "--epochs", "1")

    assert ended.code == 0, ended.err
    assert len(PLAIN.findall(ended.out)) == 1
    assert [event["step"] for event in events(tmp_path, "train")] == [4]


def curves(run_dir: Path) -> dict[str, list[tuple[int, float]]]:
    """What TensorBoard would show: (step, value) of each tag."""
    from tensorboard.backend.event_processing.event_accumulator import (  # type: ignore[import-untyped,unused-ignore]
        EventAccumulator,
    )

    curves = EventAccumulator(str(run_dir / "tensorboard")).Reload()
    return {
        tag: [(point.step, point.value) for point in curves.Scalars(tag)]
        for tag in sorted(curves.Tags()["scalars"])
    }


TAGS = [
    *(
        "accuracy/train",
        "accuracy/validation",
        "data_wait",
        "grad_norm",
        "loss/train",
        "loss/validation",
        "lr",
    ),
    *("samples_per_s", "step_s"),
]
OFTEN = ("--log-every", "2", "--sync-every", "2")


def test_tensorboard_shows_the_numbers_of_the_events(here: Here, tmp_path: Path) -> None:
    ended = here(tmp_path, *OFTEN, "--epochs", "2")
    shown = curves(tmp_path)

    assert ended.code == 0, ended.err
    assert list(shown) == TAGS
    for kind, name, tag in (
        ("train", "loss", "loss/train"),
        ("train", "lr", "lr"),
        ("train", "grad_norm", "grad_norm"),
        ("epoch", "accuracy", "accuracy/validation"),
    ):
        logged = events(tmp_path, kind)
        assert [step for step, _ in shown[tag]] == [event["step"] for event in logged]
        assert [value for _, value in shown[tag]] == pytest.approx(
            [event[name] for event in logged], rel=1e-6
        )
    assert [step for step, _ in shown["loss/train"]] == [2, 4, 6, 10, 12, 14]


def test_a_start_at_an_earlier_step_leaves_no_point_twice(here: Here, tmp_path: Path) -> None:
    """As after a crash: what came after the checkpoint is trained, and recorded, once more."""
    here(tmp_path, *OFTEN, "--save-every", "2", "--keep", "9", "--epochs", "2")
    here(tmp_path, *OFTEN, "--epochs", "2", "--resume", "step-00000004.pt")
    shown = curves(tmp_path)

    assert len(list((tmp_path / "tensorboard").iterdir())) == 2
    assert [step for step, _ in shown["loss/train"]] == [2, 4, 6, 10, 12, 14]
    assert [step for step, _ in shown["loss/validation"]] == [8, 16]


@pytest.mark.parametrize("why", ["off", "absent"])
def test_no_curves_are_no_word(here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: str) -> None:
    if why == "absent":
        monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    ended = here(tmp_path, *(("--tensorboard", "off") if why == "off" else ()))

    assert ended.code == 0, ended.err
    assert "TensorBoard" not in ended.out
    assert not (tmp_path / "tensorboard").exists()


def test_a_broken_tensorboard_costs_its_curves_only(trainers: Trainers, tmp_path: Path) -> None:
    package = tmp_path / "site" / "tensorboard"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise TypeError('Descriptors cannot be created directly')\n")
    run_dir = tmp_path / "run"
    ended = trainers.run(run_dir, "--epochs", "1", env={"PYTHONPATH": str(package.parent)})

    assert ended.code == 0, ended.err
    said = [line for line in ended.out.splitlines() if "TensorBoard" in line]
    assert said == [
        "No curves for TensorBoard (TypeError: Descriptors cannot be created directly): training continues"
    ]
    assert not (run_dir / "tensorboard").exists()
    assert [event["event"] for event in all_events(run_dir)][-1] == "done"


def test_a_disk_that_is_full_for_curves_does_not_end_the_training(
    here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch.utils.tensorboard import FileWriter

    def add(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(FileWriter, "add_summary", add)
    ended = here(tmp_path, *OFTEN, "--epochs", "2")

    assert ended.code == 0, ended.err
    assert ended.out.count("No space left on device") == 1
    assert status(tmp_path)["state"] == "done"


def test_rank_0_alone_loads_tensorboard(trainers: Trainers, tmp_path: Path) -> None:
    """It is watched by a package of that name that says so."""
    package = tmp_path / "site" / "tensorboard"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(
        "import os\nprint('loaded by rank', os.environ['SLURM_PROCID'], flush=True)\n"
    )
    ended = trainers.run_ranks(2, tmp_path / "run", "--epochs", "1", env={"PYTHONPATH": str(package.parent)})

    assert ended.code == 0, ended.err
    assert re.findall(r"loaded by rank \d", ended.out) == ["loaded by rank 0"]


def test_the_command_understands_what_a_run_tells(here: Here, tmp_path: Path) -> None:
    """The two never import each other: the run folder is between them."""
    here(tmp_path / "run", *OFTEN, "--save-every", "3", "--keep", "9", "--epochs", "2")
    here(tmp_path / "run", *OFTEN, "--epochs", "2", "--resume", "step-00000003.pt")
    history = read_history(tmp_path / "run")

    assert plot([read_history(tmp_path / "run")], None) == tmp_path / "run" / "plot.png"
    steps = [step for step, _ in history.curves["train loss"]]
    assert (steps[0], steps[-1]) == (2, 14)
    # A line comes with the first synchronisation after --log-every steps, on a slow machine sooner.
    assert all(later - earlier >= 2 for earlier, later in pairwise(steps))
    assert [step for step, _ in history.curves["epoch accuracy"]] == [8, 16]
    assert history.curves.keys() == {
        f"{kind} {name}" for kind, names in METRICS_BY_KIND.items() for name in names
    }
    assert (history.restarts, history.last_step, history.end) == ([3], 16, "done")
    assert history.config["global_batch_size"] == 32
