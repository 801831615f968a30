"""The bundled profiles of centres: their scripts are clean, and start what the documentation starts.

The scripts in tests/fixtures/centres have the facts of a documented example each. `benchmarks/centres.py` compares
with the documents themselves.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from benchmarks.centres import lost
from benchmarks.documented.examples import Example, Place
from benchmarks.documented.facts import items
from benchmarks.documented.jobs import job_of, rendered
from sbatchgen.inputs.document import read_document
from sbatchgen.inputs.profile import Profile
from sbatchgen.inputs.search import bundled
from sbatchgen.job.script import JobScript
from sbatchgen.lint.linter import lint_rendered
from sbatchgen.rules.judge import check
from sbatchgen.units import Duration, Text
from tests.conftest import FIXTURES, Command
from tests.scripts import CENTRES, plan, script

SHAPES = ("cpu", "single", "torchrun", "srun", "spawn")
OF_USER = {"account": Text("x"), "time": Duration(3600)}  # what profiles require


def profile(name: str) -> Profile:
    return read_document(bundled("profiles") / f"{name}.yaml", Profile).value


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", CENTRES)
def test_every_mode_and_launcher_renders_without_a_finding(name: str, shape: str) -> None:
    said: dict[str, Any] = {"launcher": shape} if shape in ("torchrun", "srun", "spawn") else {}
    said |= {"nodes": 1} if shape == "spawn" else {}
    said |= {key: OF_USER[key] for key in profile(name).required}
    job = plan("ddp" if "launcher" in said else shape, name, **said)
    text = script(job)
    findings = [each for each in (*check(job), *lint_rendered(job, text)) if each.severity != "info"]
    assert [finding.problem.what for finding in findings] == []
    subprocess.run(["bash", "-n"], input=text.encode(), check=True)


@pytest.mark.parametrize("name", CENTRES)
def test_a_rendered_script_starts_what_the_centre_documents(name: str, folder: Path) -> None:
    text = (FIXTURES / "centres" / f"{name}.sh").read_text()
    documented = JobScript(file=name, text=text, slurm="24.11", assumed=True)
    job = job_of(Example(Place(profile=name, repository="", files=""), name, 1, "", documented))
    assert lost(items(documented), items(rendered(job, folder))) == []


@pytest.mark.parametrize("name", CENTRES)
def test_every_fact_of_a_centre_has_a_source(name: str) -> None:
    about = profile(name)
    assert about.site
    keys = [key for source in about.sources for key in source.keys]
    for source in about.sources:
        assert re.fullmatch(r"\S+@[0-9a-f]{10} \S+:[\d-]+ [0-9a-f]{8}", source.at), source.at
    facts = {f"partitions.{each}" for each in about.partitions if each != "default"}
    facts |= {key for key in ("modules", "env", "launchers", "required") if getattr(about, key)}
    for fact in facts:
        assert any(f"{key}.".startswith(f"{fact}.") or f"{fact}.".startswith(f"{key}.") for key in keys), fact


def test_the_profiles_of_centres_pass_the_check(command: Command) -> None:
    done = command("profile", "check", *CENTRES)
    assert (done.status, done.err) == (0, "")
