"""Nothing of a job runs before it is submitted: no line of it, no program of its folder, nothing that its git names."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY
from tests.scripts import PUBLIC

from . import recorder
from .lab import GROUP, UMASK, User, put

pytestmark = pytest.mark.slow

SLURM = ("sbatch", "squeue", "sacct", "scontrol")
PROGRAMS = "git bash sh env python python3 uv srun module touch ssh tool.sh hook".split()
MODULES = "click jinja2 yaml torch sitecustomize usercustomize readline train".split()
SETUPS = ("setup_before_modules", "setup", "setup_after_runtime", "setup_per_node", "setup_per_task")
COMMANDS = (
    "review job.yaml --test-only",
    "review bundled.yaml",
    "render job.yaml",
    "explain job.yaml --lines",
    "submit job.yaml --dry-run",
    "submit job.yaml --snapshot --yes",
    "submit bundled.yaml --yes",
    "submit own.slurm --yes",
    "resume job --dry-run",
    "resume job --yes --snapshot",
    "sweep job.yaml --param lr=1,2 --job-name many --yes",
    "resubmit many --yes",
    "rehearse job.yaml --on ./site.yaml --yes",
    "status",
    "status --all",
)


@pytest.fixture
def cloned(person: User, marks: Path) -> Path:
    """A repository of somebody, in which everything that could run is a trap."""
    folder = person.home / "cloned"
    folder.mkdir()
    texts = dict(traps(marks))
    site = f"{PUBLIC}paths: {{code: code}}\n" + "".join(f"{key}: ['touch {marks}/{key}']\n" for key in SETUPS)
    texts |= {
        "site.yaml": site.replace(
            "runtime: host", f"runtime: venv\nruntimes: {{venv: {{path: {folder}/venv}}}}\nmodules: [tool]"
        ),
        "job.yaml": "mode: ddp\nprofile: ./site.yaml\ntrainer: train.py\n",
        "bundled.yaml": "mode: single\nprofile: ./site.yaml\nargs: [--dataset, fake]\n",
        "own.slurm": f"#!/bin/bash\n#SBATCH --time=60\ntouch {marks}/own\n./tool.sh\nsrun python train.py\n",
    }
    for name, text in texts.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        put(file, text, owner=person.uid, mode=0o755)
    for path in (folder, *folder.rglob("*")):
        os.chown(path, person.uid, person.uid)
    done = person.run("bash", "-ec", repository(marks), cwd=folder)
    assert done.returncode == 0, done.stderr
    for mark in marks.iterdir():  # of the commit
        mark.unlink()
    return folder


def traps(marks: Path) -> Iterator[tuple[str, str]]:
    """Programs, modules of Python, and what bash reads."""
    for name in (*PROGRAMS, *SLURM, "venv/bin/python", "venv/bin/python3", "venv/bin/activate", "rc"):
        yield name, f"#!/bin/sh\n: >{marks}/{name.replace('/', '-')}\n"
    for name in (
        *(f"{name}.py" for name in MODULES),
        "code/training/__main__.py",
        "code/training/runfolder.py",
    ):
        yield name, f"open('{marks}/{name.replace('/', '-')}', 'w')\n"


def repository(marks: Path) -> str:
    """Lines that make a repository whose configuration names traps, with a file that git would read."""
    return f"""
umask 022
git init -q . && git add job.yaml train.py tool.sh
git -c user.name=a -c user.email=a@example.org commit -qm first
echo '* filter=x diff=x merge=x' >.git/info/attributes
for hook in post-index-change pre-commit post-checkout reference-transaction fsmonitor-watchman; do
    printf '#!/bin/sh\\n: >{marks}/hook-%s\\n' $hook >.git/hooks/$hook && chmod +x .git/hooks/$hook
done
for name in core.fsmonitor core.pager core.sshCommand core.editor core.askPass core.alternateRefsCommand core.gitProxy \\
    filter.x.clean filter.x.smudge diff.external diff.x.textconv diff.x.command merge.x.driver gpg.program \\
    credential.helper pager.status pager.config alias.status alias.ls-files sequence.editor interactive.diffFilter
do
    git config $name ": >{marks}/$name; cat"
done
touch -d tomorrow train.py
"""


def recorded(
    person: User, file: Path, *words: object
) -> tuple[subprocess.CompletedProcess[str], list[list[str]]]:
    """What a command in the folder of a job does, and each program that its processes start."""
    folder = person.home / "cloned"
    more = {"BASH_ENV": f"{folder}/rc", "ENV": f"{folder}/rc", "PYTHONSTARTUP": f"{folder}/rc"}
    record = (sys.executable, Path(recorder.__file__), file, *words)
    done = person.run(*record, cwd=folder, env=more)
    return done, [json.loads(line) for line in file.read_text().splitlines()]


def kind(words: list[str]) -> str:
    """What was started; "" for what may not be."""
    name = Path(words[0]).name
    if name == "git":
        ours = [word for word in words if word.startswith("--git-dir=/tmp/sbatchgen-git-")]
        return "git" if ours or words[2:3] == ["config"] else ""
    if name == "bash":
        return "bash -n" if words[1:3] == ["--norc", "--noprofile"] and words[-1] == "-n" else ""
    if name.startswith("python"):
        looks = words[1:5] == ["-I", "-S", f"{REPOSITORY}/training", "--look"]
        is_command = Path(words[1]) == Path(sys.prefix, "bin/sbatchgen")
        return "look" if looks else "sbatchgen" if is_command else ""
    return "Slurm" if name == "sh" and Path(words[1]).name in SLURM and len(words) > 1 else ""


@pytest.mark.proof
def test_only_slurm_git_and_our_own_programs_are_started(person: User, cloned: Path, marks: Path) -> None:
    for name in SLURM:
        says = "echo $((1000 + $$))" if name == "sbatch" else ":"
        put(person.lab / f"bin/{name}", f"#!/bin/sh\n{says}\n", owner=0, mode=0o755)
    started = set()
    for line in COMMANDS:
        done, programs = recorded(person, person.home / "programs", "sbatchgen", *line.split())
        assert done.returncode == line.startswith("rehearse"), (line, done.stderr)  # its job does nothing
        kinds = {kind(words): words for words in programs}
        assert "" not in kinds, (line, kinds)
        started |= {*kinds}
        assert [*marks.iterdir()] == [], line
    assert started == {"sbatchgen", "git", "look", "Slurm"} | (started & {"bash -n"})
    assert (person.home / "cloned/runs/many/points.csv").exists()


@pytest.mark.proof
def test_the_language_server_and_the_page_start_nothing(person: User, cloned: Path, marks: Path) -> None:
    program = f"""
