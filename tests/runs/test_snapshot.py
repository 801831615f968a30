"""`submit --snapshot`: what is copied, how, and what is left of it."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import stat
import struct
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

import pytest

from sbatchgen.base import files
from sbatchgen.base.errors import DocumentError
from sbatchgen.jobs.runs import snapshot
from sbatchgen.jobs.runs.snapshot import Snapshot
from tests.conftest import Command, Result
from tests.slurm import fakes

ODD = ("a b.py", "line\nbreak.py", os.fsdecode(b"\xff.py"), " blank", "-dash")


def git(folder: Path, *arguments: str) -> None:
    who = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "protocol.file.allow=always")
    subprocess.run(["git", "-C", str(folder), *who, *arguments], check=True, capture_output=True)


def put(path: Path, text: str = "", mode: int = 0o644) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)
    return path


@pytest.fixture
def repository(folder: Path) -> Path:
    """A repository with one commit, and the folder of submission in it."""
    root = folder / "repo"
    put(root / "work/train.py", "print('first')\n")
    put(root / "run.sh", "#!/bin/sh\n", 0o755)
    git(folder, "init", "--quiet", str(root))
    git(root, "add", ".")
    git(root, "commit", "--quiet", "--message", "first")
    return root


def taken(root: Path, *named: str, inside: str = "work") -> Snapshot:
    (root.parent / "run").mkdir(exist_ok=True)
    code = snapshot.plan_snapshot(root / inside, root.parent / "run/code-1", named, None)
    code.copy()
    return code


def names(folder: Path) -> set[str]:
    """All files and links of a folder."""
    return {
        str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_symlink() or not path.is_dir()
    }


def test_what_git_knows_is_copied_as_it_is_in_the_working_tree(repository: Path) -> None:
    for name in ODD:
        put(repository / name, name if name.isprintable() else "")
    put(repository / "gone.py")
    git(repository, "add", ".")
    (repository / "gone.py").unlink()
    put(repository / "work/train.py", "print('changed')\n")
    put(repository / "work/untracked.py")
    copied = taken(repository)
    assert names(copied.copy_folder) == {*ODD, "work/train.py", "run.sh"}
    assert (copied.copied_work_dir / "train.py").read_text() == "print('changed')\n"
    assert (copied.code.files, copied.code.size, copied.code.dirty) == (
        7,
        sum(path.stat().st_size for path in copied.copy_folder.rglob("*") if path.is_file()),
        True,
    )
    assert copied.code.commit
    assert [path.name for path in copied.copy_folder.parent.iterdir()] == ["code-1"]


def test_files_and_folders_that_are_named_are_copied_too(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(repository / "configs/deep/a.yaml")
    put(repository / "configs/__pycache__/a.pyc")
    put(repository / "own.txt")
    monkeypatch.chdir(repository / "work")
    copied = taken(repository, "../configs", "../own.txt")
    assert names(copied.copy_folder) == {"work/train.py", "run.sh", "configs/deep/a.yaml", "own.txt"}
    put(repository.parent / "other.txt")
    for wrong, words in (("../../other.txt", "is not in"), ("nothing", "there is no nothing")):
        with pytest.raises(DocumentError, match=words):
            taken(repository, wrong)


@pytest.mark.parametrize(
    ("at", "named"), [(".", "."), ("work", ".."), (".", "..odd"), (".", "work/../..odd")]
)
def test_the_folder_of_the_repository_and_odd_names_are_copied_too(
    repository: Path, monkeypatch: pytest.MonkeyPatch, at: str, named: str
) -> None:
    put(repository / "..odd")
    monkeypatch.chdir(repository / at)
    assert names(taken(repository, named).copy_folder) == {"work/train.py", "run.sh", "..odd"}


@pytest.mark.parametrize(("umask", "plain", "program"), [(0o077, 0o600, 0o700), (0o027, 0o640, 0o750)])
def test_modes_are_those_of_the_files_and_no_wider_than_the_umask(
    repository: Path, umask: int, plain: int, program: int
) -> None:
    put(repository / "secret", "", 0o600)
    git(repository, "add", ".")
    package = put(repository.parent / "installed/training/__main__.py").parents[1]
    (repository.parent / "run").mkdir(mode=0o755)
    before = os.umask(umask)
    try:
        snapshot.plan_snapshot(repository / "work", repository.parent / "run/code-1", (), package).copy()
    finally:
        os.umask(before)
    place = repository.parent / "run/code-1"
    modes = {str(path.relative_to(place)): stat.S_IMODE(path.stat().st_mode) for path in place.rglob("*")}
    assert stat.S_IMODE(place.stat().st_mode) == 0o700  # a folder above the code may have been closed
    assert modes["run.sh"] == program
    assert modes["secret"] == 0o600
    assert modes["work/train.py"] == modes["work/.sbatchgen/code/training/__main__.py"] == plain
    assert modes["work"] == 0o777 & ~umask


def test_links_lead_to_the_copy_or_to_where_they_led(repository: Path) -> None:
    put(repository.parent / "data/x", "data")
    put(repository / "big/x", "untracked")
    links = {
        "inside": "work/train.py",
        "absolute": str(repository / "work"),
        "work/up": "../run.sh",
        "outside": "../data",
        "untracked": "big",
        "broken": "nowhere",
    }
    for name, target in links.items():
        (repository / name).symlink_to(target)
    git(repository, "add", *links)
    place = taken(repository).copy_folder
    assert (place / "inside").readlink() == Path("work/train.py")
    assert (place / "absolute").readlink() == Path("work")
    assert (place / "work/up").readlink() == Path("../run.sh")
    assert (place / "outside/x").read_text() == "data"
    assert (place / "untracked/x").read_text() == "untracked"
    assert not (place / "broken").exists()


def test_submodules_are_copied_and_other_repositories_are_told(repository: Path) -> None:
    library = repository.parent / "library"
    put(library / "lib.py")
    git(repository.parent, "init", "--quiet", str(library))
    git(library, "add", ".")
    git(library, "commit", "--quiet", "--message", "first")
    git(repository, "submodule", "--quiet", "add", str(library), "lib")
    assert names(taken(repository).copy_folder) == {"work/train.py", "run.sh", ".gitmodules", "lib/lib.py"}
    git(repository.parent, "clone", "--quiet", str(library), str(repository / "inner"))
    git(repository, "add", "inner")
    with pytest.raises(DocumentError, match="is a repository of its own"):
        taken(repository)


def test_what_changes_after_the_review_is_not_submitted(repository: Path) -> None:
    (repository.parent / "run").mkdir()
    code = snapshot.plan_snapshot(repository, repository.parent / "run/code-1", (), None)
    put(repository / "run.sh", "#!/bin/sh\nother\n")
    with pytest.raises(DocumentError, match="was changed after the review"):
        code.copy()
    assert list((repository.parent / "run").iterdir()) == []


@pytest.mark.parametrize(("deleted", "names"), [("run.sh", "run.sh"), ("work", "work/train.py")])
def test_what_is_deleted_after_the_review_is_named(repository: Path, deleted: str, names: str) -> None:
    (repository.parent / "run").mkdir()
    code = snapshot.plan_snapshot(repository, repository.parent / "run/code-1", (), None)
    (repository / deleted).rename(repository.parent / "gone")
    with pytest.raises(DocumentError) as raised:
        code.copy()
    (problem,) = raised.value.problems
    assert problem.what == f"{repository / names} was deleted after the review: nothing is submitted"
    assert problem.fix == "submit again"
    assert list((repository.parent / "run").iterdir()) == []


def test_a_folder_that_is_a_file_now_is_named(repository: Path) -> None:
    (repository.parent / "run").mkdir()
    code = snapshot.plan_snapshot(repository, repository.parent / "run/code-1", (), None)
    (repository / "work").rename(repository.parent / "gone")
    put(repository / "work")
    with pytest.raises(DocumentError, match=r"work/train\.py was deleted after the review"):
        code.copy()


def test_a_file_of_the_training_package_that_is_deleted_makes_no_room(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = repository.parent / "package"
    put(package / "training/a.py")
    (repository.parent / "run").mkdir()
    code = snapshot.plan_snapshot(repository, repository.parent / "run/code-1", (), package)
    below = snapshot._files_below
    monkeypatch.setattr(snapshot, "_files_below", lambda *places: [*below(*places), "training/gone.py"])
    with pytest.raises(DocumentError, match=r"training/gone\.py") as raised:
        code.copy()
    assert raised.value.problems[0].fix == "submit again"


def test_a_file_that_the_user_can_not_read_makes_no_room(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root can read each file, so the refusals are made here."""
    real, access = files.open_regular, os.access

    @contextlib.contextmanager
    def refusing(path: Path, flags: int = 0, *, at: int | None = None) -> Iterator[BinaryIO]:
        if path.name == "run.sh":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        with real(path, flags, at=at) as file:
            yield file

    monkeypatch.setattr(files, "open_regular", refusing)
    monkeypatch.setattr(os, "access", lambda path, mode: path != repository / "run.sh" and access(path, mode))
    with pytest.raises(DocumentError, match=r"can't read .*run\.sh: Permission denied") as raised:
        taken(repository)
    assert raised.value.problems[0].fix.startswith("make the file readable")


