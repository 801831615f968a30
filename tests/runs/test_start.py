"""What a job will find in its run folder: shown before it queues, and the same as the trainer then does."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import training.runfolder
from sbatchgen.jobs.runs.folder_check import RunFolderForecast
from sbatchgen.jobs.runs.record import Record, write_accepted
from tests.cluster.fixtures import FIRST, LATER
from tests.cluster.slurm import Cluster
from tests.conftest import REPOSITORY, Command
from tests.jobs.jobs import site_on
from tests.slurm import fakes
from tests.training.forks import Fork
from tests.training.trainers import quickly

TRAINING = REPOSITORY / "training"
ARGS = ("--dataset", "fake", "--fake-samples", "200", "--epochs", "2")
PROFILE = "name: here\nurl: x\nchecked: 2026-11-20\noptions: {time: 01:00:00}\n"


def train(folder: Path, *args: str, job: str = "") -> subprocess.CompletedProcess[str]:
    """A training in runs/ddp, as one process, as if Slurm job `job` did it."""
    command = [sys.executable, str(TRAINING), "--run-dir", str(folder / "runs/ddp"), "--device", "cpu", *args]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
    environment |= {"OMP_NUM_THREADS": "1"} | ({"SLURM_JOB_ID": job} if job else {})
    pipe = subprocess.PIPE
    process = Fork(command, env=quickly(environment), stdout=pipe, stderr=pipe, text=True)
    out, err = process.communicate()
    return subprocess.CompletedProcess(command, process.returncode, out, err)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of 2 epochs, trained by job 4711."""
    folder = tmp_path_factory.mktemp("trained")
    done = train(folder, *ARGS, job="4711")
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def copy(trained: Path, folder: Path) -> Path:
    shutil.copytree(trained / "runs", folder / "runs")
    Path("here.yaml").write_text(PROFILE)
    return folder


def review(command: Command, *args: str, flags: tuple[str, ...] = ()) -> tuple[dict[str, object], list[str]]:
    """What review says of the start, and its errors."""
    shape = ("--nodes", "1", "--nproc-per-node", "1", *flags)
    done = command("review", "ddp", "--profile", "local", *shape, "--format", "json", "--", *args)
    shown = json.loads(done.out)
    errors = [finding["what"] for finding in shown["findings"] if finding["severity"] == "error"]
    assert done.status == (3 if errors else 0)
    return shown["start"] or {}, errors


def test_a_new_run_is_new(command: Command) -> None:
    start, errors = review(command, *ARGS)
    assert (start["state"], errors) == ("new", [])


@pytest.mark.proof
def test_a_run_that_is_done_is_refused_with_its_job(command: Command, copy: Path) -> None:
    start, errors = review(command, *ARGS)
    assert start["state"] == "done"
    assert errors == [f"nothing left to do in {copy}/runs/ddp: 2 of 2 epochs are done, trained by job 4711"]


def test_what_the_trainer_says_of_a_run_that_is_done(copy: Path) -> None:
    done = train(copy, *ARGS, job="4712")
    assert done.returncode == 0
    assert "Nothing left to do: 2 of 2 epochs are done by job 4711" in done.stdout
    again = train(copy, *ARGS, job="4711")  # its own, as after a requeue
    assert "Nothing left to do: 2 of 2 epochs are done\n" in again.stdout


@pytest.mark.proof
def test_more_epochs_go_on_where_the_trainer_does(command: Command, copy: Path) -> None:
    start, errors = review(command, *ARGS[:-1], "3")
    assert errors == []
    assert (start["state"], start["step"], start["steps"]) == ("resume", 8, 12)
    assert (start["epoch"], start["epochs"], start["job"]) == (2, 3, "4711")
    done = train(copy, *ARGS[:-1], "3")
    assert "Resuming from checkpoints/step-00000008.pt: epoch 3, step 8" in done.stdout
    events = [json.loads(line) for line in (copy / "runs/ddp/events.jsonl").read_text().splitlines()]
    assert max(event["step"] for event in events) == 12


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("changed", "says"),
    [
        (("--batch-size", "32"), "--batch-size was 64, is 32"),
        (("--optimizer", "sgd"), "--optimizer was adadelta, is sgd"),
        (("--seed", "7", "--precision", "bf16"), "--precision was fp32, is bf16; --seed was 1, is 7"),
    ],
)
def test_other_settings_are_refused_here_if_the_trainer_refuses_them(
    command: Command, copy: Path, changed: tuple[str, ...], says: str
) -> None:
    start, errors = review(command, *ARGS, *changed)
    assert start["state"] == "changed"
    (error,) = errors
    for part in says.split("; "):
        assert part in error
    assert error.startswith(f"the checkpoint in {copy}/runs/ddp, trained by job 4711, has other settings: --")
    assert "other settings than the checkpoint's" in train(copy, *ARGS, *changed).stderr
    start, errors = review(command, *ARGS[:-1], "3", *changed, "--allow-config-change")
    assert (start["state"], errors) == ("resume", [])


