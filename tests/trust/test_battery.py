"""Hostile scripts, typed as a user plans, checks and rehearses them, change nothing outside and see no secret.

A colleague helps them all the time, see accomplice.py.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.fixtures import VISIBLE, _need
from tests.cluster.site import HANGS_S
from tests.conftest import REPOSITORY
from tests.plan.plans import needs_sandbox

from . import accomplice, attempts, lab
from .lab import GROUP, User, put, wait
from .watched import SECRET, SHARED, tree

pytestmark = needs_sandbox
WATCHED = REPOSITORY / "tests/trust/watched.py"
PRIVATE = (".ssh/id", ".netrc", ".aws/credentials", ".config/app/token", "private")
EACH = "for script in *.slurm; do sbatchgen plan $script --format json; done"
TRAINER = (
    "sbatchgen rehearse single --profile ~/public.yaml --trainer ./trainer.py --seconds 60 --see LAB/project"
)
# A script that names folders with mounts below, and folders of others.
WORDS = ("/mnt", "LAB/project", "LAB/project/theirs")
PLACES = ("home/job", "scratch/job", "project/own")
COMMANDS = {"plan": EACH, "lint --plan": "sbatchgen lint --plan *.slurm", "rehearse": TRAINER}
HOSTILE = """import os, pathlib, shutil, socket, subprocess, sys
run = os.environ["RUN_DIR"]
for folder in (run, os.path.dirname(run), "/tmp"):
    try:
        os.chmod(folder, 0o777)
    except OSError:
        pass
shutil.copy("/bin/bash", run + "/shell")
os.chmod(run + "/shell", 0o4777)
server = socket.socket(socket.AF_UNIX)
server.bind(run + "/socket")
os.chmod(run + "/socket", 0o777)
server.listen()
for address in ("LAB/project/theirs/socket", "LAB/home-20011/socket", "ABSTRACT"):
    try:
        client = socket.socket(socket.AF_UNIX)
        client.connect(address)
        socket.send_fds(client, [b"changed"], [os.open(run, os.O_RDONLY)])
    except OSError:
        pass
texts = [pathlib.Path(f"{name}.slurm").read_text() for name in ("names", "reads", "calls", "writes")]
for text in texts:  # without that file nothing is reported
    done = subprocess.run(["bash", "-c", text.replace("/run/plan/out", "none")], capture_output=True, timeout=60)
    said = (done.stdout + done.stderr).decode(errors="replace")
    print(*(line for line in said.splitlines() if "secret-47" "11" in line), file=sys.stderr)
raise RuntimeError("all attempts made")
"""


@pytest.fixture(scope="module")
def victims() -> Iterator[Callable[[int], User]]:
    """Somebody with a number whose job folder has the scripts, in a lab below a folder of root's; made once."""
    _need(lab.why_not() or (None if shutil.which("gcc") else "needs gcc"), what="hostile scripts")
    with contextlib.ExitStack() as stack:
        yield cache(lambda uid: stack.enter_context(furnished(uid)))


@contextlib.contextmanager
def furnished(uid: int) -> Iterator[User]:
    """A user with secrets, and with a job folder with all attempts, outside of folders that are never shown."""
    with tempfile.TemporaryDirectory(prefix="lab-", dir="/srv", ignore_cleanup_errors=True) as folder:
        _, owner = lab.make(Path(folder))
        yield furnish(User(uid, owner.home, owner.lab))


