"""Each way in which a script once wrote, read, reached or used something outside of a plan, a check or a rehearsal."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.fixtures import _need
from tests.plan.plans import needs_sandbox

from . import lab
from .lab import User
from .test_battery import TRAINER, WATCHED, furnished, watched
from .watched import SECRET, tree

pytestmark = needs_sandbox
PLANS = "sbatchgen plan way.slurm --format json; sbatchgen plan way.slurm; sbatchgen lint --plan way.slurm"
# The box is the same for root, who can do more in it: all commands are typed as a user, and one as root.
OF_ROOT = "sbatchgen plan way.slurm --format json"
CONNECT = "perl -MSocket -e 'for (@ARGV) { socket(S, AF_UNIX, SOCK_STREAM, 0); connect(S, sockaddr_un($_)) and syswrite(S, \"changed\") }'"
# By their numbers: the script; UID, HOME, LAB and JOB stand for the user's number and folders.
WAYS = {
    "1, a file": "cat /.old/HOME/new; cat /.old/HOME/precious/x; echo x >/.old/HOME/more\nexit 1",
    "1, a program": "/.old/HOME/.bashrc-of-way\n/.old/HOME/precious\nsrun true",
    "1, a folder": "#SBATCH --chdir=/.old/HOME/made\nsrun true",
    "2": "echo 'cat: /../../HOME/new: No such file or directory' >&2; echo 'cat: /../HOME/other: No such file or directory' >&2\nexit 1",
    "6": "perl -e 'syscall(248, my $t = \"user\", my $d = \"sbatchgen-lab\", my $p = \"changed\", 7, -3)'\nsrun true",
    "7": '#SBATCH --chdir=HOME/.ssh\nsrun echo "$(cat id)"',
    "7, running programs": '#SBATCH --chdir=/run/user/UID\nsrun echo "$(cat lab-secret)"',
    "7, the root": '#SBATCH --chdir=/\nsrun echo "$(cat HOME/.netrc run/lab-secret)"',
    "9": 'srun echo "$(cat LAB/home-link/.ssh/id LAB/home-link/.netrc)" LAB/home-link/x',
    "10": "./attempts 1 9 >/dev/null\nsrun true",
    "11": "read -r other _ <facts; perl -e 'use Fcntl; pipe(R, W); fcntl(R, F_SETOWN, $ARGV[0]); kill 9, $ARGV[0]' $other\nsrun true",
    "15": "srun true; perl -e 'for (glob(\"/run/plan/starts/*\")) { local $/; open(F, $_); my $x = <F>; $x =~ s/__plan_(rank|tasks)=\\d+/\"__plan_$1=\" . 9 x 5000/ge; open(G, \">$_\"); print G $x }'",
    "16 records": "for n in {1..20}; do cp /run/plan/job /run/plan/starts/$n; echo 99999999999999999999 >/run/plan/starts/a$n; done\nsrun true",
}  # fmt: skip
PIPE = Path(f"/usr/games/sbatchgen-lab-{os.getpid()}")
SOCKETS = {  # 3 and 4: the folder has sockets of running programs
    "3": f"#SBATCH --chdir=/run/user/UID\n{CONNECT} socket /run/user/UID/socket; echo changed >pipe\nsrun true",
    "3, above": f"#SBATCH --chdir=/run/user\n{CONNECT} UID/socket\nsrun true",
    "4": f"#SBATCH --chdir=/sys/devices/../../../run/user/UID\n{CONNECT} socket\nsrun true",
    "4, by a link": f"#SBATCH --chdir=JOB/running\n{CONNECT} socket running/socket\nsrun true",
}  # fmt: skip


@pytest.fixture(scope="module", params=[20012, 0], ids=["user", "root"])
def victim(request: pytest.FixtureRequest) -> Iterator[User]:
    """Somebody who plans a stranger's script."""
    _need(lab.why_not() or (None if shutil.which("gcc") else "needs gcc"), what="hostile scripts")
    with furnished(request.param) as user:
        (user.home / "job/running").symlink_to(f"/run/user/{user.uid}")
        for path in (user.home / "job").glob("*.slurm"):
            path.unlink()
        yield user


def place(victim: User, text: str) -> None:
    """Write the script of a way."""
    for name, value in {
        "HOME": victim.home,
        "LAB": victim.lab,
        "JOB": victim.home / "job",
        "UID": victim.uid,
    }.items():
        text = text.replace(name, str(value))
    (victim.home / "job/way.slurm").write_text(f"#!/bin/bash\n{text}\n")


@pytest.mark.parametrize("way", WAYS)
def test_a_script_has_no_effect_outside(victim: User, way: str) -> None:
    place(victim, WAYS[way])
    what = watched(victim, "bash", "-c", PLANS if victim.uid else OF_ROOT)
    assert what["reached"] == []
    assert SECRET not in what["said"]
    assert "Traceback" not in what["said"]


@pytest.mark.parametrize("way", SOCKETS)
def test_no_socket_of_a_running_program_is_reached(victim: User, way: str) -> None:
    place(victim, SOCKETS[way])
    lines = f"mount -t tmpfs none /run; mkdir -p /run/user/{victim.uid}; mount -t tmpfs -o uid={victim.uid},mode=700 none /run/user/{victim.uid}"
    command = f"cd {victim.home}/job && {{ {PLANS if victim.uid else OF_ROOT}; }}"
    before = tree(victim.lab)
    done = victim.run(sys.executable, WATCHED, f"/run/user/{victim.uid}", "bash", "-c", command, setup=lines)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["reached"] == []
    assert tree(victim.lab) == before


