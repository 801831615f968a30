"""Ray on the node of each task, and a command on the first node: `ray_node.py OPTIONS -- COMMAND`.

Job scripts run this program as the tasks of a Slurm step, one task on each node, with the Python that has
Ray. The exit status is the command's status, or 1 if Ray does not start or ends before the command. Sources:
docs.ray.io, "Deploying on Slurm" and "Token authentication", and `ray start --help` of 2.60.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, NoReturn, TextIO

JOIN_S, LEAVE_S, END_S = 600, 20, 15  # time limits: all nodes join; the workers leave; Ray ends on a node
# Time limit for the last lines of a Ray that has ended, because its children may hold its output open.
READ_S = 5
OPEN_FILES = 65536  # the limit of open files for Ray, whose actors open many
# Texts that Ray prints: after a node has joined; and on a busy node, after 30 s.
STARTED = "Ray runtime started"
TIMED_OUT = "The current node timed out during startup"
FIRST_WITH_TOKEN = (2, 52)  # Ray's first version with tokens
SILENCE_S = 120  # seconds after which a Ray that answers counts as started, even without the line STARTED
ANSWER_RETRIES = "120"  # one a second, so that a busy first node may answer late; Ray's default is 20
# Another Python process runs these lines, so that this program does not import Ray.
WAIT_FOR_NODES = f"""
import ray, sys, time
ray.init(log_to_driver=False)
for _ in range({JOIN_S}):
    if len(ray.nodes()) >= int(sys.argv[1]): break
    time.sleep(1)
else:
    sys.exit(f"{{len(ray.nodes())}} of {{sys.argv[1]}} nodes have joined Ray in {JOIN_S} s")
"""


class Node:
    """Ray on the node of this task."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.rank = int(os.environ.get("SLURM_PROCID", "0"))
        self.size = int(os.environ.get("SLURM_NTASKS", "1"))
        # Files that the nodes share.
        self.over = options.folder / f"{options.name}.over"  # exists after the end of the command
        self.ready = options.folder / f"{options.name}.ready"  # exists when Ray runs on the first node
        self.token = options.folder / f"{options.name}.token"
        self.logs = options.folder / f"{options.name}-logs" / socket.gethostname().partition(".")[0]
        job = os.environ.get("SLURM_JOB_ID", str(os.getppid()))
        self.session = Path(f"/tmp/ray-{job}-{options.name}")  # noqa: S108 - names of sockets have at most 107 bytes
        hosts = options.hosts.split(",")
        self.address, self.port = address_of(hosts, is_own=self.rank == 0), int(options.port)
        self.process: Any = None
        self.readers: list[threading.Thread] = []
        self.has_joined = False  # whether Ray has printed STARTED
        self.is_late = False  # whether Ray has printed TIMED_OUT

    def start(self, *options: str) -> None:
        """Start Ray on this node with the CPUs of the task; by default Ray takes all CPUs of the node."""
        cpus = os.environ.get("SLURM_CPUS_PER_TASK")
        words = ["ray", "start", "--block", *options, *([f"--num-cpus={cpus}"] if cpus else [])]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(words, stdout=pipe, stderr=pipe, text=True, errors="replace")
        self.has_joined = self.is_late = False
        streams = ((self.process.stdout, sys.stdout), (self.process.stderr, sys.stderr))
        self.readers = [threading.Thread(target=self._read, args=pair, daemon=True) for pair in streams]
        for reader in self.readers:
            reader.start()

    def _read(self, lines: Any, out: TextIO) -> None:
        """Pass on the lines of Ray, and note whether it has joined or was too late."""
        for line in lines:
            self.has_joined = self.has_joined or STARTED in line
            self.is_late = self.is_late or TIMED_OUT in line
            print(line, end="", file=out, flush=True)

    def gave_up(self) -> bool:
        """Return whether Ray, which has ended, gave up because this node was too busy."""
        for reader in self.readers:
            reader.join(READ_S)
        return self.is_late

    def answers(self) -> bool:
        """Return whether Ray answers at its port on the first node."""
        with contextlib.suppress(OSError), socket.create_connection((self.address, self.port), 5):
            return True
        return False

    def end(self) -> None:
        """End Ray on this node, and keep its logs."""
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(END_S)
            if self.process.poll() is None:
                self.process.kill()
        with contextlib.suppress(OSError):
            logs = self.session / "session_latest" / "logs"
            if logs.is_dir():
                self.logs.mkdir(parents=True, exist_ok=True)
                subprocess.run(["cp", "-r", "--", f"{logs}/.", str(self.logs)], check=False)
            shutil.rmtree(self.session, ignore_errors=True)


def main(argv: list[str]) -> int:
    """Run Ray on this node until the command on the first node has ended; return the exit status."""
    command_at = argv.index("--")
    parser = argparse.ArgumentParser(prog="ray_node.py", usage="%(prog)s OPTIONS -- COMMAND")
    parser.add_argument("--folder", type=Path, required=True, help="folder for the token and the logs")
    parser.add_argument("--name", required=True, help="name of the program")
    parser.add_argument("--hosts", required=True, help="names of its nodes, with commas")
    parser.add_argument("--port", required=True, help="port of Ray's first node")
    node = Node(parser.parse_args(argv[:command_at]))
    raise_open_files()
    signal.signal(signal.SIGTERM, _stop)
    with contextlib.suppress(OSError):  # the mode lets no other user enter the folder
        node.session.mkdir(mode=0o700)
    try:
        return run_first(node, argv[command_at + 1 :]) if node.rank == 0 else run_worker(node)
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        node.end()
        if node.rank:
            _touch(Path(f"{node.over}.{node.rank}"))


