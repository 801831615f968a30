"""The debugger of `sbatchgen shell --debug` in each Python of a training, on a terminal of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pexpect
import pytest

from tests.conftest import REPOSITORY, Command
from training import command as bundled
from training.processes.stacks import HOOK, with_hook

PDB = r"\(Pdb\) "
LOADS = """
from multiprocessing import get_context
def load():
    item = 7
    breakpoint()
if __name__ == "__main__":
    loaders = [get_context("fork").Process(target=load) for _ in range(2)]
    [loader.start() for loader in loaders]
    [loader.join() for loader in loaders]
    import pdb
    pdb.set_trace()
    {}[len(loaders)]
"""


@pytest.fixture
def debugged(tmp_path: Path) -> dict[str, str]:
    """The variables of a rank whose terminal is elsewhere."""
    (tmp_path / "sitecustomize.py").write_text((REPOSITORY / "templates/shell/debugger.py").read_text())
    known = {name: os.environ[name] for name in ("PATH", "HOME")}
    return {**known, "PYTHONPATH": str(tmp_path), "SBATCHGEN_DEBUG_AT": "1 n1 /dev/null 0:0", "RANK": "1"}


def says(code: str, env: dict[str, str]) -> str:
    """What a program prints, errors included."""
    words = [sys.executable, "-c", code]
    done = subprocess.run(
        words, env=env, stdin=subprocess.DEVNULL, stdout=-1, stderr=-2, text=True, check=False
    )
    return done.stdout


def test_loaders_and_a_crash_stop_one_after_another(tmp_path: Path, debugged: dict[str, str]) -> None:
    """Ctrl-C in pdb ends a line, and after pdb it is a signal again."""
    (tmp_path / "loads.py").write_text(LOADS)
    at = 'export SBATCHGEN_DEBUG_AT="1 here $(tty) $(stat -c %d:%i "$(tty)")"; '
    start = f'{at}{sys.executable} loads.py </dev/null; stty -a | grep -wo -e "-*isig"; echo "all ended"'
    terminal = pexpect.spawn(
        "bash", ["-c", start], env=debugged, cwd=tmp_path, encoding="utf-8", timeout=60, echo=False
    )  # fmt: skip
    for _ in range(2):
        terminal.expect(PDB)
        terminal.send("p ite")
        terminal.sendintr()
        terminal.expect(f"--KeyboardInterrupt--\r\n{PDB}")
        terminal.sendline("p item, input('? ')")
        terminal.expect(r"\? ")
        terminal.sendline("typed")
        terminal.expect(rf"\(7, 'typed'\)\r\n{PDB}")
        terminal.sendline("c")
    terminal.expect(rf"-> \{{\}}\[len\(loaders\)\]\r\n{PDB}")
    terminal.sendline("c")
    terminal.expect(rf"KeyError: 2\r\n.*{PDB}")
    terminal.sendline("p loaders[0].exitcode")
    terminal.expect(rf"0\r\n{PDB}")
    terminal.sendline("c")
    terminal.expect("all ended")
    assert terminal.before == "isig\r\n"


def test_ranks_that_stop_elsewhere_say_so_once(debugged: dict[str, str]) -> None:
    stops = "for _ in range(2): breakpoint()\nprint('ended')"
    assert says(stops, debugged | {"RANK": "0"}) == "ended\n"
    assert says(stops, debugged | {"PYTHONBREAKPOINT": "0"}) == "ended\n"
    says_why = "warning: rank 1 can't stop in this terminal: "
    assert says(stops, debugged | {"SLURMD_NODENAME": "n1"}) == (
        f"{says_why}its container has terminals of its own\nended\n"
    )
    assert says(stops, debugged | {"SLURMD_NODENAME": "n2"}) == (
        f"{says_why}it is on n2, and this shell on n1; fix: a rank of n1, or a shell with --nodes 1\nended\n"
    )


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "stop", ["import pdb; pdb.set_trace()", "import torch.distributed as dist; dist.breakpoint()"]
)
def test_other_names_of_breakpoint_stop_the_same_rank(debugged: dict[str, str], stop: str) -> None:
    """Each reads the standard input by itself, which a rank has not."""
    code = f"{stop}\nprint('ended')"
    assert says(code, debugged | {"RANK": "0"}) == "ended\n"
    assert "can't stop in this terminal" in says(code, debugged)
    assert says(code, debugged).endswith("ended\n")


def test_a_program_that_a_rank_starts_may_crash(debugged: dict[str, str]) -> None:
    fails = "import subprocess, sys\nsubprocess.run([sys.executable, '-c', '{}[0]'])"
    assert "warning" not in says(fails, debugged)
    assert "warning" in says("{}[0]", debugged)
    starts = "import os, sys\nos.execve(sys.executable, ['python', '-c', '{}[0]'], os.environ)"
    assert "warning" in says(starts, debugged)  # as training/task.py does


@pytest.mark.proof
def test_collectives_wait_for_long_whatever_a_trainer_says(debugged: dict[str, str]) -> None:
    code = """
