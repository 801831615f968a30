"""Rules about a number of tasks that does not fit the processes of MPI, the ranks of a trainer or the CPUs.

Sources: srun(1), sbatch(1) and the manual pages of Open MPI.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from sbatchgen.base.finding import Severity
from sbatchgen.base.quoting import counted
from sbatchgen.check.executables.program import PROGRAMS
from sbatchgen.check.rules.rule import Hit, Rules
from sbatchgen.check.script.launches import MPI_WORDS, Launch
from sbatchgen.check.script.script import JobScript

RULES: Rules[JobScript] = Rules()


@RULES.add(
    "SB313",
    "warning",
    "mpirun with other processes than the job has tasks",
    source="srun(1)",
    words=MPI_WORDS,
)
def _mpi_tasks(script: JobScript) -> Iterator[Hit]:
    """Find `mpirun -np 8` in a job with another number of tasks, such as --ntasks=4."""
    resources = script.resources
    cpus_per_task = resources.cpus_per_task or 1
    requested = resources.ntasks or resources.nodes * (resources.ntasks_per_node or 0)
    # With --cpus-per-task and no number of tasks, sbatch counts one task for each node.
    counts_nodes = cpus_per_task > 1 and resources.ntasks_per_gpu is None
    tasks = requested or (resources.nodes if counts_nodes else 0)
    launches = [launch for launch in script.launches if launch.mpi]
    if not tasks or "exclusive" in resources:
        return
    for launch in launches:
        mpi = launch.mpi
        if not mpi or launch.step:
            continue
        roles = PROGRAMS[mpi.name].roles
        option = next(filter(None, map(mpi.option, roles["PROCESSES"])), None)
        processes = launch.option_number(option, mpi)
        # With an option such as --hostfile or --oversubscribe, mpirun may start any number of processes.
        allows_any_number = {*roles["PLACE"]} & mpi.options.keys()
        if not option or not processes or allows_any_number:
            continue
        fix = f'{mpi.name} -np "$SLURM_NTASKS"'
        # Open MPI refuses more processes than tasks. Other MPIs may start all on the CPUs of --cpus-per-task.
        severity: Severity | None = "info" if processes > tasks and cpus_per_task > 1 else None
        if processes > tasks:
            what = f"{mpi.name} starts {processes} processes, but the job has {counted(tasks, 'task')}: "
            what += "Open MPI ends for lack of slots"
            fix = f"--ntasks={processes}, and --cpus-per-task for the threads of each" if severity else fix
        elif 2 * processes <= requested and len(launches) == 1 and _is_only_work(script, launch):
            what = f"{mpi.name} starts {processes} processes, but the job has {tasks} tasks: "
            what += f"{tasks - processes} stay idle"
        else:
            continue
        yield Hit(script.at_option_of(option), what, fix, severity)


# In a script with a text such as OMP_NUM_THREADS, tasks without a process may be wanted: their CPUs serve
# threads, and their memory serves the other tasks.
_SPARE_TASKS_SIGN = re.compile(r"(?i)threads|\bOMP_|parallel|--mem")


def _is_only_work(script: JobScript, launch: Launch) -> bool:
    """Return whether a launch runs once, and no other program of the job seems to need the other tasks."""
    context = launch.command.context
    runs_once = context.is_top_level and not context.in_loop and not context.in_background
    has_other_work = script.may_start_hidden_programs or script.steps
    return runs_once and not (_SPARE_TASKS_SIGN.search(script.text) or has_other_work)


@RULES.add(
    "SB346",
    "warning",
    "one process where several are asked for",
    source="sbatch(1)",
    words=("srun",),
    report="https://github.com/Lightning-AI/pytorch-lightning/issues/20391",
)
def _ntasks_below_tasks_per_node(script: JobScript) -> Iterator[Hit]:
    """Find a small --ntasks beside --ntasks-per-node, for which Slurm starts the smaller number of tasks."""
    resources = script.resources
    tasks, per_node, nodes = resources.ntasks, resources.ntasks_per_node, resources.nodes
    if not tasks or not per_node:
        return
    has_gpu_per_task = resources.gpu_count in (0, per_node)
    if tasks > nodes or per_node < 2 or not has_gpu_per_task:
        return
    for launch in script.trainings:
        step = launch.step
        if step and launch.runs_rank_per_task and not {"ntasks", "ntasks-per-node"} & step.options.keys():
            what = (
                f"srun starts {counted(tasks, 'process')} on {counted(nodes, 'node')}, as --ntasks={tasks} "
            )
            what += f"says: Lightning expects {per_node} on each node, as --ntasks-per-node={per_node} says"
            if tasks == 1:
                what += ", and with GPUs Slurm 26.05 refuses the job"
            yield Hit("ntasks", what, f"leave out --ntasks, or --ntasks={nodes * per_node}")
            return


@RULES.add(
    "SB350",
    "warning",
    "a step of as many tasks as fit",
    source="srun(1)",
    words=("srun",),
    report="https://github.com/TUM-DAML/seml/issues/177",
)
def _as_many_as_fit(script: JobScript) -> Iterator[Hit]:
    """Find a step with --cpus-per-task and without a number of tasks, in a job that has whole nodes.

    For `srun --cpus-per-task=4` on a whole node of 32 CPUs, Slurm starts eight tasks.
    """
    if not script.has_own_nodes or _TASK_OPTIONS & script.options.keys():
        return
    inherited_cpus = script.resources.cpus_per_task if script.release >= "23.11" else None
    node_cpus = [
        int(partition.cpus_per_node) for partition in script.partitions.values() if partition.cpus_per_node
    ]
    for launch in script.trainings:
        step = launch.step
        option = step.option("cpus-per-task") if step else None
        cpus = launch.option_number(option, step) if option and step else inherited_cpus
        has_task_count = step is None or _TASK_OPTIONS & step.options.keys()
        several_fit = cpus and 2 * cpus <= min(node_cpus or [_ASSUMED_NODE_CPUS])
        if step and several_fit and not has_task_count:
            what = f"srun with --cpus-per-task={cpus} and no number of tasks starts {launch.program.name} as "
            what += "often as that fits into the CPUs of the node, and the job has them all"
            fix = "srun --ntasks=1, or --ntasks-per-node=1 in a directive"
            yield Hit(script.at_word(step.words[0]), what, fix)
            return


# Options that give the number of tasks.
_TASK_OPTIONS = frozenset(
    ("ntasks", "ntasks-per-node", "ntasks-per-gpu", "ntasks-per-core", "ntasks-per-socket")
)

_ASSUMED_NODE_CPUS = 32  # if the profile does not give the number of CPUs of a node


@RULES.add(
    "SB349",
    "warning",
    "ranks that a trainer does not get",
    source="srun(1)",
    words=("srun",),
    report="https://github.com/NVlabs/Long-RL/issues/20",
)
def _missing_ranks(script: JobScript) -> Iterator[Hit]:
    """Find `srun python train.py` for a trainer that reads RANK and WORLD_SIZE, which srun does not set."""
    launches = [
        launch for launch in script.trainings if launch.runs_rank_per_task and (launch.tasks or 0) > 1
    ]
    if not launches or script.folder is None or script.may_start_hidden_programs or script.named("cd"):
        return
    if _RANK_NAME.search(script.text):
        return
    for launch in launches:
        tasks = launch.tasks
        if script.containers or not launch.program.name.endswith(".py"):
            continue  # the source can't be read, or is not Python
        name, source = launch.program.name, script.source_of(launch)
        if source and source.takes_rank_from_variables:
            what = f"srun starts {name} {tasks} times without RANK and WORLD_SIZE, by which its processes "
            what += "find each other: it fails, or each trains alone"
            fix = f"srun bash -c 'RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID exec python {name}', with "
            fix += "WORLD_SIZE=$SLURM_NTASKS, MASTER_ADDR and MASTER_PORT exported before it"
            yield Hit(script.at_command(launch.command), what, fix)


# A script that names RANK or SLURM_PROCID gives its tasks their ranks. Each alternative of the expression
# begins with a literal, for which the search is fast.
_RANK_NAME = re.compile(r"RANK\b(?<!\wRANK)|PROCID")
