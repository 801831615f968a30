"""A site: the machine that runs slurmctld, with the user and the folder that all hosts of a cluster share."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from . import config, mounts
from .host import Host, User

CONTROLLER = "controller"
BRIDGE = "bridge"
NETWORK = "10.77.0"

# A bridge without an address of its own takes the lowest of its ports: with each node that comes or goes, the other
# nodes may lose the controller, for as long as they know the old address. It took 25 seconds.
BRIDGE_ADDRESS = "02:00:00:00:00:01"
# Slurm looks names up with AI_ADDRCONFIG, which finds nothing where there is only a loopback (getaddrinfo(3))
NETWORK_UP = (
    f"ip link add {BRIDGE} address {BRIDGE_ADDRESS} type bridge",
    f"ip address add {NETWORK}.1/24 dev {BRIDGE}",
    f"ip link set {BRIDGE} up",
)
HANGS_S = 600  # nothing takes so long, whatever else the machine does
PROGRAMS = ("slurmctld", "slurmd", "sbatch", "munged", "unshare", "nsenter", "setpriv", "ip")


@dataclass(frozen=True, kw_only=True)
class Site:
    """The first host of a cluster; slurmctld and munged run on it after `start`.

    Attributes:
        folder: The site's own folder, in sight at the same path on all its hosts.
        seen: This folder, and what else is to be visible to the user.
        user: An ordinary user, known on these hosts and nowhere else.
        host: Where slurmctld runs. Hosts made within it share what it sees and end with it.
    """

    folder: Path
    seen: tuple[Path, ...]
    user: User
    host: Host

    def environment(self) -> dict[str, str]:
        """What the user finds set after logging in."""
        name, home = self.user.name, str(self.user.home)
        return {
            "HOME": home,
            "USER": name,
            "LOGNAME": name,
            "SHELL": "/bin/bash",
            "LANG": "C.UTF-8",
            "SLURM_CONF": "/etc/slurm/slurm.conf",
            # A node has more CPUs here than the machine: threads that spin take them from those that they wait for.
            "OMP_WAIT_POLICY": "passive",
        }

    def start(self, before: Callable[[], None] = lambda: None) -> None:
        """Start munged, what else slurmctld needs, and slurmctld.

        Raises:
            RuntimeError: If one does not start; the text holds the end of their logs.
        """
        folder, host = self.folder, self.host
        socket = folder / "munge" / "socket"
        private = [f"--{name}-file={folder}/munge/{name}" for name in ("key", "pid", "seed", "log")]
        munged = ["munged", "--foreground", "--force", f"--socket={socket}", *private]
        daemons = {"munged": host.spawn(munged, log=folder / "log" / "munged-stderr")}
        until(socket.exists, "munged")
        before()
        daemons["slurmctld"] = host.spawn(["slurmctld", "-D"], log=folder / "log" / "slurmctld-stderr")

        def answers() -> bool:
            ended = [name for name, daemon in daemons.items() if daemon.poll() is not None]
            if ended:
                raise RuntimeError(f"{ended[0]} ended at once")
            try:
                return "UP" in host.run(["scontrol", "ping"]).stdout
            except RuntimeError:
                return False

        try:
            until(answers, "answer from slurmctld")
        except (RuntimeError, TimeoutError) as error:
            logs = [f"{name}: {self.log(f'{name}-stderr', lines=5)}" for name in daemons]
            raise RuntimeError("\n".join([str(error), *logs])) from error

    def log(self, name: str = "slurmctld", *, lines: int = 40) -> str:
        """The end of a daemon's log."""
        path = self.folder / "log" / name
        return "\n".join(path.read_text(errors="replace").splitlines()[-lines:]) if path.exists() else ""


def why_not() -> str | None:
    """What this machine lacks for a real Slurm, or None."""
    missing = [
        program for program in PROGRAMS if not shutil.which(program, path=f"/usr/sbin:{os.defpath}:/sbin")
    ]
    if os.geteuid() != 0:
        return "needs root and the Debian packages slurm-wlm and munge"
    return f"needs {', '.join(missing)} (the Debian packages slurm-wlm, munge, iproute2)" if missing else None


