"""What starts a trainer of your own runs in the Python 3.7 to 3.9 of old systems; the bundled trainer says what it needs."""

from __future__ import annotations

import ast
import os
import pwd
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY
from training import torchrun

from .trainers import ROOT

PACKAGE = Path(ROOT, "training")
ALONE = ("repeats.py", "step_end.py", "preflight.py", "node.py")  # which speak to no trainer
STARTED = ("task.py", "torchrun.py", "repeats.py", "step_end.py", "preflight.py", "node.py", "__main__.py")
OLD = ("3.7", "3.8", "3.9")
SHOWS = "import os, sys\nprint(sys.version_info[:2], *[os.environ[n] for n in sys.argv[1:]])\nsys.exit(7)\n"


def interpreter(release: str) -> str | None:
    """A Python of this release on this machine."""
    own = REPOSITORY / f"build/python{release}/usr/bin/python{release}"
    others = sorted(Path(pwd.getpwuid(os.getuid()).pw_dir).glob(f".pyenv/versions/{release}.*/bin/python"))
    return next(
        (str(path) for path in [own, *others] if path.exists()),
        shutil.which(f"python{release}", path="/usr/bin"),
    )


@pytest.fixture(params=OLD)
def old(request: pytest.FixtureRequest) -> tuple[str, str]:
    """A release and its interpreter; `make old-python` brings 3.9, the others are tested where they are installed."""
    python = interpreter(request.param)
    if python is None:
        fail = request.param == OLD[-1] and os.environ.get("CI") == "true"
        (pytest.fail if fail else pytest.skip)("left out: old Pythons: needs `make old-python`, or pyenv's")
    return request.param, python


def run(python: str, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    library = str(REPOSITORY / "build/python3.9/lib")  # of the one that `make old-python` brings
    return subprocess.run(
        [python, *words],
        env={"PATH": "/usr/bin:/bin", "LD_LIBRARY_PATH": library, **env},
        capture_output=True,
        text=True,
        check=False,
    )


def needed(path: Path) -> set[Path]:
    """A file of the package, and what it imports before anything else can happen."""
    files = {path}
    for node in ast.parse(path.read_text()).body:
        if (
            isinstance(node, ast.ImportFrom)
            and (node.module or "").startswith("training")
            and node.module != "training.command"
        ):
            base = PACKAGE.joinpath(*(node.module or "").split(".")[1:])
            for name in (base, *(base / alias.name for alias in node.names)):
                file = name.with_suffix(".py")
                files |= needed(file) if file.is_file() else set()
    return files


@pytest.mark.parametrize("program", STARTED)
def test_the_syntax_is_that_of_the_oldest(program: str) -> None:
    files = needed(PACKAGE / program)
    assert {PACKAGE / "errors.py", PACKAGE / "processes/jobscript.py"} < files or program in ALONE
    for file in files:
        ast.parse(file.read_text(), feature_version=(3, 7))


def test_a_task_starts_a_trainer_with_its_rank(old: tuple[str, str], tmp_path: Path) -> None:
    release, python = old
    (tmp_path / "train.py").write_text(SHOWS)
    slurm = {
        "SLURM_PROCID": "5",
        "SLURM_LOCALID": "1",
        "SLURM_NTASKS": "8",
        "SLURM_STEP_TASKS_PER_NODE": "4(x2)",
        "SLURM_NODEID": "1",
    }
    meeting = {"MASTER_ADDR": "n1", "MASTER_PORT": "20001", "SBATCHGEN_EXIT_FILE": str(tmp_path / "exit")}
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
    ended = run(
        python,
        str(PACKAGE / "task.py"),
        "--launcher",
        "srun",
        "--",
        str(tmp_path / "train.py"),
        *names,
        **slurm,
        **meeting,
    )
    major, minor = release.split(".")
    assert (ended.stdout, ended.stderr) == (f"({major}, {minor}) 5 1 8 4\n", "")
    assert ended.returncode == 7
    assert (tmp_path / "exit").read_text() == "7\n"


def test_torchrun_gets_as_far_as_torch(old: tuple[str, str]) -> None:
    _, python = old
    ended = run(python, "-I", str(PACKAGE / "torchrun.py"), "--nproc-per-node=2", "--", "train.py")
    assert ended.stderr == f"error: this Python has no torch; at: {python}; fix: install it\n"


def test_the_bundled_trainer_says_in_a_line_what_it_needs(old: tuple[str, str], tmp_path: Path) -> None:
    release, python = old
    for rank in ("0", "1"):
        ended = run(
            python,
            str(PACKAGE),
            "--run-dir",
            str(tmp_path / "run"),
            LOCAL_RANK=rank,
            SBATCHGEN_EXIT_FILE=str(tmp_path / "exit"),
        )
        assert ended.returncode == 1
        lines = ended.stderr.splitlines()
        assert len(lines) == (rank == "0")
        assert all(
            f"needs Python 3.10 or newer, and this is {release}; at: {python}; fix: " in line
            for line in lines
        )
    assert (tmp_path / "exit").read_text() == "1\n"


def test_torchrun_gets_names_of_options_that_torch_1_takes_too() -> None:
    given = [
        "--nproc-per-node=2",
        "--rdzv-conf",
        "join-timeout=9",
        "-m",
        "--",
        "own-trainer",
        "--batch-size=3",
    ]
    assert torchrun._with_underscores(given) == ["--nproc_per_node=2", "--rdzv_conf", *given[2:]]
