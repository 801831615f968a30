"""Hostile scripts, typed as a user plans, checks and rehearses them, change nothing outside and see no secret."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.fixtures import VISIBLE, _need
from tests.conftest import REPOSITORY
from tests.plan.plans import needs_sandbox

from . import attempts, lab
from .lab import User, put
from .watched import SECRET, SHARED, tree

pytestmark = needs_sandbox
WATCHED = REPOSITORY / "tests/trust/watched.py"
PRIVATE = (".ssh/id", ".netrc", ".aws/credentials", ".config/app/token", "private")
EACH = "for script in *.slurm; do sbatchgen plan $script --format json; done"
TRAINER = (
    "sbatchgen rehearse single --profile ~/public.yaml --trainer ./trainer.py --seconds 60 --see LAB/project"
)
COMMANDS = {"plan": EACH, "lint --plan": "sbatchgen lint --plan *.slurm", "rehearse": TRAINER}
HOSTILE = """import pathlib, subprocess, sys
texts = [pathlib.Path(f"{name}.slurm").read_text() for name in ("names", "reads", "calls", "writes")]
for text in texts:  # without that file nothing is reported
    done = subprocess.run(["bash", "-c", text.replace("/run/plan/out", "none")], capture_output=True, timeout=60)
    said = (done.stdout + done.stderr).decode(errors="replace")
    print(*(line for line in said.splitlines() if "secret-47" "11" in line), file=sys.stderr)
raise RuntimeError("all attempts made")
"""


@pytest.fixture(scope="module", params=[20012, 0], ids=["user", "root"])
def victim(request: pytest.FixtureRequest) -> Iterator[User]:
    """Somebody whose job folder has the scripts, in a lab below a folder of root's."""
    _need(lab.why_not() or (None if shutil.which("gcc") else "needs gcc"), what="hostile scripts")
    with furnished(request.param) as user:
        yield user


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
    job.mkdir()
    put(job / "shared", "mine", owner=user.uid)
    shutil.copy(lab_folder / "bin/attempts", job)
    for name, target in {
        "link": "../precious",
        "secrets": "../.ssh",
        "netrc": "../.netrc",
        "parent": "..",
    }.items():
        (job / name).symlink_to(target)
    os.chown(home / "precious", user.uid, user.uid)
    os.link(home / "precious", job / "hard")
    (job / "trainer.py").write_text(HOSTILE)
    for name, text in attempts.scripts(home=home, job=job, lab=lab_folder, uid=user.uid).items():
        (job / name).write_text(text)
    for path in (home, *home.rglob("*")):
        os.chown(path, user.uid, user.uid, follow_symlinks=False)
    user.run("sbatchgen", "render", "single", "--profile", home / "public.yaml")  # keeps compiled templates
    return user


def watched(user: User, *command: object) -> dict[str, Any]:
    """What reached things outside while a user ran a command in the job's folder, and what it printed."""
    below = tuple(f"{folder}/" for folder in SHARED)
    covered = sorted(path for path in VISIBLE if str(path).startswith(below))  # outer ones first
    own = [f"exec {number}<{path}" for number, path in enumerate(covered, 5)]  # as of a checkout below /tmp
    own += [f"mount -t tmpfs none {folder}; echo {SECRET} >{folder}/lab-secret" for folder in SHARED]
    for number, path in enumerate(covered, 5):
        own.append(f"mkdir -p {path}; mount -c --bind /proc/self/fd/{number} {path}; exec {number}<&-")
    own += [f"chmod 1777 {' '.join(SHARED)}", f"install -d -o {user.uid} -m 700 /run/user/{user.uid}"]
    own += [f"cp /run/lab-secret /run/user/{user.uid}/; chown {user.uid} /run/*/*/lab-secret"]
    secrets = {"LAB_TOKEN": SECRET, "SSH_AUTH_SOCK": str(user.home / "job/socket"), "MANPATH": "/"}
    before = tree(user.lab)
    done = user.run(sys.executable, WATCHED, user.home / "job", *command, setup="\n".join(own), env=secrets)
    assert done.returncode == 0, done.stderr
    after = tree(user.lab)
    what: dict[str, Any] = json.loads(done.stdout)
    own_folder = str(user.home / "job")
    what["reached"] += [
        name for name in {*before, *after} if before.get(name) != after.get(name) and name != own_folder
    ]
    return what


@pytest.mark.parametrize("command", COMMANDS.values(), ids=[*COMMANDS])
def test_attempts_have_no_effect_outside(victim: User, command: str) -> None:
    assert attempts.COUNT >= 65
    what = watched(victim, "bash", "-c", command.replace("LAB", str(victim.lab)))
    assert what["reached"] == []
    assert SECRET not in str(what["said"])
    assert "Traceback" not in str(what["said"])
    assert "rehearse" not in command or "all attempts made" in str(what["said"])


def test_the_calls_have_effects_outside_a_sandbox() -> None:
    _need(lab.why_not() or (None if shutil.which("gcc") else "needs gcc"), what="hostile scripts")
    with furnished(20012) as user:
        what = watched(user, "bash", "-c", "bash calls.slurm; bash output0.slurm; cat netrc")
        reached = {"port", "packets to the port", "path", "packets", "abstract", "FIFO", "signal", "key"}
        assert {*what["reached"]} >= reached
        assert SECRET in str(what["said"])
