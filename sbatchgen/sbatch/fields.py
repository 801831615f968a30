"""What sbatch keeps of its options: fields, some of them shared by options.

How an option sets its fields is in setting.py, how sbatch prints it in display.py. Source: Slurm's table of
options, and the behaviour of sbatch 22.05.8 and 26.05.5.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from sbatchgen.sbatch.grammar import NO_VAL, NO_VAL16, NO_VAL64

DEFAULTS: dict[str, Any] = {
    "begin": 0,
    "binds": frozenset(),
    "bind_list": None,
    "core_spec": NO_VAL16,
    "cores-per-socket": NO_VAL,
    "cpus-per-gpu": 0,
    "cpus-per-task": 0,
    "cpus_set": False,
    "deadline": 0,
    "dist": ("", "", 0),
    "extra_set": False,
    "gres-flags": frozenset(),
    "kill_flags": frozenset(),
    "mail_events": frozenset(),
    "max_nodes": 0,
    "mem": NO_VAL64,
    "mem-per-cpu": NO_VAL64,
    "mem-per-gpu": NO_VAL64,
    "min_nodes": 1,
    "mincpus": -1,
    "nodes_set": False,
    "ntasks": 1,
    "ntasks_set": False,
    "ntasks-per-core": NO_VAL,
    "ntasks-per-gpu": NO_VAL,
    "ntasks-per-node": NO_VAL,
    "ntasks-per-socket": NO_VAL,
    "ntasks-per-tres": NO_VAL,
    "no-kill": False,
    "shared": "unset",
    "signal": ("", 0, 0),
    "sockets-per-node": NO_VAL,
    "req_switch": -1,
    "threads-per-core": NO_VAL,
    "tmp": NO_VAL64,
    "wait4switch": -1,
}
# The fields of an option that has others than one of its own name.
FIELDS = {
    "clusters": ("clusters",),
    "cluster": ("clusters",),
    "core-spec": ("core_spec",),
    "cpus-per-task": ("cpus-per-task", "cpus_set"),
    "distribution": ("dist",),
    "exclusive": ("shared",),
    "extra-node-info": ("sockets-per-node", "cores-per-socket", "threads-per-core", "extra_set"),
    "kill-on-invalid-dep": ("kill_flags",),
    "mail-type": ("mail_events",),
    "mem-bind": ("binds", "bind_list"),
    "no-requeue": ("requeue",),
    "nodefile": ("nodefile", "nodelist"),
    "nodelist": ("nodelist", "nodefile"),
    "nodes": ("min_nodes", "max_nodes", "nodes_set", "listed_nodes"),
    "ntasks": ("ntasks", "ntasks_set"),
    "oversubscribe": ("shared",),
    "req-switch": ("req_switch",),
    "switches": ("req_switch", "wait4switch"),
    "thread-spec": ("core_spec",),
}
# Options of one count above zero, of one size of memory, and of one path.
COUNTS = frozenset(
    {
        "cores-per-socket",
        "cpus-per-gpu",
        "mincpus",
        "ntasks-per-core",
        "ntasks-per-gpu",
        "ntasks-per-node",
        "ntasks-per-socket",
        "ntasks-per-tres",
        "sockets-per-node",
        "threads-per-core",
    }
)
SIZES = frozenset({"mem", "mem-per-cpu", "mem-per-gpu", "tmp"})
PATHS = frozenset({"error", "input", "output"})


@dataclass(kw_only=True, slots=True)
class Fields:
    """The fields of one component, as far as its options were read.

    Attributes:
        folder: Where sbatch is called.
        now: Seconds since 1970.
        slurm: The release line.
        values: Each field that is not at its default.
        sources: Where each option that is set comes from: "script", "environment" or "command line".
        complaints: What sbatch said without ending, level and text.
    """

    folder: str
    now: float
    slurm: str
    values: dict[str, Any] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)
    complaints: list[tuple[str, str]] = field(default_factory=list)

    def __getitem__(self, name: str) -> Any:
        """The field, or its default."""
        return self.values.get(name, DEFAULTS.get(name))

    def __setitem__(self, name: str, value: Any) -> None:
        """Keep the field."""
        self.values[name] = value

    def reset(self, option: str) -> None:
        """Take back what the option set."""
        self.sources.pop(option, None)
        for name in FIELDS.get(option, (option,)):
            self.values.pop(name, None)

    def given(self, *options: str) -> list[str]:
        """Those of the options that script or command line set."""
        return [option for option in options if self.sources.get(option, "environment") != "environment"]

    def exported(self, *options: str) -> list[str]:
        """Those of the options that the environment set."""
        return [option for option in options if self.sources.get(option) == "environment"]

    def say(self, text: str, level: str = "error") -> None:
        """Note what sbatch says, going on."""
        self.complaints.append((level, text))
