"""Where the logs of a job are, and how they are read while they grow."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sbatchgen.jobs.runs import job_log
from sbatchgen.jobs.runs.job_log import Tail, find_logs, start_count
from sbatchgen.jobs.runs.record import Record


def record(pattern: str, **more: str) -> Record:
    return Record(shared=False, name="a[b]*", job="4711", folder="/", log=pattern, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("pattern", "files", "logs"),
    [
        ("%x-%j.out", ["a[b]*-4711.out", "ab-4711.out", "a[b]*-4712.out"], ["a[b]*-4711.out"]),
        ("100%%-%j", ["100%-4711", "100%%-4711"], ["100%-4711"]),
        ("%6j.out", ["004711.out", "4711.out"], ["004711.out"]),
        ("log-%N.%j", ["log-n1.4711", "log-n2.4711", "log.4711"], ["log-n1.4711", "log-n2.4711"]),
        ("plain?.out", ["plain?.out", "plains.out"], ["plain?.out"]),
        ("missing-%j", [], []),
    ],
)
def test_the_names_that_slurm_gives(tmp_path: Path, pattern: str, files: list[str], logs: list[str]) -> None:
    for name in files:
        (tmp_path / name).touch()
    assert sorted(path.name for path in find_logs(record(f"{tmp_path}/{pattern}"))) == sorted(logs)


def test_a_log_that_is_removed_meanwhile_hides_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for node in ("n1", "n2"):
        (tmp_path / f"log-{node}.4711").touch()
    stat = Path.stat

    def removed(path: Path, **how: bool) -> os.stat_result:
        if path.name == "log-n1.4711":
            path.unlink(missing_ok=True)
        return stat(path, **how)

    monkeypatch.setattr(Path, "stat", removed)
    assert [path.name for path in find_logs(record(f"{tmp_path}/log-%N.%j"))] == ["log-n2.4711"]


def test_the_logs_of_an_array(tmp_path: Path) -> None:
    for task in (1, 2, 10):
        (tmp_path / f"x-4711_{task}.out").touch()
        (tmp_path / f"y-{4711 + task}.out").touch()
    array = record(f"{tmp_path}/x-%A_%a.out", array="1-10")
    assert len(find_logs(array)) == 3
    assert [path.name for path in find_logs(array, "2")] == ["x-4711_2.out"]
    assert len(find_logs(record(f"{tmp_path}/y-%j.out", array="1-10"))) == 3  # each task has an id of its own
    assert find_logs(record("")) == []


@pytest.mark.parametrize("pattern", ["/proc/self/%N", "/proc/self/environ", "{}/link/environ"])
def test_no_file_of_a_process_is_a_log(tmp_path: Path, pattern: str) -> None:
    (tmp_path / "link").symlink_to("/proc/self")
    assert find_logs(record(pattern.format(tmp_path))) == []


def test_a_log_is_read_as_it_grows(tmp_path: Path) -> None:
    path = tmp_path / "log"
    tail = Tail(path)
    assert list(tail.new_bytes()) == []
    path.write_bytes(b"one\n")
    assert list(tail.new_bytes()) == [b"one\n"]
    with path.open("ab") as file:
        file.write(b"two\n\xff")
    assert list(tail.new_bytes()) == [b"two\n\xff"]
    assert list(tail.new_bytes()) == []
    path.write_bytes(b"cut\n")  # by a job that does not append
    assert list(tail.new_bytes()) == [b"cut\n"]
    (tmp_path / "new").write_bytes(b"another file\n")
    (tmp_path / "new").replace(path)
    assert list(tail.new_bytes()) == [b"another file\n"]
    path.unlink()
    os.mkfifo(path)
    assert list(tail.new_bytes()) == []


@pytest.mark.parametrize("piece", [1, 2, 3, 7, 1 << 20])
@pytest.mark.parametrize(
    "text", [b"", b"\n", b"a", b"a\n", b"a\nb", b"a\nb\n", b"\n\n\n", b"a\n\nb\n\n", b"1\n2\n3\n4\n5\n"]
)
def test_the_last_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: bytes, piece: int) -> None:
    monkeypatch.setattr(job_log, "PIECE_BYTES", piece)
    path = tmp_path / "log"
    path.write_bytes(text)
    for lines in range(7):
        shown = b"".join(Tail(path, last_lines=lines).new_bytes())
        assert shown == b"".join(text.splitlines(keepends=True)[-lines:] if lines else []), lines


def test_a_big_log_is_read_from_its_end_with_true_line_numbers(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"x" * 99 + b"\n" + b"a line of forty characters in all, yes\n" * 200_000 + b"last\n")
    lines = [*job_log.last_lines(path)]
    assert lines[-1] == (200_002, "last")
    assert len(lines) < 60_000
    with path.open("r+b") as file:
        file.truncate(4 << 30)  # of zeros, which take no place
    assert {number for number, _ in job_log.last_lines(path)} == {0}


def test_a_log_that_appears_while_the_logs_are_looked_up_is_shown_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "out").write_bytes(b"of stdout\n")
    run = record(f"{tmp_path}/out", errors=f"{tmp_path}/err")
    find = job_log.newest_logs

    def newest_logs(record: Record, task: str = "") -> list[Path]:
        newest = find(record, task)
        (tmp_path / "err").write_bytes(b"of stderr\n")
        return newest

    monkeypatch.setattr(job_log, "records", lambda _: [run])
    monkeypatch.setattr(job_log, "newest_logs", newest_logs)
    shown: list[bytes] = []
    job_log.RunLogs(tmp_path, None, "").show(shown.append)
    assert sorted(shown) == [b"of stderr\n", b"of stdout\n"]


@pytest.mark.parametrize("piece", [1, 3, 1 << 20])
@pytest.mark.parametrize("text", ["", "a", "a\n", "a\nbb\nccc\n", "a\nbb\nccc", "\n\n\n", "x" * 50 + "\ny\n"])
def test_the_last_lines_of_a_log_are_found_from_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece: int, text: str
) -> None:
    monkeypatch.setattr(job_log, "PIECE_BYTES", piece)
    (tmp_path / "log").write_text(text)
    lines = text.splitlines(keepends=True)
    for count in range(5):
        shown = b"".join(job_log.Tail(tmp_path / "log", last_lines=count).new_bytes()).decode()
        assert shown == "".join(lines[len(lines) - count :] if count < len(lines) else lines if count else [])


def test_of_a_line_without_end_the_end_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_log, "MAX_TAIL_BYTES", 100)
    monkeypatch.setattr(job_log, "PIECE_BYTES", 10)
    (tmp_path / "log").write_text("x" * 1000 + "end")
    assert b"".join(job_log.Tail(tmp_path / "log", last_lines=20).new_bytes()) == b"x" * 97 + b"end"


def test_a_count_of_starts_that_no_script_prints_is_none(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(f"Job 1 on n1, restart 2 of at most 3\nJob 1 on n1, restart {'9' * 5000} of at most 3\n")
    assert start_count(log) == 3
