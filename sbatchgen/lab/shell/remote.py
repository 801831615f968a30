"""The way from a user's own machine to a session: ssh, whose server is a program of the session.

`sbatchgen shell RUN --relay` is the ProxyCommand of that ssh. `sshd -i` on the node reads its input
and writes its output. So no port is open there, and a socket of the node can be forwarded.
"""

import os
import secrets
import socket
from collections.abc import Mapping
from pathlib import Path

from sbatchgen.base.errors import DocumentError
from sbatchgen.base.machine.trust import make_own, other_writer, user_name
from sbatchgen.base.quoting import inside_quotes, is_plain, word, words
from sbatchgen.jobs.runs import index
from sbatchgen.jobs.runs.record import Record

PORTS = range(20_000, 30_000)  # on the user's own machine, which may have several notebooks
SOCKET = "{socket}"  # which the session replaces


def own_keys(environment: Mapping[str, str]) -> Path:
    """Return the private folder with the host key of all sessions, and the keys of users who may enter.

    Raises DocumentError: others can change the folder.
    """
    folder = index.place(environment).parent / "ssh"
    if not make_own(folder):
        reason = other_writer(folder)
        what = f"{folder} {reason.why}" if reason else f"can't make {folder}"
        raise DocumentError.of(f"no keys for ssh: {what}", fix=reason.fix if reason else "")
    folder.chmod(0o700)
    (folder / "authorized_keys").touch(mode=0o600)
    return folder


def host_block(about: Record, program: Path) -> str:
    """Return the lines of ~/.ssh/config by which ssh on the user's own machine reaches a session."""
    lines = [f"    {name} {value}" for name, value in _options(about, program).items()]
    return "\n".join([f"Host {about.run}", f"    User {_user()}", *lines])


def forwards(about: Record, node: str, program: Path) -> tuple[str, str, str]:
    """Return a port of the user's own machine, and the commands that bring a socket of the node there.

    The first command is for nodes that take ssh, the second one for all others.
    """
    port = secrets.choice(PORTS)
    start, user = f"ssh -N -L {port}:{SOCKET}", _user()
    options = [f'-o "{inside_quotes(f"{name}={value}")}"' for name, value in _options(about, program).items()]
    relayed = " ".join([start, *options, f"{user}@{about.run}"])
    return str(port), f"{start} -J {user}@{_login()} {user}@{node}", relayed


def _options(about: Record, program: Path) -> dict[str, str]:
    login = _login()
    relay = words((str(program), "shell", about.run, "--relay"))
    if not is_plain(relay.replace(" ", "")):  # the shell of the user's own machine reads the words first
        relay = word(relay)
    return {
        "HostKeyAlias": f"sbatchgen-{login}",
        "StrictHostKeyChecking": "accept-new",
        "ProxyCommand": f"ssh {_user()}@{login} {relay}".replace("%", "%%"),
    }


def _login() -> str:
    """Return the name of this machine: its full name, if it has any but localhost."""
    name = socket.getfqdn()
    return socket.gethostname() if name.startswith("localhost") else name


def _user() -> str:
    return user_name(os.getuid())
