"""The call of a launcher such as torchrun: its numbers of nodes and processes, and where its nodes meet.

    call = LauncherCall.from_argv(["torchrun", "--nnodes=2", "--nproc-per-node=4", "train.py"])
    call.name, call.nodes, call.workers  # "torchrun", 2, 4

Source: torch/distributed/run.py of torch 2.13.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from sbatchgen.base.frozen import cached_property, frozen
from sbatchgen.check.executables.command_options import program_name, read_options
from sbatchgen.check.executables.program import LAUNCHERS, PROGRAMS
from sbatchgen.check.executables.python_program import program_of_python

if TYPE_CHECKING:
    from typing_extensions import Self

_DEFAULT_PORT = "29500"  # the port of torchrun and deepspeed


class RoleOption(NamedTuple):
    """The option of a launcher that has a role, such as --nnodes with the role NODES."""

    name: str  # "" without such an option
    value: str  # "" if the script does not show the value


@frozen(kw_only=True)
class LauncherCall:
    """A call of a launcher, in a script or as a process.

    The roles of options are in programs.txt. `Program.roles` explains them.
    """

    name: str  # the name of the launcher, such as "torchrun" or "accelerate launch"
    options: Mapping[str, str | None]  # long name -> value; None for a value that the script does not show
    job_nodes: int | None = 1  # the number of nodes of the job; None if unknown
    has_program: bool = True  # whether a program follows the options

    @classmethod
    def from_argv(cls, argv: Sequence[str], **more: Any) -> Self | None:
        """Return the call of a launcher in the words of a process; None if they start another program.

        Python may start the launcher from a module or a file. `more` are further attributes of the call.
        """
        words = list(argv)
        name, at = program_name(words, PROGRAMS)  # `at` is the number of words that have been read
        if name == "python":
            uses, at = read_options(words, at, PROGRAMS[name])
            modules = [value for option, value, *_ in uses[-1:] if option == "m"]
            words = [*modules, *words[at:]]
            name, at = program_of_python(words, is_module=bool(modules)) if words else ("", 0)
        if name not in LAUNCHERS:
            return None
        uses, at = read_options(words, at, PROGRAMS[name])
        options = {option: value for option, value, *_ in uses}
        return cls(name=name, options=options, has_program=at < len(words), **more)

    @cached_property
    def nodes(self) -> int:
        """The number of nodes that the launcher waits for; 0 if the options do not show the number."""
        return self._number("NODES") if self.role_option("NODES").name else 1

    @cached_property
    def workers(self) -> int:
        """The number of processes on each node; 0 if the options do not show the number."""
        if not self.role_option("PROCESSES").name:
            return int(self.starts_one_by_default)
        processes = self._number("PROCESSES")
        if not self.name.startswith("accelerate"):
            return processes
        # accelerate counts the processes of all nodes. Without an option, it may read the nodes from a file.
        knows_nodes = self.role_option("NODES").name or self.job_nodes == 1
        return -(-processes // self.nodes) if knows_nodes and self.nodes else 0

    @property
    def has_static_ranks(self) -> bool:
        """Whether each node takes its rank from an option such as --node-rank, and not from a rendezvous."""
        may_rank_otherwise = {"standalone", "config-file"} & self.options.keys() or self.name == "deepspeed"
        has_nodes = self.role_option("NODES").name and "RANK" in PROGRAMS[self.name].roles
        return bool(has_nodes) and not may_rank_otherwise and self._has_static_backend

    @property
    def _has_static_backend(self) -> bool:
        """Whether torchrun uses its static rendezvous: no option asks for another one, such as c10d."""
        return self.options.get("rdzv-backend", "static") == "static"

    @property
    def may_know_other_nodes(self) -> bool:
        """Whether the launcher may know the job's other nodes. deepspeed knows them only from an option."""
        return self.name != "deepspeed" or not {"hostfile", "no-ssh", "node-rank"}.isdisjoint(self.options)

    @property
    def starts_one_by_default(self) -> bool:
        """Whether the launcher starts a single process because no option gives a number."""
        return self.name == "torchrun" and not self.role_option("PROCESSES").name

    @property
    def port(self) -> str:
        """The port on which a launcher of one node listens; "" for a port that is free or may be shared."""
        if self.name not in ("torchrun", "deepspeed") or self.nodes != 1:
            return ""
        if not self._has_static_backend:
            return ""  # launchers with c10d may share a port
        _, colon, port = (self.options.get("rdzv-endpoint") or "").rpartition(":")
        port = port if colon else self.options.get("master-port", _DEFAULT_PORT) or ""
        return "" if port == "0" or "standalone" in self.options else port

    @property
    def lacks_program(self) -> bool:
        """Whether the command ends without a program to start, and does not ask for a help text."""
        return not self.has_program and {"help", "h", "version"}.isdisjoint(self.options)

    def role_option(self, role: str) -> RoleOption:
        """Return the first option of the call that has a role."""
        for name in PROGRAMS[self.name].roles.get(role, ()):
            if name in self.options:
                return RoleOption(name, self.options[name] or "")
        return RoleOption("", "")

    def _number(self, role: str) -> int:
        """Return the number in the option with a role; 0 if the option holds no number."""
        value = self.role_option(role).value
        return int(value) if re.fullmatch(r"\d{1,9}", value, re.ASCII) else 0
