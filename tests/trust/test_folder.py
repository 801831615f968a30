"""The run folder is its owner's alone, in a project that the whole group writes."""

from __future__ import annotations

import contextlib

import pytest

from .lab import User, put

pytestmark = pytest.mark.slow


def test_a_planted_log_is_refused_and_none_is_planted_later(attacker: User, owner: User) -> None:
    """slurmd would append to the file that the link leads to, as the owner."""
    owner.bash("mkdir -p -m 2775 runs/a")
    plant = f"ln -s {owner.home}/precious runs/a/a-1000.out"
    assert attacker.bash(plant).returncode == 0
    refused = owner.submit("single", "--job-name", "a", check=False)
    assert (refused.returncode, owner.jobs()) == (3, [])
    link = owner.project / "runs/a/a-1000.out"
    assert f"belongs to another user (uid 20011): {link}\n" in refused.stderr
    assert f"fix: look at it, then remove it: rm -r {link}; or " in refused.stderr
    owner.bash(f"rm -r {link}")
    owner.submit("single", "--job-name", "a")
    assert attacker.bash(plant).returncode != 0
    assert owner.job(1000).returncode == 0
    assert (owner.home / "precious").read_text() == "mine"


def test_checkpoints_lie_in_no_folder_of_another_user(attacker: User, owner: User) -> None:
    place = attacker.project / "theirs"
    assert attacker.bash(f"mkdir {place}").returncode == 0
    owner.bash(f"mkdir -p runs/a; ln -s {place} runs/a/checkpoints")
    refused = owner.submit("single", "--job-name", "a", check=False)
    link = owner.project / "runs/a/checkpoints"
    assert (refused.returncode, owner.jobs()) == (3, [])
    assert f"error: {link} is a link to a folder of another user (uid 20011): {place}\n" in refused.stderr
    fix = f"rm {link}"
    assert f"fix: remove the link, and the job makes a folder: {fix}" in refused.stderr
    owner.bash(fix)
    owner.submit("single", "--job-name", "a")


def test_a_snapshot_is_the_owners_alone(attacker: User, owner: User) -> None:
    owner.bash("umask 022; git init -q ~/code && cd ~/code && echo mine >t.py && git add t.py")
    flags = ("--profile", owner.home / "public.yaml", "--snapshot", "--trainer", "./t.py", "--job-name", "a")
    place = ("--run-dir", owner.project / "runs/a")
    done = owner.run("sbatchgen", "submit", "single", "--yes", *flags, *place, cwd=owner.home / "code")
    assert done.returncode == 0, done.stderr
    (copy,) = (owner.project / "runs/a").glob("code-*")
    for line in (
        f"cat {copy}/t.py",  # it may have been private by the folder that it comes from
        f"mv {copy} {copy}-old",
        f"echo evil >{copy}/t.py",
        f"rm -f {copy}/t.py",
        f"touch {copy}/new",
        f"chmod o+w {copy}",
    ):
        assert attacker.bash(line).returncode != 0
    assert owner.job(1000, "cat t.py").stdout.endswith("mine\n")
    # the project is the group's: its members can move the folder away, and then nothing runs
    assert attacker.bash(f"mv runs/a runs/b; mkdir -p {copy}; echo evil >{copy}/t.py").returncode == 0
    done = owner.job(1000, "cat t.py")
    assert (done.returncode, "evil" in done.stdout) == (1, False)
    assert f"your own: {owner.project}/runs/a" in done.stderr


@pytest.mark.proof
def test_of_submissions_at_the_same_time_one_is_accepted(owner: User) -> None:
    words = (
        "sbatchgen",
        "submit",
        "cpu",
        "--yes",
        "--again",  # the same job is allowed: the run folder alone refuses
        "--profile",
        owner.home / "public.yaml",
        "--job-name",
        "a",
        "--trainer",
        "t.py",
    )
    put(owner.project / "t.py", owner=owner.uid)
    with contextlib.ExitStack() as stack:
        started = [stack.enter_context(owner.start(*words, env={"TAKES": "0.2"})) for _ in range(12)]
        ended = [(*process.communicate(), process.returncode) for process in started]
    assert sorted(status for _, _, status in ended) == [0, *[3] * 11], ended
    assert len(owner.jobs()) == 1
    what = f"job 1000 uses this run folder too, and is waiting: {owner.project}/runs/a\n"
    assert [what in err for _, err, status in ended if status] == [True] * 11


def test_completion_of_names_of_others_runs_nothing(attacker: User, owner: User) -> None:
    for user, name in ((attacker, "zz$(touch pwned)"), (attacker, "zz;touch pwned"), (owner, "zz-mine")):
        user.run("mkdir", "-p", f"runs/{name}", name)
        put(owner.project / name / "events.jsonl", '{"event": "train", "step": 1}\n', owner=user.uid)
    done = owner.bash(
        """eval "$(sbatchgen completion bash)"
        for verb in logs plot; do
            COMP_WORDS=(sbatchgen $verb zz) COMP_CWORD=2 COMP_LINE="sbatchgen $verb zz" COMP_POINT=17 COMPREPLY=()
            complete=($(complete -p sbatchgen)) && while [[ ${complete[0]} != -F ]]; do complete=("${complete[@]:1}"); done
            "${complete[1]}" sbatchgen zz $verb
            for word in "${COMPREPLY[@]}"; do eval "echo $word"; done
        done"""
    )
    assert "zz-mine" in done.stdout, done
    assert not [*owner.project.rglob("pwned")]
