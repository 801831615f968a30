"""The options of one component of a job, and those of their values that sbatch's checks compare.

Source: Slurm's table of options, and the behaviour of sbatch 22.05.8 and 26.05.5.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sbatchgen.sbatch.grammar import NO_VAL, NO_VAL64
from sbatchgen.sbatch.options import Option
from sbatchgen.sbatch.releases import Spec

DEFAULTS: dict[str, Any] = {
    "cores-per-socket": NO_VAL,
    "cpus-per-gpu": 0,
    "cpus-per-task": 0,
    "cpus_set": False,
    "dist": ("", 0),
    "gres-flags": frozenset(),
    "max_nodes": 0,
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
    "sockets-per-node": NO_VAL,
    "threads-per-core": NO_VAL,
}
# The fields of an option that has others than one of its own name.
FIELDS = {
    "cpus-per-task": ("cpus-per-task", "cpus_set"),
    "distribution": ("dist",),
    "extra-node-info": ("sockets-per-node", "cores-per-socket", "threads-per-core"),
    "nodes": ("min_nodes", "max_nodes", "nodes_set", "listed_nodes"),
    "ntasks": ("ntasks", "ntasks_set"),
}


@dataclass(kw_only=True, slots=True)
class Fields:
    """The fields of one component.

    Attributes:
        slurm: The release line.
        values: Each field that is not at its default.
        options: The options that count, by long name.
    """

    slurm: str
    values: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Option] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Any:
        """The field, or its default."""
        return self.values.get(name, DEFAULTS.get(name))

    def __setitem__(self, name: str, value: Any) -> None:
        """Set the field."""
        self.values[name] = value

    def reset(self, option: str) -> None:
        """Take back what the option set."""
        self.options.pop(option, None)
        for name in FIELDS.get(option, (option,)):
            self.values.pop(name, None)

    def given(self, *options: str) -> list[str]:
        """Those of the options that the script sets."""
        return [name for name in options if name in self.options]

    def of_next(self, table: Mapping[str, Spec]) -> Fields:
        """Those that the next component of a heterogeneous job starts with."""
        carried = Fields(slurm=self.slurm, values=dict(self.values), options=dict(self.options))
        for spec in table.values():
            if spec.per_component:
                carried.reset(spec.name)
        return carried
