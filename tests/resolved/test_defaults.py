"""What a job gets that asks for little: never what no node has, and never what is not for its user."""

from __future__ import annotations

from typing import Any

import pytest

from sbatchgen.base.finding import Finding
from sbatchgen.jobs.inputs.document import decode, parse_scalar
from sbatchgen.jobs.inputs.flags import key_type
from sbatchgen.jobs.inputs.layers import BY_DEFAULT, Layer, Level
from sbatchgen.jobs.inputs.profile import Profile
from sbatchgen.jobs.judge.job_check import check
from sbatchgen.jobs.resolved.choice import choose_partition
from sbatchgen.jobs.resolved.origins import surprises
from sbatchgen.jobs.resolved.resolve import resolve
from sbatchgen.jobs.resolved.resolved_job import ResolvedJob

HEAD = "name: site\nurl: x\nchecked: 2026-01-01\nslurm: 22.05\n"


def resolved(facts: str, mode: str = "ddp", *, partition: str = "", **options: Any) -> ResolvedJob:
    """The plan of a job in a partition, "" for the one that is chosen."""
    profile = decode(HEAD + facts, Profile, name="site.yaml")
    if partition:
        options["partition"] = partition
    keys = {f"options.{name}": str(value) for name, value in options.items()}
    values = {key: parse_scalar(text, key_type(key)) for key, text in keys.items()}
    flags = Layer(Level.COMMAND_LINE, values, dict.fromkeys(values, "flag"))

    def resolved_in(name: str) -> ResolvedJob:
        return resolve(profile, [flags], mode_name=mode, name=mode, chosen=name)

    return resolved_in("") if partition else choose_partition(resolved_in, check)


def errors(made: ResolvedJob) -> list[Finding]:
    return [finding for finding in check(made, log_folders_made=True) if finding.severity == "error"]


def ids(made: ResolvedJob) -> set[str]:
    return {finding.rule for finding in errors(made)}


LIMITED = """
partitions:
  small: {nodes_max: 1, time_max: 30}
  strict: {partition_qos: short}
  large: {}
qos:
  short: {time_max: 20}
"""


@pytest.mark.parametrize(
    ("partition", "nodes", "time"),
    [
        ("small", "the partition allows one node", "the partition's time limit"),
        ("strict", "mode ddp", "the time limit of QOS short"),
        ("large", "mode ddp", "default"),
    ],
)
def test_a_limit_of_the_partition_is_the_origin_of_the_value(partition: str, nodes: str, time: str) -> None:
    origins = resolved(LIMITED, partition=partition).origins
    assert (origins["options.nodes"].where, origins["options.time"].where) == (nodes, time)


UNEQUAL = """
default_partition: gpu
partitions:
  gpu:
    shapes:
      - {nodes: 1, cpus_per_node: 40, mem_per_node: 400G, gpus_per_node: 10}
      - {nodes: 3, cpus_per_node: 32, mem_per_node: 300G, gpus_per_node: 8}
"""


@pytest.mark.parametrize(("nodes", "gpus"), [(1, 10), (2, 8), (4, 8)])
def test_default_gpus_are_the_most_that_enough_nodes_have(nodes: int, gpus: int) -> None:
    made = resolved(UNEQUAL, nodes=nodes)
    assert (made.gpus_per_node, errors(made)) == (gpus, [])
    assert ("the job wants" in made.origin("options.gpus_per_node").where) == (nodes > 1)


SLICES = """
default_partition: gpu
partitions:
  gpu: {cpus_per_node: 64, mem_per_node: 500G, gpus_per_node: 16, gpu_types: {a100: 2, 1g.10gb: 14}}
  mig: {cpus_per_node: 64, mem_per_node: 500G, gpus_per_node: 14, gpu_types: {nvidia_a100_1g.5gb: 14}}
"""


def test_slices_of_a_gpu_are_no_default_of_ddp() -> None:
    made = resolved(SLICES, partition="gpu", nodes=1)
    assert (made.directives["gpus-per-node"], made.nproc_per_node) == ("a100:2", 2)
    made = resolved(SLICES, partition="mig", nodes=1)
    assert (made.directives["gpus-per-node"], made.nproc_per_node) == ("1", 1)