def furnish(user: User) -> User:
    """Give a user what attempts are about."""
    lab_folder, home, job = user.lab, user.home, user.home / "job"
    subprocess.run(["gcc", "-w", "-o", lab_folder / "bin/attempts", attempts.CALLS], check=True)
    for name in PRIVATE:
        for owner in (home, lab_folder / "home-20011"):
            (owner / name).parent.mkdir(parents=True, exist_ok=True)
            (owner / name).write_text(SECRET)
            (owner / name).chmod(0o600)
    put(lab_folder / "project/shared", "mine", owner=user.uid, mode=0o664)
    for name, mode in (("private", 0o700), ("home-20011/open", 0o755)):
        (lab_folder / name).mkdir(mode)
        put(lab_folder / name / "token", SECRET, owner=20011)
        os.chown(lab_folder / name, 20011, 20011)
    (lab_folder / "home-link").symlink_to(home)
    os.chown(home / "precious", user.uid, user.uid)
    furnish_job(user, job, group=user.uid)
    for path in (home, *home.rglob("*")):
        os.chown(path, user.uid, user.uid, follow_symlinks=False)
    user.run("sbatchgen", "render", "single", "--profile", home / "public.yaml")  # keeps compiled templates
    return user


def furnish_job(user: User, job: Path, *, group: int, words: str = "") -> None:
    """Make a folder with all attempts, each in a script that has some words more."""
    lab_folder, home = user.lab, user.home
    job.mkdir()
    (job / "inner").mkdir()
    put(job / "shared", "mine", owner=user.uid)
    shutil.copy(lab_folder / "bin/attempts", job)
    for name, target in {
        "link": "precious",
        "secrets": ".ssh",
        "netrc": ".netrc",
        "parent": ".",
    }.items():
        (job / name).symlink_to(home / target)
    os.link(home / "precious", job / "hard")
    (job / "trainer.py").write_text(
        HOSTILE.replace("LAB", str(lab_folder)).replace(
            '"ABSTRACT"', repr(accomplice.without_path(lab_folder))
        )
    )
    for name, text in attempts.scripts(home=home, job=job, lab=lab_folder, uid=user.uid).items():
        (job / name).write_text(f"{text}{words}")
    for path in (job, *job.rglob("*")):
        os.chown(path, user.uid, group, follow_symlinks=False)


def watched(user: User, *command: object, job: Path | None = None, setup: str = "") -> dict[str, Any]:
    """What reached things outside while a user ran a command in a job's folder, and what it printed."""
    job = job or user.home / "job"
    below = tuple(f"{folder}/" for folder in SHARED)
    covered = sorted(path for path in VISIBLE if str(path).startswith(below))  # outer ones first
    own = [f"exec {number}<{path}" for number, path in enumerate(covered, 5)]  # as of a checkout below /tmp
    own += [f"mount -t tmpfs none {folder}; echo {SECRET} >{folder}/lab-secret" for folder in SHARED]
    for number, path in enumerate(covered, 5):
        own.append(f"mkdir -p {path}; mount -c --bind /proc/self/fd/{number} {path}; exec {number}<&-")
    own += [f"chmod 1777 {' '.join(SHARED)}", f"install -d -o {user.uid} -m 700 /run/user/{user.uid}"]
    own += [f"cp /run/lab-secret /run/user/{user.uid}/; chown {user.uid} /run/*/*/lab-secret", setup]
    secrets = {"LAB_TOKEN": SECRET, "SSH_AUTH_SOCK": str(job / "socket"), "MANPATH": "/"}
    secrets |= {"TMPDIR": str(user.lab / "scratch")}  # where colleagues see it
    of_colleague = (f"{user.lab}/project/theirs", f"{user.lab}/scratch/accomplice")
    before = tree(user.lab, without=of_colleague)
    done = user.run(sys.executable, WATCHED, job, *command, setup="\n".join(own), env=secrets)
    assert done.returncode == 0, done.stderr
    after = tree(user.lab, without=of_colleague)
    what: dict[str, Any] = json.loads(done.stdout)
    changing = (str(job), f"{user.lab}/project", f"{user.lab}/scratch")  # the times of these folders alone
    what["reached"] += [
        name for name in {*before, *after} if before.get(name) != after.get(name) and name not in changing
    ]
    return what


