"""Plans of scripts for tests."""

from __future__ import annotations

import getpass
import os
from pathlib import Path

import pytest

from sbatchgen.base.errors import NoSandboxError
from sbatchgen.base.finding import Finding
from sbatchgen.lab.plan.dry_run import DryRun
from sbatchgen.lab.plan.planning import plan_of, read_inputs, script_of
from sbatchgen.lab.sandbox.box import Box, run
from sbatchgen.lab.started.judge_started import check_started

HEAD = "#!/bin/bash\n"
TWO_NODES = "#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=1\n#SBATCH --gpus-per-node=4\n"
USER = getpass.getuser()


def why_not() -> str:
    """Why this machine has no sandbox; "" if it has one."""
    try:
        run(["/bin/true"], {}, Box(home="/home/nobody", hostname="node1", folder="/"))
    except NoSandboxError as error:
        return str(error)
    return ""


needs_sandbox = pytest.mark.skipif(bool(LACKING := why_not()), reason=LACKING)


def planned(
    text: str,
    folder: Path,
    *arguments: str,
    variables: tuple[str, ...] = (),
    files: tuple[str, ...] = (),
    nodes: int | None = None,
    slurm: str = "22.05",
    environment: dict[str, str] | None = None,
) -> tuple[DryRun, list[Finding]]:
    """The plan of a script's text, and its findings."""
    script = script_of("job.sh", text if text.startswith("#!") else HEAD + text, profile=None, slurm=slurm)
    given = read_inputs(arguments, variables, files)
    around = {"HOME": f"/home/{USER}", **(environment or os.environ)}
    done = plan_of(script, around, folder, given, nodes=nodes)
    return done, check_started(done)


def said(findings: list[Finding]) -> list[str]:
    """What findings say, without the one about lost statuses."""
    return [each.problem.what for each in findings if "the job ends with 0" not in each.problem.what]
