"""Jobs that fail, run by bash on this machine: diagnose names the cause in one command, and where it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import Command

# The program, what diagnose names, and the start of its fix.
PROGRAMS = {
    "a value": ('def f(x):\n    return int(x)\n\nf("three")', "ValueError: ", "(train.py:2)", "the lines above it"),
    "a module that is missing": ("import einopps", "no module 'einopps'", "(train.py:1)", "start an environment that has the package"),
    "a module of its own that hides another": ("from queue import Queue", "queue.py of yours hides", "", "rename it"),
    "a module of its own that lacks what another has": (
        "import tokenizers\ntokenizers.Tokenizer()", "tokenizers.py of yours hides", "", "rename it: mv tokenizers.py",
    ),
    "its last words": (
        "import sys\nprint('a')\nsys.exit('give it a --ckpt')", ":2: give it a --ckpt", "", "sbatchgen logs job shows more",
    ),
    "a loss": ("raise FloatingPointError('loss is nan')", "infinite or NaN", "(train.py:1)", "use a smaller learning rate"),
    "a data file": ('open("data/train.pt")', "there is no 'data/train.pt'", "(train.py:1)", "use a full path"),
    "no right": ('raise PermissionError(13, "Permission denied", "/x")', "permission denied: '/x'", "", "see who may use it, by ls -ld"),
    "a full disk": ('raise OSError(28, "No space left on device", "/x")', "a disk is full", "", "df -h"),
    "no valid Python": ("def f(:", "not valid Python", "train.py:1)", "python3 -m py_compile"),
    "an argument": (
        'import argparse\np = argparse.ArgumentParser()\np.add_argument("--lr", type=float)\np.parse_args(["--lr", "x"])',
        "does not take its arguments", "", "its --help lists them",
    ),
    "no rank": ('import os\nos.environ["RANK"]', "RANK is not set", "(train.py:2)", "mode ddp sets it"),
    "host memory": ("raise MemoryError", "not enough memory on the node", "(train.py:1)", "load the data with fewer workers"),
    "killed": ("import os\nos.kill(os.getpid(), 9)", "killed by SIGKILL", "", ""),
    "native code": ("import ctypes\nctypes.string_at(0)", "crashed in native code", "", "sbatchgen resume job --env PYTHONFAULTHANDLER=1"),
    "no word": ("import os\nos._exit(7)", "its log is empty", "", "train.py has printed nothing"),
    "a shape": (
        "raise RuntimeError('mat1 and mat2 shapes cannot be multiplied (2x4 and 3x1)')",
        "mat1 and mat2 shapes cannot be multiplied", "(train.py:1)", "the lines above it",
    ),
    "NCCL on CPUs": (
        "raise ValueError('ProcessGroupNCCL is only supported with GPUs, no GPUs found!')",
        "sees no GPU", "(train.py:1)", "",
    ),
}  # fmt: skip


@pytest.mark.sampled(12)
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_job_that_fails_is_explained(name: str, folder: Path, command: Command) -> None:
    text, cause, place, fix = PROGRAMS[name]
    (folder / "train.py").write_text(f"{text}\n")
    for module in ("queue", "tokenizers"):
        if module in text:
            (folder / f"{module}.py").write_text("x = 1\n")
    done = command(
        "submit", "single", "--profile", "local", "--yes", "--job-name", "job", "--trainer", "train.py"
    )
    assert done.status != 0
    said = command("diagnose", "job").out
    assert cause in said
    assert place in said
    assert not fix or f"  fix: {fix}" in said
