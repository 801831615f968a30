"""The index of runs: names, parallel writers, broken files."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from sbatchgen.errors import DocumentError
from sbatchgen.runs.index import LOST, SUBMITTING, Index, Run, RunJob, place


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    made = Index(tmp_path / "state" / "runs.sqlite")
    yield made
    made.close()


def test_it_lies_in_the_state_folder() -> None:
    assert place({"XDG_STATE_HOME": "/state", "HOME": "/home/ann"}) == Path("/state/sbatchgen/runs.sqlite")
    at_home = Path("/home/ann/.local/state/sbatchgen/runs.sqlite")
    for relative in (
        {},
        {"XDG_STATE_HOME": ""},
        {"XDG_STATE_HOME": "state"},
    ):  # the standard wants it absolute
        assert place({"HOME": "/home/ann", **relative}) == at_home


def test_a_run_is_its_folder_and_keeps_its_name(index: Index, tmp_path: Path) -> None:
    first = index.begin("a", tmp_path / "x", "ddp", shared=False)
    again = index.begin("b", tmp_path / "x", "other", shared=False)
    second = index.begin("c", tmp_path / "y", "ddp", shared=False)
    third = index.begin("d", tmp_path / "z", "ddp", shared=False)
    assert [run.name for run in (first, again, second, third)] == ["ddp", "ddp", "ddp-2", "ddp-3"]
    index.refused("c")
    assert index.begin("e", tmp_path / "y", "ddp", shared=False).name == "ddp-2"
    assert [job.key for job in index.jobs("ddp")] == ["a", "b"]


def test_runs_in_a_shared_folder_are_several(index: Index, tmp_path: Path) -> None:
    names = [index.begin(key, tmp_path, "ddp", shared=True).name for key in "abc"]
    assert names == ["ddp", "ddp-2", "ddp-3"]


def test_a_submission_from_its_start_to_its_end(index: Index, tmp_path: Path) -> None:
    for key in ("kept", "no", "silent"):
        index.begin(key, tmp_path / key, key, shared=False)
    assert {job.state for job in index.jobs()} == {SUBMITTING}
    index.accepted("kept", "4711", "alpha")
    index.refused("no")
    index.lost("silent")
    assert [(job.run, job.id, job.cluster, job.state) for job in index.jobs()] == [
        ("kept", "4711", "alpha", ""),
        ("silent", "", "", LOST),
    ]
    assert [run.name for run in index.runs()] == ["kept", "silent"]
    (job,) = index.jobs("kept")
    index.seen([job._replace(state="COMPLETED", ended=True, says="done", seen=5.0)])
    assert index.jobs("kept")[0].says == "done"
    assert [job.run for job in index.jobs() if not job.ended] == ["silent"]


def test_a_run_is_found_by_name_job_and_folder(index: Index, tmp_path: Path) -> None:
    run = index.begin("a", tmp_path / "runs" / "x", "ddp", shared=False)
    index.accepted("a", "4711")
    for told in ("ddp", "4711", "4711_3", "runs/x", "runs/../runs/x/", str(tmp_path / "runs" / "x")):
        assert index.find(told, tmp_path) == [run], told
    for told in ("dd", "471", "runs", "", "_"):
        assert index.find(told, tmp_path) == [], told


def test_a_folder_of_any_bytes(index: Index, tmp_path: Path) -> None:
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff'\n|"))
    index.begin("a", folder, "ddp", shared=False)
    assert index.runs()[0].folder == folder
    assert index.begin("b", folder, "ddp", shared=False).name == "ddp"


def test_runs_come_back_from_their_folders(index: Index, tmp_path: Path) -> None:
    told = Run(name="ddp", folder=tmp_path / "x", shared=False, created=7.0)
    jobs = [a_job("a", "1"), a_job("b", "2")]
    assert index.add(told, jobs) == told
    index.seen([jobs[0]._replace(state="FAILED", ended=True)])
    assert index.add(told, [*jobs, a_job("c", "3")]) == told
    assert [(job.id, job.state) for job in index.jobs("ddp")] == [("1", "FAILED"), ("2", ""), ("3", "")]
    moved = told._replace(folder=tmp_path / "moved")
    assert index.add(moved, jobs).name == "ddp"  # known by its jobs
    other = Run(name="ddp", folder=tmp_path / "other", shared=False, created=8.0)
    assert index.add(other, [a_job("d", "4")]).name == "ddp-2"


def a_job(key: str, job: str) -> RunJob:
    return RunJob(
        key=key, run="ddp", id=job, cluster="", submitted=1.0, state="", ended=False, says="", seen=1.0
    )


WRITER = """
import sys
from pathlib import Path
from sbatchgen.runs.index import Index
index, me = Index(Path(sys.argv[1])), sys.argv[2]
for number in range(25):
    key = f"{me}-{number}"
    index.begin(key, Path("/runs") / key, "ddp", shared=False)
    index.accepted(key, f"{me}{number:03}")
index.close()
"""


def test_eight_processes_write_at_once(tmp_path: Path) -> None:
    file = tmp_path / "state" / "runs.sqlite"
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, file, str(one)]) for one in range(1, 9)]
    assert [writer.wait() for writer in writers] == [0] * 8
    index = Index(file)
    assert sorted(job.id for job in index.jobs()) == sorted(
        f"{a}{b:03}" for a in range(1, 9) for b in range(25)
    )
    assert set(Counter(run.name for run in index.runs()).values()) == {1}
    index.close()


def test_a_broken_index_is_said(tmp_path: Path) -> None:
    file = tmp_path / "runs.sqlite"
    file.write_bytes(b"no database " * 1000)
    with pytest.raises(DocumentError, match="can't be used: file is not a database") as raised:
        Index(file)
    assert raised.value.problems[0].fix == (
        f"mv {file} {file}.broken; then enter your runs again: sbatchgen status --scan FOLDER"
    )
    with pytest.raises(DocumentError, match="can't be used: Not a directory"):
        Index(file / "below" / "runs.sqlite")


def test_an_index_of_a_later_version_is_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "runs.sqlite"
    with sqlite3.connect(file) as base:
        base.execute("PRAGMA user_version = 99")
    before = file.read_bytes()
    with pytest.raises(DocumentError, match="is of a later sbatchgen"):
        Index(file)
    assert file.read_bytes() == before


def test_it_follows_the_umask(tmp_path: Path) -> None:
    old = os.umask(0o077)
    try:
        index = Index(tmp_path / "state" / "runs.sqlite")
        index.begin("a", tmp_path, "ddp", shared=False)
        index.close()
    finally:
        os.umask(old)
    modes = {path.stat().st_mode & 0o077 for path in (tmp_path / "state").rglob("*")}
    assert modes == {0}
