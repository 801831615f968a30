"""The first job of a newcomer on a login node, who names no profile and mistakes the rest too."""

from __future__ import annotations

import shlex
import sys

from tests.cluster.fixtures import on_one_release
from tests.cluster.slurm import Cluster
from tests.jobs.jobs import SBATCHGEN

WHERE = "import os, sys\nprint('ran on', os.uname().nodename, 'in', sys.prefix)\n"


@on_one_release
def test_it_runs_on_the_cluster_and_in_the_environment_that_is_named(cluster: Cluster) -> None:
    cluster.put("first/train.py", WHERE)
    work = cluster.home / "first"

    def type_(*words: object) -> tuple[int, str, str]:
        done = cluster.run([SBATCHGEN, *map(str, words)], cwd=work)
        return done.returncode, done.stdout, done.stderr

    ask = ("submit", "cpu", "--trainer", "train.py", "--venv", sys.prefix, "--yes")
    status, _, answer = type_(*ask)
    assert (status, (work / "runs").exists()) == (2, False)
    command = answer.partition("fix: ")[2].partition("sbatchgen ")[2].partition(";")[0]
    assert type_(*shlex.split(command))[0] == 0, command

    status, job, said = type_(*ask)
    assert status == 0, said
    assert "profile: mycluster, it is your only profile" in said
    cluster.wait(int(job), {"COMPLETED"})
    log = (work / f"runs/cpu/cpu-{int(job)}.out").read_text()
    assert f"in {sys.prefix}" in log
    assert "ran on n" in log  # a node, not the login node
    assert type_("status", "runs/cpu")[0] == 0

    assert "keep one of --venv and --runtime" in type_(*ask, "--runtime", "host")[2]
    assert "is a Python program" in type_("submit", "train.py", "--yes")[2]
