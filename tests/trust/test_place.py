"""What is found by searching, kept for later or handed to sbatch, in a folder of the owner's that the group can rename."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

import pytest

from .lab import GROUP, STAND_INS, User, put, wait

pytestmark = pytest.mark.slow

TRIES = 20
# Two folders change places, again and again. The first exchange is done before `ready` is made.
EXCHANGES = """
import ctypes, pathlib, sys
first, second = (str(name).encode() for name in sys.argv[1:])
exchange = ctypes.CDLL(None).renameat2
assert exchange(-100, first, -100, second, 2) == 0
pathlib.Path("ready").touch()
while True:
    exchange(-100, first, -100, second, 2)
"""
# Replaces each compiled template of a cache by code that leaves a file in the home of who runs it.
POISONS = """
import io, marshal, pathlib, pickle, sys
from jinja2.bccache import bc_magic
code = compile("import os; open(os.environ['HOME'] + '/pwned', 'w')", "x", "exec")
for file in pathlib.Path(sys.argv[1]).rglob("*.cache"):
    whole = io.BytesIO(file.read_bytes())
    whole.seek(len(bc_magic))
    pickle.load(whole)
    file.write_bytes(whole.getvalue()[: whole.tell()] + marshal.dumps(code))
    file.chmod(0o644)
"""


@contextlib.contextmanager
def exchanging(attacker: User, first: str, second: str) -> Iterator[None]:
    """Two folders of the project change places all the time."""
    with attacker.start(sys.executable, "-c", EXCHANGES, first, second):
        wait((attacker.project / "ready").exists)
        yield


@pytest.mark.proof
def test_code_of_others_is_not_taken_from_a_cache_that_is_exchanged(attacker: User, owner: User) -> None:
    render = ("render", "single", "--profile", "msu")
    attacker.sbatchgen(*render, XDG_CACHE_HOME=str(attacker.home))
    attacker.run(sys.executable, "-c", POISONS, attacker.home)
    attacker.bash("mkdir evil; cp -r ~/sbatchgen evil; chmod -R go=rX evil")
    assert [*(attacker.project / "evil").rglob("*.cache")]
    mine = owner.project / "cache"
    owner.bash(f"umask 022; mkdir {mine}")
    owner.sbatchgen(*render, XDG_CACHE_HOME=str(mine))
    with exchanging(attacker, "cache", "evil"):
        for _ in range(TRIES):
            done = owner.sbatchgen(*render, XDG_CACHE_HOME=str(mine))
            assert (done.returncode, done.stdout.startswith("#!/bin/bash\n")) == (0, True), done.stderr
            assert not (owner.home / "pwned").exists()


@pytest.mark.proof
def test_settings_of_others_are_not_read_from_a_folder_that_is_exchanged(attacker: User, owner: User) -> None:
    for user, name, trainer in ((attacker, "evil", "/stolen.py"), (owner, "mine", "/mine.py")):
        user.bash(f"umask 022; mkdir -p {name}/sub; echo 'trainer: {trainer}' >{name}/sbatchgen.yaml")
    with exchanging(attacker, "mine", "evil"):
        for _ in range(TRIES):
            done = owner.run(
                "sbatchgen", "render", "single", "--profile", "msu", cwd=owner.project / "mine/sub"
            )
            assert (done.returncode, "stolen" in done.stdout) == (0, False), done.stderr
            assert (
                done.stderr.count("warning: ") == done.stderr.count("warning: ignored sbatchgen.yaml: ") == 1
            )


def test_sbatch_gets_no_script_of_others_from_a_temporary_folder_that_is_exchanged(
    attacker: User, owner: User
) -> None:
    """sbatch's stand-in does what each member may do, in the moment that sbatch starts."""
    attacker.bash("echo '# stolen' >evil")
    owner.bash("umask 022; mkdir temporary; touch t.py")
    exchange = """
for word; do [[ -f $word ]] && script=$word; done
[[ $script != $PWD/temporary/* ]] || { mv temporary gone; mkdir -p "${script%/*}"; cp evil "$script"; }
"""
    put(owner.lab / "bin/sbatch", f"#!/bin/bash\n{exchange}{STAND_INS['sbatch']}", owner=0, mode=0o755)
    owner.submit("cpu", "--trainer", "t.py", TMPDIR=str(owner.project / "temporary"))
    (script,) = owner.jobs()
    assert "stolen" not in script
    assert "t.py" in script


@pytest.mark.proof
def test_a_folder_of_the_group_costs_one_warning_and_each_fix_helps(owner: User) -> None:
    """All commands work there with what is named, and without what would only be found."""
    mine = owner.project / "mine"
    owner.bash(
        "umask 022; mkdir -p mine/.sbatchgen/templates mine/profiles mine/templates; cd mine; touch t.py"
        "; cp ~/public.yaml profiles; echo 'options: {account: planted}' >sbatchgen.yaml; cp sbatchgen.yaml .."
        """; echo '{% extends "bundled:job.sh.j2" %}' | tee templates/job.sh.j2 .sbatchgen/templates/job.sh.j2"""
        "; printf 'mode: cpu\\ntrainer: ./t.py\\n' >job.yaml"
    )
    named = ("job.yaml", "--profile", "./profiles/public.yaml")
    why = f"its folder is below {owner.project}, which can be written by the group gid {GROUP}\n"
    fix = f"ask root for chmod +t {owner.project}, or to trust it: sbatchgen trust {mine}\n"
    warning = f"warning: ignored sbatchgen.yaml: {why}  at:  {mine}/sbatchgen.yaml\n  fix: {fix}"

    def see(**env: str) -> list[tuple[int, bool, int, int]]:
        """Of each command its status, whether it used the settings, and the number of the warnings."""
        verbs = {"render": named, "review": named, "submit": (*named, "--yes"), "explain": named}
        done = [owner.run("sbatchgen", verb, *words, cwd=mine, env=env) for verb, words in verbs.items()]
        owner.ends()
        return [
            (
                each.returncode,
                "planted" in each.stdout + each.stderr,
                each.stderr.count(warning),
                each.stderr.count("ignored "),
            )
            for each in done
        ]

    assert see() == [(0, False, 1, 1)] * 4
    assert see(SBATCHGEN_TRUST=str(mine)) == [(0, True, 0, 0)] * 4
    for trusted in (mine, owner.project):  # itself, or what is above
        said = owner.run("sbatchgen", "trust", trusted).stderr
        assert f"note: {trusted} is trusted" in said
        assert f"the group {GROUP}" in said  # who can write the folder, or replace it
        assert see() == [(0, True, 0, 0)] * 4
        owner.run("sbatchgen", "trust", "--remove", trusted)
        assert warning in owner.run("sbatchgen", "render", *named, cwd=mine).stderr
    owner.project.chmod(0o3775)
    assert see() == [(0, True, 0, 0)] * 4
