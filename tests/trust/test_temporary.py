"""Temporary folders: no other user gets into one, and what a killed process has left is removed by the next one."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.plan.plans import needs_sandbox

from .lab import GROUP, User, put

# Makes a folder in the place that is named, or in memory, says which, and stays in it.
HOLDS = """
import os, sys, time
from pathlib import Path
from sbatchgen.base.machine.temporary import temporary_folder
place = sys.argv[1]
within = {"in_memory": True} if place == "memory" else {"within": Path(place)} if place else {}
with temporary_folder("sbatchgen-test-", **within) as folder:
    (folder / "deep/er").mkdir(parents=True)
    (folder / "deep/er/file").write_text("x")
    (folder / "link").symlink_to(Path.home())
    (folder / "deep/er").chmod(0)
    print(folder, flush=True)
    time.sleep(3600 * (len(sys.argv) < 3))
"""
ONCE = "once"


@contextlib.contextmanager
def held(user: User, place: Path | str, **env: str) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A process that stays in a temporary folder, and the folder."""
    with user.start(sys.executable, "-c", HOLDS, place, env=env, cwd=user.home) as process:
        assert process.stdout
        yield process, Path(process.stdout.readline().strip())


def made_again(user: User, place: Path | str, **env: str) -> Path:
    """The folder of a process that has ended."""
    done = user.run(sys.executable, "-c", HOLDS, place, ONCE, env=env, cwd=user.home)
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.strip())


@pytest.mark.sampled(6)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_what_a_killed_process_has_left_is_removed_by_the_next(person: User, number: signal.Signals) -> None:
    for place, env in (("", {"TMPDIR": str(person.lab / "scratch")}), ("memory", {}), (person.home, {})):
        with held(person, place, **env) as (live, kept), held(person, place, **env) as (killed, left):
            killed.send_signal(number)
            killed.wait()
            assert left.exists()
            assert left.stat().st_mode & 0o777 == 0o700
            new = made_again(person, place, **env)
            assert new.parent == left.parent == kept.parent
            assert (left.exists(), new.exists(), kept.exists()) == (False, False, True)
            live.kill()
            live.wait()
            made_again(person, place, **env)
            assert not kept.exists()
    assert (person.home / "public.yaml").exists()


def test_nothing_else_is_taken_for_a_leftover(person: User, attacker: User) -> None:
    """By the name of one: a link to a folder, one of another user, and of one's own folders that a member renames."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text()[:8]
    names = [f"sbatchgen-plan-{boot}-aaaaaaa{number}" for number in range(5)]
    project = person.project
    person.bash(
        "umask 022; mkdir mine private; echo precious | tee mine/file private/file; chmod 700 private"
    )
    person.bash("mkdir -m 2775 shared; echo precious >shared/file")
    attacker.bash(
        f"ln -s {person.home} {names[0]}; mkdir -m 700 {names[1]}; mv mine {names[2]}; mv private {names[3]}"
    )
    attacker.bash(
        f"touch shared/.sbatchgen-lock; mv shared {names[4]}; ln -s {person.home} ../scratch/{names[0]}"
    )
    for place, env in ((project, {}), ("", {"TMPDIR": str(person.lab / "scratch")})):
        made_again(person, place, **env)
    assert (person.home / "public.yaml").exists()
    assert (project / names[1]).exists()
    assert [(project / name / "file").read_text() for name in names[2:]] == ["precious\n"] * 3


def test_none_is_made_where_a_member_could_replace_it(person: User) -> None:
    """Way D, and the folder of way F."""
    group = person.project / "temporary"
    group.mkdir()
    os.chown(group, person.uid, GROUP)
    group.chmod(0o2770)
    assert not made_again(person, "", TMPDIR=str(group)).is_relative_to(person.project)
    assert [*group.iterdir()] == []


PLANS_TWICE = """
sbatchgen plan own.slurm & first=$!
until [ "$(ls /dev/shm)" ]; do sleep 0.05; done
kill -s SIGNAL $first; wait $first
ls /dev/shm >left
sbatchgen plan own.slurm
ls /dev/shm >then
"""


@pytest.mark.sampled(2)
@needs_sandbox
@pytest.mark.slow
@pytest.mark.parametrize("number", ["TERM", "KILL"])
def test_a_plan_that_is_killed_leaves_nothing_after_the_next(owner: User, number: str) -> None:
    """Way F, in memory."""
    lines = "#!/bin/bash\n#SBATCH --time=60\nuntil false; do :; done\nsrun true\n"
    put(owner.home / "own.slurm", lines, owner=owner.uid)
    own_memory = "mount -t tmpfs -o mode=1777 none /dev/shm"
    done = owner.run("bash", "-c", PLANS_TWICE.replace("SIGNAL", number), cwd=owner.home, setup=own_memory)
    assert (owner.home / "left").read_text() != "", done.stderr
    assert (owner.home / "then").read_text() == "", done.stderr
    assert "own.slurm" in done.stdout


def test_what_was_left_before_a_restart_is_removed_a_week_later(person: User) -> None:
    """Of another machine, the lock is not seen: so it must be old."""
    place = person.home / "temporary"
    place.mkdir()
    names = [f"sbatchgen-plan-{number}-abcdefgh" for number in ("00000000", "11111111")]
    for name in names:
        person.run("mkdir", "-m", "700", place / name, setup=f"chown {person.uid} {place}")
        put(place / name / ".sbatchgen-lock", owner=person.uid, mode=0o600)
    os.utime(place / names[0], (0, 0))
    made_again(person, place)
    assert [each.name for each in place.iterdir()] == names[1:]


NESTS = """
import os
from pathlib import Path
from sbatchgen.base.machine.temporary import temporary_folder
with temporary_folder("sbatchgen-test-") as folder:
    os.chdir(folder)
    for number in range(1200):
        os.mkdir("d" * 200)
        os.chdir("d" * 200)
        os.mkdir("closed", 0)
    os.chdir("/")
print(folder.exists())
"""


def test_folders_in_folders_without_end_are_removed(owner: User) -> None:
    """As a rehearsal's trainer may make: their paths are longer than Linux allows, and more than a process may open."""
    done = owner.run("sh", "-c", f"ulimit -n 64; exec '{sys.executable}' -c '{NESTS}'")
    assert (done.stdout, done.stderr) == ("False\n", "")