@pytest.mark.parametrize("exchanged", ["work", "work/train.py"])
def test_no_link_that_comes_after_the_review_is_followed(repository: Path, exchanged: str) -> None:
    """Whoever can write a folder of the code could else have the user copy files that they can't read."""
    private = repository.parent / "private"
    put(private / "train.py", (repository / "work/train.py").read_text())
    (repository.parent / "run").mkdir()
    code = snapshot.plan_snapshot(repository, repository.parent / "run/code-1", (), None)
    (repository / exchanged).rename(repository / "moved")
    (repository / exchanged).symlink_to(private if exchanged == "work" else private / "train.py")
    with pytest.raises(DocumentError, match="was changed after the review"):
        code.copy()
    assert list((repository.parent / "run").iterdir()) == []


def test_a_folder_that_is_exchanged_and_put_back_is_not_followed(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the opening of the file meets the link: each look before and after meets the folder."""
    private, real = put(repository.parent / "private/train.py", "secret").parent, files.open_regular

    @contextlib.contextmanager
    def exchanging(path: Path, flags: int = 0, *, at: int | None = None) -> Iterator[BinaryIO]:
        (repository / "work").rename(repository / "moved")
        (repository / "work").symlink_to(private)
        with real(path, flags, at=at) as file:
            (repository / "work").unlink()
            (repository / "moved").rename(repository / "work")
            yield file

    monkeypatch.setattr(files, "open_regular", exchanging)
    code = taken(repository)
    assert (code.copy_folder / "work/train.py").read_text() == "print('first')\n"


def test_a_file_that_is_none_is_told(repository: Path) -> None:
    (repository / "run.sh").unlink()
    os.mkfifo(repository / "run.sh")
    with pytest.raises(DocumentError, match="is neither a file nor a link"):
        taken(repository)


def test_too_much_is_told_with_the_largest_files(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(repository / "weights.bin", "x" * (2 << 20))
    git(repository, "add", ".")
    monkeypatch.setattr(snapshot, "MAX_BYTES", 1 << 20)
    with pytest.raises(DocumentError, match=r"the largest: weights.bin \(2 MiB\)"):
        taken(repository)
    monkeypatch.setattr(snapshot, "MAX_BYTES", 1 << 30)
    monkeypatch.setattr(snapshot, "MAX_FILES", 2)
    with pytest.raises(DocumentError, match="3 files of 2 MiB"):
        taken(repository)


Submit = Callable[..., Result]


@pytest.fixture
def submit(repository: Path, command: Command, monkeypatch: pytest.MonkeyPatch) -> Submit:
    """Submits a trainer from the repository to an sbatch that takes any job; `says` is its answer."""
    programs = repository.parent / "bin"
    put(programs / "squeue", "#!/bin/sh\n", 0o755)
    put(programs / "scontrol", "#!/bin/sh\n", 0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.chdir(repository / "work")

    def run(*arguments: str, says: str = "echo 4711") -> Result:
        put(programs / "sbatch", f"#!/bin/sh\n{says}\n", 0o755)
        return command("submit", "single", "--profile", "torchrun", "--yes", *arguments)

    return run


def test_the_review_says_what_the_job_runs(repository: Path, submit: Submit) -> None:
    plain = submit("--trainer", "train.py", "--dry-run")
    assert "\ncode        the files as they are when the job starts\n" in plain.err
    copied = submit("--trainer", "train.py", "--snapshot", "--dry-run")
    commit = subprocess.check_output(["git", "rev-parse", "HEAD"], text=True)[:12]
    assert f"\ncode        snapshot of commit {commit}: 2 files, 1 KiB\n" in copied.err
    put(repository / "keys/private", "secret")
    named = submit("--trainer", "train.py", "--snapshot", "--snapshot-file", "../keys", "--dry-run")
    assert f"\ncode        snapshot of commit {commit}: 3 files, 1 KiB, with ../keys\n" in named.err
    assert not (repository / "work/runs").exists()


def test_a_job_runs_its_snapshot_and_so_does_the_next_one(
    repository: Path, submit: Submit, command: Command
) -> None:
    assert submit("--trainer", "train.py", "--snapshot").out == "4711\n"
    run = repository / "work/runs/single"
    (place,) = run.glob("code-*")
    record = json.loads((run / "job-4711.json").read_text())
    assert record["code"]["snapshot"] == str(place)
    assert f'\nSNAPSHOT="{place}/work" # ' in (run / "job-4711.slurm").read_text()
    assert f"code      {place} at commit {record['code']['commit'][:12]}\n" in command("status", "single").out
    assert not (place / "work/.sbatchgen").exists()  # it starts nothing of the package
    put(repository / "work/train.py", "print('later')\n")
    (repository.parent / "bin/sbatch").write_text("#!/bin/sh\necho 4712\n")
    resumed = command("resume", "single", "--yes")
    assert "\ncode        snapshot of commit " in resumed.err
    assert [*run.glob("code-*")] == [place]
    assert f'\nSNAPSHOT="{place}/work" # ' in (run / "job-4712.slurm").read_text()
    (repository.parent / "bin/sbatch").write_text("#!/bin/sh\necho 4713\n")
    assert command("resume", "single", "--yes", "--snapshot").status == 0
    (new,) = {*run.glob("code-*")} - {place}
    assert f'\nSNAPSHOT="{new}/work" # ' in (run / "job-4713.slurm").read_text()
    assert (new / "work/train.py").read_text() == "print('later')\n"
    for path in sorted(new.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    new.rmdir()
    gone = command("resume", "single", "--yes")
    assert (gone.status, "there is no snapshot" in gone.err) == (3, True)


def test_options_still_count_from_the_folder_of_submission(command: Command) -> None:
    """Only the trainer and its arguments are the snapshot's."""
    own = ("--resume", "old/a.pt", "--run-dir", "r", "--data-dir", "d")
    job = ("single", "--profile", "torchrun", "--snapshot-dir", "/s", *own)
    lines = command("render", *job, "--runtime", "conda", "--conda-env", "./env").out.splitlines()
    assert 'SNAPSHOT="/s" # the copy of the code that `submit --snapshot` has made' in lines
    assert 'RUN_DIR="${SLURM_SUBMIT_DIR}/r"' in lines
    assert 'DATA_DIR="${SLURM_SUBMIT_DIR}/d"' in lines
    assert 'CODE_DIR="/s/.sbatchgen/code" # holds the package `training`' in lines
    assert 'conda_env="${SLURM_SUBMIT_DIR}/env"' in lines
    assert any('--resume "${SLURM_SUBMIT_DIR}/old/a.pt"' in line for line in lines)
    lines = command("render", *job, "--runtime", "apptainer", "--image", "i.sif").out.splitlines()
    assert 'IMAGE="${SLURM_SUBMIT_DIR}/i.sif"' in lines
    mounted = next(line for line in lines if "--bind" in line)
    assert '--bind "$PWD,$RUN_DIR,$DATA_DIR,$CODE_DIR,${SLURM_SUBMIT_DIR}/old"' in mounted


def test_the_training_package_is_part_of_the_snapshot(repository: Path, submit: Submit) -> None:
    assert submit("--snapshot").status == 0
    run = repository / "work/runs/single"
    (place,) = run.glob("code-*")
    assert (place / "work/.sbatchgen/code/training/__main__.py").is_file()
    script = (run / "job-4711.slurm").read_text()
    assert f'\nCODE_DIR="{place}/work/.sbatchgen/code" # holds' in script


def test_the_jobs_of_a_chain_run_one_snapshot(repository: Path, submit: Submit) -> None:
    says = (
        "[ -e $HOME/first ] && echo 'sbatch: error: Invalid qos' >&2 && exit 1; touch $HOME/first; echo 4711"
    )
    result = submit("--trainer", "train.py", "--snapshot", "--chain", "3", says=says)
    assert (result.status, result.out) == (5, "4711\n")  # the first one needs it
    assert len([*(repository / "work/runs/single").glob("code-*")]) == 1


@pytest.mark.parametrize(
    ("says", "left"),
    [
        ("echo 'sbatch: error: Batch job submission failed: Invalid qos' >&2; exit 1", 0),
        ("kill -KILL $$", 2),  # with its record: there may be a job
    ],
)
def test_nothing_is_left_of_a_job_that_is_refused(
    repository: Path, submit: Submit, monkeypatch: pytest.MonkeyPatch, says: str, left: int
) -> None:
    monkeypatch.setattr("sbatchgen.jobs.submit.attempt.SEARCH_S", 0.1)
    assert submit("--trainer", "train.py", "--snapshot", says=says).status == 5
    names_left = [
        path.name
        for path in (repository / "work/runs/single").iterdir()
        if path.name not in ("job.slurm", "submit.lock")
    ]
    assert len(names_left) == left


def test_a_trainer_that_is_not_in_the_snapshot_is_told(repository: Path, submit: Submit) -> None:
    put(repository / "work/new.py")
    refused = submit("--trainer", "new.py", "--snapshot")
    assert (refused.status, refused.out) == (3, "")
    assert "fix: git add new.py; or --snapshot-file new.py\n" in refused.err
    assert submit("--trainer", "new.py", "--snapshot-file", "new.py").status == 0
    refused = submit("--trainer", str(repository / "work/train.py"), "--snapshot")
    assert (refused.status, "fix: --trainer train.py\n" in refused.err) == (3, True)
    (repository / "linked").symlink_to("work")
    git(repository, "add", "linked")
    assert submit("--trainer", "../linked/train.py", "--snapshot", "--job-name", "b").status == 0


def test_where_there_is_nothing_to_copy_it_is_told(
    folder: Path, repository: Path, submit: Submit, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "site").mkdir()
    template = '{% extends "bundled:job.sh.j2" %}\n{% block paths %}\n{% endblock %}\n'
    put(folder / "site/templates/other.sh.j2", template)
    monkeypatch.setenv("SBATCHGEN_PATH", str(folder / "site"))
    other = submit("--trainer", "train.py", "--snapshot", "--template", "other.sh.j2")
    assert (other.status, "does not go to the snapshot" in other.err) == (3, True)
    local = command("submit", "single", "--yes", "--snapshot")
    assert (local.status, "--snapshot needs Slurm" in local.err) == (2, True)
    put(repository / "work/job.slurm", "#!/bin/bash\nhostname\n")
    script = command("submit", "job.slurm", "--yes", "--snapshot")
    assert (script.status, "can't run a snapshot" in script.err) == (2, True)
    monkeypatch.chdir(folder)
    none = submit("--snapshot")
    assert (none.status, f"git does not know {folder}" in none.err) == (3, True)


READS = """
import argparse, json, torch
parser = argparse.ArgumentParser()
parser.add_argument("--data", default="data")
parser.add_argument("--config")
parser.add_argument("--out", default="model.pt")
args = parser.parse_args()
torch.save(torch.load("extra/labels.pt"), args.out)
open("whole.txt")
"""


def test_what_the_trainer_reads_and_git_ignores_is_named_before_the_job_dies(
    repository: Path, submit: Submit, command: Command
) -> None:
    work = repository / "work"
    put(work / "train.py", READS)
    put(work / "whole.txt")
    put(repository / ".gitignore", "data\nextra\n*.pt\nmore\nruns\n")
    git(repository, "add", ".")
    (work / "empty").mkdir()
    words = ("--trainer", "train.py", "--snapshot", "--dry-run")
    assert "not in the snapshot" not in submit(*words).err  # there is no data here
    for name in ("data/train.pt", "extra/labels.pt", "more/a.bin", "model.pt", "runs/x/a"):
        put(work / name)
    shown = submit(*words).err
    assert "train.py names data, which git does not know: it is not in the snapshot" in shown
    assert "fix: --snapshot-file extra/labels.pt" in shown
    assert shown.count("not in the snapshot") == 2
    put(work / "config.yaml", "train: {files: more/a.bin, empty: empty}\n")
    shown = submit(*words, "--", "--config", "config.yaml", "--data=more").err
    assert "an argument names config.yaml" in shown
    assert "an argument names more, which" in shown
    named = ("--snapshot-file", "data", "--snapshot-file", "extra")
    copied = taken(repository, "data", "extra")
    assert {"work/data/train.pt", "work/extra/labels.pt"} <= names(copied.copy_folder)
    assert "not in the snapshot" not in submit(*words, *named).err
    assert "not in the snapshot" not in submit("--trainer", "train.py", "--dry-run").err


def test_a_file_that_the_snapshot_lacks_is_told_as_such(
    repository: Path, submit: Submit, command: Command
) -> None:
    put(repository / ".gitignore", "data\n")
    assert submit("--trainer", "train.py", "--snapshot").out == "4711\n"
    put(repository / "work/data/train.pt")
    run = repository / "work/runs/single"
    (key,) = [json.loads((run / "job-4711.json").read_text())["key"]]
    row = {
        "JobArrayID": "4711",
        "State": "FAILED",
        "exit_code": "256",
        "Command": f"/x/sbatchgen-{key}-x/job.slurm",
    }
    fakes.squeue(repository.parent / "bin", [row])
    text = 'Traceback (most recent call last):\n  File "train.py", line 1, in <module>\n'
    text += "FileNotFoundError: [Errno 2] No such file or directory: 'data/train.pt'\n"
    (run / "single-4711.out").write_text(text)
    shown = command("diagnose", "single").out
    assert "sbatchgen resume single --snapshot --snapshot-file data" in shown
    again = command("resume", "single", "--snapshot", "--snapshot-file", "data", "--dry-run")
    assert again.status in (0, None), again.err


def test_no_name_in_a_tampered_index_leads_outside(repository: Path, tmp_path: Path) -> None:
    """git prints the names in its index as they are; a copied repository may hold any."""
    (tmp_path / "deep/1/2").mkdir(parents=True)
    put(tmp_path / "deep/planted")
    put(tmp_path / "deep/1/2/behind")
    (repository / "link").symlink_to(tmp_path / "deep/1/2")
    for name, problem in (("link/../../planted", "outside"), ("/etc/passwd", "outside"), ("link/behind", "")):
        index(repository, name)
        if problem:
            with pytest.raises(DocumentError, match=problem):
                taken(repository, inside="")
        else:
            assert taken(repository, inside="").sources == {}


def index(repository: Path, name: str) -> None:
    """Give a repository an index with one name; source: gitformat-index(5)."""
    entry = struct.pack(">10I", *[0] * 6, 0o100644, *[0] * 3) + bytes(20)
    entry += struct.pack(">H", len(name)) + name.encode()
    entry += bytes(8 - len(entry) % 8)
    data = b"DIRC" + struct.pack(">2I", 2, 1) + entry
    (repository / ".git/index").write_bytes(data + hashlib.sha1(data).digest())  # noqa: S324 - git's
