"""Rendered jobs that are right: of every mode, launcher and runtime, on the profiles with Slurm."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from sbatchgen.base.finding import Finding
from sbatchgen.jobs.modes import MODES
from sbatchgen.jobs.resolved.resolved_job import ResolvedJob
from sbatchgen.jobs.runtimes import RUNTIMES
from sbatchgen.lab.plan.dry_run import DryRun
from sbatchgen.lab.plan.planning import plan_of, script_of
from sbatchgen.lab.started.judge_started import check_started
from tests.scripts import NEEDS, errors, resolved, script

PROFILES = ("msu", "princeton", "public_cluster", "torchrun", "troila")


def jobs() -> Iterator[tuple[str, ResolvedJob]]:
    """Each job, with a name; of ddp on one node and on two."""
    for profile in PROFILES:
        for mode in MODES:
            for launcher in MODES[mode].launchers or (None,):
                for runtime in RUNTIMES:
                    for nodes in (1, 2) if mode == "ddp" and launcher != "spawn" else (1,):
                        said = {"runtime": runtime, **NEEDS.get(runtime, {})}
                        said |= {"launcher": launcher, "nodes": nodes} if launcher else {}
                        of = resolved(mode, profile, **said)
                        if not errors(of):
                            yield "-".join(map(str, (profile, mode, launcher, runtime, nodes))), of


def planned(name: str, of: ResolvedJob, folder: Path) -> tuple[DryRun, list[Finding]]:
    """The plan of a job, and its warnings and errors."""
    done = plan_of(script_of(name, script(of), profile=of.profile), {"HOME": "/home/user"}, folder)
    return done, [finding for finding in check_started(done) if finding.severity != "info"]
