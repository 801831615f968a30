"""Profiles of real controllers: every fact of a test is found, or reported as unknown, and no fact is wrong."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from sbatchgen.jobs.inputs.document import Document, decode
from sbatchgen.jobs.inputs.profile import Partition, Profile
from sbatchgen.jobs.inputs.search import Places
from sbatchgen.jobs.judge.profile_check import findings
from sbatchgen.jobs.modes import MODES
from sbatchgen.lab.discover.facts import profile_text
from sbatchgen.lab.discover.slurm_answers import ask
from tests.cluster.controller import Controller
from tests.discover.clusters import CLUSTERS, Imaginary
from tests.scripts import errors, resolved, script

TODAY = "2026-01-31"


class Discovered(NamedTuple):
    """A profile, its controller, and the facts that it must have."""

    controller: Controller
    imaginary: Imaginary
    release: str
    text: str
    profile: Document[Profile]


@pytest.fixture(scope="module", params=["22.05", "26.05"])
def slurm(request: pytest.FixtureRequest) -> tuple[str, Path | None]:
    return request.param, request.getfixturevalue("later_root") if request.param == "26.05" else None


@pytest.fixture(scope="module", params=CLUSTERS)
def discovered(
    request: pytest.FixtureRequest,
    slurm: tuple[str, Path | None],
    real_slurm: None,
    tmp_path_factory: pytest.TempPathFactory,
) -> Any:
    cluster = CLUSTERS[request.param]
    lines = {
        "nodes": cluster.nodes,
        "partitions": cluster.partitions,
        "gres": cluster.gres,
        "extra": cluster.extra,
    }
    with Controller(**lines, root=slurm[1]) as controller:
        for command in cluster.at_first:
            controller.scontrol(*command)
        bin_ = tmp_path_factory.mktemp("bin")
        controller.commands(bin_, "scontrol", "sbatch", "sacctmgr", "id")
        environment = {
            "PATH": f"{bin_}:{os.environ['PATH']}",
            "SLURM_CLUSTERS": "other",
            "SINFO_FORMAT": "%P",
        }
        made = profile_text(ask(environment), environment, name="site", today=TODAY)
        yield Discovered(controller, cluster, slurm[0], made, decode(made, Profile, name="site.yaml"))


def plain(value: Any) -> Any:
    """Without classes, without keys that are not given."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    return value


def written(document: Document[Profile], name: str) -> dict[str, Any]:
    """The keys of a partition that are in the file."""
    partition: Partition = document.value.partitions[name]  # type: ignore[index]
    where = f"partitions.{name}"
    made = given(document, partition, where)
    if shapes := [given(document, shape, f"{where}.shapes[{n}]") for n, shape in enumerate(partition.shapes)]:
        made["shapes"] = shapes
    return made


def given(document: Document[Profile], record: Any, where: str) -> dict[str, Any]:
    """The keys of a record that are in the file."""
    names = [each.name for each in fields(record) if f"{where}.{each.name}" in document.places]
    return {key: plain(getattr(record, key)) for key in names}


def shown(discovered: Discovered) -> bool:
    """Whether this Slurm shows nodes of the cloud: 26.05 always does."""
    return discovered.imaginary is not CLUSTERS["cloud"] or discovered.release == "22.05"


@pytest.mark.sampled(4)
def test_every_fact_is_found_and_no_fact_is_wrong(discovered: Discovered) -> None:
    if not shown(discovered):
        (facts,) = (written(discovered.profile, name) for name in discovered.profile.value.partitions)
        assert (facts["gpus_per_node"], facts["gpu_types"], facts["features"]) == (4, {"t4": 4}, ("t4",))
        return
    partitions = {
        str(name): written(discovered.profile, str(name)) for name in discovered.profile.value.partitions
    }
    found_empty = {"features": (), "gres": {}, "tmp_per_node": 0}
    expected = {
        name: found_empty | dict(facts) if "mem_per_node" in facts else {**facts}
        for name, facts in discovered.imaginary.expected.items()
    }
    assert partitions == expected


