"""A host: a hostname, a network, processes and mounts of its own, made of Linux namespaces.

Needs root, util-linux and iproute2. All of a host ends with its first process, and that one with the process
that made the host, so nothing survives a crash of the tests. Hosts made within another host end with it.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import final

KINDS = ("mount", "uts", "ipc", "net", "pid")
UMASK = 0o022
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
DIE_WITH_PARENT = ("setpriv", "--pdeathsig", "KILL")

# An ignored SIGCHLD survives exec and makes the kernel reap the orphans that a first process inherits.
FIRST_PROCESS = "exec env --ignore-signal=CHLD sleep infinity"


@dataclass(frozen=True, kw_only=True)
class User:
    """Who a command runs as, and the home folder it gets."""

    name: str
    uid: int
    home: Path


ROOT = User(name="root", uid=0, home=Path("/"))


@final
class Host:
    """One set of namespaces, up from the constructor until `stop`.

    The host must be made by a thread that outlives it: the kernel's parent-death signal goes by thread.
    """

    def __init__(self, name: str, *, within: Host | None = None, setup: Sequence[str] = ()) -> None:
        """Bring the host up.

        Args:
            name: The hostname.
            within: The host whose mounts this one starts from, and with which it ends.
            setup: Shell lines to run as root inside, before anything else.

        Raises:
            RuntimeError: If a namespace or a setup line fails; the text is what the shell said.
        """
        self.name = name
        self.pid = 0
        self._processes: list[subprocess.Popen[str]] = []
        lines = [
            "set -e",
            f"hostname {shlex.quote(name)}",
            "ip link set lo up",
            *setup,
            "echo ready",
            FIRST_PROCESS,
        ]
        unshare = ["unshare", *(f"--{kind}" for kind in KINDS), "--fork", "--kill-child", "--mount-proc"]
        outside = within._enter() if within else []
        try:
            process = subprocess.Popen(
                [*DIE_WITH_PARENT, *outside, *unshare, "sh", "-c", "\n".join(lines)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                env={"PATH": PATH},
                cwd="/",
                umask=UMASK,
                start_new_session=True,  # Ctrl-C is for the tests, which then stop the host in good order
            )
            self._processes.append(process)
            _await_ready(process, name)
            self.pid = _youngest(process.pid)
        except BaseException:
            self.stop()
            raise

    def run(
        self,
        argv: Sequence[str | Path],
        *,
        user: User = ROOT,
        cwd: Path = Path("/"),
        env: Mapping[str, str] | None = None,
        check: bool = True,
        timeout: float = 600,
        stdin: str = "",
        here: bool = False,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end, without a terminal, in exactly this environment.

        With `here`, it sees the file system of this machine, whatever the host sees.

        Raises:
            RuntimeError: If it fails and check is set; the text holds what it said.
            subprocess.TimeoutExpired: If it takes longer than the timeout, in seconds; it is killed.
        """
        arguments = [str(argument) for argument in argv]
        done = subprocess.run(
            self._command(arguments, user=user, cwd=cwd, env=env, here=here),
            check=False,
            input=stdin,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=timeout,
            umask=UMASK,
            start_new_session=True,
        )
        done.args = arguments
        if check and done.returncode:
            said = f"{done.stdout}{done.stderr}".strip()
            raise RuntimeError(
                f"exit status {done.returncode} of {shlex.join(arguments)} on {self.name}\n{said}"
            )
        return done

    def commands(self, folder: Path, *names: str, user: User, env: Mapping[str, str]) -> None:
        """Write programs into a folder, by these names: each runs the command of its name on this host.

        They run as the user, in the environment of who calls them and these variables.
        """
        folder.mkdir(exist_ok=True)
        ids = ["--setuid", str(user.uid), "--setgid", str(user.uid)]
        variables = [f"{name}={value}" for name, value in {"PATH": PATH, **env}.items()]
        for name in names:
            command = shlex.join([*self._enter(), *ids, *DIE_WITH_PARENT, "env", *variables, name])
            program = folder / name
            program.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
            program.chmod(0o755)

    def spawn(self, argv: Sequence[str], *, log: Path, here: bool = False) -> subprocess.Popen[str]:
        """Start a daemon that stays in the foreground, as root; it ends with the host. See `run` for `here`."""
        with log.open("a") as file:
            process = subprocess.Popen(
                self._command(argv, here=here),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                text=True,
                start_new_session=True,
                umask=UMASK,
            )
        self._processes.append(process)
        return process

    def plug(self, *, into: Host, bridge: str, address: str, interface: str) -> None:
        """Join this host to a bridge of another host; the address is like "10.0.0.1/24"."""
        port = f"to-{self.name}"
        # ip runs in the other host's network but sees this process's ids, so self.pid means the same to both
        outside = ["nsenter", "--target", str(into.pid), "--net", "ip"]
        inside = ["nsenter", "--target", str(self.pid), "--net", "ip"]
        peer = ["peer", "name", interface, "netns", str(self.pid)]
        # of an earlier host of this name, which the kernel takes its time to remove
        subprocess.run([*outside, "link", "delete", port], check=False, capture_output=True, timeout=600)
        for command in (
            [*outside, "link", "add", port, "type", "veth", *peer],
            [*outside, "link", "set", port, "master", bridge, "up"],
            [*inside, "address", "add", address, "dev", interface],
            [*inside, "link", "set", interface, "up"],
        ):
            subprocess.run(command, check=True, stdin=subprocess.DEVNULL, timeout=600)

    def wake(self) -> None:
        """Continue what starts the host's programs: nsenter stops itself when its program is stopped."""
        for process in self._processes:
            process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        """End every process of the host; the kernel then drops its mounts and network."""
        # Ending the first process ends what waits for it; only a host that never came up has none to name.
        if self.pid:
            _kill(self.pid)
        elif self._processes:
            _kill(self._processes[0].pid)
        self.pid = 0
        for process in self._processes:
            process.wait(timeout=600)
        self._processes.clear()

    def __enter__(self) -> Host:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    def words(self, argv: Sequence[str], *, user: User, cwd: Path, env: Mapping[str, str]) -> list[str]:
        """The words that start a command here as a user, in this environment."""
        return self._command(argv, user=user, cwd=cwd, env=env)

    def _command(
        self,
        argv: Sequence[str],
        *,
        user: User = ROOT,
        cwd: Path = Path("/"),
        env: Mapping[str, str] | None = None,
        here: bool = False,
    ) -> list[str]:
        user_ids = ["--setuid", str(user.uid), "--setgid", str(user.uid)]
        variables = [f"{name}={value}" for name, value in {"PATH": PATH, **(env or {})}.items()]
        # env changes folder as the user, so a folder the user cannot enter is refused as in real life
        return [
            *self._enter(here=here),
            *user_ids,
            *DIE_WITH_PARENT,
            "env",
            "-i",
            f"--chdir={cwd}",
            *variables,
            *argv,
        ]

    def _enter(self, *, here: bool = False) -> list[str]:
        kinds = (kind for kind in KINDS if kind != "mount" or not here)
        return ["nsenter", "--target", str(self.pid), *(f"--{kind}" for kind in kinds)]


def _await_ready(process: subprocess.Popen[str], name: str) -> None:
    assert process.stdout
    with process.stdout:
        said = []
        for line in process.stdout:
            if line == "ready\n":
                return
            said.append(line)
    raise RuntimeError(f"host '{name}' did not come up: {''.join(said).strip()}")


def _youngest(pid: int) -> int:
    """The end of a chain of only children: the first process below nsenter and unshare."""
    while children := Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        pid = int(children[0])
    return pid


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
