"""The keys of a profile: the facts of a cluster, and the settings that its staff choose for jobs.

The records here, in `job_file` and in `options` are neither frozen nor comparable, so that sbatchgen starts
faster.
"""

from collections.abc import Iterator, Mapping

from sbatchgen.base.errors import did_you_mean
from sbatchgen.base.keys import described, record
from sbatchgen.base.units import Duration, OptionValue, ShellPath, Text
from sbatchgen.check.cluster_facts import KnownCluster, PartitionFacts
from sbatchgen.jobs.inputs.options import NAMES, ExtraOption
from sbatchgen.jobs.inputs.start_settings import JobSettings, ModeSettings
from sbatchgen.jobs.modes import ModeName


@record
class Partition(JobSettings, PartitionFacts):
    """A partition: its facts and limits, and settings of its jobs; None is "not known"."""

    def faults(self) -> Iterator[tuple[str, str, str]]:
        """Yield values that contradict each other: the key, what is wrong, and a fix."""
        yield from JobSettings.faults(self)
        yield from PartitionFacts.faults(self)
        time, time_max = self.options.time, self.time_max
        if time is not None and time_max is not None and time > time_max:
            what = f"time {time} is more than time_max {time_max}"
            yield "options", what, f"write time: {time_max}, or less"


@record
class Paths:
    """Folders of data sets, runs and the bundled training package on this cluster."""

    data: ShellPath | None = described("Data set.")
    runs: ShellPath | None = described("Folder of all run folders.")
    code: ShellPath | None = described(
        "Folder that holds the training package; by default the one of sbatchgen."
    )


@record
class Interactive:
    """Defaults of `sbatchgen shell` on this cluster: where shells run, and for how long."""

    partition: Text | None = described("Partition of shells, as debug.")
    qos: Text | None = described("Quality of service of shells.")
    time: Duration | None = described("Time limit of a shell. [default: 01:00:00]")
    ssh_nodes: bool | None = described("Whether a user can ssh to the nodes of his jobs.")


@record
class Profile(JobSettings, KnownCluster):
    """A cluster. The lines of `setup` are shell code that jobs run unchanged; all other values are data.

    `policies` sets the severity of rules on this cluster, such as SB220: error.
    """

    SCHEMA = "sbatchgen schema profile"

    partitions: Mapping[Text, Partition] = described("Partitions by name.", make=dict)
    paths: Paths = described("Folders.", make=Paths)
    modes: Mapping[ModeName, ModeSettings] = described("Options of sbatch and srun by mode.", make=dict)
    interactive: Interactive = described("Where `sbatchgen shell` runs.", make=Interactive)
    answer_within: Duration | None = described(
        "Longest time that `when` waits for an answer of Slurm. [default: 00:00:30]"
    )
    template: Text | None = described("Template of the script.")
    extra_options: Mapping[ExtraOption, OptionValue] = described(
        "Other options of sbatch, by their long names.", make=dict
    )

    def faults(self) -> Iterator[tuple[str, str, str]]:
        """Yield values that contradict each other: the key, what is wrong, and a fix."""
        yield from super().faults()
        for key in ("required", "omit"):
            for name in getattr(self, key):
                if name not in NAMES:
                    yield key, f"'{name}' is not an option", did_you_mean(name, NAMES)
        chosen = self.interactive.partition
        if chosen and self.partitions and chosen not in self.partitions:
            fix = did_you_mean(chosen, self.partitions)
            yield "interactive", f"there is no partition '{chosen}' here", fix
        default = self.default_partition
        if default and self.partitions and default not in self.partitions:
            fix = did_you_mean(default, self.partitions)
            yield "default_partition", f"there is no partition '{default}' here", fix
