"""Resolved job -> the command of the script: job step, container, launcher, trainer and its arguments."""

import re
from collections.abc import Iterator, Sequence

from sbatchgen.base import quoting
from sbatchgen.jobs.inputs.layers import Level
from sbatchgen.jobs.modes import AGENTS
from sbatchgen.jobs.render import arguments
from sbatchgen.jobs.resolved.resolved_job import GPU_CPUS, ResolvedJob, Share
from sbatchgen.jobs.runtimes.base import MASKS, absolute, of_submission

MEETING = ("MASTER_ADDR", "MASTER_PORT")
# By these a trainer takes itself for a rank of srun, which gives it no world size and no address.
ONE_OF_MANY = ("SLURM_PROCID", "SLURM_NTASKS")
KEPT = "\x01"  # in an empty line of the user's, where several follow each other
FILES_NEEDED = ("mnist", "cifar10", "imagefolder")  # data sets of the bundled trainer that are files


def command(resolved: ResolvedJob, exported: Sequence[str], mounted: Sequence[str]) -> tuple[str, ...]:
    """Return the lines of the command, quoted for bash."""
    runtime = quoting.packed(_runtime(resolved, exported, mounted))
    return (*_step(resolved), *runtime, *task_setup(resolved), *program(resolved))


def program(resolved: ResolvedJob) -> tuple[str, ...]:
    """Return the last lines of the command: launcher, trainer and its arguments."""
    return (*_trainer(resolved), *arguments.given(resolved))


def preflight(resolved: ResolvedJob, exported: Sequence[str], mounted: Sequence[str], job_id: str) -> str:
    """Return the command that checks the nodes before the training, or ""."""
    wanted, each = resolved.settings.preflight, resolved.resources.gpus_per_task  # which srun takes over
    if not wanted:
        return ""
    gpus = sum(count for _, count in each) if each else resolved.gpus_per_node or min(resolved.shards, 1)
    if resolved.programs:
        gpus = resolved.gpus_of_programs
    shared = not resolved.slurm or resolved.shards or resolved.partition.oversubscribed
    words = ['python3 "$CODE_DIR/training/preflight.py" "$RUN_DIR"', f"--gpus {gpus}"]
    words += ["--shared"] if gpus and shared else []
    words += [f'--exclude "{job_id}"'] if wanted is not True and resolved.slurm else []
    words += ["-- srun" if resolved.slurm else "--", *_runtime(resolved, exported, mounted)]
    words += [quoting.value(resolved.settings.python or "python3")]
    return " \\\n        ".join(quoting.packed(words))


def contained(resolved: ResolvedJob, exported: Sequence[str], mounted: Sequence[str]) -> tuple[str, ...]:
    """Return the lines that start a program in the container of a job of Slurm, if it has a container."""
    wanted = resolved.slurm and resolved.runtime.is_container and not resolved.programs
    return tuple(quoting.packed(_runtime(resolved, exported, mounted))) if wanted else ()


def excludes(resolved: ResolvedJob) -> bool:
    """Return whether the check of the nodes requeues the job without its bad nodes."""
    return resolved.slurm and resolved.settings.preflight not in (None, False, True)


def requeues(resolved: ResolvedJob) -> str:
    """Return the command that requeues the job of which the name follows."""
    of_hangs = 'python3 "$CODE_DIR/training/preflight.py" "$RUN_DIR" --exclude'
    return of_hangs if resolved.hang == "requeue" else "scontrol requeue"


def node_setup(resolved: ResolvedJob) -> str:
    """Return the command that runs the profile's setup of a node once on each, or ""."""
    text = shell_text(resolved.settings.setup_per_node)
    if not text or not resolved.slurm:
        return f"bash -c {text}" if text else ""
    step = 'srun --ntasks="$SLURM_NNODES" --ntasks-per-node=1' if resolved.nodes > 1 else "srun --ntasks=1"
    return f"{step} bash -c {text}"


