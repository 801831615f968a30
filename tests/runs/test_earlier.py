"""Runs that an earlier version has left are listed, diagnosed and continued.

tests/fixtures/earlier has three runs of each version, of the profile local: `whole` ended, `failed` failed, and
`stopped` was cancelled in its first epoch. In their texts, @FOLDER@ stands for the folder of the user.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
import zlib
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY
from tests.training.trainers import without_launcher

VERSIONS = ("0.2.0", "0.3.0")
INDEX = Path("state/sbatchgen/runs.jsonl")


class User:
    """Somebody who has used an earlier version in a folder."""

    def __init__(self, folder: Path, version: str) -> None:
        self.folder = folder
        places = {"@FOLDER@": str(folder), "@CODE@": str(REPOSITORY), "@VENV@": sys.prefix}
        with tarfile.open(REPOSITORY / f"tests/fixtures/earlier/{version}.tar.xz") as archive:
            for member in archive:
                data = archive.extractfile(member)
                assert data is not None
                path = folder / member.name
                path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                path.write_bytes(data.read() if path.suffix == ".pt" else _filled(data.read(), places))
                path.chmod(member.mode)
        index = folder / INDEX
        index.write_text(_sealed_again(index.read_text()))

    def sbatchgen(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        known = without_launcher()
        known |= {"HOME": str(self.folder / "home"), "XDG_STATE_HOME": str(self.folder / "state")}
        known["PATH"] = f"{Path(sys.prefix, 'bin')}:{known['PATH']}"
        call = [str(Path(sys.prefix, "bin/sbatchgen")), *arguments]
        return subprocess.run(
            call,
            check=False,
            cwd=self.folder / "work",
            env=known,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )


def _filled(data: bytes, places: dict[str, str]) -> bytes:
    for name, place in places.items():
        data = data.replace(name.encode(), place.encode())
    return data


def _sealed_again(text: str) -> str:
    """Write the checksums of an index, which has other paths than that of its version had."""
    first, _, rest = text.partition("\n")
    if first.isdecimal():  # of the whole text
        return f"{zlib.crc32(rest.encode())}\n{rest}"
    facts = [line.partition(" ")[2] for line in text.splitlines()]  # of each line
    return "".join(f"{zlib.crc32(fact.encode()):08x} {fact}\n" for fact in facts)


@pytest.fixture(params=VERSIONS)
def user(request: pytest.FixtureRequest, tmp_path: Path) -> User:
    return User(tmp_path, request.param)


def test_the_runs_of_an_earlier_version_are_listed(user: User) -> None:
    done = user.sbatchgen("status", "--format", "json")
    assert (done.returncode, done.stderr) == (0, "")
    states = {run["name"]: run["jobs"][0]["state"] for run in json.loads(done.stdout)["runs"]}
    assert states == {"whole": "COMPLETED", "failed": "FAILED", "stopped": "FAILED"}


@pytest.mark.sampled(2)
def test_each_verb_reads_a_run_of_an_earlier_version(user: User) -> None:
    assert "epoch 1 of 1" in user.sbatchgen("status", "whole").stdout
    assert "Training completed: 1 epochs" in user.sbatchgen("logs", "whole").stdout
    assert "not enough memory on the GPU (own.py:3)" in user.sbatchgen("diagnose", "failed").stdout
    assert "whole: done; 1 job, 1 start" in user.sbatchgen("report", "whole").stdout
    assert "a whole; capital letters: validation" in user.sbatchgen("plot", "whole", "--text").stdout
    assert user.sbatchgen("lint", "runs/whole/job.slurm").returncode == 0


@pytest.mark.sampled(2, first=1)
@pytest.mark.torch
def test_a_run_of_an_earlier_version_continues_from_its_checkpoint(user: User) -> None:
    drawn = user.sbatchgen("data", "mnist", "--to", "data", "--synthetic", "--train", "200", "--test", "40")
    assert drawn.returncode == 0, drawn.stderr
    done = user.sbatchgen("resume", "stopped", "--yes", "--", "--step-delay", "0")
    assert done.returncode == 0, done.stderr
    log = user.sbatchgen("logs", "stopped").stdout
    assert "Resuming from checkpoints/step-00000006.pt: epoch 1, step 6" in log
    assert "Training completed: 3 epochs" in log


def test_an_index_of_lines_that_is_damaged_is_repaired(tmp_path: Path) -> None:
    user = User(tmp_path, "0.2.0")
    index = tmp_path / INDEX
    index.write_text(index.read_text().replace('"whole"', '"whale"', 1))
    done = user.sbatchgen("status")
    assert "warning: the index of runs was damaged" in done.stderr
    assert {line.split()[0] for line in done.stdout.splitlines()} == {"RUN", "whole", "failed", "stopped"}
