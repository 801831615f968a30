"""On the first node of a job: the session that holds the job, and what comes to it from a terminal.

The script of the job becomes `serve`, which starts each shell as a child of the script. So a shell has what
the script has: variables, CPUs, GPUs, limits and mounts. A step of srun runs `connect`, which hands its
terminal over. The two meet at a name in the network of the node, which leaves no file behind.

Written for Python 3.6 and nothing else: it is in the script, and on the command line of srun.
"""

import array
import contextlib
import ctypes
import fcntl
import json
import os
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
from typing import Any, Dict, List, Tuple

FIRST_S = 120  # for the first terminal, after which nobody comes
LEAVE_S = 5  # for a program whose terminal is gone
POLL_S = 0.2
OPENED = "sbatchgen: the first terminal is here"  # in the log, before which the script may still fail
DEBUG = b"SBATCHGEN_DEBUG"  # the variable with the rank that a terminal wants to stop
NEAR = b"\r\nsbatchgen: the time limit of the job is near, and ends this shell\r\n"


def is_mine(peer: socket.socket) -> bool:
    """Return whether the process at the other end is one of this user: anybody can take a name."""
    of_peer = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return bool(struct.unpack("3i", of_peer)[1] == os.getuid())


def named(job: str) -> str:
    """Return the name of a job's session."""
    return f"\0sbatchgen-shell-{job}"


def received(peer: socket.socket) -> Tuple[Dict[str, Any], List[int]]:
    """Return the request of a terminal, and its three streams. Raises OSError: it has gone."""
    peer.settimeout(LEAVE_S)
    text, fds = b"", array.array("i")
    while not text.endswith(b"\n"):
        part, more, _, _ = peer.recvmsg(65536, socket.CMSG_SPACE(3 * fds.itemsize))
        for level, kind, data in more:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
        if not part:
            raise OSError
        text += part
    return json.loads(text.decode()), list(fds)


class Served:
    """A program that runs for a terminal."""

    def __init__(self, peer: socket.socket, text: str, *, contained: bool) -> None:
        """Start what the terminal asks for: a shell, or a command, in the container if the job has one."""
        self.peer, self.left = peer, 0.0  # when its terminal was lost
        asked, fds = received(peer)
        self.first = bool(asked.get("first"))
        self.folder = own_folder() if asked.get("folder") else ""
        if self.folder:
            asked["words"].insert(1, self.folder)
        lines, feed = os.pipe()
        known = f"/dev/fd/{lines}"
        if asked["words"] or contained:
            words = asked["words"] if asked["lends"] else [*["inside"] * contained, *asked["words"]]
            start = ["bash", "-c", '. "$1"; "${@:2}"', "bash", known, *words]
        else:
            start = ["bash", "--rcfile", known, "-i"]
        environment = dict(each.partition(b"=")[::2] for each in START if each)
        if asked["tty"]:
            environment[b"TERM"] = asked["term"].encode()
        environment.pop(DEBUG, None)
        if asked["debug"]:
            environment[DEBUG] = asked["debug"].encode()

        def owns() -> None:  # so that Ctrl-C, jobs and the size of the window work as in any shell
            if asked["tty"] and not asked["lends"]:
                fcntl.ioctl(0, termios.TIOCSCTTY, 0)

        self.child = subprocess.Popen(
            start, stdin=fds[0], stdout=fds[1], stderr=fds[2], pass_fds=(lines,), env=environment,
            start_new_session=True, preexec_fn=owns,
        )  # fmt: skip
        self.screen = fds.pop()
        for each in (lines, *fds):
            os.close(each)
        own = f"exec {lines}<&-\n"
        threading.Thread(target=feed_text, args=(feed, own + text), daemon=True).start()

    def ended(self) -> bool:
        """Return whether it has ended; tell the terminal how, and end what a lost terminal has left."""
        status = self.child.poll()
        if status is not None:
            with contextlib.suppress(OSError):
                self.peer.sendall(bytes([status if status >= 0 else 128 - status]))
                self.peer.settimeout(LEAVE_S)  # the end of the job would end the step before it has read
                while self.peer.recv(64):
                    pass
            self.peer.close()
            os.close(self.screen)
            if self.folder:
                shutil.rmtree(self.folder, ignore_errors=True)
            return True
        if self.left and time.time() > self.left + LEAVE_S:
            self.kill(signal.SIGKILL)
        return False

    def hear(self) -> None:
        """Pass a signal on; without its terminal, tell the program so."""
        try:
            data = self.peer.recv(1)
        except OSError:
            data = b""
        # A server ends its own children on SIGTERM, such as the kernels of notebooks.
        self.kill(data[0] if data else signal.SIGTERM if self.folder else signal.SIGHUP)
        if not data:
            self.left = time.time()

    def kill(self, number: int) -> None:
        """Send a signal to the program and its processes, but for those that have left its session."""
        with contextlib.suppress(OSError):
            os.killpg(self.child.pid, number)


def own_folder() -> str:
    """Make a folder that only this user can enter, for the sockets of a server, with this program."""
    FOLDERS.append(tempfile.mkdtemp(prefix="sbatchgen-", dir="/tmp"))
    with open("/proc/self/cmdline", "rb") as words, open(f"{FOLDERS[-1]}/on_node.py", "wb") as program:
        program.write(words.read().split(b"\0")[4])  # python3 -I -S -c PROGRAM
    return FOLDERS[-1]


def feed_text(feed: int, text: str) -> None:
    """Write what the shell reads first."""
    with contextlib.suppress(OSError), os.fdopen(feed, "wb") as stream:
        stream.write(text.encode("utf-8", "surrogateescape"))


