"""The bundled profiles of centres: their scripts are clean, and start what the documentation starts.

The scripts in tests/fixtures/centres have the facts of a documented example each. `benchmarks/centres.py` compares
with the documents themselves.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks.centres import lost, unlike
from benchmarks.documented.examples import Example, Place
from benchmarks.documented.facts import items
from benchmarks.documented.jobs import job_of, profile_of, rendered
from benchmarks.documented.starts import differences, starts
from sbatchgen.base.units import Duration, Text
from sbatchgen.check.cluster_facts import NodeFacts
from sbatchgen.check.script.script import JobScript
from sbatchgen.jobs.inputs.document import read_document
from sbatchgen.jobs.inputs.profile import Partition, Profile
from sbatchgen.jobs.inputs.search import bundled
from sbatchgen.jobs.judge.job_check import check, lint_rendered
from sbatchgen.jobs.modes import MODES
from sbatchgen.jobs.resolved.choice import choose_partition
from sbatchgen.jobs.resolved.resolved_job import ResolvedJob
from tests.cluster.controller import Controller
from tests.conftest import FIXTURES, Command
from tests.plan.plans import needs_sandbox
from tests.scripts import CENTRES, resolved, script

SHAPES = ("cpu", "single", "torchrun", "srun", "spawn")
OF_USER = {"account": Text("x"), "time": Duration(3600)}  # what profiles require


SIZES = ("mem_per_node", "mem_installed", "mem_largest")


def profile(name: str) -> Profile:
    return read_document(bundled("profiles") / f"{name}.yaml", Profile).value


ENDED = ("mahti",)


def required(cluster: Profile) -> dict[str, Any]:
    """What the user of a cluster has to say; of the qualities of service, the first that it has."""
    return {key: OF_USER.get(key) or next(iter(cluster.qos)) for key in cluster.required}


def job_of_shape(name: str, shape: str) -> ResolvedJob:
    said: dict[str, Any] = {"launcher": shape} if shape in ("torchrun", "srun", "spawn") else {}
    said |= {"nodes": 1} if shape == "spawn" else {}
    said |= required(profile(name))
    mode = "ddp" if "launcher" in said else shape
    return choose_partition(
        lambda partition: resolved(mode, name, partition=partition or None, **said), check
    )


@pytest.mark.sampled(12)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", CENTRES)
def test_every_mode_and_launcher_renders_without_a_finding(name: str, shape: str) -> None:
    job = job_of_shape(name, shape)
    text = script(job)
    findings = [each for each in (*check(job), *lint_rendered(job, text)) if each.severity != "info"]
    assert {finding.rule for finding in findings} == ({"SB253"} if name in ENDED else set())
    subprocess.run(["bash", "-n"], input=text.encode(), check=True)


def memory_of(kind: NodeFacts) -> int:
    """MiB that jobs may have: 756 of 768 GB that are built in, on one machine; where nodes differ, the least."""
    if kind.mem_per_node or not (kind.mem_installed or kind.mem_largest):
        return int(kind.mem_per_node or 4000000)
    return int((kind.mem_installed or 0) * 63 // 64) or 190000


def controller_of(cluster: Profile, factory: Callable[..., Controller]) -> Controller:
    """A slurmctld with the partitions and kinds of nodes of a profile; what it does not say is plenty."""
    nodes, partitions, gres = [], [], []
    asked = re.findall(r"([\w.]+):\d", " ".join(f"{mode.gpus_per_node}" for mode in cluster.modes.values()))
    for number, (name, facts) in enumerate((cluster.partitions or {Text("any"): Partition()}).items()):
        kinds = {f"p{number}k{index}n": kind for index, kind in enumerate(facts.node_kinds())}
        count = facts.nodes_max or 8
        for prefix, kind in kinds.items():
            total = 8 if kind.gpus_per_node is None else kind.gpus_per_node
            of_type = {facts.gpu_type: total} if facts.gpu_type and facts.gpus_typed else {}
            types = {**kind.gpu_types} or of_type or {Text(asked[0] if asked else ""): total}
            has, first = [], 0
            for gpu, number_of in types.items():
                if number_of:
                    devices = f"/dev/nvidia[{first}-{first + number_of - 1}]"
                    kept = f"Type={gpu} " if gpu else ""
                    gres.append(f"NodeName={prefix}[1-{count}] Name=gpu {kept}File={devices}")
                    has.append(":".join(filter(None, ("gpu", gpu, str(number_of)))))
                    first += number_of
            if shards := (facts.shards_per_gpu or 0) * first:
                gres.append(f"NodeName={prefix}[1-{count}] Name=shard Count={shards}")
                has.append(f"shard:{shards}")
            features = f" Features={','.join(kind.features)}" if kind.features else ""
            line = f"NodeName={prefix}[1-{count}] CPUs={kind.cpus_per_node or 512} "
            nodes.append(f"{line}RealMemory={memory_of(kind)}{features} Gres={','.join(has)}")
        default = "YES" if name == (cluster.default_partition or "any") else "NO"
        where = ",".join(f"{prefix}[1-{count}]" for prefix in kinds)
        limit = facts.time_max or "UNLIMITED"
        shown = "main" if name == "default" else name  # slurm.conf(5): DEFAULT holds defaults of the others
        partitions.append(f"PartitionName={shown} Nodes={where} Default={default} MaxTime={limit}")
    of_gpus = "\n".join(nodes).replace(" Gres=\n", "\n").removesuffix(" Gres=")
    limits = "EnforcePartLimits=ALL\nMaxNodeCount=65000"
    return factory(nodes=of_gpus, partitions="\n".join(partitions), gres="\n".join(gres), extra=limits)


# All that are bundled, but for this machine without Slurm, and a platform without Slurm.
PROFILES = sorted(file.stem for file in bundled("profiles").glob("*.yaml"))
OF_SLURM = [name for name in PROFILES if profile(name).scheduler == "slurm"]


def test_all_profiles_but_two_are_of_slurm() -> None:
    assert {*PROFILES} - {*OF_SLURM} == {"local", "sensecore"}
    assert {*CENTRES} < {*OF_SLURM}


@pytest.mark.sampled(16)
@pytest.mark.parametrize("name", OF_SLURM)
def test_a_slurmctld_with_the_facts_of_the_profile_takes_every_script(
    real_slurm: None, controller_factory: Callable[..., Controller], name: str
) -> None:
    cluster = profile(name)
    controller = controller_of(cluster, controller_factory)
    # of plugins, a federation and licences that this slurmctld lacks
    lacks = (
        "clusters",
        "image",
        "module",
        "licenses",
        *(each.rstrip("=") for each in cluster.plugin_options or ()),
    )
    texts = {what: without(lacks, script(job)) for what, job in jobs_of(name, cluster)}
    verdicts = dict(zip(texts, controller.ask([*texts.values()]), strict=True))
    refused = {what: verdict.stderr for what, verdict in verdicts.items() if verdict.returncode}
    assert refused == {}
    assert len(texts) >= len(SHAPES)


def jobs_of(name: str, cluster: Profile) -> Iterator[tuple[str, ResolvedJob]]:
    """The default job of each mode and launcher, and of each mode in each partition that has what it wants."""
    for shape in SHAPES:
        yield shape, job_of_shape(name, shape)
    said = required(cluster)
    for partition in cluster.partitions if "partition" not in cluster.omit else ():
        for mode in MODES:
            job = resolved(mode, name, partition=partition, **said)
            if not [finding for finding in check(job) if finding.severity == "error"]:
                yield f"{mode} in {partition}", job


def without(options: Sequence[str], text: str) -> str:
    """The script without the directives of these options."""
    starts = tuple(f"#SBATCH --{option}" for option in options)
    return "".join(line for line in text.splitlines(keepends=True) if not line.startswith(starts))


def example(name: str, text: str = "") -> Example:
    text = text or (FIXTURES / "centres" / f"{name}.sh").read_text()
    documented = JobScript(file=name, text=text, slurm="24.11", is_release_assumed=True)
    return Example(Place(profile=name, repository="", files=""), name, 1, "", documented)


@pytest.mark.parametrize("name", CENTRES)
def test_a_rendered_script_says_what_the_centre_documents(name: str, folder: Path) -> None:
    documented = example(name)
    assert lost(items(documented.script), items(rendered(job_of(documented), folder))) == []


# Stand-ins give Frontier's tasks no GPU, for which its directives do not ask; the others' examples end before.
NOT_STARTED = {"frontier", "gcp-a3-ultra", "iris", "jureca", "leuven"}


STARTED = sorted({*CENTRES} - NOT_STARTED)


# A plan of the two scripts takes a second of CPU time: `make test` makes each third, the proofs the others.
@pytest.mark.sampled(4)
@needs_sandbox
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.proof if number % 3 else ())
        for number, name in enumerate(STARTED)
    ],
)
def test_a_rendered_script_starts_what_the_centre_documents(name: str, folder: Path) -> None:
    documented = example(name)
    cluster = profile_of(documented)
    starting = starts(documented.script, cluster, folder)
    assert unlike(starting, job_of(documented), cluster, folder) == []


LAUNCH = """#!/bin/bash
#SBATCH --nodes=2 --ntasks-per-node=1 --gpus-per-node=8
export NCCL_SOCKET_IFNAME=eth0
srun singularity exec -B /data:/data i.sif torchrun --nnodes=2 --nproc-per-node=8 train.py --epochs 3
"""


@pytest.mark.sampled(4)
@needs_sandbox
@pytest.mark.parametrize(
    ("old", "new", "parts"),
    [
        ("", "", set()),
        ("export", "export RDZV_ID=7 MASTER_PORT=9 SLURM_X=1", set()),
        ("per-node=8 train", "per-node=4 train", {"ranks"}),
        ("gpus-per-node=8", "gpus-per-node=4", {"gpus"}),
        ("torchrun", "torchrun --tee=3", {"launcher"}),
        ("torchrun --nnodes=2 --nproc-per-node=8", "python", {"launcher", "ranks"}),
        ("epochs 3", "epochs 4", {"program"}),
        ("eth0", "eth1", {"environment"}),
        ("i.sif", "j.sif", {"container"}),
        ("/data:/data", "/data:/other", {"mounts"}),
    ],
)
def test_each_part_of_a_start_that_differs_is_named(
    old: str, new: str, parts: set[str], folder: Path
) -> None:
    cluster = profile("nebius")
    pair = [
        starts(example("x", text).script, cluster, folder) for text in (LAUNCH, LAUNCH.replace(old, new, 1))
    ]
    assert pair[0]
    assert pair[1]
    assert [len(each) for each in pair if each] == [2, 2]
    unlike_parts = [what for both in zip(*pair, strict=True) for what in differences(*both)]
    assert {what.partition(":")[0] for what in unlike_parts} == parts


@pytest.mark.parametrize("name", CENTRES)
def test_every_fact_of_a_centre_has_a_source(name: str) -> None:
    about = profile(name)
    assert about.site
    keys = [key for source in about.sources for key in source.keys]
    for source in about.sources:
        lines = r"\S+@[0-9a-f]{10} \S+:[\d-]+ [0-9a-f]{8}"  # or a page, of documentation in no repository
        assert re.fullmatch(rf"{lines}|https?://\S+", source.at), source.at
    facts = {f"partitions.{each}" for each in about.partitions if each != "default"}
    facts |= {key for key in ("modules", "env", "launchers", "required") if getattr(about, key)}
    for at, partition in about.partitions.items():
        facts |= {
            f"partitions.{at}.{key}" for key in SIZES if getattr(partition, key) and not partition.shapes
        }
    for fact in facts:
        assert any(f"{key}.".startswith(f"{fact}.") or f"{fact}.".startswith(f"{key}.") for key in keys), fact


@pytest.mark.sampled(4)
@pytest.mark.parametrize("first", range(4))
def test_the_profiles_of_centres_pass_the_check(command: Command, first: int) -> None:
    done = command("profile", "check", *CENTRES[first::4])
    assert (done.status, done.err) == (0, "")
