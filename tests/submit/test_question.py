"""The question on a terminal: a review that fits it, the number of warnings and the cost, and what is answered."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from dataclasses import replace
from pathlib import Path

import pytest

from sbatchgen.base.errors import Problem
from sbatchgen.base.finding import Finding
from sbatchgen.cli.jobs import request_of
from sbatchgen.jobs.modes import MODES
from sbatchgen.jobs.review.brief import brief, question
from sbatchgen.jobs.review.review import Review
from sbatchgen.jobs.submit.rendered import submission_of_job
from tests.conftest import Command
from tests.scripts import PROFILES

LINES, COLUMNS = 24, 80
JOB = ("submit", "ddp", "--profile", "torchrun", "--nproc-per-node", "4", "--time", "04:00:00")


@pytest.fixture
def sbatch(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The script that an sbatch gets which only prints an id."""
    program = folder / "bin/sbatch"
    program.parent.mkdir()
    program.write_text(f'#!/bin/bash\ncat -- "${{!#}}" >{folder}/submitted\necho 4711\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    return folder / "submitted"


def on_terminal(answers: str, *words: str) -> tuple[int, list[str]]:
    """Exit status and lines of a command on a terminal of 24 lines, whose user types answers."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    command = [sys.executable, "-m", "sbatchgen", *words]
    with subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
    ) as process:
        os.close(theirs)
        os.write(ours, answers.encode())
        said = b""
        with contextlib.suppress(OSError):  # no process has the terminal any more
            while piece := os.read(ours, 4096):
                said += piece
        status = process.wait()
    os.close(ours)
    return status, said.decode().replace("\r", "").splitlines()[answers.count("\n") :]


def test_a_review_with_its_question_fits_a_terminal(sbatch: Path) -> None:
    status, lines = on_terminal("n\n", *JOB)
    assert (status, sbatch.exists()) == (130, False)
    assert re.fullmatch(r"Submit ddp on 2 nodes, 64 GPU-hours, \d warnings\? \[y/N/v\] ", lines[-1])
    assert len(lines) <= LINES
    assert max(map(len, lines)) <= COLUMNS
    assert "  warning SB014: 4 processes on a node with 8 GPUs: the other GPUs stay idle" in lines
    assert "    fix: set --nproc-per-node 8" in lines
    assert re.search(r"(?m)^v shows more: \d+ lines of script, 3 values not typed by you$", "\n".join(lines))
    assert not any(line.startswith("#!") for line in lines)


def test_v_shows_the_whole_review_and_asks_again(sbatch: Path) -> None:
    status, lines = on_terminal("v\ny\n", *JOB)
    assert (status, sum(line.startswith("Submit ddp") for line in lines)) == (0, 2)
    count = re.search(r"(?m)^v shows more: (\d+) lines of script", "\n".join(lines))
    assert count
    *script, rest = lines[lines.index("#!/bin/bash") :][: int(count[1])]
    submitted = sbatch.read_text().splitlines()
    assert submitted[: len(script)] == script
    assert rest.startswith(
        f"and {len(submitted) - len(script)} lines that are the same in every job of this kind"
    )
    assert any(line.endswith("4711") for line in lines)


def test_another_answer_says_what_can_be_answered(sbatch: Path) -> None:
    status, lines = on_terminal("perhaps\nYES\n", *JOB)
    assert status == 0
    assert any("note: y submits, n does not, v shows the whole review" in line for line in lines)
    assert sbatch.exists()


def test_no_answer_is_no(sbatch: Path) -> None:
    assert on_terminal("\n", *JOB)[0] == 130
    assert not sbatch.exists()


def test_errors_are_shown_without_a_question(sbatch: Path) -> None:
    status, lines = on_terminal("", *JOB, "--ntasks", "2")
    assert status == 3
    assert len(lines) <= LINES
    assert "    at:  --ntasks" in lines
    assert not any(line.startswith(("Submit", "v shows")) for line in lines)


@pytest.mark.usefixtures("sbatch")
def test_a_run_folder_that_can_t_be_made_is_an_error_of_the_review(folder: Path, command: Command) -> None:
    (folder / "runs").write_text("")
    (folder / "train.py").write_text("")
    refused = command("review", "cpu", "--profile", "msu", "--trainer", "train.py", "--run-dir", "runs/cpu")
    what = f"error: can't make the run folder {folder}/runs/cpu: {folder}/runs is a file\n"
    assert (refused.status, what in refused.err + refused.out) == (3, True), refused.err


def reviewed(profile: str, mode: str, folder: Path) -> Review:
    return submission_of_job(
        request_of(mode, (), {"profile": profile}), os.environ, folder, review_only=True
    ).review


@pytest.mark.sampled(4)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("profile", PROFILES)
def test_every_job_fits_with_however_many_findings(folder: Path, profile: str, mode: str) -> None:
    review = reviewed(profile, mode, folder)
    for count in (0, 1, 5, 100):
        many = (Finding("info", Problem("x" * 200, fix="y z " * 60)),) * count
        shown = replace(review, findings=(*review.findings, *many))
        for width, height in ((80, 24), (40, 24), (200, 50)):
            lines = brief([shown], width=width, height=height).splitlines()
            assert len(lines) <= height - 1, lines
            assert max(map(len, lines)) <= width
        if count == 100:
            assert any(line.endswith(" findings") for line in lines)


def test_the_most_severe_findings_are_shown_first(folder: Path) -> None:
    findings = [Finding("info", Problem(f"note {number}")) for number in range(50)]
    findings += [Finding("warning", Problem("beware"))]
    shown = brief([replace(reviewed("msu", "ddp", folder), findings=tuple(findings))], width=80, height=24)
    assert shown.index("warning: beware") < shown.index("info: note 0")
    assert "note 49" not in shown


def test_the_question_names_warnings_and_cost(folder: Path) -> None:
    review = reviewed("msu", "cpu", folder)
    assert question([replace(review, findings=())], "cpu") == "Submit cpu, no warnings?"
    several = replace(review, findings=(Finding("warning", Problem("x")), Finding("info", Problem("y"))))
    assert question([several, several], "a; b") == "Submit a; b, 2 warnings?"


@pytest.mark.usefixtures("folder")
def test_a_terminal_shows_what_a_script_hides_and_a_pipe_gets_its_bytes() -> None:
    hidden = "a\u202e\u2066b\x1b[2J"
    words = ("render", "cpu", "--profile", "local", "--trainer", "t.py", "--", hidden)
    status, lines = on_terminal("", *words)
    assert status == 0
    assert "a\\u202e\\u2066b\\x1b[2J" in "\n".join(lines)
    assert all(line.isprintable() for line in lines)
    piped = subprocess.check_output([sys.executable, "-m", "sbatchgen", *words], stderr=subprocess.DEVNULL)
    assert "a\u202e\u2066b\\x1b[2J" in piped.decode()
