"""What the machine of submission and the run folder say about a job."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from sbatchgen.errors import Problem
from sbatchgen.finding import Finding
from sbatchgen.inputs.search import bundled
from sbatchgen.plan.plan import Plan
from sbatchgen.runs import start
from sbatchgen.runs.folder import refusal
from sbatchgen.runs.snapshot import Snapshot, missing
from sbatchgen.units import ShellPath


def check_here(
    plan: Plan,
    environment: Mapping[str, str],
    folder: Path,
    run_dir: Path | None,
    snapshot: Snapshot | None,
    *,
    used: Problem | None,
) -> tuple[start.Start | None, list[Finding]]:
    """Return what the job will find in its run folder, and findings about that and about missing files.

    Args:
        plan: The job.
        environment: The user's.
        folder: The current folder.
        run_dir: The run folder, if its name is known.
        snapshot: The copy of its code that is still to be made.
        used: The problem of another job that uses the run folder.
    """
    if refused := refusal(run_dir) if run_dir else None:
        return None, [Finding("error", refused._replace(at=str(plan.origin("run_dir"))))]
    begins, findings = _start(plan, environment, folder, run_dir)
    if used and begins and begins.state == "used":
        findings = []  # by that job
    findings += [*start.unset(plan, environment), *start.files_there(plan, folder, environment)]
    if snapshot:
        findings += missing(plan, snapshot)
    return begins, findings + ([Finding("error", used)] if used else [])


def _start(
    plan: Plan, environment: Mapping[str, str], folder: Path, run_dir: Path | None
) -> tuple[start.Start | None, list[Finding]]:
    """Return what the bundled trainer will find in its run folder, and what is wrong with that."""
    code = plan.profile.paths.code
    if (
        plan.trainer
        or (plan.options.array and not plan.sweep)  # each element has a folder of its own
        or not run_dir
        or not has_known_name(plan.run_dir)
        or any(ShellPath(path).unset(environment) for path in (plan.resume, code or ""))
    ):
        return None, []
    package = folder / code.filled(environment) if code else bundled("code")
    return start.inspect_run_folder(plan, run_dir, package, ShellPath(plan.resume).filled(environment))


def has_known_name(run_dir: ShellPath) -> bool:
    """Return whether the run folder's name is known before the job runs."""
    return "${SLURM_" not in run_dir
