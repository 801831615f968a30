"""The index of runs: names, parallel writers, broken files."""

from __future__ import annotations

import fcntl
import json
import os
import random
import subprocess
import sys
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sbatchgen.base.errors import DocumentError
from sbatchgen.jobs.runs import record
from sbatchgen.jobs.runs.index import LOST, SUBMITTING, Index, Run, RunJob, RunWithJobs, index_file
from sbatchgen.jobs.runs.record import Record
from tests.conftest import Command


@pytest.fixture
def index(tmp_path: Path) -> Index:
    return Index(tmp_path / "state" / "runs.jsonl")


def test_it_lies_in_the_state_folder() -> None:
    assert index_file({"XDG_STATE_HOME": "/state", "HOME": "/home/ann"}) == Path(
        "/state/sbatchgen/runs.jsonl"
    )
    at_home = Path("/home/ann/.local/state/sbatchgen/runs.jsonl")
    for relative in (
        {},
        {"XDG_STATE_HOME": ""},
        {"XDG_STATE_HOME": "state"},
    ):  # the standard wants it absolute
        assert index_file({"HOME": "/home/ann", **relative}) == at_home


def test_a_run_is_its_folder_and_keeps_its_name(index: Index, tmp_path: Path) -> None:
    first = index.begin("a", tmp_path / "x", "ddp", shared=False)
    again = index.begin("b", tmp_path / "x", "other", shared=False)
    second = index.begin("c", tmp_path / "y", "ddp", shared=False)
    third = index.begin("d", tmp_path / "z", "ddp", shared=False)
    assert [run.name for run in (first, again, second, third)] == ["ddp", "ddp", "ddp-2", "ddp-3"]
    index.remove("c")
    assert index.begin("e", tmp_path / "y", "ddp", shared=False).name == "ddp-2"
    assert [job.key for job in index.jobs("ddp")] == ["a", "b"]


def test_a_name_means_its_run_before_another_of_this_folder(index: Index, tmp_path: Path) -> None:
    other, here = tmp_path / "other/runs/ddp", tmp_path / "here/runs/ddp"
    named = index.begin("a", other, "ddp", shared=False)
    near = index.begin("b", here, "ddp", shared=False)
    assert near.name == "ddp-2"
    for folder, others in (("here", [near]), ("", []), ("other", [])):
        assert index.find("ddp", tmp_path / folder) == [named]
        assert index.others_in_folder(named, "ddp", tmp_path / folder) == others
    assert index.find("runs/ddp", tmp_path / "here") == [near]


def test_a_printed_name_means_its_run_for_ever(index: Index, tmp_path: Path) -> None:
    """An old script has its folder elsewhere; later a job with a folder of its name is submitted here."""
    work, elsewhere, near = tmp_path / "work", tmp_path / "state/alpha-1", tmp_path / "work/runs/alpha"
    for key, folder, job in (("a", elsewhere, "1"), ("b", near, "2")):
        folder.mkdir(parents=True)
        run = index.begin(key, folder, "alpha", shared=False)
        kept = Record(key=key, run=run.name, shared=False, name="alpha", job=job, folder=str(work))
        record.write_accepted(folder, kept)
        assert index.find(run.name, work) == [run]  # as it is printed now
    assert [run.folder for run in index.find("alpha", work)] == [elsewhere]
    assert [run.folder for run in index.find("alpha-2", work)] == [near]
    assert [run.folder for run in index.find("runs/alpha", work)] == [near]


def test_runs_in_a_shared_folder_are_several(index: Index, tmp_path: Path) -> None:
    names = [index.begin(key, tmp_path, "ddp", shared=True).name for key in "abc"]
    assert names == ["ddp", "ddp-2", "ddp-3"]


def test_a_submission_from_its_start_to_its_end(index: Index, tmp_path: Path) -> None:
    for key in ("kept", "no", "silent"):
        index.begin(key, tmp_path / key, key, shared=False)
    assert {job.state for job in index.jobs()} == {SUBMITTING}
    index.accept("kept", "4711", "alpha")
    index.remove("no")
    index.mark_lost("silent")
    assert [(job.run, job.id, job.cluster, job.state) for job in index.jobs()] == [
        ("kept", "4711", "alpha", ""),
        ("silent", "", "", LOST),
    ]
    assert [run.name for run in index.runs()] == ["kept", "silent"]
    (job,) = index.jobs("kept")
    index.update_states([job._replace(state="COMPLETED", ended=True, says="done", seen=5.0)])
    assert index.jobs("kept")[0].says == "done"
    assert [job.run for job in index.jobs() if not job.ended] == ["silent"]


