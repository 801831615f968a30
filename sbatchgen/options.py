"""Every sbatch option that sbatchgen knows, once: its YAML key, its flag, its directive, its help.

The order of the fields is the order in the script. What is not here passes through `extra_options`.
Names and meanings: sbatch(1), Slurm 20.11 to 26.05.
"""

from dataclasses import dataclass, field, fields
from typing import Any

from sbatchgen.units import Duration, Gres, JobName, Memory, ShellPath, Text


def _opt(help_text: str) -> Any:
    return field(default=None, metadata={"help": help_text})


@dataclass(kw_only=True, eq=False, repr=False)
class SbatchOptions:
    """Slurm's options of a job; None is "not set", and gives no directive."""

    job_name: JobName | None = _opt("Name shown by squeue; also names the run folder.")
    output: ShellPath | None = _opt("Log file; %x is the job's name, %j its id.")
    error: ShellPath | None = _opt("Separate file for stderr; by default it joins the log.")
    open_mode: Text | None = _opt("append or truncate: what a requeue does to the log.")
    chdir: ShellPath | None = _opt("Working folder of the job.")
    account: Text | None = _opt("Account that is charged.")
    partition: Text | None = _opt("Partition, or several separated by commas.")
    qos: Text | None = _opt("Quality of service.")
    reservation: Text | None = _opt("Reservation to use.")
    wckey: Text | None = _opt("Workload characterization key.")
    comment: Text | None = _opt("Comment; some sites charge by it.")
    nodes: int | None = _opt("Number of nodes.")
    ntasks: int | None = _opt("Tasks in all; ntasks-per-node is safer.")
    ntasks_per_node: int | None = _opt("Tasks on each node.")
    cpus_per_task: int | None = _opt("CPUs for each task.")
    gpus: Text | None = _opt("GPUs in all, [type:]count; gpus-per-node is safer.")
    gpus_per_node: Text | None = _opt("GPUs on each node, [type:]count.")
    gpus_per_task: Text | None = _opt("GPUs for each task, [type:]count; hides them from other tasks.")
    gres: Gres | None = _opt("Generic resources on each node, as gpu:a100:4 or shard:16.")
    mem: Memory | None = _opt("Memory on each node; 0 is all of it.")
    mem_per_cpu: Memory | None = _opt("Memory for each CPU.")
    mem_per_gpu: Memory | None = _opt("Memory for each GPU.")
    tmp: Memory | None = _opt("Local disk on each node.")
    exclusive: bool | None = _opt("Whole nodes, shared with no other job.")
    constraint: Text | None = _opt("Features that the nodes must have.")
    nodelist: Text | None = _opt("Nodes to run on.")
    exclude: Text | None = _opt("Nodes not to run on.")
    switches: Text | None = _opt("Most leaf switches, count[@time].")
    licenses: Text | None = _opt("Licenses, name[:count].")
    distribution: Text | None = _opt("How tasks are laid over nodes.")
    hint: Text | None = _opt("Use of cores and threads, as nomultithread.")
    time: Duration | None = _opt("Time limit, HH:MM:SS or D-HH:MM:SS.")
    time_min: Duration | None = _opt("Shortest time limit that backfill may choose.")
    begin: Text | None = _opt("Earliest start.")
    deadline: Text | None = _opt("Latest end.")
    nice: int | None = _opt("Lower the priority by this much.")
    array: Text | None = _opt("Array of jobs, as 0-9%2.")
    dependency: Text | None = _opt("Other jobs to wait for, as afterok:123.")
    requeue: bool | None = _opt("Whether Slurm may start the job again.")
    signal: Text | None = _opt("Signal before the time limit, as B:USR1@300.")
    mail_type: Text | None = _opt("Events to mail, as END,FAIL.")
    mail_user: Text | None = _opt("Where to mail.")
    export: Text | None = _opt("Variables of the submitting shell that the job gets.")


NAMES = tuple(option.name for option in fields(SbatchOptions))
GPU_OPTIONS = ("gpus", "gpus_per_node", "gpus_per_task", "gres")
POSITIVE = ("nodes", "ntasks", "ntasks_per_node", "cpus_per_task")
