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
    resources = script.resources
    cpus_per_task = resources.cpus_per_task or 1
    requested = resources.ntasks or resources.nodes * (resources.ntasks_per_node or 0)
    # With --cpus-per-task and no number of tasks, sbatch counts one task for each node.
    is_one_per_node = cpus_per_task > 1 and resources.ntasks_per_gpu is None
    tasks = requested or (resources.nodes if is_one_per_node else 0)
    launches = [launch for launch in script.launches if launch.mpi]
    for launch in launches if tasks and "exclusive" not in resources else ():
        mpi = launch.mpi
        if not mpi or launch.step:
            continue
        roles = PROGRAMS[mpi.name].roles
        option = next(filter(None, map(mpi.option, roles["PROCESSES"])), None)
        count = launch.option_number(option, mpi)
        # --hostfile, --oversubscribe and the like allow other numbers than that of the job's tasks.
        if not option or not count or {*roles["PLACE"]} & mpi.options.keys():
            continue
        fix = f'{mpi.name} -np "$SLURM_NTASKS"'
        # Open MPI refuses more processes than tasks. Other MPIs may start all on the CPUs of --cpus-per-task.
        severity: Severity | None = "info" if count > tasks and cpus_per_task > 1 else None
        if count > tasks:
            what = f"{mpi.name} starts {count} processes, but the job has {counted(tasks, 'task')}: "
            what += "Open MPI ends for lack of slots"
            fix = f"--ntasks={count}, and --cpus-per-task for the threads of each" if severity else fix
        elif 2 * count <= requested and len(launches) == 1 and _is_only_work(script, launch):
            what = f"{mpi.name} starts {count} processes, but the job has {tasks} tasks: "
            what += f"{tasks - count} stay idle"
        else:
            continue
        yield Hit(script.at_option_of(option), what, fix, severity)


# A script with such a text may need idle tasks, for the CPUs of its threads or for their memory.
_SPARE_TASKS_SIGN = re.compile(r"(?i)threads|\bOMP_|parallel|--mem")


def _is_only_work(script: JobScript, launch: Launch) -> bool:
    """Return whether a launch runs once, and nothing else in its job seems to need the other tasks."""
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
    if not tasks or not per_node or tasks > nodes or per_node < 2 or resources.gpu_count not in (0, per_node):
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

    srun then starts as many tasks as fit into the CPUs of the nodes.
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
        has_tasks = step is None or _TASK_OPTIONS & step.options.keys()
        if step and cpus and not has_tasks and 2 * cpus <= min(node_cpus or [LEAST_CPUS]):
            what = f"srun with --cpus-per-task={cpus} and no number of tasks starts {launch.program.name} as "
            what += "often as that fits into the CPUs of the node, and the job has them all"
            fix = "srun --ntasks=1, or --ntasks-per-node=1 in a directive"
            yield Hit(script.at_word(step.words[0]), what, fix)
            return


# Options that give the number of tasks.
_TASK_OPTIONS = frozenset(
    ("ntasks", "ntasks-per-node", "ntasks-per-gpu", "ntasks-per-core", "ntasks-per-socket")
)

LEAST_CPUS = 32  # the assumed CPUs of a whole node if the profile does not give the number


@RULES.add(
    "SB349",
    "warning",
    "ranks that a trainer does not get",
    source="srun(1)",
    words=("srun",),
    report="https://github.com/NVlabs/Long-RL/issues/20",
)
def _missing_ranks(script: JobScript) -> Iterator[Hit]:
    native = [launch for launch in script.trainings if launch.runs_rank_per_task and (launch.tasks or 0) > 1]
    if not native or script.folder is None or script.may_start_hidden_programs or script.named("cd"):
        return
    if _RANK_NAME.search(script.text):
        return
    for launch in native:
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


# A script with such a text gives its tasks their ranks. Each alternative begins with a literal, for which the
# search is fast.
_RANK_NAME = re.compile(r"RANK\b(?<!\wRANK)|PROCID")
