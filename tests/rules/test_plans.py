"""Each rule just inside and just outside of its limit, and the text that a user reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sbatchgen.base.texts import Requeue
from sbatchgen.base.units import Gres, ShellPath, Text
from sbatchgen.jobs.judge.job_check import check
from tests.conftest import Command
from tests.scripts import errors, resolved

CITED = "https://example.org/partitions"
PROFILE = """
name: here
url: https://example.org
checked: 2026-01-01
default_partition: gpu
required: [account]
partitions:
  gpu: {time_max: 2-00:00:00, nodes_max: 4, cpus_per_node: 64, gpus_per_node: 4, gpu_type: a100,
        mem_per_node: 240G, shards_per_gpu: 8}
"""


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A profile that knows all limits."""
    path = tmp_path / "here.yaml"
    path.write_text(PROFILE)
    return path


FITS: list[tuple[str, dict[str, Any]]] = [
    ("ddp", {}),
    ("ddp", {"nodes": 4, "time": 172800, "mem": 245760}),
    ("ddp", {"gpus_per_node": "a100:4"}),
    ("single", {"gres": Gres("shard:8")}),
    ("ddp", {"gres": Gres("shard:8"), "nproc_per_node": 1}),
    ("cpu", {"cpus_per_task": 64}),
    ("ddp", {"signal": Text("B:USR1@1800"), "time": 3600}),
    ("ddp", {"trainer": Text("train.py")}),
    ("ddp", {"trainer": Text("my.module")}),
]


@pytest.mark.parametrize(("mode", "said"), FITS)
def test_what_fits_is_let_through(here: Path, mode: str, said: dict[str, Any]) -> None:
    assert errors(resolved(mode, here, account=Text("a"), **said)) == []


BREAKS: list[tuple[str, dict[str, Any], str, bool]] = [
    ("ddp", {"account": None}, "requires --account (here.yaml:6)", True),
    ("ddp", {"nodes": 5}, "gives a job at most 4 nodes, but the job asks for 5", True),
    ("ddp", {"time": 172860}, "over the limit 2-00:00:00", True),
    ("ddp", {"gpus_per_node": "8"}, "has 4 GPUs a node, but the job asks for 8", True),
    ("ddp", {"gpus_per_node": "v100:4"}, "type 'a100', not 'v100'", True),
    ("ddp", {"gpus_per_node": "4", "gres": Gres("gpu:4")}, "exclude each other", False),
    ("ddp", {"mem": 245761}, "has 240G of memory", True),
    ("ddp", {"mem": 1024, "mem_per_gpu": 1024}, "exclude each other", False),
    ("ddp", {"cpus_per_task": 65}, "has 64 CPUs a node, but the job asks for 65", True),
    ("ddp", {"ntasks": 8}, "may spread the tasks unevenly", False),
    ("ddp", {"ntasks_per_node": 4}, "launcher torchrun wants 1 task on a node", False),
    (
        "ddp",
        {"ntasks_per_node": 2, "launcher": "srun", "nproc_per_node": 4},
        "wants 4 tasks on a node",
        False,
    ),
    ("ddp", {"nproc_per_node": 5}, "5 processes on a node with 4 GPUs", False),
    ("single", {"nodes": 2}, "runs on one node", False),
    ("single", {"gpus_per_node": "2"}, "uses one GPU, but 2", False),
    ("dataparallel", {"nodes": 2}, "runs on one node", False),
    ("cpu", {"gpus_per_node": "1"}, "uses no GPU", False),
    ("single", {"gres": Gres("shard:9")}, "must lie on one GPU, which has 8", True),
    ("dataparallel", {"gres": Gres("shard:2")}, "each process or replica needs its own", False),
    ("ddp", {"gres": Gres("shard:2"), "nproc_per_node": 2}, "each process or replica needs its own", False),
    ("ddp", {"runtime": "venv"}, "needs a virtual environment", False),
    ("ddp", {"runtime": "conda"}, "needs a conda environment", False),
    ("ddp", {"runtime": "apptainer"}, "needs an image", False),
    ("ddp", {"runtime": "enroot", "image": ShellPath("images/x.sqsh")}, "address of a registry", False),
    (
        "ddp",
        {"runtime": "apptainer", "image": ShellPath("x.sif"), "binds": ("/a:/b:/c",)},
        "can't be mounted",
        False,
    ),
    ("ddp", {"signal": Text("B:USR1@1801"), "time": 3600}, "would hardly have begun", False),
    ("ddp", {"signal": Text("now!")}, "is not a value for --signal", False),
    ("ddp", {"output": ShellPath("/scratch/${USER}/x-%j.out")}, "Slurm expands neither variables", False),
    ("ddp", {"array": Text("1..4")}, "not a list of indices", False),
    ("ddp", {"array": Text("5-1")}, "not a list of indices", False),
    ("ddp", {"dependency": Text("afterfoo:1")}, "'afterfoo' is not a kind of dependency", False),
    ("ddp", {"constraint": Text("[a")}, "a bracket or parenthesis is not closed", False),
    ("ddp", {"licenses": Text("matlab:-1")}, "is not a number of licences", False),
    ("ddp", {"exclude": Text("n[3-1]")}, "is not a range of hosts", False),
    ("ddp", {"nodelist": Text("n1"), "exclude": Text("n[1-2]")}, "n1 is in --nodelist too", False),
    ("ddp", {"begin": Text("sometime")}, "is not a value for --begin", False),
    ("ddp", {"switches": Text("x")}, "is not a value for --switches", False),
    ("ddp", {"args": ("--run-dir=x",)}, "sbatchgen sets the trainer's --run-dir itself", False),
    ("ddp", {"requeue": Requeue("expedite"), "chain": 3}, "next of the chain never starts", False),
]


