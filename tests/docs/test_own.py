"""The worked example of own data and an own model, under the script that is rendered for it."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sbatchgen.jobs.runtimes import RUNTIMES
from tests.conftest import REPOSITORY, Command
from tests.scripts import NEEDS, resolved, script
from tests.training.forks import QUICKLY
from tests.training.states import equal, everything
from tests.training.trainers import wait_for

EXAMPLE = REPOSITORY / "examples" / "own.py"
PAGE = (REPOSITORY / "docs/how-to/own-data.md").read_text()
QUICK = ("--epochs", "5", "--save-every", "9", "--log-every", "5", "--sync-every", "1", "--workers", "1")
SLOW = ("--step-delay", "0.1")


class Bash:
    """Runs rendered scripts in a folder, each in a session of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.started: list[subprocess.Popen[str]] = []
        (folder / "bin").mkdir()
        (folder / "bin" / "python3").symlink_to(sys.executable)  # the script takes the first on PATH

    def start(self, text: str, name: str) -> subprocess.Popen[str]:
        """Start the script."""
        file = self.folder / f"{name}.sh"
        file.write_text(text)
        environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
        environment |= {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
        process = subprocess.Popen(
            ["bash", str(file)],
            cwd=self.folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.started.append(process)
        return process

    def run(self, text: str, name: str) -> str:
        """What the script printed."""
        process = self.start(text, name)
        out, _ = process.communicate(timeout=600)
        assert process.returncode == 0, out
        return out


@pytest.fixture
def bash(folder: Path) -> Iterator[Bash]:
    """Scripts that end with the test, with all that they started."""
    made = Bash(folder)
    yield made
    for process in made.started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        if process.stdout and not process.stdout.closed:
            process.communicate()


def rendered(command: Command, *args: str) -> str:
    result = command("render", *args)
    assert result.status == 0, result.err
    return result.out


@pytest.mark.parametrize("function", ["data", "files"])
def test_killed_at_any_time_it_goes_on_as_if_nothing_had_been(
    command: Command, bash: Bash, function: str
) -> None:
    shutil.copy(EXAMPLE, bash.folder)
    job = ("cpu", "--profile", "local", "--env", "OMP_NUM_THREADS=1", "--env", f"PYTHONPATH={QUICKLY}")
    trainer = ("--", "--dataset", f"own:{function}", "--model", "own:model", *QUICK)
    bash.run(rendered(command, *job, "--run-dir", "whole", *trainer), "whole")

    killed = bash.start(rendered(command, *job, "--run-dir", "parts", *trainer, *SLOW), "killed")
    checkpoint = bash.folder / "parts/checkpoints/step-00000009.pt"
    wait_for(lambda: checkpoint.exists() or killed.poll() is not None, "checkpoint")
    assert killed.poll() is None, killed.communicate()[0]
    os.killpg(killed.pid, signal.SIGKILL)
    killed.communicate()
    again = bash.run(rendered(command, *job, "--run-dir", "parts", *trainer), "again")

    assert re.search(r"Resuming from checkpoints/step-000000(09|18|27)\.pt: epoch 1, ", again)
    assert equal(everything(bash.folder / "parts"), everything(bash.folder / "whole"))
    accuracy = float(re.findall(r"Accuracy: ([\d.]+)%", again)[-1])
    assert accuracy > 90, again  # it has learnt, by the defaults


def test_a_module_elsewhere_is_found_by_pythonpath(command: Command, bash: Bash) -> None:
    elsewhere = bash.folder / "my code"
    elsewhere.mkdir()
    shutil.copy(EXAMPLE, elsewhere / "elsewhere.py")
    trainer = ("--", "--dataset", "elsewhere:data", "--model", "elsewhere:model", "--epochs", "1")
    environment = ("--env", f"PYTHONPATH={elsewhere}:{QUICKLY}", "--env", "OMP_NUM_THREADS=1")
    out = bash.run(rendered(command, "cpu", "--profile", "local", *environment, *trainer), "job")

    assert "Training completed" in out


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_pythonpath_that_was_asked_for_counts_in_every_runtime(runtime: str) -> None:
    said: dict[str, Any] = {"runtime": runtime, "env": {"PYTHONPATH": "/home/me/code"}}
    text = script(resolved("ddp", "torchrun", **said, **NEEDS.get(runtime, {})))
    environment = text.partition("environment() {")[2].partition("\n}\n")[0]
    exports = [line for line in environment.splitlines() if line.startswith("    export ")]
    assert "PYTHONPATH=/home/me/code" in " ".join(exports).split()
    unsets = re.findall(r"(?m)^ *unset .*\bPYTHONPATH\b", text)
    assert len(unsets) == (runtime != "host")
    assert not unsets or environment.index("    export ") > environment.index(RUNTIMES[runtime].function)


@pytest.mark.usefixtures("mycluster")
def test_the_page_shows_what_the_file_holds_and_what_can_be_rendered(command: Command) -> None:
    code = "".join(path.read_text() for path in EXAMPLE.parent.glob("*.py"))
    for shown in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        assert shown in code
    lines = [line.strip() for line in PAGE.splitlines() if line.startswith("    sbatchgen ")]
    lines += [line.strip() for line in code.splitlines() if line.startswith("    sbatchgen ")]
    assert len(lines) > 3
    for line in lines:
        words = shlex.split(line)
        result = command("render", *words[2:])
        assert (result.status, result.err) == (0, ""), line
