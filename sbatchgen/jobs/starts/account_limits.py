"""The limits of accounts and QOS, and their present use, from `scontrol show assoc_mgr`.

Slurm shows the limits of a user in a QOS only while the user has jobs in it.
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence

from sbatchgen.base.machine.trust import user_name
from sbatchgen.base.units import Duration
from sbatchgen.check.script.resource_request import ResourceRequest
from sbatchgen.jobs.slurm.accounts import accounts
from sbatchgen.jobs.slurm.client import answer_if_any
from sbatchgen.jobs.slurm.fields import read_count, read_pairs

# "ClusterName=c1 Account=physics UserName=anna(1000) ...", and "QOS=normal(1) ..."
_RECORD = re.compile(
    r"^(?:ClusterName=\S+ Account=(?P<account>\S+) UserName=(?P<user>\S*)|QOS=(?P<qos>[^\s(]+))", re.MULTILINE
)
_AMOUNT = re.compile(r"([0-9]{1,18})(?:\(([0-9]{1,18}))?")  # "8", or with the use of a shared limit "8(3)"
_NOUNS = {"gres/gpu": "GPUs", "node": "nodes", "cpu": "CPUs"}


def read_limits(settings: Mapping[str, str], environment: Mapping[str, str]) -> str:
    """Return the limits that apply to this user, as Slurm prints them; "" if Slurm enforces no limits."""
    if not {"limits", "safe", "all"} & {*settings.get("AccountingStorageEnforce", "").split(",")}:
        return ""
    command = ["scontrol", "-o", "show", "assoc_mgr", "flags=assoc,qos", f"users={user_name(os.getuid())}"]
    return answer_if_any(command, environment) or ""


def other_qos(excluded: Sequence[str], cluster: str, environment: Mapping[str, str]) -> list[str]:
    """Return the QOS that this user may use, except those in `excluded`; none if no database answers."""
    user_accounts = accounts(user_name(os.getuid()), cluster, environment) or []
    names = dict.fromkeys(name for account in user_accounts for name in account.qos)
    return [name for name in names if name not in excluded]


def limit_that_delays(limits: str, job: ResourceRequest, time_s: int, qos: Sequence[str]) -> str:
    """Return in words which limit would make the job wait now; "" if no known limit would.

    `limits` is the output of `read_limits`, `time_s` the job's time limit, `qos` the QOS that apply to it.
    """
    account = job.options.get("account", "")
    requested = {"gres/gpu": job.gpus_in_all, "node": job.nodes, "cpu": job.cpus_on_node * job.nodes}
    for whose, name, value in _limits_of(limits, account, qos):
        if name == "MaxWallPJ" and (most_s := 60 * read_count(value)) < time_s:
            return f"{whose} allows {Duration(most_s)}, and the job asks for {Duration(time_s)} ({name})"
        amounts = read_pairs(value.split(","))
        rows = [(noun, amounts[tres], requested[tres]) for tres, noun in _NOUNS.items()]
        rows = [("jobs", value, 1)] if "Jobs" in name else rows
        for noun, amount, wanted in rows:
            match = _AMOUNT.match(amount)
            if match and wanted and read_count(match[2] or "") + wanted > int(match[1]):
                limit, used = match[1], match[2]
                what = f"has {used} of {limit} {noun} in use" if used else f"allows {limit} {noun}"
                return f"{whose} {what}, and the job needs {wanted} ({name})"
    return ""


def max_time_s(limits: str, job: ResourceRequest, qos: Sequence[str]) -> int | None:
    """Return the longest time limit that a job may ask for; None if no limit is known."""
    limits_found = _limits_of(limits, job.options.get("account", ""), qos)
    return min((60 * read_count(value) for _, name, value in limits_found if name == "MaxWallPJ"), default=None)


def _limits_of(printed: str, account: str, qos: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    """Yield the limits for an account and these QOS: whose limit it is in words, its name and its value."""
    for line in printed.split("\n"):
        record = _RECORD.match(line)
        if record is None or (record["qos"] and record["qos"] not in qos):
            continue
        if record["account"] and account and record["account"] not in (account, "root"):
            continue
        whose = f"QOS {record['qos']}" if record["qos"] else f"account {record['account']}"
        shared, _, by_user = line.partition(" Account Limits=")
        # "User Limits= 1000={MaxJobsPU=3(1) MaxTRESPU=gres/gpu=6(4)} 1001={...}", by the ids of users
        of_user = re.search(rf"[ (]{os.getuid()}\)?=\{{([^}}]*)\}}", by_user.partition("User Limits=")[2])
        for who, text, names in (
            (whose, shared, ("GrpTRES", "GrpJobs", "MaxJobs", "MaxTRESPJ", "MaxWallPJ")),
            (f"your share of {whose}", of_user[1] if of_user else "", ("MaxTRESPU", "MaxJobsPU")),
        ):
            values = read_pairs(text.split())
            yield from ((who, name, values[name]) for name in names if values[name])
