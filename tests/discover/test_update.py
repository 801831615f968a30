"""A profile brought up to date, and compared with its cluster: of a real controller, and of answers made up."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from sbatchgen.base.units import Duration
from sbatchgen.check.cluster_facts import Qos
from sbatchgen.jobs.inputs.document import decode
from sbatchgen.jobs.inputs.profile import Profile
from sbatchgen.jobs.inputs.search import bundled
from sbatchgen.jobs.slurm.accounts import Account
from sbatchgen.jobs.slurm.config import settings_in
from sbatchgen.jobs.slurm.node import nodes_in
from sbatchgen.jobs.slurm.partition import partitions_in
from sbatchgen.lab.discover.comparison import Difference, differences, findings
from sbatchgen.lab.discover.facts import profile_text
from sbatchgen.lab.discover.slurm_answers import LiveCluster
from sbatchgen.lab.discover.update import update_text
from tests.cluster.controller import Controller
from tests.conftest import FIXTURES, Command
from tests.slurm import fakes

NODES = "NodeName=g[1-4] CPUs=64 RealMemory=256000 Gres=gpu:a100:4 Feature=ib\nNodeName=c[1-2] CPUs=32 RealMemory=64000"
PARTITIONS = "PartitionName=gpu Nodes=g[1-4] Default=YES MaxTime=2-00:00:00\nPartitionName=cpu Nodes=c[1-2]"
GRES = "NodeName=g[1-4] Name=gpu Type=a100 File=/dev/nvidia[0-3]"
TODAY = "2026-01-31"
# As staff write it: comments, keys that discover does not know, both styles of YAML, values that are out of date.
STAFF = """\
# Our cluster   (ask Ann before you change this)
name: ours
url: https://docs.example.org
checked: 2020-01-01   # every term

default_partition: gpu
partitions:
  # the big one
  gpu:
    time_max: 1-00:00:00     # since the summer
    mem_per_node: 240G       # leaves room for the file system
    gpus_per_node: 8  # ???
    gpu_types: {a100: 8}
    options: {time: "04:00:00"}
    # accounts: ask Ann
  cpu: {cpus_per_node: 48, state: down}
limits: {max_array_size: 500}
setup:
  - |-
    ulimit -l unlimited   # keep
