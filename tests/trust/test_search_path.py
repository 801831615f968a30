"""Programs come from the folders that a user or a site has named, not from those that everybody can write."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from sbatchgen.base.machine import search_path
from tests.plan.plans import needs_sandbox

from .lab import GROUP, User, put

STAFF = 20077  # an account of the site for its software
TRAPS = (
    "sbatch squeue sacct scontrol sinfo sacctmgr scancel srun shellcheck bwrap git bash sh env python3 node npm"
    " apptainer singularity enroot conda fc-list uname cat"
).split()
# Lines of root's that make a folder BIN with a program; OWNER is the user, HERE the lab.
HEALTHY = {
    "of the site's account": f"BIN=HERE/slurm/bin; mkdir -p $BIN; chown -R {STAFF} HERE/slurm",
    "of a group of staff": f"BIN=HERE/sw/slurm/bin; mkdir -p $BIN; chown -R {STAFF}:{STAFF} HERE/sw; chmod -R g+ws HERE/sw",
    "of a group of the user": f"BIN=HERE/group/bin; mkdir -p $BIN; chgrp -R {GROUP} HERE/group; chmod -R g+ws HERE/group",
    "of a group, sticky": f"BIN=HERE/own/bin; mkdir -p $BIN; chown {STAFF} $BIN; chgrp {GROUP} HERE/own; chmod 3775 HERE/own",
    "of a user, in a folder of all": "BIN=HERE/scratch/env/bin; mkdir -p $BIN; chown -R OWNER HERE/scratch/env",
    "of a user, at home": "BIN=HOME/env/bin; mkdir -p $BIN; chown -R OWNER HOME/env",
    "a link of a module": "mkdir -p HERE/tree/1.2/bin; ln -s 1.2 HERE/tree/default; BIN=HERE/tree/default/bin",
    "a program that is a link": "BIN=HERE/links; mkdir $BIN HERE/real; echo '#!/bin/sh' >HERE/real/tool; chmod +x HERE/real/tool; ln -s ../real/tool $BIN/tool",
}  # fmt: skip
REFUSED = {
    "written by all": "BIN=HERE/open; mkdir $BIN; chmod 777 $BIN",
    "the temporary folder itself": "BIN=HERE/scratch; touch $BIN/tool; chown OTHER $BIN/tool",
    "below what all write": "BIN=HERE/wide/bin; mkdir -p $BIN; chmod 777 HERE/wide",
    "of somebody, in a folder of all": "BIN=HERE/scratch/theirs/bin; mkdir -p $BIN; chown -R OTHER HERE/scratch/theirs",
    "by a link of somebody": "mkdir HERE/root; BIN=HERE/scratch/link; ln -s ../root $BIN; chown -h OTHER $BIN",
    "through a link to what all write": "mkdir HERE/open2; chmod 777 HERE/open2; ln -s open2 HERE/link2; BIN=HERE/link2",
    "a program that all write": "BIN=HERE/file; mkdir $BIN; touch $BIN/tool; LATER='chmod 777 $BIN/tool'",
}  # fmt: skip
FINDS = """
import json, sys
from sbatchgen.base.machine.ignored import take_problems
from sbatchgen.base.machine import search_path
for folder in map(str.strip, sys.stdin if len(sys.argv) < 2 else open(sys.argv[1])):
    found = search_path.find("tool", {"PATH": f"/nowhere:{folder}:/usr/bin"})
    trusted = search_path.trusted_path({"PATH": f"/usr/bin:{folder}"}).endswith(f":{folder}")
    print(json.dumps([folder, found, trusted, [problem.fix for problem in take_problems()]]))
