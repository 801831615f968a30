"""Submitting without a Slurm: what goes to sbatch, and what goes wrong before it."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from sbatchgen.check.sbatch.reader import read_script
from sbatchgen.jobs.render.render import digest
from sbatchgen.jobs.runs import record as records
from sbatchgen.jobs.runs import submitted_scripts
from sbatchgen.jobs.starts import rough
from sbatchgen.jobs.submit import attempt
from sbatchgen.jobs.submit.submission import log_folders
from tests.conftest import Command
from tests.scripts import first_part, script_shown

FAKE = """#!/bin/bash
{ printf '%s\\n' "$@"; } >"$RECORD/argv"
env >"$RECORD/env"
cat -- "${!#}" >"$RECORD/script"
echo 4711
"""


@pytest.fixture
def record(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder where an sbatch that only takes notes leaves them."""
    programs, notes = folder / "bin", folder / "record"
    programs.mkdir()
    notes.mkdir()
    (programs / "sbatch").write_text(FAKE)
    (programs / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setenv("RECORD", str(notes))
    monkeypatch.setattr(attempt, "SEARCH_S", 0.1)  # there is no queue
    return notes


def test_the_bytes_shown_are_the_bytes_submitted(record: Path, folder: Path, command: Command) -> None:
    result = command("submit", "ddp", "--profile", "torchrun", "--yes", "--", "--epochs", "3")
    assert (result.status, result.out) == (0, "4711\n")
    script = (record / "script").read_text()
    assert first_part(script) == script_shown(result.err)
    assert (folder / "runs/ddp/job.slurm").read_text() == script
    assert f"#SBATCH --output={folder}/runs/ddp/%x-%j.out\n" in script
    assert f"({digest(script)})" in script.splitlines()[1]
    assert (record / "argv").read_text().splitlines()[0] == "--parsable"


def test_what_would_change_the_job_is_left_out_of_the_environment(
    record: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (
        ("SBATCH_PARTITION", "x"),
        ("SLURM_CPU_BIND", "x"),
        ("SLURM_CONF", "/dev/null"),
    ):
        monkeypatch.setenv(name, value)
    result = command("submit", "single", "--profile", "troila", "--yes")
    assert "SBATCH_PARTITION, SLURM_CPU_BIND" in result.err
    environment = (record / "env").read_text()
    assert "SLURM_CONF=/dev/null" in environment
    assert "SBATCH_PARTITION" not in environment
    command("submit", "single", "--profile", "troila", "--yes", "--keep-sbatch-env")
    assert "SBATCH_PARTITION=x" in (record / "env").read_text()


def test_a_dry_run_submits_nothing_and_makes_nothing(record: Path, folder: Path, command: Command) -> None:
    result = command("submit", "ddp", "--profile", "torchrun", "--dry-run")
    assert (result.status, result.out) == (0, "")
    assert "cost        32 GPU-hours" in result.err
    assert not (record / "argv").exists()
    assert not (folder / "runs").exists()


def test_nobody_is_asked_where_nobody_can_answer(record: Path, command: Command) -> None:
    result = command("submit", "ddp", "--profile", "torchrun")
    assert result.status == 2
    assert "add --yes" in result.err
    assert not (record / "argv").exists()


def test_errors_stop_a_submission(record: Path, folder: Path, command: Command) -> None:
    assert command("submit", "single", "--profile", "troila", "--gres", "shard:65", "--yes").status == 4
    assert not (record / "argv").exists()
    assert not (folder / "runs").exists()


def test_options_go_with_a_finished_script_as_with_sbatch(
    record: Path, folder: Path, command: Command
) -> None:
    text = "#!/bin/bash\n#SBATCH --job-name=mine --mem=1G # small\n#SBATCH --time=5\nhostname\n"
    (folder / "x.sh").write_text(text)
    words = ("--mem", "64G", "--no-requeue", "--output", "logs/a b.out", "--job-name", "yours")
    done = command("submit", "x.sh", "--yes", *words, "--set", "extra_options.spread-job=true")
    assert (done.status, done.out) == (0, "4711\n"), done.err
    given = ["--job-name=yours", "--output=logs/a b.out", "--mem=64G", "--no-requeue", "--spread-job"]
    assert sorted((record / "argv").read_text().splitlines()[1:-1]) == sorted(given)
    assert (record / "script").read_text() == text
    assert text in done.err
    assert "64G of memory" in done.err
    assert "SB119" not in done.err
    assert "info: sbatch gets --" in done.err
    assert (folder / "logs").is_dir()
    shown = command("status", "yours").out
    assert all(option in shown for option in (str(folder / "x.sh"), *given))
    again = command("resume", "yours", "--yes", "--mem", "128G")
    assert again.status == 0, again.err
    given[2] = "--mem=128G"
    assert sorted((record / "argv").read_text().splitlines()[1:-1]) == sorted(given)


def test_a_finished_script_goes_as_it_is(record: Path, folder: Path, command: Command) -> None:
    text = "#!/bin/bash\n#SBATCH --job-name=mine\n#SBATCH -o logs/%x/a-%j.out # here\n#SBATCH -e errors/%j\nhostname\n"
    (folder / "job.slurm").write_text(text)
    result = command("submit", "job.slurm", "--yes")
    assert (result.status, result.out) == (0, "4711\n")
    assert (record / "script").read_text() == text
    assert (folder / "logs/mine").is_dir()
    assert (folder / "errors").is_dir()
    assert Path((record / "argv").read_text().splitlines()[1]).name == "job.slurm"


def test_several_jobs_are_reviewed_together_and_submitted_in_order(
    record: Path, folder: Path, command: Command
) -> None:
    (folder / "own.sh").write_text("#!/bin/bash\n#SBATCH --job-name=own --time=5\nhostname\n")
    (folder / "bin/sbatch").write_text(
        f"{FAKE}date >>$RECORD/calls\necho $((4710 + $(wc -l <$RECORD/calls)))\n".replace("echo 4711\n", "")
    )
    bare = ("--profile", "troila")
    result = command("submit", "single", "cpu", "own.sh", *bare, "--yes")
    assert (result.status, result.out) == (0, "4711\n4712\n4713\n")
    assert result.err.count("\nand ") == 2
    assert [script.name for script in sorted((folder / "runs").glob("*/job-*.slurm"))] == [
        "job-4712.slurm",
        "job-4711.slurm",
    ]
    (folder / "wrong.yaml").write_text("mode: single\noptions: {gres: shard:65}\n")
    wrong = command("submit", "single", "wrong.yaml", *bare, "--job-name", "other", "--yes")
    assert (wrong.status, wrong.out) == (2, "")  # one name, one run folder
    wrong = command("submit", "cpu", "wrong.yaml", *bare, "--yes")
    assert (wrong.status, wrong.out) == (4, "")
    assert len((record / "calls").read_text().splitlines()) == 3


def test_of_several_jobs_one_is_refused(record: Path, folder: Path, command: Command) -> None:
    (folder / "bin/sbatch").write_text("#!/bin/bash\ngrep -q 'job-name=cpu' ${!#} && exit 9\necho 4711\n")
    result = command("submit", "single", "cpu", "ddp", "--profile", "torchrun", "--yes")
    assert (result.status, result.out) == (5, "4711\n")
    assert "note: submitted: single\nnote: stopped at: cpu\nnote: not submitted: ddp\n" in result.err


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("single", "cpu", "--follow"), "--follow takes one job"),
        (("single", "cpu", "--profile", "local"), "several jobs need Slurm"),
        (("single", "cpu", "--run-dir", "same"), "have the run folder"),
        (("single", "missing.yaml"), "neither a mode nor a file"),
        ((), "missing argument"),
    ],
)
def test_several_jobs_that_can_not_go_together(
    record: Path, command: Command, arguments: tuple[str, ...], words: str
) -> None:
    result = command("submit", "--profile", "troila", "--yes", *arguments)
    assert (result.status, result.out) == (2, "")
    assert words in result.err


