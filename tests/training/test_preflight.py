"""The check of nodes before a training: which node is named, with what, and what follows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree as ET

import pytest
import torch

from tests import gpu_stand_in
from tests.conftest import REPOSITORY
from training import node, preflight
from training.errors import BAD_NODE, DONE, FAILED
from training.node import MARK, Fault
from training.preflight import Answers, judge

NODES = ("n1", "n2", "n3", "n4")
GOOD: dict[str, Any] = {"lost": [], "left": [], "bad": [], "unchecked": []}
Started = Callable[..., "subprocess.CompletedProcess[str]"]


def answers(**ends: dict[str, Any]) -> Answers:
    """What four nodes say: nothing is wrong, but for what is given."""
    made = Answers()
    for name in NODES:
        end = {"node": name, **GOOD, **ends.get(name, {})}
        made.add(MARK + json.dumps({"node": name, "at": [name, 1], "time": 1000.0}), 1000.5)
        made.add(MARK + json.dumps(end), 1001.0)
    return made


def named(
    given: Answers, nodes: Sequence[str] = NODES, running: Sequence[str] | None = ("17",)
) -> dict[str, Any]:
    """The parts that are named, by node."""
    return {name: [fault.part for fault in faults] for name, faults in judge(nodes, given, running).items()}


def test_healthy_nodes_are_not_named() -> None:
    assert judge(NODES, answers(), ("17",)) == {}


def test_a_fault_of_one_node_is_that_node_s_and_of_all_nodes_no_node_s() -> None:
    torch_bad = {"bad": [["torch", "can't be imported"], ["GPU 1", "computes wrong"]]}
    assert named(answers(n3=torch_bad)) == {"n3": ["torch", "GPU 1"]}
    everywhere = dict.fromkeys(NODES, torch_bad)
    assert named(answers(**everywhere)) == {"": ["torch", "GPU 1"]}


def test_own_files_are_counted_while_others_are_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    def vanished(**_: bool) -> None:
        raise FileNotFoundError

    own = SimpleNamespace(stat=lambda **_: SimpleNamespace(st_size=3 << 20, st_uid=os.getuid()))
    monkeypatch.setattr(os, "scandir", lambda _: [own, SimpleNamespace(stat=vanished), own])
    assert node.clause_about_own_files("/dev/shm") == "; 6 MiB in it are yours, from earlier jobs"  # noqa: S108


def test_a_node_that_srun_names_has_failed() -> None:
    for line, says in (
        ("srun: error: n2: task 1: Exited with exit code 7", "Exited with exit code 7"),
        ("srun: error: n2: tasks 4-7: Killed", "Killed"),
        ("srun: error: Node failure on n2", "the node has failed"),
        ("srun: error: Task launch for StepId=5.0 failed on node n2: No such file", "No such file"),
    ):
        given = answers()
        del given.ends["n2"]
        given.add(line, 0.0)
        assert judge(NODES, given, None) == {"n2": [Fault("start", f"the check failed: {says}")]}
    given = Answers()
    for name in NODES:
        given.add(f"srun: error: {name}: task 0: Exited with exit code 127", 0.0)
    assert [*judge(NODES, given, None)] == [""]  # it does not start anywhere


def test_a_check_that_was_ended_names_no_node() -> None:
    given = answers()
    del given.ends["n2"], given.ends["n3"]
    given.messages = ["srun: forcing job termination"]
    says = "the check ended before n2, n3 had answered: srun: forcing job termination"
    assert judge(NODES, given, None) == {"": [Fault("start", says)]}  # as scancel ends it
    given.late = True
    assert named(given) == {"n2": ["start"], "n3": ["start"]}
    nothing = Answers()
    nothing.add("srun: error: Unable to create step for job 17", 0.0)
    (fault,) = judge(NODES, nothing, None)[""]
    assert fault.what.endswith("Unable to create step for job 17")


def test_a_clock_and_a_process_of_an_earlier_job() -> None:
    given = answers(n4={"left": [[9, "16", "python"], [10, "17", "python"]]})
    given.ahead["n1"] -= 3600
    assert named(given) == {"n1": ["clock"], "n4": ["left over"]}
    given.ahead["n1"] += 3600
    assert named(given, running=("16", "17")) == {}
    assert named(given, running=None) == {}  # squeue did not answer


@pytest.mark.parametrize(
    ("lost", "expected"),
    [
        ({"n1": ["n3"], "n2": ["n3"], "n3": ["n1", "n4"]}, {"n3": ["network"]}),  # cut off
        ({"n1": ["n3"], "n2": ["n3"]}, {"n3": ["network"]}),  # takes no connections
        ({"n3": ["n1", "n4"]}, {"n3": ["network"]}),  # makes none
        ({"n1": ["n2"]}, {"": ["network"]}),  # either may be at fault
    ],
)
def test_a_node_that_others_do_not_reach_is_told_from_those(
    lost: dict[str, list[str]], expected: dict[str, list[str]]
) -> None:
    assert named(answers(**{name: {"lost": others} for name, others in lost.items()})) == expected


def test_two_nodes_that_do_not_reach_each_other_are_both_named_in_the_message() -> None:
    given = answers(n1={"lost": ["n2"]}, n2={"lost": ["n1"]})
    for table in (given.places, given.ends, given.ahead):
        del table["n3"], table["n4"]
    assert judge(NODES[:2], given, None)[""][0] == Fault("network", "n1 does not reach n2")


def test_a_product_of_whole_numbers_is_known_in_every_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node, "MATRIX_SIZE", 64)
    assert node.wrong_products(torch, "cpu") == ""
    right = torch.Tensor.__matmul__

    def off(self: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        product = right(self, other)
        product[5, 7] += 1
        return product

    monkeypatch.setattr(torch.Tensor, "__matmul__", off)
    assert node.wrong_products(torch, "cpu") == "computes wrong: 1 of 4096 numbers of a torch.float32 product"


def test_folders_that_a_training_can_not_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def faults(path: Path) -> list[Fault]:
        return [*node.folder_faults(str(path), 0, json.dumps(node.folder_facts(path)))]

    assert faults(tmp_path) == []
    assert faults(tmp_path / "missing")[0].what == "can't be written: No such file or directory"
    assert [*tmp_path.iterdir()] == []
    room = os.statvfs(tmp_path)
    small = list(room)
    small[4] = 1  # f_bavail
    monkeypatch.setattr(os, "statvfs", lambda _: os.statvfs_result(small))
    assert faults(tmp_path)[0].what == "only 0 MiB are free"
    small[4], small[7] = room.f_bavail, 3  # f_favail
    assert faults(tmp_path)[0].what == "has room for 3 more files only"
    assert [*node.folder_faults("/x", None, "")] == [Fault("/x", f"does not answer within {node.FOLDER_S} s")]


def test_what_does_not_end_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    began = time.monotonic()
    assert node.run_limited(["sh", "-c", "echo imported; sleep 60"], 0.5) == (None, "imported\n")
    assert time.monotonic() - began < 30


def test_interfaces_that_a_job_names(monkeypatch: pytest.MonkeyPatch) -> None:
    def parts(**environ: str) -> list[Fault]:
        findings = node.Findings()
        node.check_interfaces(environ, findings)
        return findings.faults

    assert parts() == parts(NCCL_SOCKET_IFNAME="=lo", GLOO_SOCKET_IFNAME="lo") == []
    assert parts(NCCL_SOCKET_IFNAME="^docker0") == []
    assert parts(NCCL_SOCKET_IFNAME="l", GLOO_SOCKET_IFNAME="lo,ib7") == [
        Fault("interface ib7", "is not there")
    ]
    assert parts(NCCL_SOCKET_IFNAME="=l") == [Fault("interface l", "is not there")]
    monkeypatch.setattr(node, "is_up", lambda _: False)
    assert parts(GLOO_SOCKET_IFNAME="lo") == [Fault("interface lo", "is down")]


def test_infiniband_devices_that_a_job_names(tmp_path: Path) -> None:
    states = {"mlx5_0": "4: ACTIVE", "mlx5_1": "1: DOWN", "ibp0": "1: DOWN"}
    for device, state in states.items():
        (tmp_path / device / "ports/1").mkdir(parents=True)
        (tmp_path / device / "ports/1/state").write_text(f"{state}\n")
    (tmp_path / "mlx5_0/ports/2").mkdir()
    (tmp_path / "mlx5_0/ports/2/state").write_text("1: DOWN\n")

    def parts(names: str) -> list[str]:
        findings = node.Findings()
        node.check_interfaces({"NCCL_IB_HCA": names}, findings, tmp_path)
        return [fault.part for fault in findings.faults if fault.part.startswith("InfiniBand")]

    for names in ("", "^mlx5_0,mlx5_1", "^=mlx5_1,ibp0", "mlx5", "mlx5_0", "=mlx5_0:1", "=ib", "=mlx5"):
        assert parts(names) == [], names
    assert parts("mlx5_0,mlx5_1") == parts("=mlx5_1") == ["InfiniBand mlx5_1"]
    assert parts("mlx5_0:2") == ["InfiniBand mlx5_0:2"]
    assert parts("ib") == ["InfiniBand ib"]


@pytest.fixture
def started(tmp_path: Path) -> Started:
    """Starts the check on this machine as its only node, with stand-ins of GPUs that have a fault."""
    gpu_stand_in.write(tmp_path)
    (tmp_path / "run").mkdir()

    def start(*arguments: str, fault: str = "", **environ: str) -> subprocess.CompletedProcess[str]:
        (tmp_path / "fault").write_text(fault)
        words = [sys.executable, str(REPOSITORY / "training/preflight.py"), str(tmp_path / "run")]
        paths = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(tmp_path)}
        variables = {**os.environ, **paths, "GPU_FAULT": str(tmp_path / "fault"), **environ}
        command = [*words, *arguments, "--", sys.executable]
        return subprocess.run(
            command, env=variables, capture_output=True, text=True, check=False, timeout=120
        )

    return start


def test_who_has_not_answered_is_told_meanwhile() -> None:
    check = f'echo \'{MARK}{{"node": "n1", "bad": []}}\'; sleep 5'
    call = f"preflight.TELL_S = 1; preflight.gather(['sh', '-c', {check!r}], [], ['n1', 'n2'])"
    words = [sys.executable, "-c", f"from training import preflight; {call}"]
    printed = subprocess.check_output(words, cwd=REPOSITORY, text=True)
    assert {*printed.splitlines()} == {"Preflight waits for n2"}


def test_without_gpus_it_says_what_it_could_not_check(started: Started, tmp_path: Path) -> None:
    done = started()
    assert (done.returncode, done.stderr) == (DONE, "")
    assert "  not checked: GPUs: the job has none\n" in done.stdout
    record = json.loads((tmp_path / "run" / preflight.RECORD).read_text())
    assert (record["faults"], len(record["nodes"])) == ({}, 1)
    (tmp_path / "nvidia-smi").unlink()
    done = started("--gpus", "4", PATH=f"{Path(sys.executable).parent}:/usr/bin:/bin")
    assert done.returncode == DONE
    assert "not checked: GPUs: no nvidia-smi" in done.stdout


@pytest.mark.sampled(8)
@pytest.mark.parametrize(
    ("kind", "part", "says"),
    [
        ("wrong", "GPU 2", "computes wrong: 3 of 16777216 numbers"),
        ("error", "GPU 2", "can't compute: CUDA error: uncorrectable ECC error encountered"),
        ("missing", "GPU 3", "is not there: torch finds 3"),
        ("full", "GPU 2", "only 20 of 80 GiB of its memory are free"),
        ("memory", "GPU 2", "its memory has failed"),
        ("hot", "GPU 2", "is slowed down: too hot"),
        ("stranger", "GPU 2", "process 4242 (python) of another job uses it"),
    ],
)
def test_a_bad_gpu_is_named_with_the_line_to_type(started: Started, kind: str, part: str, says: str) -> None:
    done = started("--gpus", "4", fault=f"2 {kind}\n")
    assert done.returncode == BAD_NODE
    (line,) = (line for line in done.stderr.splitlines() if line.startswith("error: "))
    host = os.uname().nodename
    assert line.startswith(f"error: preflight: {host}: {part}: {says}")
    assert line.endswith(f"; fix: --exclude={host}")


@pytest.mark.parametrize(
    ("said", "faults"),
    [
        ("<remapped_rows><remapped_row_pending>Yes</remapped_row_pending></remapped_rows>", []),
        ("<gpu_recovery_action>None</gpu_recovery_action>", []),
        ("<gpu_recovery_action>Reset</gpu_recovery_action>", ["the driver asks for a reset"]),
        ("<gpu_recovery_action>Reboot</gpu_recovery_action>", ["the driver asks for a reboot"]),
        (
            "<retired_pages><pending_retirement>Yes</pending_retirement></retired_pages>",
            ["its memory waits for a reset of the GPU"],
        ),
    ],
)
def test_a_gpu_is_bad_if_its_driver_asks_for_a_reset_before_new_work(said: str, faults: list[str]) -> None:
    gpu = ET.fromstring(f"<gpu>{said}</gpu>")  # noqa: S314 - from this test
    assert [*node.smi_faults(gpu, shared=False)] == faults


def test_an_amd_gpu_is_bad_if_its_driver_can_not_leave_bad_pages_out(tmp_path: Path) -> None:
    gpu = SimpleNamespace(pci_domain_id=0, pci_bus_id=0xC1, pci_device_id=0)
    assert node.bad_pages(gpu, tmp_path) == ""  # of NVIDIA, or without RAS
    path = tmp_path / "0000:c1:00.0/ras/gpu_vram_bad_pages"
    path.parent.mkdir(parents=True)
    left_out = "0x00000001 : 0x00001000 : R\n0x00000002 : 0x00001000 : P\n"
    path.write_text(left_out)
    assert node.bad_pages(gpu, tmp_path) == ""
    path.write_text(f"{left_out}0x00000003 : 0x00001000 : F\n")
    assert node.bad_pages(gpu, tmp_path) == "bad pages of its memory can't be left out: 1"
    assert node.bad_pages(SimpleNamespace(), tmp_path) == ""  # an old torch does not say where it is


@pytest.mark.proof
def test_a_gpu_that_is_shared_may_be_in_use(started: Started) -> None:
    assert started("--gpus", "4", "--shared", fault="2 full\n1 stranger\n").returncode == DONE
    assert started("--gpus", "4", "--shared", fault="2 full\n1 wrong\n").returncode == BAD_NODE


@pytest.mark.proof
def test_a_torch_that_can_not_be_imported_anywhere_is_no_node_s_fault(started: Started) -> None:
    done = started("--gpus", "4", fault="2 import\n")
    assert done.returncode == FAILED
    assert "error: preflight: all nodes: torch: can't be imported: ImportError: libcudart" in done.stderr


def test_what_all_nodes_say_of_a_gpu_is_no_node_s_fault() -> None:
    gone, hot = ("GPU 0", "is not there: torch finds 0"), ("GPU 0", "is slowed down: too hot")
    all_gone = {name: {"bad": [gone]} for name in NODES}
    assert judge(NODES, answers(**all_gone), None) == {"": [Fault(*gone)]}
    one_more = all_gone | {"n2": {"bad": [gone, hot]}}
    assert judge(NODES, answers(**one_more), None) == {"": [Fault(*gone)], "n2": [Fault(*hot)]}
    differ = all_gone | {"n2": {"bad": [hot]}}
    assert {node: len(each) for node, each in judge(NODES, answers(**differ), None).items()} == dict.fromkeys(
        NODES, 1
    )
    alone = Answers(ends={"n1": {**GOOD, "bad": [gone]}}, places={"n1": ["n1", 1]})
    assert judge(["n1"], alone, None) == {"n1": [Fault(*gone)]}


def test_gpus_that_do_not_answer() -> None:
    late = [*node.gpu_faults("GPU 1", -14, "imported\n", {}, shared=False)]
    assert late == [Fault("GPU 1", f"does not answer within {node.GPU_S} s")]
    stuck = [*node.gpu_faults("GPU 1", None, "imported\n", {}, shared=False)]
    assert stuck == late
    (slow,) = node.gpu_faults("GPU 1", None, "", {}, shared=False)
    assert slow.part == "torch"


SCONTROL = """#!/bin/bash
echo "$*" >>"$(dirname "$0")/asked"
case "$1 $2" in
    "show hostnames") hostname ;;
    "show job") echo "JobId=17 ReqNodeList=(null) ExcNodeList=n9" ;;
    "requeue 18") echo "Requested operation is presently disabled" >&2; exit 1 ;;
