"""Plan -> the command that the script starts: job step, container, launcher, trainer and its arguments."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from sbatchgen import quoting
from sbatchgen.inputs.layers import Level
from sbatchgen.plan.plan import GPU_CPUS, Plan, trainer_is_file
from sbatchgen.render import arguments
from sbatchgen.runtimes.base import MASKS, absolute, of_submission

FOLDERS = ("$PWD", "$RUN_DIR", "$DATA_DIR", "$CODE_DIR")  # whose names are known only where the job runs
MEETING = ("MASTER_ADDR", "MASTER_PORT")
# By these a trainer takes itself for a rank of srun, which gives it no world size and no address.
ONE_OF_MANY = ("SLURM_PROCID", "SLURM_NTASKS")
FILES_NEEDED = ("mnist", "cifar10", "imagefolder")  # data sets of the bundled trainer that are files


def command(plan: Plan, exported: Sequence[str], mounted: Sequence[str]) -> tuple[str, ...]:
    """The lines of the command, quoted for bash."""
    return (*_step(plan), *_runtime(plan, exported, mounted), *task_setup(plan), *program(plan))


def program(plan: Plan) -> tuple[str, ...]:
    """The last lines of the command: launcher, trainer and its arguments."""
    return (*_trainer(plan), *arguments.given(plan))


def node_setup(plan: Plan) -> str:
    """Return the command that runs the profile's setup of a node once on each, or ""."""
    text = shell_text(plan.settings.setup_per_node)
    if not text or not plan.slurm:
        return f"bash -c {text}" if text else ""
    step = 'srun --ntasks="$SLURM_NNODES" --ntasks-per-node=1' if plan.nodes > 1 else "srun --ntasks=1"
    return f"{step} bash -c {text}"


def task_setup(plan: Plan) -> Iterator[str]:
    """Yield what a task runs before its program: a setup, and the number of the node for its arguments."""
    lines = plan.settings.setup_per_task
    counts = "node_rank" in arguments.placeholders(plan) and arguments.NODE_RANK in arguments.node_rank(plan)
    if lines or counts:
        words = f"${{@//{arguments.NODE_RANK}/$SLURM_NODEID}}" if counts else "$@"
        text = shell_text((*lines, f'exec "{words}"'))
        yield f"bash -c {text} task"  # $0 in messages of bash


def shell_text(lines: Sequence[str]) -> str:
    """Return lines of shell as one word of bash, a line for each; "" without lines."""
    quoted = "\n".join(lines).replace("'", "'\\''")
    return "" if not lines else f"'{quoted}'" if len(lines) == 1 else f"'\n{quoted}'"


def files(plan: Plan) -> tuple[str, ...]:
    """The files in the run folder by which script and trainer talk to each other.

    stop: asks the trainer to stop. again: the trainer asks for a restart. exit: its exit status, which srun
    and torchrun may change.
    """
    if not plan.stoppable:
        return ()
    exit_file = ["exit"] if plan.mode.several_processes else []
    if not plan.asks_to_stop:
        return tuple(exit_file)
    return ("stop", *(["again"] if plan.restartable else []), *exit_file)


def several_tasks(plan: Plan) -> bool:
    """Whether the step has more than one task."""
    return plan.nodes > 1 or plan.launcher == "srun"


def meets(plan: Plan) -> bool:
    """Whether processes of several Slurm tasks need a rendezvous, or an argument names it."""
    named = not {"master_addr", "master_port"}.isdisjoint(arguments.placeholders(plan))
    return plan.slurm and (named or (plan.mode.several_processes and several_tasks(plan)))


def uses_code(plan: Plan) -> bool:
    """Whether a program of the training package is started."""
    looks = plan.restartable and not plan.asks_to_stop  # training/repeats.py, before a restart
    return plan.trainer is None or plan.launcher is not None or _may_inherit_rank(plan) or looks


def uses_data(plan: Plan) -> bool:
    """Whether the data folder is named in the script."""
    if "data_dir" in arguments.placeholders(plan):
        return True
    by = plan.origin("data").level
    if plan.trainer:  # the profile's data are those of the bundled trainer
        return by >= Level.PROJECT
    dataset = _dataset(plan.args)
    return by > Level.DEFAULT or dataset in FILES_NEEDED or dataset.strip("{}") in plan.placed


