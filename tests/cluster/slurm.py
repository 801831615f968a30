"""A real Slurm of four nodes on one machine, for tests: boots in half a second, and leaves nothing on the machine.

Each node, the controller and the login node is a host of its own (see host.py): hostname, network with an
interface called hsn0, processes, /tmp and /dev/shm. They share all other folders, like a file server's.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, final

from . import accounting, config, mounts, site
from .host import PATH, Host
from .job import TERMINAL, parse_jobs

if TYPE_CHECKING:
    import pexpect

NODES = ("n1", "n2", "n3", "n4")
LOGIN = "login"
INTERFACE = "hsn0"

TMP = Path("/tmp")  # noqa: S108 every node gets one of its own

Argument = str | Path


@final
class Cluster:
    """Up from entering the context until leaving it.

    Attributes:
        nodes: The names of the compute nodes.
        interface: The name of the network interface on every node.
        user, home: Name and home folder of the ordinary user, who is known inside the cluster only.
    """

    nodes: tuple[str, ...] = NODES
    interface = INTERFACE

    def __init__(
        self,
        *,
        visible: Iterable[Path] = (),
        plugstack: str = "",
        settings: str = "",
        gres: str = config.RUNNING_GRES,
        root: Path | None = None,
        path: str = "",
        accounts: Sequence[str] = (),
        nodes: int = len(NODES),
    ) -> None:
        """Nothing is started yet.

        Args:
            visible: Paths that the user can reach although root's folders are in the way: an interpreter,
                a checkout.
            plugstack: Lines of plugstack.conf, Slurm's list of plugins of others (spank(7)); {site} in them
                stands for the folder that all nodes share.
            settings: Lines of slurm.conf, in place of the tests' own.
            gres: Lines of gres.conf; {nodes} in them stands for all nodes, {site} for the folder with their devices.
            root: The folder of another system, whose Slurm it is.
            path: Further folders of programs, before the others of PATH.
            accounts: Commands of sacctmgr, for a cluster with a database.
            nodes: How many nodes it has: n1, n2 and so on.
        """
        self.nodes = tuple(f"n{number}" for number in range(1, nodes + 1))
        hosts = enumerate((LOGIN, *self.nodes), start=10)
        self._addresses = {name: f"{site.NETWORK}.{number}" for number, name in hosts}
        self._root = root
        self._path = {"PATH": f"{path}:{PATH}"} if path else {}
        self._visible = [path.resolve() for path in visible]
        self._plugstack = plugstack
        self._settings = settings
        if accounts:  # hosts other than the controller ask the database too
            reached = accounting.SETTINGS.replace("localhost", site.CONTROLLER)
            self._settings = config.override(settings, reached)
        self._accounts = accounts
        self._gres = gres
        self._hosts: dict[str, Host] = {}

    def __enter__(self) -> Cluster:
        nodes = f"n[1-{len(self.nodes)}]"
        slurm = config.override(config.COMMON + config.RUNNING, self._settings).replace("{nodes}", nodes)
        gres = self._gres.replace("{nodes}", nodes)
        with ExitStack() as stack:
            self._site = stack.enter_context(
                site.prepared(
                    slurm=slurm,
                    gres=gres,
                    plugstack=self._plugstack,
                    addresses=self._addresses,
                    visible=self._visible,
                    root=self._root,
                )
            )
            self._hosts = {site.CONTROLLER: self._site.host}
            stack.callback(self._power_off)
            # slurmctld calls the nodes as it starts: where no host has the address yet, that takes it 3 s
            for name in self._addresses:
                self._up(name)
            self._site.start(self._start_database)
            accounting.fill(self._site, [each for each in self._accounts if not each.startswith("add ")])
            for name in self.nodes:
                self._serve(name)
            site.until(lambda: self._states() == {"idle"}, f"{len(self.nodes)} idle nodes")
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stack.close()

    @property
    def user(self) -> str:
        return self._site.user.name

    @property
    def home(self) -> Path:
        return self._site.user.home

    def run(
        self,
        argv: Sequence[Argument],
        *,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        check: bool = False,
        timeout: float = site.HANGS_S,
        input: str | None = None,  # noqa: A002 as in subprocess.run
        on: str = LOGIN,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command as the user, without a terminal, in the environment of a fresh login plus env.

        Args:
            cwd: The home folder by default.
            timeout: In seconds; the command is killed then.
            on: The host, the login node by default.

        Raises:
            RuntimeError: If it fails and check is set; the text holds what it said.
            subprocess.TimeoutExpired: If it takes too long.
        """
        return self._hosts[on].run(
            argv,
            user=self._site.user,
            cwd=cwd or self.home,
            env={**self._site.environment(), **self._path, **(env or {})},
            check=check,
            timeout=timeout,
            stdin=input or "",
        )

    def terminal(
        self, argv: Sequence[Argument], *, cwd: Path | None = None, on: str = LOGIN
    ) -> pexpect.spawn[str]:
        """Start a command as the user on a terminal of a host; it ends with the hosts at the latest."""
        import pexpect  # few tests need one

        words = self._hosts[on].words(
            [str(word) for word in argv],
            user=self._site.user,
            cwd=cwd or self.home,
            env={**self._site.environment(), **self._path, "TERM": "dumb", "NO_COLOR": "1"},
        )
        return pexpect.spawn(
            words[0], words[1:], encoding="utf-8", dimensions=(33, 111), timeout=site.HANGS_S, echo=False
        )

    def root(
        self, argv: Sequence[Argument], *, check: bool = True, timeout: float = site.HANGS_S, on: str = LOGIN
    ) -> subprocess.CompletedProcess[str]:
        """Run a command as root; as `run` otherwise, but a failure raises by default."""
        return self._hosts[on].run(argv, check=check, timeout=timeout)

    def commands(self, folder: Path, *names: str) -> None:
        """Write programs into a folder that run the commands of their names as the user (see host.py)."""
        host, environment = self._hosts[LOGIN], self._site.environment()
        host.commands(folder, *names, user=self._site.user, env=environment)

    def put(self, name: str, text: str, *, mode: int = 0o644) -> Path:
        """Write a file of the user's, by its path below the home folder."""
        path = self.home / name
        for folder in [folder for folder in reversed(path.parents) if not folder.exists()]:
            folder.mkdir(mode=0o755)
            os.chown(folder, self._site.user.uid, self._site.user.uid)
        path.write_text(text, newline="")
        path.chmod(mode)
        os.chown(path, self._site.user.uid, self._site.user.uid)
        return path

    def empty_home(self) -> None:
        """Move the user's files out of the home folder. Jobs that run keep the folders in which they are."""
        before = Path(tempfile.mkdtemp(prefix="before-", dir=self.home.parent))
        before.chmod(0o755)
        for path in [*self.home.iterdir()]:
            path.rename(before / path.name)

    def sbatch(
        self,
        *arguments: Argument,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        script: str | None = None,
    ) -> int:
        """The job id that sbatch gives for these arguments: options, and the path or the text of a script.

        Raises:
            RuntimeError: If sbatch refuses; the text holds what it said.
        """
        done = self.run(["sbatch", "--parsable", *arguments], cwd=cwd, env=env, input=script, check=True)
        return int(done.stdout.split(";")[0])

    def jobs(self, job_id: int | str) -> list[dict[str, str]]:
        """The records of a job: one, or one for each task of an array that has its own so far."""
        return parse_jobs(self.root(["scontrol", "show", "job", str(job_id)]).stdout)

    def job(self, job_id: int | str) -> dict[str, str]:
        """The record of a job, by the names that scontrol gives its fields."""
        return self.jobs(job_id)[0]

    def wait(
        self, job_id: int | str, states: Collection[str] = TERMINAL, timeout: float = site.HANGS_S
    ) -> dict[str, str]:
        """The record of a job once it is in one of the states; all tasks of an array have to be.

        Raises:
            TimeoutError: If it is not within the timeout, in seconds, or has ended in another state; the text
                holds its record and the end of its log.
        """
        records: list[dict[str, str]] = []

        def there_or_ended() -> bool:
            records[:] = self.jobs(job_id)
            return all(record["JobState"] in {*states, *TERMINAL} for record in records)

        wanted = f"job {job_id} in state {' or '.join(sorted(states))}"
        try:
            site.until(there_or_ended, wanted, timeout=timeout, interval=1)  # each asks slurmctld
        except TimeoutError as error:
            raise TimeoutError(f"{error}\n{self.describe(job_id)}") from None
        if not all(record["JobState"] in states for record in records):
            raise TimeoutError(f"no {wanted}: it has ended\n{self.describe(job_id)}")
        return records[0]

    def describe(self, job_id: int | str, *, lines: int = 40) -> str:
        """The record of a job and the end of its log, for a person to read."""
        record = self.job(job_id)
        log = Path(record.get("StdOut", ""))
        text = log.read_text(errors="replace").splitlines()[-lines:] if log.is_file() else ["(no log)"]
        return "\n".join([*(f"{name}={value}" for name, value in record.items()), f"--- {log}", *text])

    def until(self, predicate: Callable[[], bool], what: str, *, timeout: float = site.HANGS_S) -> None:
        """Wait for something to become true; TimeoutError says what did not within so many seconds."""
        site.until(predicate, what, timeout=timeout, interval=0.2)

    def stop_node(self, name: str, *, declare: bool = False) -> None:
        """Cut a node's power: slurmd and all jobs' processes there are gone at once.

        Args:
            declare: Also tell Slurm that the node is down, which it takes half a minute to find out.
        """
        self._hosts.pop(name).stop()
        if declare:
            self.declare_down(name)

    def declare_down(self, name: str) -> None:
        """Tell Slurm that a node is down, before it finds out."""
        self.root(["scontrol", "update", f"nodename={name}", "state=down", "reason=power"])

    def start_node(self, name: str) -> None:
        """Switch a node on again and wait until Slurm would use it."""
        self._up(name)
        self._serve(name)
        in_use = {"idle", "mix", "alloc", "comp"}
        self.until(lambda: self._states(name) <= in_use, f"node '{name}' in use again")

    @contextlib.contextmanager
    def held(self, name: str) -> Iterator[None]:
        """Stop a node's slurmd for a while: it hears of nothing before the end, and then of all at once."""
        self.root(["pkill", "-STOP", "slurmd"], on=name)
        try:
            yield
        finally:
            self.root(["pkill", "-CONT", "slurmd"], on=name)
            self._hosts[name].wake()

    def stop_controller(self, signal: str = "KILL") -> None:
        """Kill slurmctld: what it has not saved is lost, unless the signal is TERM."""
        self.root(["pkill", f"-{signal}", "slurmctld"], on=site.CONTROLLER)
        self.until(
            lambda: self.root(["pgrep", "slurmctld"], on=site.CONTROLLER, check=False).returncode == 1,
            "end of slurmctld",
        )

    def start_controller(self) -> None:
        """Start slurmctld again, and wait until it answers."""
        log = self._site.folder / "log" / "slurmctld-stderr"
        self._hosts[site.CONTROLLER].spawn(["slurmctld", "-D"], log=log)
        self.until(
            lambda: "UP" in self.root(["scontrol", "ping"], check=False).stdout, "answer from slurmctld"
        )

    def log(self, name: str = "slurmctld", *, lines: int = 40) -> str:
        """The end of the log of slurmctld, or of the slurmd of a node."""
        return self._site.log(name, lines=lines)

    def _start_database(self) -> None:
        if self._accounts:
            accounting.start(self._site, [each for each in self._accounts if each.startswith("add ")])

    def _up(self, name: str) -> None:
        """Make a host: own /tmp and /dev/shm, hsn0 on the network that all share."""
        folder = self._site.folder
        apart = mounts.cover(TMP, keep=self._site.seen, mode="1777", stage=folder / "stage")
        host = Host(name, within=self._site.host, setup=[*apart, "mount -t tmpfs -o mode=1777 none /dev/shm"])
        self._hosts[name] = host
        host.plug(
            into=self._site.host,
            bridge=site.BRIDGE,
            address=f"{self._addresses[name]}/24",
            interface=INTERFACE,
        )

    def _serve(self, name: str) -> None:
        """Start slurmd on a node."""
        log = self._site.folder / "log" / f"{name}-stderr"
        path = (f"{variable}={value}" for variable, value in self._path.items())
        self._hosts[name].spawn(["env", *path, "slurmd", "-D", "-N", name], log=log)

    def _power_off(self) -> None:
        while self._hosts:
            self._hosts.popitem()[1].stop()

    def _states(self, *nodes: str) -> set[str]:
        """The states of the nodes; "idle*" is one that does not answer."""
        chosen = ["--nodes", ",".join(nodes)] if nodes else []
        return set(self.root(["sinfo", "--noheader", "--format=%t", *chosen]).stdout.split())
