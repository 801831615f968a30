"""The launchers of PyTorch among the processes that a script starts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sbatchgen.executables.launcher import LauncherCall
from sbatchgen.plan.started import StartedProcess, Step


@dataclass(frozen=True, kw_only=True)
class StartedLauncher(LauncherCall):
    """A process that is a launcher."""

    process: StartedProcess


def launchers_of(step: Step, nodes: int) -> Iterator[StartedLauncher]:
    """Yield the launchers among the processes of a step, in a job with so many nodes."""
    for process in step.processes:
        if call := StartedLauncher.from_argv(process.argv, process=process, job_nodes=nodes):
            yield call