def test_a_run_is_found_by_name_job_and_folder(index: Index, tmp_path: Path) -> None:
    run = index.begin("a", tmp_path / "runs" / "x", "ddp", shared=False)
    index.accept("a", "4711")
    for text in ("ddp", "4711", "4711_3", "runs/x", "runs/../runs/x/", str(tmp_path / "runs" / "x")):
        assert index.find(text, tmp_path) == [run], text
    for text in ("dd", "471", "runs", "", "_"):
        assert index.find(text, tmp_path) == [], text


def test_a_folder_of_any_bytes(index: Index, tmp_path: Path) -> None:
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff'\n|"))
    index.begin("a", folder, "ddp", shared=False)
    assert index.runs()[0].folder == folder
    assert index.begin("b", folder, "ddp", shared=False).name == "ddp"


def test_runs_come_back_from_their_folders(index: Index, tmp_path: Path) -> None:
    run = Run(name="ddp", path=str(tmp_path / "x"), shared=False, created=7.0)
    jobs = [a_job("a", "1"), a_job("b", "2")]
    assert index.add([RunWithJobs(run, jobs)]) == [run]
    index.update_states([jobs[0]._replace(state="FAILED", ended=True)])
    assert index.add([RunWithJobs(run, [*jobs, a_job("c", "3")])]) == [run]
    assert [(job.id, job.state) for job in index.jobs("ddp")] == [("1", "FAILED"), ("2", ""), ("3", "")]
    moved = run._replace(path=str(tmp_path / "moved"))
    assert index.add([RunWithJobs(moved, jobs)])[0].name == "ddp"  # known by its jobs
    other = Run(name="ddp", path=str(tmp_path / "other"), shared=False, created=8.0)
    assert index.add([RunWithJobs(other, [a_job("d", "4")])])[0].name == "ddp-2"


class CountedJobs(dict[str, RunJob]):
    """Jobs by their keys; it counts how many of them are looked at."""

    looked_at = 0

    def values(self) -> Any:
        self.looked_at += len(self)
        return super().values()


def test_the_work_for_moved_runs_grows_with_the_number_of_jobs(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = range(50)
    jobs = [a_job(f"{number:02}", str(number + 1)) for number in numbers]
    runs = [
        Run(name=f"r{number}", path=str(tmp_path / f"{number}"), shared=False, created=7.0)
        for number in numbers
    ]
    index.add([RunWithJobs(run, [job]) for run, job in zip(runs, jobs, strict=True)])
    index.update_states([job._replace(run=run.name, ended=True) for run, job in zip(runs, jobs, strict=True)])
    moved = [run._replace(path=f"{run.path}-moved") for run in runs]
    counted, load = CountedJobs(), Index._load

    def counting_load(index: Index) -> bytes:
        data = load(index)
        counted.update(index._jobs)
        index._jobs = counted
        return data

    monkeypatch.setattr(Index, "_load", counting_load)
    assert index.add([RunWithJobs(run, [job]) for run, job in zip(moved, jobs, strict=True)]) == moved
    assert counted.looked_at < 4 * len(jobs)
    assert not any(job.ended for job in counted.values())


def a_job(key: str, job: str) -> RunJob:
    return RunJob(
        key=key, run="ddp", id=job, cluster="", submitted=1.0, state="", ended=False, says="", seen=1.0
    )


WRITER = """
import sys
from pathlib import Path
from sbatchgen.jobs.runs import record
from sbatchgen.jobs.runs.index import Index
index, me = Index(Path(sys.argv[1])), sys.argv[2]
for number in range(6):
    key = f"{me}-{number}"
    index.begin(key, Path("/runs") / key, "ddp", shared=False)
    index.accept(key, f"{me}{number:03}")
"""


def test_eight_processes_write_at_once(tmp_path: Path) -> None:
    file = tmp_path / "state" / "runs.jsonl"
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, file, str(number)]) for number in range(1, 9)]
    assert [writer.wait() for writer in writers] == [0] * 8
    index = Index(file)
    assert sorted(job.id for job in index.jobs()) == sorted(
        f"{a}{b:03}" for a in range(1, 9) for b in range(6)
    )
    assert set(Counter(run.name for run in index.runs()).values()) == {1}


