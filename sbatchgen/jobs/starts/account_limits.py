"""Tells whether a limit of an account or a QOS would make a job wait, from `scontrol show assoc_mgr`.

This command shows the limits and how much of each is in use. It shows the limits for a user in a QOS only
while the user has jobs in this QOS.
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from sbatchgen.base.machine.trust import user_name
from sbatchgen.base.units import Duration
from sbatchgen.check.script.resource_request import ResourceRequest
from sbatchgen.jobs.slurm.accounts import accounts
from sbatchgen.jobs.slurm.client import answer_if_any
from sbatchgen.jobs.slurm.fields import read_count, read_pairs

# The start of a record: "ClusterName=c1 Account=physics UserName=anna(1000)", or "QOS=normal(1)"
_RECORD_START = re.compile(
    r"^(?:ClusterName=\S+ Account=(?P<account>\S+) UserName=(?P<user>\S*)|QOS=(?P<qos>[^\s(]+))", re.MULTILINE
)
_LIMIT = re.compile(r"([0-9]{1,18})(?:\(([0-9]{1,18}))?")  # "8"; or "8(3)", of which jobs already use 3
_NOUNS = {"gres/gpu": "GPUs", "node": "nodes", "cpu": "CPUs"}  # Slurm's name of a resource -> the plural noun


def printed_limits(settings: Mapping[str, str], environment: Mapping[str, str]) -> str:
    """Return the limits that apply to this user, as Slurm prints them; "" if Slurm enforces no limits."""
    if not {"limits", "safe", "all"} & {*settings.get("AccountingStorageEnforce", "").split(",")}:
        return ""
    command = ["scontrol", "-o", "show", "assoc_mgr", "flags=assoc,qos", f"users={user_name(os.getuid())}"]
    return answer_if_any(command, environment) or ""


def qos_of_user(excluded: Sequence[str], cluster: str, environment: Mapping[str, str]) -> list[str]:
    """Return the QOS that this user may use, except those in `excluded`; none if no database answers."""
    user_accounts = accounts(user_name(os.getuid()), cluster, environment) or []
    names = dict.fromkeys(name for account in user_accounts for name in account.qos)
    return [name for name in names if name not in excluded]


def limit_that_delays(limits: str, job: ResourceRequest, time_s: int, qos: Sequence[str]) -> str:
    """Return in words which limit would make the job wait now; "" if no known limit would.

    `limits` is what `printed_limits` returns, `time_s` is the time limit in seconds, and `qos` has the QOS
    that apply to the job.
    """
    account = job.options.get("account", "")
    requested = {"gres/gpu": job.gpus_in_all, "node": job.nodes, "cpu": job.cpus_on_node * job.nodes}
    for limit in _limits_of(limits, account, qos):
        if limit.name == "MaxWallPJ" and (max_s := 60 * read_count(limit.value)) < time_s:
            allows = f"{limit.owner} allows {Duration(max_s)}"
            return f"{allows}, and the job asks for {Duration(time_s)} ({limit.name})"
        if "Jobs" in limit.name:
            amounts = [("jobs", limit.value, 1)]
        else:
            values = read_pairs(limit.value.split(","))  # "gres/gpu=8(3),node=2(1)"
            amounts = [(noun, values[tres], requested[tres]) for tres, noun in _NOUNS.items()]
        for noun, printed, needed in amounts:
            match = _LIMIT.match(printed)
            if match and needed and read_count(match[2] or "") + needed > int(match[1]):
                maximum, used = match[1], match[2]
                what = f"has {used} of {maximum} {noun} in use" if used else f"allows {maximum} {noun}"
                return f"{limit.owner} {what}, and the job needs {needed} ({limit.name})"
    return ""


def max_time_s(limits: str, job: ResourceRequest, qos: Sequence[str]) -> int | None:
    """Return the longest time limit in seconds that a job may ask for; None if no limit is known."""
    known_limits = _limits_of(limits, job.options.get("account", ""), qos)
    return min(
        (60 * read_count(limit.value) for limit in known_limits if limit.name == "MaxWallPJ"), default=None
    )


class _Limit(NamedTuple):
    """A limit of an account or a QOS."""

    owner: str  # the account or the QOS in words: "QOS normal", or "your share of QOS normal"
    name: str  # Slurm's name of the limit, such as "MaxTRESPU"
    value: str  # the value as Slurm prints it, such as "gres/gpu=6(4)"


def _limits_of(printed: str, account: str, qos: Sequence[str]) -> Iterator[_Limit]:
    """Yield the limits for an account and these QOS; without an account, for all accounts of the user."""
    for line in printed.split("\n"):
        record = _RECORD_START.match(line)
        if record is None or (record["qos"] and record["qos"] not in qos):
            continue
        if record["account"] and account and record["account"] not in (account, "root"):
            continue
        owner = f"QOS {record['qos']}" if record["qos"] else f"account {record['account']}"
        common_limits, _, other_limits = line.partition(" Account Limits=")
        limits_of_users = other_limits.partition("User Limits=")[2]
        # By the ids of users: "1000={MaxJobsPU=3(1) MaxTRESPU=gres/gpu=6(4)} 1001={...}"
        user_match = re.search(rf"[ (]{os.getuid()}\)?=\{{([^}}]*)\}}", limits_of_users)
        for owner_in_words, text, names in (
            (owner, common_limits, ("GrpTRES", "GrpJobs", "MaxJobs", "MaxTRESPJ", "MaxWallPJ")),
            (f"your share of {owner}", user_match[1] if user_match else "", ("MaxTRESPU", "MaxJobsPU")),
        ):
            values = read_pairs(text.split())
            yield from (_Limit(owner_in_words, name, values[name]) for name in names if values[name])
