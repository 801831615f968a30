"""Asks Slurm about its cluster, and looks for programs and interfaces on this machine."""

import os
import platform
import pwd
import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TypeVar

from sbatchgen.base.frozen import frozen
from sbatchgen.base.machine import search_path
from sbatchgen.check.cluster_facts import Qos
from sbatchgen.jobs.slurm.accounts import Account, accounts, qos
from sbatchgen.jobs.slurm.client import PrivateDataError, answer_if_any
from sbatchgen.jobs.slurm.config import config, licenses, topology
from sbatchgen.jobs.slurm.fields import read_count
from sbatchgen.jobs.slurm.node import SlurmNode, nodes
from sbatchgen.jobs.slurm.partition import SlurmPartition, SlurmReservation, partitions, reservations

T = TypeVar("T")

# An option in `sbatch --help`, such as "  -G, --gpus=n ...": its name, and = or [= before its value.
_OPTION = re.compile(r"^ +(?:-\w, )?--([A-Za-z0-9_-]+)(\[?=)?", re.MULTILINE)
_CONDA_ROOTS = ("/opt/conda", "/opt/miniconda3", "/opt/miniforge3", "/opt/anaconda3", "/usr/local/miniconda3")
_INFINIBAND = "32"  # ARPHRD_INFINIBAND of Linux, in the file `type` of an interface
_FAST_MBIT = 25_000  # the lowest speed of a fast interface, in Mbit/s


@frozen(kw_only=True)
class LiveCluster:
    """A cluster as Slurm describes it to this user."""

    settings: Mapping[str, str]  # slurm.conf; empty if Slurm did not show it
    partitions: list[SlurmPartition]
    nodes: list[SlurmNode]  # also nodes in state FUTURE
    qos: Mapping[str, Qos] | None  # QOS by name; None if no database answered
    user: str
    host: str
    groups: tuple[str, ...]  # the groups of the user
    licenses: Mapping[str, int] | None  # licenses with their counts; None if Slurm did not answer
    # the reservations that the user may use; None if Slurm did not answer
    reservations: list[SlurmReservation] | None
    # by keys of a profile: the topology plugin, and the number of nodes below the largest leaf switch
    topology: Mapping[str, str]
    accounts: list[Account] | None  # the accounts of the user; None if no database answered
    # options of plugins, with = at the end if they need a value; None if sbatch did not list them
    plugin_options: tuple[str, ...] | None

    def setting(self, name: str) -> str:
        """Return a setting of slurm.conf; "" if it is not set or not known."""
        return self.settings.get(name, "")


def ask(environment: Mapping[str, str]) -> LiveCluster:
    """Ask the Slurm of this machine about its cluster; raise SlurmError if Slurm does not answer."""
    # The partitions come first, because their error tells that this machine has no Slurm.
    shown_partitions = _shown_to_user(partitions, environment)
    settings = config(environment)
    try:
        user = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # the user has no name on this machine
        user = ""
    group_names = answer_if_any(["id", "-Gnz"], environment) or ""  # -z, because names may have blanks
    groups = tuple(filter(None, group_names.split("\0")))
    own_accounts = accounts(user, settings.get("ClusterName", ""), environment) if user else None
    own_reservations = reservations(environment)
    if own_reservations is not None:
        account_names = [account.name for account in own_accounts or ()]
        own_reservations = [
            reservation
            for reservation in own_reservations
            if reservation.is_open_to(user, groups, account_names)
        ]
    return LiveCluster(
        settings=settings,
        partitions=shown_partitions,
        nodes=_shown_to_user(partial(nodes, future=True), environment),
        qos=qos(environment),
        user=user,
        host=platform.node().partition(".")[0],
        groups=groups,
        licenses=licenses(environment),
        reservations=own_reservations,
        topology=topology(settings, environment),
        accounts=own_accounts,
        plugin_options=_plugin_options(environment),
    )


def _shown_to_user(read: Callable[[Mapping[str, str]], list[T]], environment: Mapping[str, str]) -> list[T]:
    """Return the partitions or nodes that Slurm shows; [] if Slurm hides them from this user."""
    try:
        return read(environment)
    except PrivateDataError:
        return []


def _plugin_options(environment: Mapping[str, str]) -> tuple[str, ...] | None:
    """Return the options of plugins that `sbatch --help` lists; None if sbatch does not answer."""
    shown = answer_if_any(["sbatch", "--help"], environment)
    if shown is None:
        return None
    options = shown.partition("\nOptions provided by plugins:\n")[2].partition("\n\n")[0]
    return tuple(name + "=" * (mark == "=") for name, mark in _OPTION.findall(options))


def programs(environment: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield each program that runs containers, with its path; "" if the program is not on PATH."""
    for name in ("apptainer", "singularity", "enroot"):
        yield name, search_path.find(name, environment)


def conda_roots(environment: Mapping[str, str]) -> list[str]:
    """Return the root folders of conda on this machine."""
    conda = environment.get("CONDA_EXE") or search_path.find("conda", environment)
    named = [str(Path(conda).parent.parent)] if conda else []
    return [*dict.fromkeys([*named, *(root for root in _CONDA_ROOTS if Path(root, "bin/conda").exists())])]


def modules(environment: Mapping[str, str]) -> str:
    """Return the name of the program that provides `module`; "" if there is no such program."""
    if version := environment.get("LMOD_VERSION"):
        return f"Lmod {version}"
    return "environment modules" if environment.get("MODULESHOME") or environment.get("LMOD_CMD") else ""


def fast_interfaces(folder: Path = Path("/sys/class/net")) -> list[str]:
    """Return the network interfaces for traffic between nodes: InfiniBand, Slingshot, or fast Ethernet."""
    try:
        names = sorted(entry.name for entry in folder.iterdir())
    except OSError:
        return []
    return [name for name in names if _is_fast(folder / name)]


def _is_fast(interface: Path) -> bool:
    """Return whether an interface is InfiniBand, Slingshot, or an Ethernet that is fast and up."""
    if interface.name.startswith(("docker", "veth", "br-", "lo", "virbr")):
        return False
    if _read(interface / "type") == _INFINIBAND or interface.name.startswith(("ib", "hsn")):
        return True
    speed = _read(interface / "speed")
    is_up = _read(interface / "operstate") == "up"
    return is_up and read_count(speed) >= _FAST_MBIT


def _read(file: Path) -> str:
    """Return the text of a small file of Linux; "" if it can't be read."""
    try:
        return file.read_text(errors="replace").strip()
    except OSError:  # an interface that is down has no speed
        return ""
