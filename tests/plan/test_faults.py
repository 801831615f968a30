"""Each planted fault is found, with its cause; the scripts in which it was planted have none."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sbatchgen.jobs.inputs.document import read_document
from sbatchgen.jobs.inputs.profile import Profile
from sbatchgen.lab.plan import listing
from sbatchgen.lab.plan.planning import plan_of, read_inputs, script_of
from sbatchgen.lab.started.judge_started import check_started
from tests.plan.faults import FAULTS, GIVEN, PROFILE, SCRIPTS, Fault
from tests.plan.plans import needs_sandbox

pytestmark = needs_sandbox


def _says(text: str, folder: Path) -> list[tuple[str, int]]:
    """What the plan of a script finds and needs, with lines."""
    (file := folder / "here.yaml").write_text(PROFILE)
    script = script_of("job.sh", text, profile=read_document(file, Profile).value, slurm="22.05")
    done = plan_of(script, {"HOME": "/home/somebody"}, folder, read_inputs((), (), GIVEN))
    said = [(finding.problem.what, finding.place.line) for finding in check_started(done)]
    needed = listing.as_text(done).partition("Needed, and not here:")[2]
    return [*said, *((what, int(line)) for what, line in re.findall(r"  (.+) \(line (\d+)\)", needed))]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_healthy_script_has_no_finding_and_needs_nothing(name: str, tmp_path: Path) -> None:
    assert _says(SCRIPTS[name], tmp_path) == []


@pytest.mark.sampled(12)
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_planted_fault_is_found_with_its_cause(fault: Fault, tmp_path: Path) -> None:
    healthy = SCRIPTS[fault.script]
    assert fault.old in healthy
    said = _says(healthy.replace(fault.old, fault.new), tmp_path)
    assert [(what, line) for what, line in said if fault.says in what and line == fault.line], said
