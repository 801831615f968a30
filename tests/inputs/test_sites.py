"""Packs of profiles and templates that a centre publishes: as a folder, and as an installed package."""

from __future__ import annotations

import os
import re
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hatchling.build import build_wheel

from sbatchgen.jobs.inputs.search import SITES
from sbatchgen.jobs.modes import MODES
from tests.cluster import accounting
from tests.cluster.controller import Controller
from tests.conftest import Command
from tests.test_imports import loaded
from tools import trial

PYPROJECT = f"""
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "example-site"
version = "1.0"

[project.entry-points."{SITES}"]
example = "example_site"
"""
PROFILE = """
name: example
url: https://docs.example.edu/gpu
checked: 2026-01-31
default_partition: gpu
required: [account]
partitions:
  gpu: {gpus_per_node: 4, cpus_per_node: 16, nodes_max: 2}
  cpu: {cpus_per_node: 16, gpus_per_node: 0}
template: site.sh.j2
runtime: conda
runtimes:
  conda: {env: torch}
  venv: {path: /opt/venv}
"""
TEMPLATE = """{% extends "bundled:job.sh.j2" %}
{% block modules %}
echo "Welcome to the example"
{{ super() }}{% endblock %}
"""
JOB = "mode: ddp\noptions: {nodes: 2, time: 1:00:00}\n"
PARTITIONS = "PartitionName=gpu Nodes=g[1-4] MaxNodes=2 Default=YES\nPartitionName=cpu Nodes=c[1-4]"
NODES = "NodeName=g[1-4] CPUs=16 RealMemory=64000 Gres=gpu:4\nNodeName=c[1-4] CPUs=16 RealMemory=64000"


@pytest.fixture(scope="session")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source of a package."""
    folder = tmp_path_factory.mktemp("site")
    for name, text in {
        "pyproject.toml": PYPROJECT,
        "example_site/__init__.py": "raise SystemExit('a site is not imported')\n",
        "example_site/profiles/example.yaml": PROFILE,
        "example_site/templates/site.sh.j2": TEMPLATE,
        "example_site/jobs/train.yaml": JOB,
    }.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


@pytest.fixture(scope="session")
def site_packages(package: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of modules with what pip would install: its wheel, unpacked."""
    target = tmp_path_factory.mktemp("installed")
    wheels = tmp_path_factory.mktemp("wheel")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(package)
        zipfile.ZipFile(wheels / build_wheel(str(wheels))).extractall(target)
    return target


