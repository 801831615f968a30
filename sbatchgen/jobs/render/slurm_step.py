"""The Slurm step of a training: srun with the options that follow from the job, or another starter."""

from collections.abc import Iterator

from sbatchgen.base import quoting
from sbatchgen.jobs.resolved.resolved_job import GPU_CPUS, ResolvedJob, Share


def step_lines(resolved: ResolvedJob) -> Iterator[str]:
    """Yield the lines of srun with its options, or of another starter; nothing without Slurm."""
    if not resolved.slurm:
        return
    if resolved.starter.name != "srun":
        yield resolved.starter.command
        return
    derived = ((name, word) for name, word in _derived_options(resolved) if name not in resolved.step)
    options = [f"--{name}={word}" if word else f"--{name}" for name, word in derived]
    if resolved.share:
        yield from quoting.packed(["srun", *options])
    else:
        yield " ".join(["srun", *options])
    step = dict(resolved.step)
    if step.get("cpu-bind") == GPU_CPUS:  # "false" if tasks have no GPUs of their own
        masks = ",".join(cpus.mask for cpus in resolved.partition.gpu_cpus)
        step["cpu-bind"] = f"mask_cpu:{masks}" if resolved.binds_to_gpu_cpus else "false"
    texts = {name: "" if text == "true" else f"={quoting.value(text)}" for name, text in step.items()}
    yield from quoting.packed(f"--{name}{text}" for name, text in texts.items() if step[name] != "false")


def _derived_options(resolved: ResolvedJob) -> Iterator[tuple[str, str]]:
    """Yield srun's options that follow from the resolved job, each with its value as a word of bash."""
    if share := resolved.share:
        yield from _share_options(share)
    elif resolved.options.ntasks_per_node is None:  # the profile's `omit` may remove it from the directives
        yield "ntasks-per-node", str(resolved.nproc_per_node if resolved.launcher == "srun" else 1)
    if resolved.options.cpus_per_task is not None and not share:
        yield "cpus-per-task", '"$SLURM_CPUS_PER_TASK"'  # srun of Slurm 22.05 and 23.02 does not inherit it
    if several_tasks(resolved):
        # Rank 0 must be on the first node, because MASTER_ADDR names that node. Newer releases of Slurm may
        # order the ranks by topology instead. If the job sets a distribution, srun reads SLURM_DISTRIBUTION,
        # and rank 0 is also on the first node.
        if not resolved.options.distribution:
            yield "distribution", "block"
        # A rank may upload, evaluate or remove its container long after the other ranks have ended with 0.
        yield "kill-on-bad-exit", "1"
        yield "wait", "0"
    if resolved.launcher == "srun" and resolved.options.gpus_per_task and resolved.gpu_visibility == "node":
        yield "gpu-bind", "none"  # by default a rank would see only its own GPU, and NCCL not the others


def _share_options(share: Share) -> Iterator[tuple[str, str]]:
    """Yield srun's options for a program that shares the job's nodes, each with its value as a word of bash.

    With --exact, steps run at the same time if each step names its memory. With --overlap, they would get the
    same GPUs.
    """
    yield "job-name", f'"{share.own_word}"' if share.replicas else share.name
    yield "nodelist", f'"${share.name.variable}_HOSTS"'
    yield "nodes", str(share.nodes)
    yield "ntasks", str(share.nodes * share.tasks)
    if share.tasks > 1:
        yield "ntasks-per-node", str(share.tasks)
    if share.cpus:
        yield "cpus-per-task", str(max(1, share.cpus // share.tasks))
    if share.gpus_option:
        yield share.gpus_option, f"gpu:{share.gpus}" if share.gpus_option == "gres" else str(share.gpus)
    if share.beside:
        yield "overlap", ""  # the step uses the GPUs and CPUs of the program that it runs beside
    elif share.shared:
        yield "exact", ""
    if share.beside or share.shared:
        yield "mem", "0"
    if not share.main:  # a file for each task, because srun waits until every process has closed its output
        yield "output", f'"${{RUN_DIR//%/%%}}/programs/{share.own_word}.%t.log"'
        yield "open-mode", "append"


def several_tasks(resolved: ResolvedJob) -> bool:
    """Return whether the Slurm step of the training has more than one task."""
    return resolved.nodes > 1 or resolved.launcher == "srun"


def watches_step_ends(resolved: ResolvedJob) -> bool:
    """Return whether training/step_end.py watches the end of Slurm steps with several tasks."""
    jobs = [program.job for program in resolved.programs] or [resolved]
    return resolved.slurm and any(several_tasks(job) and job.starter.name == "srun" for job in jobs)