def begin_two(index: Index, place: Path) -> None:
    """Begin two runs, each with its record."""
    for key in ("0a", "0b"):
        folder = place / "runs" / key
        folder.mkdir(parents=True)
        about = Record(key=key, run=key, shared=False, name=key, job="7", folder="/", submitted=5.0)
        record.write_accepted(folder, about)
        index.begin(key, folder, key, shared=False)
        index.accept(key, "7")


def test_a_damaged_index_is_made_again(tmp_path: Path) -> None:
    file, index = tmp_path / "runs.jsonl", Index(tmp_path / "runs.jsonl")
    begin_two(index, tmp_path)
    whole = file.read_bytes()
    for at in range(0, len(whole) - 1, 7):
        data = bytearray(whole)
        data[at] ^= 1
        file.write_bytes(data)
        assert {"0a", "0b"} >= {run.name for run in Index(file).runs()} != set()  # a damaged folder is lost
    chance = random.Random(1)  # noqa: S311 - for tests
    for _ in range(300):
        data = bytearray(whole)
        for _ in range(chance.randint(1, 3)):
            data[chance.randrange(len(data) - 1)] = chance.randrange(256)
        file.write_bytes(data)
        notes: list[str] = []
        index = Index(file, notes.append)
        assert {run.name for run in index.runs()} <= {"0a", "0b"}
        assert {job.id for job in index.jobs()} <= {"", "7"}
        assert bool(notes) == (data != whole)
    file.write_bytes(whole.replace(b'["0a"', b'[0a"', 1))
    notes = []
    repaired = Index(file, notes.append)
    assert {run.name: run.folder for run in repaired.runs()} == {
        key: tmp_path / "runs" / key for key in ("0a", "0b")
    }
    assert "runs.jsonl.broken" in notes[0]
    assert notes[1].startswith("  fix: ")
    Index(file, notes.append)
    assert notes[2:] == []


class Counted(dict[str, Run]):
    """Runs by their names; it counts how many of them are looked at."""

    looked_at = 0

    def __contains__(self, name: object) -> bool:
        self.looked_at += 1
        return super().__contains__(name)

    def values(self) -> Any:
        self.looked_at += len(self)
        return super().values()