def test_the_smallest_memory_of_a_kind_is_the_default_and_the_largest_the_limit() -> None:
    facts = "default_partition: gpu\npartitions: {gpu: {gpus_per_node: 8, mem_per_node: 2000G, mem_largest: 2010G}}"
    assert str(resolved(facts).options.mem) == "2000G"
    assert not errors(resolved(facts, mem="2010G"))
    assert ids(resolved(facts, mem="2011G")) == {"SB216"}


def test_the_qos_of_a_partition_limits_the_default() -> None:
    facts = (
        "default_partition: gpu\npartitions: {gpu: {gpus_per_node: 16, cpus_per_node: 96, partition_qos: few}}\n"
        "qos: {few: {gpus_max: 8, time_max: 00:30:00, deny_on_limit: true}}"
    )
    made = resolved(facts, nodes=1)
    assert (made.nodes, made.gpus_per_node, str(made.options.time)) == (1, 8, "0-00:30:00")
    assert made.origin("options.gpus_per_node").where == "qos few allows 8 GPUs, and a node has more"
    assert not errors(made)
    assert ids(resolved(facts, gpus_per_node="16")) == {"SB224"}


def test_a_limit_of_gpus_changes_no_job_of_several_nodes() -> None:
    facts = "default_partition: a\npartitions: {a: {gpus_per_node: 4, gpus_max: 32}}\n"
    assert not errors(resolved(facts, nodes=8))
    for nodes, fix in (
        (9, "--nodes 8 or --gpus-per-node 3"),
        (20, "--nodes 8 or --gpus-per-node 1"),
        (33, "--nodes 8"),
    ):
        (finding,) = errors(resolved(facts, nodes=nodes))
        assert (finding.rule, finding.problem.fix) == ("SB254", fix)
    small = facts.replace("32", "2")
    (finding,) = errors(resolved(small))
    assert finding.problem.fix == "--nodes 1 --gpus-per-node 2 or --gpus-per-node 1"
    (shown,) = [
        each for each in surprises(resolved(small, nodes=1), BY_DEFAULT) if each.name == "--gpus-per-node"
    ]
    assert (shown.value, shown.at) == ("2", "follows from: the partition allows 2 GPUs, and a node has more")


def test_the_qos_of_a_partition_wins_over_that_of_the_job_unless_that_has_a_flag() -> None:
    facts = (
        "default_partition: gpu\npartitions: {gpu: {gpus_per_node: 4, partition_qos: own}}\n"
        "qos:\n  own: {nodes_max: 4, gpus_min: 2, deny_on_limit: true}\n  more: {nodes_max: 8}\n"
        "  flag: {nodes_max: 8, overrides: [partition_qos]}\n"
    )
    assert ids(resolved(facts, nodes=8, qos="more")) == {"SB224"}
    assert not errors(resolved(facts, nodes=8, qos="flag"))
    assert ids(resolved(facts, "single")) == {"SB224"}  # fewer than its QOS wants


def test_the_default_memory_of_a_partition_is_never_more_than_a_node_has() -> None:
    facts = "default_partition: c\npartitions: {c: {cpus_per_node: 64, mem_per_node: 1000G, mem_per_cpu_default: 80G}}"
    made = resolved(facts, "cpu", cpus_per_task=16)
    assert (str(made.options.mem), errors(made)) == ("1000G", [])
    assert "more than a node has" in made.origin("options.mem").where


def test_memory_that_slurm_conf_does_not_set_is_asked_for_by_no_default() -> None:
    facts = "default_partition: g\npartitions: {g: {cpus_per_node: 64, gpus_per_node: 4, mem_per_node: 1M}}"
    assert (resolved(facts).options.mem, errors(resolved(facts))) == (None, [])
    assert ids(resolved(facts, mem="4G")) == {"SB216"}


