"""What is kept of runs that have ended."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from sbatchgen.jobs.runs.ended import CacheEntry, ProgressCache
from sbatchgen.jobs.runs.index import Index, Run, RunJob, RunWithJobs, index_file
from sbatchgen.jobs.runs.status import run_states


def two_runs(folder: Path) -> tuple[Index, list[Run]]:
    index, runs = Index(index_file(os.environ)), []
    for name in ("a", "b"):
        (folder / name).mkdir()
        (folder / name / "status.json").write_text('{"state": "done", "epoch": 3}')
        runs.append(Run(name, str(folder / name), shared=False, created=1.0))
        job = RunJob(f"key{name}", name, "7", "", 1.0, "COMPLETED", ended=True)
        index.add([RunWithJobs(runs[-1], [job])])
    return index, runs


@pytest.mark.parametrize(
    "spoil", ["", "[", "{}", '{"keya": 3, "keyb": [1]}', '{"keya": ["/x", {"nope": 1}]}']
)
def test_a_run_that_has_ended_is_read_once(folder: Path, spoil: str) -> None:
    index, runs = two_runs(folder)
    file = index.file.with_name("ended.json")
    read = [state.progress for state in run_states(index, os.environ, runs)[0]]
    assert [progress and progress.epoch for progress in read] == [3, 3]
    assert file.stat().st_mode & 0o777 == 0o600
    for name in ("a", "b"):
        (folder / name / "status.json").write_text('{"state": "done", "epoch": 4}')
    if spoil:
        file.write_text(spoil)
    again = [state.progress for state in run_states(index, os.environ, runs)[0]]
    assert [progress and progress.epoch for progress in again] == ([4, 4] if spoil else [3, 3])
    alone = run_states(index, os.environ, runs[:1])[0]  # one run is read as it is
    assert alone[0].progress is not None
    assert alone[0].progress.epoch == 4


def test_a_run_that_goes_on_is_read_again(folder: Path) -> None:
    index, (run, _) = two_runs(folder)
    cache = ProgressCache(index.file)
    live = [RunJob("keya", "a", "7", "", 1.0, "RUNNING")]
    cache.add(run, live, None)
    cache.save()
    assert not index.file.with_name("ended.json").exists()
    ended = [live[0]._replace(ended=True)]
    cache.add(run, ended, None)
    assert cache.entry(run, ended) == CacheEntry(None)
    assert cache.entry(run, [*ended, RunJob("more", "a", "8", "", 2.0)]) is None
    assert cache.entry(run._replace(path="/moved"), ended) is None
    cache.save()
    assert json.loads(index.file.with_name("ended.json").read_text()) == {"keya": [str(run.folder), None]}
