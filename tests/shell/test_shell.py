"""sbatchgen shell where no Slurm is needed: its script, its review, a profile's own shells, and without Slurm."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from sbatchgen.base.machine import packages
from sbatchgen.jobs.judge.job_check import check
from sbatchgen.jobs.render.render import render_request
from sbatchgen.jobs.resolved.request import Request, read_request
from sbatchgen.jobs.runs.record import Record
from sbatchgen.lab.shell import remote
from tests.conftest import REPOSITORY, Command

PROFILE = """
name: mine
url: https://slurm.schedmd.com
checked: 2026-11-20
default_partition: gpu
partitions:
  gpu: {time_max: 1-00:00:00, nodes_max: 4, cpus_per_node: 8, gpus_per_node: 4}
  debug: {time_max: 2:00:00, nodes_max: 4, cpus_per_node: 8, gpus_per_node: 4}
"""
SHAPES = {
    "ddp": ("ddp", {"nodes": "2"}),
    "own": ("single", {"trainer": "train.py", "checkpoint": "last.pt"}),
    "apptainer": ("ddp", {"runtime": "apptainer", "image": "/i.sif"}),
    "cpu": ("cpu", {}),
}


def request(job: str, profile: str, **given: str) -> Request:
    return read_request(
        job, (), {"profile": profile, **given}, environment=os.environ, folder=Path.cwd(), check=check
    )


def bash(*words: str, text: str = "", **env: str) -> subprocess.CompletedProcess[str]:
    env = {"PATH": os.environ["PATH"], "HOME": os.environ["HOME"], **env}
    return subprocess.run(["bash", *words], env=env, input=text, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("profile", ["msu", "local", "troila"])
@pytest.mark.parametrize("name", SHAPES)
def test_the_script_of_a_shell_begins_as_that_of_the_job(folder: Path, name: str, profile: str) -> None:
    """Up to its end, but for the line with its checksum; bash reads it."""
    job, given = SHAPES[name]
    if profile == "local" and name == "ddp":
        given = {}
    asked = request(job, profile, **given)
    of_job, of_shell = (render_request(asked, session=session) for session in (False, True))
    ends = "# --- What happens, in this order ---\n"
    before, after = (re.sub(r"\([0-9a-f]{12}\)", "", text.partition(ends)[0]) for text in (of_job, of_shell))
    assert after.startswith(before.rstrip("\n")[:-1])
    assert bash("-n", text=of_shell).stderr == ""
    assert ends not in of_shell


def test_a_template_of_a_site_decides_what_train_does(folder: Path) -> None:
    templates = Path(os.environ["HOME"], ".config/sbatchgen/templates")
    templates.mkdir(parents=True)
    block = "{% block train %}\ntrain() {\n    echo of the site\n}\n\n{% endblock %}"
    (templates / "site.sh.j2").write_text(f'{{% extends "bundled:job.sh.j2" %}}\n{block}\n')
    script = render_request(request("cpu", "local", template="site.sh.j2"), session=True)
    (folder / "shell.sh").write_text(script)
    assert bash("shell.sh", "train", "and", "more").stdout == "of the site and more\n"


@pytest.mark.parametrize(
    ("last", "printed"),
    [
        ("echo 'a } b'", "a } b more\n"),
        ("cat <<END\n}\nEND", "}\n"),
        ("if true; then echo x; fi", "x\n"),
    ],
)
def test_the_last_command_of_train_gets_the_arguments(folder: Path, last: str, printed: str) -> None:
    """A compound command and a here-document take none, and are run all the same."""
    script = render_request(request("cpu", "local"), session=True)
    function = re.search(r"\ntrain\(\) \{.*?\n\}\n", script, re.DOTALL)
    assert function
    (folder / "shell.sh").write_text(script.replace(function[0], f"\ntrain() {{\n{last}\n}}\n", 1))
    done = bash("shell.sh", "train", "more")
    assert done.stdout == printed
    assert done.stderr == ""


def test_the_review_says_what_differs_from_the_job(folder: Path, command: Command) -> None:
    """A profile may say where shells run; what is typed counts before it."""
    (folder / "mine.yaml").write_text(
        f"{PROFILE}interactive: {{partition: debug, qos: fast, time: 00:30:00}}\n"
    )
    (folder / "train.py").touch()
    words = ("shell", "single", "--trainer", "train.py", "--profile", "./mine.yaml", "--dry-run")
    said = command(*words).err
    differs = re.search(r"what differs from the job: (.*)", said)
    assert differs
    assert [word for word in differs[1].split() if not word.startswith("--output")] == [
        "--partition=debug", "--qos=fast", "--time=0-00:30:00", "--job-name=single-shell", "--no-requeue",
        "--signal=B:USR1@300",
    ]  # fmt: skip
    said = command(*words, "--partition", "gpu", "--time", "00:10:00").err
    assert "partition gpu" in said
    assert "time        0-00:10:00" in said
    assert "--qos=fast" in said
    assert "--signal=B:USR1@150" in said


def test_a_shell_costs_its_hours_once(folder: Path, command: Command) -> None:
    """Slurm may restart the job, and never its shell."""
    (folder / "mine.yaml").write_text(PROFILE)
    words = ("single", "--profile", "./mine.yaml", "--dry-run", "--time", "00:10:00")
    costs = [
        re.search(r"^cost +(.*)", command(verb, *words).err, re.MULTILINE) for verb in ("submit", "shell")
    ]
    by_submit, by_shell = (line[1] for line in costs if line)
    assert by_submit.removesuffix("; as much again for each of up to 10 restarts") == by_shell
    assert by_submit != by_shell
    assert (
        command("shell", *words).err.count("--signal=B:USR1@150") == 2
    )  # in the script, and once as different


def test_a_profile_names_a_partition_that_it_has(folder: Path, command: Command) -> None:
    (folder / "mine.yaml").write_text(f"{PROFILE}interactive: {{partition: dbug}}\n")
    done = command("profile", "check", "./mine.yaml")
    assert done.status == 3
    assert "there is no partition 'dbug' here" in done.err + done.out


def test_an_array_has_one_element_in_a_shell(folder: Path, command: Command) -> None:
    (folder / "mine.yaml").write_text(PROFILE)
    (folder / "train.py").touch()
    words = ("shell", "single", "--trainer", "train.py", "--profile", "./mine.yaml", "--dry-run", "--array")
    done = command(*words, "0-3")
    assert done.status == 2
    assert "  fix: name one element: --array 0\n" in done.err
    assert command(*words, "0").status == 0
    assert "--array=0 --job-name" in command(*words, "0-3%1").err  # which continue one training


def test_an_option_that_is_no_time_is_refused(folder: Path, command: Command) -> None:
    done = command("shell", "ddp", "--profile", "local", "--keep", "30")
    assert done.status == 2
    assert "  at:  --keep\n  fix: --keep 30m\n" in done.err


def test_a_shell_asks_before_it_takes_nodes(folder: Path, command: Command) -> None:
    (folder / "mine.yaml").write_text(PROFILE)
    (folder / "train.py").touch()
    done = command("shell", "single", "--trainer", "train.py", "--profile", "./mine.yaml")
    assert done.status == 2
    assert "no terminal to ask" in done.err


PROBE = "import os, sys; print(os.environ['RUN_DIR'], *sys.argv[1:]); sys.exit(5)\n"


def test_without_slurm_the_shell_is_here(folder: Path) -> None:
    """A command and its status, and a shell that reads its input."""
    (folder / "probe.py").write_text(PROBE)
    words = [sys.executable, "-m", "sbatchgen", "shell", "cpu", "--profile", "local", "--trainer", "probe.py"]
    env = {**os.environ, "PYTHONPATH": str(REPOSITORY), "SLURM_NTASKS": "7", "SLURM_JOB_ID": "8"}

    def run(*more: str, text: str = "") -> subprocess.CompletedProcess[str]:
        asked = [*words, "--yes", *more]
        return subprocess.run(asked, env=env, input=text, capture_output=True, text=True, check=False)

    done = run("--", "train", "--epochs", "1")
    assert (done.stdout, done.returncode) == (f"{folder}/runs/cpu --epochs 1\n", 5)
    done = run(text="train; echo $? $CODE_DIR $SLURM_NTASKS; exit 9\n")
    assert done.stdout.splitlines()[-2:] == [f"{folder}/runs/cpu", "5"]
    assert done.returncode == 9


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["--ssh-config"], 2, "fix: name the run of a shell; see your runs: sbatchgen status"),
        (["--relay"], 2, "there is no shell named cpu"),
        (["--jupyter", "--", "true"], 2, "--jupyter takes no command"),
        (["--jupyter", "--profile", "local"], 2, "fix: leave --jupyter out, and start jupyter lab in the shell"),
    ],
)  # fmt: skip
def test_what_a_shell_can_not_do_is_refused(
    folder: Path, command: Command, words: list[str], status: int, said: str
) -> None:
    done = command("shell", "cpu", *words)
    assert done.status == status
    assert said in done.err


def split(text: str) -> list[str]:
    """The words that a shell makes of a text."""
    return bash("-c", f"printf '%s\\0' {text}").stdout.split("\0")[:-1]


@pytest.mark.parametrize("program", ["/opt/sbatchgen", "/my $programs/100%/it's/sbatchgen"])
def test_the_lines_for_ssh_pass_two_shells(monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    """ssh gives ProxyCommand to a shell here, and its words to a shell there; % would name a part of the host."""
    monkeypatch.setattr("socket.getfqdn", lambda: "localhost")
    monkeypatch.setattr("socket.gethostname", lambda: "login")
    about = Record(run="job-shell", shared=False, name="", folder="")
    lines = remote.host_block(about, Path(program)).splitlines()
    proxy = lines[-1].removeprefix("    ProxyCommand ")
    start, login, *words = split(proxy.replace("%%", "%"))
    assert (start, login.partition("@")[2]) == ("ssh", "login")
    assert split(" ".join(words)) == [program, "shell", "job-shell", "--relay"]
    assert f"ProxyCommand={proxy}" in split(remote.forwarding_commands(about, "n1", Path(program))[2])
    assert (
        len({remote.forwarding_commands(about, "n1", Path(program))[0] for _ in range(9)}) > 1
    )  # several notebooks
    assert lines[:2] == ["Host job-shell", f"    User {login.partition('@')[0]}"]


HANG_UP = """
import os, signal, sys
from sbatchgen.cli.shell import _exit_at_hang_up
try:
    with _exit_at_hang_up():
        os.kill(os.getpid(), signal.SIGHUP)
        signal.pause()
except BaseException as error:
    os.kill(os.getpid(), signal.SIGHUP)
    print("cancelled", flush=True)
    raise
"""


def test_a_second_hang_up_does_not_end_the_command_before_its_job_is_cancelled() -> None:
    """The terminal sends one signal and its shell another; the job is cancelled between them."""
    ended = subprocess.run(
        [sys.executable, "-c", HANG_UP], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stdout) == (129, "cancelled\n"), ended.stderr


@pytest.mark.parametrize("module", [False, True])
def test_the_command_that_ssh_starts_exists(monkeypatch: pytest.MonkeyPatch, *, module: bool) -> None:
    """`python -m sbatchgen` names a file of the package, which is not a command."""
    command = Path(sys.executable).with_name("sbatchgen")
    monkeypatch.setattr(sys, "argv", [str(REPOSITORY / "sbatchgen/__main__.py" if module else command)])
    assert packages.own_command() == command
    assert os.access(command, os.X_OK)
