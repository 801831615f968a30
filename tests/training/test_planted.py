"""What lies in the run folder is data: links, FIFOs and broken files are no trap; others can not write there."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import re
import shutil
import signal
import stat
import struct
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from training import files
from training.config import Config
from training.data.arrays import read_idx, read_mnist
from training.errors import UserError
from training.output import log
from training.output.log import mark_failed, read_events, read_status, write_json
from training.processes import jobscript
from training.saving import checkpoint
from training.saving.lock import RunLock, _machine
from training.saving.reading import State

from .states import found_step, save
from .trainers import ROOT, Here, Trainers, alive, events, finish, status, wait_for

NAMES = ("status.json", "events.jsonl", "lock.json", "stop", "config.json")


# What lies at a path, where another file is at `secret`.
PLANTS: dict[str, Callable[[Path, Path], object]] = {
    "link": lambda path, secret: path.symlink_to(secret),
    "dangling link": lambda path, secret: path.symlink_to(secret.with_name("nothing")),
    "loop": lambda path, _: path.symlink_to(path.name),
    "zeros": lambda path, _: path.symlink_to("/dev/zero"),
    "fifo": lambda path, _: os.mkfifo(path),
    "socket": lambda path, _: os.mknod(path, stat.S_IFSOCK | 0o600),
    "folder": lambda path, _: (path / "in it").mkdir(parents=True),
    "bytes": lambda path, _: path.write_bytes(b"\xff\xfe{\0" * 1000),
    "deep JSON": lambda path, _: path.write_text("[" * 200_000),
    "other JSON": lambda path, _: path.write_text("[1, 2]"),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("plant", ["link", "dangling link", "fifo", "bytes", "deep JSON", "other JSON"])
@pytest.mark.parametrize("names", [("lock.json",), ("stop",), ("status.json", "events.jsonl", "config.json")])
def test_what_lies_in_the_run_folder_is_no_trap(
    here: Here, tmp_path: Path, names: tuple[str, ...], plant: str
) -> None:
    """It is reported in a line, or replaced; nothing hangs, and nothing outside is written."""
    run_dir, secret = tmp_path / "run", tmp_path / "secret"
    run_dir.mkdir()
    secret.write_text("mine")
    for name in names:
        PLANTS[plant](run_dir / name, secret)
    lock = run_dir / "lock.json"
    if lock.is_file() and not lock.is_symlink():
        os.utime(lock, (0, 0))  # no beat for long: a fresh one is waited for, a minute
    ended = here(run_dir)

    assert secret.read_text() == "mine"
    assert not secret.with_name("nothing").exists()
    assert "Traceback" not in ended.err
    allowed = {0, 75} if names == ("stop",) else {0}
    if ended.code not in allowed:
        assert ended.code == 1
        assert ended.err.startswith("error: ")
        assert ended.err.count("\n") == 1


@pytest.mark.parametrize("plant", ["link", "fifo", "loop", "zeros", "folder", "socket"])
def test_what_is_no_file_is_no_checkpoint(tmp_path: Path, plant: str) -> None:
    """It is put aside; one that is older than the newest good one hinders no save."""
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    save(folder, 2)
    save(tmp_path, 9)
    for step in (1, 99999999):
        PLANTS[plant](folder / f"step-{step:08}.pt", tmp_path / "step-00000009.pt")
    PLANTS["folder"](folder / "step-99999999.pt.corrupt", tmp_path)
    lines: list[str] = []

    assert found_step(folder, lines) == 2
    assert len(lines) == 1
    assert "(it is not a regular file): renamed to step-99999999.pt.corrupt-1" in lines[0]
    assert os.path.lexists(folder / "step-99999999.pt.corrupt-1")
    save(folder, 3, keep=1)
    assert found_step(folder, lines) == 3
    assert (folder / "step-00000001.pt").is_dir() == (plant == "folder")


def test_a_file_that_the_user_names_may_be_a_link(tmp_path: Path) -> None:
    save(tmp_path, 2)
    (tmp_path / "best.pt").symlink_to("step-00000002.pt")
    os.mkfifo(tmp_path / "waits.pt")

    assert found_step(tmp_path, [], "best.pt") == 2
    assert checkpoint.decode_weights(tmp_path / "best.pt").keys() == {"w"}
    with pytest.raises(UserError, match=r"--resume waits\.pt was not found"):
        found_step(tmp_path, [], "waits.pt")
    with pytest.raises(UserError, match="not a regular file"):
        checkpoint.decode_weights(tmp_path / "waits.pt")


def test_a_name_of_too_many_digits_is_no_checkpoints(tmp_path: Path) -> None:
    save(tmp_path, 1)
    (tmp_path / f"step-{'9' * 245}.pt").touch()
    (tmp_path / "step-\u0669\u0669\u0669\u0669\u0669\u0669\u0669\u0669.pt").touch()
    lines: list[str] = []

    assert found_step(tmp_path, lines) == 1
    assert not lines


def everybody(run_dir: Path) -> Path:
    run_dir.parent.chmod(0o777)
    return run_dir.parent


def a_link(run_dir: Path) -> Path:
    run_dir.rename(run_dir.with_name("it"))
    run_dir.symlink_to("it")
    return run_dir


NOBODY = 65534
IN_ROOTS_POWER = "left out: files of another user: needs root"
OF_ANOTHER = rf"the run folder, or what is in it, belongs to another user \({NOBODY}\)"


def assert_refused(here: Here, run_dir: Path, place: Path, said: str) -> None:
    """With one line that names the place, and nothing is written."""
    before = {path: path.lstat().st_mtime_ns for path in run_dir.rglob("*")}
    for flags in (("--epochs", "2"), ("--evaluate",)):
        ended = here(run_dir, *flags)
        assert ended.code == 1
        assert re.search(f"{said}; at: {place}; fix: .*--run-dir", ended.err), ended.err
        assert ended.err.count("\n") == 1
    assert {path: path.lstat().st_mtime_ns for path in run_dir.rglob("*")} == before


@pytest.mark.parametrize(
    ("change", "said"),
    [(everybody, "everybody can replace the run folder"), (a_link, "the run folder is a link")],
)
def test_a_folder_that_others_could_replace_is_refused(
    here: Here, tmp_path: Path, change: Callable[[Path], Path], said: str
) -> None:
    run_dir = tmp_path / "runs" / "one"
    assert here(run_dir).code == 0
    place = change(run_dir)
    assert_refused(here, run_dir, place, said)


@pytest.mark.parametrize("parts", [(), ("checkpoints",), ("stop",), ("checkpoints", "step-00000099.pt")])
def test_a_folder_in_which_another_user_has_written_is_refused(
    here: Here, tmp_path: Path, parts: tuple[str, ...]
) -> None:
    if os.geteuid():
        pytest.skip(IN_ROOTS_POWER)
    assert here(tmp_path).code == 0
    for name in ("stop", "checkpoints/step-00000099.pt"):
        (tmp_path / name).touch()
    place = tmp_path.joinpath(*parts)
    os.chown(place, NOBODY, -1)
    assert_refused(here, tmp_path, place, OF_ANOTHER)


def test_another_users_folder_gets_no_state_either(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if os.geteuid():
        pytest.skip(IN_ROOTS_POWER)
    os.chown(tmp_path, NOBODY, -1)
    mark_failed(tmp_path, "lost", 1)
    assert f"belongs to another user ({NOBODY})" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def open_to_others(run_dir: Path) -> set[str]:
    """What is in the run folder, or in that of the checkpoints, and others may write."""
    paths = (run_dir, *run_dir.iterdir(), *(run_dir / "checkpoints").iterdir())
    return {path.name for path in paths if path.lstat().st_mode & 0o022 and not path.is_symlink()}


def test_others_can_no_longer_write_in_the_folder(here: Here, tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        assert here(tmp_path / "new").code == 0
        assert open_to_others(tmp_path / "new") == set()
        assert not (tmp_path / "new").stat().st_mode & 0o022
        os.umask(0)
        for path in (tmp_path / "new", *(tmp_path / "new").rglob("*")):
            path.chmod(path.stat().st_mode | 0o022)
        (tmp_path / "new/link").symlink_to("nowhere")
        assert here(tmp_path / "new", "--evaluate").code == 0
        assert len(open_to_others(tmp_path / "new")) > 5
        assert here(tmp_path / "new").code == 0
    finally:
        os.umask(before)
    assert open_to_others(tmp_path / "new") == set()


def test_to_look_waits_for_nothing(here: Here, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "stat")
    pid = os.path.relpath(tmp_path, "/proc")
    machine = json.dumps({"pid": pid, "born": 1, "machine": _machine()})
    (tmp_path / "lock.json").write_text(machine)
    assert json.loads(here(tmp_path, "--look").out)["state"] == "new"

    ended = here(tmp_path, "--look", "--resume", "x" * 300)
    assert (ended.code, ended.err.count("\n")) == (1, 1)
    assert "cannot read the run folder" in ended.err


def test_of_huge_events_the_last_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "MAX_EVENTS_BYTES", 1 << 22)
    with (tmp_path / "events.jsonl").open("wb") as file:
        file.truncate(1 << 27)
        file.seek(0, os.SEEK_END)
        file.write(b'\n{"event": "save"}\n')
    tracemalloc.start()
    try:
        assert list(read_events(tmp_path)) == [{"event": "save"}]
        assert tracemalloc.get_traced_memory()[1] < 1 << 22
    finally:
        tracemalloc.stop()


@pytest.fixture(scope="module")
def two_saves(small_digits: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with checkpoints of step 4 and 8."""
    folder = tmp_path_factory.mktemp("planted")
    assert Here(small_digits)(folder, "--save-every", "4", *SGD).code == 0
    return folder


