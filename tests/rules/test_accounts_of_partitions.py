"""AllowAccounts, DenyAccounts and AllowQos: what is said of a job is what Slurm does with it.

Each job is submitted to a slurmctld, with and without a database, and judged by the profile of that cluster.
"""

from __future__ import annotations

import os
import pwd
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sbatchgen.rules.judge import check
from sbatchgen.units import Duration
from tests.cluster.controller import Controller
from tests.cluster.fixtures import on_one_release
from tests.scripts import resolved

PARTITIONS = {
    "open": "",
    "allowing": "AllowAccounts=ml",
    "denying": "DenyAccounts=ml",
    "fast": "AllowQos=fast",
    "slow": "DenyQos=fast",
}
FACTS = {
    "open": "",
    "allowing": ", accounts: [ml]",
    "denying": ", accounts_denied: [ml]",
    "fast": ", qos: [fast]",
    "slow": ", qos_denied: [fast]",
}
USER = "alice"  # of tests.cluster.site
USERS = (
    f"add user {USER} account=ml defaultaccount=ml qos=normal,fast",
    f"add user {USER} account=other qos=normal,fast",
)
_TURN = ("None", "Priority", "Resources")  # reasons that a job has before Slurm has looked at its account
ASKED = [
    (partition, {name: value for name, value in (("account", account), ("qos", qos)) if value})
    for partition in PARTITIONS
    for account in ("", "ml", "other")
    for qos in ("", "fast")
]


def profile(folder: Path, *, database: bool) -> Path:
    """The facts of this cluster, as `sbatchgen profile discover` would write them of it."""
    rows = "".join(f"  {name}: {{nodes_max: 1, cpus_per_node: 64{fact}}}\n" for name, fact in FACTS.items())
    enforced = str(database).lower()
    me = (
        f"user: {{name: {pwd.getpwuid(os.getuid()).pw_name}, account: ml, qos: normal}}\n" if database else ""
    )
    file = folder / "cluster.yaml"
    file.write_text(
        f"name: x\nurl: https://example.org\nchecked: 2026-11-28\n{me}"
        f"limits: {{enforce_accounts: {enforced}, enforce_qos: {enforced}}}\n"
        f"default_partition: open\nqos: {{normal: {{}}, fast: {{}}}}\npartitions:\n{rows}"
    )
    return file


def starts(controller: Controller, asked: Sequence[tuple[str, dict[str, str]]]) -> list[bool]:
    """Whether each of these jobs starts."""
    numbers = []
    for partition, said in asked:
        words = [f"--{name}={value}" for name, value in said.items()]
        argv = ["sbatch", "--parsable", f"--partition={partition}", "--output=/dev/null", *words]
        numbers.append(controller.run([*argv, "--wrap=true"]).strip())
    deadline = time.monotonic() + 600  # on a busy machine
    while True:  # a waiting job that Slurm has refused a start has a reason; the others wait for their turn
        lines = controller.run(["squeue", "-h", "-a", "-t", "all", "-o", "%i|%T|%r"]).splitlines()
        rows = {line.split("|")[0]: line.split("|")[1:] for line in lines}
        if not any(
            state == "PENDING" and why in _TURN for state, why in (rows[number] for number in numbers)
        ):
            break
        assert time.monotonic() < deadline, rows
        time.sleep(0.2)
    return [rows[number][0] != "PENDING" for number in numbers]


def test_what_is_said_is_what_slurm_does(slurm_root: Path | None, folder: Path) -> None:
    _compare(slurm_root, folder, database=False)


@on_one_release  # the other's folder has no slurmdbd
def test_what_is_said_is_what_slurm_does_with_a_database(slurm_root: Path | None, folder: Path) -> None:
    _compare(slurm_root, folder, database=True)


def _compare(slurm_root: Path | None, folder: Path, *, database: bool) -> None:
    # slurmctld 26.05 takes no AllowQos without a database
    known = {name for name in PARTITIONS if database or not slurm_root or "Qos" not in PARTITIONS[name]}
    asked = [job for job in ASKED if job[0] in known]
    lines = {name: f"PartitionName={name} Nodes=n[1-40] MaxTime=60 {who}" for name, who in PARTITIONS.items()}
    partitions = [line for name, line in lines.items() if name in known]
    added = ["add account ml", "add account other", "add qos fast", *USERS] if database else []
    nodes = "NodeName=n[1-40] CPUs=64 RealMemory=64000"
    with Controller(
        nodes=nodes, partitions="\n".join(partitions), root=slurm_root, accounts=added
    ) as controller:
        started = starts(controller, asked)
    facts = profile(folder, database=database)
    wrong = {}
    for (partition, said), runs in zip(asked, started, strict=True):
        job = resolved("cpu", facts, partition=partition, time=Duration(600), **dict[str, Any](said))
        severities = {finding.severity for finding in check(job) if finding.rule == "SB223"}
        if runs if "error" in severities else not (runs or severities):
            wrong[f"{partition} {said}"] = (runs, severities)
    assert wrong == {}
    # without a database 26.05 looks at no account
    assert {*started} == ({True} if slurm_root and not database else {True, False})
