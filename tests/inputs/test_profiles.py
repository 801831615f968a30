"""Every bundled profile against a Slurm controller that describes its cluster, and against its golden script."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from sbatchgen.jobs.inputs.document import read_document
from sbatchgen.jobs.inputs.profile import Partition, Profile
from sbatchgen.jobs.inputs.search import bundled
from sbatchgen.jobs.modes import MODES
from sbatchgen.jobs.resolved import job_share
from tests.cluster.controller import Controller
from tests.conftest import GOLDEN, REPOSITORY, Command
from tests.scripts import PROFILES, errors, matrix, resolved, script

MOST_GPUS = 8  # of a node of which nothing is known
SCRIPT_PAGE = REPOSITORY / "docs/reference/script.md"
SHOWN = re.compile(r"(?<=```bash\n)#!/bin/bash.*?(?=```)", re.DOTALL)


def profile(name: str) -> Profile:
    return read_document(bundled("profiles") / f"{name}.yaml", Profile).value


def nodes(name: str, facts: Partition) -> str:
    """A NodeName line with what the profile says of a partition's nodes, and the usual where it says nothing."""
    gpus = facts.gpus_per_node or MOST_GPUS
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
        gres.append(f"Name=gpu File=/dev/nvidia[0-{(facts.gpus_per_node or MOST_GPUS) - 1}]")
        if facts.shards_per_gpu and facts.gpus_per_node:
            gres.append(f"Name=shard Count={facts.gpus_per_node * facts.shards_per_gpu}")
    return factory(
        nodes="\n".join(lines),
        partitions="\n".join(partitions),
        gres="\n".join(gres),
        extra="EnforcePartLimits=ALL",
    )


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", [name for name in PROFILES if profile(name).scheduler == "slurm"])
def test_a_controller_of_that_cluster_takes_every_script(
    real_slurm: None, controller_factory: Callable[..., Controller], name: str
) -> None:
    controller = controller_of(profile(name), controller_factory)
    plans = [
        (label, of) for label, of in matrix() if of.profile.name == name and not of.runtime.directives(of)
    ]
    scripts = {label: script(of) for label, of in plans if not errors(of)}
    headers = {"\n".join(text.split("\n\n")[0].splitlines()[2:]): text for text in scripts.values()}
    assert len(headers) >= 8
    for text in headers.values():
        verdict = controller.test_only(text)
        assert verdict.returncode == 0, f"{verdict.stderr}\n{text[:1500]}"
    too_much = script(resolved("single", name, gres="gpu:99"))
    assert controller.test_only(too_much).returncode != 0, "it does refuse what the cluster has not"


def test_shards_run_where_the_cluster_has_them(
    real_slurm: None, controller_factory: Callable[..., Controller]
) -> None:
    controller = controller_of(profile("troila"), controller_factory)
    for request in ("shard:16", "shard:64"):
        assert controller.test_only(script(resolved("single", "troila", gres=request))).returncode == 0
    assert controller.test_only(script(resolved("ddp", "troila", gres="shard:32"))).returncode == 0


@pytest.mark.parametrize("name", PROFILES)
def test_a_profile_says_where_its_facts_are_from(name: str) -> None:
    about = profile(name)
    assert about.name == name
    assert about.url.startswith("https://")
    assert len(about.checked) == len("2026-01-31")


@pytest.mark.parametrize("name", ["msu", "princeton", "sensetime", "torchrun"])
def test_an_example_request_of_a_guide_is_no_limit(name: str) -> None:
    """Their guides say how many GPUs their examples ask for, not how many a node has."""
    for gpus in ("1", "4", "16"):
        assert not errors(resolved("ddp", name, gpus_per_node=gpus))


