"""The GitHub Action: its steps, run as a runner runs them."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from tests.conftest import REPOSITORY

ACTION = yaml.safe_load((REPOSITORY / "action.yml").read_text())
INSTALL, LINT = ACTION["runs"]["steps"]
# What the action installs from the network, and what builds it: here from the libraries of this Python.
LIBRARIES = """
click jinja2 markupsafe yaml _yaml rich markdown_it mdurl pygments tree_sitter tree_sitter_bash
hatchling pathspec pluggy packaging trove_classifiers
"""
GOOD = "#!/bin/bash\n#SBATCH --time=01:00:00 --nodes=1\nhostname\n"
BAD = "#!/bin/bash\n#SBATCH --nodes=two --time=01:00:00\nhostname\n"
WARNED = "#!/bin/bash\n#SBATCH --time=24 --nodes=1\nhostname\n"


class Done(NamedTuple):
    """A step that has ended."""

    status: int
    out: str
    outputs: str  # what it wrote into GITHUB_OUTPUT


class Runner:
    """A runner of GitHub: bash with its options, in the workspace, with the variables that it sets."""

    def __init__(self, folder: Path) -> None:
        self.workspace = folder / "workspace"
        libraries = folder / "libraries"
        for place in (self.workspace, folder / "temp", libraries):
            place.mkdir()
        for name in LIBRARIES.split():
            library = importlib.util.find_spec(name)
            if library and library.submodule_search_locations:
                (libraries / name).symlink_to(library.submodule_search_locations[0])
        self.output = folder / "output"
        self.environment = {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "HOME": str(folder),
            "GITHUB_WORKSPACE": str(self.workspace),
            "GITHUB_OUTPUT": str(self.output),
            "RUNNER_TEMP": str(folder / "temp"),
            "PYTHONPATH": str(libraries),
            **dict.fromkeys(("PIP_NO_INDEX", "PIP_NO_DEPS"), "1"),
            "PIP_NO_BUILD_ISOLATION": "0",  # which turns it off
        }

    def step(self, step: Mapping[str, Any], **inputs: str) -> Done:
        """Run a step, with inputs of the action in place of its defaults."""
        given = {name: about["default"] for name, about in ACTION["inputs"].items()} | inputs
        context = {f"inputs.{name}": value for name, value in given.items()}
        context["github.action_path"] = str(REPOSITORY)
        variables = {
            name: re.sub(r"\$\{\{ (\S+) \}\}", lambda match: context[match[1]], text)
            for name, text in step["env"].items()
        }
        assert "${{" not in step["run"], "what a user gives must not become a part of a script"
        script = self.workspace.parent / "step.sh"
        script.write_text(step["run"])
        self.output.write_text("")
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", str(script)],
            cwd=self.workspace,
            env=self.environment | variables,
            capture_output=True,
            text=True,
            check=False,
        )
        return Done(done.returncode, done.stdout + done.stderr, self.output.read_text())


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Runner:
    """A runner that has installed the action."""
    runner = Runner(tmp_path_factory.mktemp("runner"))
    done = runner.step(INSTALL)
    assert done.status == 0, done.out
    return runner


def put(runner: Runner, **files: str) -> None:
    for file in runner.workspace.rglob("*.slurm"):
        file.unlink()
    for name, text in files.items():
        (runner.workspace / f"{name}.slurm").write_text(text)


@pytest.mark.sampled(9)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "args", "status", "annotation"),
    [
        (GOOD, "", 0, ""),
        (BAD, "", 3, "::error file=job.slurm,line=2,"),
        (WARNED, "", 0, "::warning file=job.slurm,line=2,"),
        (WARNED, "--strict", 3, "::warning file=job.slurm,line=2,"),
        (WARNED, "--disable SB127\n--strict", 0, ""),
        (BAD, "--format json", 3, "::error file=job.slurm,line=2,"),
        (GOOD, "--no-such-option", 2, "no-such-option"),
    ],
)
def test_findings_are_annotations_and_errors_fail(
    runner: Runner, text: str, args: str, status: int, annotation: str
) -> None:
    put(runner, job=text)
    done = runner.step(LINT, args=args)
    assert (done.status, done.outputs) == (status, "")
    assert annotation in done.out
    assert bool(done.out) == bool(annotation)


@pytest.mark.slow
def test_paths_are_lines_and_data(runner: Runner) -> None:
    put(runner, good=GOOD, **{"with a blank": BAD, "$(touch made)": BAD})
    done = runner.step(LINT, paths="\ngood.slurm\n\n")
    assert (done.status, done.out) == (0, "")
    done = runner.step(LINT, paths="with a blank.slurm\n$(touch made).slurm\n")
    assert done.out.count("::error ") == 2
    assert not (runner.workspace / "made").exists()
    assert runner.step(LINT, paths="gone.slurm").status == 3


@pytest.mark.slow
def test_a_sarif_report_is_there_if_the_step_fails(runner: Runner) -> None:
    put(runner, job=BAD)
    done = runner.step(LINT, sarif="report.sarif")
    assert (done.status, done.outputs) == (3, "sarif=report.sarif\n")
    log = json.loads((runner.workspace / "report.sarif").read_text())
    assert [result["level"] for result in log["runs"][0]["results"]] == ["error"]
    assert ACTION["outputs"]["sarif"]["value"] == f"${{{{ steps.{LINT['id']}.outputs.sarif }}}}"


@pytest.mark.slow
def test_the_documented_workflow_runs_as_it_is_typed(runner: Runner) -> None:
    page = (REPOSITORY / "docs/how-to/lint-scripts.md").read_text()
    blocks = re.findall(r"(?s)```yaml\n(.*?)```", page)
    workflow = next(yaml.safe_load(block) for block in blocks if "runs-on" in block)
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    own = [step for step in steps if step["uses"].startswith("./")]
    assert len(own) == 1, "the action is a folder beside the scripts, which needs no owner"
    assert own[0]["with"].keys() <= ACTION["inputs"].keys()
    assert steps[0]["with"] == {"submodules": True}
    jobs = runner.workspace / "jobs"
    jobs.mkdir()
    (jobs / "job.slurm").write_text(WARNED)
    done = runner.step(LINT, **own[0]["with"])
    assert (done.status, done.out.count("::warning file=jobs/job.slurm,")) == (3, 1)