@pytest.mark.parametrize(("mode", "said", "words", "about_fit"), BREAKS)
def test_what_can_not_work_is_refused_with_a_fix(
    here: Path, mode: str, said: dict[str, Any], words: str, *, about_fit: bool
) -> None:
    findings = errors(resolved(mode, here, **{"account": Text("a"), **said}))
    about = [finding for finding in findings if words in finding.problem.what]
    assert len(about) == 1, [finding.problem.what for finding in findings]
    assert about[0].about_fit == about_fit
    assert about[0].problem.fix or "partition" in words


@pytest.mark.parametrize(("release", "known"), [("25.05.3", False), ("25.11", True), ("26.05.5", True)])
def test_an_older_slurm_does_not_know_an_expedited_requeue(here: Path, release: str, *, known: bool) -> None:
    here.write_text(f"{PROFILE}slurm: {release}\n")
    job = resolved("ddp", here, account=Text("a"), requeue=Requeue("expedite"))
    assert job.directives["requeue"] == "expedite"
    whats = [finding.problem.what for finding in errors(job)]
    assert whats == ([] if known else [EXPEDITED.format(release)])
    assert errors(resolved("ddp", here, account=Text("a"), requeue=True)) == []


EXPEDITED = "requeue: expedite came with Slurm 25.11: sbatch {} refuses the script"
WARNS: list[tuple[str, dict[str, Any], str]] = [
    ("dataparallel", {}, "slower than DDP"),
    ("ddp", {"nproc_per_node": 2}, "2 processes on a node with 4 GPUs"),
    ("ddp", {"output": ShellPath("logs/%x-%j.out")}, "does not create the log folder 'logs'"),
    ("ddp", {"error": ShellPath("logs/%j.err")}, "does not create the log folder 'logs'"),
    ("ddp", {"output": ShellPath("train.log")}, "the same for every job"),
    ("ddp", {"signal": Text("USR2@60")}, "waits for USR1"),
    ("ddp", {"requeue": False}, "requeue is off"),
    ("single", {"launcher": "spawn"}, "is ignored"),
    ("ddp", {"runtime": "apptainer", "image": ShellPath("docker://a/b")}, "each of 2 nodes pulls"),
]


@pytest.mark.parametrize(("mode", "said", "words"), WARNS)
def test_silent_surprises_are_warned_of(here: Path, mode: str, said: dict[str, Any], words: str) -> None:
    findings = check(resolved(mode, here, account=Text("a"), **said))
    assert [finding.severity for finding in findings if words in finding.problem.what] == ["warning"]
    quiet = check(resolved("ddp", here, account=Text("a")))
    assert quiet == []


@pytest.mark.parametrize(
    ("enforced", "said", "severities"),
    [
        ("true", {"qos": Text("shrt")}, ["error"]),
        ("false", {"qos": Text("shrt")}, ["warning"]),
        ("true", {"qos": Text("SHORT"), "time": 3600}, []),
        ("true", {"qos": Text("SHORT"), "time": 3660}, ["error"]),
        ("true", {"time": 259200}, ["warning"]),
        ("true", {"time": 259200, "qos": Text("normal")}, ["error"]),
        ("true", {"time": 259200, "qos": Text("days")}, []),
        ("true", {"nodes": 5}, ["error"]),
    ],
)
def test_what_only_some_clusters_and_users_may_not_do_is_a_warning(
    here: Path, enforced: str, said: dict[str, Any], severities: list[str]
) -> None:
    qos = "qos: {normal: {}, short: {time_max: 01:00:00}, days: {overrides: [time_max]}}\n"
    here.write_text(f"{PROFILE}{qos}limits: {{enforce_qos: {enforced}}}\n")
    findings = check(resolved("ddp", here, account=Text("a"), **said))
    assert [
        finding.severity for finding in findings if finding.rule in ("SB204", "SB206", "SB224")
    ] == severities