def task_setup(resolved: ResolvedJob) -> Iterator[str]:
    """Yield the commands of a task before its program: a setup, and the number of the node."""
    lines = resolved.settings.setup_per_task
    rank = arguments.node_rank(resolved) if "node_rank" in arguments.placeholders(resolved) else ""
    counts = arguments.NODE_RANK in rank
    if lines or counts:
        words = f"${{@//{arguments.NODE_RANK}/$SLURM_NODEID}}" if counts else "$@"
        text = shell_text((*lines, f'exec "{words}"'))
        yield f"bash -c {text} task"  # $0 in messages of bash


def shell_text(lines: Sequence[str]) -> str:
    """Return lines of shell as one word of bash, a line for each; "" without lines."""
    quoted = "\n".join(kept(lines)).replace("'", "'\\''")
    return "" if not lines else f"'{quoted}'" if len(lines) == 1 else f"'\n{quoted}'"


def kept(lines: Sequence[str]) -> tuple[str, ...]:
    """Return the user's lines of shell with a mark in the empty lines, which `render.finish` removes."""
    return tuple(line or KEPT for line in lines)


def setup_lines(lines: Sequence[str]) -> tuple[str, ...]:
    """Return the profile's lines of shell.

    Their set -e would end the script before it starts the job again.
    """
    sets = any(re.search(r"(?:^|[;&|\s])set\s+-", line) for line in lines)
    return (*kept(lines), *(["set +eu +o pipefail # what these lines set"] if sets else []))


def files(resolved: ResolvedJob) -> tuple[str, ...]:
    """Return the files in the run folder by which script and trainer talk to each other.

    stop: asks the trainer to stop. again: the trainer asks for a restart. exit: its exit status, which srun
    and torchrun may change.
    """
    if not resolved.stoppable:
        return ()
    exit_file = ["exit"] if resolved.mode.several_processes else []
    if not resolved.asks_to_stop:
        return tuple(exit_file)
    return ("stop", *(["again"] if resolved.restartable else []), *exit_file)


def hides_rank(resolved: ResolvedJob) -> bool:
    """Return whether the trainer gets no variables of Slurm, which would make it one of several processes."""
    return resolved.slurm and bool(resolved.trainer) and not resolved.mode.several_processes


def several_tasks(resolved: ResolvedJob) -> bool:
    """Return whether the step has more than one task."""
    return resolved.nodes > 1 or resolved.launcher == "srun"


def ends_steps(resolved: ResolvedJob) -> bool:
    """Return whether training/step_end.py looks after steps of several tasks."""
    jobs = [program.job for program in resolved.programs] or [resolved]
    return resolved.slurm and any(several_tasks(job) and job.starter.name == "srun" for job in jobs)


def meets(resolved: ResolvedJob) -> bool:
    """Return whether several Slurm tasks need a rendezvous, or an argument names the rendezvous."""
    if resolved.programs:  # each program that needs a meeting has its own
        return False
    named = not {"master_addr", "master_port"}.isdisjoint(arguments.placeholders(resolved))
    return resolved.slurm and (named or (resolved.mode.several_processes and several_tasks(resolved)))


_EACH = 8  # ports of a job


