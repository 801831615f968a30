"""Shells of jobs that a user reaches from his own machine: by ssh, and with a notebook, on a real Slurm."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator

import pexpect
import pytest

from tests.cluster import ssh
from tests.cluster.fixtures import on_one_release
from tests.cluster.slurm import TMP
from tests.jobs.jobs import PROFILE, SBATCHGEN, Site
from tests.jobs.test_shell import PROMPT, SINGLE, Terminals, job_of, no_job, site, terminals, typed

__all__ = ["site", "terminals"]
OWN = "n4"  # the user's own machine
KEPT = (*SINGLE, "--yes", "--job-name", "kept", "--keep", "1h")


@pytest.fixture
def login(site: Site) -> Iterator[None]:
    """The login node takes ssh."""
    with ssh.served(site.cluster, ["login"]), ssh.terminals_of(site.cluster, "n1"):
        yield


def no_folders(site: Site) -> None:
    """The first node has no folder of a session any more."""
    words = ["find", str(TMP), "-maxdepth", "1", "-name", "sbatchgen-*"]
    site.cluster.until(lambda: not site.cluster.root(words, on="n1").stdout, "no folder on n1")


@pytest.mark.usefixtures("login")
def test_ssh_opens_shells_of_a_job(site: Site, terminals: Terminals) -> None:
    """Commands with their input and status, all bytes, files, and a terminal; a lost line leaves nothing."""
    cluster = site.cluster
    bashrc = cluster.put(".bashrc", "echo of bashrc\n")  # which would end scp
    job = job_of(terminals.shell(*KEPT))
    lines = site.sbatchgen("shell", "kept-shell", "--ssh-config", check=True).stdout
    assert lines.startswith("Host kept-shell\n")
    ssh.configure(cluster, lines)
    says = "echo $SLURM_JOB_ID $RUN_DIR $CUDA_VISIBLE_DEVICES; train; exit 7"
    done = cluster.run(["ssh", "kept-shell", says], on=OWN)
    assert (done.stdout, done.returncode) == (f"{job} {site.folder}/runs/kept 0\ntrained\n", 7)
    assert "srun" not in done.stderr  # whose step ends with the 255 of sshd
    copied = "head -c 3000000 /dev/urandom >bytes && ssh kept-shell cat <bytes | cmp - bytes"
    cluster.run(["sh", "-c", copied], on=OWN, check=True)
    done = cluster.run(["ssh", "-T", "kept-shell"], on=OWN, input="echo $SLURM_JOB_ID\ntrain; exit 3\n")
    assert (done.stdout, done.returncode) == (f"{job}\ntrained\n", 3)
    cluster.run(["scp", "kept-shell:probe.py", "copy.py"], on=OWN, check=True)
    bashrc.unlink()
    assert (cluster.home / "copy.py").read_text() == (site.folder / "probe.py").read_text()

    terminal = cluster.terminal(["ssh", "kept-shell"], on=OWN)
    terminal.expect(PROMPT)
    assert job_of(terminal) == job
    assert "33 111" in typed(terminal, "stty size")
    typed(terminal, "train sleep", "trained")
    terminal.sendintr()
    terminal.expect(PROMPT)
    assert "status 130" in typed(terminal, "echo status $?")
    typed(terminal, "train sleep", "trained")
    terminal.close(force=True)
    no_folders(site)
    left = ["pgrep", "sshd|sleep", "--uid", cluster.user]
    cluster.until(
        lambda: not cluster.root(left, on="n1", check=False).stdout, "no process of the session on n1"
    )
    site.sbatchgen("cancel", "kept-shell", "--yes", check=True)
    no_job(site)


@pytest.mark.proof
@on_one_release
@pytest.mark.usefixtures("login")
def test_ssh_without_a_session_of_its_own_keeps_the_job(site: Site, terminals: Terminals) -> None:
    """A connection that only forwards is a terminal too; the job ends with it. A stranger's key is refused."""
    first = terminals.shell(*SINGLE, "--yes", "--job-name", "brief")
    lines = site.sbatchgen("shell", "brief-shell", "--ssh-config", check=True).stdout
    ssh.configure(site.cluster, lines)
    keys = site.cluster.home / ".local/state/sbatchgen/ssh"
    assert keys.stat().st_mode & 0o777 == 0o700
    strange = ["-i", "sshd/stranger", "-o", "IdentitiesOnly=yes"]
    refused = site.cluster.run(["ssh", *strange, "brief-shell", "touch", "here"], on=OWN)
    assert (refused.returncode, "Permission denied (publickey)" in refused.stderr) == (255, True)
    assert (keys / "host_key").stat().st_mode & 0o777 == 0o600
    site.cluster.run(["sh", "-c", f"cat sshd/stranger.pub >>{keys}/authorized_keys"], check=True)
    site.cluster.run(["ssh", *strange, "brief-shell", "true"], on=OWN, check=True)

    other = site.cluster.terminal(["ssh", "-v", "-N", "brief-shell"], on=OWN)
    other.expect("Authenticated to brief-shell")
    first.sendeof()
    first.expect(pexpect.EOF)
    assert "RUNNING" in site.cluster.run(["squeue", "--noheader", "--format=%T"]).stdout
    other.close(force=True)
    no_folders(site)
    no_job(site)