OPEN = "{gpus_per_node: 4, cpus_per_node: 64, mem_per_node: 500G, time_max: 1-00:00:00"
CLOSED = f"""
default_partition: open
limits: {{enforce_accounts: true, enforce_qos: true}}
partitions:
  open: {OPEN}}}
  theirs: {OPEN.replace("1-", "9-")}, groups: [a-group-without-members]}}
  hosts: {OPEN.replace("1-", "9-")}, submit_hosts: "another[1-2]"}}
  hidden: {OPEN.replace("1-", "9-")}, hidden: true}}
  empty: {OPEN.replace("1-", "9-")}, nodes: ""}}
  last: {OPEN.replace("1-", "9-")}}}
"""


def test_a_partition_that_is_closed_to_the_user_is_not_chosen() -> None:
    made = resolved(CLOSED, time="2-00:00:00")
    assert made.partition_name == "last"
    assert made.passed_over == {
        "open": "time limit 1-00:00:00 is less than 2-00:00:00",
        "theirs": "only for users of group a-group-without-members",
        "hosts": "only for jobs from host another[1-2]",
        "hidden": "hidden",
        "empty": "no nodes",
    }
    assert not errors(resolved(CLOSED, partition="hidden", time="2-00:00:00"))


@pytest.mark.parametrize("partition", ["theirs", "hosts"])
def test_it_is_an_error_where_the_cluster_was_asked_for_this_user(
    partition: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platform.node", lambda: "login1.example.org")
    me = f"user: {{name: {user_name()}, groups: [], host: login1}}\n"
    assert not errors(resolved(CLOSED, partition=partition))
    assert ids(resolved(CLOSED + me, partition=partition)) == {"SB238"}
    assert not errors(resolved(CLOSED + me.replace("[]", "[a-group-without-members]"), partition="theirs"))
    assert not errors(resolved(CLOSED + "user: {name: somebody-else}\n", partition=partition))


def user_name() -> str:
    import os
    import pwd

    return pwd.getpwuid(os.getuid()).pw_name


ACCOUNTS = """
default_partition: ours
limits: {enforce_accounts: true, enforce_qos: true}
qos: {normal: {}, high: {}}
partitions:
  ours: {gpus_per_node: 4, accounts_denied: [guests], qos_denied: [low]}
  theirs: {gpus_per_node: 4, accounts: [theirs]}
  high: {gpus_per_node: 4, qos: [high]}
"""


@pytest.mark.parametrize(
    ("partition", "options", "expected"),
    [
        ("ours", {}, set()),
        ("ours", {"account": "other"}, {"SB238"}),
        ("ours", {"qos": "high"}, {"SB238"}),
        ("theirs", {}, {"SB223"}),
        ("high", {}, {"SB223"}),
    ],
)
def test_the_accounts_and_qos_of_the_user_are_known(
    partition: str, options: dict[str, Any], expected: set[str]
) -> None:
    me = f"user: {{name: {user_name()}, account: ml, accounts: {{ml: [normal]}}, qos: normal}}\n"
    assert ids(resolved(ACCOUNTS + me, partition=partition, **options)) == expected
    unenforced = (ACCOUNTS + me).replace("true", "false")
    assert not ids(resolved(unenforced, partition=partition)) & {"SB223"}


def test_a_denied_account_is_one_that_is_not_allowed() -> None:
    assert ids(resolved(ACCOUNTS, partition="ours", account="guests")) == {"SB223"}
    assert not errors(resolved(ACCOUNTS, partition="ours", account="any"))


KINDS = """
default_partition: gpu
limits: {select_type: cons_tres, memory_consumable: true}
gres_types: [gpu, nvme]
licenses: {matlab: 10}
plugin_options: []
partitions:
  gpu:
    nodes: g[1-3]
    cpus_per_node_max: 60
    mem_per_node_max: 400G
    shapes:
      - {nodes: 2, cpus_per_node: 64, mem_per_node: 500G, gpus_per_node: 4, gpu_types: {a100: 3, v100: 1},
         features: [fast], gres: {nvme: 3600}, tmp_per_node: 900G}
      - {nodes: 1, cpus_per_node: 32, mem_per_node: 180G, gpus_per_node: 2, gpu_types: {t4: 2},
         features: [slow], gres: {}, tmp_per_node: 0}
  plain: {features: [], gpus_per_node: 1, cpus_per_node: 32}
"""


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"gpus_per_node": "3"}, set()),
        ({"gpus_per_node": "4"}, {"SB207"}),  # 3 of one type
        ({"gpus": "4", "nodes": 1}, set()),
        ({"gpus_per_node": "t4:2", "constraint": "slow", "nodes": 1}, set()),
        ({"gpus_per_node": "t4:2", "constraint": "fast", "nodes": 1}, {"SB237"}),
        ({"constraint": "fast&slow"}, {"SB225"}),
        ({"partition": "plain", "constraint": "any"}, {"SB225"}),
        ({"gres": "nvme:3600", "nodes": 2}, set()),
        ({"gres": "nvme:3600", "nodes": 3, "gpus_per_node": "1"}, {"SB237"}),
        ({"gres": "nvme:4000"}, {"SB239"}),
        ({"tmp": "900G", "nodes": 1}, set()),
        ({"tmp": "1T"}, {"SB239"}),
        ({"licenses": "matlab:10"}, set()),
        ({"licenses": "matlab:11"}, {"SB234"}),
        ({"licenses": "ansys"}, {"SB234"}),
        ({"exclude": "g[1-2]", "nodes": 2}, {"SB226"}),
        ({"mem": "450G", "nodes": 1}, {"SB216"}),  # MaxMemPerNode
        ({"cpus_per_task": "62", "nodes": 1}, {"SB215"}),  # MaxCPUsPerNode
        ({"exclusive": "true", "mem_per_cpu": "5G", "nodes": 1}, set()),  # 32 CPUs with 160G
    ],
)
def test_what_no_kind_of_node_has(options: dict[str, Any], expected: set[str]) -> None:
    assert ids(resolved(KINDS, **{"partition": "gpu", **options})) == expected