@contextlib.contextmanager
def helped(victim: User) -> Iterator[list[str]]:
    """A colleague helps in the block; the list then has what came of it."""
    achieved: list[str] = []
    colleague = User(20011, victim.lab / "home-20011", victim.lab)
    stop, theirs = victim.lab / "stop", victim.lab / "project/theirs"
    ready = victim.lab / "scratch/accomplice-ready"
    script = (sys.executable, accomplice.__file__, victim.lab, victim.uid, victim.home)
    with colleague.start(*script) as process:
        try:
            wait(lambda: ready.exists() or process.poll() is not None)
            yield achieved
        finally:
            stop.touch()
            out, err = process.communicate(timeout=HANGS_S)
            for path in (stop, ready, theirs.with_name("theirs-other")):
                path.unlink(missing_ok=True)
            shutil.rmtree(theirs, ignore_errors=True)
    assert process.returncode == 0, err
    achieved += json.loads(out)


def rows() -> Iterator[Any]:
    """Each command in each place, with the words in every second; as root each command once."""
    for uid in (20012, 0):
        for number, command in enumerate(COMMANDS):
            for at, place in enumerate(PLACES):
                if uid or at == number:
                    words = bool((number + at + (uid == 0)) % 2)
                    name = f"{'user' if uid else 'root'}-{command}-{place}{'-mounts' * words}"
                    yield pytest.param(uid, command, place, words, id=name)


@pytest.mark.parametrize(("uid", "command", "place", "words"), [*rows()])
def test_attempts_have_no_effect_outside(
    victims: Callable[[int], User], uid: int, command: str, place: str, *, words: bool
) -> None:
    assert attempts.COUNT >= 65
    victim = victims(uid)
    at_lab = str(victim.lab)
    named = " ".join(WORDS).replace("LAB", at_lab)
    job = victim.home / "named" if place == "home/job" else victim.lab / place
    theirs = f"{at_lab}/project/theirs"
    tries = f"echo changed >{theirs}/pipe & cat {theirs}/id {theirs}/note; sleep 0.2; kill $!; srun echo $(cat {theirs}/id)\n"
    group = GROUP if place == "project/own" else victim.uid
    furnish_job(victim, job, group=group, words=f": {named}\n{tries}" if words else tries)
    # Of these the place makes no difference, and `lint --plan` plans all of them in one process.
    is_tried = (command, place) == ("lint --plan", "home/job")
    for path in () if is_tried else (*job.glob("chdir*"), *job.glob("output*")):
        path.unlink()
    setup = "mount -t tmpfs none /mnt; mkdir -p /mnt/a/b; mount -t tmpfs none /mnt/a/b; chmod 777 /mnt /mnt/a /mnt/a/b"
    setup += f"; mount -t tmpfs none {job}/inner"
    typed = COMMANDS[command].replace("LAB", at_lab)
    if words and command == "rehearse":
        typed += f" -- {named}"
    try:
        with helped(victim) as achieved:
            what = watched(victim, "bash", "-c", typed, job=job, setup=setup if words else "")
    finally:
        shutil.rmtree(job)
    assert what["reached"] == []
    assert achieved == []
    assert SECRET not in str(what["said"])
    assert "Traceback" not in str(what["said"])
    assert command != "rehearse" or "all attempts made" in what["said"]
    if words and command != "lint --plan":
        assert re.search(r"/mnt\W+(not shown: )?has mounts below", what["said"])


def test_the_calls_have_effects_outside_a_sandbox() -> None:
    _need(lab.why_not() or (None if shutil.which("gcc") else "needs gcc"), what="hostile scripts")
    with furnished(20012) as user:
        what = watched(user, "bash", "-c", "bash calls.slurm; bash output0.slurm; cat netrc")
        reached = {
            "port",
            "packets to the port",
            "path",
            "packets",
            "abstract",
            "FIFO",
            "FIFO in a folder",
            "signal",
            "key",
        }
        assert {*what["reached"]} >= reached
        assert SECRET in str(what["said"])