def test_the_same_batch_by_more_processes_is_no_change(command: Command, copy: Path) -> None:
    start, errors = review(command, *ARGS[:-1], "3", flags=("--nproc-per-node", "2"))
    assert (start["state"], errors) == ("resume", [])
    start, _ = review(command, *ARGS[:-1], "3", "--batch-size-per-gpu", "64", flags=("--nproc-per-node", "2"))
    assert start["changed"] == {"batch_size": [64, 128]}


def test_resume_off_and_another_name_start_afresh(command: Command, copy: Path) -> None:
    assert review(command, *ARGS, flags=("--resume", "off"))[0]["state"] == "afresh"
    start, errors = review(command, *ARGS, flags=("--job-name", "other"))
    assert (start["state"], errors) == ("new", [])


def test_a_named_checkpoint_is_looked_for(command: Command, copy: Path) -> None:
    start, errors = review(command, *ARGS, flags=("--resume", "step-00000004.pt"))
    assert (start["state"], start["step"], start["epoch"], errors) == ("resume", 4, 1, [])
    start, errors = review(command, *ARGS, flags=("--resume", "step-00000005.pt"))
    assert (start["state"], errors) == ("missing", ["there is no checkpoint step-00000005.pt"])
    assert (
        "--resume step-00000005.pt was not found" in train(copy, *ARGS, "--resume", "step-00000005.pt").stderr
    )
    _, errors = review(command, *ARGS, flags=("--resume", "/nowhere/of/this/machine/x.pt"))
    assert errors == []  # a folder that may be seen from the nodes only


@pytest.mark.proof
def test_a_folder_in_use_is_refused_as_the_trainer_refuses_it(
    command: Command, copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = ("--epochs", "200", "--step-delay", "0.05")
    run = [sys.executable, str(TRAINING), "--run-dir", "runs/ddp", *ARGS, *slow]
    process = Fork(run, env=quickly({**os.environ}), stdout=subprocess.PIPE, text=True)
    assert process.stdout
    try:
        for line in process.stdout:
            if line.startswith("Resuming"):
                break
        start, errors = review(command, *ARGS, *slow)
        assert start["state"] == "used"
        assert errors == [f"{copy}/runs/ddp is in use by {start['holder']}"]
        assert f"process {process.pid} on " in str(start["holder"])
        fakes.squeue(copy / "bin", [{"JobArrayID": "4711", "State": "RUNNING"}])
        monkeypatch.setenv("PATH", str(copy / "bin"), prepend=os.pathsep)
        (copy / "here.yaml").write_text(PROFILE)
        write_accepted(
            copy / "runs/ddp", Record(key="c0ffee", shared=False, name="ddp", job="4711", folder="/")
        )
        flags = ("--profile", "./here.yaml", "--gpus-per-node", "1", "--dry-run")
        error = command("submit", "ddp", *flags, "--", *ARGS).err
        assert ("this run folder too" in error, "is in use by" in error) == (True, False), error
        refused = train(copy, *ARGS)
        assert f"another job is running in this folder: {start['holder']}" in refused.stderr
    finally:
        process.kill()
        process.communicate()
    assert review(command, *ARGS, *slow)[0]["state"] == "resume"  # a lock of a dead process does not count


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("--epochz", "3"), "the trainer refuses its arguments: unrecognized arguments: --epochz 3"),
        (("--epochs", "0"), "the trainer refuses its arguments: --epochs is 0, but must be at least 1"),
        (("--batch-size", "33"), "--batch-size 33 cannot be shared by 2 processes"),
    ],
)
def test_arguments_that_the_trainer_refuses_are_refused_before_the_queue(
    command: Command, args: tuple[str, ...], says: str
) -> None:
    start, errors = review(command, "--dataset", "fake", *args, flags=("--nproc-per-node", "2"))
    assert start == {}
    assert [error for error in errors if says in error] == errors != []


