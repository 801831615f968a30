"""What takes or refuses a script without running it: a controller of imaginary nodes, and sbatch alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from sbatchgen.check.lint.lint_settings import findings_of
from sbatchgen.check.lint.linter import lint
from sbatchgen.check.lint.source import read_source
from sbatchgen.check.script.script import JobScript
from sbatchgen.jobs.inputs.search import Places
from sbatchgen.jobs.judge.read_settings import settings_of
from tests.rules.test_corpus import FOLDER, SCRIPTS
from tests.sbatch.array_values import REFUSED, TAKEN

from .controller import Controller
from .oracle import Reading

BASH = "#!/bin/bash\n"


def test_controller_judges_for_a_cluster_that_does_not_exist(
    controller_factory: Callable[..., Controller],
) -> None:
    controller = controller_factory(
        nodes="NodeName=h100-[1-16] CPUs=64 RealMemory=1000000 Gres=gpu:h100:8,shard:64",
        partitions="PartitionName=gpu Nodes=ALL Default=YES MaxTime=1-00:00:00",
        gres="Name=gpu Type=h100 File=/dev/nvidia[0-7]\nName=shard Count=64",
        extra="EnforcePartLimits=ALL",
    )
    script = BASH + "#SBATCH --nodes=16\n#SBATCH --gpus-per-node=8\n"
    good = controller.test_only(script)
    assert good.returncode == 0
    assert "on nodes h100-[1-16] in partition gpu" in good.stderr
    assert "not available" in controller.test_only(script, "--gpus-per-node=9").stderr
    assert "time limit is invalid" in controller.test_only(script, "--time=2-00:00:00").stderr
    assert controller.test_only(BASH + "#SBATCH --gres=shard:9\n").returncode == 1
    assert controller.test_only(BASH + "#SBATCH --gres=shard:8\n").returncode == 0


def test_controller_reads_arrays_as_the_table_says(controller_factory: Callable[..., Controller]) -> None:
    controller = controller_factory(
        nodes="NodeName=n1 CPUs=8", partitions="PartitionName=a Nodes=ALL Default=YES"
    )
    said = {
        value: controller.test_only(f'{BASH}#SBATCH --array="{value}"\n').returncode
        for value in (*TAKEN, *REFUSED)
    }
    assert said == dict.fromkeys(TAKEN, 0) | dict.fromkeys(REFUSED, 1)


@pytest.mark.parametrize(
    ("limit", "least"),
    [("5", "10"), ("10", "10"), ("10", "00:10:30"), ("0", "10"), ("UNLIMITED", "10"), ("10", "0")],
)
def test_controller_compares_times_as_lint_does(
    controller_factory: Callable[..., Controller], limit: str, least: str
) -> None:
    controller = controller_factory(
        nodes="NodeName=n1 CPUs=8", partitions="PartitionName=a Nodes=ALL Default=YES"
    )
    text = f"{BASH}#SBATCH --time={limit} --time-min={least}\nhostname\n"
    errors = [row for row in lint(JobScript(file="a", text=text)) if row.severity == "error"]
    assert bool(errors) == (controller.test_only(text).returncode != 0)


def test_oracle_reads_directives(oracle: Callable[..., Reading]) -> None:
    reading = oracle(
        BASH + "#SBATCH -t 24 --comment='a b'\n#SBATCH --gres=gpu:2\n", "-n4", env={"SBATCH_PARTITION": "x"}
    )
    assert reading.options == {
        "comment": "a b",
        "gres": "gres:gpu:2",
        "ntasks": "4",
        "partition": "x",
        "time": "00:24:00",
    }
    assert (reading.messages, reading.returncode) == ([], None)


def test_oracle_tells_what_sbatch_refuses(oracle: Callable[..., Reading]) -> None:
    reading = oracle(BASH + "#SBATCH --time=24h\n")
    assert (reading.messages, reading.returncode) == (["error: Invalid --time specification"], 255)


def test_oracle_keeps_the_components_of_a_heterogeneous_job_apart(
    oracle: Callable[..., Reading],
) -> None:
    reading = oracle(BASH + "#SBATCH -N1\n#SBATCH hetjob\n#SBATCH -N2\n")
    assert reading.components == [{"nodes": "1"}, {"nodes": "2"}]


# Errors of lint that are not of sbatch: slurmctld, bash or a container refuses, or nothing waits.
NOT_OF_SBATCH = ("SB309", "SB411", "SB505", "SB508", "SB802", "SB813", "SB814")


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", SCRIPTS)
def test_sbatch_refuses_what_lint_says_it_refuses(name: str, oracle: Callable[..., Reading]) -> None:
    """Of each script of the corpus, with the release of this sbatch named; options of plugins are not there."""
    source = read_source(str(FOLDER / f"{name}.sh"))
    subject = JobScript(file=source.file, text=source.text, slurm="22.05")
    findings = findings_of(source, settings_of(Places(Path("/nonexistent"), {}), None, "22.05"))
    elsewhere = any(
        (finding.rule, finding.severity) == ("SB113", "warning") for finding in findings
    )  # of a plugin perhaps
    is_job = all(finding.rule != "SB144" for finding in findings)  # else it writes one
    to_fill_in = subject.is_for_program or name in ("conda-placeholder-env", "syntax-to-fill-in")  # bash's
    compared = is_job and not (subject.plugins or to_fill_in or elsewhere)
    by_controller = name.startswith("array-") or name == "short-with-equals-partition"
    refused = any(finding.severity == "error" and finding.rule not in NOT_OF_SBATCH for finding in findings)
    refuses = compared and oracle(source.data.decode()).returncode is not None
    assert refuses == (compared and refused and not by_controller)
