"""A Slurm that only judges: slurmctld with imaginary nodes of any kind, for `sbatch --test-only`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple, final

from . import accounting, config, site

BATCH = 500
_END = "\x1e\n"
# Two at once: sbatch waits for slurmctld half of the time
_ASK = """
part() {
    n=$1
    while [ "$n" -lt "$2" ]; do
        sbatch --test-only "$n" >"$n.said" 2>&1
        printf '\\n%s\\036\\n' $? >>"$n.said"
        n=$((n + 2))
    done
}
part 0 "$1" & part 1 "$1" & wait
n=0
while [ "$n" -lt "$1" ]; do cat "$n.said"; n=$((n + 1)); done
"""


class Verdict(NamedTuple):
    """What sbatch said of a script: 0 and where it would run, or 1 and why not."""

    returncode: int
    stderr: str


@final
class Controller:
    """Up from entering the context until leaving it; starts in a tenth of a second.

    The nodes are in the cloud and never powered up (State=CLOUD, slurm.conf(5)), so nothing can run.
    """

    def __init__(
        self,
        *,
        nodes: str,
        partitions: str,
        gres: str = "",
        extra: str = "",
        topology: str = "",
        settings: str = config.COMMON,
        accounts: Sequence[str] = (),
        root: Path | None = None,
    ) -> None:
        """Nothing is started yet.

        Args:
            nodes: NodeName lines of slurm.conf; they get State=CLOUD unless they have a state.
            partitions: PartitionName lines.
            gres: Lines of gres.conf; shard needs a gpu line with File=, of devices that need not exist.
            extra: Further settings of slurm.conf; they win over `settings`.
            topology: Lines of topology.conf.
            settings: Settings of slurm.conf.
            accounts: Commands of sacctmgr, for a cluster with a database.
            root: The folder of another system, whose Slurm judges.
        """
        self._root = root
        lines = [line for line in nodes.splitlines() if line.strip()]
        imaginary = "\n".join(line if " State=" in line else f"{line} State=CLOUD" for line in lines)
        if accounts:
            settings = config.override(settings, accounting.SETTINGS)
        self._slurm = config.override(settings + config.IMAGINARY, extra) + f"{imaginary}\n{partitions}\n"
        self._gres, self._topology, self._accounts = gres, topology, accounts

    def __enter__(self) -> Controller:
        with ExitStack() as stack:
            self._site = stack.enter_context(
                site.prepared(slurm=self._slurm, gres=self._gres, root=self._root)
            )
            if self._topology:
                (self._site.folder / "slurm" / "topology.conf").write_text(self._topology)
            made = self._site
            added = [command for command in self._accounts if command.startswith("add ")]
            made.start(lambda: accounting.start(made, added) if added else None)
            accounting.fill(made, [command for command in self._accounts if command not in added])
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stack.close()

    def test_only(self, script: str, *arguments: str) -> Verdict:
        """Whether Slurm would take a script, submitted by an ordinary user with these options."""
        done = self._site.host.run(
            ["sbatch", "--test-only", *arguments],
            user=self._site.user,
            cwd=self._site.user.home,
            env=self._site.environment(),
            check=False,
            stdin=script,
        )
        return Verdict(done.returncode, done.stderr)

    @property
    def home(self) -> Path:
        """The home folder of the user."""
        return self._site.user.home

    def run(self, argv: Sequence[str | Path]) -> str:
        """What a command prints, run as the user in the home folder."""
        user, environment = self._site.user, self._site.environment()
        return self._site.host.run(argv, user=user, cwd=user.home, env=environment).stdout

    def commands(self, folder: Path, *names: str) -> None:
        """Write programs into a folder that run the commands of their names as the user (see host.py)."""
        environment = self._site.environment()
        self._site.host.commands(folder, *names, user=self._site.user, env=environment)

    def crash(self) -> None:
        """Kill slurmctld."""
        self._site.host.run(["sh", "-c", "kill -KILL $(pgrep -x slurmctld)"])

    def restart(self, extra: str) -> None:
        """Start slurmctld again without its jobs, with other settings of slurm.conf; an empty one has its default."""
        made = self._site
        file = made.folder / "slurm" / "slurm.conf"
        lines = config.override(file.read_text(), extra).splitlines(keepends=True)
        file.write_text("".join(line for line in lines if not line.endswith("=\n")))
        # -c finds no usage of accounts after a crash, and ends
        made.host.run(
            ["sh", "-c", "kill $(pgrep -x slurmctld); while pgrep -x slurmctld; do sleep 0.05; done"]
        )
        daemon = made.host.spawn(["slurmctld", "-D", "-c"], log=made.folder / "log" / "slurmctld-stderr")

        def answers() -> bool:
            if daemon.poll() is not None:
                raise RuntimeError(f"slurmctld ended at once: {made.log('slurmctld-stderr', lines=5)}")
            return "UP" in made.host.run(["scontrol", "ping"], check=False).stdout

        site.until(answers, "answer from slurmctld")

    def scontrol(self, *arguments: str) -> None:
        """Run scontrol as an administrator."""
        self._site.host.run(["scontrol", *arguments], env=self._site.environment())

    def reserve(self, settings: str) -> None:
        """Make a reservation, with the settings of scontrol(1)."""
        self.scontrol("create", "reservation", *settings.split())

    def ask(self, scripts: Sequence[str]) -> Iterator[Verdict]:
        """Whether Slurm would take each of these scripts, submitted by an ordinary user: 3 to 5 ms each."""
        user = self._site.user
        folder = user.home / "asked"
        folder.mkdir(exist_ok=True)
        os.chown(folder, user.uid, user.uid)
        for start in range(0, len(scripts), BATCH):
            batch = scripts[start : start + BATCH]
            for number, script in enumerate(batch):
                (folder / str(number)).write_text(script, newline="")
            done = self._site.host.run(
                ["sh", "-c", _ASK, "ask", str(len(batch))],
                user=user,
                cwd=folder,
                env=self._site.environment(),
                timeout=600,
            )
            answers = [part.rpartition("\n") for part in done.stdout.split(_END)]
            yield from (Verdict(int(status), said) for said, _, status in answers[:-1])
