"""The command that a job's script starts: Slurm step, container, launcher, trainer and its arguments."""

import re
from collections.abc import Iterator, Sequence

from sbatchgen.base import quoting
from sbatchgen.jobs.inputs.layers import Level
from sbatchgen.jobs.modes import AGENTS
from sbatchgen.jobs.render import arguments
from sbatchgen.jobs.resolved.resolved_job import GPU_CPUS, ResolvedJob, Share
from sbatchgen.jobs.runtimes.base import GPU_VARIABLES, from_submit_folder, path_in_bash

RENDEZVOUS_VARIABLES = ("MASTER_ADDR", "MASTER_PORT")
# Unset for a single process: a trainer that sees them takes itself for one of several ranks of srun.
_SRUN_RANK_VARIABLES = ("SLURM_PROCID", "SLURM_NTASKS")
_FILE_DATASETS = ("mnist", "cifar10", "imagefolder")  # data sets that the bundled trainer reads from files


def command_lines(resolved: ResolvedJob, exported: Sequence[str], mounted: Sequence[str]) -> tuple[str, ...]:
    """Return the lines of the command that starts the training, quoted for bash.

    `exported` has the names of the variables that a container must get, `mounted` the folders to mount in it.
    """
    runtime = quoting.packed(_runtime_words(resolved, exported, mounted))
    return (*_step_lines(resolved), *runtime, *_task_setup_words(resolved), *program_lines(resolved))


def program_lines(resolved: ResolvedJob) -> tuple[str, ...]:
    """Return the last lines of the command: the launcher, and the trainer with its arguments."""
    return (*_launcher_lines(resolved), *arguments.argument_lines(resolved))


def preflight_command(
    resolved: ResolvedJob, exported: Sequence[str], mounted: Sequence[str], job_id: str
) -> str:
    """Return the command that checks the nodes before the training; "" if the job has no such check."""
    if not resolved.settings.preflight:
        return ""
    gpus = resolved.gpus_per_node or min(resolved.shards, 1)  # all shards of a job are on one GPU
    if gpus_per_task := resolved.resources.gpus_per_task:  # srun inherits --gpus-per-task
        gpus = sum(count for _, count in gpus_per_task)
    if resolved.programs:
        gpus = resolved.gpus_of_programs
    may_be_shared = not resolved.uses_slurm or resolved.shards or resolved.partition.oversubscribed
    words = ['python3 "$CODE_DIR/training/preflight.py" "$RUN_DIR"', f"--gpus {gpus}"]
    words += ["--shared"] if gpus and may_be_shared else []
    words += [f'--exclude "{job_id}"'] if excludes_bad_nodes(resolved) else []
    words += ["-- srun" if resolved.uses_slurm else "--", *_runtime_words(resolved, exported, mounted)]
    words += [quoting.value(resolved.settings.python or "python3")]
    return " \\\n        ".join(quoting.packed(words))


def container_lines(
    resolved: ResolvedJob, exported: Sequence[str], mounted: Sequence[str]
) -> tuple[str, ...]:
    """Return the lines before a command that run it in the job's container, for example a user's shell.

    The result is () without Slurm, without a container, and for a job with several programs.
    """
    has_container = resolved.uses_slurm and resolved.runtime.is_container and not resolved.programs
    return tuple(quoting.packed(_runtime_words(resolved, exported, mounted))) if has_container else ()


def excludes_bad_nodes(resolved: ResolvedJob) -> bool:
    """Return whether the preflight check requeues the job and excludes its bad nodes."""
    return resolved.uses_slurm and resolved.settings.preflight not in (None, False, True)


def requeue_command(resolved: ResolvedJob) -> str:
    """Return the command that requeues a job, without its last word, the job's id."""
    requeue_without_hung_nodes = 'python3 "$CODE_DIR/training/preflight.py" "$RUN_DIR" --exclude'
    return requeue_without_hung_nodes if resolved.hang == "requeue" else "scontrol requeue"


def node_setup_command(resolved: ResolvedJob) -> str:
    """Return the command that runs `setup_per_node` once on each node; "" without such a setup."""
    text = quoting.shell_text(resolved.settings.setup_per_node)
    if not text or not resolved.uses_slurm:
        return f"bash -c {text}" if text else ""
    step = 'srun --ntasks="$SLURM_NNODES" --ntasks-per-node=1' if resolved.nodes > 1 else "srun --ntasks=1"
    return f"{step} bash -c {text}"


