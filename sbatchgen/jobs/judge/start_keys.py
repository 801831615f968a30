"""Rules for the mode, launcher and runtime of a resolved job: SB011 to SB024, and SB043.

Other rules judge the job's request to Slurm, because scripts have such a request as well.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from sbatchgen.base.quoting import counted
from sbatchgen.base.units import VARIABLE
from sbatchgen.check.rules.rule import Hit, Rules
from sbatchgen.check.sbatch.gres import split_gpu_items
from sbatchgen.jobs.inputs.job_file import KEYS_CHOOSING_RUNTIME, RUNTIME_KEYS
from sbatchgen.jobs.inputs.layers import Level
from sbatchgen.jobs.inputs.options import GPU_OPTIONS
from sbatchgen.jobs.judge.job_check import JudgedJob
from sbatchgen.jobs.runtimes import RUNTIMES

RULES: Rules[JudgedJob] = Rules(source="docs/reference/job.md")


@RULES.add("SB011", "error", "several nodes in a mode that uses one")
def _nodes_of_mode(job: JudgedJob) -> Iterator[Hit]:
    resolved = job.resolved
    if not resolved.mode.several_nodes and (nodes := resolved.main.nodes) > 1:
        what = f"mode '{resolved.mode.name}' runs on one node, but {nodes} were asked for"
        ddp_on_cpus = "mode ddp with --gpu-request none --nproc-per-node 1"
        other_mode = "mode ddp" if resolved.mode.uses_gpus else ddp_on_cpus
        yield Hit(job.at("options.nodes"), what, f"use {other_mode}, or --nodes 1")


@RULES.add("SB012", "error", "a number of tasks that does not fit the launcher")
def _tasks_of_launcher(job: JudgedJob) -> Iterator[Hit]:
    resolved, tasks = job.resolved, job.resolved.options.ntasks_per_node
    if resolved.options.ntasks is not None:
        what = "with ntasks alone Slurm may spread the tasks unevenly: 3 and 1 instead of 2 and 2"
        yield Hit(job.at("options.ntasks"), what, "use --nodes and --ntasks-per-node")
    needed_tasks = resolved.nproc_per_node if resolved.launcher == "srun" else 1
    if tasks is not None and tasks != needed_tasks:
        starter = f"launcher {resolved.launcher}" if resolved.launcher else f"mode {resolved.mode.name}"
        what = f"{starter} wants {counted(needed_tasks, 'task')} on a node, but ntasks_per_node is {tasks}"
        yield Hit(job.at("options.ntasks_per_node"), what, f"remove it, or set it to {needed_tasks}")


@RULES.add("SB013", "error", "GPUs that the mode does not use")
def _gpus_of_mode(job: JudgedJob) -> Iterator[Hit]:
    resolved = job.resolved
    gpus_in_gres, _ = split_gpu_items(resolved.options.gres or "")  # "gpu:2,tmp:9" -> "gpu:2"
    options = {**vars(resolved.options), "gres": gpus_in_gres or None}
    gpu_options = [name for name in GPU_OPTIONS if options[name] is not None]
    if resolved.mode.gpus == 1 and (gpus := resolved.main.gpus_per_node) > 1:
        what = f"mode '{resolved.mode.name}' uses one GPU, but {gpus} were asked for"
        yield Hit(
            job.at(f"options.{gpu_options[0]}" if gpu_options else ""), what, "ask for 1, or use mode ddp"
        )
    for name in () if resolved.mode.uses_gpus else gpu_options:
        yield Hit(job.at(f"options.{name}"), f"mode '{resolved.mode.name}' uses no GPU", f"remove {name}")


@RULES.add("SB014", "error", "a number of processes that is not the number of GPUs")
def _process_per_gpu(job: JudgedJob) -> Iterator[Hit]:
    resolved, at = job.resolved, job.at("nproc_per_node")
    processes = resolved.nproc_per_node
    # With processes_per_gpu: 2, a GPU counts as two GPUs, so each process has a GPU of its own.
    gpus = resolved.gpus_per_node * resolved.partition.processes_per_gpu
    if resolved.mode.several_processes and gpus and processes != gpus:
        what = f"{counted(processes, 'process')} on a node with {counted(gpus, 'GPU')}"
        fix = f"set --nproc-per-node {gpus}"
        if processes > gpus:
            yield Hit(at, f"{what}: NCCL needs one for each process", fix)
        elif resolved.is_bundled or not _gives_each_task_several_gpus(job):
            yield Hit(at, f"{what}: the other GPUs stay idle", fix, "warning")


def _gives_each_task_several_gpus(job: JudgedJob) -> bool:
    """Return whether the user gives each task several GPUs, for example for a pipeline of layers."""
    is_from_user = job.resolved.origin("options.gpus_per_task").level > Level.PARTITION
    return is_from_user and sum(count for _, count in job.resources.gpus_per_task or ()) > 1


@RULES.add("SB015", "warning", "DataParallel, where DDP is faster")
def _dataparallel(job: JudgedJob) -> Iterator[Hit]:
    if job.resolved.mode.replicates:
        what = "DataParallel is slower than DDP, even on one node"
        yield Hit(job.at("mode"), what, "use mode ddp; --nodes 1 keeps it on one node")


@RULES.add("SB016", "error", "an unknown number of GPUs per node")
def _gpus_known(job: JudgedJob) -> Iterator[Hit]:
    resolved = job.resolved
    is_known = resolved.gpus_per_node or resolved.shards or resolved.partition.gpus_per_node
    has_process_count = resolved.origin("nproc_per_node").level > Level.DEFAULT
    if resolved.programs and all(program.spec.gpus is not None for program in resolved.programs):
        return
    if resolved.mode.gpus is not None or is_known or has_process_count or not resolved.uses_slurm:
        return
    # SB203 reports a job that fits no partition, and SB201 a partition that the profile does not have.
    fits_no_partition = resolved.fits_no_partition and not resolved.partition_name
    names_unknown_partition = (
        resolved.options.partition and resolved.profile.partitions and not job.partitions
    )
    if not fits_no_partition and not names_unknown_partition:
        what = f"profile '{resolved.profile.name}' does not say how many GPUs a node has"
        why_not = "how many GPUs a node has is not known"
        if resolved.partition.gpus_per_node == 0:
            why_not, what = "no GPUs", f"the nodes of partition '{resolved.partition_name}' have no GPUs"
        fix = "add --gpus-per-node N (or, on CPUs, --nproc-per-node N)"
        yield Hit(job.at(""), what, fix, why_not=why_not)


@RULES.add("SB017", "warning", "shards that the profile does not list")
def _shards_known(job: JudgedJob) -> Iterator[Hit]:
    resolved = job.resolved
    has_facts = resolved.uses_slurm and resolved.profile.partitions
    if resolved.shards and has_facts and not resolved.partition.shards_per_gpu:
        what = f"profile '{resolved.profile.name}' does not say how many shards a GPU of this partition has"
        fix = "set shards_per_gpu in the profile if the cluster has shards"
        yield Hit(job.at("options.gres"), what, fix, why_not="no shards")


@RULES.add("SB018", "error", "a runtime without its image or environment")
def _runtime_complete(job: JudgedJob) -> Iterator[Hit]:
    resolved = job.resolved
    required = resolved.runtime.needs(resolved.facts)
    if required and not resolved.software.get(required.key):
        what = f"runtime '{resolved.runtime.name}' needs {required.what}"
        yield Hit(job.at("runtime"), what, f"add {required.flag}")


@RULES.add("SB043", "error", "an option of another runtime")
def _option_of_runtime(job: JudgedJob) -> Iterator[Hit]:
    resolved = job.resolved
    keys_of_runtime = {key.name for key in resolved.runtime.keys}
    for key in resolved.software.keys() - keys_of_runtime:
        origin, runtime_origin = resolved.origin(key), resolved.origin("runtime")
        least_level = Level.PROJECT if key in KEYS_CHOOSING_RUNTIME else Level.JOB
        if origin.level < max(runtime_origin.level, least_level):
            continue  # a higher layer has chosen another runtime
        runtimes_with_key = [
            name for name, runtime in RUNTIMES.items() if any(other.name == key for other in runtime.keys)
        ]
        # "apptainer, enroot or shifter"
        names = " or ".join(filter(None, (", ".join(runtimes_with_key[:-1]), runtimes_with_key[-1])))
        flag = RUNTIME_KEYS[key].field.metadata.get("flag", f"--{key.replace('_', '-')}")
        what = f"{flag} is for runtime {names}, but the runtime is {resolved.runtime.name}"
        fix = f"add --runtime {names}, or remove {flag}"
        if runtime_origin.level == origin.level:
            required = resolved.runtime.requires
            fix = f"keep one of {origin.where} and {runtime_origin.where}"
            if required and required.key != key:
                fix += f"; runtime {resolved.runtime.name} takes {required.flag}"
        yield Hit(job.at(key), what, fix)


@RULES.add("SB019", "error", "a runtime or launcher that needs Slurm")
def _slurm_needed(job: JudgedJob) -> Iterator[Hit]:
    resolved = job.resolved
    if resolved.runtime.needs_slurm and not resolved.uses_slurm:
        what = f"runtime '{resolved.runtime.name}' {resolved.runtime.needs_slurm}, and there is no Slurm here"
        others = [name for name, runtime in RUNTIMES.items() if not runtime.needs_slurm]
        yield Hit(job.at("runtime"), what, f"use --runtime {', '.join(others[:-1])} or {others[-1]}")
    if resolved.launcher == "srun" and not resolved.uses_slurm:
        what = f"launcher 'srun' needs Slurm, which profile '{resolved.profile.name}' does not have"
        yield Hit(job.at("launcher"), what, "use --launcher torchrun or spawn")
    if resolved.starter.name != "srun" and resolved.runtime.srun_option:
        what = f"runtime '{resolved.runtime.name}' is started by srun, not by {resolved.starter.name}"
        yield Hit(job.at("starter"), what, "write starter: srun, or use another runtime")


@RULES.add("SB020", "error", "what the runtime takes for something else")
def _runtime_faults(job: JudgedJob) -> Iterator[Hit]:
    for key, what, fix in job.resolved.runtime.faults(job.resolved):
        yield Hit(job.at(key), what, fix)


@RULES.add("SB021", "warning", "an image that every node pulls from a registry")
def _image_pulled(job: JudgedJob) -> Iterator[Hit]:
    resolved, image = job.resolved, job.resolved.software.get("image") or ""
    if resolved.runtime.is_container and "://" in image and resolved.nodes > 1:
        what = f"each of {resolved.nodes} nodes pulls {image} from its registry"
        yield Hit(job.at("image"), what, "make it a file that all nodes share: sbatchgen image")


@RULES.add("SB022", "error", "a path that can't be mounted")
def _mounts(job: JudgedJob) -> Iterator[Hit]:
    from sbatchgen.jobs.render.launch import mounted_folders

    resolved = job.resolved
    mounted = mounted_folders(resolved, "PWD")
    paths = [("binds", bind) for bind in resolved.software.get("binds") or ()]
    paths += [("run_dir", resolved.run_dir)] if "$RUN_DIR" in mounted else []
    paths += [("data", resolved.data)] if "$DATA_DIR" in mounted else []
    for key, path in paths:
        text = VARIABLE.sub("", path)
        fix = "mount a symbolic link with a plain name"
        _, *parts_after_colon = text.split(":", 2)
        if key == "binds":  # SRC:DST:OPTIONS, so DST and known options may follow a colon
            known_options = resolved.runtime.mount_options
            parts_after_colon = [
                part for part in parts_after_colon[1:] if not re.fullmatch(known_options, part)
            ]
        if "," in text or parts_after_colon:
            what = f"'{path}' can't be mounted: the path would be split at the comma or colon"
            yield Hit(job.at(key), what, fix)
        elif why := resolved.runtime.why_unmountable(text):
            yield Hit(job.at(key), f"'{path}' can't be mounted: {why}", fix)


@RULES.add("SB023", "warning", "a launcher that this mode ignores")
def _launcher_ignored(job: JudgedJob) -> Iterator[Hit]:
    resolved = job.resolved
    if not resolved.mode.launchers and resolved.origin("launcher").level >= Level.PROJECT:
        what = f"mode '{resolved.mode.name}' starts one process: the launcher is ignored"
        yield Hit(job.at("launcher"), what, "remove the launcher, or use mode ddp")


@RULES.add_fit("SB024", "error", "several nodes on a single machine")
def _one_machine(job: JudgedJob) -> Iterator[Hit]:
    resolved = job.resolved
    if resolved.profile.scheduler == "none" and resolved.nodes > 1:
        what = f"profile '{resolved.profile.name}' is one machine, but {resolved.nodes} nodes were asked for"
        yield Hit(job.at("options.nodes"), what, "use --nodes 1, or --profile with a cluster")