# the end
"""


def live(partitions: str, nodes: str = "", settings: str = "", **more: object) -> LiveCluster:
    """A cluster that gives these answers."""
    facts: dict[str, object] = {"qos": None, "user": "ann", "accounts": None, "plugin_options": ()}
    facts |= {
        "host": "login1",
        "groups": ("ann",),
        "licenses": {},
        "topology": {},
        "reservations": None,
    } | more
    return LiveCluster(
        settings=settings_in(settings),
        partitions=[*partitions_in(partitions)],
        nodes=[*nodes_in(nodes)],
        **facts,  # type: ignore[arg-type]
    )


AUTHORED = live(
    (FIXTURES / "scontrol_partitions.txt").read_text(),
    (FIXTURES / "scontrol_nodes.txt").read_text(),
    (FIXTURES / "scontrol_config.txt").read_text(),
)


def update(own: str, cluster: LiveCluster) -> tuple[str, list[Difference]]:
    different = differences(decode(own, Profile, name="own.yaml"), cluster)
    after, by_hand = update_text(own, different, today=TODAY)
    decode(after, Profile, name="after.yaml")
    return after, by_hand


@pytest.fixture
def controller(
    controller_factory: Callable[..., Controller], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Controller:
    """A Slurm that this process finds."""
    made = controller_factory(nodes=NODES, partitions=PARTITIONS, gres=GRES)
    made.commands(tmp_path / "bin", "scontrol", "sbatch", "sacctmgr")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    return made


def test_a_new_profile_is_not_stale(controller: Controller, command: Command, folder: Path) -> None:
    done = command("profile", "discover", "--name", "ours", "--write", "ours.yaml")
    assert (done.status, done.out) == (0, ""), done.err
    checked = command("profile", "check", "./ours.yaml", "--live")
    assert (checked.status, checked.out, checked.err) == (0, "./ours.yaml: no errors\n", "")
    before = (folder / "ours.yaml").read_bytes()
    again = command("profile", "discover", "--update", "./ours.yaml", "--yes")
    assert (again.status, again.out, again.err) == (0, "", "./ours.yaml: nothing to change\n")
    assert (folder / "ours.yaml").read_bytes() == before
    twice = command("profile", "discover", "--write", "ours.yaml")
    assert (twice.status, "exists" in twice.err, "--update ours.yaml" in twice.err) == (3, True, True)


def test_the_lines_of_staff_stay(controller: Controller, command: Command, folder: Path) -> None:
    file = folder / "ours.yaml"
    file.write_text(STAFF)
    shown = command("profile", "discover", "--update", "./ours.yaml")
    assert (shown.status, file.read_text()) == (0, STAFF), shown.err
    assert "nothing was written: add --yes" in shown.err
    done = command("profile", "discover", "--update", "./ours.yaml", "--yes")
    assert done.out == shown.out
    after = file.read_text()
    changed = {line[1:] for line in done.out.splitlines()[2:] if line.startswith("-")}
    assert changed == {
        "checked: 2020-01-01   # every term",
        "    gpus_per_node: 8  # ???",
        "    gpu_types: {a100: 8}",
        "  cpu: {cpus_per_node: 48, state: down}",
        "limits: {max_array_size: 500}",
    }
    kept = [line for line in STAFF.splitlines() if line not in changed]
    assert [line for line in after.splitlines() if line in kept] == kept
    assert (
        "    time_max: 1-00:00:00     # since the summer\n" in after
    )  # lower than Slurm's, as staff may want
    assert "\nuser:" not in after  # of a profile for others
    assert "    mem_per_node: 240G       # leaves room for the file system\n" in after
    assert "    gpus_per_node: 4  # ???\n    gpu_types: {a100: 4}\n" in after
    profile = decode(after, Profile, name="after").value
    cpu = profile.partitions["cpu"]  # type: ignore[index]
    assert (cpu.cpus_per_node, cpu.state, cpu.mem_per_node) == (32, "up", 64000)
    assert (profile.limits.max_array_size, profile.limits.memory_consumable) == (1001, True)
    again = command("profile", "discover", "--update", "./ours.yaml", "--yes")
    assert (again.out, file.read_text()) == ("", after)


def test_a_stale_value_is_reported_with_its_line(
    controller: Controller, command: Command, folder: Path
) -> None:
    (folder / "ours.yaml").write_text(STAFF.replace("  cpu:", "  gone: {}\n  cpu:"))
    plain = command("profile", "check", "./ours.yaml")
    done = command("profile", "check", "./ours.yaml", "--live")
    assert (plain.status, done.status) == (0, 3)
    assert "info: partitions.gpu.time_max is 1-00:00:00, but the cluster has 2-00:00:00\n" in done.err
    assert "error: partitions.gpu.gpus_per_node is 8, but the cluster has 4\n  at:  " in done.err
    assert "ours.yaml:12\n  fix: write gpus_per_node: 4\n" in done.err
    assert "info: partitions.gpu.mem_per_node is 240G, but the cluster has 250G" in done.err
    assert "warning: partitions.cpu.state is down, but the cluster has up" in done.err
    assert "error: the cluster shows no partition 'gone'" in done.err


def test_of_a_bundled_profile_the_user_gets_a_copy(
    command: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its file is in site-packages, or in a checkout, and not the user's to edit."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder / "config"))
    monkeypatch.setattr("sbatchgen.lab.discover.slurm_answers.ask", lambda _: CLUSTER)
    bundled_file = bundled("profiles") / "msu.yaml"
    before = bundled_file.read_bytes()
    checked = command("profile", "check", "msu", "--live")
    fixes = {line.strip() for line in checked.err.splitlines() if line.startswith("  fix: ")}
    assert fixes == {"fix: sbatchgen profile discover --update msu"}
    assert command("profile", "discover", "--update", "msu", "--yes").status == 0
    own = folder / "config/sbatchgen/profiles/msu.yaml"
    assert (bundled_file.read_bytes(), own.read_bytes() == before) == (before, False)
    again = command("profile", "discover", "--update", "msu", "--yes")
    assert "nothing to change" in again.err


@pytest.mark.parametrize("key", ["time_max: 0-00:30:00", "nodes_max: 1", "mem_per_node_max: 1G"])
def test_a_lower_limit_and_a_profile_without_user_stay(key: str) -> None:
    own = f"name: a\nurl: x\nchecked: x\npartitions:\n  cpu:\n    {key} # ours\n"
    cluster = live(
        "PartitionName=cpu Nodes=n1 State=UP TotalNodes=2 TotalCPUs=64 MaxTime=02:00:00 MaxNodes=2 MaxMemPerNode=4096",
        settings="AccountingStorageEnforce = associations\n",
        accounts=(Account("physics", "", (), ""),),
    )
    made, _ = update(own, cluster)
    assert f"    {key} # ours\n" in made
    assert "user:" not in made
    assert "user:" in profile_text(cluster, {"PATH": ""}, name="x", today=TODAY)


@pytest.mark.proof
def test_a_controller_that_is_down(controller: Controller, command: Command) -> None:
    controller.crash()
    done = command("profile", "discover")
    assert (done.status, done.out) == (5, "")
    assert "Slurm's controller does not answer" in done.err


def test_only_live_asks_slurm(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fakes.failing(tmp_path / "bin", "scontrol", "Unable to contact slurm controller (connect failure)")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    done = command("profile", "check", "torchrun", "--live")
    assert (done.status, "Slurm's controller does not answer" in done.err) == (5, True)
    assert command("profile", "check", "torchrun").status == 0


def test_no_slurm_here(command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    done = command("profile", "discover")
    assert (done.status, done.out) == (5, "")
    assert "there is no scontrol here" in done.err


@pytest.mark.parametrize(
    "arguments", [("--update", "x", "--write", "y"), ("--name", "a\x1bb"), ("--name", "")]
)
def test_what_makes_no_sense_is_refused(command: Command, arguments: tuple[str, ...]) -> None:
    assert command("profile", "discover", *arguments).status == 2


def test_a_profile_that_is_not_utf8_is_not_written(
    controller: Controller, command: Command, folder: Path
) -> None:
    old = STAFF.encode() + b"# \xff\n"
    (folder / "ours.yaml").write_bytes(old)
    assert command("profile", "discover", "--update", "./ours.yaml", "--yes").status == 3
    assert (folder / "ours.yaml").read_bytes() == old


def test_a_profile_that_is_linked_or_read_only(
    controller: Controller, command: Command, folder: Path
) -> None:
    (folder / "real.yaml").write_text(STAFF)
    (folder / "real.yaml").chmod(0o640)
    (folder / "ours.yaml").symlink_to("real.yaml")
    assert command("profile", "discover", "--update", "./ours.yaml", "--yes").status == 0
    assert (folder / "ours.yaml").is_symlink()
    assert (folder / "real.yaml").stat().st_mode & 0o777 == 0o640
    assert "max_array_size: 1001" in (folder / "real.yaml").read_text()


@pytest.mark.parametrize("line_break", ["\n", "\r\n"])
@pytest.mark.parametrize("end", ["\n", ""])
def test_line_breaks_stay(line_break: str, end: str) -> None:
    own = STAFF.removesuffix("\n").replace("\n", line_break) + (line_break if end else "")
    after, _ = update(own, AUTHORED)
    assert after.count("\n") == after.count(line_break)
    assert "# Our cluster   (ask Ann before you change this)" in after
    assert update(after, AUTHORED)[0] == after


@pytest.mark.parametrize(
    "own",
    [
        "name: a\nurl: x\nchecked: x",
        "{name: a, url: x, checked: x}",
        "name: a\nurl: x\nchecked: x\npartitions: {gpu: {}, debug: {time_max: 1:00:00,}}\nlimits: {}\n",
        "name: a\nurl: x\nchecked: x\npartitions:\n  gpu:\n      time_max: 60\n      state: down # c\n\n\n# end",
        '\ufeffname: a\nurl: x\nchecked: x\npartitions:\n  "gpu":\n    features:\n    - a # first\n    - b\n',
        "name: a\nurl: x\nchecked: x\npartitions: &p\n  gpu: &g {time_max: &t 10-00:00:00}\n  debug: *g\n  long: {time_max: *t}\n",
        "name: a\nurl: x\nchecked: x\npartitions:\n  gpu:\n    nodes: >-\n      a\n  debug:\n    nodes_max: 4",
        "name: a\nurl: x\nchecked: &c x\nlimits: {}\npartitions:\n  old: &o {nodes: x}\n  gpu: *o\nmodes: {}\n",
    ],
)
def test_any_style_of_yaml(own: str) -> None:
    after, by_hand = update(own, AUTHORED)
    again, still = update(after, AUTHORED)
    assert again == after
    assert [difference.path for difference in still] == [difference.path for difference in by_hand]
    for line in own.split("\n"):
        assert line.partition("#")[1:] == ("", "") or line.partition("#")[2] in after


def test_recorded_answers_make_a_profile() -> None:
    made = profile_text(AUTHORED, {"PATH": ""}, name="example", today=TODAY)
    profile = decode(made, Profile, name="made").value
    gpu, debug, long = (profile.partitions[name] for name in ("gpu", "debug", "long"))  # type: ignore[index]
    assert (gpu.accounts, gpu.qos, gpu.cpus_per_gpu) == (("ml", "vision"), ("normal", "high"), 14)
    assert gpu.cpus_per_node is None, "18 of its nodes are not in what was recorded"
    assert "Slurm hides 18 of 20 nodes" in made
    assert [shape.gpus_per_node for shape in debug.shapes] == [8, 0]
    assert (debug.shapes[0].cpus_per_node, debug.shapes[0].mem_per_node) == (124, 1031000 - 8192)
    assert (debug.shapes[0].shards_per_gpu, debug.mem_per_cpu_max) == (8, 8000)
    assert (long.state, long.exclusive, long.reservation_only) == ("inactive", True, True)
    assert profile.limits.max_array_tasks == 500
    assert str(profile.slurm) == "24.05.4"


def test_many_kinds_of_nodes() -> None:
    lines = [
        f"NodeName=n{n} CoresPerSocket=16  CPUAlloc=0 CPUTot={cpus} Gres=(null) RealMemory={64000 + n}"
        " AllocMem=0 Sockets=2 State=IDLE ThreadsPerCore=1 Partitions=p"
        for cpus in (16, 32)
        for n in range(20)
    ]
    partition = "PartitionName=p State=UP Nodes=n TotalNodes=40"
    made = profile_text(live(partition, "\n".join(lines)), {"PATH": ""}, name="x", today=TODAY)
    (made_facts,) = decode(made, Profile, name="made").value.partitions.values()
    assert [(shape.nodes, shape.cpus_per_node, shape.mem_per_node) for shape in made_facts.shapes] == [
        (20, 32, 64000),
        (20, 16, 64000),
    ]
    assert {shape.mem_largest for shape in made_facts.shapes} == {64019}


def test_a_slurm_that_shows_little() -> None:
    made = profile_text(
        live("PartitionName=p State=UP\n", plugin_options=None), {"PATH": ""}, name="x", today=TODAY
    )
    profile = decode(made, Profile, name="made").value
    assert (profile.slurm, [*profile.partitions]) == (None, ["p"])
    for said in ("the release is not known here", "limits: not known", "plugin_options: not known"):
        assert f"# {said}" in made or said in made


def test_private_partitions_are_not_gone() -> None:
    cluster = live("PartitionName=p State=UP", settings="PrivateData = partitions,jobs\n")
    own = decode("name: a\nurl: x\nchecked: x\npartitions: {old: {}}", Profile, name="own")
    assert not [difference for difference in differences(own, cluster) if difference.live is None]
    assert "PrivateData hides partitions: there may be others" in profile_text(
        cluster, {"PATH": ""}, name="x", today=TODAY
    )


def test_names_of_partitions_that_are_not_the_clusters() -> None:
    own = decode(
        "name: a\nurl: x\nchecked: x\nomit: [partition]\ndefault_partition: d\npartitions: {d: {}}",
        Profile,
        name="own",
    )
    assert not [
        difference
        for difference in differences(own, AUTHORED)
        if difference.path[0] in ("partitions", "default_partition")
    ]


QOS = Qos(time_max=Duration(43200), nodes_max=4, gpus_max=64, deny_on_limit=True, overrides=("time_max",))


@pytest.mark.parametrize(
    ("enforced", "limits"),
    [
        ("associations,limits", {"time_max": 43200, "nodes_max": 4, "gpus_max": 64, "deny_on_limit": True}),
        ("associations,qos", {}),
        ("associations", None),
        ("none", None),
    ],
)
def test_accounts_and_the_qos_that_slurm_enforces(enforced: str, limits: dict[str, object] | None) -> None:
    mine = [Account(name="ml", partition="gpu", qos=("normal", "high"), default_qos="normal")]
    cluster = live(
        "PartitionName=p State=UP",
        settings=f"AccountingStorageEnforce = {enforced}\n",
        qos={"high": QOS},
        accounts=mine,
    )
    made = profile_text(cluster, {"PATH": ""}, name="x", today=TODAY)
    profile = decode(made, Profile, name="made").value
    assert profile.limits.enforce_qos == ("qos" in enforced)
    qos = profile.qos
    assert [*qos] == ([] if limits is None else ["high"])
    for high in qos.values():
        expected = {"time_max": None, "nodes_max": None, "gpus_max": None, "deny_on_limit": False} | (
            limits or {}
        )
        assert {key: getattr(high, key) for key in expected} == expected
        assert high.overrides == (("time_max",) if limits else ())
    assert "# ml in partition gpu: QOS normal, high, by default normal" in made
    assert ("# QOS are not enforced" in made) == (limits is None)


def test_hostile_names_are_left_out_or_quoted() -> None:
    lines = "PartitionName=a\x1b[31m State=UP\nPartitionName=\ufffd State=UP\nPartitionName={[:# State=UP TotalNodes=1"
    made = profile_text(live(lines), {"PATH": ""}, name='q"uo\\te: #', today=TODAY)
    profile = decode(made, Profile, name="made").value
    assert ([*profile.partitions], profile.name) == (["{[:#"], 'q"uo\\te: #')
    assert made.replace("\n", "").isprintable()
    assert "Left out: a\\x1b[31m" in made


def test_options_of_plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Command) -> None:
    bin_ = tmp_path / "bin"
    fakes.saying(bin_, "sbatch", HELP)
    fakes.saying(bin_, "scontrol", "PartitionName=p State=UP TotalNodes=0\n")
    monkeypatch.setenv("PATH", f"{bin_}:{os.environ['PATH']}")
    done = command("profile", "discover")
    profile = decode(done.out, Profile, name="made").value
    assert profile.plugin_options == ("container-image=", "no-container-mount-home", "energy=")


HELP = """\
Usage: sbatch [OPTIONS(0)...]