"""


def found(person: User, attacker: User, rows: dict[str, str]) -> dict[str, list[Any]]:
    """Of each folder the program that is found there, whether children search there, and fixes."""
    lines = []
    for row in rows.values():
        words = {"HERE": person.lab, "HOME": person.home, "OWNER": person.uid, "OTHER": attacker.uid}
        for word, value in words.items():
            row = row.replace(word, str(value))  # noqa: PLW2901 - with its words filled in
        lines += [
            f"LATER=; {row}; [ -e $BIN/tool ] || echo '#!/bin/sh' >$BIN/tool; [ -L $BIN/tool ] || chmod 755 $BIN/tool"
        ]
        lines += [f'eval "$LATER"; echo $BIN >>{person.lab}/folders']
    script = put(person.lab / "make", "\n".join(lines), owner=0)
    assert os.system(f"umask 022; bash -e {script}") == 0  # noqa: S605 - root's own lines
    done = person.run(sys.executable, "-c", FINDS, person.lab / "folders", cwd=person.home)
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    return dict(zip(rows, answers, strict=True))


def test_folders_that_a_site_or_a_user_has_named(person: User, attacker: User) -> None:
    for name, (folder, path, trusted, fixes) in found(person, attacker, HEALTHY).items():
        assert (path, trusted, fixes) == (f"{folder}/tool", True, []), name


def test_folders_in_which_everybody_can_put_a_program(person: User, attacker: User) -> None:
    for name, (folder, path, trusted, fixes) in found(person, attacker, REFUSED).items():
        assert path == "", name
        assert trusted == (name == "a program that all write"), name
        assert len(fixes) == 1, name
        assert f"to trust it, export SBATCHGEN_TRUST={folder}" in fixes[0].replace("$SBATCHGEN_TRUST:", "")


@pytest.mark.sampled(2, first=1)
@needs_sandbox
@pytest.mark.slow
def test_no_program_of_the_current_folder_is_started(person: User, marks: Path) -> None:
    """Way E: PATH has `.`, an empty entry at each end, and another relative one."""
    folder = person.home / "cloned"
    (folder / "bin").mkdir(parents=True)
    for place in (folder, folder / "bin"):
        for name in TRAPS:
            put(place / name, f"#!/bin/sh\n: >{marks}/{place.name}-{name}\n", owner=person.uid, mode=0o755)
        os.chown(place, person.uid, person.uid)
    put(
        folder / "own.slurm", "#!/bin/bash\n#SBATCH --time=60\nif true; then srun echo $1\n", owner=person.uid
    )
    put(folder / "t.py", "import torch\n", owner=person.uid)
    profile = ("--profile", person.home / "public.yaml")
    normal = f"{person.lab}/bin:{Path(sys.prefix, 'bin')}:/usr/bin:/bin"
    commands = (
        ("lint", "own.slurm", "--shellcheck"),
        ("lint", "own.slurm", "--plan"),
        ("submit", "cpu", "--yes", *profile, "--trainer", "t.py", "--job-name", "a"),
        ("status",),
        ("gpus",),
        ("profile", "discover"),
        ("image", "pull", "docker://a/b", "--to", "x.sif"),
        ("completion", "bash"),
    )
    for words in commands:
        done = person.run(
            Path(sys.prefix, "bin/sbatchgen"), *words, cwd=folder, env={"PATH": f".:bin::{normal}:"}
        )
        assert [*marks.iterdir()] == [], (words, done.stderr)
    assert len(person.jobs()) == 1
    refused = person.run(Path(sys.prefix, "bin/sbatchgen"), "status", cwd=folder, env={"PATH": f".:{normal}"})
    warning = "warning: ignored ./squeue: PATH has the entry '.', which is another folder wherever you are\n"
    assert refused.stderr.count(warning) == refused.stderr.count("warning: ") == 1, refused.stderr
    fix = refused.stderr.partition("  fix: ")[2].splitlines()[0]
    lines = f"export PATH=.:{normal}; {fix}; sbatchgen status"
    assert "warning" not in person.run("bash", "-c", lines, cwd=folder).stderr


@pytest.mark.sampled(2, first=1)
@pytest.mark.slow
def test_no_library_of_the_current_folder_is_loaded(person: User) -> None:
    """bash, which runs the stand-ins for Slurm, needs libtinfo; this Python does not."""
    folder = person.home / "libraries"
    (folder / "lib").mkdir(parents=True)
    for place in (folder, folder / "lib"):
        put(place / "libtinfo.so.6", owner=person.uid)  # stops what loads it
    for entries in ("/nowhere:", ":/nowhere", ".", "lib:/nowhere", "./lib", "/nowhere;;/nowhere"):
        around = {"LD_LIBRARY_PATH": entries}
        assert "libtinfo" in person.run("bash", "-c", "true", cwd=folder, env=around).stderr
        done = person.run(Path(sys.prefix, "bin/sbatchgen"), "gpus", cwd=folder, env=around)
        assert "libtinfo" not in done.stderr, entries


def test_libraries_of_other_folders_stay() -> None:
    kept = {"LD_LIBRARY_PATH": "/opt/cuda/lib64:$ORIGIN/../lib", "LD_PRELOAD": "libjemalloc.so:/opt/x.so"}
    assert search_path.cleaned(kept) == kept
    assert search_path.cleaned({"LD_LIBRARY_PATH": ":", "LD_PRELOAD": "./x.so"}) == {}
