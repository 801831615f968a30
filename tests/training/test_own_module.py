"""A data set of the user's in the current folder is found however the trainer starts, and nothing else of that folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.site import HANGS_S
from tests.conftest import REPOSITORY

PACKAGE = REPOSITORY / "training"
STARTS: dict[str, list[object]] = {
    "folder": [PACKAGE],
    "-m": ["-m", "training"],
    "spawn": [PACKAGE, "--launcher", "spawn", "--nproc-per-node", "2"],
    "torchrun": [PACKAGE / "torchrun.py", "--nproc-per-node", "2", "--", PACKAGE],
}
FLAGS = "--dataset own:data --epochs 1 --batch-size 16 --device cpu --workers 0 --tensorboard off".split()
# It takes a module beside it, one that has the name of an installed package, and one of the standard library.
OWN = """
import json, torch, helper, datasets
assert datasets.OF_THE_USER and json.loads("1") == 1

def data(config):
    images = torch.rand(helper.SIZE, 1, 8, 8)
    return (images, torch.arange(helper.SIZE) % 2), (images, torch.arange(helper.SIZE) % 2)
"""
# Python itself imports these by -m, before it runs a line of the trainer.
_RUNPY = "import contextlib, pkgutil, runpy, sys, warnings; print(*sys.modules)"
BY_PYTHON = {
    name.partition(".")[0]
    for name in subprocess.check_output([sys.executable, "-S", "-c", _RUNPY], text=True).split()
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", STARTS)
def test_a_module_of_the_current_folder_and_none_of_a_standard_name(tmp_path: Path, name: str) -> None:
    (tmp_path / "datasets").mkdir()
    (tmp_path / "datasets/__init__.py").write_text("OF_THE_USER = True\n")
    (tmp_path / "own.py").write_text(OWN)
    (tmp_path / "helper.py").write_text("SIZE = 64\n")
    for module in sys.stdlib_module_names - BY_PYTHON:
        (tmp_path / f"{module}.py").write_text(f"open({str(tmp_path)!r} + '/ran-{module}', 'w')\n")
    environment = {"PYTHONPATH": str(REPOSITORY) if name == "-m" else "", "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(
        [sys.executable, *map(str, STARTS[name]), "--run-dir", "run", *FLAGS],
        cwd=tmp_path,
        text=True,
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=HANGS_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout
    assert [file.name for file in tmp_path.glob("ran-*")] == []
    assert json.loads((tmp_path / "run/status.json").read_text())["state"] == "done"
