"""The test cluster does what a real one does, and leaves nothing on the machine."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from .job import parse_jobs
from .site import BRIDGE, BRIDGE_ADDRESS, CONTROLLER
from .slurm import Cluster

BASH = "#!/bin/bash\n"


def batch(cluster: Cluster, body: str, *options: str) -> str:
    """The log of a job, once it has completed."""
    record = cluster.wait(cluster.sbatch(*options, script=BASH + body), {"COMPLETED"})
    return Path(record["StdOut"]).read_text()


def test_jobs_run_on_several_hosts_as_the_user(cluster: Cluster) -> None:
    done = cluster.run(
        ["srun", "--nodelist=n1,n2", "sh", "-c", "echo $(hostname) $(whoami) $(id -u) $HOME"], check=True
    )
    assert sorted(done.stdout.splitlines()) == [f"{node} alice 20001 {cluster.home}" for node in ("n1", "n2")]


def test_user_is_unknown_outside(cluster: Cluster) -> None:
    assert "alice" not in Path("/etc/passwd").read_text()
    assert cluster.run(["touch", "/etc/here"]).returncode == 1


def test_commands_run_in_a_clean_environment(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SBATCH_PARTITION", "nowhere")
    done = cluster.run(["sh", "-c", "pwd; env; cat"], env={"COLOUR": "blue and green"}, input="typed\n")
    folder, *variables, typed = done.stdout.splitlines()
    assert (folder, typed) == (str(cluster.home), "typed")
    names = {line.split("=")[0] for line in variables}
    assert names == {
        "COLOUR",
        "HOME",
        "LANG",
        "LOGNAME",
        "OMP_WAIT_POLICY",
        "PATH",
        "PWD",
        "SHELL",
        "SLURM_CONF",
        "USER",
    }


def test_a_command_that_takes_too_long_is_killed(cluster: Cluster) -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        cluster.run(["sleep", "1234.5"], timeout=0.3)
    commands = ["sh", "-c", "cat /proc/[0-9]*/cmdline"]
    cluster.until(lambda: "1234.5" not in cluster.run(commands).stdout, "end of sleep")


def test_tasks_on_two_nodes_talk_by_name_over_hsn0(cluster: Cluster) -> None:
    program = """
import os, socket
first, rank = os.environ["FIRST"], int(os.environ["SLURM_PROCID"])
if rank == 0:
    with socket.create_server(("", 29400)) as server:
        connection, (address, port) = server.accept()
        print(connection.recv(99).decode(), "from", address)
else:
    for attempt in range(100):
        try:
            with socket.create_connection((first, 29400), timeout=1) as connection:
                connection.sendall(socket.gethostname().encode())
            break
        except OSError:
            __import__("time").sleep(0.05)
