"""Declares the options of sbatch that sbatchgen knows.

Each field of `SbatchOptions` makes a key of job files, a flag, a directive and their help. The order of the
fields is the order of the directives in a script. A job sets other options with the key `extra_options`. The
names and meanings are those of sbatch(1) in Slurm 20.11 to 26.05.
"""

import re
from dataclasses import fields
from typing import Literal

from sbatchgen.base.keys import described, record
from sbatchgen.base.texts import JobName, Requeue
from sbatchgen.base.units import (
    Count,
    Duration,
    GpuOption,
    Gres,
    Memory,
    OptionValue,
    RefusedValueError,
    ShellPath,
    Text,
    TimeLimit,
)
from sbatchgen.check.script import resource_request


@record
class SbatchOptions:
    """A job's options of sbatch; None is "not set", and gives no directive."""

    job_name: JobName | None = described("Name shown by squeue; also names the run folder.", common=True)
    output: ShellPath | None = described("Log file; %x is the job's name, %j its id.")
    error: ShellPath | None = described("Separate file for stderr; by default it goes to the log.")
    open_mode: Literal["append", "truncate"] | None = described(
        "What a requeue does to the log: append or truncate."
    )
    chdir: ShellPath | None = described("Working folder of the job.")
    account: OptionValue | None = described("Account to charge.", common=True, values="accounts")
    partition: OptionValue | None = described(
        "Partition, or several separated by commas.", common=True, values="partitions"
    )
    qos: OptionValue | None = described("Quality of service.", common=True, values="qos")
    reservation: OptionValue | None = described("Reservation to use.", values="reservations")
    wckey: OptionValue | None = described("Workload characterization key.")
    comment: OptionValue | None = described("Comment; some sites use it for accounting.")
    nodes: Count | None = described("Number of nodes.", common=True)
    ntasks: Count | None = described("Total number of tasks; ntasks-per-node is safer.")
    ntasks_per_node: Count | None = described("Tasks per node.")
    cpus_per_task: Count | None = described("CPUs per task.", common=True)
    gpus: GpuOption | None = described("Total number of GPUs, [type:]count; gpus-per-node is safer.")
    gpus_per_node: GpuOption | None = described("GPUs per node, [type:]count.", common=True)
    gpus_per_task: GpuOption | None = described("GPUs per task, [type:]count; other tasks don't see them.")
    gres: Gres | None = described("Generic resources per node, as gpu:a100:4 or shard:16.")
    mem: Memory | None = described("Memory per node; 0 is all of it.", common=True)
    mem_per_cpu: Memory | None = described("Memory per CPU.")
    mem_per_gpu: Memory | None = described("Memory per GPU.")
    tmp: Memory | None = described("Local disk per node.")
    exclusive: bool | None = described("Whole nodes, not shared with other jobs.")
    constraint: OptionValue | None = described("Features that the nodes must have.", values="features")
    nodelist: OptionValue | None = described("Nodes to run on.")
    exclude: OptionValue | None = described("Nodes not to run on.")
    switches: OptionValue | None = described("Maximum number of leaf switches, count[@time].")
    licenses: OptionValue | None = described("Licenses, name[:count].", values="licenses")
    distribution: OptionValue | None = described("How tasks are distributed over nodes.")
    hint: OptionValue | None = described("Use of cores and threads, as nomultithread.")
    time: TimeLimit | None = described("Time limit, HH:MM:SS or D-HH:MM:SS.", common=True)
    time_min: Duration | None = described("Shortest time limit that backfill may choose.")
    begin: OptionValue | None = described("Earliest start.")
    deadline: OptionValue | None = described("Latest end: the job is removed if it can't end by then.")
    nice: int | None = described("Lower the priority by this number.")
    array: OptionValue | None = described("Job array, as 0-9%2.", common=True)
    dependency: OptionValue | None = described("Other jobs to wait for, as afterok:123.")
    requeue: Requeue | bool | None = described(
        "Whether Slurm may requeue the job; expedite: at once and before all others (Slurm 25.11).",
        flag="--requeue/--no-requeue",
    )
    signal: OptionValue | None = described("Signal before the time limit, as B:USR1@300.")
    mail_type: OptionValue | None = described("Events to mail, as END,FAIL.")
    mail_user: OptionValue | None = described("Who gets the mails.")
    export: OptionValue | None = described("Variables of the submitting shell that the job gets.")


# The key of each option with its long name: "cpus_per_task" -> "cpus-per-task".
LONG_NAMES = {option.name: option.name.replace("_", "-") for option in fields(SbatchOptions)}
NAMES = tuple(LONG_NAMES)
# Long name -> kind of names in the profile that completion and editors offer: "qos" -> "qos".
_VALUES = {option.name: option.metadata.get("values") for option in fields(SbatchOptions)}
VALUES = {LONG_NAMES[name]: values for name, values in _VALUES.items() if values}
GPU_OPTIONS = tuple(name.replace("-", "_") for name in resource_request.GPU_OPTIONS)
# In a directive, sbatch ignores these options or obeys them in a way that no author of a job wants.
NOT_IN_A_SCRIPT = ("help", "parsable", "quiet", "test-only", "usage", "verbose", "version", "wait", "wrap")


class ExtraOption(Text):
    """The long name of an option of sbatch that is not in `SbatchOptions`."""

    @classmethod
    def parse(cls, text: str) -> "ExtraOption":
        """Return the name; refuse options that can't be directives. Names of plugins may have underscores."""
        if re.fullmatch("[a-z][a-z0-9_-]*[a-z0-9]", Text.parse(text)) is None:
            raise RefusedValueError(f"'{text}' is not the long name of an option", "write it without dashes")
        if text in NOT_IN_A_SCRIPT:
            raise RefusedValueError(f"--{text} does not belong in a script", "give it to sbatch itself")
        if (key := text.replace("-", "_")) in NAMES:
            raise RefusedValueError(f"--{text} is an option that sbatchgen knows", f"set options.{key}")
        return cls(text)