@pytest.mark.parametrize(
    ("limits", "option", "value", "expected"),
    [
        ("select_type: cons_res", "gpus", "4", {"SB240"}),
        ("select_type: linear", "mem_per_gpu", "4G", {"SB240"}),
        ("select_type: cons_res", "gpus_per_node", "4", set()),
        ("select_type: cons_tres", "gpus", "8", set()),
    ],
)
def test_options_that_a_select_type_does_not_know(
    limits: str, option: str, value: str, expected: set[str]
) -> None:
    facts = f"default_partition: g\nlimits: {{{limits}}}\npartitions: {{g: {{gpus_per_node: 4}}}}\ngpu_request: gres\n"
    assert ids(resolved(facts, **{option: value})) == expected


def test_an_option_of_a_plugin_that_is_not_there() -> None:
    profile = decode(HEAD + KINDS, Profile, name="site.yaml")
    layer = Layer(Level.COMMAND_LINE, {"extra_options.gpu_cmode": "shared", "options.nodes": 1}, {})
    made = resolve(profile, [layer], mode_name="ddp", name="x")
    assert "SB028" in ids(made)


def test_gpus_that_slurm_does_not_know_come_with_the_node() -> None:
    facts = "default_partition: g\ngres_types: []\npartitions: {g: {gpus_per_node: 8, cpus_per_node: 96}}\n"
    assert ids(resolved(facts)) == {"SB210"}
    made = resolved(f"{facts}gpu_request: none\n")
    assert (made.gpus_per_node, errors(made)) == (8, [])
    assert "gpus-per-node" not in made.directives


@pytest.mark.parametrize("key", ["gpus_max", "gpus_max_user", "gpus_max_account"])
def test_a_job_asks_for_no_more_gpus_than_the_partition_gives(key: str) -> None:
    facts = f"default_partition: a\npartitions: {{a: {{gpus_per_node: 8, {key}: 6}}}}\n"
    assert resolved(facts, nodes=1).options.gpus_per_node == "6"
    asked = check(resolved(facts, gpus_per_node=4))
    assert [finding.rule for finding in asked if finding.severity == "error"] == ["SB254"]


def test_a_cluster_that_has_ended_names_its_successor() -> None:
    ended = check(resolved("until: 2026-08-31\nsuccessor: msu\n"))
    (finding,) = [each for each in ended if each.rule == "SB253"]
    assert (finding.severity, finding.problem.fix) == ("error", "--profile msu")
    assert "SB253" not in {each.rule for each in check(resolved("until: 2199-08-31\n"))}