def warn(served: List[Served]) -> None:
    """Say on each terminal that the job ends soon."""
    for each in served:
        with contextlib.suppress(OSError):
            os.write(each.screen, NEAR)


def tell_log() -> None:
    """Write that the first terminal has come, wherever that can be written."""
    with contextlib.suppress(OSError):
        os.write(1, OPENED.encode() + b"\n")


def children() -> List[int]:
    """Return the children of this process, also those whose parents have ended."""
    with open(f"/proc/self/task/{os.getpid()}/children") as known:
        return [int(pid) for pid in known.read().split()]


def end_all() -> None:
    """End all programs that are left, such as those that were started with nohup."""
    number, until = signal.SIGTERM, time.time() + LEAVE_S
    while children():
        for pid in children():
            with contextlib.suppress(OSError):
                os.kill(pid, number)
                os.waitpid(pid, os.WNOHANG)
        if time.time() > until:
            number = signal.SIGKILL
        time.sleep(POLL_S)


def serve(job: str, keep: int, *, contained: bool) -> None:
    """Start what terminals ask for, until no terminal has been there for `keep` seconds, or the last ends.

    Terminals of other commands may come and go before the one that asked for the job, which is waited for.
    """
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER: nothing leaves the job
    text = sys.stdin.buffer.read().decode("utf-8", "surrogateescape")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(named(job))
    listener.listen(8)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    served: List[Served] = []
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    signal.signal(signal.SIGUSR1, lambda *_: warn(served))
    since, opened, owned = time.time(), False, False  # owned: the terminal that asked for the job has come
    wait = max(keep, FIRST_S)
    while served or time.time() < since + wait:
        there = [each.peer for each in served if not each.left]
        wakes = select.select([listener, *there], [], [], POLL_S)[0]
        if listener in wakes:
            peer = listener.accept()[0]
            try:
                if not is_mine(peer):
                    raise PermissionError
                served.append(Served(peer, text, contained=contained))
                owned = owned or served[-1].first
            except (OSError, ValueError, KeyError):
                peer.close()  # with the streams that it sent
        if served and not opened:
            tell_log()
            opened = True
        for each in served:
            if each.peer in wakes:
                each.hear()
        left = [each for each in served if not each.ended()]
        for pid in {*children()} - {each.child.pid for each in left}:
            with contextlib.suppress(OSError):
                os.waitpid(pid, os.WNOHANG)
        if served and not left:
            since, wait = time.time(), keep if owned else max(keep, FIRST_S)
        served = left


def of_ssh() -> List[str]:
    """Return what a client of ssh asks for; end this process with its sshd."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
    if "SSH_ORIGINAL_COMMAND" in os.environ:
        return ["eval", os.environ["SSH_ORIGINAL_COMMAND"]]
    # `.` can't open the socket that is the input here, and reads all of it before the first line.
    return ["eval", "BASH_ENV=<(session_text; echo unset BASH_ENV) exec bash"] * (not os.isatty(0))


def connect(job: str, words: List[str], *, lends: bool = False, folder: bool = False) -> None:
    """Hand this terminal over to the session of the job; end with the status of its program.

    A terminal that lends itself gets a function of the script, which is outside of the container.
    """
    peer = socket.socket(socket.AF_UNIX)
    while True:  # the environment of the job may take its time
        try:
            peer.connect(named(job))
            break
        except OSError:
            time.sleep(0.2)
    if not is_mine(peer):
        sys.exit(f"the session of job {job} on this node is not yours")
    tty = all(os.isatty(fd) for fd in range(3))
    if tty and not lends:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # which the terminal sends as it is given away
        fcntl.ioctl(0, termios.TIOCNOTTY)
    asked = {
        "words": words or [".", "/dev/stdin"] * (not tty),
        "lends": lends,
        "folder": folder,
        "first": FIRST,
        "tty": tty,
        "term": os.environ.get("TERM", ""),
        "debug": os.environ.get(DEBUG.decode(), ""),
    }
    fds = array.array("i", range(3))
    for number in (signal.SIGINT, signal.SIGTERM, *[signal.SIGHUP] * lends):
        signal.signal(number, lambda heard, _: peer.send(bytes([heard])))
    text = json.dumps(asked).encode() + b"\n"
    sent = peer.sendmsg([text], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)])
    peer.sendall(text[sent:])
    os.dup2(os.open(os.devnull, os.O_RDWR), 0)
    try:
        status = peer.recv(1)
    except OSError:  # it was killed
        status = b""
    if not status:
        sys.exit(f"the session of job {job} has ended")
    # 255 is of sshd, after each connection: srun would call it an error. A Python that ends in its own way
    # handles no signals any more, and Slurm may send SIGTERM by now.
    os._exit(0 if lends and folder and status == b"\xff" else status[0])


with open("/proc/self/environ", "rb") as _environ:
    START = _environ.read().split(b"\0")  # os.environ may have a locale that Python has added
FOLDERS: List[str] = []
MODE, JOB, *WORDS = sys.argv[1:]
FIRST = MODE in ("connect", "jupyter")  # of the command that submitted the job; "later-connect" is of another
MODE = MODE.split("-")[-1]
if MODE == "serve":
    try:
        serve(JOB, int(WORDS[0]), contained=bool(WORDS[1]))
    finally:
        end_all()
        for each in FOLDERS:
            shutil.rmtree(each, ignore_errors=True)
elif MODE == "ssh":
    ASKED = of_ssh()
    connect(JOB, ASKED, lends=" ".join(ASKED).endswith("/sftp-server"))  # of the node: few images have it
else:
    connect(JOB, WORDS, lends=MODE in ("lend", "relay"), folder=MODE in ("relay", "jupyter"))
