"""Jobs of plain sbatch, on a real Slurm: status, logs, diagnose, plot and report take their id, log and script."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from tests.cluster.fixtures import VISIBLE
from tests.cluster.slurm import Cluster
from tests.conftest import REPOSITORY, fit_the_schema
from tests.jobs.jobs import SBATCHGEN

CONDA = "CondaError: Run 'conda init' before 'conda activate'"
OOM_KILLED = "slurmstepd-n1: error: Detected 1 oom_kill event in StepId=1.batch. Some of the step tasks have been OOM Killed."
TORCHRUN = """torchrun --standalone --nproc_per_node=2 ddp.py"""
# Options of sbatch, the body of the script, and the likeliest cause. Without a GPU, a full disk and a limit of
# memory, these are printed as the programs print them.
FAILURES = {
    "oom-kill": (
        "--mem=500M",
        f"echo '{OOM_KILLED}' >&2; kill -9 $$",
        "host-memory",
    ),
    "cuda-oom": (
        "",
        "echo 'torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB'; exit 1",
        "gpu-memory",
    ),
    "time-limit": ("--time=5", "exec sleep 600", "time-limit"),
    "no-module": ("", "python3 -c 'import einopps'", "package-missing"),
    "import": ("", "python3 -c 'from json import loadz'", "import"),
    "no-command": ("", "nosuchprogram --train", "command-not-found"),
    "module-command": (
        "",
        'module() { echo "Lmod has detected the following error: The following module(s) are unknown: \\"cuda/99\\"" >&2; return 1; }; module load cuda/99 || exit 1',
        "module-missing",
    ),
    "conda": ("", f'echo "{CONDA}" >&2; exit 1', "conda-not-set-up"),
    "torchrun": ("", TORCHRUN, "exception"),
    "port": ("", "python3 port.py", "address-in-use"),
    "disk": ("", 'python3 -c \'raise OSError(28, "No space left on device", "/x")\'', "disk-full"),
    "permission": ("", "python3 -c 'open(\"/etc/shadow\")'", "permission"),
    "segfault": ("", "kill -SEGV $$", "crashed"),
    "data": ("", "python3 -c 'open(\"data/train.pt\")'", "file-missing"),
    "step": ("", "srun -N3 -n3 true", "step-size"),
    "cancelled": ("--hold", "true", "cancelled"),
    "log-folder": ("--hold --output=gone/%j.txt", "true", "log-folder"),
    "node": ("--no-requeue --nodelist=n4", "exec sleep 600", "node-failure"),
}
DDP = "import os\nif os.environ['RANK'] == '1':\n    raise ValueError('a batch of 3 is odd')\nimport time; time.sleep(60)\n"
PORT = """import socket
both = [socket.socket() for _ in range(2)]
both[0].bind(("127.0.0.1", 0))
both[1].bind(both[0].getsockname())
"""


@dataclass
class Plain:
    """A cluster on which all of these jobs have ended."""

    cluster: Cluster
    work: Path
    jobs: dict[str, int] = field(default_factory=dict)

    def sbatchgen(self, *arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        done = self.cluster.run([SBATCHGEN, *arguments], cwd=cwd or self.work)
        fit_the_schema(arguments, done.stdout)
        return done

    def log(self, name: str) -> Path:
        return Path(self.cluster.job(self.jobs[name])["StdOut"])


@pytest.fixture(scope="module")
def plain(slurm_root: Path | None) -> Iterator[Plain]:
    with Cluster(visible=VISIBLE, root=slurm_root) as cluster:
        made = Plain(cluster, cluster.home / "work")
        cluster.put("work/ddp.py", DDP)
        cluster.put("work/port.py", PORT)
        path = f"export PATH={SBATCHGEN.parent}:$PATH OMP_NUM_THREADS=1"
        for name, (options, body, _) in FAILURES.items():
            script = f"#!/bin/bash\n#SBATCH -J {name} -t 5 {options}\n{path}\n{body}\n"
            cluster.put(f"work/{name}.sh", script)
            made.jobs[name] = cluster.sbatch(f"{name}.sh", cwd=made.work)
        cluster.put("work/gone", "where no release can make a folder")
        cluster.run(["scontrol", "release", str(made.jobs["log-folder"])], check=True)
        cluster.run(["scancel", str(made.jobs["cancelled"])], check=True)
        cluster.wait(made.jobs["node"], ["RUNNING"])
        cluster.wait(made.jobs["time-limit"], ["RUNNING"])
        soon = datetime.now() + timedelta(seconds=1)  # noqa: DTZ005 - as Slurm reads it
        update = [
            "scontrol",
            "update",
            f"jobid={made.jobs['time-limit']}",
            f"endtime={soon:%Y-%m-%dT%H:%M:%S}",
        ]
        cluster.root(update)
        cluster.stop_node("n4", declare=True)
        for job in made.jobs.values():
            cluster.wait(job)
        yield made


@pytest.mark.sampled(12)
@pytest.mark.slow
@pytest.mark.parametrize("name", FAILURES)
def test_a_failure_of_plain_sbatch_is_explained(plain: Plain, name: str) -> None:
    job = str(plain.jobs[name])
    said = json.loads(plain.sbatchgen("diagnose", job, "--format", "json").stdout)
    assert (said["run"], said["failed"], said["problems"]) == (job, True, []), said
    assert said["causes"][0]["cause"] == FAILURES[name][2], said
    by_log = plain.jobs[name] % 2 and plain.log(name).exists()
    word = str(plain.log(name)) if by_log else f"{name}.sh"
    text = plain.sbatchgen("diagnose", word)
    assert text.stdout.startswith(f"{word}: job {job} "), (text.stdout, text.stderr)
    assert f"most likely: {said['causes'][0]['means']}\n" in text.stdout
    assert "sbatchgen resume" not in text.stdout


@pytest.mark.slow
def test_a_fix_of_plain_sbatch_is_typed(plain: Plain) -> None:
    """It submits the same script with twice the memory, from the folder in which it is typed."""
    fix = plain.sbatchgen("diagnose", "oom-kill.sh").stdout.partition("for example: ")[2].partition("\n")[0]
    assert fix.startswith("sbatch ")
    assert fix.endswith(" --mem=1000M oom-kill.sh")
    typed = plain.cluster.run(fix.split(), cwd=plain.work, check=True)
    (job,) = [word for word in typed.stdout.split() if word.isdecimal()]
    assert "MinMemoryNode=1000M" in plain.cluster.run(["scontrol", "show", "job", job]).stdout
    plain.cluster.run(["scancel", job])


@pytest.mark.proof
@pytest.mark.slow
def test_what_else_is_asked_about_plain_jobs(plain: Plain) -> None:
    cluster, job = plain.cluster, str(plain.jobs["data"])
    shown = plain.sbatchgen("status", job).stdout
    assert f"job {job}   failed: exit status 1" in shown.replace(f"job {job}  failed", f"job {job}   failed")
    assert str(plain.work / "data.sh") in shown
    assert "data/train.pt" in plain.sbatchgen("logs", job, "-n", "1").stdout
    assert json.loads(plain.sbatchgen("report", job, "--format", "json").stdout)["jobs"] == 1
    elsewhere = plain.sbatchgen("diagnose", job, cwd=cluster.home)
    assert "there is no 'data/train.pt'" in elsewhere.stdout
    refused = plain.sbatchgen("cancel", "--yes", job)
    assert (refused.returncode, refused.stderr.splitlines()[0]) == (
        2,
        f"error: {job} is a job that was not submitted by sbatchgen",
    )

    array = str(
        cluster.sbatch(
            "--array=3-5", "--wrap", "test $SLURM_ARRAY_TASK_ID = 3 || nosuchthing", cwd=plain.work
        )
    )
    named_like_a_task = str(
        cluster.sbatch(
            "-J",
            "x ArrayJobId=9 ArrayTaskId=1",
            "--output=its.log",
            "--wrap",
            "echo seen; exit 3",
            cwd=plain.work,
        )
    )
    parts = str(cluster.sbatch("-n1", ":", "-n1", "--wrap", "echo loss; nosuchpart", cwd=plain.work))
    long = str(
        cluster.sbatch(
            "--wrap", "echo step 1 loss 0.5; echo step 2 loss 0.25; exec sleep 600", cwd=plain.work
        )
    )
    cluster.wait(array)
    said = json.loads(plain.sbatchgen("diagnose", array, "--format", "json").stdout)
    assert said["says"] == f"task 4 of job {array}_4 failed, exit status 127"
    assert said["causes"][0]["cause"] == "command-not-found"
    for typed in ([f"{array}_5"], [array, "--task", "5"], [f"slurm-{array}_5.out"]):
        assert f"task 5 of job {array}_5 failed" in plain.sbatchgen("diagnose", *typed).stdout
    assert "task 5" in plain.sbatchgen("status", array).stdout
    assert "has no task 9" in plain.sbatchgen("diagnose", f"{array}_9").stderr
    cluster.wait(named_like_a_task)
    assert plain.sbatchgen("logs", named_like_a_task).stdout == "seen\n"
    cluster.wait(long, ["RUNNING"])
    cluster.until(lambda: (plain.work / f"slurm-{long}.out").read_text().count("loss") == 2, "two steps")
    assert "loss 0.25" in plain.sbatchgen("status", long).stdout
    assert "Loss" in plain.sbatchgen("plot", "--text", long).stdout
    cluster.run(["scancel", long])
    cluster.wait(parts.split("+", maxsplit=1)[0])
    assert "no command nosuchpart" in plain.sbatchgen("diagnose", parts).stdout

    scanned = plain.sbatchgen("status", "--scan", ".").stdout
    assert f"slurm-{long}.out" in scanned
    assert f"slurm-{array}_4.out" in scanned


@pytest.mark.slow
def test_what_slurm_has_forgotten_is_read_from_its_log(plain: Plain) -> None:
    trace = "Traceback (most recent call last):\nModuleNotFoundError: No module named 'einopps'\n"
    plain.cluster.put("work/slurm-99999.out", trace)
    plain.cluster.put("work/fine/slurm-99998.out", "step 1 loss 0.5\n")
    for word in ("99999", "slurm-99999.out"):
        said = plain.sbatchgen("diagnose", word).stdout
        assert said.startswith(f"{word}: job 99999 ended: Slurm does not know it any more")
        assert "most likely: this Python has no module 'einopps'" in said
    fine = plain.sbatchgen("diagnose", "fine/slurm-99998.out")
    assert (fine.returncode, fine.stdout.count("\n")) == (0, 1)
    gone = plain.sbatchgen("diagnose", "99998")
    assert gone.stderr.startswith(
        "error: Slurm knows no job 99998 any more, and this folder has no slurm-99998.out\n"
    )


@pytest.mark.proof
@pytest.mark.slow
def test_what_is_no_log_is_refused(plain: Plain) -> None:
    os.mkfifo(plain.work / "pipe.out")
    plain.cluster.put("work/data.bin", "\0\1\2" * 100)
    plain.cluster.put("work/secret.out", "x\n")
    os.chown(plain.work / "secret.out", 0, 0)
    (plain.work / "secret.out").chmod(0o600)
    for word, says in {
        "pipe.out": "not a regular file",
        "data.bin": "data.bin is not text",
        "ddp.py": "ddp.py is not a log",
        "secret.out": "Permission denied; it belongs to root",
        "nothing.out": "there is no run 'nothing.out'",
        ".": "there is no run '.'",
    }.items():
        for command in ("diagnose", "status", "logs"):
            done = plain.sbatchgen(command, word)
            assert done.returncode in (2, 3)
            assert says in done.stderr, (command, word, done.stderr)


@pytest.mark.proof
@pytest.mark.slow
def test_tasks_of_an_array_that_the_controller_has_forgotten_are_found_in_the_database(
    slurm_root: Path | None,
) -> None:
    accounts = ("add account mine", "add user alice account=mine")
    with Cluster(visible=VISIBLE, root=slurm_root, settings="MinJobAge=2\n", accounts=accounts) as cluster:
        body = "test $SLURM_ARRAY_TASK_ID = 1 && exec sleep 600; nosuchthing"
        array = cluster.sbatch("--array=0-1", "--wrap", body)
        cluster.wait(f"{array}_1", ["RUNNING"])
        ended = ["scontrol", "show", "job", f"{array}_0"]
        cluster.until(lambda: cluster.run(ended).returncode != 0, "a forgotten task", timeout=200)
        command = [str(SBATCHGEN), "diagnose", str(array), "--format", "json"]
        done = cluster.run(command, env={"PYTHONPATH": str(REPOSITORY)}, check=True)
    assert json.loads(done.stdout)["says"] == f"task 0 of job {array}_0 failed, exit status 127"
