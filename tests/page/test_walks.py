"""People's ways through a page in a real browser; walks.mjs has them."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from sbatchgen.cli.answer import answer
from tests.page.conftest import PACKAGES, need

TIMEOUT_S = 1200
PICTURES = os.environ.get("PICTURES", "")  # a folder for screenshots


@pytest.mark.slow
def test_walks(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    need("the page in a browser", "node", *([] if chromium else ["chromium"]))
    modules = PACKAGES / "tests/node_modules"
    call = [
        "node",
        str(Path(__file__).with_name("walks.mjs")),
        str(page),
        str(modules),
        *filter(None, [PICTURES]),
    ]
    environment = os.environ | {"CHROMIUM": chromium or ""}
    done = subprocess.run(
        call, capture_output=True, text=True, timeout=TIMEOUT_S, check=False, env=environment
    )
    walks = [json.loads(line) for line in done.stdout.splitlines()]
    assert {walk["name"]: walk["error"] for walk in walks if walk["error"]} == {}
    assert len(walks) > 20, done.stderr[-2000:]
    monkeypatch.chdir(tmp_path)
    compared = 0
    for walk in walks:
        if not walk.get("script"):
            continue
        words = shlex.split(walk["command"])[1:]
        files = {"job.yaml": walk["job"].encode()}
        assert answer(words, files, site="/site").out.decode() == walk["script"], walk["name"]
        by_file = answer(["render", "./job.yaml", *named(words)], files).out.decode()
        assert without_head(by_file) == without_head(walk["script"]), walk["name"]
        compared += 1
    assert compared > 10


def named(words: list[str]) -> list[str]:
    """What names a job of a file as that of the form is named."""
    return [] if "--job-name" in words or "./job.yaml" in words else ["--job-name", words[1]]


def without_head(script: str) -> list[str]:
    """A script without the line that says who made it."""
    lines = script.splitlines()
    assert lines, "no script"
    return [lines[0], *lines[2:]]
