"""A job that ends with status 0 though its program has crashed: what the logs say counts, also those of stderr."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sbatchgen.jobs.runs.failure import crash_line
from tests.cluster.fixtures import FIRST, on_one_release
from tests.cluster.slurm import Cluster
from tests.conftest import Command
from tests.jobs.jobs import Site, site_on
from tests.runs.test_diagnosis import run_of

TRACEBACK = """Traceback (most recent call last):
  File "/w/train.py", line 3, in <module>
    train()
ValueError: the loss is nan
"""
ELASTIC = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: "


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (TRACEBACK, 4),
        (f"epoch 1\n{TRACEBACK}Training completed!\n", 5),
        ("[rank1]: " + TRACEBACK.replace("\n", "\n[rank1]: "), 4),
        (f"E1122 12:00:01.123456 7 torch/x.py:1] failed (exitcode: 1)\n{TRACEBACK}", 5),
        (f"{ELASTIC}\ntrain.py FAILED\n", 1),
        ("srun: error: n1: task 0: Exited with exit code 3\nbye\n", 1),
        ("srun: error: n2: tasks 0-3: Killed\n", 1),
        ("/spool/job7/slurm_script: line 5:  4711 Killed                  python train.py\n", 1),
        (f"ERROR:root:a sample is broken\n{TRACEBACK}epoch 2\n", 0),
        (f"2026-11-22 10:00:00 WARNING skipped\n{TRACEBACK}epoch 2\n", 0),
        (f"Exception ignored in: <function x>\n{TRACEBACK}", 0),
        (f"Exception in thread Thread-1:\n{TRACEBACK}", 0),
        (TRACEBACK + "epoch 2\n" * 100, 0),
        ("ValueError: is only a word here\n", 0),
        ("srun: error: n1: task 0: Exited with exit code 0\n", 0),
        ("", 0),
    ],
)
def test_what_says_that_a_program_has_crashed(text: str, line: int) -> None:
    seen = crash_line([*enumerate(text.splitlines(), 1)])
    assert (seen[0] if seen else 0) == line


def test_a_job_that_slurm_calls_completed_has_errors_in_its_log(
    folder: Path, programs: Path, command: Command
) -> None:
    run_of(folder, programs, "COMPLETED", 0, f"epoch 1\n{TRACEBACK}Training completed!\n".encode())
    assert "completed, with errors in the log" in command("status").out
    assert "diagnose ddp says why" in command("status", "ddp").err
    shown = command("diagnose", "ddp").out.splitlines()
    assert shown[0] == "ddp: job 4711 completed, with errors in the log"
    assert f"{folder}/runs/ddp/ddp-4711.out:5: ValueError: the loss is nan" in "\n".join(shown)
    assert json.loads(command("diagnose", "ddp", "--format", "json").out)["failed"] is True


SCRIPT = """#!/bin/bash
#SBATCH --job-name={name} --time=5 --mem=200M --output=%x-%j.log {more}
{launch}
echo 'Training completed!'
"""
# The same as SB312's: what starts the program, and the line that shows its end.
HIDING = {
    "srun": ("srun python3 -u fails.py", "ValueError: the loss is nan"),
    "plain": ("python3 -u fails.py\ndate\nstatus=$?\nexit $status", "ValueError: the loss is nan"),
    "killed": ("srun bash -c 'kill -9 $$'", "Killed"),
    "pipeline": ("./run.sh\ncp /etc/hostname .", "ValueError: the loss is nan"),
}


@pytest.mark.proof
@pytest.mark.slow
def test_a_last_command_hides_no_crash(cluster: Cluster, slurm_release: str) -> None:
    """The jobs run side by side; on the later Slurm those of which Slurm itself prints a line."""
    site, jobs = site_on(cluster), {}
    cluster.put("work/fails.py", "print('epoch 1')\nraise ValueError('the loss is nan')\n")
    cluster.put("work/run.sh", "#!/bin/bash\npython3 -u fails.py\n")
    (site.folder / "run.sh").chmod(0o755)
    for name in [*HIDING, "srun-apart"] if slurm_release == FIRST else ["srun-apart", "killed"]:
        launch, _ = HIDING[name.partition("-")[0]]
        apart = "--error=%x-%j.err" * name.endswith("-apart")
        cluster.put(f"work/{name}.sh", SCRIPT.format(name=name, more=apart, launch=launch))
        jobs[name] = site.sbatchgen("submit", f"{name}.sh", "--yes", check=True).stdout.strip()
    for name, job in jobs.items():
        shows_the_crash(site, name, job)


def shows_the_crash(site: Site, name: str, job: str) -> None:
    _, says = HIDING[name.partition("-")[0]]
    site.cluster.wait(int(job), {"COMPLETED"})
    status = site.sbatchgen("status", name, check=True).stdout
    assert "completed, with errors in the log" in status
    shown = site.sbatchgen("diagnose", name, check=True).stdout
    assert f"{name}: job {job} completed, with errors in the log" in shown
    assert says in shown, shown
    assert says in site.sbatchgen("logs", name, check=True).stdout
    if name.endswith("-apart"):
        assert f"{name}-{job}.err" in shown
        assert f"{name}-{job}.err" in status


@pytest.mark.proof
@pytest.mark.slow
@on_one_release
def test_a_job_that_completes_has_no_errors(cluster: Cluster) -> None:
    site = site_on(cluster)
    cluster.put(
        "work/whole.sh", SCRIPT.format(name="whole", more="--error=%x-%j.err", launch="echo fine >&2")
    )
    done = site.sbatchgen("submit", "whole.sh", "--yes", "--follow", check=True)
    assert {"fine", "Training completed!"} <= {*done.stdout.splitlines()}
    assert "errors in" not in site.sbatchgen("status", "whole", check=True).stdout
    assert site.sbatchgen("diagnose", "whole", check=True).stdout.endswith(" completed\n")