def _task_setup_words(resolved: ResolvedJob) -> Iterator[str]:
    """Yield the words that start a task's program after its `setup_per_task`, and fill in {node_rank}."""
    lines = resolved.settings.setup_per_task
    rank = arguments.node_rank(resolved) if "node_rank" in arguments.placeholders(resolved) else ""
    fills_in_rank = arguments.NODE_RANK in rank
    if lines or fills_in_rank:
        program = f"${{@//{arguments.NODE_RANK}/$SLURM_NODEID}}" if fills_in_rank else "$@"
        text = quoting.shell_text((*lines, f'exec "{program}"'))
        yield f"bash -c {text} task"  # bash's messages begin with "task"


def setup_lines(lines: Sequence[str]) -> tuple[str, ...]:
    """Return the profile's lines of shell, and a line that turns off the shell options that they set.

    If `set -e` stayed on, a failing trainer would end the script before the script starts the job again.
    """
    sets_options = any(re.search(r"(?:^|[;&|\s])set\s+-", line) for line in lines)
    reset_line = ["set +eu +o pipefail # what these lines set"] if sets_options else []
    return (*quoting.mark_empty_lines(lines), *reset_line)


def exchanged_files(resolved: ResolvedJob) -> tuple[str, ...]:
    """Return the names of the files in the run folder through which the script and the trainer communicate.

    With `stop`, the script asks the trainer to stop. With `again`, the trainer asks for a restart. `exit` has
    the trainer's exit status, because srun and torchrun may change it.
    """
    if not resolved.stoppable:
        return ()
    exit_file = ["exit"] if resolved.mode.several_processes else []
    if not resolved.asks_to_stop:
        return tuple(exit_file)
    return ("stop", *(["again"] if resolved.restartable else []), *exit_file)


def hides_rank(resolved: ResolvedJob) -> bool:
    """Return whether Slurm's variables of ranks are hidden from the trainer, which is a single process."""
    return resolved.uses_slurm and bool(resolved.trainer) and not resolved.mode.several_processes


def needs_rendezvous(resolved: ResolvedJob) -> bool:
    """Return whether the job needs MASTER_ADDR and MASTER_PORT, for its tasks or for its arguments."""
    if resolved.programs:  # each program that needs a rendezvous has its own
        return False
    is_named = not {"master_addr", "master_port"}.isdisjoint(arguments.placeholders(resolved))
    tasks_meet = resolved.mode.several_processes and _has_several_tasks(resolved)
    return resolved.uses_slurm and (is_named or tasks_meet)


_PORTS_OF_JOB = 8  # ports that are reserved for a job with one program


