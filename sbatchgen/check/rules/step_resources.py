"""Whether a step takes all CPUs or GPUs of its job's nodes, so that other steps have to wait.

Sources: srun(1) of Slurm 22.05 and the release notes up to 26.05; steps on Slurm 22.05 and 26.05.
"""

from __future__ import annotations

from sbatchgen.check.script.launches import Launch
from sbatchgen.check.script.resource_request import GPU_OPTIONS
from sbatchgen.check.script.script import JobScript

# Options with which a step shares its nodes, uses other nodes, or becomes a job of its own.
_SHARING_OPTION_NAMES = "exact overlap exclusive cpus-per-task nodelist relative het-group partition account"
SHARING_OPTIONS = frozenset(_SHARING_OPTION_NAMES.split())


def takes_all_cpus(launch: Launch, script: JobScript) -> bool:
    """Return whether a step takes all CPUs of the job's nodes."""
    step = launch.step
    if step is None or SHARING_OPTIONS & step.options.keys() or _is_exact(launch, script):
        return False
    nodes = launch.nodes
    return nodes >= script.resources.nodes if nodes is not None else "nodes" not in step.options


def takes_all_gpus(launch: Launch, script: JobScript) -> bool:
    """Return whether a step takes all GPUs of the job's nodes: with --exact, but no option for its GPUs."""
    step, job = launch.step, script.resources
    if step is None or "exact" not in step.options or job.gpus_per_task or not job.gpu_count:
        return False
    # With such an option, the step may take fewer GPUs.
    limiting_options = (SHARING_OPTIONS - {"exact", "cpus-per-task"}) | {*GPU_OPTIONS}
    has_all_nodes = launch.nodes is None or launch.nodes >= job.nodes
    return has_all_nodes and not limiting_options & step.options.keys()


def _is_exact(launch: Launch, script: JobScript) -> bool:
    """Return whether a step takes only its own CPUs, as if --exact were given.

    From 23.11 on, srun reads SLURM_CPUS_PER_TASK as --cpus-per-task, which implies --exact. Source: two such
    steps wait for each other on Slurm 22.05, and run at the same time on 26.05.
    """
    job = script.resources
    if launch.step is None or script.release < "23.11" or not job.cpus_per_task:
        return False
    has_gpus = any(name in launch.step.options for name in GPU_OPTIONS)
    all_tasks = job.ntasks or job.nodes * (job.ntasks_per_node or 1)
    return (has_gpus or not job.gpu_option) and (launch.tasks is None or launch.tasks < all_tasks)