@pytest.mark.parametrize(
    ("text", "arguments", "status", "words"),
    [
        (b"#!/bin/bash\nhostname\n", ("--trainer", "a.py"), 2, "finished script: --trainer can't change it"),
        (b"#!/bin/bash\nhostname\n", ("--set", "mode=ddp"), 2, "finished script: --mode can't change it"),
        (b"#!/bin/bash\nhostname\n", ("--time", "soon"), 2, "soon"),
        (b"#!/bin/bash\nhostname\n", ("--", "x"), 2, "is a finished script"),
        (b"#!/bin/bash\r\nhostname\r\n", (), 3, "DOS line ends"),
        (
            b"#!/bin/bash\n#SBATCH --tim=1 --gres gpu:1, shard:1\nhostname\n",
            (),
            3,
            "the space after the comma",
        ),
        (b"#!/bin/bash\n#SBATCH -o logs/%j/x.out\nhostname\n", (), 3, "known only once the job runs"),
    ],
)
def test_scripts_that_can_not_be_submitted(
    record: Path,
    folder: Path,
    command: Command,
    text: bytes,
    arguments: tuple[str, ...],
    status: int,
    words: str,
) -> None:
    (folder / "job.slurm").write_bytes(text)
    result = command("submit", "job.slurm", "--yes", *arguments)
    assert (result.status, result.out) == (status, "")
    assert words in result.err
    assert not (record / "argv").exists()


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("echo 'sbatch: error: Batch job submission failed: Invalid qos' >&2; exit 1", "Invalid qos"),
        ("echo nothing", "no job id"),
        ("exit 9", "exit status 9"),
    ],
)
def test_slurm_refusing_ends_with_5(
    record: Path, folder: Path, command: Command, body: str, words: str
) -> None:
    (folder / "bin/sbatch").write_text(f"#!/bin/bash\n{body}\n")
    result = command("submit", "single", "--profile", "troila", "--yes")
    assert (result.status, result.out) == (5, "")
    assert words in result.err