def own_folders(plan: Plan) -> tuple[str, ...]:
    """The variables that tell your own trainer where to read and write."""
    if not plan.trainer:
        return ()
    return (
        "RUN_DIR",
        *(["DATA_DIR"] if uses_data(plan) else []),
        *(["RESUME"] if gives_resume(plan) else []),
    )


def gives_resume(plan: Plan) -> bool:
    """Return whether the user's own trainer gets what to resume from."""
    return plan.resume not in ("auto", "off") or "resume" in arguments.placeholders(plan)


def mounts(plan: Plan, here: str) -> tuple[str, ...]:
    """What a container sees of the cluster, SRC or SRC:DST, each as text for double quotes.

    The variable `here` holds the folder of submission.
    """
    if not plan.runtime.mounts_own:
        return ()
    binds = plan.software.get("binds") or ()
    bound = [bind for bind in binds if ":" not in bind]

    def covered(path: str) -> bool:
        return any(path == bind or path.startswith(f"{bind}/") for bind in bound)

    mounted = ["$PWD"]
    if not covered(plan.run_dir):
        mounted.append("$RUN_DIR")
    if uses_data(plan) and not covered(plan.data):
        mounted.append("$DATA_DIR")
    if uses_code(plan):
        mounted.append("$CODE_DIR")
    if plan.trainer and plan.trainer.startswith("/"):
        mounted.append(quoting.inside_quotes(plan.trainer.rpartition("/")[0]))
    resume = of_submission(plan.resume, plan)
    if resume.startswith(("/", "${")):
        mounted.append(quoting.path(resume.rpartition("/")[0])[1:-1])
    return (*mounted, *(quoting.path(absolute(bind, here))[1:-1] for bind in binds))


def sources(mounted: Iterable[str]) -> str:
    """What of these mounts may be missing, as words of bash; the data folder is looked for by itself."""
    there = ("$RUN_DIR", "$DATA_DIR")
    return " ".join(f'"{mount.partition(":")[0]}"' for mount in mounted if mount not in there)


def targets(mounted: Iterable[str]) -> str:
    """Where these mounts are in the container, as alternatives of a pattern of bash."""
    return "|".join(f'"{(mount.split(":") * 2)[1]}"/*' for mount in mounted)


def _step(plan: Plan) -> Iterator[str]:
    if not plan.slurm:
        return
    own = [f"--{name}={word}" for name, word in _own_options(plan) if name not in plan.step]
    yield " ".join(["srun", *own])
    step = dict(plan.step)
    if step.get("cpu-bind") == GPU_CPUS:
        step["cpu-bind"] = _masks(plan)
    yield from quoting.packed(
        f"--{name}" if value == "true" else f"--{name}={quoting.word(value)}"
        for name, value in step.items()
        if value != "false"
    )


def _masks(plan: Plan) -> str:
    """The binding of each task to the CPUs of its GPU; "false" where tasks have no GPU of their own."""
    if not plan.binds_to_gpu_cpus:
        return "false"
    return f"mask_cpu:{','.join(cpus.mask for cpus in plan.partition.gpu_cpus)}"


def _own_options(plan: Plan) -> Iterator[tuple[str, str]]:
    """Yield srun's options that follow from the plan, each with its value as a word of bash."""
    if plan.options.ntasks_per_node is None:  # a profile may leave it out of the directives
        yield "ntasks-per-node", str(plan.nproc_per_node if plan.launcher == "srun" else 1)
    if plan.options.cpus_per_task is not None:
        yield "cpus-per-task", '"$SLURM_CPUS_PER_TASK"'  # 22.05 and 23.02 do not inherit it
    if several_tasks(plan):
        # Newer Slurm may follow the topology, but rank 0 must be on the first node: MASTER_ADDR names it.
        yield "distribution", "block"
        yield "kill-on-bad-exit", "1"
        yield "wait", str(plan.runtime.wait_s)
    if plan.launcher == "srun" and plan.options.gpus_per_task and plan.gpu_visibility == "node":
        yield "gpu-bind", "none"  # else a rank sees only its own GPU and NCCL loses the others