def test_the_work_of_a_repair_grows_with_the_number_of_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All runs have the same name, and every third shares its folder with others."""
    folders = [tmp_path / "runs" / f"{number:02}" for number in range(60)]
    for number, folder in enumerate(folders):
        folder.mkdir(parents=True)
        shared = number % 3 == 0
        about = Record(key=f"{number:02x}", shared=shared, name="ddp", job=str(number + 1), folder="/")
        record.write_accepted(folder, about)
    file, runs = tmp_path / "runs.jsonl", Counted()
    file.write_text(json.dumps([str(folder) for folder in folders]))
    load = Index._load

    def counting_load(index: Index) -> bytes:
        data = load(index)
        runs.update(index._runs)
        index._runs = runs
        return data

    monkeypatch.setattr(Index, "_load", counting_load)
    repaired = Index(file)
    looked_at = runs.looked_at
    assert {run.path for run in repaired.runs()} == {str(folder) for folder in folders}
    assert {run.name for run in repaired.runs()} == {"ddp", *(f"ddp-{number}" for number in range(2, 61))}
    assert looked_at < 6 * len(folders)


def test_a_repair_keeps_runs_of_a_shared_folder_apart(tmp_path: Path) -> None:
    folder, file = tmp_path / "runs" / "x", tmp_path / "runs.jsonl"
    folder.mkdir(parents=True)
    index = Index(file)
    for key, job, shared in (("a", "1", True), ("b", "2", False)):
        index.begin(key, folder, f"of-{key}", shared=shared)
        index.accept(key, job)
        about = Record(
            key=key, run=f"of-{key}", shared=shared, name="x", job=job, folder="/", submitted=float(job)
        )
        record.write_accepted(folder, about)
    before = {job.id: job.run for job in index.jobs()}
    assert len({*before.values()}) == 2
    file.write_bytes(b"damaged" + file.read_bytes())
    assert {job.id: job.run for job in Index(file).jobs()} == before


ODD: list[Any] = [
    None, True, -1, 0, 1.5, -1.0, 1e300, float("nan"), float("inf"), 10**30, "", "x", "/", "\0", "\ud800", "\udcff",
    "a\n\x1b[2J\u202e", "9" * 5000, [], [[]], {}, {"a": 1},
]  # fmt: skip


def mutations(facts: Any) -> Iterator[Any]:
    """Every value of a JSON document replaced by odd ones, left out and doubled, one at a time."""
    yield from ODD
    for at, item in enumerate(facts if isinstance(facts, list) else ()):
        yield facts[:at] + facts[at + 1 :]
        yield [*facts, item]
        yield from ([*facts[:at], other, *facts[at + 1 :]] for other in mutations(item))


@pytest.mark.proof
def test_an_index_of_another_shape_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Command
) -> None:
    """As another program, or another version, might write one: its checksum is right."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    file = index_file({"XDG_STATE_HOME": str(tmp_path)})
    index = Index(file)
    begin_two(index, tmp_path)
    whole = json.loads(file.read_bytes().partition(b"\n")[2])
    tried = 0
    for number, facts in enumerate(mutations(whole)):
        text = json.dumps(facts).encode()
        data = b"%d\n%s" % (zlib.crc32(text), text)
        file.write_bytes(data)
        index = Index(file)
        names = {run.name for run in index.runs()}
        assert {job.run for job in index.jobs()} <= names
        index.find("7", tmp_path)
        index.accept("0a", "8")
        index.remove("0b")
        assert index.begin("0c", tmp_path / "new", "0a", shared=False).name
        if number % 50 == 0:
            file.write_bytes(data)
            assert command("status").status == 0, facts
            assert command("status", "--format", "json").status == 0, facts
        tried += 1
    assert tried > 500


def test_an_index_that_is_no_file_is_said(tmp_path: Path) -> None:
    (tmp_path / "runs.jsonl").mkdir()
    with pytest.raises(DocumentError, match="can't be used: not a regular file"):
        Index(tmp_path / "runs.jsonl")
    with pytest.raises(DocumentError, match="can't be used: Not a directory"):
        Index(Path("/dev/null/below/runs.jsonl"))


def test_a_locked_index_is_read_and_waits_for_a_second_to_be_written(index: Index, tmp_path: Path) -> None:
    index.begin("a", tmp_path, "ddp", shared=False)
    with index.file.with_suffix(".lock").open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert [run.name for run in Index(index.file).runs()] == ["ddp"]
        (job,) = index.jobs()
        with pytest.raises(DocumentError, match="another command is writing the index of runs"):
            index.update_states([job._replace(state="RUNNING")])


def test_it_follows_the_umask(tmp_path: Path) -> None:
    old = os.umask(0o077)
    try:
        index = Index(tmp_path / "state" / "runs.jsonl")
        index.begin("a", tmp_path, "ddp", shared=False)
    finally:
        os.umask(old)
    modes = {path.stat().st_mode & 0o077 for path in (tmp_path / "state").rglob("*")}
    assert modes == {0}


def test_a_known_folder_that_cannot_be_seen_does_not_stop_add(index: Index, tmp_path: Path) -> None:
    """The folder's name is too long to be looked up. For root, no folder lacks a permission."""
    index.begin("a", tmp_path / ("x" * 300), "ddp", shared=False)
    moved = Run("ddp", str(tmp_path), shared=False, created=0.0)
    (entered,) = index.add([RunWithJobs(moved, [RunJob("a", "ddp", "1", "", 0.0)])])
    assert (entered.name, entered.folder) == ("ddp", tmp_path)


@pytest.mark.parametrize("name", ["status", "logs", "diagnose", "cancel"])
def test_a_word_too_long_for_a_path_names_no_run(command: Command, folder: Path, name: str) -> None:
    done = command(name, "x" * 300)
    assert done.status == 2
    assert "there is no run" in done.err
    assert "File name too long" not in done.err
