"""ssh on the test cluster: its user starts sshd on a host, and has a machine of his own."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from .slurm import Cluster

PORT = 2222
SSHD = shutil.which("sshd", path="/usr/sbin:/sbin")
CONFIG = f"""
Port {PORT}
HostKey {{folder}}/host
PidFile {{folder}}/pid-{{host}}
UsePAM no
"""
KEYS = """
mkdir -p -m 700 ~/.ssh ~/sshd
for key in .ssh/id_ed25519 sshd/host sshd/stranger; do ssh-keygen -q -t ed25519 -N '' -f ~/$key; done
cp ~/.ssh/id_ed25519.pub ~/.ssh/authorized_keys
"""


@contextmanager
def served(cluster: Cluster, hosts: Sequence[str]) -> Iterator[None]:
    """Some hosts take ssh of the user, whose configuration knows how; all that is for ssh ends with this."""
    assert SSHD, "needs the Debian package openssh-server"
    folder = cluster.home / "sshd"
    cluster.run(["sh", "-e", "-c", KEYS], check=True)
    configure(cluster, "")
    try:
        for host in hosts:
            config = cluster.put(f"sshd/{host}", CONFIG.format(folder=folder, host=host))
            cluster.run([SSHD, "-f", config], on=host, check=True)
            cluster.until((folder / f"pid-{host}").exists, f"sshd on {host}")
        yield
    finally:
        for host in hosts:
            cluster.run(["sh", "-c", f"kill $(cat {folder}/pid-{host})"], on=host)
        cluster.run(["rm", "-r", cluster.home / ".ssh", folder])


def configure(cluster: Cluster, more: str) -> None:
    """Write the user's ~/.ssh/config, with further lines."""
    hosts = f"Host login n?\n    Port {PORT}\n    StrictHostKeyChecking accept-new\n"
    cluster.put(".ssh/config", f"{hosts}    LogLevel ERROR\n{more}", mode=0o600)


@contextmanager
def terminals_of(cluster: Cluster, host: str) -> Iterator[None]:
    """Terminals of a host belong to the group tty, as on each machine with systemd; sshd asks for it."""
    options = "newinstance,gid=tty,mode=620,ptmxmode=666"
    cluster.root(["mount", "-t", "devpts", "-o", options, "devpts", "/dev/pts"], on=host)
    yield
    cluster.root(["umount", "--lazy", "/dev/pts"], on=host)