WRONG = """
name: mine
url: x
checked: 2026-01-01
"""
FAULTS = [
    (
        "default_partition: gup\npartitions: {gpu: {}}",
        "default_partition: there is no partition 'gup' here",
        "gpu",
    ),
    ("required: [acount]", "required: 'acount' is not an option", "account"),
    ("omit: [partitoin]", "omit: 'partitoin' is not an option", "partition"),
    ("partitions: {gpu: {cpus_per_node: -3}}", "partitions.gpu.cpus_per_node: '-3' must be 1 or more", ""),
    (
        "partitions: {gpu: {gpus_per_node: -1}}",
        "partitions.gpu.gpus_per_node: a node can't have -1 GPUs",
        "0 or more",
    ),
    (
        "partitions: {gpu: {gpu_types: {a: 2}, gpus_per_node: 4}}",
        "gpu_types has 2 GPUs, but gpus_per_node is 4",
        "",
    ),
    (
        "partitions: {gpu: {gpu_types: {a: 2}, gpu_type: b, gpu_type_required: true}}",
        "partitions.gpu.gpu_type: no node has GPUs of type b",
        "write a",
    ),
    (
        "partitions: {gpu: {time_max: 1:00:00, time_default: 2:00:00}}",
        "partitions.gpu.time_default: 0-02:00:00 is more than time_max 0-01:00:00",
        "0-01:00:00, or less",
    ),
    (
        "partitions: {gpu: {time_max: 1:00:00, options: {time: 2:00:00}}}",
        "partitions.gpu.options: time 0-02:00:00 is more than time_max 0-01:00:00",
        "0-01:00:00, or less",
    ),
    (
        "partitions: {gpu: {nodes_min: 4, nodes_max: 2}}",
        "partitions.gpu.nodes_min: 4 is more than nodes_max 2",
        "",
    ),
    (
        "network: {gloo_socket_ifname: ^lo}",
        "gloo needs names of network interfaces, but '^lo' is not such a name",
        "ib0",
    ),
    ("options: {mem: 5G, mem_per_cpu: 3G}", "--mem and --mem-per-cpu exclude each other", ""),
    (
        "partitions: {gpu: {cpus_per_node: 4}}\nmodes: {ddp: {cpus_per_task: 99}}",
        "has 4 CPUs a node",
        "at most 4",
    ),
    ("partitions: {a: {time_max: 1:00:00}}\noptions: {time: 2:00:00}", "0-02:00:00", ""),
    ("setup: ['if true; then']", "setup: bash can't read it: line 2: syntax error", "whole commands"),
    ("template: mine.sh.j2", "no template 'mine.sh.j2'", ""),
    ("policies: {SB999: error}", "no rule 'SB999'", ""),
]


@pytest.mark.parametrize(("lines", "says", "fix"), FAULTS, ids=[line[:40] for line, _, _ in FAULTS])
def test_a_wrong_profile_is_reported_once_with_its_line(
    command: Command, lines: str, says: str, fix: str
) -> None:
    Path("mine.yaml").write_text(WRONG + lines + "\n")
    done = command("profile", "check", "./mine.yaml")
    assert done.status in (3, 4), done.err
    assert "fine" not in done.out
    assert done.err.count(says) == 1, done.err
    assert fix in done.err
    assert len(re.findall("^error: ", done.err, re.MULTILINE)) == 1
    assert "mine.yaml:" in done.err or "template" in done.err


def test_a_profile_that_asks_the_user_for_more_is_fine(command: Command) -> None:
    """An account, a partition, a number of GPUs: the user says them."""
    Path("mine.yaml").write_text(
        WRONG
        + "required: [account, qos, time, mem, gres, nodes, requeue]\npartitions: {a: {}, b: {gpus_per_node: 4}}\n"
    )
    done = command("profile", "check", "./mine.yaml")
    assert (done.status, done.out, done.err) == (0, "./mine.yaml: no errors\n", "")


def test_a_profile_with_the_name_of_a_bundled_one_is_warned_of(command: Command) -> None:
    Path("mine.yaml").write_text(WRONG.replace("mine", "msu"))
    done = command("profile", "check", "./mine.yaml")
    assert done.status == 0
    assert "warning: name: 'msu' is the name of a bundled profile" in done.err
    Path("msu.yaml").write_text(WRONG.replace("mine", "msu"))  # meant to take its place
    assert command("profile", "check", "./msu.yaml").err == ""