def _stop(number: int, _: object) -> NoReturn:
    """Exit as a shell does after a signal."""
    sys.exit(128 + number)


def run_first(node: Node, command: list[str]) -> int:
    """Run Ray's first node, and the command when all nodes have joined; return the exit status.

    The first node ends after the other nodes.
    """
    old_marks = [*node.over.parent.glob(f"{node.over.name}*"), *node.ready.parent.glob(node.ready.name)]
    for mark in old_marks:  # of an earlier start of the job
        mark.unlink()
    use_token(node)
    _set_ray_limits()
    address = [f"--node-ip-address={node.address}", f"--port={node.port}", f"--temp-dir={node.session}"]
    if not _start_first(node, "--head", "--include-dashboard=false", *address):
        print("error: ray has ended before it was ready", file=sys.stderr)
        return 1
    _touch(node.ready)
    os.environ["RAY_ADDRESS"] = f"{node.address}:{node.port}"
    failure = subprocess.run([sys.executable, "-c", WAIT_FOR_NODES, str(node.size)], check=False).returncode
    if failure:
        return failure
    process = subprocess.Popen(command)
    while process.poll() is None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(1)
        if node.process.poll() is not None and process.poll() is None:
            print("error: ray has ended before the command", file=sys.stderr)
            return 1
    _touch(node.over)
    # A worker that loses the first node retries for half a minute, so this node waits for the workers.
    deadline = time.monotonic() + LEAVE_S
    while (
        time.monotonic() < deadline and len([*node.over.parent.glob(f"{node.over.name}.*")]) < node.size - 1
    ):
        time.sleep(0.2)
    status = process.returncode
    return status if status >= 0 else 128 - status


def _start_first(node: Node, *options: str) -> bool:
    """Start Ray on the first node, and retry if the node was too busy; return whether Ray runs."""
    deadline = time.monotonic() + JOIN_S
    node.start(*options)
    silence_ends = time.monotonic() + SILENCE_S
    while not node.has_joined and not (node.answers() and time.monotonic() > silence_ends):
        if node.process.poll() is not None:
            if not node.gave_up() or time.monotonic() > deadline:
                return False
            print("ray gave up, since this node is busy; it starts again", file=sys.stderr)
            node.start(*options)
            silence_ends = time.monotonic() + SILENCE_S
        time.sleep(1)
    return True


def run_worker(node: Node) -> int:
    """Run another node of Ray until the command has ended; return 1 if Ray ends before the command, else 0.

    The node first waits for the file `ready`, because Ray on the first node may start again, which would end
    the other nodes.
    """
    while not (node.answers() and node.ready.exists()):
        time.sleep(1)
    use_token(node)
    _set_ray_limits()
    node.start(f"--address={node.address}:{node.port}")
    deadline = time.monotonic() + JOIN_S
    while not node.over.exists():
        time.sleep(0.5)
        if node.process.poll() is None:
            continue
        if node.has_joined or time.monotonic() > deadline:
            return 1
        if node.answers():  # this node came before the first node had started completely
            node.start(f"--address={node.address}:{node.port}")
    return 0


def _set_ray_limits() -> None:
    """Let a busy first node answer late, and let nodes end at once: this program orders their ends."""
    os.environ.setdefault("RAY_NUM_REDIS_GET_RETRIES", ANSWER_RETRIES)
    os.environ.setdefault("RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S", "0")


def use_token(node: Node) -> None:
    """Let Ray ask clients, whose code it runs, for a token. The first node makes the token."""
    if "RAY_AUTH_MODE" in os.environ or ray_version() < FIRST_WITH_TOKEN:
        return
    if node.rank == 0:
        if node.token.exists():
            node.token.unlink()
        descriptor = os.open(node.token, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        os.write(descriptor, os.urandom(32).hex().encode())
        os.close(descriptor)
    os.environ["RAY_AUTH_MODE"], os.environ["RAY_AUTH_TOKEN_PATH"] = "token", str(node.token)


def ray_version() -> tuple[int, ...]:
    """Return Ray's version, such as (2, 60); (0,) if the version is not known."""
    with contextlib.suppress(OSError):
        words = ["ray", "--version"]
        output = subprocess.run(words, capture_output=True, text=True, check=False).stdout
        if match := re.search(r"(\d+)\.(\d+)", output):
            return int(match[1]), int(match[2])
    return (0,)


def address_of(hosts: list[str], *, is_own: bool) -> str:
    """Return the IP address of the first host, because Ray's own resolver may not know names of nodes.

    `is_own` is true on the first host itself, where its name may belong to the loopback interface.
    """
    address = _ip_address(hosts[0])
    if not address and is_own and len(hosts) > 1 and (other := _ip_address(hosts[1])):
        # For a datagram socket the kernel only chooses the interface, and sends nothing.
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((other, 9))
            address = probe.getsockname()[0]
    return address or ("127.0.0.1" if is_own else hosts[0])


def _ip_address(host: str) -> str:
    """Return the first IPv4 address of a host that is not of the loopback interface; "" without one."""
    with contextlib.suppress(OSError):
        for *_, address in socket.getaddrinfo(host, None, socket.AF_INET, socket.SOCK_STREAM):
            if not str(address[0]).startswith("127."):
                return str(address[0])
    return ""


def raise_open_files() -> None:
    """Raise the limit of open files to OPEN_FILES, or to the hard limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))


def _touch(path: Path) -> None:
    """Make an empty file, by which a node tells the others its state."""
    with contextlib.suppress(OSError):
        path.touch()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