@pytest.mark.sampled(5, first=1)
def test_settings_and_what_no_key_holds(discovered: Discovered) -> None:
    limits = discovered.profile.value.limits
    expected = {"enforce_part_limits": "no", "max_array_size": 1001, "memory_consumable": True}
    expected |= discovered.imaginary.limits
    assert {name: getattr(limits, name) for name in expected} == expected
    assert str(discovered.profile.value.slurm).startswith(discovered.release)
    assert discovered.profile.value.gres_types == ("gpu", "shard")
    if shown(discovered):
        for comment in discovered.imaginary.comments:
            assert comment in discovered.text


def test_the_file_is_short_and_clean(discovered: Discovered) -> None:
    assert len(discovered.text.splitlines()) < 95
    assert discovered.text.replace("\n", "").isprintable()
    assert "forged" not in discovered.text


@pytest.mark.sampled(4)
def test_the_profile_lints_clean_and_its_jobs_are_accepted(discovered: Discovered, tmp_path: Path) -> None:
    file = tmp_path / "site.yaml"
    file.write_text(discovered.text)
    wrong = [
        finding
        for finding in findings(file, Places(tmp_path, {}))
        if finding.severity in ("error", "warning")
    ]
    assert not [
        finding
        for finding in wrong
        if "state" not in finding.problem.what and "partition 'off'" not in finding.problem.what
    ]
    scripts = {}
    for name, facts in discovered.profile.value.partitions.items():
        if facts.state != "up" or facts.accounts or facts.reservation_only or not facts.nodes:
            continue
        for mode in MODES:
            if mode != "cpu" and not facts.gpus_per_node:
                continue
            nodes = facts.nodes_min if mode == "ddp" else None
            of = resolved(mode, file, partition=name, nodes=nodes)
            if mode != "ddp" and (facts.nodes_min or 1) > 1:
                continue  # a partition for larger jobs
            assert not errors(of), (name, mode, errors(of))
            scripts[f"{name} {mode}"] = script(of)
    for label, verdict in zip(scripts, discovered.controller.ask([*scripts.values()]), strict=True):
        assert verdict.returncode == 0, f"{label}: {verdict.stderr}\n{scripts[label][:1200]}"
    assert scripts or discovered.imaginary is CLUSTERS["cpus"]


@pytest.mark.sampled(4)
def test_slurm_refuses_what_is_beyond_the_facts(discovered: Discovered) -> None:
    asked, expected = [], []
    for name, facts in discovered.profile.value.partitions.items():
        if (
            facts.state != "up"
            or facts.accounts
            or facts.reservation_only
            or facts.exclusive
            or facts.nodes_min
        ):
            continue
        limits = {
            "-c": min(filter(None, (facts.cpus_per_node, facts.cpus_per_node_max)), default=None),
            "--mem=": facts.mem_per_node,
            "--gpus-per-node=": facts.gpus_per_node,
        }
        for option, most in limits.items():
            for more in (0, 1) if most and not (facts.gpu_types and option == "--gpus-per-node=") else ():
                unit = "M" if option == "--mem=" else ""
                asked.append(f"#!/bin/sh\n#SBATCH -N1 -n1 -p {name} {option}{int(most or 0) + more}{unit}\n")
                expected.append(more)
        for kind, count in facts.gpu_types.items():
            for more in (0, 1):
                asked.append(f"#!/bin/sh\n#SBATCH -N1 -p {name} --gpus-per-node={kind}:{count + more}\n")
                expected.append(more)
    said = [*discovered.controller.ask(asked)]
    wrong = [
        (text, verdict.stderr)
        for text, verdict, status in zip(asked, said, expected, strict=True)
        if verdict.returncode != status
    ]
    # 22.05 leaves out the cores that it keeps from jobs (CoreSpecCount) only once a node has registered.
    late = discovered.imaginary is CLUSTERS["dgx"] and discovered.release == "22.05"
    assert [text for text, _ in wrong if not (late and "-p train -c217" in text)] == []
