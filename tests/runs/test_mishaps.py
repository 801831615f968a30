"""What may happen to runs: hostile words in their folders, and folders that are gone, full or somebody else's."""

from __future__ import annotations

import json
import os
import pty
import stat
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from sbatchgen.jobs.runs import record
from sbatchgen.jobs.runs.index import Index, index_file
from sbatchgen.jobs.runs.record import Code, Process, Record, ResolvedValue
from tests.conftest import Command
from tests.slurm import fakes

EVIL = "a|b\x1b[2J\x9b2J\r\n\tc\u202e[/red]%n'\"; touch pwned"
BYTES = EVIL + "\udcff"  # not UTF-8
VERBS = (
    ("status",),
    ("status", "--all", "--format", "json"),
    ("status", "evil"),
    ("logs", "evil"),
    ("cancel", "evil"),
    ("exec", "evil", "--", "true"),
    ("resume", "evil", "--yes"),
)


@pytest.fixture
def programs(programs: Path) -> Path:
    """None of them cancels a job."""
    fakes.failing(programs, "scancel", "no such job")
    return programs


def evil(run_dir: Path, **change: object) -> Record:
    """A record that somebody has put into a run folder."""
    made = Record(
        key="c0ffee", run="evil", shared=False, name=EVIL, job="4711", cluster=EVIL, submitted=1.0, folder=BYTES,
        command=(EVIL, BYTES, EVIL), script=BYTES, log=f"{run_dir}/{BYTES}-%j.out", array=BYTES, profile=EVIL,
        values=(ResolvedValue(name=EVIL, value=EVIL, by=EVIL, at=EVIL),),
        code=Code(folder=EVIL, commit=EVIL, snapshot=EVIL), process=Process(pid=1, born=1, host=EVIL, boot=EVIL),
    )  # fmt: skip
    return replace(made, **change)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"job": EVIL},
        {"job": "../../../etc/passwd"},
        {"job": "--user=root"},
        {"job": "20261122-091944", "process": Process(pid=0, born=0, host=os.uname().nodename, boot="")},
        {"job": "", "command": ()},
    ],
)
def test_hostile_records_break_nothing(
    folder: Path, programs: Path, command: Command, change: dict[str, object]
) -> None:
    run_dir = folder / "evil"
    run_dir.mkdir()
    made = evil(run_dir, **change)
    (run_dir / "job-1.json").write_text(
        json.dumps({"format": 1, **asdict(made)})  # not through `keep`, which trusts the job
    )
    (run_dir / "status.json").write_text(json.dumps({"state": "failed", "reason": EVIL, "checkpoint": EVIL}))
    assert command("status", "--scan", ".").status == 0
    for verb in VERBS:
        done = command(*verb)
        said = done.out + done.err
        assert done.status in (0, 2, 3, 5), (verb, said)
        assert not {"\x1b", "\x9b", "\r", "\u202e"} & {*said}, verb
        if "json" in verb:
            assert len(json.loads(done.out)["runs"]) == 1
    assert len(command("status").out.splitlines()) in (0, 2)
    assert not (folder / "pwned").exists()


def test_points_that_are_none_keep_nobody_from_a_run(folder: Path, programs: Path, command: Command) -> None:
    (programs / "scancel").write_text('#!/bin/sh\necho "$@" >cancelled\n')
    fakes.squeue(programs, [{"JobArrayID": "4711", "State": "RUNNING"}])
    (folder / "points.csv").write_bytes(f"lr\n{EVIL}".encode() + b"\xff\n")
    index = Index(index_file(os.environ))
    index.begin("c0ffee", folder, "evil", shared=False)
    index.accept("c0ffee", "4711")
    shown = command("status", "evil")
    assert (shown.status, "not UTF-8" in shown.err) == (0, True)
    assert "running" in shown.out
    assert command("cancel", "--yes", "evil").status == 0
    assert (folder / "cancelled").read_text() == "4711\n"