def first_port(resolved: ResolvedJob, ports: int = _PORTS_OF_JOB) -> str:
    """Return the first of a job's ports as a word of bash: "$((20000 + SLURM_JOB_ID % 1250 * 8))".

    The job id chooses one of the blocks of ports in the profile's range. Return "" if the profile names no
    range. The script then looks for ports below those that the kernel gives to any program.
    """
    network = resolved.settings.network
    if not network.port_base:
        return ""
    block_size = -(-ports // _PORTS_OF_JOB) * _PORTS_OF_JOB  # rounded up
    id_in_bash = "SLURM_JOB_ID" if resolved.uses_slurm else "$$"
    choices, factor = int(network.port_count), ""  # in a range that is smaller than a block: any port of it
    if choices >= block_size:
        choices, factor = choices // block_size, f" * {block_size}"
    return f"$(({network.port_base} + {id_in_bash} % {choices}{factor}))"


def watches_step_ends(resolved: ResolvedJob) -> bool:
    """Return whether the job has steps of srun with several tasks, whose end training/step_end.py watches."""
    jobs = [program.job for program in resolved.programs] or [resolved]
    return resolved.uses_slurm and any(_has_several_tasks(job) and job.starter.name == "srun" for job in jobs)


def uses_code(resolved: ResolvedJob) -> bool:
    """Return whether the script or one of its programs starts a file of the training package."""
    counts_repeats = resolved.restartable and not resolved.asks_to_stop  # with training/repeats.py
    script_needs_code = counts_repeats or bool(resolved.settings.preflight) or watches_step_ends(resolved)
    return script_needs_code or any(map(_starts_code, resolved.jobs))


def _starts_code(resolved: ResolvedJob) -> bool:
    """Return whether the command of a job or program starts a file of the training package."""
    has_preset = resolved.share is not None and bool(resolved.share.preset)
    return has_preset or resolved.is_bundled or resolved.launcher is not None or _is_wrapped(resolved)


def uses_data(resolved: ResolvedJob) -> bool:
    """Return whether the job or one of its programs reads the data folder, so that the script names it."""
    return any(map(_reads_data, resolved.jobs))


def _reads_data(resolved: ResolvedJob) -> bool:
    """Return whether the trainer of a job or program may read the data folder."""
    if "data_dir" in arguments.placeholders(resolved):
        return True
    data_level = resolved.origin("data").level
    if resolved.is_command:
        return False
    if resolved.trainer:  # the data folder of a profile is for the bundled trainer
        return data_level >= Level.PROJECT
    dataset = _dataset(resolved.args)  # perhaps the placeholder of a sweep's parameter
    is_placeholder = dataset.strip("{}") in resolved.placeholder_names
    return data_level > Level.DEFAULT or dataset in _FILE_DATASETS or is_placeholder


def trainer_folders(resolved: ResolvedJob) -> tuple[str, ...]:
    """Return the names of the variables in which the user's own trainer finds its folders and checkpoint."""
    if not resolved.trainer:
        return ()
    exported = {"RUN_DIR": True, "DATA_DIR": uses_data(resolved), "RESUME": gives_resume(resolved)}
    return tuple(name for name, is_exported in exported.items() if is_exported)


def gives_resume(resolved: ResolvedJob) -> bool:
    """Return whether the user's own trainer gets the value of `resume`, in a variable or an argument."""
    return resolved.resume not in ("auto", "off") or "resume" in arguments.placeholders(resolved)


def mounted_folders(resolved: ResolvedJob, folder_variable: str) -> tuple[str, ...]:
    """Return the folders that the script mounts in a container: SRC or SRC:DST, as text for double quotes.

    `folder_variable` is the name of the bash variable with the folder of submission. The result is () for a
    runtime that mounts folders itself.
    """
    return needed_folders(resolved, folder_variable) if resolved.runtime.mounts_run_folders else ()


def needed_folders(resolved: ResolvedJob, folder_variable: str) -> tuple[str, ...]:
    """Return the folders that a container must see, in the form of `mounted_folders`."""
    binds = resolved.software.get("binds") or ()
    binds_at_same_path = [bind for bind in binds if ":" not in bind]  # not SRC:DST

    def is_bound(path: str) -> bool:
        return any(path == bind or path.startswith(f"{bind}/") for bind in binds_at_same_path)

    folders = ["$PWD"]  # texts for double quotes; [1:-1] below removes the quotes that `quoting.path` adds
    if not is_bound(resolved.run_dir):
        folders.append("$RUN_DIR")
    if uses_data(resolved) and not is_bound(resolved.data):
        folders.append("$DATA_DIR")
    if uses_code(resolved):
        folders.append("$CODE_DIR")
    if resolved.trainer and resolved.trainer.startswith("/"):
        folders.append(quoting.inside_quotes(resolved.trainer.rpartition("/")[0]))
    resume = from_submit_folder(resolved.resume, resolved)
    if resume.startswith(("/", "${")):
        folders.append(quoting.path(resume.rpartition("/")[0])[1:-1])
    return (*folders, *(quoting.path(path_in_bash(bind, folder_variable))[1:-1] for bind in binds))


def _step_lines(resolved: ResolvedJob) -> Iterator[str]:
    """Yield the lines of srun with its options, or of another starter; nothing without Slurm."""
    if not resolved.uses_slurm:
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
    if step.get("cpu-bind") == GPU_CPUS:  # a word of sbatchgen, which srun does not know
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
    if _has_several_tasks(resolved):
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
    yield "job-name", f'"{share.bash_name}"' if share.replicas else share.name
    yield "nodelist", f'"${share.name.variable}_HOSTS"'
    yield "nodes", str(share.nodes)
    yield "ntasks", str(share.nodes * share.tasks_per_node)
    if share.tasks_per_node > 1:
        yield "ntasks-per-node", str(share.tasks_per_node)
    if share.cpus_per_node:
        yield "cpus-per-task", str(max(1, share.cpus_per_node // share.tasks_per_node))
    if share.gpu_option:
        gres_name = "gpu:" if share.gpu_option == "gres" else ""
        yield share.gpu_option, f"{gres_name}{share.gpus_per_node}"
    if share.beside_program:
        yield "overlap", ""  # the step uses the GPUs and CPUs of the program that it runs beside
    elif share.shares_node:
        yield "exact", ""
    if share.beside_program or share.shares_node:
        yield "mem", "0"
    if not share.is_main:  # a file for each task, since srun waits until every process has closed its output
        yield "output", f'"${{RUN_DIR//%/%%}}/programs/{share.bash_name}.%t.log"'
        yield "open-mode", "append"


def _has_several_tasks(resolved: ResolvedJob) -> bool:
    """Return whether the Slurm step of the training has more than one task."""
    return resolved.nodes > 1 or resolved.launcher == "srun"


def _runtime_words(resolved: ResolvedJob, exported: Sequence[str], mounted: Sequence[str]) -> Iterator[str]:
    """Yield the words before the launcher: the runtime's command, then commands that change variables."""
    in_container = resolved.runtime.is_container
    yield from resolved.runtime.command(resolved, exported, mounted)
    # A trainer that starts its processes on a single node needs no rendezvous, but the image may set one.
    on_one_node = resolved.launcher == "spawn" and not _has_several_tasks(resolved)
    hides_rendezvous = in_container and resolved.trainer and on_one_node
    unset: tuple[str, ...] = RENDEZVOUS_VARIABLES if hides_rendezvous else ()
    if hides_rank(resolved):
        unset += _SRUN_RANK_VARIABLES
    if resolved.mode.uses_gpus and resolved.uses_slurm:
        # Slurm may set several variables with a process's GPUs (gres.conf(5), Flags). The first stays.
        unset += GPU_VARIABLES[resolved.gpu_vendor][1:]
    changes = [f"-u {name}" for name in unset if name not in resolved.env]
    changes += resolved.runtime.environment_changes(resolved)  # such as HOME="$RUN_DIR" for Enroot
    if changes:
        yield " ".join(["env", *changes])
    for name, texts in resolved.extended.items():  # the image's own value is known only inside the container
        # sh has `text` as $0: PATH=/opt/bin:${PATH} becomes sh -c "PATH=\$0\$PATH exec ..." /opt/bin:
        for text, new_value in zip(texts, (rf"\$0\${name}", rf"\${name}\$0"), strict=True):
            if text:
                yield rf'sh -c "{name}={new_value} exec \"\$@\"" {quoting.value(text)}'
    if in_container and "PYTHONPATH" in resolved.env.keys() - resolved.extended.keys():
        # The job's PYTHONPATH comes before the image's.
        yield r'sh -c "PYTHONPATH=\$0\${PYTHONPATH:+:\$PYTHONPATH} exec \"\$@\"" "$PYTHONPATH"'


def _launcher_lines(resolved: ResolvedJob) -> Iterator[str]:
    """Yield the lines that start the launcher and the trainer, before the trainer's own arguments."""
    if resolved.is_command:
        yield from _preset_lines(resolved)
        return  # all words of a command are in its arguments
    bundled = '"$CODE_DIR/training"'
    trainer, is_module = resolved.trainer, _is_module(resolved.trainer)
    python = quoting.value(resolved.settings.python or "python3")
    gpu_variable = GPU_VARIABLES[resolved.gpu_vendor][0]  # such as CUDA_VISIBLE_DEVICES
    if not resolved.mode.uses_gpus and trainer and gpu_variable not in resolved.env:
        python = f"env {gpu_variable}= {python}"  # Slurm would unset an exported variable before the step
    if resolved.launcher in AGENTS:
        # `--` ends the launcher's options, because it reads a trainer's --n as a short form of one of them.
        last_words = "-m --" if is_module else "--"
        words = [arguments.launcher_word(arg, resolved) for arg in resolved.launcher_args]
        end_of_line = "" if words else f" {last_words}"
        lines_of_args = quoting.packed([*words, last_words]) if words else ()
        processes = f"--nproc-per-node={arguments.nproc(resolved)}{end_of_line}"
        if resolved.launcher == "torchrun":
            yield f'{python} "$CODE_DIR/training/torchrun.py"{_node_options(resolved)} {processes}'
        else:
            yield f"ft_launcher {_rendezvous_options(resolved)}"
            yield processes
        yield from lines_of_args
        program = [arguments.word(trainer, resolved)] if trainer else [bundled, *_bundled_flags(resolved)]
        yield from quoting.packed(program)
    elif trainer:
        needs_task = resolved.launcher or _is_wrapped(resolved)
        task = f'"$CODE_DIR/training/task.py" --launcher {_rank_source(resolved)} -- ' if needs_task else ""
        module = "-m " if is_module else ""
        yield f"{python} {task}{module}{arguments.word(trainer, resolved)}"
    else:
        yield from quoting.packed([f"{python} {bundled}", *_bundled_flags(resolved)])


def _is_module(trainer: str | None) -> bool:
    """Return whether the user's own trainer is a module of Python, not a file."""
    if trainer is None:
        return False
    from sbatchgen.check.script.trainer_name import trainer_is_file  # not needed for the bundled trainer

    return not trainer_is_file(trainer)


def _preset_lines(resolved: ResolvedJob) -> Iterator[str]:
    """Yield the lines that start a program's preset, such as Ray; none for a program without a preset."""
    share = resolved.share
    if share and share.preset:
        python, name = quoting.value(resolved.settings.python or "python3"), share.name.variable
        yield f'{python} "$CODE_DIR/training/ray_node.py" --folder "$RUN_DIR/programs" --name {share.name}'
        yield f'--hosts "${name}_HOSTS" --port "${name}_PORT" --'


def _rank_source(resolved: ResolvedJob) -> str:
    """Return the value of --launcher, which tells the training package where a process finds its rank."""
    return resolved.starter.ranks if resolved.launcher == "srun" else resolved.launcher or "none"


def _is_wrapped(resolved: ResolvedJob) -> bool:
    """Return whether training/task.py starts a trainer of a single process.

    task.py removes variables such as RANK, which pyxis, an image or the platform may set. After a restart
    task.py lets the trainer continue its run of Weights & Biases.
    """
    is_single = resolved.trainer is not None and not resolved.mode.several_processes
    may_have_ranks = resolved.runtime.is_container or resolved.profile.scheduler == "env"
    return is_single and (may_have_ranks or resolved.restartable)


def _node_options(resolved: ResolvedJob) -> str:
    """Return the launcher's options for the number of nodes, after a blank; "" if it needs none."""
    if resolved.profile.scheduler == "env":
        return ' --nnodes="$WORLD_SIZE" --node-rank="$RANK"'  # the platform counts nodes in both
    needs_nodes = resolved.launcher == "torchrun" and resolved.nodes > 1
    return f" --nnodes={arguments.nnodes(resolved)}" if needs_nodes else ""


def _rendezvous_options(resolved: ResolvedJob) -> str:
    """Return ft_launcher's options for the rendezvous. Its backend c10d lets spare nodes join and leave."""
    if resolved.nodes == 1:
        return "--standalone"
    has_spares = any(arg.startswith("--nnodes") for arg in resolved.launcher_args)  # such as --nnodes=6:8
    nodes = "" if has_spares else f"--nnodes={arguments.nnodes(resolved)} "
    return f'{nodes}--rdzv-backend=c10d --rdzv-endpoint="$MASTER_ADDR:$MASTER_PORT" --rdzv-id=job'


def _bundled_flags(resolved: ResolvedJob) -> Iterator[str]:
    """Yield the bundled trainer's flags that sbatchgen sets itself."""
    yield '--run-dir "$RUN_DIR"'
    if uses_data(resolved):
        yield '--data-dir "$DATA_DIR"'
    yield f"--resume {arguments.resume(resolved)}"
    if not resolved.mode.uses_gpus:
        yield "--device cpu"
    elif resolved.gpus_per_node or resolved.shards:  # the trainer fails without GPUs, instead of using CPUs
        yield "--device cuda"
    if resolved.mode.flag:
        yield resolved.mode.flag
    if resolved.launcher not in AGENTS:
        yield f"--launcher {_rank_source(resolved)}"
    if resolved.launcher == "spawn":
        yield f"--nproc-per-node={arguments.nproc(resolved)}{_node_options(resolved)}"


def _dataset(args: Sequence[str]) -> str:
    """Return the value of the bundled trainer's --dataset; argparse uses the last of several."""
    dataset = "mnist"
    for index, arg in enumerate(args):
        if arg.startswith("--dataset="):
            dataset = arg.partition("=")[2]
        elif arg == "--dataset" and index + 1 < len(args):
            dataset = args[index + 1]
    return dataset
