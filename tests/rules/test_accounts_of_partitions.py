"""AllowAccounts, DenyAccounts, AllowQos and AllowGroups: what is said of a job is what Slurm does with it.

Each job is submitted to a slurmctld, with and without a database, whatever it enforces, and judged by the profile of
that cluster.
"""

from __future__ import annotations

import os
import pwd
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from sbatchgen.base.units import Duration
from sbatchgen.jobs.judge.job_check import check
from tests.cluster.controller import Controller
from tests.scripts import resolved

PARTITIONS = {
    "open": "",
    "allowing": "AllowAccounts=ml",
    "denying": "DenyAccounts=ml",
    "fast": "AllowQos=fast",
    "slow": "DenyQos=fast",
    "mine": "AllowGroups=alice",
    "others": "AllowGroups=adm",
}
FACTS = {
    "open": "",
    "allowing": ", accounts: [ml]",
    "denying": ", accounts_denied: [ml]",
    "fast": ", qos: [fast]",
    "slow": ", qos_denied: [fast]",
    "mine": ", groups: [alice]",
    "others": ", groups: [adm]",
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
    for account in ("", "ml", "other", "nosuch")
    for qos in ("", "fast", "nosuch")
]


RULES = ("SB223", "SB224", "SB238")


def profile(folder: Path, *, database: bool, enforced: str) -> Path:
    """The facts of this cluster, as `sbatchgen profile discover` would write them of it."""
    rows = "".join(f"  {name}: {{nodes_max: 1, cpus_per_node: 64{fact}}}\n" for name, fact in FACTS.items())
    accounts, qos = (str(database and what in enforced).lower() for what in ("associations", "qos"))
    known = ", account: ml, qos: normal, accounts: {ml: [normal, fast], other: [normal, fast]}"
    me = pwd.getpwuid(os.getuid()).pw_name
    file = folder / f"enforced-{enforced.replace(',', '-')}.yaml"  # read once
    file.write_text(
        f"name: x\nurl: https://example.org\nchecked: 2026-11-28\n"
        f"user: {{name: {me}, groups: [{USER}]{known * database}}}\n"
        f"limits: {{enforce_accounts: {accounts}, enforce_qos: {qos}}}\n"
        f"default_partition: open\nqos: {{normal: {{}}, fast: {{}}}}\npartitions:\n{rows}"
    )
    return file


def starts(controller: Controller, asked: Sequence[tuple[str, dict[str, str]]]) -> list[bool]:
    """Whether each of these jobs starts: Slurm neither refuses it, nor leaves it pending."""
    numbers = []
    for partition, said in asked:
        words = [f"--{name}={value}" for name, value in said.items()]
        argv = ["sbatch", "--parsable", f"--partition={partition}", "--output=/dev/null", *words]
        try:
            numbers.append(controller.run([*argv, "--wrap=true"]).strip())
        except RuntimeError as error:
            if "Batch job submission failed" not in str(error):
                raise
            numbers.append("")
    deadline = time.monotonic() + 600  # on a busy machine
    while True:  # a waiting job that Slurm has refused a start has a reason; the others wait for their turn
        lines = controller.run(["squeue", "-h", "-a", "-t", "all", "-o", "%i|%T|%r"]).splitlines()
        rows = {line.split("|")[0]: line.split("|")[1:] for line in lines}
        submitted = [rows[number] for number in numbers if number]
        if not any(state == "PENDING" and why in _TURN for state, why in submitted):
            break
        assert time.monotonic() < deadline, rows
        time.sleep(0.2)
    return [bool(number) and rows[number][0] != "PENDING" for number in numbers]


@pytest.mark.proof
def test_what_is_said_is_what_slurm_does(slurm_root: Path | None, folder: Path) -> None:
    started = _compare(slurm_root, folder, ("", "associations,limits"), database=False)
    # without a database 26.05 looks at no account
    assert {runs for (where, _), runs in started if where != "others"} == (
        {True} if slurm_root else {True, False}
    )


@pytest.mark.proof
def test_what_is_said_is_what_slurm_does_with_a_database(slurm_root: Path | None, folder: Path) -> None:
    started = _compare(slurm_root, folder, ("", "associations", "associations,limits,qos"), database=True)
    assert {runs for _, runs in started} == {True, False}


def _compare(
    slurm_root: Path | None, folder: Path, enforce: Sequence[str], *, database: bool
) -> list[tuple[tuple[str, dict[str, str]], bool]]:
    """Compare with each AccountingStorageEnforce, and return which jobs start."""
    # slurmctld 26.05 takes no AllowQos without a database
    known = {name for name in PARTITIONS if database or not slurm_root or "Qos" not in PARTITIONS[name]}
    asked = [job for job in ASKED if job[0] in known]
    lines = {name: f"PartitionName={name} Nodes=n[1-99] MaxTime=60 {who}" for name, who in PARTITIONS.items()}
    partitions = [line for name, line in lines.items() if name in known]
    added = ["add account ml", "add account other", "add qos fast", *USERS] if database else []
    nodes = "NodeName=n[1-99] CPUs=64 RealMemory=64000"
    every, wrong = [], {}
    with Controller(
        nodes=nodes, partitions="\n".join(partitions), root=slurm_root, accounts=added
    ) as controller:
        for enforced in enforce:
            controller.restart(f"AccountingStorageEnforce={enforced}\n")
            facts = profile(folder, database=database, enforced=enforced)
            for (partition, said), runs in zip(asked, starts(controller, asked), strict=True):
                job = resolved("cpu", facts, partition=partition, time=Duration(600), **dict[str, Any](said))
                severities = {finding.severity for finding in check(job) if finding.rule in RULES}
                if runs if "error" in severities else not (runs or severities):
                    wrong[f"{enforced} {partition} {said}"] = (runs, severities)
                every.append(((partition, said), runs))
    print(f"{len(every)} jobs, {sum(runs for _, runs in every)} of them start, {len(wrong)} differences")
    assert wrong == {}
    return every