@pytest.mark.parametrize("name", ["run", "key", "cluster"])
def test_a_record_whose_names_are_not_utf8_is_none(folder: Path, name: str) -> None:
    text = json.dumps({"format": 1, **asdict(evil(folder, **{name: BYTES}))})
    (folder / "job-1.json").write_text(text)
    assert record.records(folder) == []


@pytest.mark.parametrize("submitted", ["1e400", "NaN", "-1", "1e18", "9" * 400, "true", '"x"'])
def test_times_that_no_clock_shows_are_no_records(folder: Path, submitted: str) -> None:
    text = json.dumps({"format": 1, **asdict(evil(folder))})
    file = folder / "job-1.json"
    file.write_text(text)
    assert record.read_record(folder, "1")
    file.write_text(text.replace('"submitted": 1.0', f'"submitted": {submitted}'))
    assert record.read_record(folder, "1") is None


def on_terminal(*arguments: str) -> bytes:
    """What a command writes to a terminal."""
    ours, theirs = pty.openpty()
    attributes = termios.tcgetattr(theirs)
    attributes[1] &= ~termios.OPOST  # as it is written
    termios.tcsetattr(theirs, termios.TCSANOW, attributes)
    call = [sys.executable, "-m", "sbatchgen", *arguments]
    process = subprocess.Popen(call, stdout=theirs, stderr=theirs, env=os.environ | {"TERM": "xterm"})
    os.close(theirs)
    read = b""
    while True:
        try:
            data = os.read(ours, 65536)
        except OSError:  # Linux: the other end is closed
            break
        if not data:
            break
        read += data
    os.close(ours)
    process.wait()
    return read


LOG = b"\x1b[31mred\x1b[0m 50%\rdone\n\x1b[2J\x1b]0;title\x07\x9b2J \xff\xfe | \xe2\x80\xae end\n"


def test_the_bytes_of_a_log_do_not_reach_a_terminal(folder: Path, programs: Path, command: Command) -> None:
    """Colours and progress bars do; a program that reads the log gets its bytes."""
    (folder / "own.out").write_bytes(LOG)
    index = Index(index_file(os.environ))
    index.begin("c0ffee", folder, "red", shared=False)
    index.accept("c0ffee", "4711")
    record.write_accepted(
        folder,
        Record(
            key="c0ffee",
            run="red",
            shared=False,
            name="x",
            job="4711",
            folder="/",
            log=f"{folder}/own.out",
        ),
    )
    events = [{"event": "epoch", "time": 1.0, "epoch": 1, "loss": 0.5, "says": EVIL}]
    (folder / "events.jsonl").write_text("".join(f"{json.dumps(event)}\n" for event in events))
    (folder / "status.json").write_text(json.dumps({"state": "running", "step": 5, "reason": EVIL}))
    assert os.fsencode(command("logs", "red").out) == LOG
    for words in (("logs", "red"), ("logs", "red", "--follow")):
        shown = on_terminal(*words)
        assert b"Traceback" not in shown
        assert b"\x1b[31mred\x1b[0m 50%\rdone\n" in shown
        assert b"\\x1b[2J\\x1b]0;title\\x07\xef\xbf\xbd2J \xef\xbf\xbd\xef\xbf\xbd | \\u202e end\n" in shown


def test_a_log_that_grows_may_be_cut_anywhere(folder: Path, programs: Path, command: Command) -> None:
    from sbatchgen.cli import output

    assert output._HARMLESS.split("\x1b[2J")[0] == "\x1b[2J"
    for cut in range(len(LOG)):
        parts = (LOG[:cut], LOG[cut:])
        shown = "".join(output.escape_controls(part) for part in parts)
        rest = shown.replace("\x1b[31m", "").replace("\x1b[0m", "")
        assert "\x1b" not in rest, cut


