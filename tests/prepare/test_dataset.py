"""Data sets before a job: drawn digits, and the download with its checks, from a server of the test's own."""

from __future__ import annotations

import gzip
import hashlib
import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from sbatchgen.lab.prepare import dataset
from tests.conftest import Command

FILES = {name: gzip.compress(name.encode()) for name in dataset.FILES}


@pytest.fixture
def mirror(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of a server on this machine with four files, which count as the real ones."""
    folder = tmp_path_factory.mktemp("mirror")
    for name, data in FILES.items():
        (folder / name).write_bytes(data)
        monkeypatch.setitem(dataset.FILES, name, hashlib.md5(data, usedforsecurity=False).hexdigest())

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args: object, **kwargs: object) -> None:
            super().__init__(*args, directory=str(folder), **kwargs)  # type: ignore[arg-type]

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        monkeypatch.setattr(dataset, "MIRRORS", (f"http://127.0.0.1:{server.server_port}",))
        yield folder
        server.shutdown()
        thread.join()


def test_the_download_is_checked_and_files_that_are_there_stay(
    folder: Path, command: Command, mirror: Path
) -> None:
    result = command("data", "mnist", "--to", "data")
    assert (result.status, result.out) == (0, "")
    assert {path.name: path.read_bytes() for path in (folder / "data").iterdir()} == FILES
    for path in mirror.iterdir():
        path.unlink()
    assert command("data", "mnist", "--to", "data").err.count(": already there") == 4


def test_a_file_that_is_not_the_right_one_never_gets_its_name(
    folder: Path, command: Command, mirror: Path
) -> None:
    (mirror / "t10k-images-idx3-ubyte.gz").write_bytes(b"<html>log in first</html>")
    result = command("data", "mnist", "--to", "data")
    assert result.status == 3
    assert "t10k-images-idx3-ubyte.gz has the wrong MD5" in result.err
    assert "--synthetic" in result.err
    assert sorted(path.name for path in (folder / "data").iterdir()) == sorted(FILES)[2:]


def test_no_server_is_told(folder: Path, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dataset, "MIRRORS", ("http://127.0.0.1:9",))
    result = command("data", "mnist", "--to", "data")
    assert result.status == 3
    assert "can't download train-images-idx3-ubyte.gz" in result.err


@pytest.mark.slow
def test_drawn_digits_are_idx_files(folder: Path, command: Command) -> None:
    assert (
        command("data", "mnist", "--to", "data", "--synthetic", "--train", "50", "--test", "20").status == 0
    )
    sizes = {path.name: path.stat().st_size for path in (folder / "data").iterdir()}
    assert sizes == {
        "train-images-idx3-ubyte": 16 + 50 * 784,
        "train-labels-idx1-ubyte": 8 + 50,
        "t10k-images-idx3-ubyte": 16 + 20 * 784,
        "t10k-labels-idx1-ubyte": 8 + 20,
    }
    header = (folder / "data/train-images-idx3-ubyte").read_bytes()[:16]
    assert header.hex() == "00000803000000320000001c0000001c"
    assert (
        command("data", "mnist", "--to", "data", "--synthetic", "--train", "50", "--test", "20").status == 0
    )
    other = command("data", "mnist", "--to", "data", "--synthetic", "--train", "60", "--test", "20")
    assert other.status == 3, "other digits do not replace these"


@pytest.mark.proof
@pytest.mark.slow
def test_a_folder_that_can_not_be_made_is_told(folder: Path, command: Command) -> None:
    (folder / "data").write_text("a file")
    for more in ((), ("--synthetic",)):
        result = command("data", "mnist", "--to", "data/deep", *more)
        assert result.status == 3
        assert "Traceback" not in result.err