def first_port(resolved: ResolvedJob, ports: int = _EACH) -> str:
    """Return the first of several ports that a job has for itself, as a word of bash; "" if bash looks.

    Without a range in the profile these are ports below those that the kernel gives to any program.
    """
    network, of_job = resolved.settings.network, -(-ports // _EACH) * _EACH
    if not network.port_base:
        return ""
    number = "SLURM_JOB_ID" if resolved.slurm else "$$"
    jobs, each = int(network.port_count), ""
    if jobs >= of_job:
        jobs, each = jobs // of_job, f" * {of_job}"
    return f"$(({network.port_base} + {number} % {jobs}{each}))"


def uses_code(resolved: ResolvedJob) -> bool:
    """Return whether a program of the training package is started, by the job or one of its programs."""
    looks = resolved.restartable and not resolved.asks_to_stop  # training/repeats.py, before a restart
    checks = looks or bool(resolved.settings.preflight) or ends_steps(resolved)
    return checks or any(map(_starts_code, resolved.jobs))


def _starts_code(resolved: ResolvedJob) -> bool:
    preset = resolved.share is not None and bool(resolved.share.preset)
    return preset or resolved.is_bundled or resolved.launcher is not None or _is_wrapped(resolved)


def uses_data(resolved: ResolvedJob) -> bool:
    """Return whether the data folder is named in the script, by the job or one of its programs."""
    return any(map(_reads_data, resolved.jobs))


def _reads_data(resolved: ResolvedJob) -> bool:
    if "data_dir" in arguments.placeholders(resolved):
        return True
    by = resolved.origin("data").level
    if resolved.is_command:
        return False
    if resolved.trainer:  # the profile's data are those of the bundled trainer
        return by >= Level.PROJECT
    dataset = _dataset(resolved.args)
    return by > Level.DEFAULT or dataset in FILES_NEEDED or dataset.strip("{}") in resolved.placed


def own_folders(resolved: ResolvedJob) -> tuple[str, ...]:
    """Return the variables that tell your own trainer where to read and write."""
    if not resolved.trainer:
        return ()
    given = {"RUN_DIR": True, "DATA_DIR": uses_data(resolved), "RESUME": gives_resume(resolved)}
    return tuple(name for name, is_given in given.items() if is_given)


def gives_resume(resolved: ResolvedJob) -> bool:
    """Return whether the user's own trainer gets what to resume from."""
    return resolved.resume not in ("auto", "off") or "resume" in arguments.placeholders(resolved)


def mounts(resolved: ResolvedJob, here: str) -> tuple[str, ...]:
    """Return the cluster's folders that a container sees, SRC or SRC:DST, each as text for double quotes.

    The variable `here` holds the folder of submission.
    """
    return needed(resolved, here) if resolved.runtime.mounts_own else ()


def needed(resolved: ResolvedJob, here: str) -> tuple[str, ...]:
    """Return the folders of the cluster that a container must see, in the words of `mounts`."""
    binds = resolved.software.get("binds") or ()
    bound = [bind for bind in binds if ":" not in bind]

    def covered(path: str) -> bool:
        return any(path == bind or path.startswith(f"{bind}/") for bind in bound)

    mounted = ["$PWD"]
    if not covered(resolved.run_dir):
        mounted.append("$RUN_DIR")
    if uses_data(resolved) and not covered(resolved.data):
        mounted.append("$DATA_DIR")
    if uses_code(resolved):
        mounted.append("$CODE_DIR")
    if resolved.trainer and resolved.trainer.startswith("/"):
        mounted.append(quoting.inside_quotes(resolved.trainer.rpartition("/")[0]))
    resume = of_submission(resolved.resume, resolved)
    if resume.startswith(("/", "${")):
        mounted.append(quoting.path(resume.rpartition("/")[0])[1:-1])
    return (*mounted, *(quoting.path(absolute(bind, here))[1:-1] for bind in binds))


def _step(resolved: ResolvedJob) -> Iterator[str]:
    if not resolved.slurm:
        return
    if resolved.starter.name != "srun":
        yield resolved.starter.command
        return
    derived = ((name, word) for name, word in _own_options(resolved) if name not in resolved.step)
    options = [f"--{name}={word}" if word else f"--{name}" for name, word in derived]
    if resolved.share:
        yield from quoting.packed(["srun", *options])
    else:
        yield " ".join(["srun", *options])
    step = dict(resolved.step)
    if step.get("cpu-bind") == GPU_CPUS:  # "false" where tasks have no GPU of their own
        masks = ",".join(cpus.mask for cpus in resolved.partition.gpu_cpus)
        step["cpu-bind"] = f"mask_cpu:{masks}" if resolved.binds_to_gpu_cpus else "false"
    texts = {name: "" if text == "true" else f"={quoting.value(text)}" for name, text in step.items()}
    yield from quoting.packed(f"--{name}{text}" for name, text in texts.items() if step[name] != "false")


def _own_options(resolved: ResolvedJob) -> Iterator[tuple[str, str]]:
    """Yield srun's options that follow from the resolved job, each with its value as a word of bash."""
    if share := resolved.share:
        yield from _of_share(share)
    elif resolved.options.ntasks_per_node is None:  # a profile may leave it out of the directives
        yield "ntasks-per-node", str(resolved.nproc_per_node if resolved.launcher == "srun" else 1)
    if resolved.options.cpus_per_task is not None and not share:
        yield "cpus-per-task", '"$SLURM_CPUS_PER_TASK"'  # 22.05 and 23.02 do not inherit it
    if several_tasks(resolved):
        # Newer Slurm may follow the topology, but rank 0 must be on the first node: MASTER_ADDR names it.
        # A distribution of the job has rank 0 there, too, and srun takes it from SLURM_DISTRIBUTION.
        if not resolved.options.distribution:
            yield "distribution", "block"
        # One rank may upload, evaluate or remove its container long after the others have ended well.
        yield "kill-on-bad-exit", "1"
        yield "wait", "0"
    if resolved.launcher == "srun" and resolved.options.gpus_per_task and resolved.gpu_visibility == "node":
        yield "gpu-bind", "none"  # else a rank sees only its own GPU and NCCL loses the others


def _of_share(share: Share) -> Iterator[tuple[str, str]]:
    """Yield the options by which a step has its share, and leaves the rest of the nodes to others.

    Steps with --exact run at once where each names its memory; with --overlap they would get the same GPUs.
    """
    quoted = f'"{share.own_word}"' if share.replicas else share.name
    yield "job-name", quoted
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
    if not share.main:  # a file of each task: srun would wait for all that hold an output which it passes on
        yield "output", f'"${{RUN_DIR//%/%%}}/programs/{share.own_word}.%t.log"'
        yield "open-mode", "append"


def _runtime(resolved: ResolvedJob, exported: Sequence[str], mounted: Sequence[str]) -> Iterator[str]:
    """Yield the runtime's words before the trainer, and the changes of the environment in a container."""
    contained = resolved.runtime.is_container
    yield from resolved.runtime.command(resolved, exported, mounted)
    # A trainer that starts its processes on one node meets no other: these would be the image's own.
    alone = contained and resolved.trainer and resolved.launcher == "spawn" and not several_tasks(resolved)
    unset: tuple[str, ...] = MEETING if alone else ()
    if hides_rank(resolved):
        unset += ONE_OF_MANY
    if resolved.mode.uses_gpus and resolved.slurm:  # which may set several of them (gres.conf(5), Flags)
        unset += MASKS[resolved.gpu_vendor][1:]
    changes = [f"-u {name}" for name in unset if name not in resolved.env]
    changes += resolved.runtime.environment_changes(resolved)  # srun may look for all but env on the node
    if changes:
        yield " ".join(["env", *changes])
    for name, ends in resolved.extended.items():  # of the image's own value, which is known only in there
        for value, made in zip(ends, (rf"\$0\${name}", rf"\${name}\$0"), strict=True):
            if value:
                yield rf'sh -c "{name}={made} exec \"\$@\"" {quoting.value(value)}'
    if contained and "PYTHONPATH" in resolved.env.keys() - resolved.extended.keys():  # before the image's own
        yield r'sh -c "PYTHONPATH=\$0\${PYTHONPATH:+:\$PYTHONPATH} exec \"\$@\"" "$PYTHONPATH"'


def _trainer(resolved: ResolvedJob) -> Iterator[str]:
    if resolved.is_command:
        yield from _preset(resolved)
        return  # a command has nothing but its arguments
    ours = '"$CODE_DIR/training"'
    trainer, module = resolved.trainer, _is_module(resolved.trainer)
    python = quoting.value(resolved.settings.python or "python3")
    mask = MASKS[resolved.gpu_vendor][0]
    if not resolved.mode.uses_gpus and trainer and mask not in resolved.env:
        python = f"env {mask}= {python}"  # exported, Slurm would unset it before the step
    started = " ".join([*(["-m"] if module else []), arguments.word(trainer or "", resolved)])
    if resolved.launcher in AGENTS:
        end = "-m --" if module else "--"  # its own options: it takes a trainer's --n for short forms of them
        more = [*(arguments.of_launcher(arg, resolved) for arg in resolved.launcher_args), end]
        first, *rest = [end] if not resolved.launcher_args else ["", *quoting.packed(more)]
        processes = f"--nproc-per-node={arguments.nproc(resolved)} {first}".rstrip()
        if resolved.launcher == "torchrun":
            yield f'{python} "$CODE_DIR/training/torchrun.py"{_nodes(resolved)} {processes}'
        else:
            yield f"ft_launcher {_meeting(resolved)}"
            yield processes
        yield from rest
        yield from (
            [arguments.word(trainer, resolved)] if trainer else quoting.packed([ours, *_flags(resolved)])
        )
    elif trainer and (resolved.launcher or _is_wrapped(resolved)):
        yield f'{python} "$CODE_DIR/training/task.py" --launcher {_ranks(resolved)} -- {started}'
    elif trainer:
        yield f"{python} {started}"
    else:
        yield from quoting.packed([f"{python} {ours}", *_flags(resolved)])


def _is_module(trainer: str | None) -> bool:
    """Return whether the user's own trainer is a module of Python, not a file."""
    if trainer is None:
        return False
    from sbatchgen.check.script.trainer_name import trainer_is_file  # only such trainers need it

    return not trainer_is_file(trainer)


def _preset(resolved: ResolvedJob) -> Iterator[str]:
    """Yield the words that start a program's preset on each node, and its command on the first node."""
    share = resolved.share
    if share and share.preset:
        python, name = quoting.value(resolved.settings.python or "python3"), share.name.variable
        yield f'{python} "$CODE_DIR/training/ray_node.py" --folder "$RUN_DIR/programs" --name {share.name}'
        yield f'--hosts "${name}_HOSTS" --port "${name}_PORT" --'


def _ranks(resolved: ResolvedJob) -> str:
    """Return how a process of the training package knows its rank."""
    return resolved.starter.ranks if resolved.launcher == "srun" else resolved.launcher or "none"


def _is_wrapped(resolved: ResolvedJob) -> bool:
    """Return whether training/task.py starts a single trainer.

    It may find RANK and the like set by pyxis, an image, or the platform, and if it starts again it continues
    its run of Weights & Biases.
    """
    alone = resolved.trainer is not None and not resolved.mode.several_processes
    by_others = resolved.runtime.is_container or resolved.profile.scheduler == "env"
    return alone and (by_others or resolved.restartable)


def _nodes(resolved: ResolvedJob) -> str:
    if resolved.profile.scheduler == "env":
        return ' --nnodes="$WORLD_SIZE" --node-rank="$RANK"'  # of the platform, which counts nodes
    several = resolved.launcher == "torchrun" and resolved.nodes > 1
    return f" --nnodes={arguments.nnodes(resolved)}" if several else ""


def _meeting(resolved: ResolvedJob) -> str:
    """Return how ft_launcher's agents meet: those of a rendezvous may come and go, as spare nodes do."""
    if resolved.nodes == 1:
        return "--standalone"
    spares = any(arg.startswith("--nnodes") for arg in resolved.launcher_args)
    nodes = "" if spares else f"--nnodes={arguments.nnodes(resolved)} "
    return f'{nodes}--rdzv-backend=c10d --rdzv-endpoint="$MASTER_ADDR:$MASTER_PORT" --rdzv-id=job'


def _flags(resolved: ResolvedJob) -> Iterator[str]:
    yield '--run-dir "$RUN_DIR"'
    if uses_data(resolved):
        yield '--data-dir "$DATA_DIR"'
    yield f"--resume {arguments.resume(resolved)}"
    if not resolved.mode.uses_gpus:
        yield "--device cpu"
    elif resolved.gpus_per_node or resolved.shards:  # no silent training on CPUs while GPUs are idle
        yield "--device cuda"
    if resolved.mode.flag:
        yield resolved.mode.flag
    if resolved.launcher not in AGENTS:
        yield f"--launcher {_ranks(resolved)}"
    if resolved.launcher == "spawn":
        yield f"--nproc-per-node={arguments.nproc(resolved)}{_nodes(resolved)}"


def _dataset(args: Sequence[str]) -> str:
    """Return the bundled trainer's --dataset; the last one counts, as argparse has it."""
    dataset = "mnist"
    for place, arg in enumerate(args):
        if arg.startswith("--dataset="):
            dataset = arg.partition("=")[2]
        elif arg == "--dataset" and place + 1 < len(args):
            dataset = args[place + 1]
    return dataset