def until(
    predicate: Callable[[], bool], what: str, *, timeout: float = HANGS_S, interval: float = 0.05
) -> None:
    """Wait for something to become true; a slurmctld that is too busy to answer is asked again.

    The first interval is a quarter of the others: many things take little time.

    Raises:
        TimeoutError: If it does not within the timeout, in seconds.
    """
    end = time.monotonic() + timeout

    def true() -> bool:
        try:
            return predicate()
        except RuntimeError as error:
            if "Unable to contact slurm controller" in str(error):
                return False
            raise

    pause = interval / 4
    while not true():
        if time.monotonic() > end:
            raise TimeoutError(f"no {what} within {timeout:g} s")
        time.sleep(pause)
        pause = min(1.5 * pause, interval)


@contextmanager
def prepared(
    *,
    slurm: str,
    gres: str,
    plugstack: str = "",
    addresses: Mapping[str, str] | None = None,
    visible: Iterable[Path] = (),
    root: Path | None = None,
) -> Iterator[Site]:
    """A site, from a slurm.conf, a gres.conf and a plugstack.conf in which {site} stands for its folder.

    Args:
        addresses: The addresses of its hosts, by name; slurmctld's host is "controller".
        visible: Paths that the user shall reach although only root may enter a folder on the way.
        root: The folder of another system, whose Slurm it is (see mounts.move_into).
    """
    with tempfile.TemporaryDirectory(prefix="slurm-") as name:
        folder = Path(name).resolve()
        user = User(name="alice", uid=20001, home=folder / "home" / "alice")
        _lay_out(folder, user, {CONTROLLER: f"{NETWORK}.1", **(addresses or {})})
        slurm, gres, plugstack = (text.replace("{site}", str(folder)) for text in (slurm, gres, plugstack))
        config.write(
            folder / "slurm",
            slurm=slurm,
            gres=gres,
            plugstack=plugstack,
            cgroup=config.NO_CGROUP if root else config.CGROUP,
        )
        for path in [*folder.glob("etc/*"), *folder.glob("slurm/*")]:
            path.chmod(0o644)  # whatever the umask
        seen = (folder, *(path.resolve() for path in visible))
        stage = folder / "stage"
        sight = mounts.reveal(seen, stage=stage)
        moved = mounts.move_into(root, keep=seen, stage=stage) if root else []
        binds = [mounts.bind(path, Path("/etc", path.name)) for path in (folder / "etc").iterdir()]
        binds.append(mounts.bind(folder / "slurm", Path("/etc/slurm")))
        fuse = f"[ ! -e /dev/fuse ] || {mounts.bind(folder / 'dev/fuse', Path('/dev/fuse'))}"
        setup = [*sight, *NETWORK_UP, *moved, *binds, fuse]
        with Host(CONTROLLER, setup=setup) as host:
            yield Site(folder=folder, seen=seen, user=user, host=host)


def _lay_out(folder: Path, user: User, addresses: Mapping[str, str]) -> None:
    """Make the folders, the GPUs, the key, and the user in copies of /etc/passwd and /etc/group."""
    for part in ("", "dev", "etc", "home", "log", "munge", "slurm", "slurmctld", "spool", "stage"):
        (folder / part).mkdir(exist_ok=True)
        (folder / part).chmod(0o755)  # whatever the umask
    user.home.mkdir(mode=0o700)
    os.chown(user.home, user.uid, user.uid)
    for number in range(4):
        # Slurm sets CUDA_VISIBLE_DEVICES only for real device nodes; these are /dev/null's
        os.mknod(folder / "dev" / f"gpu{number}", 0o666 | 0o020000, os.makedev(1, 3))
    os.mknod(folder / "dev" / "fuse", 0o020000, os.makedev(10, 229))
    (folder / "dev" / "fuse").chmod(
        0o666
    )  # as everywhere, for Apptainer; without udev it may be root's alone
    key = folder / "munge" / "key"
    key.touch(mode=0o600)
    key.write_bytes(os.urandom(128))
    for name, line in {
        "passwd": f"{user.name}:x:{user.uid}:{user.uid}::{user.home}:/bin/bash",
        "group": f"{user.name}:x:{user.uid}:",
    }.items():
        lines = Path("/etc", name).read_text().splitlines()
        others = [old for old in lines if not old.startswith(f"{user.name}:")]
        (folder / "etc" / name).write_text("\n".join([*others, line]) + "\n")
    hosts = [f"{address} {name}" for name, address in {"localhost": "127.0.0.1", **addresses}.items()]
    (folder / "etc" / "hosts").write_text("\n".join(hosts) + "\n")