CLIENT = """
import json, sys, urllib.request, websocket
page, token = "localhost:" + sys.argv[3], sys.argv[1]
with urllib.request.urlopen(f"http://{page}/lab?token={token}") as lab:
    print("JupyterLab" in lab.read().decode())
url = f"{page}/api/kernels"
proof = {"Authorization": f"token {token}"}
kernel = json.load(urllib.request.urlopen(urllib.request.Request(f"http://{url}", b"{}", proof)))["id"]
channel = websocket.create_connection(f"ws://{url}/{kernel}/channels", header=proof, timeout=300)
header = {"msg_id": "1", "msg_type": "execute_request", "username": "", "session": "2", "version": "5.3", "date": ""}
channel.send(json.dumps({"header": header, "parent_header": {}, "metadata": {}, "channel": "shell", "buffers": [],
                         "content": {"code": sys.argv[2], "silent": False}}))
while (message := json.loads(channel.recv()))["msg_type"] != "execute_reply":
    if message["msg_type"] in ("stream", "error"):
        print(message["content"].get("text", message["content"]), end="")
"""
CODE = (
    "import os, torch; print(torch.ones(2).sum().item(), os.environ['RUN_DIR'], os.environ['SLURM_JOB_ID'])"
)
STRANGER = """
import os, socket, sys
os.setgid(65534)
os.setuid(65534)
socket.socket(socket.AF_UNIX).connect(sys.argv[1])
"""


@pytest.mark.proof
@on_one_release
@pytest.mark.parametrize("way", ["relay", "ssh_nodes"])
def test_a_notebook_is_reached_from_elsewhere(site: Site, terminals: Terminals, way: str) -> None:
    """By the printed command; a kernel runs torch as the job does. Another user of the node can't connect."""
    interactive = "interactive: {ssh_nodes: true}\n" if way == "ssh_nodes" else ""
    site.cluster.put("work/notebook.yaml", PROFILE + interactive)
    with ssh.served(site.cluster, ["login", "n1"] if interactive else ["login"]):
        words = ("shell", *SINGLE, "--yes", "--job-name", "book", "--profile", "./notebook.yaml", "--jupyter")
        server = site.cluster.terminal([SBATCHGEN, *words], cwd=site.folder)
        terminals.opened.append(server)
        server.expect(r"On your own machine: (ssh [^\r]*)\r")
        command = server.match[1]  # type: ignore[index]
        server.expect(r"Then open http://localhost:(\d+)/\?token=([^\r]*)\r")
        port, token = server.match.groups()  # type: ignore[union-attr]
        assert f" -L {port}:/tmp/" in command
        server.expect("Use Control-C")
        assert ("-J alice@login" in command) == bool(interactive)
        forward = site.cluster.terminal([*shlex.split(command), "-v"], on=OWN)
        terminals.opened.append(forward)
        forward.expect("Local forwarding listening on")
        done = site.cluster.run([sys.executable, "-c", CLIENT, token, CODE, port], on=OWN)
        assert done.stdout.startswith(f"True\n2.0 {site.folder}/runs/book "), done.stderr
        assert site.cluster.run([sys.executable, "-c", CLIENT, "", CODE, port], on=OWN).returncode
        socket = command.split(":")[1].split()[0]
        refused = site.cluster.root(["python3", "-c", STRANGER, socket], on="n1", check=False)
        assert "PermissionError" in refused.stderr
        texts = [
            "sh",
            "-c",
            "cat .local/state/sbatchgen/runs/*/*.out; cat /proc/[0-9]*/cmdline | tr '\\0' ' '",
        ]
        assert token not in site.cluster.run(texts, on="n1").stdout
        forward.close(force=True)
        server.sendintr()
        server.expect("Shut ?down")
        server.sendline("y")
        server.expect(pexpect.EOF)
    no_folders(site)
    no_job(site)


@pytest.mark.proof
@on_one_release
def test_a_closed_terminal_ends_a_notebook(site: Site, terminals: Terminals) -> None:
    terminals.shell(*SINGLE, "--yes", "--job-name", "other", "--keep", "1h")
    server = site.cluster.terminal([SBATCHGEN, "shell", "other-shell", "--jupyter"], cwd=site.folder)
    server.expect("Use Control-C")
    server.close(force=True)
    no_folders(site)
    server_of_user = ["pgrep", "--full", "jupyterlab"]
    gone = "no server of the notebook on n1"
    site.cluster.until(lambda: not site.cluster.root(server_of_user, on="n1", check=False).stdout, gone)
    assert "RUNNING" in site.cluster.run(["squeue", "--noheader", "--format=%T"]).stdout


@on_one_release
def test_a_job_without_jupyter_says_so(site: Site) -> None:
    done = site.sbatchgen("shell", *SINGLE, "--yes", "--runtime", "host", "--jupyter")
    assert done.returncode == 1
    assert "the environment of this job has no Jupyter; fix: python3 -m pip install jupyterlab" in done.stderr
    no_job(site)
