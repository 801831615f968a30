"""What each option of sbatch means, in a line, and the words that some of them take."""

from __future__ import annotations

from functools import cache

from sbatchgen.inputs.options import LONG_NAMES, SbatchOptions
from sbatchgen.keys import keys_of
from sbatchgen.sbatch.values import MAIL_EVENTS

_DISTRIBUTIONS = "block cyclic plane= arbitrary block:block block:cyclic cyclic:cyclic"
_GRES_FLAGS = "disable-binding enforce-binding one-task-per-sharing multiple-tasks-per-sharing"
WORDS = {
    "distribution": tuple(_DISTRIBUTIONS.split()),
    "exclusive": ("user", "mcs", "topo"),
    "export": ("ALL", "NIL", "NONE"),
    "gpu-bind": ("closest", "none", "single:1", "verbose,"),
    "gres-flags": tuple(_GRES_FLAGS.split()),
    "hint": ("compute_bound", "memory_bound", "multithread", "nomultithread"),
    "kill-on-invalid-dep": ("no", "yes"),
    "mail-type": tuple(sorted(MAIL_EVENTS)),
    "open-mode": ("append", "truncate"),
    "wait-all-nodes": ("0", "1"),
}
# Options that a job's `options` do not have.
_OTHERS = """\
acctg-freq            How often Slurm samples what the job uses, as task=30.
autocomplete          Prints the completion of a shell.
batch                 Features of the node that runs the script itself.
bb                    What the job wants of a burst buffer.
bbf                   File that says what the job wants of a burst buffer.
cluster               Clusters to submit to; the one with the earliest start gets the job.
cluster-constraint    Features of the clusters to submit to.
clusters              Clusters to submit to; the one with the earliest start gets the job.
consolidate-segments  Place the segments close to each other.
container             Folder of an OCI bundle that the script runs in.
container-id          Name of the OCI container.
container-type        Kind of the OCI container.
context               SELinux context of the job.
contiguous            Nodes that follow each other.
core-spec             Cores of each node that are left to the system.
cores-per-socket      Least cores of a node's sockets.
cpu-freq              Frequency of the CPUs for steps of srun.
cpus-per-gpu          CPUs per GPU.
delay-boot            How long to wait for nodes that need no reboot.
export-file           File or descriptor with the variables that the job gets.
external              A job without a script, for processes that Slurm does not start.
extra                 Text for a site's plugins.
extra-node-info       Sockets, cores and threads of the nodes, sockets[:cores[:threads]].
get-user-env          Give the job the variables of the user's login shell.
gid                   Group that the job runs as; for root.
gpu-bind              Which GPUs each task of a step sees.
gpu-freq              Frequency of the GPUs.
gpus-per-socket       GPUs per socket, [type:]count.
gres-flags            How generic resources are bound to tasks.
help                  Prints the options; on the command line only.
hold                  Submit the job held: it waits until it is released.
ignore-pbs            Ignore #PBS and #BSUB lines.
input                 File for standard input of the script.
kill-on-invalid-dep   Whether a job whose dependency can never be met is removed.
mcs-label             Label that decides who may share nodes with the job.
mem-bind              How tasks are bound to memory.
mem-update            Lower the job's memory after its start.
mincpus               Least CPUs of a node.
network               What the job wants of the network; its meaning is the site's.
no-kill               Continue when a node fails.
no-requeue            Never requeue the job.
nodefile              File with the names of the nodes to run on.
ntasks-per-core       Most tasks of a core.
ntasks-per-gpu        Tasks per GPU.
ntasks-per-socket     Most tasks of a socket.
ntasks-per-tres       Tasks per GPU; for internal use.
oom-kill-step         Whether a task that is out of memory ends its whole step.
overcommit            Share CPUs among tasks of the job: more tasks than CPUs.
oversubscribe         Share nodes or CPUs with other jobs.
parsable              Print only the number of the job.
power                 How the job's power is managed.
prefer                Features that the nodes should have, if such nodes are free.
priority              Priority of the job; for operators.
profile               What Slurm records of the job's use: energy, task, lustre, network or all.
propagate             Limits of the submitting shell (ulimit) that the job gets.
quiet                 Print errors only; on the command line only.
reboot                Reboot the nodes before the job starts.
resources             Resources that belong together on a node.
resv-ports            Reserve ports for each node of the job.
segment               Nodes of a block that are placed together (topology block).
sockets-per-node      Least sockets of a node.
spread-job            Spread the job over as many nodes as possible.
spread-segments       Place the segments in different blocks.
stepmgr               Manage steps on the job's first node, not in slurmctld.
tasks-per-node        The same as --ntasks-per-node.
test-only             Say when the job would start, and submit nothing.
thread-spec           Threads of each node that are left to the system.
threads-per-core      Threads of a core that the job uses.
tres-bind             How tasks are bound to generic resources.
tres-per-task         Resources per task, as cpu=4,gres/gpu=1.
uid                   User that the job runs as; for root.
usage                 Prints the options in short; on the command line only.
use-min-nodes         Of a range of nodes, use the fewest.
verbose               Print more; on the command line only.
version               Prints the release; on the command line only.
wait                  Wait until the job ends; the exit status is the job's.
wait-all-nodes        Whether to wait with the script until all nodes are ready.
wrap                  Command to run instead of a script; on the command line only."""


@cache
def meanings() -> dict[str, str]:
    """Return what each option of sbatch means, by its long name."""
    known = {LONG_NAMES[name]: key.metadata["help"] for name, key in keys_of(SbatchOptions).items()}
    rows = (row.split(maxsplit=1) for row in _OTHERS.split("\n"))
    return known | {name: text for name, text in rows}  # noqa: C416