SGD = ("--optimizer", "sgd", "--ema", "0.9")
FIRST = "conv1.weight"


# More of them in test_checkpoint.py.
MISFITS: dict[str, Callable[[State], object]] = {
    "the weights are": lambda state: state["model"].update({FIRST: torch.ones(3)}),
    "the state is": lambda state: state["optimizer"]["param_groups"][0]["params"].pop(),
}


def change(path: Path, misfit: str) -> None:
    state = torch.load(path, weights_only=True)
    MISFITS[misfit](state)
    torch.save(state, path)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("misfit", MISFITS)
def test_what_does_not_fit_the_model_is_passed_over(
    here: Here, two_saves: Path, tmp_path: Path, misfit: str
) -> None:
    run_dir = tmp_path / "run"
    shutil.copytree(two_saves, run_dir)
    change(run_dir / "checkpoints/step-00000008.pt", misfit)
    ended = here(run_dir, *SGD)

    assert (ended.code, ended.err) == (0, "")
    assert "step-00000008.pt is corrupt (it does not fit the model, an older one does)" in ended.out
    assert "Resuming from checkpoints/step-00000004.pt" in ended.out


@pytest.mark.parametrize("misfit", MISFITS)
def test_where_none_fits_the_model_none_is_put_aside(
    here: Here, two_saves: Path, tmp_path: Path, misfit: str
) -> None:
    run_dir = tmp_path / "run"
    shutil.copytree(two_saves, run_dir)
    for path in (run_dir / "checkpoints").glob("step-*"):
        change(path, misfit)
    ended = here(run_dir, *SGD, "--epochs", "2")

    assert ended.code == 1
    assert f"{misfit} of another model" in ended.err
    assert ended.err.count("\n") == 1
    assert not list(run_dir.rglob("*.corrupt*"))