Other options:
  -V, --version               output version information and exit

Options provided by plugins:
      --container-image=[USER@][REGISTRY#]IMAGE[:TAG]|PATH
                              [pyxis] the image to use for the container
      --no-container-mount-home
                              [pyxis] do not bind mount the user's home
      --energy=policy         a policy, as --this=one
"""


CLUSTER = live(
    "PartitionName=gpu State=UP MaxTime=UNLIMITED Nodes=n[1-2] TotalNodes=2 JobDefaults=DefCpuPerGPU=4 Default=YES\n"
    "PartitionName=cpu State=UP MaxTime=1-00:00:00 Nodes=(null) TotalNodes=0",
    "\n".join(
        f"NodeName=n{n} CoresPerSocket=16  CPUAlloc=0 CPUTot=32 AvailableFeatures=a,b Gres=gpu:a100:4 RealMemory=64000"
        " AllocMem=0 Sockets=2 State=IDLE ThreadsPerCore=1 Partitions=gpu"
        for n in (1, 2)
    ),
    "SLURM_VERSION = 24.05.3\nGresTypes = gpu,shard\nMaxArraySize = 1001\nEnforcePartLimits = ANY\n",
)


@pytest.mark.parametrize(
    "own",
    [
        "slurm: 24.05.1",
        "slurm: 24.05",
        "default_partition: cpu",
        "gres_types: [shard, gpu]",
        "partitions: {gpu: {nodes: 'n1,n2'}}",
        "partitions: {gpu: {features: [b, a]}}",
        "partitions: {gpu: {cpus_per_gpu: 8}}",
        "partitions: {gpu: {state: up, exclusive: false}}",
        "partitions: {gpu: {gpu_type: a100}}",
        "network: {port_base: 30000}",
        "limits: {enforce_part_limits: any}",
    ],
)
def test_what_means_the_same_or_is_a_choice_is_not_stale(own: str) -> None:
    document = decode(
        f"name: a\nurl: x\nchecked: x\npartitions: {{cpu: {{}}}}\n{own}".replace(
            "partitions: {cpu: {}}\npartitions: {", "partitions: {cpu: {}, "
        ),
        Profile,
        name="own",
    )
    assert not [difference for difference in differences(document, CLUSTER) if difference.at]


@pytest.mark.parametrize(
    ("own", "after"),
    [
        ("nodes: n[1-3]", 'nodes: "n[1-2]"'),
        ("features: [a, b, c]", "features: [a, b]"),
        ("gpu_type: v100  # old", "gpu_type: a100  # old"),
        ("gpus_typed: false", "gpus_typed: true"),
        ("exclusive: true", "exclusive: false"),
        ("state: drain", "state: up"),
        ("gpus_per_node: 8", "gpus_per_node: 4"),
        ("mem_per_node: 65G", "mem_per_node: 64000M"),
    ],
)
def test_what_is_stale_is_brought_up_to_date(own: str, after: str) -> None:
    made, by_hand = update(f"name: a\nurl: x\nchecked: x\npartitions:\n  gpu:\n    {own}\n", CLUSTER)
    assert f"\n    {after}\n" in made
    assert not by_hand


@pytest.mark.parametrize("own", ["time_max: 1-00:00:00", "accounts: [ml]", "shapes: [{gpus_per_node: 4}]"])
def test_a_limit_that_is_gone_is_reported(own: str) -> None:
    made, by_hand = update(f"name: a\nurl: x\nchecked: x\npartitions:\n  gpu:\n    {own} # ours\n", CLUSTER)
    assert f"\n    {own} # ours\n" in made
    assert [difference.path[-1] for difference in by_hand] == [own.partition(":")[0]]


@pytest.mark.parametrize(
    ("own", "after"),
    [
        ("nodes: n1\n    nodes_max: 1", 'nodes: "n[1-2]"\n    nodes_max: 2'),  # it was the number of nodes
        ('nodes: "n[1-2]"\n    nodes_max: 1', 'nodes: "n[1-2]"\n    nodes_max: 1'),  # staff may allow fewer
    ],
)
def test_the_number_of_nodes_follows_the_nodes(own: str, after: str) -> None:
    made, _ = update(f"name: a\nurl: x\nchecked: x\npartitions:\n  gpu:\n    {own}\n  cpu: {{}}\n", CLUSTER)
    assert f"\n    {after}\n" in made


def test_a_partition_that_has_the_nodes_of_one_that_is_gone_may_be_its_new_name() -> None:
    own = decode(
        "name: a\nurl: x\nchecked: x\npartitions: {old: {nodes: 'n1,n2'}, cpu: {}}", Profile, name="own"
    )
    said = [finding.problem for finding in findings([*differences(own, CLUSTER)], "own")]
    gone = next(problem for problem in said if "no partition 'old'" in problem.what)
    assert gone.what == "the cluster shows no partition 'old', and 'gpu' has its nodes"
    assert gone.fix == "if it was renamed, write gpu: for old:"


def test_what_a_site_has_not_is_written_as_empty() -> None:
    made = profile_text(CLUSTER, {"PATH": ""}, name="x", today=TODAY)
    profile = decode(made, Profile, name="made").value
    assert (profile.licenses, profile.plugin_options) == ({}, ())
    bare = live(
        "PartitionName=p State=UP Nodes=n1 TotalNodes=1",
        "NodeName=n1 CoresPerSocket=16  CPUAlloc=0 CPUTot=32 Gres=(null) RealMemory=1 TmpDisk=0"
        " AllocMem=0 Sockets=2 State=IDLE ThreadsPerCore=1 Partitions=p",
        "GresTypes = (null)\nSelectType = select/linear\n",
    )
    made = profile_text(bare, {"PATH": ""}, name="x", today=TODAY)
    profile = decode(made, Profile, name="made").value
    (facts,) = profile.partitions.values()
    assert (profile.gres_types, facts.features, facts.tmp_per_node, facts.mem_per_node) == ((), (), 0, 1)
    assert (profile.gpu_request, profile.limits.select_type) == ("none", "linear")
    assert "RealMemory is not set" in made


def test_slightly_different_nodes_are_one_kind_with_the_smallest_memory() -> None:
    lines = [
        f"NodeName=n{n} CoresPerSocket=16  CPUAlloc=0 CPUTot=32 Gres=(null) RealMemory={memory}"
        " AllocMem=0 Sockets=2 State=IDLE ThreadsPerCore=1 Partitions=p"
        for n, memory in enumerate([64100, 64000, 64900, 128000])
    ]
    nodes = "PartitionName=p State=UP Nodes=n[0-3] TotalNodes=4"
    made = profile_text(live(nodes, "\n".join(lines)), {"PATH": ""}, name="x", today=TODAY)
    (facts,) = decode(made, Profile, name="made").value.partitions.values()
    kinds = [(kind.nodes, kind.mem_per_node, kind.mem_largest) for kind in facts.shapes]
    assert kinds == [(3, 64000, 64900), (1, 128000, None)]
    assert facts.mem_per_node == 128000
