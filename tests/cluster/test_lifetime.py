"""Hosts and clusters start beside each other and leave nothing on the machine, however they end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from . import config
from .host import Host, User
from .mounts import reveal
from .site import until
from .slurm import Cluster

pytestmark = pytest.mark.usefixtures("real_slurm")


def test_two_clusters_at_once_that_leave_nothing_behind() -> None:
    with Cluster() as first, Cluster() as other:
        assert first.run(["srun", "hostname"]).stdout == other.run(["srun", "hostname"]).stdout == "n1\n"
        networks = networks_of(first) | networks_of(other)
        assert len(networks) == 12
    assert not users_of(networks)
    assert not first.home.exists()
    assert str(first.home.parents[1]) not in Path("/proc/self/mounts").read_text()


def test_paths_in_closed_folders_can_be_revealed(tmp_path: Path) -> None:
    inner = tmp_path / "closed" / "inner"
    (inner / "deep").mkdir(parents=True)
    (inner / "deep" / "file").write_text("read me")
    stage = tmp_path / "stage"
    stage.mkdir()
    stage.chmod(0o755)
    for path, mode in ((tmp_path / "closed", 0o700), (inner, 0o700), (inner / "deep", 0o755)):
        path.chmod(mode)
    (inner / "deep" / "file").chmod(0o644)
    user = User(name="nobody", uid=65534, home=Path("/"))
    with Host("one", setup=reveal([inner, stage], stage=stage)) as host:
        assert host.run(["cat", inner / "deep" / "file"], user=user).stdout == "read me"
    assert inner.stat().st_mode & 0o777 == 0o700


def test_a_cluster_that_cannot_start_says_why_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    before = children()
    monkeypatch.setattr(config, "RUNNING", config.RUNNING.replace("MinJobAge=3600", "MinJobAge=soon"))
    with (
        pytest.raises(RuntimeError, match=r"slurmctld ended at once\n(.*\n)*.*MinJobAge value \(soon\)"),
        Cluster(),
    ):
        pass
    assert children() == before


def test_a_crash_of_the_tests_ends_the_cluster() -> None:
    program = """
import time
from tests.cluster.slurm import Cluster
from tests.cluster.test_lifetime import networks_of
with Cluster() as cluster:
    print(cluster.home.parents[1], *networks_of(cluster), flush=True)
    time.sleep(600)
"""
    command = [sys.executable, "-c", program]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2])
    assert process.stdout
    with process.stdout:
        folder, *networks = process.stdout.readline().split()
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert len(networks) == 6
    until(lambda: not users_of(set(networks)), "end of all processes")
    subprocess.run(["rm", "-r", folder], check=True)  # all that a killed process cannot take with it


def networks_of(cluster: Cluster) -> set[str]:
    return {str(Path(f"/proc/{host.pid}/ns/net").readlink()) for host in cluster._hosts.values()}


def users_of(networks: set[str]) -> list[int]:
    """The processes in any of these network namespaces."""
    pids = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if str((process / "ns" / "net").readlink()) in networks:
                pids.append(int(process.name))
        except OSError:  # it has just ended
            pass
    return pids


def children() -> str:
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text()