esac
"""


@pytest.mark.proof
def test_the_job_starts_again_without_bad_nodes_at_most_twice(started: Started, tmp_path: Path) -> None:
    (tmp_path / "scontrol").write_text(SCONTROL)
    (tmp_path / "scontrol").chmod(0o755)
    host, asked = os.uname().nodename, tmp_path / "asked"
    for allowed in (True, True, False):
        asked.write_text("")
        done = started("--gpus", "4", "--exclude", "17_3", fault="0 wrong\n", SLURM_JOB_ID="17")
        assert done.returncode == BAD_NODE
        changes = [line for line in asked.read_text().splitlines() if not line.startswith("show")]
        assert changes == (["requeue 17_3", f"update jobid=17_3 excnodelist=n9,{host}"] if allowed else [])
    assert "2 starts have left nodes out: not again" in done.stderr
    asked.write_text("")
    done = started("--gpus", "4", "--exclude", "18", fault="0 wrong\n", SLURM_JOB_ID="18")  # another job
    assert (done.returncode, "update" in asked.read_text()) == (BAD_NODE, False)
    assert f"can't leave n9,{host} out: Requested operation is presently disabled" in done.stderr


def test_a_job_that_hung_twice_by_one_node_starts_again_without_it(tmp_path: Path) -> None:
    (tmp_path / "scontrol").write_text(SCONTROL)
    (tmp_path / "scontrol").chmod(0o755)
    (tmp_path / "stacks").mkdir()
    call = [sys.executable, preflight.__file__, str(tmp_path), "--exclude", "17_3"]
    env = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_ID": "17"}
    changes = []
    for ends in ("", "16 n1\n17 n1\n17 n2\n", "16 n1\n17 n1\n17 n2\n17 n1\n"):
        (tmp_path / "stacks" / "odd").write_text(ends)
        subprocess.run(call, env=env, check=True)
        asked = (tmp_path / "asked").read_text().splitlines()
        changes.append([line for line in asked if line.startswith(("requeue", "update"))])
        (tmp_path / "asked").unlink()
    assert changes == [["requeue 17_3"]] * 2 + [["requeue 17_3", "update jobid=17_3 excnodelist=n9,n1"]]
    env["SLURM_JOB_ID"] = call[-1] = "18"
    done = subprocess.run(call, env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (
        FAILED,
        "can't requeue: Requested operation is presently disabled\n",
    )