def test_no_sbatch_ends_with_5(folder: Path, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(folder))
    result = command("submit", "single", "--profile", "troila", "--yes")
    assert result.status == 5
    assert "there is no sbatch here" in result.err


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: path.chmod(0o644), "Permission denied"),
        (lambda path: path.write_bytes(b"\x7fELF\x02\x01\x01"), "Exec format error"),
        (lambda path: path.write_text("#!/no/such/shell\n"), "No such file or directory"),
    ],
)
def test_an_sbatch_that_can_not_be_started_ends_with_5(
    record: Path, folder: Path, command: Command, monkeypatch: pytest.MonkeyPatch,
    make: Callable[[Path], object], words: str,
) -> None:  # fmt: skip
    make(folder / "bin/sbatch")
    monkeypatch.setenv("PATH", f"{folder}/bin")
    result = command("submit", "single", "--profile", "troila", "--yes")
    assert (result.status, result.out) == (5, "")
    assert f"error: can't start {folder}/bin/sbatch: {words}\n  fix: look at it: ls -lL " in result.err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("printf 'plac\\xe9 \\xff\\n' >&2; echo 4711", "plac\ufffd \ufffd\n"),
        ("printf '\\xff\\n4711\\n'", ""),
        ("echo 4711; exit 3", "sbatch ended with exit status 3\n"),  # --wait: that of the job
        ("echo 4711; kill -KILL $$", "sbatch ended with exit status 137\n"),
        ("echo 4711; sleep 99", "sbatch did not end within 3 s\n"),
    ],
)
def test_the_id_of_a_job_is_never_lost(
    record: Path, folder: Path, command: Command, monkeypatch: pytest.MonkeyPatch, body: str, said: str
) -> None:
    (folder / "bin/sbatch").write_text(f"#!/bin/bash\n{body}\n")
    if "sleep" in body:
        monkeypatch.setattr(attempt, "SUBMIT_TIMEOUT_S", 3)
    result = command("submit", "single", "--profile", "troila", "--yes")
    assert (result.status, result.out) == (0, "4711\n")
    assert said in result.err
    assert (folder / "runs/single/job-4711.slurm").is_file()


@pytest.mark.slow
def test_an_sbatch_that_does_not_answer_ends_with_5(
    record: Path, folder: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "bin/sbatch").write_text("#!/bin/bash\nsleep 99\n")
    monkeypatch.setattr(attempt, "SUBMIT_TIMEOUT_S", 1)
    monkeypatch.setattr(rough, "TEST_TIMEOUT_S", 1)
    result = command("submit", "single", "--profile", "troila", "--yes")
    assert (result.status, result.out) == (5, "")
    assert (
        "sbatch did not end within 1 s: sbatch printed no reason, and the queue has no such job\n"
        in result.err
    )
    assert "before you submit it again, see sbatchgen status" in result.err
    asked = command("review", "single", "--profile", "troila", "--test-only")
    assert asked.status == 5
    assert "sbatch did not end within 1 s" in asked.out