import sys
from pathlib import Path
sys.path.insert(0, {str(REPOSITORY)!r})
from sbatchgen.cli.answer import answer
here = Path.cwd()
files = {{name: Path(name).read_bytes() for name in ("own.slurm", "job.yaml", "site.yaml")}}
for words in ("review job.yaml", "render job.yaml", "lint own.slurm --no-shellcheck", "adopt own.slurm"):
    print(answer(words.split(), files).status)
from tests.editor.client import edit
edit(here, ("own.slurm", "job.yaml", "site.yaml"))
"""
    put(cloned.parent / "session.py", program, owner=person.uid)
    done, programs = recorded(person, person.home / "programs", sys.executable, cloned.parent / "session.py")
    assert (done.returncode, done.stdout) == (0, "0\n0\n0\n0\n"), done.stderr
    servers = [words for words in programs[1:] if kind(words) != "bash -n"]
    assert [[Path(words[1]).name, *words[2:3]] for words in servers] == [["sbatchgen", "lsp"]]
    assert [*marks.iterdir()] == []


@pytest.mark.sampled(2)
def test_a_setup_line_that_gains_a_command_after_the_review_is_refused(person: User) -> None:
    """Attack 16: the script starts the same processes as before."""
    site, words = person.home / "site.yaml", ("single", "--profile", "./site.yaml", "--trainer", "t.py")
    put(person.home / "t.py", "import torch\n", owner=person.uid)
    put(site, f"{PUBLIC}setup: ['true']\n", owner=person.uid)
    shown = person.run("sbatchgen", "review", *words, cwd=person.home).stdout
    (digest,) = re.findall(r"^(?:digest +|Plan )(\w+)$", shown, re.MULTILINE)
    put(site, f"{PUBLIC}setup: ['true; rm -rf ~/results']\n", owner=person.uid)
    done = person.run("sbatchgen", "submit", *words, "--yes", "--reviewed", digest, cwd=person.home)
    assert (done.returncode, person.jobs()) == (3, [])
    assert "\n  -true\n  +true; rm -rf ~/results\n" in done.stderr


@pytest.mark.sampled(4)
@pytest.mark.parametrize("setting", ["core.fsmonitor", "filter.x.clean"])
def test_a_member_of_the_group_runs_nothing_by_a_repository_of_the_group(
    person: User, attacker: User, marks: Path, setting: str
) -> None:
    """Attack 17."""
    shared = person.project / "code"
    lines = f"""
umask {UMASK:03o}; mkdir code; cd code; echo import torch >t.py; git init -q --shared=group .; git add t.py
git -c user.name=a -c user.email=a@example.org commit -qm first; touch -d tomorrow t.py
"""
    assert person.run("bash", "-ec", lines).returncode == 0
    subprocess.run(["chgrp", "-R", str(GROUP), shared], check=True)
    lines = (
        f"git config -f .git/config {setting} ': >{marks}/evil; cat'; echo '* filter=x' >.git/info/attributes"
    )
    assert attacker.run("bash", "-c", lines, cwd=shared).returncode == 0
    words = ("submit", "single", "--yes", "--profile", person.home / "public.yaml", "--trainer", "t.py")
    done = person.run("sbatchgen", *words, "--run-dir", person.home / "run", cwd=shared)
    assert (done.returncode, len(person.jobs())) == (0, 1), done.stderr
    assert [*marks.iterdir()] == []
    assert "warning: ignored .git: " in done.stderr
    person.run("git", "status", cwd=shared)
    assert [mark.name for mark in marks.iterdir()] == ["evil"]


def test_a_repository_within_a_clone_runs_nothing(person: User, marks: Path) -> None:
    """Attack 18: git would take a folder for a repository that has the files of one."""
    clone, inside = person.home / "clone", person.home / "clone/data"
    lines = f"""
git init -q {clone} && git init -q --bare {inside} && cd {inside} && echo import torch >t.py
git config -f config core.bare false && git config -f config core.worktree .
git add t.py && git -c user.name=a -c user.email=a@example.org commit -qm first
git config -f config core.fsmonitor ': >{marks}/evil; false'
"""
    assert person.run("bash", "-ec", lines, cwd=person.home).returncode == 0
    words = ("submit", "single", "--yes", "--profile", "../../public.yaml", "--trainer", "t.py")
    done = person.run("sbatchgen", *words, cwd=inside)
    assert (done.returncode, len(person.jobs())) == (0, 1), done.stderr
    assert [*marks.iterdir()] == []
    person.run("git", "status", cwd=inside)
    assert [mark.name for mark in marks.iterdir()] == ["evil"]
