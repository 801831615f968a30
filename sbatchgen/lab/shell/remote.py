"""Writes the configuration by which ssh on a user's own machine reaches a session.

The ProxyCommand of ssh is `sbatchgen shell RUN --relay`. This command starts `sshd -i` in the session, and
passes its input and output on. So no port is open on the node, and ssh can forward a socket of the node.
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

# Ports of the user's own machine. A notebook gets one at random, because a user may have several notebooks.
PORTS = range(20_000, 30_000)
SOCKET = "{socket}"  # the session replaces this text by the path of its socket


def private_key_folder(environment: Mapping[str, str]) -> Path:
    """Make the private folder for the keys of ssh, and return it.

    The folder is for the host key of all sessions and for the keys that may log in. Raises DocumentError if
    other users can change the folder, or if it can't be made.
    """
    folder = index.index_file(environment).parent / "ssh"
    if not make_own(folder):
        reason = other_writer(folder)
        what = f"{folder} {reason.why}" if reason else f"can't make {folder}"
        raise DocumentError.of(f"no keys for ssh: {what}", fix=reason.fix if reason else "")
    folder.chmod(0o700)
    (folder / "authorized_keys").touch(mode=0o600)
    return folder


def host_block(record: Record, program: Path) -> str:
    """Return the lines of ~/.ssh/config by which ssh on the user's own machine reaches a session.

    `program` is the path of sbatchgen on this machine.
    """
    lines = [f"    {name} {value}" for name, value in _options(record, program).items()]
    return "\n".join([f"Host {record.run}", f"    User {_user()}", *lines])


def forwarding_commands(record: Record, node: str, program: Path) -> tuple[str, str, str]:
    """Return a port of the user's own machine, and two commands that forward it to a socket of the node.

    The first command works for nodes that allow ssh, and the second for all other nodes.
    """
    port = secrets.choice(PORTS)
    start, user = f"ssh -N -L {port}:{SOCKET}", _user()
    options = [
        f'-o "{inside_quotes(f"{name}={value}")}"' for name, value in _options(record, program).items()
    ]
    relayed = " ".join([start, *options, f"{user}@{record.run}"])
    return str(port), f"{start} -J {user}@{_login_host()} {user}@{node}", relayed


def _options(record: Record, program: Path) -> dict[str, str]:
    """Return the options of ssh for a session."""
    login = _login_host()
    relay = words((str(program), "shell", record.run, "--relay"))
    if not is_plain(relay.replace(" ", "")):  # two shells read the words: on both machines
        relay = word(relay)
    return {
        "HostKeyAlias": f"sbatchgen-{login}",
        "StrictHostKeyChecking": "accept-new",
        "ProxyCommand": f"ssh {_user()}@{login} {relay}".replace("%", "%%"),
    }


def _login_host() -> str:
    """Return the full name of this machine, or its short name if the full name is localhost."""
    name = socket.getfqdn()
    return socket.gethostname() if name.startswith("localhost") else name


def _user() -> str:
    """Return the name of this user on this machine, and so on the node."""
    return user_name(os.getuid())