"""
    cluster.put("talk.py", program)
    body = "export FIRST=$(scontrol show hostnames | head -n 1)\n"
    body += "srun ip -brief -4 address show hsn0\nsrun python3 talk.py\n"
    log = batch(cluster, body, "--nodes=2", "--ntasks=2", "--nodelist=n3,n4")
    assert "n4 from 10.77.0.14" in log
    assert log.count("hsn0@") == 2


def test_nodes_have_a_tmp_of_their_own(cluster: Cluster) -> None:
    body = "srun sh -c 'hostname >> /tmp/mine; cat /tmp/mine'\n"
    assert sorted(batch(cluster, body, "--nodelist=n1,n2").split()) == ["n1", "n2"]


def test_gpus_are_counted_and_numbered(cluster: Cluster) -> None:
    body = 'echo "$SLURM_GPUS_ON_NODE $CUDA_VISIBLE_DEVICES"\n'
    assert batch(cluster, body, "--gpus-per-node=2").split() == ["2", "0,1"]


def test_shards_of_one_gpu(cluster: Cluster) -> None:
    assert batch(
        cluster, 'echo "$SLURM_SHARDS_ON_NODE $CUDA_VISIBLE_DEVICES"\n', "--gres=shard:16"
    ).split() == ["16", "0"]


def test_jobs_share_a_node(cluster: Cluster) -> None:
    first = cluster.sbatch("--nodelist=n1", "--wrap=sleep 60")
    second = cluster.sbatch("--nodelist=n1", "--wrap=sleep 60")
    for job_id in (first, second):
        cluster.wait(job_id, {"RUNNING"})
    cluster.run(["scancel", str(first), str(second)], check=True)
    assert cluster.wait(second)["JobState"] == "CANCELLED"


def test_requeue_restarts_a_job_soon(cluster: Cluster) -> None:
    restarts = cluster.home / "restarts"
    job_id = cluster.sbatch(
        "--requeue", script=f"{BASH}echo ${{SLURM_RESTART_COUNT:-0}} >> {restarts}\nsleep 60\n"
    )
    cluster.until(restarts.exists, "first start")
    cluster.run(["scontrol", "requeue", str(job_id)], check=True)
    cluster.until(lambda: restarts.read_text().split() == ["0", "1"], "second start")
    assert cluster.job(job_id)["Restarts"] == "1"
    cluster.run(["scancel", str(job_id)])
    cluster.wait(job_id)


def test_a_higher_partition_preempts_a_lower_one(cluster: Cluster) -> None:
    low = cluster.sbatch("--partition=low", "--nodes=4", "--exclusive", "--wrap=sleep 60")
    cluster.wait(low, {"RUNNING"})
    high = cluster.sbatch("--partition=high", "--wrap=true")
    cluster.wait(high, {"COMPLETED"})
    assert cluster.job(low)["Restarts"] == "1"
    cluster.run(["scancel", str(low)])
    cluster.wait(low)


def test_a_failed_node_requeues_its_job_and_comes_back(cluster: Cluster) -> None:
    # The second sleep: a step that is being launched fails with the node, before Slurm knows that it is down.
    job_id = cluster.sbatch("--nodelist=n2,n3", "--nodes=2", "--wrap=srun sleep 60; sleep 60")
    cluster.wait(job_id, {"RUNNING"})
    cluster.stop_node("n3", declare=True)
    cluster.wait(job_id, {"PENDING"})
    cluster.start_node("n3")
    assert BRIDGE_ADDRESS in cluster.root(["ip", "link", "show", BRIDGE], on=CONTROLLER).stdout
    assert cluster.wait(job_id, {"RUNNING"})["Restarts"] == "1"
    cluster.run(["scancel", str(job_id)])
    cluster.wait(job_id)


def test_the_interpreter_of_the_tests_runs_in_a_job(cluster: Cluster) -> None:
    cluster.put("sum.py", "import torch\nprint(torch.ones(2).sum().item())\n")
    assert batch(cluster, f"{sys.executable} -W ignore sum.py\n").split() == ["2.0"]


def test_files_put_are_the_users(cluster: Cluster) -> None:
    path = cluster.put("a folder/run.sh", "#!/bin/sh\necho ran > result\n", mode=0o755)
    cluster.run([path], cwd=path.parent, check=True)
    assert (path.parent / "result").read_text() == "ran\n"


def test_the_checkout_is_in_sight(cluster: Cluster) -> None:
    assert "in sight" in cluster.run(["cat", Path(__file__).resolve()], check=True).stdout


def test_wait_says_what_went_wrong(cluster: Cluster) -> None:
    job_id = cluster.sbatch(script=BASH + "echo last words\nexit 3\n")
    with pytest.raises(
        TimeoutError, match=r"in state COMPLETED: it has ended\n(.*\n)*ExitCode=3:0\n(.*\n)*last words"
    ):
        cluster.wait(job_id, {"COMPLETED"})


def test_sbatch_says_what_it_refused(cluster: Cluster) -> None:
    with pytest.raises(RuntimeError, match="invalid partition specified: nowhere"):
        cluster.sbatch("--partition=nowhere", "--wrap=true")


def test_wait_knows_all_tasks_of_an_array(cluster: Cluster) -> None:
    job_id = cluster.sbatch("--array=0-2", "--wrap=exit $SLURM_ARRAY_TASK_ID")
    cluster.wait(job_id)
    assert {(job["ArrayTaskId"], job["JobState"]) for job in cluster.jobs(job_id)} == {
        ("0", "COMPLETED"),
        ("1", "FAILED"),
        ("2", "FAILED"),
    }


def test_records_with_odd_values_are_read() -> None:
    lines = [
        "JobId=7 JobName=a b=c Nice=1",
        "Priority=1 Nice=0 CPUs/Task=2",
        "Command=/a b --X=1",
        "Power=",
        "",
    ]
    assert parse_jobs("\n   ".join(lines)) == [
        {
            "JobId": "7",
            "JobName": "a b=c Nice=1",
            "Priority": "1",
            "Nice": "0",
            "CPUs/Task": "2",
            "Command": "/a b --X=1",
            "Power": "",
        }
    ]