@pytest.mark.parametrize(("whose", "most"), [("user", 2), ("account", 3)])
def test_the_gpus_of_a_qos_are_those_of_all_running_jobs(whose: str, most: int) -> None:
    facts = (
        f"default_partition: a\nqos: {{q: {{gpus_max_{whose}: {most}}}}}\n"
        "partitions: {a: {gpus_per_node: 8, partition_qos: q}}\n"
    )
    assert resolved(facts, nodes=1).options.gpus_per_node == str(most)
    (finding,) = [each for each in check(resolved(facts, gpus_per_node=4)) if each.severity == "error"]
    assert finding.problem.what.startswith(f"8 GPUs are over the limit of qos 'q', {most} for a")


@pytest.mark.parametrize(("launcher", "tasks", "cpus"), [("srun", 8, 12), ("torchrun", 1, 96)])
def test_several_processes_share_a_gpu_of_tiles(launcher: str, tasks: int, cpus: int) -> None:
    facts = (
        "default_partition: a\ngpu_vendor: intel\n"
        f"launcher: {launcher}\npartitions: {{a: {{gpus_per_node: 4, cpus_per_node: 96, processes_per_gpu: 2}}}}\n"
    )
    job = resolved(facts)
    assert (job.nproc_per_node, job.options.ntasks_per_node, job.options.cpus_per_task) == (8, tasks, cpus)
    assert job.options.gpus_per_node == "4"
    assert not [finding for finding in check(job) if finding.severity == "error"]


def test_where_a_type_must_be_named_one_may_be_the_default() -> None:
    types = "partitions: {a: {gpu_types: {a40: 4, a100: 4}, gpu_type_required: true%s}}\n"
    (missing,) = [
        each
        for each in check(resolved(f"default_partition: a\n{types % ''}", gpus_per_node=2))
        if each.severity == "error"
    ]
    assert missing.problem.what == "partition 'a' has GPUs of types a40, a100: a request must name one"
    chosen_type = resolved(f"default_partition: a\n{types % ', gpu_type: a40'}", gpus_per_node=2)
    assert chosen_type.options.gpus_per_node == "a40:2"
    assert not [finding for finding in check(chosen_type) if finding.severity == "error"]


def test_a_job_that_names_no_type_is_counted_as_what_its_request_names() -> None:
    facts = (
        "default_partition: a\npartitions: {a: {gpu_type: A100, gpu_type_required: true, shapes: "
        "[{cpus_per_node: 64, gpus_per_node: 4, gpu_types: {A100: 4}}, "
        "{cpus_per_node: 32, gpus_per_node: 8, gpu_types: {T4: 8}}]}}\n"
    )
    for given, request, cpus in (({}, "A100:4", 64), ({"gpus_per_node": "2"}, "A100:2", 32)):
        job = resolved(facts, **given)
        assert (job.options.gpus_per_node, job.options.cpus_per_task) == (request, cpus)
        assert not [finding for finding in check(job) if finding.severity == "error"]


INSTALLED = (
    "default_partition: g\npartitions: {g: {gpus_per_node: 4, cpus_per_node: 64, mem_installed: 768G%s}}"
)


@pytest.mark.parametrize(
    ("more", "asked", "mem"),
    [
        ("", {}, 0),  # all GPUs of a node: all of its memory
        ("", {"gpus_per_node": "1"}, None),  # no share of what jobs may not have
        ("", {"mem": "9G"}, 9 * 1024),
        (", exclusive: true", {}, None),
        (", mem_per_node: 756G", {}, 756 * 1024),
        (", mem_per_node: 756G", {"gpus_per_node": "1"}, 189 * 1024),
    ],
)
def test_no_memory_follows_from_what_is_built_in(more: str, asked: dict[str, str], mem: int | None) -> None:
    job = resolved(INSTALLED % more, **asked)
    assert (job.options.mem, errors(job)) == (mem, [])


def test_more_than_is_built_in_is_an_error() -> None:
    assert ids(resolved(INSTALLED % "", mem="769G")) == {"SB216"}
    assert not errors(resolved(INSTALLED % "", mem="768G"))