def test_an_id_that_stdout_can_not_take_is_on_stderr(record: Path, folder: Path) -> None:
    call = [sys.executable, "-m", "sbatchgen", "submit", "single", "--profile", "troila", "--yes"]
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(call, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 3
    assert "note: job 4711 is submitted\n" in done.stderr
    assert "error: stdout: No space left on device\n" in done.stderr
    assert (folder / "runs/single/job-4711.slurm").read_text() == (record / "script").read_text()


def test_sbatch_gets_the_bytes_shown_whatever_others_write(
    record: Path, folder: Path, command: Command
) -> None:
    """The run folder may belong to a group; the copy that sbatch is given does not, and is removed."""
    evil = "for file in $(find runs -name '*.slurm'); do echo evil >$file; done\n"
    (folder / "bin/sbatch").write_text(FAKE.replace("#!/bin/bash\n", f"#!/bin/bash\n{evil}"))
    result = command("submit", "ddp", "--profile", "torchrun", "--yes")
    script = (record / "script").read_text()
    assert first_part(script) == script_shown(result.err)
    assert (folder / "runs/ddp/job-4711.slurm").read_text() == script
    given = Path((record / "argv").read_text().splitlines()[1])
    assert given.name == "job.slurm"
    assert not given.parent.exists()


@pytest.mark.slow
def test_an_interrupt_while_sbatch_runs_tells_where_to_look(record: Path, folder: Path) -> None:
    (folder / "bin/sbatch").write_text('#!/bin/bash\ntouch "$RECORD/began"\nsleep 600\n')
    process = local(folder, "--profile", "troila")
    wait_for(record / "began")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=600)
    assert process.returncode == 130
    assert err.endswith(
        "note: the job may have been submitted: sbatchgen status shows whether it is in the queue\n"
    )


def test_a_job_id_with_its_cluster_is_printed_whole(record: Path, folder: Path, command: Command) -> None:
    (folder / "bin/sbatch").write_text("#!/bin/bash\necho 'a note of the site'\necho '12;east'\n")
    assert command("submit", "single", "--profile", "troila", "--yes").out == "12;east\n"


@pytest.mark.parametrize(
    ("lacking", "said"),
    [
        ((records,), ["record"]),
        ((submitted_scripts,), ["script"]),
        ((submitted_scripts, records), ["script", "record"]),
    ],
    ids=str,
)
def test_what_can_not_be_kept_of_a_job_is_named(
    record: Path, folder: Path, command: Command, monkeypatch: pytest.MonkeyPatch,
    lacking: tuple[ModuleType, ...], said: list[str],
) -> None:  # fmt: skip
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    for module in lacking:
        monkeypatch.setattr(module, "write_accepted" if module is records else "keep_script", full)
    shown = command("submit", "ddp", "--profile", "torchrun", "--yes")
    assert (shown.status, shown.out) == (0, "4711\n")
    of_job = f"of job 4711 in {folder / 'runs/ddp'}: No space left on device"
    notes = [line for line in shown.err.splitlines() if "can't keep" in line]
    assert notes == [f"note: can't keep the {what} {of_job}" for what in said]


def test_a_folder_that_can_not_be_made_is_reported(record: Path, folder: Path, command: Command) -> None:
    (folder / "runs").write_text("a file")
    result = command("submit", "single", "--profile", "troila", "--yes")
    assert result.status == 3
    assert "can't make the run folder" in result.err
    assert not (record / "argv").exists()


