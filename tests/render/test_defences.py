"""What the second part of a script is for, row by row: each row fails without the lines that it names.

The scripts run on this machine, with programs of Slurm that note how they were called.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from sbatchgen.base.units import Argument, Count, ShellPath, Text
from tests.conftest import REPOSITORY
from tests.scripts import resolved, script

ZIP = b"PK\3\4" + b"x" * 100 + b"PK\5\6" + b"\0" * 18
SRUN = """#!/bin/bash
if [[ $1 == --help ]]; then echo --container-env; exit; fi
env >"$NOTES/env"
echo "$@" >>"$NOTES/srun"
eval "$AS_TRAINER"
"""
NOTED = '#!/bin/bash\necho "${0##*/} $*" >>"$NOTES/calls"\n'
FAKES = {
    "srun": SRUN,
    "scontrol": f"{NOTED}if [[ $1 == show ]]; then echo n1; echo n2; fi\n",
    "scancel": NOTED,
    "squeue": f'{NOTED}echo "12 /tmp/sbatchgen-0123456789abcdef/job.slurm"\n',
    "apptainer": NOTED,
}


class Ended(NamedTuple):
    """How a script has ended, and what it has called."""

    status: int
    error: str  # its last line on stderr, without what bash says
    out: str
    calls: str
    env: Mapping[str, str]  # of the training
    words: str  # of srun


def run(
    folder: Path, of: Any, as_trainer: str = "", *, then: signal.Signals | None = None, **env: str
) -> Ended:
    """Run the script of a job in a folder; with `then`, send it the signal once its training runs."""
    notes, programs = folder.parent / "notes", folder.parent / "bin"
    for each in (notes, programs, folder):
        each.mkdir(exist_ok=True)
    for name, text in FAKES.items():
        programs.joinpath(name).write_text(text)
        programs.joinpath(name).chmod(0o755)
    slurm = {
        "SLURM_JOB_ID": "4711", "SLURM_SUBMIT_DIR": str(folder), "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_NNODES": "2",
        "SLURM_ARRAY_JOB_ID": "4711", "SLURM_ARRAY_TASK_ID": "1", "SLURM_GPUS_ON_NODE": "1", "SLURM_CPUS_PER_TASK": "1",
    }  # fmt: skip
    # One case has no uv, which a developer may have installed.
    without_uv = [place for place in os.environ["PATH"].split(":") if not Path(place, "uv").exists()]
    known = {
        "PATH": ":".join([str(programs), *without_uv]),
        "HOME": str(folder),
        "USER": "me",
        "NOTES": str(notes),
    }
    file = notes / "job.slurm"
    file.write_text(script(of))
    variables = known | slurm | {"AS_TRAINER": as_trainer} | env
    with subprocess.Popen(
        ["bash", file], cwd=folder, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as started:
        while then and not (notes / "srun").exists() and started.poll() is None:
            time.sleep(0.05)
        if then:
            started.send_signal(then)
        out, err = started.communicate()
    errors = [line for line in err.splitlines() if line.startswith("error: ")]
    calls, seen, words = (
        file.read_text() if file.exists() else "" for file in (notes / "calls", notes / "env", notes / "srun")
    )
    of_training = dict(line.split("=", 1) for line in seen.splitlines() if "=" in line)
    return Ended(started.returncode, (errors or [""])[-1], out, calls, of_training, words)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "submitted"


def venv(folder: Path) -> dict[str, Any]:
    """A virtual environment, and a run folder."""
    (folder / "venv/bin").mkdir(parents=True)
    (folder / "venv/bin/python3").write_text("#!/bin/sh\n")
    (folder / "venv/bin/python3").chmod(0o755)
    return {
        "venv": ShellPath(str(folder / "venv")),
        "run_dir": ShellPath(str(folder / "run")),
        "runtime": "venv",
    }


def broken(make: Callable[[Path], dict[str, Any]], error: str) -> Any:
    return pytest.param(make, error, id=error)


def others_may_write(folder: Path) -> dict[str, Any]:
    folder.mkdir()
    (folder / "open").mkdir()
    (folder / "open").chmod(0o777)
    return {"run_dir": ShellPath(str(folder / "open/run"))}


def link(folder: Path) -> dict[str, Any]:
    (folder / "there").mkdir(parents=True)
    (folder / "run").symlink_to("there")
    return {"run_dir": ShellPath(str(folder / "run"))}


def below_a_file(folder: Path) -> dict[str, Any]:
    folder.mkdir()
    (folder / "file").touch()
    return {"run_dir": ShellPath(str(folder / "file/run"))}


def image(folder: Path) -> dict[str, Any]:
    folder.mkdir()
    (folder / "i.sif").touch()
    (folder / "a,b").mkdir()
    return {
        "runtime": "apptainer",
        "image": ShellPath(str(folder / "i.sif")),
        "run_dir": ShellPath(str(folder / "r")),
    }


@pytest.mark.parametrize(
    ("make", "error"),
    [
        broken(lambda _: {"run_dir": ShellPath("${WRKDIR}/run")}, "WRKDIR is not set: paths of this job hold it"),
        broken(others_may_write, "others may replace "),
        broken(link, "not a folder of your own: "),
        broken(below_a_file, "can't make the run folder "),
        broken(lambda folder: venv(folder) | {"venv": ShellPath("/none")}, "no virtual environment at /none"),
        broken(lambda folder: venv(folder) | {"env": {"TOKEN": None}}, "TOKEN is not set: export it where you submit"),
        broken(lambda folder: venv(folder) | {"runtime": "prefix", "prefix": (Text("no-such"),)}, "no command no-such here"),
        broken(lambda folder: venv(folder) | {"runtime": "uv", "uv_project": ShellPath("/none")}, "no command 'uv' here"),
        broken(lambda folder: image(folder) | {"image": ShellPath("/none.sif")}, "can't read the image /none.sif"),
        broken(image, "no data folder "),
        broken(lambda folder: image(folder) | {"data": ShellPath(str(folder / "a,b"))}, "a folder with a comma or a colon"),
        broken(lambda folder: image(folder) | {"runtime": "edf", "edf": ShellPath("/none")}, "can't read the environment /none"),
        broken(lambda folder: image(folder) | {"runtime": "edf", "edf": ShellPath("a"), "data": ShellPath("/")}, "srun knows no --environment"),
    ],
)  # fmt: skip
def test_what_is_missing_ends_the_job_before_it_trains(
    folder: Path, make: Callable[[Path], dict[str, Any]], error: str
) -> None:
    of = resolved("ddp", "troila", **make(folder))
    ended = run(folder, of)
    assert ended.error.startswith(f"error: {error}"), ended
    assert (ended.status, ended.words) == (1, "")


def test_what_the_shell_had_for_another_python_is_gone(folder: Path) -> None:
    of = resolved("ddp", "troila", **venv(folder))
    ended = run(folder, of, PYTHONPATH="/x", PYTHONHOME="/y", VIRTUAL_ENV="/z")
    assert not {"PYTHONPATH", "PYTHONHOME"} & {*ended.env}
    assert (ended.env["VIRTUAL_ENV"], ended.env["PATH"].split(":")[0]) == (
        f"{folder}/venv",
        f"{folder}/venv/bin",
    )
    assert ended.env["MASTER_ADDR"] == "n1"
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert 1024 < int(ended.env["MASTER_PORT"]) < (first if first > 8200 else 30000)


def test_a_function_of_setup_does_not_take_the_place_of_the_training(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = resolved("ddp", "troila", **venv(folder))
    monkeypatch.setattr(of.settings, "setup", ("train() { exit 9; }\ndie() { :; }\nexport SEEN=1",))
    ended = run(folder, of)
    assert (ended.status, ended.env["SEEN"]) == (0, "1"), ended


def test_what_a_file_of_setup_declares_reaches_the_training(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = resolved("ddp", "troila", **venv(folder))
    (folder / "saved").write_text("declare -x SEEN='1 2'\ndeclare -a NAMES=(a b)\ndeclare -xi COUNT=3\n")
    monkeypatch.setattr(of.settings, "setup", ("source saved", "export SECOND=${NAMES[1]}"))
    ended = run(folder, of)
    assert [ended.env[name] for name in ("SEEN", "SECOND", "COUNT")] == ["1 2", "b", "3"], ended


class End(NamedTuple):
    """What a trainer does, and how its job ends."""

    trainer: str
    status: int
    calls: str = ""  # the last call of a program of Slurm
    said: dict[str, Any] = {}  # noqa: RUF012 - a row, not changed
    restarts: str = "0"


REQUEUED = "scontrol requeue 4711"
CHAIN: dict[str, Any] = {"chain": Count(3)}
ENDED_CHAIN = "scancel --state=PENDING -- 12"


@pytest.mark.parametrize(
    "end",
    [
        End("exit 7", 7),
        End("exit 143", 143),
        End('echo 3 >"$RUN/exit"; exit 143', 3),
        End('echo no >"$RUN/exit"; exit 9', 9),
        End(': >"$RUN/again"', 0, REQUEUED),
        End('echo limit >"$RUN/stop"; : >"$RUN/again"', 0, REQUEUED),
        End('echo 5 >"$RUN/exit"; : >"$RUN/stop"; : >"$RUN/again"', 5),
        End('echo 5 >"$RUN/exit"; : >"$RUN/again"', 5, restarts="10"),
        End(': >"$RUN/again"', 75, said=CHAIN),
        End("exit 0", 0, ENDED_CHAIN, CHAIN),
        End("exit 6", 6, ENDED_CHAIN, CHAIN),
        End('echo cancelled >"$RUN/stop"; exit 6', 6, said=CHAIN),
        End(': >"$RUN/stop"; : >"$RUN/again"', 0, ENDED_CHAIN, CHAIN),
    ],
    ids=str,
)
def test_the_end_of_the_training_is_that_of_the_job(folder: Path, end: End) -> None:
    of = resolved("ddp", "troila", **(venv(folder) | end.said))
    (folder / "run").mkdir()
    for left in ("stop", "again", "exit"):  # by an earlier start
        (folder / "run" / left).write_text("1")
    ended = run(folder, of, end.trainer, RUN=str(folder / "run"), SLURM_RESTART_COUNT=end.restarts)
    last = [line for line in ended.calls.splitlines() if not line.startswith(("scontrol show", "squeue"))][
        -1:
    ]
    assert (ended.status, last) == (end.status, [end.calls] if end.calls else []), ended


@pytest.mark.parametrize("said", [CHAIN, {"array": Text("1-3%1")}], ids=str)
def test_a_script_of_a_chain_that_is_no_job_cancels_nothing(folder: Path, said: dict[str, Any]) -> None:
    of = resolved("ddp", "troila", **(venv(folder) | said))
    ended = run(folder, of, SLURM_JOB_ID="")
    assert ended.error == "error: this script is a job: submit it with sbatch"
    assert (ended.status, ended.calls, ended.words) == (1, "", "")


@pytest.mark.parametrize(("sent", "word"), [(signal.SIGUSR1, "limit"), (signal.SIGTERM, "cancelled")])
def test_a_signal_asks_the_trainer_to_stop_and_the_script_waits_for_it(
    folder: Path, sent: signal.Signals, word: str
) -> None:
    of = resolved("ddp", "troila", **venv(folder))
    waits = 'until [[ -s $RUN/stop ]]; do sleep 0.1; done; : >"$RUN/again"; sleep 0.5; echo 4 >"$RUN/exit"'
    ended = run(folder, of, waits, then=sent, RUN=str(folder / "run"))
    assert (folder / "run/stop").read_text() == f"{word}\n"
    requeued = REQUEUED in ended.calls
    assert (ended.status, requeued) == ((0, True) if word == "limit" else (4, False)), ended


def test_the_newest_checkpoint_that_is_whole_is_resumed_from(folder: Path) -> None:
    own = {"trainer": Text("t.py"), "checkpoint": Argument("{run_dir}/*.pt"), "resume_args": (Argument("--from={checkpoint}"),)}  # fmt: skip
    of = resolved("ddp", "troila", **(venv(folder) | own))
    (folder / "run").mkdir()
    for age, (name, data) in enumerate({"cut": ZIP[:-40], "new": ZIP, "old": ZIP, "empty": b""}.items()):
        file = folder / f"run/{name}.pt"
        file.write_bytes(data)
        os.utime(file, (10**9 - age,) * 2)
    assert f"--from={folder}/run/new.pt" in run(folder, of).words
    (folder / "run/new.pt").write_bytes(b"of another format")
    os.utime(folder / "run/new.pt", (10**9 + 1,) * 2)
    assert f"--from={folder}/run/new.pt" in run(folder, of).words.splitlines()[-1]
    for file in (folder / "run").glob("*.pt"):
        file.unlink()
    assert "--from" not in run(folder, of).words.splitlines()[-1]


def test_a_container_that_does_not_start_is_a_failure_of_its_own(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.mkdir()
    for name in ("i.sqsh", "data"):
        (folder / name).touch()
    said: dict[str, Any] = {
        name: ShellPath(str(folder / file)) for name, file in {"image": "i.sqsh", "run_dir": "run"}.items()
    }
    said |= {"data": ShellPath("/tmp"), "binds": (ShellPath("/tmp"),)}  # noqa: S108
    monkeypatch.setattr("tests.scripts.CODE", REPOSITORY)
    of = resolved("ddp", "troila", runtime="enroot", **said)
    assert run(folder, of, "exit 143").status == 1
    assert run(folder, of, f'echo limit >"{folder}/run/stop"; exit 143').status == 143
