"""Whole scripts: those of the field with what is known to be wrong with them, ours, and hostile ones."""

from __future__ import annotations

import os
import random
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sbatchgen.base.finding import Finding
from sbatchgen.check.cluster_facts import KnownCluster
from sbatchgen.check.lint.linter import lint, rules
from sbatchgen.check.rules.rule_page import PROFILE, pages
from sbatchgen.check.script.job import NO_CLUSTER
from sbatchgen.check.script.script import JobScript
from sbatchgen.jobs.inputs.document import read_document
from sbatchgen.jobs.inputs.profile import Profile
from tests.conftest import REPOSITORY

FOLDER = REPOSITORY / "tests" / "fixtures" / "scripts"

# What is known to be wrong with each: lines and rules. They have the shapes of the tutorials that the README names
# and of scripts that people have published. A rule that is not written yet is expected as soon as it is.
KNOWN: dict[str, str] = {
    "agents-times-tasks.slurm": "5:SB131 12:SB302 13:SB306",
    "conda-ddp.job": "1:SB205 16:SB306",
    "conda-single.slurm": "10:SB129",
    "elastic.slurm": "1:SB205 12:SB414 16:SB306",
    "enroot-ddp.slurm": "11:SB306 17:SB312",
    "enroot-single.slurm": "19:SB312",
    "expanded-too-early.slurm": "9:SB307 9:SB308 9:SB311",
    "many-mistakes.slurm": ("2:SB111 3:SB127 5:SB126 6:SB117 6:SB702 8:SB601 10:SB104 11:SB401 12:SB309"),
    "one-dash.slurm": "3:SB113",
    "sound.slurm": "",
    "torchrun-logs.slurm": "8:SB701",
}


def found(text: str, *, profile: KnownCluster = NO_CLUSTER, folder: Path | None = None) -> list[Finding]:
    return lint(
        JobScript(file="job.slurm", text=text, is_release_assumed=True, profile=profile, folder=folder)
    )


def test_every_script_is_in_the_table() -> None:
    assert sorted(KNOWN) == sorted(path.name for path in FOLDER.iterdir())


@pytest.mark.parametrize("name", KNOWN)
def test_what_is_wrong_with_scripts_of_the_field(name: str, tmp_path: Path) -> None:
    findings = found((FOLDER / name).read_text(), folder=tmp_path)
    said = {f"{finding.place.line}:{finding.rule}" for finding in findings}
    expected = {known for known in KNOWN[name].split() if known.partition(":")[2] in rules()}
    assert expected <= said
    assert {
        f"{finding.place.line}:{finding.rule}" for finding in findings if finding.severity == "error"
    } <= expected


def test_a_sound_script_is_left_alone(tmp_path: Path) -> None:
    """All that is left is for information."""
    findings = found((FOLDER / "sound.slurm").read_text(), folder=tmp_path)
    assert [finding for finding in findings if finding.severity != "info"] == []


# --- Hostile ones ---

SEEDS = [
    *(path.read_bytes() for path in sorted((REPOSITORY / "tests" / "golden").glob("*.sh"))),
    *(path.read_bytes() for path in sorted(FOLDER.iterdir())),
    *(
        example.text.encode("utf-8", "surrogateescape")
        for page in pages().values()
        for example in page.examples
    ),
]
CLUSTER = read_document(PROFILE, Profile).value
PIECES = [
    b"#SBATCH ", b"--time=", b"--gres=gpu:", b"--array=", b"--nodes=", b"-", b"=", b'"', b"'", b"\\", b"\n", b"\r\n", b"\0",
    b"$(", b")", b"${", b"}", b"<<E", b"`", b"&", b"|", b";", b"\xff", b"\xe2\x80\xae", b"9" * 60, b"# sbatchgen: disable=",
    b"srun ", b"torchrun --nproc_per_node=", b"trap '", b"function ", b"((", b"[[", b"case x in", b"--signal=B:",
    b"#SBATCH hetjob\n", b":", b",", b"[0-", b"%", b"--export=", b"conda activate ", b"apptainer exec ", b"--container-image=",
]  # fmt: skip


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """A script with pieces cut out, doubled and put in."""
    data = draw(st.sampled_from(SEEDS))
    for _ in range(draw(st.integers(1, 6))):
        start = draw(st.integers(0, len(data)))
        end = min(len(data), start + draw(st.integers(0, 40)))
        new = draw(st.sampled_from([*PIECES, data[start:end] * 2]) | st.binary(max_size=8))
        data = data[:start] + new + data[end:]
    return data


@pytest.mark.proof
@pytest.mark.slow
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    data=mutated()
    | st.binary(max_size=200)
    | st.text(max_size=200).map(lambda text: text.encode("utf-8", "replace"))
)
def test_no_rule_fails_on_any_bytes(data: bytes) -> None:
    """And each finding has a place in the script."""
    text = data.decode("utf-8", "surrogateescape")
    lines = text.split("\n")
    for profile in (NO_CLUSTER, CLUSTER):
        for finding in found(text, profile=profile, folder=Path("/nonexistent")):
            assert finding.rule in rules()
            assert 1 <= finding.place.line <= len(lines), finding
            assert 1 <= finding.place.column <= len(lines[finding.place.line - 1]) + 1, finding


