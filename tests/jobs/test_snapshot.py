"""`submit --snapshot` on a real Slurm: a job runs the code of its submission, whatever is edited meanwhile."""

from __future__ import annotations

import shutil

from tests.cluster.fixtures import on_one_release
from tests.cluster.slurm import Cluster
from tests.jobs.jobs import PROFILE, SBATCHGEN

TRAINER = "import os, helper\nprint(helper.VERSION, os.getcwd(), flush=True)\n"


@on_one_release
def test_a_job_that_waits_runs_the_code_of_its_submission(cluster: Cluster) -> None:
    work = cluster.home / "repo/deep er"
    cluster.put("repo/deep er/testing.yaml", PROFILE)
    cluster.put("repo/deep er/train.py", TRAINER)
    cluster.put("repo/deep er/helper.py", "VERSION = 'reviewed'\n")

    def run(*words: object) -> str:
        return cluster.run([str(word) for word in words], cwd=work, check=True).stdout

    run("git", "init", "--quiet", "..")
    run("git", "add", "train.py", "helper.py")
    run("git", "-c", "user.name=a", "-c", "user.email=a@example.org", "commit", "--quiet", "-m", "first")
    ask = (SBATCHGEN, "submit", "cpu", "--job-name", "copied", "--profile", "./testing.yaml", "--yes")
    job = int(
        run(
            *ask,
            "--trainer",
            "train.py",
            "--resume",
            "auto",
            "--snapshot",
            "--set",
            "extra_options.hold=true",
        )
    )
    cluster.put("repo/deep er/helper.py", "VERSION = 'edited'\n")
    runs = work / "runs/copied"
    (place,) = runs.glob("code-*")
    log = runs / f"copied-{job}.out"
    run("scontrol", "release", job)
    cluster.wait(job, {"COMPLETED"})
    ran = f"reviewed {place}/deep er\n"
    assert ran in log.read_text()
    run("scontrol", "requeue", job)
    cluster.wait(job, {"COMPLETED"})
    assert log.read_text().count(ran) == 2
    resumed = int(run(SBATCHGEN, "resume", "copied", "--yes"))
    run("scontrol", "release", resumed)
    cluster.wait(resumed, {"COMPLETED"})
    assert ran in (runs / f"copied-{resumed}.out").read_text()
    new = int(run(SBATCHGEN, "resume", "copied", "--yes", "--snapshot"))
    shutil.rmtree(place)  # of the earlier jobs
    (later,) = runs.glob("code-*")
    run("scontrol", "release", new)
    cluster.wait(new, {"COMPLETED"})
    assert f"edited {later}/deep er\n" in (runs / f"copied-{new}.out").read_text()
