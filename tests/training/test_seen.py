"""What people see of a run: the live line of a terminal, the plain lines of a log, TensorBoard's curves."""

from __future__ import annotations

import errno
import io
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sbatchgen.runs.plot import CURVES, plot, read_history
from training.output import log
from training.output.bar import Bar

from .forks import Fork
from .trainers import HANGS_S, ROOT, TORCHRUN_2, Here, Trainers, all_events, events, quickly, status

SLOW = ("--step-delay", "0.15", "--sync-every", "1", "--log-every", "4", "--epochs", "2")
PLAIN = re.compile(r"Epoch \d: step \d+ of 8, loss [\d.]+, lr [\d.]+, \d+ samples/s, [\d:]+ left")
LIVE = re.compile(
    r"Epoch (\d) of 2: +\d+%\|[^|\r]*\| (\d+)/250 images, loss [\d.]+, lr [\d.]+, \d+ samples/s, [\d:]+ left"
)


def on_terminal(
    data_dir: Path,
    run_dir: Path,
    *flags: str,
    env: dict[str, str] | None = None,
    launcher: tuple[str, ...] = ("-m", "training"),
    stop_when: str = "",
    fresh: bool = False,
) -> tuple[int, str]:
    """A trainer whose stdout and stderr are a terminal 140 columns wide: its exit status, all it wrote there.

    With `stop_when`, it gets SIGTERM as soon as that text has appeared.
    """
    ours, theirs = pty.openpty()
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "TQDM"))}
    common = ("--data-dir", str(data_dir), "--run-dir", str(run_dir), "--device", "cpu", "--batch-size", "32")
    process = (subprocess.Popen[str] if fresh else Fork)(
        [sys.executable, *launcher, *common, *flags],
        cwd=ROOT,
        env=quickly(clean | {"OMP_NUM_THREADS": "1", "TERM": "xterm", "COLUMNS": "140"} | (env or {})),
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    text, deadline = "", time.monotonic() + HANGS_S
    while time.monotonic() < deadline:
        if select.select([ours], [], [], 1)[0]:
            try:
                data = os.read(ours, 65536)
            except OSError as error:  # EIO: the other side is closed
                assert error.errno == errno.EIO  # noqa: PT017
                break
            if not data:
                break
            text += data.decode()
        if stop_when and stop_when in text:
            process.send_signal(signal.SIGTERM)
            stop_when = ""
    os.close(ours)
    if process.poll() is None and time.monotonic() >= deadline:
        os.killpg(process.pid, signal.SIGKILL)
    return process.wait(timeout=HANGS_S), text


def screen(text: str) -> list[str]:
    """The lines at the end on a terminal that knows newline and carriage return."""
    lines, column = [""], 0
    for char in text:
        if char == "\n":
            lines.append("")
        elif char == "\r":
            column = 0
            continue
        else:
            lines[-1] = lines[-1][:column].ljust(column) + char + lines[-1][column + 1 :]
            column += 1
            continue
        column = 0
    return [line.rstrip() for line in lines]


def test_a_terminal_has_one_live_line_and_nothing_of_it_stays(small_digits: Path, tmp_path: Path) -> None:
    code, text = on_terminal(small_digits, tmp_path, *SLOW, "--save-every", "3")
    seen = [(int(epoch), int(done)) for epoch, done in LIVE.findall(text)]
    left = [line for line in screen(text) if line]

    assert code == 0, text
    assert {epoch for epoch, _ in seen} == {1, 2}
    assert seen == sorted(seen)
    assert len(seen) > 8
    assert not PLAIN.search(text)
    assert "\x1b" not in text  # no colour, no cursor keys: NO_COLOR has nothing to ask for
    assert [line.split()[0] for line in left] == [
        *("Starting", "Master", "rank", "Epoch", "Epoch", "Weights", "Training")
    ]
    assert all(re.fullmatch(r"Epoch \d - Avg Loss: .* training loss [\d.]+\)", line) for line in left[3:5])
    assert [event["step"] for event in events(tmp_path, "train")] == [4, 12]  # as in a log


def test_a_stop_takes_the_line_away_and_a_resume_begins_where_the_epoch_was(
    small_digits: Path, tmp_path: Path
) -> None:
    code, text = on_terminal(small_digits, tmp_path, *SLOW, stop_when="64/250 images, loss")
    step = status(tmp_path)["step"]
    again, more = on_terminal(small_digits, tmp_path, *SLOW)
    first = re.search(r"Epoch 1 of 2: +\d+%\|[^|\r]*\| (\d+)/250", more)

    assert (code, again) == (75, 0), text + more
    assert screen(text)[-2].startswith(f"Stopped by SIGTERM at step {step}; checkpoint ")
    assert screen(text)[-1] == ""
    assert 2 <= step < 8
    assert first
    assert int(first[1]) == 32 * step


def test_each_process_of_several_may_be_on_the_terminal_but_one_line_is(
    small_digits: Path, tmp_path: Path
) -> None:
    code, text = on_terminal(small_digits, tmp_path, *SLOW, launcher=TORCHRUN_2)
    left = [line for line in screen(text) if line and not re.match(r"[WE]\d{4} ", line)]

    assert code == 0, text
    assert LIVE.search(text)
    assert [line.split()[0] for line in left if not line.startswith("*")][-5:] == [
        "rank",
        "Epoch",
        "Epoch",
        "Weights",
        "Training",
    ]


@pytest.mark.parametrize("why", ["dumb", "no tqdm", "log"])
def test_without_a_live_line_there_are_the_plain_ones(
    small_digits: Path, trainers: Trainers, tmp_path: Path, why: str
) -> None:
    quick = ("--log-every", "4", "--sync-every", "2", "--epochs", "1")
    if why == "log":
        ended = trainers.run(tmp_path / "run", *quick)
        code, text = ended.code, ended.out
    else:
        (tmp_path / "tqdm.py").write_text("raise ImportError('none here')\n")
        env = {"TERM": "dumb"} if why == "dumb" else {"PYTHONPATH": str(tmp_path)}
        code, text = on_terminal(small_digits, tmp_path / "run", *quick, env=env, fresh=why == "no tqdm")

    assert code == 0, text
    assert len(PLAIN.findall(text)) == 1
    assert "%|" not in text


def test_a_validation_is_seen_too(here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr(Bar, "begin", lambda _bar, title, **numbers: seen.append((title, numbers)))
    monkeypatch.setattr(Bar, "show", lambda _bar, done, facts: seen.append((done, facts)))
    here(tmp_path, "--sync-every", "1", "--eval-batch", "40")
    loss = events(tmp_path, "epoch")[0]["loss"]
    begins = seen.index(("Validation", {"total": 101, "done": 0}))

    assert [done for done, _ in seen[begins + 1 :]] == [40, 80, 101]
    assert re.fullmatch(rf"loss {loss:.4f}, accuracy [\d.]+%, \d+ samples/s", str(seen[-1][1]))


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_what_is_said_meanwhile_is_a_line_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    quiet = log.Log(run_dir=Path("nowhere"), speaks=True, records=False)
    with quiet.live("Epoch 1 of 1", total=100, done=30):
        quiet.bar.show(40, "loss 0.5")
        quiet.say("Could not save step 3: training continues")
        during = screen(terminal.getvalue())
    after = screen(terminal.getvalue())

    assert during[0] == "Could not save step 3: training continues"
    assert re.fullmatch(r"Epoch 1 of 1:  (30|40)%\|.*\| (30|40)/100 images.*", during[1])
    assert after == ["Could not save step 3: training continues", ""]
    assert not quiet.bar.up


def test_other_ranks_have_no_line(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    with log.Log(run_dir=Path("nowhere"), speaks=False).live("Epoch 1 of 1", total=9):
        pass

    assert terminal.getvalue() == ""


def test_the_line_starts_no_thread_and_no_lock_between_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loaders are forked."""
    code = """
import sys, threading
sys.stdout.isatty = lambda: True
from training.output.bar import Bar
bar = Bar()
bar.begin("Epoch", total=9)
bar.show(3, "")
assert bar.up
assert threading.active_count() == 1
assert "multiprocessing.synchronize" not in sys.modules
bar.end()
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=os.environ | {"TERM": "xterm"}, check=False
    )

    assert done.returncode == 0
    assert not Bar().up


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
    here(tmp_path, *OFTEN, "--save-every", "3", "--keep", "9", "--epochs", "2")
    here(tmp_path, *OFTEN, "--epochs", "2", "--resume", "step-00000003.pt")
    shown = curves(tmp_path)

    assert len(list((tmp_path / "tensorboard").iterdir())) == 2
    assert [step for step, _ in shown["loss/train"]] == [2, 6, 10, 12, 14]
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
    from torch.utils.tensorboard import SummaryWriter

    def add(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(SummaryWriter, "add_scalar", add)
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

    assert plot([tmp_path / "run"], None) == tmp_path / "run" / "plot.png"
    assert [step for step, _ in history.curves["train loss"]] == [2, 6, 10, 12, 14]
    assert [step for step, _ in history.curves["epoch accuracy"]] == [8, 16]
    assert history.curves.keys() == {f"{kind} {name}" for kind, names in CURVES.items() for name in names}
    assert (history.restarts, history.last, history.end) == ([3], 16, "done")
    assert history.config["global_batch_size"] == 32