def test_other_settings_put_nothing_aside(here: Here, two_saves: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    shutil.copytree(two_saves, run_dir)
    small = ("--model", "tests.training.test_planted:narrow")
    for flags, said in ((small, "model is "), (("--lr", "0.5"), "lr is 0.5, but was 0.01")):
        ended = here(run_dir, *SGD, *flags, "--epochs", "2")
        assert ended.code == 1
        assert f"other settings than the checkpoint's: {said}" in ended.err
    ended = here(run_dir, *SGD, "--model", "tests.training.test_planted:narrow", "--allow-config-change")
    assert "the weights are of another model" in ended.err
    assert not list(run_dir.rglob("*.corrupt*"))


def narrow(_: Config) -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(14 * 14, 10))


def test_readers_take_what_is_no_record_for_nothing(tmp_path: Path) -> None:
    for number, plant in enumerate(["fifo", "bytes", "deep JSON", "other JSON"]):
        folder = tmp_path / str(number)
        folder.mkdir()
        for name in NAMES:
            PLANTS[plant](folder / name, tmp_path)
        assert read_status(folder) == {}
        assert list(read_events(folder)) == []
        assert jobscript.read_stop_file(folder / "stop") == ""


def test_temporary_names_are_new_each_time_and_follow_no_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "status.json"
    assert files.temporary_name(path) != files.temporary_name(path)
    assert str(os.getpid()) not in files.temporary_name(path).name
    secret = tmp_path / "secret"
    secret.write_text("mine")
    monkeypatch.setattr("secrets.token_hex", lambda _: "known")
    (tmp_path / "status.json.tmp-known").symlink_to(secret)
    with pytest.raises(FileExistsError):
        write_json(path, {})
    (tmp_path / "step-00000001.pt.tmp-known").symlink_to(secret)
    with pytest.raises(FileExistsError):
        checkpoint.save(tmp_path, {"model": {}}, step=1, keep=1, best=False)
    assert secret.read_text() == "mine"


def test_answers_to_the_script_follow_no_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = tmp_path / "secret"
    secret.write_text("mine")
    for name in ("AGAIN", "EXIT"):
        (tmp_path / name).symlink_to(secret)
        monkeypatch.setenv(f"SBATCHGEN_{name}_FILE", str(tmp_path / name))
    jobscript.leave_status(3)
    with pytest.raises(OSError, match="symbolic"):
        jobscript.ask_again()
    assert secret.read_text() == "mine"


def test_a_lock_that_is_a_link_is_told(tmp_path: Path) -> None:
    (tmp_path / "lock.json").symlink_to(tmp_path / "nothing")
    with pytest.raises(OSError, match="symbolic"):
        RunLock(tmp_path).take(lambda _: None)