TRAINER = "import pathlib, time\nprint('began', flush=True)\nwhile not pathlib.Path('end').exists(): time.sleep(0.05)\n"


def wait(condition: Callable[[], object], what: str) -> None:
    late = time.monotonic() + 600
    while not condition():
        assert time.monotonic() < late, what
        time.sleep(0.05)


def gone(path: Path) -> None:
    path.rename(path.with_name("moved"))


def unreadable(path: Path) -> None:
    (path / next(path.glob("job-*.json")).name).write_bytes(b"{")


@pytest.mark.sampled(2)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("mishap", "says"),
    [(gone, "ended: its run folder is gone"), (unreadable, "submitted: its record can't be read")],
)
def test_a_run_without_slurm_is_not_called_dead_for_its_folder(
    folder: Path, command: Command, mishap: Callable[[Path], None], says: str
) -> None:
    (folder / "train.py").write_text(TRAINER)
    call = [sys.executable, "-m", "sbatchgen", "submit", "cpu", "--profile", "local"]
    call += ["--yes", "--trainer", "train.py"]
    with subprocess.Popen(call, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as started:
        assert started.stdout
        assert "began\n" in iter(started.stdout.readline, "")
        (kept,) = (folder / "runs/cpu").glob("job-*.json")
        whole = kept.read_bytes()
        mishap(folder / "runs/cpu")
        assert says in command("status").out
        cancelled = command("cancel", "--yes", "cpu")
        assert "cancelled" not in cancelled.err
        if mishap is gone:
            for verb in (("logs", "cpu"), ("resume", "cpu", "--yes")):
                refused = command(*verb)
                assert refused.status == 3
                assert f"the folder of run cpu is gone: {folder}/runs/cpu\n" in refused.err
                assert "fix: if it was moved, add it again: --scan of sbatchgen status" in refused.err
            shown = command("status", "--scan", "runs").out
        else:
            assert (cancelled.status, "is not known" in cancelled.err) == (3, True)
            kept.write_bytes(whole)
            shown = command("status").out
        assert "running" in shown
        (folder / "end").touch()
        assert started.wait() == (1 if mishap is gone else 0)  # there was no place for the trainer's own


def test_a_run_on_another_machine_is_not_cancelled_from_here(folder: Path, command: Command) -> None:
    process = Process(pid=os.getpid(), born=1, host="elsewhere", boot="x")
    made = Record(
        key="a", run="far", shared=False, name="far", job="20261122-091944", folder="/", process=process
    )
    record.write_accepted(folder, replace(made, submitted=1.0))
    assert command("status", "--scan", ".").status == 0
    refused = command("cancel", "--yes", "far")
    assert (refused.status, "run far is on elsewhere, not here" in refused.err) == (3, True)


ON_FULL_DISK = """set -e
mount -t tmpfs -o size=200k none disk
mkdir -p disk/state/sbatchgen
export XDG_STATE_HOME=$PWD/disk/state
! dd if=/dev/zero of=disk/filler bs=512 2>/dev/null
"$@"; echo "status $?"
rm -f disk/filler
"$1" -m sbatchgen status --format json --scan runs
"""


@pytest.mark.slow
def test_an_index_on_a_full_disk_costs_no_job(folder: Path, programs: Path) -> None:
    (folder / "disk").mkdir()
    (programs / "sbatch").write_text("#!/bin/bash\necho $$\n")
    (programs / "sbatch").chmod(0o755)
    unshare = ["unshare", "--mount", *(["--map-root-user"] if os.getuid() else [])]
    submit = [sys.executable, "-m", "sbatchgen", "submit", "cpu", "--profile", "torchrun", "--yes"]
    call = [*unshare, "bash", "-c", ON_FULL_DISK, "bash", *submit]
    done = subprocess.run(call, cwd=folder, capture_output=True, text=True, check=False)
    job, status, said = done.stdout.split("\n", 2)
    assert (job.isdecimal(), status) == (True, "status 0"), done
    assert "runs.jsonl can't be used: No space left on device\n" in done.stderr
    assert (
        f"note: to enter the run into the index: sbatchgen status --scan {folder}/runs/cpu\n" in done.stderr
    )
    assert [listed["id"] for run in json.loads(said)["runs"] for listed in run["jobs"]] == [job]


# Root may do anything, unless it gives that up.
BOUND = [] if os.getuid() else ["setpriv", "--bounding-set=-all", "--inh-caps=-all"]
ANOTHER_USER = 54321


@pytest.mark.sampled(3)
@pytest.mark.slow
@pytest.mark.skipif(os.getuid() != 0, reason="left out: files of two users: needs root")
@pytest.mark.parametrize("whose", ["mine, read-only", "another user's", "another user's, closed"])
def test_a_folder_that_can_not_be_written_is_told(folder: Path, programs: Path, whose: str) -> None:
    (programs / "sbatch").write_text("#!/bin/bash\ntouch submitted\necho 4711\n")
    (programs / "sbatch").chmod(0o755)

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        call = [*BOUND, sys.executable, "-m", "sbatchgen", *arguments]
        return subprocess.run(call, cwd=folder, capture_output=True, text=True, check=False)

    submit = ("submit", "cpu", "--profile", "torchrun", "--yes")
    assert run(*submit).returncode == 0
    (folder / "submitted").unlink()
    before = {path.name: path.read_bytes() for path in (folder / "runs/cpu").iterdir()}
    if whose.startswith("another"):
        os.chown(folder / "runs/cpu", ANOTHER_USER, ANOTHER_USER)
    (folder / "runs/cpu").chmod(0o700 if whose.endswith("closed") else 0o555)
    refused = run(*submit)
    assert (refused.returncode, refused.stdout) == (3, "")
    why = f"{folder}/runs/cpu/job.slurm: Permission denied\n  fix: see who may use it: ls -ld "
    if whose.startswith("another"):
        why = f"the run folder belongs to another user (uid {ANOTHER_USER}): {folder}/runs/cpu"
    assert why in refused.stderr
    assert not (folder / "submitted").exists()
    assert run("status", "cpu").returncode == 0
    assert "no longer in the queue" in run("status").stdout
    assert run("cancel", "--yes", "cpu").stderr == "note: run cpu has ended already\n"
    resumed = run("resume", "cpu", "--yes")
    assert resumed.returncode == 3
    assert why in resumed.stderr
    logs = run("logs", "cpu")
    assert (logs.returncode, "Traceback" in logs.stderr) == (3, False)
    assert {path.name: path.read_bytes() for path in (folder / "runs/cpu").iterdir()} == before


@pytest.mark.parametrize("umask", [0o077, 0o027])
def test_what_a_run_leaves_follows_the_umask(
    folder: Path, programs: Path, command: Command, umask: int
) -> None:
    (folder / "train.py").write_text("print('trained')\n")
    subprocess.run(["git", "init", "--quiet"], check=True)
    subprocess.run(["git", "add", "train.py"], check=True)
    (programs / "sbatch").write_text("#!/bin/bash\necho 4711\n")
    (programs / "sbatch").chmod(0o755)
    before = os.umask(umask)
    try:
        job = ("--trainer", "train.py", "--yes")
        assert command("submit", "cpu", "--profile", "torchrun", "--snapshot", *job).status == 0
        assert command("submit", "cpu", "--job-name", "here", *job).status == 0
        assert command("status").status == 0
    finally:
        os.umask(before)
    state = index_file(os.environ).parent
    paths = [folder / "runs", *(folder / "runs").rglob("*"), state, *state.rglob("*")]
    assert {path.parent.name for path in paths} >= {"cpu", "here", "sbatchgen"}
    wide = [str(path) for path in paths if stat.S_IMODE(path.stat().st_mode) & umask]
    assert wide == []
