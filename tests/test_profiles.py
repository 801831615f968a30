"""Every bundled profile against a Slurm controller that describes its cluster, and against its golden script."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from sbatchgen.document import read
from sbatchgen.job import MODES
from sbatchgen.profile import Partition, Profile
from sbatchgen.search import bundled
from tests.cluster.controller import Controller
from tests.scripts import PROFILES, errors, matrix, plan, script

GOLDEN = Path(__file__).parent / "golden"
README = Path(__file__).parents[1] / "README.md"
SHOWN = re.compile(r"(?<=```bash\n)#!/bin/bash.*?(?=```)", re.DOTALL)


def profile(name: str) -> Profile:
    return read(bundled("profiles") / f"{name}.yaml", Profile).value


def nodes(name: str, facts: Partition) -> str:
    """A NodeName line with what the profile says of a partition's nodes, and the usual where it says nothing."""
    gpus = facts.gpus_per_node or 0
    cpus = facts.cpus_per_node or 8 * max(1, gpus)
    gres = f"gpu:{gpus},shard:{gpus * facts.shards_per_gpu}" if facts.shards_per_gpu else f"gpu:{gpus}"
    count = facts.nodes_max or 4
    return f"NodeName={name}[1-{count}] CPUs={cpus} RealMemory=256000 Gres={gres}"


def controller_of(cluster: Profile, factory: Callable[..., Controller]) -> Controller:
    lines, partitions, gres = [], [], []
    for number, (name, facts) in enumerate(cluster.partitions.items()):
        prefix = "abc"[number]
        lines.append(nodes(prefix, facts))
        # A partition that the profile leaves out of scripts is the cluster's own default one.
        default = "YES" if name == cluster.default_partition else "NO"
        shown = "main" if "partition" in cluster.omit else name
        limit = str(facts.time_max) if facts.time_max else "UNLIMITED"
        partitions.append(
            f"PartitionName={shown} Nodes={prefix}[1-{facts.nodes_max or 4}] Default={default} MaxTime={limit}"
        )
        if facts.gpus_per_node:
            gres.append(f"Name=gpu File=/dev/nvidia[0-{facts.gpus_per_node - 1}]")
        if facts.shards_per_gpu and facts.gpus_per_node:
            gres.append(f"Name=shard Count={facts.gpus_per_node * facts.shards_per_gpu}")
    return factory(
        nodes="\n".join(lines),
        partitions="\n".join(partitions),
        gres="\n".join(gres),
        extra="EnforcePartLimits=ALL",
    )


@pytest.mark.parametrize("name", [name for name in PROFILES if profile(name).scheduler == "slurm"])
def test_a_controller_of_that_cluster_takes_every_script(
    real_slurm: None, controller_factory: Callable[..., Controller], name: str
) -> None:
    controller = controller_of(profile(name), controller_factory)
    scripts = {label: script(of) for label, of in matrix() if of.profile.name == name and not errors(of)}
    headers = {"\n".join(text.split("\n\n")[0].splitlines()[2:]): text for text in scripts.values()}
    assert len(headers) >= 8
    for text in headers.values():
        verdict = controller.test_only(text)
        assert verdict.returncode == 0, f"{verdict.stderr}\n{text[:1500]}"
    too_much = script(plan("single", name, gres="gpu:99"))
    assert controller.test_only(too_much).returncode != 0, "it does refuse what the cluster has not"


def test_shards_run_where_the_cluster_has_them(
    real_slurm: None, controller_factory: Callable[..., Controller]
) -> None:
    controller = controller_of(profile("troila"), controller_factory)
    for request in ("shard:16", "shard:64"):
        assert controller.test_only(script(plan("single", "troila", gres=request))).returncode == 0
    assert controller.test_only(script(plan("ddp", "troila", gres="shard:32"))).returncode == 0


@pytest.mark.parametrize("name", PROFILES)
def test_a_profile_says_where_its_facts_are_from(name: str) -> None:
    about = profile(name)
    assert about.name == name
    assert about.url.startswith("https://")
    assert len(about.checked) == len("2026-01-31")


def golden_scripts() -> dict[str, str]:
    """A script of each mode on the cluster that it came from, and one for each way that changes the shape."""
    made = {f"{mode}-msu": plan(mode, "msu") for mode in MODES}
    made |= {f"ddp-{name}": plan("ddp", name) for name in PROFILES}
    made |= {
        "single-shard-troila": plan("single", "troila", gres="shard:16"),
        "ddp-apptainer-troila": plan("ddp", "troila", runtime="apptainer"),
        "ddp-srun-msu": plan("ddp", "msu", launcher="srun"),
        "ddp-spawn-msu": plan("ddp", "msu", launcher="spawn"),
        "ddp-one-node-msu": plan("ddp", "msu", nodes=1),
        "ddp-no-resume-msu": plan("ddp", "msu", resume="off"),
        "single-resume-file-msu": plan("single", "msu", resume="step-00000100.pt", args=("--epochs", "20")),
        "single-array-troila": plan("single", "troila", array="0-9%2"),
        "ddp-own-trainer-torchrun": plan("ddp", "torchrun", trainer="train.py", args=("--lr", "0.1", "a b")),
    }
    return {name: script(of) for name, of in made.items()}


def test_golden_scripts(request: pytest.FixtureRequest) -> None:
    """Whole texts, to be read in a review. `pytest --update-golden` writes them, and fails."""
    made = golden_scripts()
    if request.config.getoption("--update-golden"):
        GOLDEN.mkdir(exist_ok=True)
        for old in GOLDEN.glob("*.sh"):
            old.unlink()
        for name, text in made.items():
            (GOLDEN / f"{name}.sh").write_text(text)
        README.write_text(SHOWN.sub(lambda _: made["ddp-torchrun"], README.read_text()))
        pytest.fail(f"{len(made)} golden scripts written: review them")
    assert {path.stem: path.read_text() for path in GOLDEN.glob("*.sh")} == made