LAUNCHED = {
    "torchrun": (str(ROOT / "training/torchrun.py"), "--nproc-per-node=2", "--", str(ROOT / "training")),
    "spawn": (str(ROOT / "training"), "--launcher", "spawn", "--nproc-per-node", "2"),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("launcher", "when"), [("torchrun", "at the start"), ("spawn", "in training")])
def test_ranks_end_with_the_process_that_started_them(
    trainers: Trainers, tmp_path: Path, launcher: str, when: str
) -> None:
    flags = ("--step-delay", "0.1", "--epochs", "50", "--log-every", "1", "--sync-every", "1")
    process = trainers.start(tmp_path, *flags, launcher=LAUNCHED[launcher])
    wait_for(lambda: len(ranks(process.pid)) == 2, "ranks")
    if when == "in training":
        wait_for(lambda: events(tmp_path, "train"), "progress")
    pids = ranks(process.pid)
    process.kill()
    process.wait()
    wait_for(lambda: not any(alive(pid) for pid in pids), "end of the ranks")
    ended = finish(trainers.start(tmp_path, "--epochs", "1"))
    assert ended.code == 0, ended.err
    assert "Waiting up to" not in ended.out


def ranks(parent: int) -> list[int]:
    """The processes below that train."""
    with contextlib.suppress(OSError):
        listed = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
        return [int(pid) for pid in listed if b"RANK=" in Path(f"/proc/{pid}/environ").read_bytes()]
    return []


def test_a_rank_whose_parent_is_gone_already_does_not_begin(trainers: Trainers, tmp_path: Path) -> None:
    ended = finish(trainers.start(tmp_path, env={"SBATCHGEN_PARENT": "1"}))
    assert ended.code == 128 + signal.SIGKILL
    assert not (tmp_path / "lock.json").exists()


def idx(sizes: tuple[int, ...], values: bytes) -> bytes:
    return bytes((0, 0, 8, len(sizes))) + struct.pack(f">{len(sizes)}I", *sizes) + values


def test_a_packed_file_is_unpacked_no_further_than_its_header_says(tmp_path: Path) -> None:
    """A gigabyte of zeros packs to a megabyte."""
    bomb = tmp_path / "bomb.gz"
    bomb.write_bytes(
        gzip.compress(idx((4,), b"")) + 1024 * gzip.compress(bytes(1 << 20))
    )  # members of one file
    began = time.process_time()
    with pytest.raises(UserError, match="more than 4 values where its header says 4"):
        read_idx(bomb, dimensions=1)
    assert time.process_time() - began < 2
    huge = tmp_path / "huge"
    huge.write_bytes(idx((1 << 31, 1 << 31, 9), b""))
    with pytest.raises(UserError, match="more than"):
        read_idx(huge, dimensions=3)


def test_a_label_over_the_number_of_classes_is_told_with_its_file(small_digits: Path, tmp_path: Path) -> None:
    for file in small_digits.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    images, labels = read_mnist(tmp_path, "train")
    assert int(labels.max()) == 9
    (path,) = tmp_path.glob("train-labels*")
    data = bytearray(path.read_bytes())
    data[-1] = 200
    path.write_bytes(data)
    with pytest.raises(UserError, match=r"a label is 200, and MNIST has 10 classes; at: .*train-labels"):
        read_mnist(tmp_path, "train")
    assert isinstance(images, torch.Tensor)


def test_the_state_of_a_run_is_whole_after_all_this(here: Here, tmp_path: Path) -> None:
    here(tmp_path)
    assert status(tmp_path)["state"] == "done"
    assert not list(tmp_path.rglob("*.tmp-*"))


def test_a_folder_that_is_exchanged_meanwhile_opens_no_other_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir, theirs, private = tmp_path / "run", tmp_path / "theirs", tmp_path / "private/key"
    for folder in (run_dir, theirs, private.parent):
        folder.mkdir()
    for file in (run_dir / "out", private):
        file.write_text("secret")
        file.chmod(0o620)
    (theirs / "out").symlink_to(private)
    look = os.stat

    def exchanging(name: Any, *words: Any, **how: Any) -> os.stat_result:
        status = look(name, *words, **how)
        if name == "out" and run_dir.exists():  # between the look and the change
            run_dir.rename(tmp_path / "away")
            theirs.rename(run_dir)
        return status

    monkeypatch.setattr(os, "stat", exchanging)
    files.own_folder(run_dir)
    monkeypatch.undo()
    assert (run_dir / "out").is_symlink()
    assert [stat.S_IMODE(file.stat().st_mode) for file in (private, tmp_path / "away/out")] == [0o620, 0o600]