def test_what_the_trainer_refuses_names_no_rank_and_no_host(command: Command) -> None:
    _, errors = review(command, *ARGS, "--batch-size", "33", flags=("--nproc-per-node", "2"))
    assert errors == ["the trainer refuses its arguments: --batch-size 33 cannot be shared by 2 processes"]


def test_an_unknown_flag_of_a_sweep_is_told_once(command: Command) -> None:
    done = command("sweep", "single", "--profile", "torchrun", "--param", "lrr=1,2,3", "--dry-run")
    assert done.err.count("the trainer refuses its arguments: unrecognized arguments: --lrr\n") == 1
    assert done.err.count("--lr in place of --lrr") == 1


def test_damaged_events_are_no_reason_to_fail(command: Command, copy: Path) -> None:
    for text in (b"", b"\xff\n[1]\n{", b'{"event": "save", "checkpoint": 5, "epoch": []}\n', b"[" * 100_000):
        Path("runs/ddp/events.jsonl").write_bytes(text)
        start, errors = review(command, *ARGS)
        assert (start["state"], start["step"], start["epoch"], errors) == ("resume", 8, None, [])


def test_an_own_trainer_is_not_asked(command: Command) -> None:
    Path("train.py").touch()
    assert review(command, "--epochz", flags=("--trainer", "train.py")) == ({}, [])


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("states", "error"),
    [
        ({"4711": "PENDING"}, "job 4711 uses this run folder too, and is waiting: {}/runs/ddp"),
        (
            {"4711": "RUNNING", "4712": "REQUEUE_HOLD"},
            "job 4712 uses this run folder too, and is put back into the queue, and held: {}/runs/ddp",
        ),
        ({"4711": "COMPLETING", "4712": "CANCELLED"}, ""),
        ({}, ""),
    ],
)
def test_a_job_in_the_queue_with_the_same_folder(
    command: Command, folder: Path, monkeypatch: pytest.MonkeyPatch, states: dict[str, str], error: str
) -> None:
    Path("here.yaml").write_text(PROFILE)
    Path("runs/ddp").mkdir(parents=True)
    for job in (4711, 4712):
        about = Record(key="c0ffee", shared=False, name="ddp", job=str(job), folder=str(folder))
        write_accepted(Path("runs/ddp"), about)
    fakes.squeue(folder / "bin", [{"JobArrayID": job, "State": state} for job, state in states.items()])
    monkeypatch.setenv("PATH", str(folder / "bin"), prepend=os.pathsep)
    flags = ("--profile", "./here.yaml", "--gpus-per-node", "1", "--dry-run")
    done = command("submit", "ddp", *flags, "--", *ARGS)
    assert (error.format(folder) in done.err) if error else done.status == 0
    assert ("this run folder too" in done.err) == bool(error)
    waiting = command("submit", "ddp", *flags, "--dependency", "afterany:4712", "--", *ARGS)
    assert waiting.status == 0, waiting.err