import datetime, torch.distributed as dist
dist.init_process_group("gloo", None, datetime.timedelta(seconds=3), store=dist.HashStore(), rank=0, world_size=1)
groups = dist.group.WORLD, dist.new_group([0], datetime.timedelta(seconds=3))
print(*{group._get_backend(__import__("torch").device("cpu")).options._timeout.days for group in groups})
"""
    assert says(code, debugged).splitlines()[-1:] == ["7"]


def test_the_module_that_it_hides_is_there(tmp_path: Path, debugged: dict[str, str]) -> None:
    (tmp_path / "next").mkdir()
    (tmp_path / "next" / "sitecustomize.py").write_text("print('next')")
    debugged["PYTHONPATH"] += f":{tmp_path}/next"
    code = f"import sys; print({str(tmp_path)!r} in sys.path, sys.modules['sitecustomize'].__file__)"
    assert says(code, debugged) == f"next\nFalse {tmp_path}/next/sitecustomize.py\n"


@pytest.mark.parametrize("known", ["/of the image", "/my folder:/of the image"])
def test_a_launcher_adds_the_debugger_to_what_an_image_sets(known: str) -> None:
    env = {"SBATCHGEN_DEBUG_AT": "1 n1 /dev/pts/0 0:0 /my folder", "PYTHONPATH": known}
    assert with_hook(env)["PYTHONPATH"] == f"{HOOK}:/my folder:/of the image"


def test_a_crash_of_the_bundled_trainer_is_for_the_debugger(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[object] = []
    monkeypatch.setattr("sys.excepthook", lambda *error: seen.append(error[0]))
    monkeypatch.setattr(bundled, "parse", lambda argv: {}[argv[0]])
    assert bundled.main(["x"]) == 1
    assert seen == [KeyError]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--debug"], "--debug needs a terminal, and there is no terminal here"),
        (["--debug", "--jupyter"], "--debug needs a terminal, and there is no terminal with --jupyter"),
    ],
)
def test_a_debugger_needs_a_terminal(folder: Path, command: Command, words: list[str], said: str) -> None:
    done = command("shell", "cpu", *words)
    assert done.status == 2
    assert said in done.err
    assert "fix: leave --debug out" in done.err


def test_a_debugger_is_for_one_training(
    folder: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sbatchgen.cli.shell._on_terminal", lambda: True)
    monkeypatch.setenv("SBATCHGEN_DEBUG", "")
    programs = "programs: {one: {command: [date], gpus: 0}, two: {command: [date], main: true}}"
    (folder / "several.yaml").write_text(f"mode: single\n{programs}\n")
    done = command("shell", "several.yaml", "--profile", "msu", "--debug")
    assert done.status == 2
    assert "--debug is for one training, and this job has several programs" in done.err