@pytest.fixture
def installed(site_packages: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(site_packages)
    return site_packages / "example_site"


def test_a_profile_of_an_installed_package_is_found_with_its_template(
    installed: Path, command: Command
) -> None:
    result = command("render", "single", "--profile", "example", "--account", "abc")
    assert result.status == 0, result.err
    assert 'echo "Welcome to the example"\n' in result.out
    listed = command("profile", "list").out
    assert "* example            slurm  checked 2026-01-31" in listed
    assert f"\n    {installed}/profiles/example.yaml\n" in listed
    assert command("profile", "show", "example").out == PROFILE
    lines = command("explain", "single", "--profile", "example", "--account", "abc", "--lines")
    assert lines.status == 0
    assert "site.sh.j2" in lines.out


def test_files_of_the_user_and_bundled_ones_come_first(
    installed: Path, folder: Path, command: Command
) -> None:
    (installed / "profiles/msu.yaml").write_text(PROFILE)
    try:
        assert "Welcome" not in command("render", "single", "--profile", "msu").out
    finally:
        (installed / "profiles/msu.yaml").unlink()
    (folder / ".sbatchgen/profiles").mkdir(parents=True)
    (folder / "sbatchgen.yaml").write_text("")
    own = PROFILE.replace("template: site.sh.j2\n", "")
    (folder / ".sbatchgen/profiles/example.yaml").write_text(own)
    assert command("profile", "show", "example").out == own


def test_what_others_can_write_is_left_out(
    installed: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = installed / "profiles/example.yaml"
    file.chmod(0o666)
    try:
        result = command("render", "single", "--profile", "example", "--account", "abc")
        assert result.status == 3
        assert "can be written by everybody" in result.err
        monkeypatch.setenv("SBATCHGEN_TRUST", str(installed))
        assert command("render", "single", "--profile", "example", "--account", "abc").status == 0
    finally:
        file.chmod(0o644)


def test_where_python_imports_from_is_believed(installed: Path, command: Command) -> None:
    """As on Debian, where the group staff may write into /usr/local/lib."""
    installed.parent.chmod(0o777)
    try:
        result = command("render", "single", "--profile", "example", "--account", "abc")
        assert (result.status, result.err) == (0, "")
        installed.chmod(0o777)
        assert "can be written by everybody" in command("render", "single", "--profile", "example").err
    finally:
        installed.chmod(0o755)
        installed.parent.chmod(0o755)


def test_packages_are_looked_for_only_where_a_name_is_found_nowhere_else() -> None:
    assert "importlib.metadata" not in loaded("render", "ddp", "--profile", "msu") - loaded("--help")
    assert "example_site" not in sys.modules


def test_a_pack_is_tried_as_a_folder_and_installed(package: Path, installed: Path, command: Command) -> None:
    lines = ["profile  runtime  partition  " + "  ".join(MODES)]
    for runtime, partition in (("conda", "gpu"), ("conda", "cpu"), ("venv", "gpu"), ("venv", "cpu")):
        fits = ("ok" if mode == "cpu" or partition == "gpu" else "-" for mode in MODES)
        cells = "  ".join(f"{fit:<{len(mode)}}" for mode, fit in zip(MODES, fits, strict=True))
        lines.append(f"example  {runtime:<7}  {partition:<9}  {cells}".rstrip())
    table = "\n".join(lines) + "\n"
    for name, jobs in ((str(package / "example_site"), package / "example_site"), ("example", installed)):
        result = command(name, "--set", "options.account=abc", program=trial.cli)
        assert result.out == table + f"example  {jobs}/jobs/train.yaml: ok\n"
        assert result.status == 0, result.err


def test_a_problem_of_a_pack_is_reported_once(package: Path, folder: Path, command: Command) -> None:
    for kind, name, text in (
        ("profiles", "a.yaml", PROFILE.replace("site.sh.j2", "none.sh.j2")),
        ("profiles", "b.yaml", "name: b\n"),
        ("jobs", "wrong.yaml", "mode: ddp\noptions: {nodes: many}\n"),
    ):
        (folder / "pack" / kind).mkdir(parents=True, exist_ok=True)
        (folder / "pack" / kind / name).write_text(text)
    result = command("pack", program=trial.cli)
    assert result.status == 3
    assert re.search(rf"(?m)^a +venv +gpu( +error){{{len(MODES)}}}$", result.out)
    assert "b  profile: error\n" in result.out
    assert f"a  {folder}/pack/jobs/wrong.yaml: error\n" in result.out
    assert result.err.count("no template 'none.sh.j2'") == 1
    assert "more: " in result.err
    assert "'many' is not a whole number" in result.err
    assert "missing key 'url'" in result.err
    assert command("nowhere", program=trial.cli).status == 3


def test_an_account_that_is_set_wins_over_a_made_up_one(folder: Path, command: Command) -> None:
    (folder / "own.yaml").write_text(
        "name: own\nurl: https://example.org\nchecked: 2026-01-01\nrequired: [account]\n"
        "partitions: {p: {gpus_per_node: 4, cpus_per_node: 8, accounts: [prof1]}}\n"
    )
    tried = command("own.yaml", "--set", "options.account=prof1", program=trial.cli)
    assert re.search(rf"host +p( +ok){{{len(MODES)}}}\n", tried.out)
    assert " ok" not in command("own.yaml", program=trial.cli).out


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "runtime", ["venv", "conda", "apptainer", "enroot", "uv", "shifter", "podman-hpc", "edf"]
)
def test_a_profile_may_leave_the_environment_to_its_users(
    folder: Path, command: Command, runtime: str
) -> None:
    (folder / "own.yaml").write_text(
        f"name: own\nurl: https://example.org\nchecked: 2026-01-01\nruntime: {runtime}\n"
        "partitions: {p: {gpus_per_node: 4, cpus_per_node: 8}}\n"
    )
    assert command("profile", "check", "own.yaml").out == "own.yaml: no errors\n"
    tried = command("own.yaml", program=trial.cli)
    assert tried.out.split("\n")[1].split() == ["own.yaml", runtime, "p", *("ok",) * len(MODES)]


def use_sbatch(controller: Controller, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the sbatch of a controller on PATH, whose user can't read this one's files."""
    controller.commands(folder / "real", "sbatch")
    program = folder / "bin/sbatch"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {folder}/real/sbatch "$1" <"$2"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder / 'bin'}:{os.environ['PATH']}")


@pytest.mark.proof
@pytest.mark.skipif(accounting.why_not() is not None, reason=accounting.why_not() or "")
def test_a_real_slurm_accepts_an_account_that_is_set_and_no_made_up_one(
    folder: Path,
    controller_factory: Callable[..., Controller],
    command: Command,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mine = ("add account prof1", "add user alice account=prof1")
    use_sbatch(controller_factory(nodes=NODES, partitions=PARTITIONS, accounts=mine), folder, monkeypatch)
    (folder / "own.yaml").write_text(
        "name: own\nurl: https://example.org\nchecked: 2026-01-01\nrequired: [account]\n"
        "partitions: {cpu: {gpus_per_node: 0, cpus_per_node: 16}}\n"
    )
    assert "refused" in command("own.yaml", "--live", program=trial.cli).out
    tried = command("own.yaml", "--live", "--set", "options.account=prof1", program=trial.cli)
    assert tried.status == 0, tried.err
    assert " ok " in tried.out


def test_a_real_slurm_accepts_the_jobs_of_a_pack(
    package: Path,
    folder: Path,
    controller_factory: Callable[..., Controller],
    command: Command,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And refuses those of a profile that names a partition that is gone."""
    controller = controller_factory(
        nodes=NODES, partitions=PARTITIONS, gres="NodeName=g[1-4] Name=gpu Count=4"
    )
    use_sbatch(controller, folder, monkeypatch)
    pack = folder / "pack"
    (pack / "profiles").mkdir(parents=True)
    (pack / "profiles/example.yaml").write_text(PROFILE.replace("template: site.sh.j2\n", ""))
    result = command("pack", "--live", program=trial.cli)
    assert result.status == 0, result.err
    assert re.search(rf"example +conda +gpu( +ok){{{len(MODES)}}}\n", result.out)

    moved = PROFILE.replace("template: site.sh.j2\n", "").replace("  gpu:", "  gone:")
    (pack / "profiles/example.yaml").write_text(moved.replace("partition: gpu", "partition: gone"))
    result = command("pack", "--live", program=trial.cli)
    assert result.status == 5
    assert "example  conda    gone       refused  refused  refused       refused\n" in result.out
    assert "partition" in result.err


@pytest.mark.parametrize(("away", "outcome", "status"), [("n4", "drained", 0), ("", "refused", 5)])
def test_a_job_that_waits_for_a_drained_node_is_no_mistake_of_its_profile(
    folder: Path, command: Command, monkeypatch: pytest.MonkeyPatch, away: str, outcome: str, status: int
) -> None:
    """sbatch accepts what --test-only refuses while nodes are drained."""
    (folder / "bin").mkdir()
    refusal = "echo 'allocation failure: Requested node configuration is not available' >&2; exit 1"
    for name, text in (
        ("sbatch", refusal),
        ("sinfo", f'[ "${{5#--}}$6" = "drain,down,fail,maint,reboot--partition=cpu" ] && echo {away}'),
    ):
        (folder / "bin" / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder / 'bin'}:{os.environ['PATH']}")
    (folder / "own.yaml").write_text(
        "name: own\nurl: https://example.org\nchecked: 2026-01-01\n"
        "partitions: {cpu: {gpus_per_node: 0, cpus_per_node: 16}}\n"
    )
    tried = command("own.yaml", "--live", program=trial.cli)
    assert (tried.status, f" {outcome}" in tried.out) == (status, True), tried.err


@pytest.mark.parametrize(
    ("name", "fix"), [("mcu", "did you mean 'msu'?"), ("mycluster", "describe this cluster: ")]
)
def test_a_profile_is_proposed_only_where_its_name_is_near(command: Command, name: str, fix: str) -> None:
    assert f"\n  fix: {fix}" in command("profile", "show", name).err