def test_a_check_sees_the_kind_of_gpus_that_jobs_get(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds = "[{gpus_per_node: 4, gpu_types: {a: 4}}, {gpus_per_node: 8, gpu_types: {b: 8}}]"
    facts = f"partitions:\n  gpu: {{gpu_type: a, gpu_type_required: true, shapes: {kinds}}}\n"
    Path("mine.yaml").write_text(WRONG + facts)
    assert command("profile", "check", "./mine.yaml").err == ""
    monkeypatch.setattr(job_share, "_most_gpus", lambda *_: 8)  # as if it counted on all kinds
    done = command("profile", "check", "./mine.yaml")
    assert "a node of partition 'gpu' has 4 GPUs of type 'a', but the job asks for 8" in done.err
    assert re.search("at:  .*mine.yaml:6$", done.err, re.MULTILINE)


@pytest.mark.parametrize(
    ("facts", "warned"),
    [
        ("mem_per_node: 768G", True),
        ("mem_per_node: 1T", True),
        ("shapes: [{mem_per_node: 512G}, {mem_per_node: 500G}]", True),
        ("mem_per_node: 756G", False),
        ("mem_per_node: 480G", False),
        ("mem_installed: 768G", False),
        ("mem_per_node: 512G, nodes: 'n[1-2]'", False),  # Slurm was asked
        ("mem_per_node: 32G", False),
    ],
)
def test_a_check_warns_of_memory_that_is_built_in(command: Command, facts: str, *, warned: bool) -> None:
    Path("mine.yaml").write_text(f"{WRONG}partitions: {{gpu: {{{facts}}}}}\n")
    done = command("profile", "check", "./mine.yaml")
    assert ("looks like the installed memory" in done.err) is warned
    assert done.status == 0


@pytest.mark.parametrize(("number", "status"), [("8", 0), ("7", 3)])
def test_a_check_only_tells_of_a_number_of_tasks_that_one_node_has(
    command: Command, number: str, status: int
) -> None:
    Path("mine.yaml").write_text(
        f"{WRONG}partitions: {{gpu: {{gpus_per_node: 8}}}}\nstep: {{ntasks: {number}}}\n"
    )
    done = command("profile", "check", "./mine.yaml")
    assert done.status == status, done.err
    assert ("info: only mode ddp with launcher srun on one node has this number" in done.err) is (status == 0)
    of_one = "render ddp --profile ./mine.yaml --trainer t.py --launcher srun --nodes 1"
    assert command(*of_one.split()).status == status


def test_an_unknown_profile_names_the_folders_of_the_search(command: Command, folder: Path) -> None:
    Path("sbatchgen.yaml").touch()
    Path(".sbatchgen/profiles").mkdir(parents=True)
    done = command("profile", "check", "msuu")
    assert done.status == 3
    assert f"no profile 'msuu' in {folder}/.sbatchgen/profiles, {bundled('profiles')}" in done.err
    assert "did you mean 'msu'?" in done.err
    unlike = command("profile", "check", "zzz9").err
    assert "fix: describe this cluster: sbatchgen profile discover --name zzz9 --write " in unlike
    assert "/profiles/zzz9.yaml; sbatchgen profile list shows the others\n" in unlike
    Path("msuu.yaml").touch()
    assert "fix: name its file: ./msuu.yaml\n" in command("profile", "check", "msuu").err


def test_the_bundled_profiles_are_fine(command: Command) -> None:
    done = command("profile", "check", *PROFILES)
    assert (done.status, done.err) == (0, "")


def golden_scripts() -> dict[str, str]:
    """A script of each mode on the cluster that it came from, and one for each way that changes the shape."""
    made = {f"{mode}-msu": resolved(mode, "msu") for mode in MODES}
    made |= {f"ddp-{name}": resolved("ddp", name) for name in PROFILES}
    made |= {
        "single-shard-troila": resolved("single", "troila", gres="shard:16"),
        "ddp-apptainer-troila": resolved("ddp", "troila", runtime="apptainer"),
        "ddp-srun-msu": resolved("ddp", "msu", launcher="srun"),
        "ddp-spawn-msu": resolved("ddp", "msu", launcher="spawn"),
        "ddp-one-node-msu": resolved("ddp", "msu", nodes=1),
        "ddp-no-resume-msu": resolved("ddp", "msu", resume="off"),
        "single-resume-file-msu": resolved(
            "single", "msu", resume="step-00000100.pt", args=("--epochs", "20")
        ),
        "single-array-troila": resolved("single", "troila", array="0-9%2"),
        "ddp-own-trainer-torchrun": resolved(
            "ddp", "torchrun", trainer="train.py", args=("--lr", "0.1", "a b")
        ),
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
        SCRIPT_PAGE.write_text(SHOWN.sub(lambda _: made["ddp-torchrun"], SCRIPT_PAGE.read_text()))
        pytest.fail(f"{len(made)} golden scripts written: review them")
    assert {path.stem: path.read_text() for path in GOLDEN.glob("*.sh")} == made
