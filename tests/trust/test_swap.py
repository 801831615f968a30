"""A run folder that changes places with another, is named with a slash, or has a default access list."""

from __future__ import annotations

import os
import struct

import pytest

from sbatchgen.base.units import ShellPath
from tests.scripts import resolved, script

from .lab import GROUP, User, put
from .test_script import KEY
from .test_training import MODEL, TRAINING, path

pytestmark = pytest.mark.slow

EXCHANGES = """[[ $AT != "${0##*/}" ]] || python3 -c 'import ctypes, os
r = os.environ["SLURM_SUBMIT_DIR"].encode() + b"/runs/"
ctypes.CDLL(None).renameat2(-100, r + b"a", -100, r + b"evil", 2)'
exec /usr/bin/"${0##*/}" "$@"
"""


def test_code_of_others_is_not_entered_while_the_run_folder_is_replaced(attacker: User, owner: User) -> None:
    """Two folders of these names change places in the moment that a command of the script starts."""
    owner.bash("umask 022; git init -q ~/code && cd ~/code && echo mine >t.py && git add t.py")
    flags = ("--profile", owner.home / "public.yaml", "--snapshot", "--trainer", "./t.py", "--job-name", "a")
    place = ("--run-dir", owner.project / "runs/a")
    owner.run("sbatchgen", "submit", "single", "--yes", *flags, *place, cwd=owner.home / "code")
    (copy,) = (owner.project / "runs/a").glob("code-*")
    attacker.bash(
        f"mkdir -p runs/evil/{copy.name}; echo evil >runs/evil/{copy.name}/t.py; chmod -R go-w runs/evil"
    )
    commands = ("mkdir", "chmod", "namei", "rm")
    for name in commands:
        put(owner.lab / "bin" / name, f"#!/bin/bash\n{EXCHANGES}", owner=0, mode=0o755)
    said = [owner.job(1000, "cat t.py", AT=name).stdout for name in commands for _ in range(2)]
    assert "mine\n" in "".join(said)
    assert "evil" not in "".join(said)


@pytest.mark.parametrize("end", ["/", "/."])
def test_a_link_with_a_slash_behind_is_a_link(attacker: User, owner: User, end: str) -> None:
    """As TAB completes it."""
    owner.bash("mkdir -p runs ~/private; touch ~/private/stop")
    attacker.bash(f"ln -s {owner.home}/private runs/a")
    text = script(resolved("single", owner.home / "public.yaml", run_dir=ShellPath(f"runs/a{end}")))
    assert owner.job(owner.queued(text, KEY)).returncode == 1
    assert (owner.home / "private/stop").exists()


def test_a_default_acl_opens_nothing(attacker: User, owner: User) -> None:
    """Under one, Linux asks no umask."""
    entries = ((1, 7, -1), (4, 7, -1), (8, 7, GROUP), (16, 7, -1), (32, 5, -1))  # u, g, g:GROUP, mask, o
    acl = struct.pack("<I", 2) + b"".join(struct.pack("<HHi", *entry) for entry in entries)
    os.setxattr(owner.project, "system.posix_acl_default", acl)
    put(owner.lab / "tiny_model.py", MODEL, owner=0)
    owner.bash("git init -q ~/code && cd ~/code && echo mine >t.py && git add t.py")
    flags = ("--profile", owner.home / "public.yaml", "--snapshot", "--trainer", "./t.py", "--job-name", "b")
    place = ("--run-dir", owner.project / "runs/b")
    owner.run("sbatchgen", "submit", "single", "--yes", *flags, *place, cwd=owner.home / "code")
    training = ("--yes", "--profile", "local", "--job-name", "a", "--", *TRAINING, "1")
    done = owner.sbatchgen("submit", "cpu", *training, PYTHONPATH=path(owner))
    assert done.returncode == 0, done
    open_paths = [each for each in owner.project.glob("runs/*/**/*") if each.lstat().st_mode & 0o022]
    assert [each for each in open_paths if not each.is_symlink()] == []