@pytest.mark.parametrize(
    ("jobs_max", "said", "what", "fix"),
    [
        (0, {}, "qos 'few' lets a user have 0 jobs at a time: Slurm refuses the job", "use another qos"),
        (
            3,
            {"array": Text("0-9%2")},
            "qos 'few' lets a user have 3 jobs at a time, and the array has 10: Slurm refuses the job",
            "submit smaller arrays, one after the other",
        ),
    ],
)
def test_a_limit_on_jobs_names_the_array_of_a_job_that_has_one(
    here: Path, jobs_max: int, said: dict[str, Any], what: str, fix: str
) -> None:
    here.write_text(f"{PROFILE}qos: {{few: {{jobs_max: {jobs_max}}}}}\n")
    (finding,) = errors(resolved("ddp", here, account=Text("a"), qos=Text("few"), **said))
    assert (finding.rule, finding.problem.what, finding.problem.fix) == ("SB224", what, fix)


def test_a_partition_without_a_limit_has_as_many_nodes_as_its_list(here: Path) -> None:
    here.write_text(PROFILE.replace("nodes_max: 4", "nodes: 'n[1-2]'"))
    (finding,) = errors(resolved("ddp", here, account=Text("a"), nodes=3))
    assert finding.problem.what == "partition 'gpu' has 2 nodes, but the job asks for 3"


@pytest.mark.parametrize(
    ("line", "severities"),
    [
        ("", ["error"]),
        (f"sources: [{{at: '{CITED}', keys: [partitions]}}]\n", ["warning"]),
        ("omit: [partition]\n", []),
    ],
    ids=["of this user", "from documentation", "left out of scripts"],
)
def test_an_unknown_partition_is_an_error_where_all_are_listed(
    here: Path, line: str, severities: list[str]
) -> None:
    here.write_text(PROFILE + line)
    findings = check(resolved("ddp", here, account=Text("a"), partition=Text("gpo")))
    assert [finding.severity for finding in findings if finding.rule == "SB201"] == severities


@pytest.mark.parametrize(
    ("line", "severity"),
    [("", "error"), (f"sources: [{{at: '{CITED}', keys: [partitions]}}]\n", "warning")],
    ids=["of this user", "from documentation"],
)
def test_documentation_names_only_some_features_and_qualities_of_service(
    here: Path, line: str, severity: str
) -> None:
    facts = PROFILE.replace("shards_per_gpu: 8}", "shards_per_gpu: 8, features: [fat]}")
    here.write_text(f"{facts}qos: {{normal: {{}}}}\nlimits: {{enforce_qos: true}}\n{line}")
    for option, said in (("constraint", "feature 'other' for partition 'gpu'"), ("qos", "qos 'other'")):
        asked: dict[str, Any] = {option: Text("other")}
        job = resolved("ddp", here, account=Text("a"), **asked)
        (finding,) = [each for each in check(job) if "'other'" in each.problem.what]
        assert finding.severity == severity
        assert (finding.problem.what == f"profile 'here' lists no {said}") == (severity == "warning")


def test_gpus_of_an_unknown_cluster_must_be_said(tmp_path: Path) -> None:
    path = tmp_path / "new.yaml"
    path.write_text("name: new\nurl: https://example.org\nchecked: 2026-01-01\n")
    assert "does not say how many GPUs a node has" in errors(resolved("ddp", path))[0].problem.what
    assert errors(resolved("ddp", path, gpus_per_node="4")) == []
    assert errors(resolved("ddp", path, nproc_per_node=4)) == []
    assert errors(resolved("single", path)) == []


def test_an_error_reads_what_where_and_how_to_fix(here: Path, command: Command) -> None:
    result = command("render", "ddp", "--profile", str(here), "--gpus-per-node", "8", "--account", "a")
    assert (result.status, result.out) == (4, "")
    assert result.err == (
        "error: partition 'gpu' has 4 GPUs a node, but the job asks for 8 a node\n"
        "  at:  --gpus-per-node\n"
        "  fix: set --gpus-per-node 4 and --nodes 4\n"
    )


def test_findings_of_both_kinds_end_with_3(here: Path, command: Command) -> None:
    both = command("render", "ddp", "--profile", str(here), "--gpus-per-node", "8", "--ntasks", "2")
    assert both.status == 3
    assert both.err.count("error: ") == 3


def test_what_a_plan_and_its_script_show_is_said_once(here: Path, command: Command) -> None:
    image = ("--runtime", "apptainer", "--image", "docker://a/b", "--nproc-per-node", "2")
    shown = command("review", "ddp", "--profile", str(here), "--account", "a", "--nodes", "2", *image).out
    assert "SB021" in shown
    assert "SB014" in shown
    assert "SB506" not in shown
    assert "SB304" not in shown


@pytest.mark.parametrize(
    ("time", "fix"), [("00:10:00", "leave time to save: B:USR1@150"), ("00:02:00", "a longer time limit")]
)
def test_a_signal_is_not_suggested_to_come_before_the_job_begins(
    command: Command, time: str, fix: str
) -> None:
    words = ("--profile", "msu", "--time", time, "--signal", "B:USR1@30")
    assert fix in command("review", "single", *words).out
