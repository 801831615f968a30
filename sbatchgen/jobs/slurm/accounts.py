"""Asks sacctmgr(1) for accounts and qualities of service (QOS) in Slurm's database, if the site has one."""

from collections.abc import Mapping, Sequence
from typing import Literal

from sbatchgen.base.frozen import frozen
from sbatchgen.base.units import Duration
from sbatchgen.check.cluster_facts import Qos
from sbatchgen.jobs.slurm.client import answer_if_any
from sbatchgen.jobs.slurm.fields import read_limit, read_names, read_pairs, read_seconds

# Fields of `sacctmgr show qos`; "pu" is for each user, "pa" for each account, "grp" for all jobs together.
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
# Flags of a QOS, each with the limit of the partition that the QOS overrides, by the keys of profiles.
_OVERRIDES: Mapping[str, Literal["time_max", "nodes_max", "nodes_min", "partition_qos"]] = {
    "PartitionTimeLimit": "time_max",
    "PartitionMaxNodes": "nodes_max",
    "PartitionMinNodes": "nodes_min",
    "OverPartQOS": "partition_qos",
}
_ACCOUNT_FIELDS = ("account", "partition", "qos", "defaultqos")


@frozen(slots=True)
class Account:
    """An account that a user may charge: an association of Slurm."""

    name: str
    partition: str  # the only partition in which the user may charge it; "" for all partitions
    qos: tuple[str, ...]  # the QOS that jobs of the account may name
    default_qos: str  # the QOS of jobs that name none
    is_default: bool = False  # whether jobs that name no account charge this one


def qos(environment: Mapping[str, str]) -> dict[str, Qos] | None:
    """Return all QOS by their names; None if no database answers."""
    rows = _rows(["qos"], _QOS_FIELDS, environment)
    return None if rows is None else {row["name"]: _qos(row) for row in rows}


def accounts(user: str, cluster: str, environment: Mapping[str, str]) -> list[Account] | None:
    """Return the accounts of a user on a cluster; None if the database does not answer."""
    rows = _rows(["assoc", "where", f"user={user}", f"cluster={cluster}"], _ACCOUNT_FIELDS, environment)
    if rows is None:
        return None
    default_rows = _rows(["user", "where", f"name={user}"], ["defaultaccount"], environment) or []
    return [
        Account(
            row["account"],
            row["partition"],
            read_names(row["qos"]),
            default_qos=row["defaultqos"],
            is_default=row["account"] in (user_row["defaultaccount"] for user_row in default_rows),
        )
        for row in rows
    ]


def _rows(
    what: Sequence[str], fields: Sequence[str], environment: Mapping[str, str]
) -> list[dict[str, str]] | None:
    """Return what `sacctmgr show` prints, a mapping for each row; None if no database answers."""
    shown = answer_if_any(["sacctmgr", "-nP", "show", *what, f"format={','.join(fields)}"], environment)
    if shown is None:
        return None
    rows = (line.split("|") for line in shown.split("\n"))
    return [dict(zip(fields, row, strict=True)) for row in rows if len(row) == len(fields)]


def _qos(row: Mapping[str, str]) -> Qos:
    """Return a QOS whose limits for a job include its limits for a user, for an account and for all jobs."""
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