def _runtime(plan: Plan, exported: Sequence[str], mounted: Sequence[str]) -> Iterator[str]:
    """What the runtime puts before the trainer, and what changes in a container."""
    contained = plan.runtime.is_container
    yield from plan.runtime.command(plan, exported, mounted)
    # A trainer that starts its processes on one node meets no other: these would be the image's own.
    alone = contained and plan.trainer and plan.launcher == "spawn" and not several_tasks(plan)
    unset: tuple[str, ...] = MEETING if alone else ()
    if plan.slurm and plan.trainer and not plan.mode.several_processes:
        unset += ONE_OF_MANY
    if plan.mode.uses_gpus and plan.slurm:  # which may set several of them (gres.conf(5), Flags)
        unset += MASKS[plan.gpu_vendor][1:]
    changes = [f"-u {name}" for name in unset if name not in plan.env]
    changes += plan.runtime.environment_changes(plan)  # srun may look for all but env on the node
    if changes:
        yield " ".join(["env", *changes])
    if contained and "PYTHONPATH" in plan.env:  # before the image's, which is known only in there
        yield r'sh -c "PYTHONPATH=\$0\${PYTHONPATH:+:\$PYTHONPATH} exec \"\$@\"" "$PYTHONPATH"'


def _trainer(plan: Plan) -> Iterator[str]:
    """The launcher and the trainer, without the trainer's arguments."""
    ours = '"$CODE_DIR/training"'
    own, module = plan.trainer, plan.trainer is not None and not trainer_is_file(plan.trainer)
    python = "python3"
    mask = MASKS[plan.gpu_vendor][0]
    if not plan.mode.uses_gpus and own and mask not in plan.env:
        python = f"env {mask}= python3"  # exported, Slurm would unset it before the step
    started = " ".join([*(["-m"] if module else []), arguments.word(own or "", plan)])
    if plan.launcher == "torchrun":
        end = "-m --" if module else "--"  # its own options: it takes a trainer's --n for short forms of them
        more = [*map(quoting.word, plan.launcher_args), end]
        first, *rest = [end] if not plan.launcher_args else ["", *quoting.packed(more)]
        started = f'{python} "$CODE_DIR/training/torchrun.py"{_nodes(plan)}'
        yield f"{started} --nproc-per-node={arguments.nproc(plan)} {first}".rstrip()
        yield from rest
        yield from [arguments.word(own, plan)] if own else quoting.packed([ours, *_flags(plan)])
    elif own and (plan.launcher or _may_inherit_rank(plan)):
        yield f'{python} "$CODE_DIR/training/task.py" --launcher {plan.launcher or "none"} -- {started}'
    elif own:
        yield f"{python} {started}"
    else:
        yield from quoting.packed([f"{python} {ours}", *_flags(plan)])


def _may_inherit_rank(plan: Plan) -> bool:
    """Whether a single trainer may find RANK and the like set by pyxis, an image, or the platform."""
    alone = plan.trainer is not None and not plan.mode.several_processes
    return alone and (plan.runtime.is_container or plan.profile.scheduler == "env")


def _nodes(plan: Plan) -> str:
    """Number of nodes and rank of this one, as flags of a launcher that can't see them."""
    if plan.profile.scheduler == "env":
        return ' --nnodes="$WORLD_SIZE" --node-rank="$RANK"'  # of the platform, which counts nodes
    return ' --nnodes="$SLURM_NNODES"' if plan.launcher == "torchrun" and plan.nodes > 1 else ""


def _flags(plan: Plan) -> Iterator[str]:
    """The bundled trainer's flags that follow from the plan."""
    yield '--run-dir "$RUN_DIR"'
    if uses_data(plan):
        yield '--data-dir "$DATA_DIR"'
    yield f"--resume {arguments.resume(plan)}"
    if device := _device(plan):
        yield f"--device {device}"
    if plan.mode.flag:
        yield plan.mode.flag
    if plan.launcher != "torchrun":
        yield f"--launcher {plan.launcher or 'none'}"
    if plan.launcher == "spawn":
        yield f"--nproc-per-node={arguments.nproc(plan)}{_nodes(plan)}"


def _device(plan: Plan) -> str:
    """The device that the trainer must use: no silent training on CPUs while GPUs are idle."""
    if not plan.mode.uses_gpus:
        return "cpu"
    return "cuda" if plan.gpus_per_node or plan.shards else ""


def _dataset(args: Sequence[str]) -> str:
    """The bundled trainer's --dataset; the last one counts, as argparse has it."""
    dataset = "mnist"
    for place, arg in enumerate(args):
        if arg.startswith("--dataset="):
            dataset = arg.partition("=")[2]
        elif arg == "--dataset" and place + 1 < len(args):
            dataset = args[place + 1]
    return dataset
