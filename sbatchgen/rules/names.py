"""Variables that a script reads by a wrong name or does not pass on.

Sources: sbatch(1) and srun(1) of Slurm 20.11 to 26.05, INPUT and OUTPUT ENVIRONMENT VARIABLES; qsub(1B) of
PBS and qsub(1) of Grid Engine for theirs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from itertools import islice

from sbatchgen.errors import nearest
from sbatchgen.job.script import JobScript
from sbatchgen.rules.rule import Hit, Rules

RULES: Rules[JobScript] = Rules()

# Without SLURM_ before them: what a batch script or a task of srun finds, in one release or another.
_OF_SLURM = """
ARRAY_JOB_ID ARRAY_TASK_COUNT ARRAY_TASK_ID ARRAY_TASK_MAX ARRAY_TASK_MIN ARRAY_TASK_STEP CLUSTER_NAME
CLUSTERS CONF CONTAINER CONTAINER_ID CPUS_ON_NODE CPUS_PER_GPU CPUS_PER_TASK CPU_BIND CPU_BIND_LIST
CPU_BIND_TYPE CPU_BIND_VERBOSE CPU_FREQ_REQ DEBUG DISTRIBUTION DIST_PLANESIZE DIST_LLLP EXPORT_ENV EXACT
EXCLUSIVE GPUS GPUS_ON_NODE GPUS_PER_NODE GPUS_PER_SOCKET GPUS_PER_TASK GPU_BIND GPU_FREQ GTIDS GRES
HET_SIZE HINT HOSTFILE IMMEDIATE JOBID JOB_ACCOUNT JOB_CONSTRAINTS JOB_CPUS_PER_NODE JOB_DEPENDENCY
JOB_END_TIME JOB_EXIT_CODE JOB_GID JOB_GPUS JOB_GROUP JOB_ID JOB_LICENSES JOB_NAME JOB_NODELIST
JOB_NUM_NODES JOB_PARTITION JOB_QOS JOB_RESERVATION JOB_RESTART_COUNT JOB_SEGMENT_SIZE JOB_START_TIME
JOB_STDERR JOB_STDIN JOB_STDOUT JOB_UID JOB_USER JOB_CPUS_PER_NODE_PACK_GROUP KILL_BAD_EXIT
LAUNCH_NODE_IPADDR LOCALID MEM_BIND MEM_BIND_LIST MEM_BIND_PREFER MEM_BIND_SORT MEM_BIND_TYPE
MEM_BIND_VERBOSE MEM_PER_CPU MEM_PER_GPU MEM_PER_NODE MPI_TYPE NETWORK NNODES NODEID NODELIST NODE_ALIASES
NPROCS NTASKS NTASKS_PER_CORE NTASKS_PER_GPU NTASKS_PER_NODE NTASKS_PER_SOCKET OPEN_MODE OVERCOMMIT OVERLAP
PACK_SIZE PARTITION PRIO_PROCESS PROCID PROFILE PTY_PORT PTY_WIN_COL PTY_WIN_ROW QOS RESERVATION
RESTART_COUNT RESV_PORTS SCRIPT_CONTEXT SHARDS_ON_NODE SRUN_COMM_HOST SRUN_COMM_PORT STEPID STEPMGR
STEP_GPUS STEP_ID STEP_LAUNCHER_PORT STEP_NODELIST STEP_NUM_NODES STEP_NUM_TASKS STEP_RESV_PORTS
STEP_TASKS_PER_NODE SUBMIT_DIR SUBMIT_HOST TASKS_PER_NODE TASK_PID THREADS_PER_CORE THREAD_SPEC CORE_SPEC
TIMELIMIT TIME_LIMIT TOPOLOGY_ADDR TOPOLOGY_ADDR_PATTERN TRES_BIND TRES_FREQ TRES_PER_TASK UMASK
UNBUFFEREDIO USER WAIT WCKEY WORKING_CLUSTER ACCOUNT EXIT_ERROR ERROR_MODE STDOUTMODE
STDERRMODE STDINMODE REMOTE_CWD TASK_EPILOG TASK_PROLOG COMPRESS JOB_COMMENT
"""
OF_SLURM = frozenset(f"SLURM_{name}" for name in _OF_SLURM.split())
NAMES_MAX = 200  # of a script, which are compared with Slurm's
LONGEST = 60
OF_SITES = frozenset(("SLURMTMPDIR", "SLURMNODEFILE", "SLURMWORKINGDIR", "SLURMSCRATCH", "SLURMSCRATCHDIR"))
_GROUPED = re.compile(r"_(?:HET|PACK)_GROUP_\d+$")

# Variables of other schedulers, and what Slurm has in their place.
OF_OTHERS = {
    "PBS_O_WORKDIR": "SLURM_SUBMIT_DIR",
    "PBS_O_HOST": "SLURM_SUBMIT_HOST",
    "PBS_JOBID": "SLURM_JOB_ID",
    "PBS_JOBNAME": "SLURM_JOB_NAME",
    "PBS_ARRAYID": "SLURM_ARRAY_TASK_ID",
    "PBS_ARRAY_INDEX": "SLURM_ARRAY_TASK_ID",
    "PBS_NODEFILE": "SLURM_JOB_NODELIST",
    "PBS_NP": "SLURM_NTASKS",
    "PBS_NUM_PPN": "SLURM_CPUS_ON_NODE",
    "PBS_NUM_NODES": "SLURM_NNODES",
    "PBS_QUEUE": "SLURM_JOB_PARTITION",
    "SGE_TASK_ID": "SLURM_ARRAY_TASK_ID",
    "SGE_O_WORKDIR": "SLURM_SUBMIT_DIR",
    "NSLOTS": "SLURM_CPUS_PER_TASK",
    "PE_HOSTFILE": "SLURM_JOB_NODELIST",
    "LSB_JOBID": "SLURM_JOB_ID",
    "LSB_JOBINDEX": "SLURM_ARRAY_TASK_ID",
    "LSB_DJOB_NUMPROC": "SLURM_NTASKS",
    "LS_SUBCWD": "SLURM_SUBMIT_DIR",
}

# What other processes read, and what a script has to export itself.
_READ_BY_CHILDREN = """
MASTER_ADDR MASTER_PORT WORLD_SIZE OMP_NUM_THREADS MKL_NUM_THREADS OPENBLAS_NUM_THREADS NUMEXPR_NUM_THREADS
OMP_PROC_BIND OMP_PLACES NCCL_DEBUG NCCL_SOCKET_IFNAME NCCL_IB_DISABLE NCCL_P2P_DISABLE HF_HOME TORCH_HOME
TRANSFORMERS_CACHE HF_DATASETS_CACHE WANDB_MODE WANDB_API_KEY TOKENIZERS_PARALLELISM PYTHONUNBUFFERED
TF_CPP_MIN_LOG_LEVEL XLA_FLAGS JULIA_NUM_THREADS KMP_AFFINITY
"""
READ_BY_CHILDREN = frozenset(_READ_BY_CHILDREN.split())


@RULES.add("SB421", "warning", "a variable that Slurm never sets")
def _misnamed(script: JobScript) -> Iterator[Hit]:
    uses = script.first_uses(lambda name: name.startswith("SLURM"))
    for use in islice(uses, NAMES_MAX):
        if meant := _meant(use.name):
            yield Hit(script.at_start(use), f"Slurm does not set {use.name}: it is empty", meant)


@lru_cache(maxsize=1024)
def _meant(name: str) -> str:
    """What to write instead of a name that Slurm does not have; "" if Slurm has it, or a site may have."""
    if (
        len(name) > LONGEST
        or name in OF_SLURM
        or name.replace("_", "") in OF_SITES
        or _GROUPED.sub("", name) in OF_SLURM
    ):
        return ""
    for end in range(len(name) - 1, len("SLURM_"), -1):
        if name[end] == "_" and name[:end] in OF_SLURM:
            rest = name[end:]
            if rest == "_":  # glued to what follows
                return f"${{{name[:end]}}}{rest}"
            break
    swapped = sorted(known for known in OF_SLURM if sorted(known.split("_")) == sorted(name.split("_")))
    near = swapped[0] if swapped else nearest(name, sorted(OF_SLURM), 0.87)
    return f"${near}" if near else ""


@RULES.add("SB423", "warning", "a variable that is set but not exported")
def _unexported(script: JobScript) -> Iterator[Hit]:
    body = script.body
    if any(setting.name == "allexport" and setting.on for setting in body.settings):
        return
    exported = {assignment.name for assignment in body.sets if assignment.exported}
    exported |= {word for command in script.named("export", "declare") for word in command.arguments}
    used = {use.name for use in body.uses}
    if not re.search(r"(?m)^[^#\n]*(?:python|torch|\btrain)", script.text) or any(
        each.launcher for each in script.launches
    ):
        used |= {"MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE"}  # which MPI does not read, and launchers set
    started = [launch.command.at for launch in script.launches if not launch.is_helper]
    for assignment in body.sets:
        silent = (
            assignment.exported
            or assignment.prefix
            or assignment.by
            or assignment.context.function
            or assignment.context.substitution
        )
        if (
            assignment.name not in READ_BY_CHILDREN
            or silent
            or assignment.name in exported
            or assignment.name in used
        ):
            continue
        if started and started[-1] > assignment.at:
            exported.add(assignment.name)
            what = f"{assignment.name} is not exported: the programs that the script starts do not see it"
            yield Hit(
                script.at_start(assignment), what, f"export {assignment.name}={_shown(assignment.value)}"
            )


def _shown(value: str | None) -> str:
    return value if value and re.fullmatch(r"[\w./:-]{1,40}", value) else "..."


@RULES.add("SB424", "warning", "a variable of another scheduler")
def _of_others(script: JobScript) -> Iterator[Hit]:
    if _OTHERS & {word.lower() for word in script.tested} or any(map(OF_OTHERS.get, script.tested)):
        return  # the script is for several schedulers
    for use in script.first_uses(OF_OTHERS.get):
        if use.name in script.tested:
            continue
        what = f"Slurm does not set {use.name}: it is empty"
        if script.lines[use.line - 1].lstrip().startswith("cd "):
            what += ", so cd goes to the home folder"
        yield Hit(script.at_start(use), what, f"${OF_OTHERS[use.name]}")


_OTHERS = frozenset(("pbs", "torque", "sge", "uge", "lsf"))


@RULES.add("SB425", "warning", "a WORLD_SIZE that is not the number of processes")
def _world_size(script: JobScript) -> Iterator[Hit]:
    for launch in script.trainings:
        tasks = launch.tasks
        if not launch.is_native or not tasks:
            continue
        sizes = [
            assignment
            for assignment in script.body.sets
            if assignment.name == "WORLD_SIZE"
            and (assignment in launch.command.prefix if assignment.prefix else assignment.exported)
            and assignment.at < launch.command.end
        ]
        value = (sizes[-1].value or "") if sizes else ""
        if re.fullmatch(r"\d{1,5}", value) and int(value) != tasks and not sizes[-1].context.branch:
            what = f"WORLD_SIZE={value}, but srun starts {tasks} processes: they do not form one group"
            what += ": they wait for the others" if int(value) > tasks else ""
            yield Hit(script.at_start(sizes[-1]), what, "WORLD_SIZE=$SLURM_NTASKS")
        return