HEAD = b"#!/bin/bash\n#SBATCH --time=01:00:00\n"
MIB = 1 << 20
HUGE = {
    "random bytes": random.Random(1).randbytes(4 * MIB),  # noqa: S311
    "NUL": HEAD + bytes(3 * MIB),
    "DOS": b"#!/bin/bash\r\n" + b"#SBATCH --nodes=1\r\n" * 50_000,
    "a long line": HEAD + b"echo " + b"a" * (3 * MIB),
    "words": HEAD + b"echo " + b"a " * MIB,
    "a long value": HEAD + b"#SBATCH --comment=" + b"a" * (3 * MIB),
    "directives": b"#!/bin/bash\n" + b"#SBATCH --nodes=1\n" * 100_000,
    "stray words": b"#!/bin/bash\n" + b"#SBATCH x y z\n" * 50_000,
    "unknown options": b"#!/bin/bash\n" + b"#SBATCH --foo=1\n" * 50_000,
    "late directives": b"#!/bin/bash\nls\n" + b"#SBATCH --nodes=1\n" * 50_000,
    "suppressions": HEAD + b"#SBATCH -t 24 # sbatchgen: disable=SB127\n" * 20_000,
    "comments": HEAD + b"# sbatchgen: disable=SB1\n" * 100_000,
    "joined lines": HEAD + b"# sbatchgen: disable=SB1\n" * 100 + b"a \\\n" * 100_000,
    "substitutions": HEAD + b"$(" * 100_000,
    "groups": HEAD + b"{ " * 50_000 + b"}; " * 50_000,
    "ifs": HEAD + b"if true; then\n" * 20_000,
    "quotes": HEAD + b"\"$(echo '" * 20_000,
    "heredocs": HEAD + b"cat <<A\n$x\nA\n" * 10_000,
    "commands": HEAD + b"srun python train.py --lr $LR &\n" * 10_000,
    "assignments": HEAD + b"".join(b"x%d=$x%d\n" % (number, number - 1) for number in range(20_000)),
    "names": HEAD + b"".join(b"some_name_%x=1\ncp $smoe_name_%x_y .\n" % (n * 7919, n * 7919) for n in range(10_000)),
    "loops": HEAD + b"if [ -f $I ]; then\nfor a in 1 2; do\nsrun python t.py $V\nexport V=$a\ndone\nfi\n" * 20_000,
    "functions": HEAD + b"".join(b"f%d() { local a=$1; srun ls $a $V; }\nV=1\n" % n for n in range(40_000)),
    "traps": HEAD + b"trap 'echo $x' USR1\n" * 10_000,
    "an array": HEAD + b"#SBATCH --array=" + b"0-1," * 100_000 + b"1\n",
    "hosts": HEAD + b"#SBATCH --nodelist=" + b"n[1-99999]," * 1000 + b"a\n#SBATCH -x n[1-9999999999]\n",
    "numbers": HEAD + b"#SBATCH --nodes=" + b"9" * 100_000 + b"\n#SBATCH --mem=" + b"9" * 5000 + b"G\n",
    "hashes": b"#!/bin/bash\n" + b"#" * MIB + b"SBATCH -t 1\n" + b"# \t" * 500_000 + b"SBATCH",
}  # fmt: skip
# A quarter of each is enough to see what takes time squared; with HUGE=whole in the environment, all of it.
PART = 1 if os.environ.get("HUGE") == "whole" else 4
SECONDS = 30 if PART == 1 else 10  # of CPU, on a machine with other work
MEMORY = 512 * MIB


def _limited() -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    resource.setrlimit(resource.RLIMIT_AS, (2 * MEMORY, 2 * MEMORY))


@pytest.mark.proof
@pytest.mark.slow
@pytest.mark.parametrize("name", HUGE)
def test_time_and_memory_are_bounded(name: str, tmp_path: Path) -> None:
    path = tmp_path / "job.slurm"
    path.write_bytes(HUGE[name][: len(HUGE[name]) // PART])
    call = [sys.executable, "-m", "sbatchgen", "lint", "--no-shellcheck", "--fail-on", "never", str(path)]
    with (tmp_path / "out").open("wb") as out:
        done = subprocess.run(call, preexec_fn=_limited, stdout=out, stderr=subprocess.PIPE, check=False)
    assert (done.returncode, done.stderr.decode().splitlines()[-1][:9]) == (0, "1 script:")


def test_a_file_of_512_mib_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "job.slurm"
    with path.open("wb") as file:
        file.truncate(512 * MIB)
    call = [sys.executable, "-m", "sbatchgen", "lint", "--no-shellcheck", str(path)]
    done = subprocess.run(call, preexec_fn=_limited, capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert "is larger than 4 MiB" in done.stderr
