"""Compares the user of this process with the facts of the cluster, for example with closed partitions."""

import os
from collections.abc import Iterator
from contextlib import suppress

from sbatchgen.check.cluster_facts import PartitionFacts, User
from sbatchgen.check.sbatch.hostlist import hosts


def user_of_process(user: User) -> User | None:
    """Return a profile's facts about a user, if this process belongs to the same user; else None."""
    with suppress(KeyError, ImportError):  # a user without a name, or Python in a browser, without users
        import pwd

        return user if pwd.getpwuid(os.getuid()).pw_name == user.name else None
    return None


def closing_reasons(partition: PartitionFacts, user: User | None) -> Iterator[tuple[str, bool]]:
    """Yield each reason why a partition is closed to the user or to this host, and whether it is certain.

    The groups of this machine may differ from those of the cluster. So a reason is certain only if the
    profile has facts about the user.
    """
    groups = {*partition.groups}
    if groups and not groups & {*_groups(), *(user.groups if user else ())}:
        yield f"only for users of group {' or '.join(partition.groups)}", user is not None
    if partition.submit_hosts:
        import platform

        host = platform.node().partition(".")[0]
        if host not in hosts(str(partition.submit_hosts)):
            yield f"only for jobs from host {partition.submit_hosts}", user is not None and user.host == host


def _groups() -> Iterator[str]:
    """Yield the names of this process's groups."""
    try:
        import grp
    except ImportError:  # Python in a browser, without groups
        return
    for number in os.getgroups():
        with suppress(KeyError):
            yield grp.getgrgid(number).gr_name
