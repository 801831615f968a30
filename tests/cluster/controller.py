"""A Slurm that only judges: slurmctld with imaginary nodes of any kind, for `sbatch --test-only`."""

from __future__ import annotations

from contextlib import ExitStack
from typing import NamedTuple, final

from . import config, site


class Verdict(NamedTuple):
    """What sbatch said of a script: 0 and where it would run, or 1 and why not."""

    returncode: int
    stderr: str


@final
class Controller:
    """Up from entering the context until leaving it; starts in a tenth of a second.

    The nodes are in the cloud and never powered up (State=CLOUD, slurm.conf(5)), so nothing can run.
    """

    def __init__(self, *, nodes: str, partitions: str, gres: str = "", extra: str = "") -> None:
        """Nothing is started yet.

        Args:
            nodes: NodeName lines of slurm.conf; they get State=CLOUD.
            partitions: PartitionName lines.
            gres: Lines of gres.conf; shard needs a gpu line with File=, of devices that need not exist.
            extra: Further settings of slurm.conf; they win over those of config.py.
        """
        imaginary = "\n".join(f"{line} State=CLOUD" for line in nodes.splitlines() if line.strip())
        self._slurm = (
            config.override(config.COMMON + config.IMAGINARY, extra) + f"{imaginary}\n{partitions}\n"
        )
        self._gres = gres

    def __enter__(self) -> Controller:
        with ExitStack() as stack:
            self._site = stack.enter_context(site.prepared(slurm=self._slurm, gres=self._gres))
            self._site.start()
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
