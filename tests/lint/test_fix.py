"""`lint --fix` and `--diff`: what is mended, that nothing else is, and that files stay what they are."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from sbatchgen.base.errors import Problem
from sbatchgen.base.finding import Edit, Finding, Place
from sbatchgen.check.lint import fix
from tests.conftest import Command

SCRIPT = b"#!/bin/bash\n#SBATCH --nodes=1\n#SBATCH -t=01:00:00\n#SBATCH --job-name=\xff\xfe\necho '\xff \x1b[1m'\t\n"
MENDED = SCRIPT.replace(b"-t=01:00:00", b"--time=01:00:00")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (SCRIPT, MENDED),
        (SCRIPT[:-1], MENDED[:-1]),
        (SCRIPT.replace(b"\n", b"\r\n"), MENDED),
        (b"\xef\xbb\xbf" + SCRIPT, MENDED),
        (b"\xef\xbb\xbf" + SCRIPT.replace(b"\n", b"\r\n"), MENDED),
        (SCRIPT + b"x\ry\n", MENDED + b"x\ry\n"),
        (MENDED, MENDED),
    ],
    ids=["latin-1", "no last line feed", "dos", "mark", "mark and dos", "carriage return within", "sound"],
)
def test_only_what_a_rule_is_about_changes(command: Command, before: bytes, after: bytes) -> None:
    path = Path("job.slurm")
    path.write_bytes(before)
    first = command("lint", "--fix", "job.slurm", "--no-shellcheck")
    assert path.read_bytes() == after
    assert (first.out.startswith("--- a/job.slurm\n")) == (before != after)
    again = command("lint", "--fix", "job.slurm", "--no-shellcheck")
    assert path.read_bytes() == after
    assert "---" not in again.out


def test_only_findings_that_are_wanted_are_mended(command: Command) -> None:
    path = Path("job.slurm")
    path.write_bytes(SCRIPT)
    command("lint", "--fix", "job.slurm", "--no-shellcheck", "--disable", "SB111")
    assert path.read_bytes() == SCRIPT
    kept = SCRIPT.replace(b":00\n", b":00 # sbatchgen: disable=SB111\n")
    path.write_bytes(kept)
    command("lint", "--fix", "job.slurm", "--no-shellcheck")
    assert path.read_bytes() == kept


def test_a_diff_is_a_patch(folder: Path) -> None:
    """Byte for byte, also of what is not UTF-8 and where the last line has no end."""
    for name, data in (("a.slurm", SCRIPT.replace(b"\n", b"\r\n")), ("b.slurm", SCRIPT[:-1])):
        Path(name).write_bytes(data)
    call = [sys.executable, "-m", "sbatchgen", "lint", "--no-shellcheck", "--diff", "a.slurm", "b.slurm"]
    done = subprocess.run(call, capture_output=True, check=False, env=os.environ)
    assert done.returncode == 3
    assert Path("b.slurm").read_bytes() == SCRIPT[:-1]
    patch = done.stdout.partition(b"a.slurm:")[0]
    git = shutil.which("git")
    assert git
    subprocess.run([git, "apply", "-"], input=patch, check=True, capture_output=True)
    assert Path("a.slurm").read_bytes() == MENDED
    assert Path("b.slurm").read_bytes() == MENDED[:-1]


def test_files_keep_their_mode_and_links_stay_links(command: Command) -> None:
    target = Path("real.slurm")
    target.write_bytes(SCRIPT)
    target.chmod(0o750)
    Path("job.slurm").symlink_to(target)
    command("lint", "--fix", "job.slurm", "--no-shellcheck")
    assert Path("job.slurm").is_symlink()
    assert target.read_bytes() == MENDED
    assert stat.S_IMODE(target.stat().st_mode) == 0o750
    assert sorted(path.name for path in Path().iterdir()) == ["job.slurm", "real.slurm"]


def test_a_file_stays_as_it_is_on_a_full_disk(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    path = Path("job.slurm")
    path.write_bytes(SCRIPT)
    monkeypatch.setattr(os, "posix_fallocate", full)
    result = command("lint", "--fix", "job.slurm", "--no-shellcheck")
    assert result.status == 3
    assert "can't write job.slurm: No space left on device" in result.err
    assert path.read_bytes() == SCRIPT
    assert [path.name for path in Path().iterdir()] == ["job.slurm"]


def finding(*edits: Edit) -> Finding:
    return Finding("error", Problem("x"), place=Place("", 1, 1), edits=edits)


@pytest.mark.parametrize(
    ("findings", "after"),
    [
        ([finding(Edit(1, 1, 2, "X")), finding(Edit(1, 4, 5, "Z"))], b"XbcZef\nsecond"),
        ([finding(Edit(1, 1, 3, "X")), finding(Edit(1, 2, 4, "Y"))], b"Xcdef\nsecond"),
        ([finding(Edit(1, 1, 1, "X")), finding(Edit(1, 1, 1, "X"))], b"Xabcdef\nsecond"),
        ([finding(Edit(1, 1, 0, "")), finding(Edit(2, 3, 0, "!"))], b"\nse!"),
        ([finding(Edit(1, 2, 0, "\nq"))], b"a\nq\nsecond"),
        ([finding(Edit(9, 1, 0, "x"), Edit(1, 1, 2, "X"))], b"abcdef\nsecond"),
    ],
)
def test_edits(findings: list[Finding], after: bytes) -> None:
    assert fix.apply_edits(b"abcdef\nsecond", findings) == after


def test_fixes_that_undo_each_other_end() -> None:
    def flip(data: bytes) -> list[Finding]:
        return [finding(Edit(1, 1, 2, "b" if data == b"a" else "a"))]

    assert fix.apply_fixes(b"a", flip) in (b"a", b"b")
