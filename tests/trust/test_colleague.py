"""What a colleague, a full disk and a home with two names can do to a plan and a rehearsal: nothing."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.fixtures import _need
from tests.plan.plans import needs_sandbox

from . import lab
from .lab import User, put
from .test_battery import furnished, helped, watched
from .watched import SECRET, tree

pytestmark = needs_sandbox
REHEARSE = "sbatchgen rehearse single --profile ~/public.yaml --trainer ./trainer.py --seconds 60"


@pytest.fixture(scope="module", params=[20012, 0], ids=["user", "root"])
def victim(request: pytest.FixtureRequest) -> Iterator[User]:
    """Somebody who plans and rehearses jobs, and has colleagues."""
    _need(lab.why_not() or (None if shutil.which("gcc") else "needs gcc"), what="jobs of two users")
    with furnished(request.param) as user:
        for path in (user.home / "job").glob("*.slurm"):
            path.unlink()
        yield user


def job(victim: User, name: str, text: str) -> None:
    put(victim.home / "job" / name, text, owner=victim.uid)


def test_a_folder_for_temporary_files_that_colleagues_can_change_is_not_used(victim: User) -> None:
    job(
        victim,
        "trainer.py",
        """import os, time
for _ in range(30):
    time.sleep(0.1)
    for name in ("authorized_keys", "id"):
        open(os.path.join(os.environ["RUN_DIR"], name), "w").write("changed")
raise RuntimeError("all attempts made")
""",
    )
    with helped(victim) as achieved:
        what = watched(victim, "bash", "-c", f"TMPDIR={victim.project} {REHEARSE}")
    assert what["reached"] == []
    assert achieved == []
    assert "all attempts made" in what["said"]


@pytest.mark.parametrize("command", ["plan", "rehearse"])
def test_the_home_is_known_by_each_of_its_names(victim: User, command: str) -> None:
    names = ["/mnt/home/.ssh/id", "/mnt/home/.netrc", f"/mnt/lab/{victim.home.name}/.ssh/id", "/mnt/ssh/id"]
    setup = f"mount -t tmpfs none /mnt; mkdir /mnt/home /mnt/lab /mnt/ssh; mount --bind {victim.home}/.ssh /mnt/ssh; mount --bind {victim.home} /mnt/home; mount --bind {victim.lab} /mnt/lab"
    folders = "/mnt/home /mnt/home/.ssh /mnt/lab /mnt/ssh"
    text = f'#!/bin/bash\n: {folders}\nsrun echo "$(cat {" ".join(names)} </dev/null; ls -a /mnt/home)"\n'
    job(victim, "way.slurm", text)
    opens = f"""seen = []
for name in {names!r}:
    try: seen.append(open(name).read())
    except OSError: pass
raise RuntimeError(f"all attempts made: {{seen}}")
"""
    job(victim, "trainer.py", opens)
    lines = {
        "plan": "sbatchgen plan way.slurm; sbatchgen lint --plan way.slurm",
        "rehearse": f"{REHEARSE} -- {folders}",
    }
    what = watched(victim, "bash", "-c", lines[command], setup=setup)
    assert what["reached"] == []
    assert SECRET not in what["said"]
    assert command == "plan" or "all attempts made" in what["said"]


# How a trainer fills a disk: files, and a deleted file that it keeps open, which cannot be counted.
FILLS = {
    "files": 'file = open(run + "/data", "wb")',
    "a deleted file": 'file = open(run + "/data", "wb"); os.unlink(run + "/data")',
}


@pytest.mark.parametrize("way", FILLS)
def test_a_rehearsal_ends_before_it_fills_the_disk_and_leaves_nothing(victim: User, way: str) -> None:
    job(
        victim,
        "trainer.py",
        f"""import os, time
run = os.environ["RUN_DIR"]
os.makedirs(run + "/closed/closed")
os.chmod(run + "/closed/closed", 0)
os.chmod(run + "/closed", 0)
{FILLS[way]}
while True:
    file.write(bytes(1 << 20))
    file.flush()
    time.sleep(0.05)
""",
    )
    disk = "/mnt/disk"
    setup = f"mount -t tmpfs none /mnt; mkdir {disk}; mount -t tmpfs -o size=48M,mode=1777 none {disk}"
    line = f"TMPDIR={disk} {REHEARSE}; ls {disk}; df --output=avail {disk}"
    what = watched(victim, "bash", "-c", line, setup=setup)
    assert "the run folder has reached its limit of 24 MiB" in what["said"]
    assert "fix: set TMPDIR to a folder on a larger disk" in what["said"]
    assert what["reached"] == []
    assert "sbatchgen-" not in what["said"].rpartition("Not shown")[2]
    assert "49152" in what["said"]  # all of the disk is free again


def test_a_rehearsal_that_is_killed_leaves_no_folder_that_others_can_enter(victim: User) -> None:
    job(
        victim,
        "trainer.py",
        "import os, time\nos.chmod(os.environ['RUN_DIR'], 0o777)\nprint('ready')\ntime.sleep(60)\n",
    )
    line = (
        f"timeout -s KILL 15 {REHEARSE}; find {victim.lab}/scratch -maxdepth 1 -name 'sbatchgen-*' -perm /077"
    )
    what = watched(victim, "bash", "-c", line)
    assert "sbatchgen-rehearsal" not in what["said"]
    for path in (victim.lab / "scratch").glob("sbatchgen-*"):
        assert path.stat().st_mode & 0o077 == 0
        shutil.rmtree(path)


def test_a_rehearsal_writes_no_more_than_a_copy_of_its_run_folder(victim: User) -> None:
    """Its socket, its pipe and its set-user-ID program are its own: they are gone with it."""
    job(
        victim,
        "trainer.py",
        """import os, shutil, socket
run = os.environ["RUN_DIR"]
shutil.copy("/bin/bash", run + "/shell")
os.chmod(run + "/shell", 0o4777)
os.mkfifo(run + "/pipe")
server = socket.socket(socket.AF_UNIX)
server.bind(run + "/socket")
for name in ("pipe", "socket"):
    os.chmod(run + "/" + name, 0o777)
raise RuntimeError("all attempts made")
""",
    )
    before = tree(victim.lab)
    what = watched(victim, "bash", "-c", REHEARSE)
    assert what["reached"] == []
    assert "all attempts made" in what["said"]
    assert {*tree(victim.lab)} == {*before}
    assert not [*Path(victim.lab, "scratch").iterdir()]
