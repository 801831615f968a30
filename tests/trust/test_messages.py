"""What a file is called forges no line of a message, and a link in a run folder shows no other file."""

from __future__ import annotations

import pytest

from sbatchgen.base.quoting import one_line

from .lab import User, put

FORGED = "a\nerror: forged\n  fix: rm -rf x\n    fix: y\x1b[2J\tz.slurm"


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "words",
    [
        ("lint", FORGED),
        ("lint", f"./missing{FORGED}"),
        ("render", f"./missing{FORGED}.yaml"),
        ("render", "single", "--profile", f"./{FORGED}.yaml"),
        ("plan", f"./missing{FORGED}"),
        ("logs", FORGED),
        ("adopt", f"./missing{FORGED}"),
    ],
)
def test_a_name_of_a_file_forges_no_line(owner: User, words: tuple[str, ...]) -> None:
    text = "#!/bin/bash\n#SBATCH --time=24\n#SBATCH -p=gpu\nhostname\n"
    put(owner.home / FORGED, text, owner=owner.uid)
    put(owner.home / f"{FORGED}.yaml", "name: [\n", owner=owner.uid)
    done = owner.run("sbatchgen", *words, cwd=owner.home)
    lines = [line.strip() for line in (done.stdout + done.stderr).splitlines()]
    assert done.returncode != 0
    assert any(r"a\nerror: forged\n" in line for line in lines), lines
    assert not any(line.startswith(("error: forged", "fix: rm", "fix: y")) for line in lines), lines
    assert "\x1b" not in done.stdout + done.stderr


def test_a_name_of_a_checked_profile_forges_no_line(owner: User) -> None:
    put(owner.home / f"{FORGED}.yaml", "name: x\nurl: x\nchecked: 2026-01-01\n", owner=owner.uid)
    done = owner.run("sbatchgen", "profile", "check", f"./{FORGED}.yaml", cwd=owner.home)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        f"./{one_line(FORGED)}.yaml: no errors",
    ]


@pytest.mark.slow
def test_a_link_in_a_run_folder_is_no_log(owner: User) -> None:
    put(owner.project / "t.py", owner=owner.uid)
    owner.submit("cpu", "--trainer", "t.py", "--job-name", "a")
    owner.bash("ln -s ~/precious runs/a/a-1000.out")
    done = owner.sbatchgen("logs", "a")
    assert (done.returncode, done.stdout) == (3, "")
    owner.bash("rm runs/a/a-1000.out; echo trained >runs/a/a-1000.out")
    assert owner.sbatchgen("logs", "a").stdout == "trained\n"


def test_what_a_script_starts_and_a_folder_forge_no_line(owner: User) -> None:
    text = (
        "#!/bin/bash\n#SBATCH --time=60\n#SBATCH --ntasks=1\nsrun $'/no\\nerror: forged\\n  fix: rm -rf x'\n"
    )
    put(owner.home / "a.slurm", text, owner=owner.uid)
    forged = owner.home / FORGED.partition("/")[0]
    owner.run("mkdir", forged)
    for words in (("adopt", "a.slurm"), ("trust", forged), ("trust", "--remove", forged)):
        done = owner.run("sbatchgen", *words, cwd=owner.home)
        lines = [line.strip() for line in (done.stdout + done.stderr).splitlines()]
        assert any("nerror: forged" in line for line in lines), lines
        assert not any(line.startswith(("error: forged", "fix: rm")) for line in lines), lines
