"""What sacctmgr says of accounts and QOS, recorded from 22.05 and 26.05 with a database of two clusters.

On the other cluster the user has an account more.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sbatchgen.jobs.slurm.accounts import Account, accounts, qos
from tests.conftest import FIXTURES
from tests.slurm import fakes


@pytest.fixture(params=["22.05", "26.05"])
def environment(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, str]:
    fakes.recorded(tmp_path, "sacctmgr", json.loads((FIXTURES / "sacctmgr.json").read_text())[request.param])
    return {"PATH": str(tmp_path)}


def test_what_a_qos_allows_to_one_job(environment: dict[str, str]) -> None:
    """The least of what a job, a user, an account and all jobs may have; a limit on a type of GPU is not read."""
    by_name = qos(environment) or {}
    limited = {
        name: {key: value for key, value in vars(limits).items() if value not in (None, False, ())}
        for name, limits in by_name.items()
    }
    assert limited == {
        "normal": {},
        "long": {"time_max": 604800, "nodes_max": 2, "gpus_max": 4, "deny_on_limit": True},
        "short": {"time_max": 3600, "gpus_max": 2, "cpus_max": 4},
        "group": {"gpus_max": 6},
        "typed": {"deny_on_limit": True, "overrides": ("time_max", "partition_qos")},
        "peracct": {"gpus_max": 3},
        "big": {},
        "over": {"overrides": ("time_max", "nodes_max")},
    }


def test_accounts_of_this_cluster_alone(environment: dict[str, str]) -> None:
    everywhere = ("group", "long", "normal", "peracct", "typed")
    mine = [
        Account(name="chem", partition="cpu", qos=("normal",), default_qos=""),
        Account(name="chem", partition="", qos=everywhere, default_qos=""),
        Account(
            name="physics",
            partition="",
            qos=("long", "normal", "over", "short"),
            default_qos="short",
            is_default=True,
        ),
    ]
    known = accounts("alice", "test", environment)
    assert sorted(known or (), key=lambda account: (account.name, not account.partition)) == mine
    assert accounts("bob", "test", environment) == []


def test_without_a_database(tmp_path: Path) -> None:
    assert qos({"PATH": str(tmp_path)}) is None
    fakes.failing(tmp_path, "sacctmgr", "You are not running a supported accounting_storage plugin")
    assert (qos({"PATH": str(tmp_path)}), accounts("ann", "test", {"PATH": str(tmp_path)})) == (None, None)