def test_jobs_whose_folders_only_they_can_name_do_not_meet(
    command: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their scripts are kept in the folder around."""
    Path("here.yaml").write_text(PROFILE)
    Path("runs").mkdir()
    Path("runs/job-4711.slurm").touch()
    fakes.squeue(folder / "bin", [{"JobArrayID": "4711", "State": "RUNNING"}])
    monkeypatch.setenv("PATH", str(folder / "bin"), prepend=os.pathsep)
    flags = ("--profile", "./here.yaml", "--run-dir", "runs/${SLURM_JOB_ID}", "--dry-run")
    done = command("submit", "single", *flags, "--", *ARGS)
    assert (done.status, "this run folder too" in done.err) == (0, False), done.err


def test_the_command_and_the_package_mean_the_same_by_a_start() -> None:
    theirs = {field.name for field in dataclasses.fields(training.runfolder.Forecast)}
    assert {field.name for field in dataclasses.fields(RunFolderForecast)} == theirs


def test_on_a_real_slurm_the_second_job_of_a_folder_is_refused_while_the_first_is_there(
    cluster: Cluster,
) -> None:
    site = site_on(cluster)
    first = site.submit("meet", "single", "--begin", "now+1hour")
    second = site.sbatchgen("submit", "single", "--job-name", "meet", "--yes", check=False)
    assert second.returncode == 3
    assert f"job {first} uses this run folder too, and is waiting" in second.stderr
    cluster.run(["scancel", str(first)])
    cluster.wait(first, {"CANCELLED"})
    third = site.submit("meet", "single", "--begin", "now+1hour")
    assert third > first
    cluster.run(["scancel", str(third)])


# --- files


def missing(command: Command, *flags: str) -> tuple[list[str], list[str]]:
    """The errors and the warnings about files that are not there."""
    done = command("review", "single", "--format", "json", *flags)
    findings = json.loads(done.out)["findings"]
    about = [finding for finding in findings if finding["what"].startswith("there is no ")]
    errors = [finding["what"] for finding in about if finding["severity"] == "error"]
    return errors, [finding["what"] for finding in about if finding["severity"] == "warning"]


@pytest.fixture
def submits_here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An sbatch in PATH."""
    (folder / "bin").mkdir()
    (folder / "bin/sbatch").write_text("#!/bin/sh\n")
    (folder / "bin/sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", str(folder / "bin"), prepend=os.pathsep)


@pytest.mark.usefixtures("submits_here")
def test_a_trainer_that_is_not_there_is_an_error(command: Command, folder: Path) -> None:
    Path("here.yaml").write_text(PROFILE)
    Path("train.py").touch()
    for profile in ("local", "./here.yaml"):
        flags = ("--profile", profile)
        assert missing(command, *flags, "--trainer", "train.py") == ([], [])
        assert missing(command, *flags, "--trainer", "trian.py") == (
            [f"there is no trainer {folder}/trian.py"],
            [],
        )
        assert missing(command, *flags, "--trainer", "src/a.py") == (
            [f"there is no trainer {folder}/src/a.py"],
            [],
        )
        assert missing(command, *flags, "--trainer", "own.trainer") == ([], [])  # a module
        assert missing(command, *flags, "--trainer", "/not/of/this/machine/a.py") == ([], [])
    done = command("review", "single", "--trainer", "trian.py")
    assert "fix: did you mean 'train.py'?" in done.out


@pytest.mark.usefixtures("submits_here")
@pytest.mark.parametrize(("job_runtime", "is_missing"), [("host", False), ("shifter", True)])
def test_a_trainer_of_a_program_is_in_the_programs_own_container(
    command: Command, folder: Path, job_runtime: str, *, is_missing: bool
) -> None:
    """This machine has the folder of an absolute path, but the image has a folder of the same name."""
    other = {"host": "shifter", "shifter": "host"}[job_runtime]
    Path("here.yaml").write_text(PROFILE)
    Path("train.py").touch()
    Path("two.yaml").write_text(
        f"mode: single\nruntime: {job_runtime}\nimage: vllm:1\nprograms:\n"
        "  train: {trainer: train.py, gpus: 0, cpus: 1}\n"
        f"  server: {{trainer: {folder}/serve.py, runtime: {other}, image: vllm:1, gpus: 0, cpus: 1}}\n"
    )
    done = command("review", "./two.yaml", "--profile", "./here.yaml", "--format", "json")
    whats = [finding["what"] for finding in json.loads(done.out)["findings"]]
    assert (f"there is no trainer {folder}/serve.py" in whats) == is_missing, whats


@pytest.mark.usefixtures("submits_here")
@pytest.mark.parametrize(("runtime", "is_refused"), [("host", False), ("apptainer", True)])
def test_a_working_folder_that_the_container_of_a_program_cannot_mount(
    command: Command, folder: Path, runtime: str, *, is_refused: bool
) -> None:
    Path("here.yaml").write_text(PROFILE)
    (folder / "a,b").mkdir()
    Path("a,b/train.py").touch()
    Path("two.yaml").write_text(
        "mode: single\nruntime: host\nprograms:\n  train: {trainer: train.py, gpus: 0, cpus: 1}\n"
        f"  tools: {{trainer: train.py, runtime: {runtime}, image: /a.sif, gpus: 0, cpus: 1}}\n"
    )
    flags = ("--profile", "./here.yaml", "--chdir", f"{folder}/a,b", "--format", "json")
    shown = command("review", "./two.yaml", *flags)
    whats = [finding["what"] for finding in json.loads(shown.out)["findings"]]
    says = f"the working folder {folder}/a,b can't be mounted: the path would be split at the comma or colon"
    assert (says in whats) == is_refused, whats


def test_where_there_is_no_sbatch_it_is_a_warning(
    command: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("here.yaml").write_text(PROFILE)
    monkeypatch.setenv("PATH", str(folder))
    says = [f"there is no trainer {folder}/trian.py"]
    assert missing(command, "--profile", "./here.yaml", "--trainer", "trian.py") == ([], says)


@pytest.mark.usefixtures("submits_here")
def test_a_working_folder_that_is_not_there_is_an_error(command: Command, folder: Path) -> None:
    Path("here.yaml").write_text(PROFILE)
    Path("code").mkdir()
    Path("code/train.py").touch()
    flags = ("--profile", "./here.yaml", "--trainer", "train.py", "--chdir")
    assert missing(command, *flags, "code") == ([], [])
    what = f"there is no working folder {folder}/cod: Slurm would start the job in /tmp"
    assert missing(command, *flags, "cod") == ([what], [])
    assert missing(command, *flags, "${SCRATCH}/nowhere") == ([], [])


@pytest.mark.usefixtures("submits_here")
def test_a_virtual_environment_that_is_not_there_may_be_on_the_nodes(command: Command, folder: Path) -> None:
    flags = ("--runtime", "venv", "--trainer", "train.py", "--venv")
    Path("train.py").touch()
    says = [f"there is no virtual environment {folder}/venv"]
    assert missing(command, "--profile", "local", *flags, "venv") == ([], says)
    assert missing(command, "--profile", "local", *flags, "/nowhere/of/here/venv") == ([], [])
    Path("venv").mkdir()
    assert missing(command, "--profile", "local", *flags, "venv") == ([], [])


@pytest.mark.usefixtures("submits_here")
def test_data_that_are_not_there_may_come_under_slurm_and_not_here(command: Command, folder: Path) -> None:
    Path("here.yaml").write_text(PROFILE)
    says = [f"there is no data folder {folder}/data"]
    assert missing(command) == (says, [])
    assert missing(command, "--profile", "./here.yaml") == ([], says)
    assert missing(command, "--profile", "./here.yaml", "--dependency", "afterok:1") == ([], [])
    Path("data").mkdir()
    assert missing(command) == ([], [])


# --- own trainers


def test_review_shows_what_an_own_trainer_is_told_and_nothing_else(command: Command) -> None:
    Path("train.py").touch()
    Path("d").mkdir()

    def shown(*args: str) -> str:
        done = command("review", "ddp", "--nproc-per-node", "2", "--trainer", "train.py", *args)
        assert done.status == 0, done.err + done.out
        return done.out

    plain = shown()
    assert "\ndata " not in plain
    assert "\nresume " not in plain
    assert "DATA_DIR" not in plain
    review = shown("--data-dir", "d", "--resume", "old.pt")
    assert "\ndata         d\n" in review or "\ndata        d\n" in review
    assert " RUN_DIR DATA_DIR RESUME=" in review
    assert "processes   2 on 1 node\n" in plain
    assert "processes   1 on 1 node; your trainer starts the others\n" in shown("--launcher", "spawn")


def test_what_an_own_trainer_is_told_arrives(command: Command, folder: Path) -> None:
    Path("train.py").write_text(
        "import json, os, sys\n"
        "names = ('RUN_DIR', 'DATA_DIR', 'RESUME')\n"
        "print('start', json.dumps([sys.argv[1:], [os.environ.get(name) for name in names]]))\n"
    )
    Path("d").mkdir()
    flags = ("--trainer", "train.py", "--data-dir", "d", "--resume", "x y.pt")
    script = command("render", "single", *flags, "--", "{run_dir}", "{data_dir}", "--from={resume}").out
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    args, variables = json.loads(done.stdout.partition("start ")[2])
    assert args == [f"{folder}/runs/single", f"{folder}/d", "--from=x y.pt"]
    assert variables == [f"{folder}/runs/single", f"{folder}/d", "x y.pt"]


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (
            (),
            "requeue_on_timeout is for other trainers: the bundled one asks for its restarts itself",
        ),
        (
            ("--trainer", "train.py", "--resume", "off"),
            "requeue_on_timeout needs restarts, but resume is off",
        ),
        (
            ("--trainer", "train.py", "--max-restarts", "0"),
            "requeue_on_timeout needs restarts, but max_restarts is 0",
        ),
        (
            ("--trainer", "train.py", "--requeue-on-node-fail"),
            "requeue_on_timeout and requeue_on_node_fail exclude each other",
        ),
    ],
)
def test_a_requeue_at_the_time_limit_that_can_not_work_is_refused(
    command: Command, flags: tuple[str, ...], says: str
) -> None:
    done = command("render", "ddp", "--profile", "torchrun", "--requeue-on-timeout", *flags)
    assert done.status == 3
    assert f"error: {says}" in done.err


