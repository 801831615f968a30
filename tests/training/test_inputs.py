"""Flags, launchers' variables and data files: what is understood, and what is refused and how."""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from sbatchgen.lab.prepare import digits
from training.config import critical_settings, global_batch, parse
from training.data.arrays import read_idx, read_mnist
from training.errors import UserError
from training.processes.ranks import Place, detect, spawn_environments

SLURM = {"SLURM_PROCID": "3", "SLURM_LOCALID": "1", "SLURM_NTASKS": "4"}
TORCHRUN = {
    "RANK": "5",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "8",
    "LOCAL_WORLD_SIZE": "4",
    "MASTER_ADDR": "n1",
    "MASTER_PORT": "3",
}
MEETING = {"MASTER_ADDR": "n1", "MASTER_PORT": "3"}


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--batch-size", "8", "--batch-size-per-gpu", "8"], "exclude each other"),
        (["--epochs", "0"], "--epochs is 0, but must be at least 1"),
        (["--lr", "nan"], "--lr is nan"),
        (["--accumulate", "0"], "--accumulate is 0, but must be at least 1"),
        (["--clip-norm", "-1"], "--clip-norm is -1.0"),
        (["--ema", "1"], "--ema is 1.0, but must be in 0..1, below 1"),
        (["--label-smoothing", "nan"], "--label-smoothing is nan"),
        (["--optimizer", "adam"], "invalid choice"),
        (["--precision", "fp8"], "choose from .*bf16.*fp16"),
        (["--epoch", "3"], "unrecognized arguments: --epoch"),
        (["--nproc-per-node", "2"], "needs --launcher spawn"),
        (["--launcher", "srun", "--dataparallel"], "one process"),
    ],
)
def test_flags_that_cannot_be_meant(flags: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        parse(flags)


def test_the_batch_is_global() -> None:
    assert global_batch(parse(["--batch-size", "96"]), 3) == 96
    assert global_batch(parse(["--batch-size-per-gpu", "96"]), 3) == 288
    with pytest.raises(
        UserError, match=r"--batch-size 64 cannot be shared by 3 processes; fix: --batch-size 63 or 66"
    ):
        global_batch(parse([]), 3)
    with pytest.raises(UserError, match=r"by 3 processes in 2 parts each; fix: --batch-size 60 or 66"):
        global_batch(parse(["--accumulate", "2"]), 3)
    with pytest.raises(UserError, match=r"--batch-size-per-gpu 5 cannot be divided into 2 parts"):
        global_batch(parse(["--batch-size-per-gpu", "5", "--accumulate", "2"]), 3)
    with pytest.raises(UserError, match=r"fix: --batch-size 8$"):
        global_batch(parse(["--batch-size", "4"]), 8)


def test_the_same_batch_by_either_flag_gives_the_same_settings() -> None:
    both = [parse(["--batch-size", "64"]), parse(["--batch-size-per-gpu", "32"])]

    assert len({str(critical_settings(config, batch=64)) for config in both}) == 1


def test_each_optimizer_has_its_usual_rate() -> None:
    assert [parse(["--optimizer", name]).lr for name in ("sgd", "adamw", "adadelta")] == [0.01, 0.001, 1.0]
    assert dataclasses.asdict(parse(["--lr", "0.5"]))["lr"] == 0.5


@pytest.mark.parametrize(
    ("environ", "place"),
    [
        ({}, Place()),
        (TORCHRUN | SLURM, Place(launcher="torchrun", rank=5, size=8, local_rank=1, local_size=4)),
        ({"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "n1", "MASTER_PORT": "3"}, Place()),
        (SLURM | MEETING, Place(launcher="srun", rank=3, size=4, local_rank=1)),
        (
            SLURM | MEETING | {"SLURM_STEP_TASKS_PER_NODE": "2(x2)", "SLURM_NODEID": "1"},
            Place(launcher="srun", rank=3, size=4, local_rank=1, local_size=2),
        ),
        (SLURM | {"SLURM_PROCID": "0", "SLURM_NTASKS": "1"}, Place()),
    ],
)
def test_who_started_me(environ: dict[str, str], place: Place) -> None:
    assert detect(environ, "auto") == place
    assert detect(environ, "none") == Place()


@pytest.mark.parametrize(
    ("environ", "launcher", "message"),
    [
        (SLURM, "auto", "MASTER_ADDR and MASTER_PORT not set.*fix: export"),
        ({"RANK": "0"}, "torchrun", "LOCAL_RANK and WORLD_SIZE"),
        ({}, "srun", "SLURM_PROCID"),
        (TORCHRUN | {"RANK": "x"}, "auto", "RANK is 'x', not a number"),
        (TORCHRUN | {"RANK": "8"}, "auto", "RANK=8 is not below WORLD_SIZE=8"),
    ],
)
def test_variables_that_are_missing_or_wrong(environ: dict[str, str], launcher: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        detect(environ, launcher)


def test_spawn_numbers_its_processes_by_node_and_ignores_what_pyxis_sets() -> None:
    pyxis = {"RANK": "1", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "SLURM_NNODES": "4"}
    step = {"SLURM_STEP_NUM_NODES": "2", "SLURM_NODEID": "1"}

    made = spawn_environments(pyxis | step | MEETING, 2)

    assert [
        (
            environment["RANK"],
            environment["LOCAL_RANK"],
            environment["WORLD_SIZE"],
            environment["MASTER_ADDR"],
        )
        for environment in made
    ] == [
        ("2", "0", "4", "n1"),
        ("3", "1", "4", "n1"),
    ]
    with pytest.raises(UserError, match="MASTER_ADDR and MASTER_PORT not set"):
        spawn_environments(pyxis | step, 2)
    assert spawn_environments({}, 1)[0]["MASTER_ADDR"] == "localhost"
    of_an_image = {"MASTER_ADDR": "image", "MASTER_PORT": "1"}
    assert spawn_environments(of_an_image, 2)[1]["MASTER_ADDR"] == "localhost"


@pytest.mark.parametrize("place", ["", "raw", "MNIST/raw"])
@pytest.mark.parametrize("zipped", ["", ".gz"])
def test_mnist_is_found_in_each_layout(small_digits: Path, tmp_path: Path, place: str, zipped: str) -> None:
    folder = tmp_path / place
    folder.mkdir(parents=True, exist_ok=True)
    for path in small_digits.iterdir():
        data = path.read_bytes()
        (folder / (path.name + zipped)).write_bytes(gzip.compress(data, 1) if zipped else data)
    images_NCHW, labels_N = read_mnist(tmp_path, "train")

    assert images_NCHW.shape == (250, 1, 14, 14)
    assert images_NCHW.dtype == torch.uint8
    assert labels_N.dtype == torch.int64
    assert set(labels_N.tolist()) == set(range(10))
    assert (
        bytes(images_NCHW[3].flatten().tolist())
        == (small_digits / "train-images-idx3-ubyte").read_bytes()[16:][3 * 196 : 4 * 196]
    )


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data: data[:-1], "holds 249 values where its header says 250"),
        (lambda data: data + b"x", "holds more than 250 values"),
        (lambda data: b"<html>" + data, "not an IDX file"),
        (lambda data: data[:0], "not an IDX file"),
    ],
)
def test_a_damaged_file_is_named_with_the_way_out(
    small_digits: Path, tmp_path: Path, damage: Callable[[bytes], bytes], message: str
) -> None:
    path = tmp_path / "train-labels-idx1-ubyte"
    path.write_bytes(damage((small_digits / path.name).read_bytes()))

    with pytest.raises(UserError, match=f"{message}.*{path.name}; fix: sbatchgen data mnist --to {tmp_path}"):
        read_idx(path, dimensions=1)


def test_a_damaged_gz_and_a_missing_file(tmp_path: Path) -> None:
    path = tmp_path / "x.gz"
    path.write_bytes(gzip.compress(b"0" * 1000)[:-20])

    with pytest.raises(UserError, match="cannot read it"):
        read_idx(path, dimensions=1)
    with pytest.raises(UserError, match=r"train-images-idx3-ubyte was not found; .*--synthetic"):
        read_mnist(tmp_path, "train")


def test_digits_are_the_same_for_the_same_seed(tmp_path: Path) -> None:
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        digits.write(tmp_path / name, train=40, test=20, seed=seed)
    a, b, c = (
        [hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted((tmp_path / name).iterdir())]
        for name in "abc"
    )

    assert a == b
    assert not set(a) & set(c)
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == sorted(sum(digits.FILES.values(), ()))


def test_digits_do_not_replace_other_files(tmp_path: Path) -> None:
    digits.write(tmp_path, train=10, test=10, seed=0)
    assert "already" in digits.write(tmp_path, train=10, test=10, seed=0)
    with pytest.raises(FileExistsError, match="holds something else"):
        digits.write(tmp_path, train=10, test=10, seed=1)


def test_digits_are_quick(tmp_path: Path) -> None:
    began = time.process_time()
    digits.write(tmp_path, train=1000, test=1, seed=0)

    assert time.process_time() - began < 3  # 0.2 s on an idle machine
