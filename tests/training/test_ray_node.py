"""Ray on each node of a program: what its own limit for a busy node does."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY
from training.ray_node import STARTED, TIMED_OUT, address_of

NODE = REPOSITORY / "training/ray_node.py"
# A Ray that gives up at its first starts; from then on its module, which the count of nodes imports, knows one node.
RAY = f"""#!/bin/bash
[[ $1 == start ]] || exec echo "ray, version 2.60.0"
echo start >>starts
if (($(wc -l <starts) <= FAILURES)); then
    echo "Exception: $SAYS. This could happen because some of the raylet failed to startup" >&2
    exit 1
fi
echo "{STARTED}."
exec sleep 600
"""
MODULE = "def init(**_): pass\ndef nodes(): return [1]\n"


@pytest.mark.parametrize(
    ("failures", "says", "status", "starts"),
    [(0, "", 7, 1), (2, TIMED_OUT, 7, 3), (1, "Address already in use", 1, 1)],
    ids=["healthy", "busy", "broken"],
)
def test_a_first_node_that_was_too_busy_starts_again(
    failures: int, says: str, status: int, starts: int, tmp_path: Path
) -> None:
    program = tmp_path / "bin/ray"
    program.parent.mkdir()
    program.write_text(RAY.replace("FAILURES", str(failures)))
    program.chmod(0o755)
    (tmp_path / "ray.py").write_text(MODULE)
    environment = {
        "PATH": f"{program.parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(tmp_path),
        "SAYS": says,
        "SLURM_JOB_ID": str(os.getpid()),
    }
    asked = ["--folder", str(tmp_path), "--name", "ray", "--hosts", "localhost", "--port", "1"]
    done = subprocess.run(
        [sys.executable, NODE, *asked, "--", "bash", "-c", "echo trained; exit 7"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == status, done.stderr
    assert len((tmp_path / "starts").read_text().splitlines()) == starts
    assert ("trained" in done.stdout) == (status == 7)
    assert says in done.stderr
    assert ("ray gave up" in done.stderr) == (starts > 1)
    assert (tmp_path / "ray.ready").exists() == (status == 7)


# A Ray whose first node listens; each notes its options, its limit of open files and its token, and at TERM its end.
RAY_OF_TWO = f"""#!{sys.executable}
import os, resource, signal, socket, sys, time
if sys.argv[1] != "start":
    sys.exit(print("ray, version 2.60.0"))
options = dict(word.lstrip("-").partition("=")[::2] for word in sys.argv[2:])
name = "first" if "head" in options else "other"
def note(*words):
    with open("notes", "a") as file:
        print(name, *words, file=file)
def end(*_):
    note("ends")
    os._exit(0)
signal.signal(signal.SIGTERM, end)
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
note("files", soft == min(hard, 65536))
note(os.environ["RAY_AUTH_MODE"], os.environ["RAY_AUTH_TOKEN_PATH"])
if name == "first":
    note("at", options["node-ip-address"])
    place = socket.create_server(("127.0.0.1", int(options["port"])))
    logs = options["temp-dir"] + "/session_latest/logs"
    os.makedirs(logs)
    open(logs + "/raylet.out", "w").write("said by raylet")
print("{STARTED}.", flush=True)
while True:
    time.sleep(1)
"""


def test_two_nodes_share_a_private_token_end_in_order_and_keep_their_logs(tmp_path: Path) -> None:
    program = tmp_path / "bin/ray"
    program.parent.mkdir()
    program.write_text(RAY_OF_TWO)
    program.chmod(0o755)
    (tmp_path / "ray.py").write_text(MODULE.replace("[1]", "[1, 2]"))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    asked = [
        "--folder",
        str(tmp_path),
        "--name",
        "ray",
        "--hosts",
        "localhost,localhost",
        "--port",
        str(port),
    ]
    words = ["bash", "-c", 'ulimit -Sn 256; exec "$@"', "task", sys.executable, str(NODE), *asked, "--"]
    known = {
        "PATH": f"{program.parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(tmp_path),
        "SLURM_NTASKS": "2",
    }
    tasks = []
    for rank in (0, 1):
        environment = known | {"SLURM_PROCID": str(rank), "SLURM_JOB_ID": f"{os.getpid()}{rank}"}
        wait = "until grep -q ^other notes; do sleep 0.1; done; exit 5"
        tasks.append(subprocess.Popen([*words, "bash", "-c", wait], cwd=tmp_path, env=environment))
    assert [task.wait() for task in tasks] == [5, 0]
    token = tmp_path / "ray.token"
    notes = (tmp_path / "notes").read_text().splitlines()
    for name in ("first", "other"):
        assert f"{name} files True" in notes
        assert f"{name} token {token}" in notes
    assert stat.S_IMODE(token.stat().st_mode) == 0o600
    assert "first at 127.0.0.1" in notes
    assert notes[-2:] == [
        "other ends",
        "first ends",
    ]  # a worker without its head asks for it for half a minute
    (log,) = (tmp_path / "ray-logs").rglob("raylet.out")
    assert log.read_text() == "said by raylet"


def test_a_first_node_is_named_by_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"n1": "10.0.0.1", "alias": "127.0.1.1"}

    def ask(host: str, *_: object) -> list[tuple[object, ...]]:
        return [(0, 0, 0, "", (known[host], 0))]

    monkeypatch.setattr(socket, "getaddrinfo", ask)
    assert [address_of([host], is_own=own) for host in known for own in (False, True)] == [
        "10.0.0.1", "10.0.0.1", "alias", "127.0.0.1",
    ]  # fmt: skip


def test_the_sentence_is_the_one_of_the_installed_ray() -> None:
    spec = find_spec("ray")
    if spec is None or spec.origin is None:
        pytest.skip("needs ray, which the oldest environment lacks")
    node = Path(spec.origin).parent / "_private/node.py"
    assert TIMED_OUT in node.read_text(), version("ray")