BLIND = """
import pathlib, os, time
state = pathlib.Path(os.environ["RUN_DIR"], "steps-" + os.environ.get("RANK", "0"))
step = int(state.read_text()) if state.exists() else 0
print("from step", step, flush=True)
end = 10 if step else 6000
while step < end:
    step += 1
    state.with_suffix(".new").write_text(str(step))
    state.with_suffix(".new").replace(state)
    time.sleep(0.1 if end == 6000 else 0)
print("complete at", step, flush=True)
"""


ARRAY = ("single", "--array", "3-3")


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("slurm_release", "flags"),
    [
        (FIRST, ("single",)),
        (FIRST, ("ddp", "--nodes", "2", "--gpus-per-node", "1")),
        (FIRST, ARRAY),
        (LATER, ARRAY),
    ],
    indirect=["slurm_release"],
)
def test_on_a_real_slurm_a_trainer_that_knows_nothing_is_requeued_at_its_limit(
    cluster: Cluster, flags: tuple[str, ...]
) -> None:
    site = site_on(cluster)
    cluster.put("work/blind.py", BLIND)
    name = f"blind-{len(flags)}"
    done = site.sbatchgen(
        *("submit", flags[0], "--yes", "--job-name", name, *flags[1:], "--trainer", "blind.py"),
        *("--requeue-on-timeout", "--max-restarts", "1"),
        check=True,
    )
    job = int(done.stdout)
    cluster.until(lambda: "from step 0" in site.log(name), "the first start")
    ranks = 2 if flags[0] == "ddp" else 1
    run_dir = site.folder / "runs" / name
    cluster.until(lambda: len({*run_dir.rglob("steps-[01]")}) == ranks, "a step of each rank")
    cluster.run(["scancel", "--batch", "--signal=USR1", str(job)], check=True)
    record = cluster.wait(job, {"COMPLETED"})
    assert (record["Restarts"], record["ExitCode"]) == ("1", "0:0")
    log = site.log(name)
    assert "Requeueing: restart 1 of at most 1" in log
    assert "complete at" in log
    assert "from step 0" not in log.partition("Requeueing")[2]


@pytest.mark.proof
@pytest.mark.slow
@pytest.mark.parametrize("name", ["best.pt", "checkpoint_epoch_1.pt"])
def test_a_checkpoint_by_another_name_is_told_as_the_trainer_takes_it(
    command: Command, folder: Path, name: str
) -> None:
    longer = (*ARGS[:-1], "3")
    assert train(folder, *ARGS, "--keep-epochs").returncode == 0
    start, errors = review(command, *longer, flags=("--resume", name))
    done = train(folder, *longer, "--resume", name)
    epoch = int(re.findall(r"Resuming from checkpoints/\S+: epoch (\d+), ", done.stdout)[0]) - 1

    assert errors == []
    assert (start["state"], start["checkpoint"]) == ("resume", f"checkpoints/{name}")
    assert (start["epoch"], start["step"], start["steps"]) == (epoch, 4 * epoch, 12)
