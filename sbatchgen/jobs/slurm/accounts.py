"""Asks sacctmgr(1) for the accounts and qualities of service (QOS) in Slurm's database.

Not every site has a database. Each function returns None if no database answers.
"""

from collections.abc import Mapping, Sequence
from typing import Literal

from sbatchgen.base.frozen import frozen
from sbatchgen.base.units import Duration
from sbatchgen.check.cluster_facts import Qos
from sbatchgen.jobs.slurm.client import answer_if_any
from sbatchgen.jobs.slurm.fields import read_limit, read_names, read_pairs, read_seconds

# Fields of `sacctmgr show qos`. The limits that end in "pu" are for each user, those that end in "pa" for
# each account, and those that begin with "grp" for all jobs of the QOS together.
_QOS_FIELDS = (
    "name",
    "maxwall",
    "maxtres",
    "maxtrespu",
    "maxtrespa",
    "grptres",
    "flags",
    "mintres",
    "maxsubmitpu",
)
# A flag of a QOS -> the limit of the partition that the QOS then overrides, as a key of profiles.
_OVERRIDES: Mapping[str, Literal["time_max", "nodes_max", "nodes_min", "partition_qos"]] = {
    "PartitionTimeLimit": "time_max",
    "PartitionMaxNodes": "nodes_max",
    "PartitionMinNodes": "nodes_min",
    "OverPartQOS": "partition_qos",
}
_ACCOUNT_FIELDS = ("account", "partition", "qos", "defaultqos")


@frozen(slots=True)
class Account:
    """An account that a user may charge, which Slurm stores as an association."""

    name: str
    partition: str  # the only partition in which the user may charge it; "" for all partitions
    qos: tuple[str, ...]  # the QOS that jobs of the account may name
    default_qos: str  # the QOS of jobs that name no QOS
    is_default: bool = False  # whether jobs that name no account charge this account


def qos(environment: Mapping[str, str]) -> dict[str, Qos] | None:
    """Return all QOS by their names; None if no database answers."""
    rows = _sacctmgr_rows(["qos"], _QOS_FIELDS, environment)
    return None if rows is None else {row["name"]: _qos_of_row(row) for row in rows}


def accounts(user: str, cluster: str, environment: Mapping[str, str]) -> list[Account] | None:
    """Return the accounts of a user on a cluster; None if no database answers."""
    entity = ["assoc", "where", f"user={user}", f"cluster={cluster}"]
    rows = _sacctmgr_rows(entity, _ACCOUNT_FIELDS, environment)
    if rows is None:
        return None
    user_rows = _sacctmgr_rows(["user", "where", f"name={user}"], ["defaultaccount"], environment) or []
    default_accounts = [row["defaultaccount"] for row in user_rows]
    return [
        Account(
            row["account"],
            row["partition"],
            read_names(row["qos"]),
            default_qos=row["defaultqos"],
            is_default=row["account"] in default_accounts,
        )
        for row in rows
    ]


def _sacctmgr_rows(
    entity: Sequence[str], fields: Sequence[str], environment: Mapping[str, str]
) -> list[dict[str, str]] | None:
    """Return the rows that `sacctmgr show ENTITY` prints, as mappings from fields; None without database."""
    printed = answer_if_any(["sacctmgr", "-nP", "show", *entity, f"format={','.join(fields)}"], environment)
    if printed is None:
        return None
    rows = (line.split("|") for line in printed.split("\n"))
    return [dict(zip(fields, row, strict=True)) for row in rows if len(row) == len(fields)]


def _qos_of_row(row: Mapping[str, str]) -> Qos:
    """Return the QOS in a row of sacctmgr.

    A job must keep to the limits of the QOS for a job, for a user, for an account and for all jobs. The limit
    for a job is the lowest of them.
    """
    tres = [read_pairs(row[name].split(",")) for name in ("maxtres", "maxtrespu", "maxtrespa", "grptres")]
    flags, time_max_s = row["flags"].split(","), read_seconds(row["maxwall"])
    min_tres = read_pairs(row["mintres"].split(","))

    def lowest_limit(name: str) -> int | None:
        limits = (read_limit(values[name]) for values in tres)
        return min((value for value in limits if value is not None), default=None)

    return Qos(
        time_max=None if time_max_s is None else Duration(time_max_s),
        nodes_max=lowest_limit("node"),
        gpus_max=lowest_limit("gres/gpu"),
        cpus_max=lowest_limit("cpu"),
        nodes_min=read_limit(min_tres["node"]),
        gpus_min=read_limit(min_tres["gres/gpu"]),
        cpus_min=read_limit(min_tres["cpu"]),
        jobs_max=read_limit(row["maxsubmitpu"]),
        deny_on_limit="DenyOnLimit" in flags,
        overrides=tuple(key for flag, key in _OVERRIDES.items() if flag in flags),
    )
