"""The reservations of a live cluster: `scontrol show reservation`."""

from collections.abc import Collection, Iterator, Mapping

from sbatchgen.frozen import frozen
from sbatchgen.slurm.client import answer_if_any
from sbatchgen.slurm.config import printed, record_of
from sbatchgen.slurm.printed import names, pairs, text, time


@frozen(kw_only=True, slots=True)
class SlurmReservation:
    """A reservation as the controller knows it."""

    name: str = printed("ReservationName")
    nodes: str = printed("Nodes", text)  # "n[1-4]"; "" if it has none, as one of licences
    partition: str = printed("PartitionName", text)  # that its nodes were taken from; "" if it names none
    # As 2026-01-31T12:00:00+01:00; "" if it has no end
    end: str = printed("EndTime", lambda text: end.isoformat() if (end := time(text)) else "")
    flags: tuple[str, ...] = printed("Flags", names)  # as "FLEX", "DAILY"
    # Who may use it; "-ann": all others; empty: it does not matter
    users: tuple[str, ...] = printed("Users", names)
    groups: tuple[str, ...] = printed("Groups", names)
    accounts: tuple[str, ...] = printed("Accounts", names)

    def is_open_to(self, user: str, groups: Collection[str], accounts: Collection[str]) -> bool:
        """Whether this user may use it: each list that it has must have the user."""
        lists = (self.users, {user}), (self.groups, {*groups}), (self.accounts, {*accounts})
        return not any(
            allowed and not having & {*allowed} and not allowed[0].startswith("-")
            for allowed, having in lists
        )


def reservations(environment: Mapping[str, str]) -> list[SlurmReservation] | None:
    """Return all reservations that Slurm shows to this user; None if the controller does not answer."""
    shown = answer_if_any(["scontrol", "-o", "show", "reservation"], environment)
    return None if shown is None else [*reservations_in(shown)]


def reservations_in(printed: str) -> Iterator[SlurmReservation]:
    """Yield the reservations in what scontrol printed, one a line."""
    for line in (line for line in printed.split("\n") if line.startswith("ReservationName=")):
        yield record_of(SlurmReservation, pairs(line.partition(" Comment=")[0].split()))
