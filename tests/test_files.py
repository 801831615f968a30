"""Files in folders of a group and on full disks: nothing is lost, and nothing goes where somebody has planted a link."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from sbatchgen.base import files
from sbatchgen.base.errors import DocumentError, file_problem, near_file
from sbatchgen.check.lint import fix
from sbatchgen.jobs.review import review
from sbatchgen.jobs.runs import record, submitted_scripts
from sbatchgen.jobs.runs.index import Index, index_file
from sbatchgen.jobs.runs.record import Record, records
from sbatchgen.jobs.submit import sbatch
from sbatchgen.jobs.submit.submission import Submission
from tests.conftest import Command

BAD = b"#!/bin/bash\n#SBATCH -t=01:00:00\nhostname\n"
MENDED = BAD.replace(b"-t=", b"--time=")
ANOTHER_USER = 54321
SLOW = """#!/bin/bash
sleep 0.0$((RANDOM % 10))
cat -- "${!#}" >"$RECORD/$$"
stat -c %a "$(dirname -- "${!#}")" >"$RECORD/mode"
echo "$$"
"""


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.fixture
def notes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder where an sbatch that takes its time leaves what it was given, by job ids."""
    for name in ("bin", "record"):
        (folder / name).mkdir()
    (folder / "bin/sbatch").write_text(SLOW)
    (folder / "bin/sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}/bin:{os.environ['PATH']}")
    monkeypatch.setenv("RECORD", str(folder / "record"))
    return folder / "record"


@pytest.mark.slow
def test_submissions_at_once_are_what_each_has_shown(notes: Path, folder: Path) -> None:
    def submit(number: int) -> tuple[str, bytes]:
        script = f"#!/bin/bash\n# {number}\n".encode() * 100
        submission = Submission(
            script=script, name="job.slurm", option_sources={}, log_folders=(), run_dir=folder / "runs", local=False,
            review=review.review_of_script(None), record=Record(shared=False, name="job", folder=str(folder)),
        )  # fmt: skip
        index = sbatch.open_index(os.environ, print)
        with sbatch.reserve_run_folder(submission, os.environ, print) as (ready, lock):
            done = sbatch.submit(
                ready, environment=os.environ, lock=lock, index=index, keep_env=True, note=print
            )
        return done.record.job, script

    with ThreadPoolExecutor(20) as threads:
        shown = dict(threads.map(submit, range(60)))
    assert len(shown) == 60
    index = Index(index_file(os.environ))
    assert sorted(job.id for job in index.jobs()) == sorted(shown)
    assert [run.folder for run in index.runs()] == [folder / "runs"]
    assert sorted(record.job for record in records(folder / "runs")) == sorted(shown)
    assert {job: (notes / job).read_bytes() for job in shown} == shown
    assert {job: (folder / f"runs/job-{job}.slurm").read_bytes() for job in shown} == shown
    kept = {f"job-{job}.{kind}" for job in shown for kind in ("slurm", "json")}
    assert names(folder / "runs") == {"job.slurm", "submit.lock", *kept}
    assert (folder / "runs/job.slurm").read_bytes() in shown.values()
    assert (notes / "mode").read_text() == "700\n"


def test_nothing_is_written_to_where_a_planted_link_leads(
    notes: Path, folder: Path, command: Command
) -> None:
    victim, run = folder / "victim", folder / "runs/ddp"
    victim.write_text("mine")
    run.mkdir(parents=True)
    (folder / "bin/sbatch").write_text("#!/bin/bash\necho 4711\n")
    for name in ("job.slurm", "job-4711.slurm"):
        for planted in (name, f".{name}-{os.getpid()}"):
            (run / planted).symlink_to(victim)
    assert command("submit", "ddp", "--profile", "torchrun", "--yes").status == 0
    assert victim.read_text() == "mine"
    assert (run / "job-4711.slurm").read_bytes() == (run / "job.slurm").read_bytes()
    assert not any((run / name).is_symlink() for name in ("job.slurm", "job-4711.slurm"))


def test_no_planted_log_is_written_into(
    folder: Path, monkeypatch: pytest.MonkeyPatch, command: Command
) -> None:
    victim, run = folder / "victim", folder / "runs/single"
    run.mkdir(parents=True)
    victim.write_text("mine")
    monkeypatch.setattr(time, "strftime", lambda *_: "20261121-213800")
    (run / "single-20261121-213800.out").symlink_to(victim)
    (folder / "train.py").write_text("print('trained')\n")
    assert command("submit", "single", "--trainer", "train.py", "--yes").out == "trained\n"
    assert victim.read_text() == "mine"
    assert (run / "single-20261121-213800-2.out").read_text() == "trained\n"
    assert (run / "job-20261121-213800-2.slurm").is_file()


def test_a_new_file_has_the_mode_of_one_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        files.put(tmp_path / "one", b"1")
        files.write(tmp_path / "two", b"2")
    finally:
        os.umask(before)
    assert [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("one", "two")] == [0o640, 0o640]
    assert names(tmp_path) == {"one", "two"}


@pytest.mark.parametrize(
    "arguments", [("lint", "--fix", "job.slurm"), ("render", "ddp", "--write", "job.slurm")]
)
def test_an_old_file_keeps_its_owner_mode_and_attributes(
    folder: Path, command: Command, arguments: tuple[str, ...]
) -> None:
    path, link = folder / "real.slurm", folder / "job.slurm"
    path.write_bytes(BAD)
    link.symlink_to("real.slurm")
    path.chmod(0o770)
    os.link(path, folder / "same.slurm")
    with suppress(OSError):  # a file system without
        os.setxattr(path, "user.note", b"mine")
        os.setxattr(path, "system.posix_acl_access", acl_of(ANOTHER_USER))
    if os.getuid() == 0:
        os.chown(path, ANOTHER_USER, ANOTHER_USER + 1)
        path.chmod(0o6770)
    os.utime(path, (1, 1))
    before = path.stat()
    attributes = {name: os.getxattr(path, name) for name in os.listxattr(path)}
    command(*arguments)
    after = path.stat()
    assert path.read_bytes() != BAD
    assert link.is_symlink()
    for name in ("st_ino", "st_mode", "st_uid", "st_gid"):
        assert getattr(after, name) == getattr(before, name), name
    assert {name: os.getxattr(path, name) for name in os.listxattr(path)} == attributes
    assert after.st_mtime > 1
    assert (folder / "same.slurm").read_bytes() == path.read_bytes()
    assert names(folder) == {"real.slurm", "same.slurm", "job.slurm"}


def acl_of(user: int) -> bytes:
    """An access list of acl(5) in which one user may do everything; as the kernel has it, see linux/posix_acl_xattr.h."""
    nobody = 0xFFFFFFFF
    entries = ((1, 7, nobody), (2, 7, user), (4, 7, nobody), (0x10, 7, nobody), (0x20, 0, nobody))
    whole = [
        number.to_bytes(size, "little")
        for entry in entries
        for number, size in zip(entry, (2, 2, 4), strict=True)
    ]
    return b"".join([(2).to_bytes(4, "little"), *whole])


@pytest.mark.parametrize(
    "arguments", [("lint", "--fix", "job.slurm"), ("render", "ddp", "--write", "job.slurm")]
)
def test_a_read_only_file_stays_as_it_is(folder: Path, command: Command, arguments: tuple[str, ...]) -> None:
    path = folder / "job.slurm"
    path.write_bytes(BAD)
    path.chmod(0o444)
    result = command(*arguments)
    assert result.status == 3
    assert "job.slurm is read-only\n  fix: chmod u+w job.slurm\n" in result.err
    assert path.read_bytes() == BAD
    assert names(folder) == {"job.slurm"}


def rewritten(path: Path) -> None:
    path.write_bytes(BAD + b"# an edit\n")


def same_size(path: Path) -> None:
    before = path.stat()
    path.write_bytes(BAD.replace(b"hostname", b"HOSTNAME"))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def removed(path: Path) -> None:
    path.unlink()
    path.with_name("other").write_bytes(b"")
    path.symlink_to("other")


@pytest.mark.parametrize("edit", [rewritten, same_size, removed])
def test_an_edit_made_meanwhile_is_not_lost(
    folder: Path, command: Command, monkeypatch: pytest.MonkeyPatch, edit: Callable[[Path], None]
) -> None:
    path, mended = folder / "job.slurm", fix.apply_fixes

    def slow(*arguments: object) -> bytes:
        edit(path)
        return mended(*arguments)  # type: ignore[arg-type]

    path.write_bytes(BAD)
    monkeypatch.setattr(fix, "apply_fixes", slow)
    result = command("lint", "--fix", "job.slurm")
    kept = path.read_bytes()
    assert result.status == 3
    assert "job.slurm has changed since it was read: nothing was written" in result.err
    path.write_bytes(BAD)
    edit(path)
    assert path.read_bytes() == kept


def on_full_disk(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A command where the folder `disk` is a disk with an old script, and with no room for another one."""
    (folder / "disk").mkdir()
    (folder / "sbatch").write_text("#!/bin/bash\ntouch submitted\necho 4711\n")
    (folder / "sbatch").chmod(0o755)
    (folder / "old").write_bytes(BAD.ljust(4096, b"#"))  # a whole page: a longer one needs another
    lines = (
        "set -e; mount -t tmpfs -o size=16k none disk; cp old disk/job.slurm",
        "! dd if=/dev/zero of=disk/filler bs=4096 2>dd.err",
        'set +e; "$@"; echo "status $?"; cmp old disk/job.slurm && ls -A disk',
    )
    unshare = ["unshare", "--mount", *(["--map-root-user"] if os.getuid() else [])]
    call = [*unshare, "bash", "-c", "\n".join(lines), "bash", sys.executable, "-m", "sbatchgen", *arguments]
    env = os.environ | {"PATH": f"{folder}:{os.environ['PATH']}"}
    return subprocess.run(call, cwd=folder, env=env, capture_output=True, text=True, check=False)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("arguments", "file"),
    [
        (("render", "ddp", "--profile", "local", "--write", "disk/new.slurm"), "disk/new.slurm"),
        (("lint", "--fix", "disk/job.slurm"), "disk/job.slurm"),
        (("submit", "ddp", "--profile", "torchrun", "--yes", "--run-dir", "disk"), "disk/job.slurm"),
    ],
)
def test_a_full_disk_costs_no_script(folder: Path, arguments: tuple[str, ...], file: str) -> None:
    done = on_full_disk(folder, *arguments)
    assert "status 3\nfiller\njob.slurm\n" in done.stdout, done
    assert f"{file}: No space left on device" in done.stderr
    assert "make room there" in done.stderr
    assert not (folder / "submitted").exists()


def test_pipes_and_devices_are_written_to_and_stay(folder: Path, command: Command) -> None:
    expected = command("render", "ddp").out
    (folder / "device").symlink_to("/dev/null")
    assert command("render", "ddp", "--write", "device").status == 0
    assert (folder / "device").is_char_device()
    os.mkfifo(folder / "pipe")
    result = command("render", "ddp", "--write", "pipe")  # that has no reader
    assert (result.status, "can't write pipe: " in result.err) == (3, True)
    with ThreadPoolExecutor(1) as threads:
        reading = threads.submit((folder / "pipe").read_text)
        while command("render", "ddp", "--write", "pipe").status:
            time.sleep(0.05)
        assert reading.result(600) == expected
    assert (folder / "pipe").is_fifo()


def test_a_link_that_leads_nowhere_is_followed(folder: Path, command: Command) -> None:
    (folder / "job.slurm").symlink_to("new.slurm")
    assert command("render", "ddp", "--write", "job.slurm").status == 0
    assert (folder / "job.slurm").is_symlink()
    assert (folder / "new.slurm").is_file()
    (folder / "circle").symlink_to("circle")
    assert command("render", "ddp", "--write", "circle").status == 3


def test_what_is_kept_is_read_only_where_it_is_a_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "job-9.slurm")
    (tmp_path / "job-8.slurm").symlink_to("nothing")
    (tmp_path / "job-7.slurm").symlink_to("/dev/zero")
    submitted_scripts.keep_script(tmp_path, "3", b"#!/bin/bash\n")
    for job in "3789":
        about = Record(shared=False, name="x", job=job, submitted=float(job), folder="/")
        record.write_accepted(tmp_path, about)
    last = submitted_scripts.newest_script(tmp_path)
    assert last is not None
    assert (last.job, last.script) == ("3", "#!/bin/bash\n")


def test_reading_waits_for_nobody(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").write_bytes(b"1234")
    assert files.read_start(tmp_path / "file", 2) == b"12"
    for path in (tmp_path / "pipe", tmp_path, Path("/dev/zero")):
        with pytest.raises(OSError, match="not a regular file"):
            files.read_file(path, 2)
    shutil.rmtree(tmp_path)
    with pytest.raises(FileNotFoundError):
        files.read_file(tmp_path / "file", 2)


@pytest.mark.parametrize("read", [files.read_file, files.read_own])
def test_a_part_of_a_file_never_passes_for_the_whole(
    tmp_path: Path, read: Callable[[Path, int], bytes]
) -> None:
    (tmp_path / "file").write_bytes(bytes(3 << 10))
    assert len(read(tmp_path / "file", 3 << 10)) == 3 << 10
    with pytest.raises(OSError, match="the file is larger than 2 KiB"):
        read(tmp_path / "file", 2 << 10)


def test_a_folder_that_can_not_be_made_names_the_one_that_forbids_it(tmp_path: Path) -> None:
    problem = file_problem(PermissionError(errno.EACCES, "Permission denied", f"{tmp_path}/new/runs"))
    assert problem
    assert problem.fix == f"see who may use it: ls -ld {tmp_path}"


@pytest.mark.parametrize("below", ["", "data/", "{root}/", "{root}/data/"])
def test_a_file_that_is_missing_has_a_neighbour_with_the_same_folder(folder: Path, below: str) -> None:
    (folder / "data").mkdir()
    below = below.format(root=folder)
    Path(f"{below}old.slurm").write_text("")
    assert near_file(f"{below}odl.slurm") == f"did you mean '{below}old.slurm'?"


def test_what_a_killed_process_left_beside_a_file_is_removed_a_day_later(tmp_path: Path) -> None:
    old, new, other = (tmp_path / f".sbatchgen-{letter * 16}" for letter in ("a", "b", "x"))
    for each in (old, new, other):
        each.write_text("half")
    for each in (old, other):
        os.utime(each, (0, 0))
    files.put(tmp_path / "file", b"whole")
    assert {each.name for each in tmp_path.iterdir()} == {"file", new.name, other.name}


@pytest.mark.parametrize("before", ["file", "pipe", "nothing"])
@pytest.mark.parametrize("leads_to", ["precious", "new"])
def test_a_link_that_comes_meanwhile_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str, leads_to: str
) -> None:
    path, real = tmp_path / "job.slurm", files._end_of_links
    (tmp_path / "precious").write_text("mine")
    if before != "nothing":
        path.write_text("mine") if before == "file" else os.mkfifo(path)

    def exchanged(place: Path) -> Path:
        last = real(place)
        path.unlink(missing_ok=True)
        path.symlink_to(tmp_path / leads_to)
        return last

    monkeypatch.setattr(files, "_end_of_links", exchanged)
    with pytest.raises(DocumentError, match="can't write"):
        files.write(path, b"theirs")
    assert (tmp_path / "precious").read_text() == "mine"
    assert not (tmp_path / "new").exists()


def test_a_file_in_place_of_a_pipe_is_not_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(OSError, match="replaced meanwhile"):
        files._write_through(tmp_path / "file", b"theirs", os.O_NOFOLLOW)
    assert (tmp_path / "file").read_text() == "mine"


def test_a_link_of_another_user_is_not_written_through(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "bashrc")
    files.write(tmp_path / "link", b"mine")
    os.lchown(tmp_path / "link", 20011, 20011)
    with pytest.raises(DocumentError, match="a link that another user has made"):
        files.write(tmp_path / "link", b"theirs")
    (tmp_path / "own").symlink_to("link")
    with pytest.raises(DocumentError, match="link is a link that another user has made"):
        files.write(tmp_path / "own", b"theirs")
    assert (tmp_path / "bashrc").read_bytes() == b"mine"