def test_a_variable_that_is_not_set_here_is_reported(
    record: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("USER", raising=False)
    result = command("submit", "single", "--profile", "msu", "--yes")
    assert result.status == 3
    assert "USER is not set here" in result.err


def test_a_platform_without_scheduler_is_reported(command: Command) -> None:
    result = command("submit", "ddp", "--profile", "sensecore", "--yes")
    assert result.status == 4
    assert "its platform starts the script" in result.err


def local(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    """`sbatchgen submit single --profile local`, in a process of its own."""
    environment = {**os.environ, "HOME": str(folder)}
    return subprocess.Popen(
        [sys.executable, "-m", "sbatchgen", "submit", "single", "--profile", "local", "--yes", *arguments],
        cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def test_without_slurm_the_script_runs_here_and_is_followed(folder: Path) -> None:
    (folder / "train.py").write_text("import sys\nprint('trained')\nsys.exit(7)\n")
    process = local(folder, "--trainer", "train.py")
    out, err = process.communicate(timeout=600)
    assert process.returncode == 7
    assert "trained\n" in out
    logs = list((folder / "runs/single").glob("single-*.out"))
    assert [log.read_text() for log in logs] == [out]
    assert str(logs[0]) in err


def test_a_python_without_torch_is_reported_in_a_line(folder: Path, command: Command) -> None:
    python = [sys.executable, "-m", "venv", "--without-pip", str(folder / "bare")]
    subprocess.run(python, check=True)
    environment = {"PATH": f"{folder}/bare/bin:/usr/bin:/bin", "HOME": str(folder)}
    for mode in ("single", "ddp"):
        script = command("render", mode).out
        done = subprocess.run(
            ["bash", "-c", script], cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 1
        (error,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
        assert "this Python has no torch" in error
        assert "Traceback" not in done.stderr


def test_an_interrupt_ends_the_following_not_the_training(folder: Path) -> None:
    (folder / "train.py").write_text(
        "import pathlib, time\n"
        "pathlib.Path('began').touch()\n"
        "late = time.monotonic() + 600\n"
        "while not pathlib.Path('end').exists() and time.monotonic() < late:\n"
        "    time.sleep(0.05)\n"
        "pathlib.Path('ended').touch()\n"
    )
    process = local(folder, "--trainer", "train.py")
    wait_for(folder / "began")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=600)
    assert process.returncode == 130
    assert "still running" in err
    assert "sbatchgen cancel single" in err
    (folder / "end").touch()
    wait_for(folder / "ended")


def test_a_terminated_local_job_tells_its_trainer(folder: Path) -> None:
    """The stop file for trainers that look, SIGTERM for those that do not."""
    (folder / "train.py").write_text(
        "import os, pathlib, signal, sys, time\n"
        "def stop(*_):\n"
        "    pathlib.Path('seen').write_text(str(os.path.exists(os.environ['SBATCHGEN_STOP_FILE'])))\n"
        "    sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, stop)\npathlib.Path('pid').write_text(str(os.getppid()))\ntime.sleep(600)\n"
    )
    process = local(folder, "--trainer", "train.py")
    wait_for(folder / "pid")
    os.kill(int((folder / "pid").read_text()), signal.SIGTERM)
    process.communicate(timeout=600)
    assert (folder / "seen").read_text() == "True"


def wait_for(path: Path, timeout_s: float = 600) -> None:
    end = time.monotonic() + timeout_s
    while not (path.exists() and (path.stat().st_size or path.name in ("began", "ended"))):
        assert time.monotonic() < end, f"no {path}"
        time.sleep(0.05)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("left", "trainer_status", "status"), [("", 0, 0), ("", 4, 4), ("75", 0, 75), ("3", 1, 3)]
)
def test_the_exit_status_is_the_trainers_own(
    folder: Path, command: Command, left: str, trainer_status: int, status: int
) -> None:
    """What is left by an earlier start says nothing: the one that counts is written by this trainer."""
    script = command("render", "ddp", "--launcher", "spawn", "--trainer", "train.py").out
    leave = f"open(os.environ['SBATCHGEN_EXIT_FILE'], 'w').write('{left}')" if left else ""
    (folder / "train.py").write_text(f"import os, sys\n{leave}\nsys.exit({trainer_status})\n")
    (folder / "runs/ddp").mkdir(parents=True)
    (folder / "runs/ddp/exit").write_text("9")
    result = subprocess.run(["bash", "-c", script], cwd=folder, check=False, capture_output=True)
    assert result.returncode == status


def test_logs_are_found_where_sbatch_puts_them() -> None:
    """Below --chdir, of the option that counts, in each component, and not where sbatch reads nothing."""
    script = (
        "#!/bin/bash\n#SBATCH -D work -o a/x\n # SBATCH -o no/x\n#SBATCH --out=b/%x/%%/y\n"
        "#SBATCH hetjob\n#SBATCH -e /c/z\nls\n#SBATCH -o late/x\n"
    )
    work = Path("/here/work")
    folders = log_folders(read_script(script), Path("/here"), "job")
    assert set(folders) == {work / "b/job/%", Path("/c")}