def test_plan_in_home_sees_no_secret(victim: User) -> None:
    """Way 8."""
    place(victim, 'srun echo "$(cat .ssh/id .netrc ~/.ssh/id; ls -A)"; echo changed >precious')
    shutil.copy(victim.home / "job/way.slurm", victim.home)
    what = watched(victim, "bash", "-c", f"cd && {{ {PLANS}; }}")
    assert what["reached"] == []
    assert SECRET not in what["said"]


def test_the_pipe_and_sockets_of_a_folder_are_not_reached_by_a_rehearsal(victim: User) -> None:
    """Ways 5 and 22."""
    trainer = f"""import os, socket, subprocess
subprocess.run({[*CONNECT.split(" ", 3)[:3], CONNECT.split("'")[1]]!r} + ["socket", "../job/socket"])
port = int(open("facts").read().split()[1])
for reach in (lambda: os.open("pipe", os.O_WRONLY | os.O_NONBLOCK), lambda: socket.create_connection(("127.0.0.1", port), 5)):
    try:
        reach()
    except OSError:
        pass
for name in ("~/.netrc", "~/.ssh/id", "../.netrc", "{victim.home}/.aws/credentials"):
    if os.path.exists(os.path.expanduser(name)):
        raise RuntimeError(open(os.path.expanduser(name)).read())
raise RuntimeError("all attempts made")
"""
    (victim.home / "job/trainer.py").write_text(trainer)
    what = watched(victim, "bash", "-c", TRAINER.replace("LAB", str(victim.lab)))
    assert what["reached"] == []
    assert SECRET not in what["said"]
    assert "all attempts made" in what["said"]
    assert "has no network" in what["said"]


# A program that listens below the folder of the system's programs, as a database or Nix, while a command runs.
LISTENS = """
import os, socket, subprocess, sys, threading
server = socket.socket(socket.AF_UNIX)
server.bind("/usr/games/socket")
os.chmod("/usr/games/socket", 0o666)
server.listen()
threading.Thread(target=lambda: (server.accept(), print("reached", flush=True)), daemon=True).start()
subprocess.run(["bash", "-c", sys.argv[1]])
"""


def test_no_socket_beside_the_systems_programs_is_reached_by_a_rehearsal(victim: User) -> None:
    trainer = """import socket
socket.socket(socket.AF_UNIX).connect("/usr/games/socket")
"""
    (victim.home / "job/trainer.py").write_text(trainer)
    setup = f"mount -t tmpfs -o uid={victim.uid},mode=755 none /usr/games"
    command = f"cd {victim.home}/job && exec {TRAINER.replace('LAB', str(victim.lab))}"
    done = victim.run(sys.executable, "-c", LISTENS, command, setup=setup)
    assert "Connection refused" in done.stdout
    assert "reached" not in done.stdout


@pytest.fixture
def pipe() -> Iterator[int]:
    """The end that is read of a FIFO for all beside the system's programs; a mount there would hide it."""
    os.mkfifo(PIPE)
    try:
        PIPE.chmod(0o666)
        number = os.open(PIPE, os.O_RDONLY | os.O_NONBLOCK)
        yield number
        os.close(number)
    finally:
        PIPE.unlink()


def test_no_pipe_beside_the_systems_programs_is_reached(victim: User, pipe: int) -> None:
    lines = f"{{ ls -l {PIPE} && exec 9<>{PIPE} && echo changed >&9; }} 2>&1"
    place(victim, f'srun echo "$({lines})"')
    (victim.home / "job/trainer.py").write_text(
        f"import subprocess\nraise RuntimeError(subprocess.getoutput({lines!r}))"
    )
    for typed in ("sbatchgen plan way.slurm; sbatchgen lint --plan way.slurm", TRAINER):
        done = watched(victim, "bash", "-c", typed.replace("LAB", str(victim.lab)))
        assert "prw-rw-rw-" in done["said"]  # it is seen, and another one
    assert os.read(pipe, 100) == b""


@pytest.mark.parametrize("line", ["{broken", "[" * 9000, '{"act": '])
def test_what_a_trainer_adds_to_the_report_is_no_traceback(victim: User, line: str) -> None:
    trainer = f"open('/run/plan/out', 'a').write({line!r} + chr(10)); raise RuntimeError('damaged')"
    (victim.home / "job/trainer.py").write_text(trainer)
    what = watched(victim, "bash", "-c", TRAINER.replace("LAB", str(victim.lab)))
    assert "Traceback" not in what["said"]
    assert "start  failed" in what["said"]


@pytest.mark.parametrize(
    "hog",
    [
        "for n in {1..100}; do truncate -s 16M /run/plan/starts/$n; done",  # 12
        "perl -e 'for (1 .. 90) { $n = syscall(319, my $x = \"x\", 0); open(F, \">&=$n\"); print F \"x\" x 16e6 }; sleep 20' & wait",  # 13
        "perl -e 'syscall(29, $_, 16 << 20, 01600) for 1 .. 90; sleep 20'; perl -e '$x = \"x\" x 900e6; sleep 20' & perl -e '$x = \"x\" x 900e6; sleep 20'",
    ],
)  # fmt: skip
def test_the_memory_of_a_plan_has_a_limit(victim: User, hog: str) -> None:
    """Of each process of the plan, the command included; a record's text is not as long as the file says."""
    place(victim, f"{hog}\nsrun true")
    code = "import resource, subprocess, sys; done = subprocess.run(sys.argv[1:], capture_output=True); "
    code += "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, b'Traceback' in done.stderr)"
    done = victim.run(sys.executable, "-c", code, "sbatchgen", "plan", "way.slurm", cwd=victim.home / "job")
    most, failed = done.stdout.split()
    assert failed == "False"
    assert int(most) << 10 <= 1 << 30
