"""Does the plan make sense, and does it fit the cluster? Every finding at once, each with a fix.

What only a plan can get wrong is here: modes, launchers, runtimes, trainers. What the job asks of Slurm is
judged by the rules, as it is in scripts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from sbatchgen.errors import Problem
from sbatchgen.finding import Finding
from sbatchgen.inputs.layers import Level
from sbatchgen.inputs.options import GPU_OPTIONS, LONG_NAMES, NAMES, POSITIVE
from sbatchgen.plan.plan import Plan
from sbatchgen.quoting import directive
from sbatchgen.rules.judge import judge
from sbatchgen.subject.ask import DEFAULT_SLURM, Ask

# sbatch obeys or ignores these in a directive, never as a job's author means it.
NOT_IN_A_SCRIPT = ("help", "parsable", "quiet", "test-only", "usage", "verbose", "version", "wait", "wrap")

# Options whose values are texts here, and more than that to sbatch.
JUDGED_BY_SBATCH = (
    "begin",
    "deadline",
    "distribution",
    "hint",
    "mail_type",
    "nodelist",
    "signal",
    "switches",
)
_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


def check(plan: Plan, *, log_folders_made: bool = False) -> list[Finding]:
    """All findings of a plan, errors first; `log_folders_made` where somebody makes the logs' folders."""
    findings = [finding for rule in RULES for finding in rule(plan)]
    if plan.slurm:
        findings += judge(
            Ask(
                job=plan.resources,
                profile=plan.profile,
                slurm=plan.profile.slurm or DEFAULT_SLURM,
                makes_log_folders=log_folders_made,
            )
        )
    return sorted(findings, key=lambda finding: finding.severity != "error")


def error(plan: Plan, key: str, what: str, fix: str, *, fit: bool = False) -> Finding:
    """What is wrong with a key of a job, where it was written, and how to mend it."""
    return Finding("error", Problem(what, str(plan.origin(key)), fix), fit)


def _warning(plan: Plan, key: str, what: str, fix: str) -> Finding:
    return Finding("warning", Problem(what, str(plan.origin(key)), fix))


def _counts(plan: Plan) -> Iterator[Finding]:
    for name in POSITIVE:
        value = getattr(plan.options, name)
        if value is not None and value < 1:
            yield error(plan, f"options.{name}", f"{name} is {value}", f"set {name} to at least 1")
    if plan.nproc_per_node < 1:
        yield error(plan, "nproc_per_node", f"nproc_per_node is {plan.nproc_per_node}", "set it to 1 or more")
    if plan.max_restarts < 0:
        yield error(plan, "max_restarts", "max_restarts is negative", "0 means: never start again")
    time = plan.options.time
    if time is not None and time < 60:
        yield error(plan, "options.time", f"time {time} is no limit to Slurm", "set at least 00:01:00")


def _mode_shape(plan: Plan) -> Iterator[Finding]:
    nodes, tasks = plan.nodes, plan.options.ntasks_per_node
    if plan.mode != "ddp" and nodes > 1:
        what = f"mode '{plan.mode}' runs on one node, but {nodes} were asked for"
        yield error(plan, "options.nodes", what, "use mode ddp, or --nodes 1")
    if plan.options.ntasks is not None:
        what = "ntasks leaves it to Slurm how many tasks each node gets, 3 and 1 as well as 2 and 2"
        yield error(plan, "options.ntasks", what, "use --nodes and --ntasks-per-node")
    wanted = plan.nproc_per_node if plan.launcher == "srun" else 1
    if tasks is not None and tasks != wanted:
        who = f"launcher {plan.launcher}" if plan.launcher else f"mode {plan.mode}"
        what = f"{who} wants {wanted} task{'s' * (wanted > 1)} a node, but ntasks_per_node is {tasks}"
        yield error(plan, "options.ntasks_per_node", what, f"remove it, or set it to {wanted}")
    if plan.mode == "single" and plan.gpus_per_node > 1:
        what = f"mode 'single' uses one GPU, but {plan.gpus_per_node} were asked for"
        yield error(plan, _gpu_key(plan), what, "ask for 1, or use mode ddp")
    if plan.mode == "cpu":
        for name in GPU_OPTIONS:
            if getattr(plan.options, name) is not None:
                yield error(plan, f"options.{name}", "mode 'cpu' uses no GPU", f"remove {name}")
    gpus = plan.gpus_per_node
    if plan.mode == "ddp" and gpus and plan.nproc_per_node != gpus:
        what = f"{plan.nproc_per_node} processes a node for {gpus} GPUs a node"
        fix = (
            f"set --nproc-per-node {gpus}" if plan.nproc_per_node < gpus else "NCCL wants a GPU for each rank"
        )
        kind = _warning if plan.nproc_per_node < gpus else error
        yield kind(plan, "nproc_per_node", what, fix)
    if plan.mode == "dataparallel":
        what = "DataParallel is slower than DDP, also on one node"
        yield _warning(plan, "mode", what, "mode ddp with --nodes 1 does the same work")


def _gpu_key(plan: Plan) -> str:
    given = [f"options.{name}" for name in GPU_OPTIONS if getattr(plan.options, name) is not None]
    return given[0] if given else ""


def _gpus_known(plan: Plan) -> Iterator[Finding]:
    unknown = plan.slurm and not (plan.gpus_per_node or plan.shards or plan.partition.gpus_per_node)
    told = plan.origin("nproc_per_node").level > Level.DEFAULT
    if plan.mode in ("dataparallel", "ddp") and unknown and not told:
        what = f"how many GPUs a node has is not known for profile '{plan.profile.name}'"
        yield error(plan, "", what, "add --gpus-per-node N (or, on CPUs, --nproc-per-node N)")


def _shards(plan: Plan) -> Iterator[Finding]:
    """Shares of one GPU, for what needs several."""
    if plan.shards and plan.mode == "dataparallel":
        what = "shards lie on one GPU, but several ranks or replicas want one each (NCCL: duplicate GPU)"
        fix = "use mode single, or ddp with --nproc-per-node 1, or whole GPUs"
        yield error(plan, "options.gres", what, fix)
    if plan.shards and plan.slurm and not plan.partition.shards_per_gpu and plan.profile.partitions:
        what = f"profile '{plan.profile.name}' knows of no shards in this partition"
        fix = "set shards_per_gpu in the profile if the cluster has them"
        yield _warning(plan, "options.gres", what, fix)


def _runtime_ready(plan: Plan) -> Iterator[Finding]:
    needs = {
        "venv": (plan.venv, "the path of the virtual environment", "--venv PATH"),
        "conda": (plan.conda_env, "the conda environment", "--conda-env NAME"),
        "apptainer": (plan.image, "an image", "--image FILE.sif"),
        "enroot": (plan.image, "an image", "--image FILE.sqsh"),
    }
    if plan.runtime in needs:
        value, what, fix = needs[plan.runtime]
        if not value:
            yield error(plan, "runtime", f"runtime '{plan.runtime}' needs {what}", f"add {fix}")
    if plan.runtime == "enroot":
        if not plan.slurm:
            what = "runtime 'enroot' is started by pyxis, a plugin of Slurm, and there is no Slurm here"
            yield error(plan, "runtime", what, "use --runtime host, venv, conda or apptainer")
        image = plan.image or ""
        if image.endswith(".sqsh") and not image.startswith(("/", ".", "${")):
            what = f"pyxis takes '{image}' for the address of a registry, not for a file"
            yield error(plan, "image", what, f"write ./{image}, or the absolute path")
    registry = bool(plan.image) and ("://" in str(plan.image))
    if plan.runtime in ("apptainer", "enroot") and registry and plan.nodes > 1:
        what = f"each of {plan.nodes} nodes fetches {plan.image} from its registry"
        yield _warning(plan, "image", what, "import it once to a file on the shared file system")
    for bind in plan.binds:
        if bind.count(":") > 1 or "," in bind:
            what = f"'{bind}' can't be bound: a comma or a second colon would be split"
            yield error(plan, "binds", what, "bind a link without them")


def _launcher_possible(plan: Plan) -> Iterator[Finding]:
    if plan.launcher == "srun" and not plan.slurm:
        what = f"launcher 'srun' needs Slurm, which profile '{plan.profile.name}' does not have"
        yield error(plan, "launcher", what, "use --launcher torchrun or spawn")
    given = plan.origin("launcher")
    if plan.mode != "ddp" and given.level >= Level.PROJECT:
        what = f"mode '{plan.mode}' starts one process: the launcher is ignored"
        yield Finding("warning", Problem(what, given.where, "remove the launcher, or use mode ddp"))
    if plan.profile.scheduler == "none" and plan.nodes > 1:
        what = f"profile '{plan.profile.name}' is one machine, but {plan.nodes} nodes were asked for"
        yield error(plan, "options.nodes", what, "use --nodes 1, or --profile with a cluster", fit=True)


def _signal_is_served(plan: Plan) -> Iterator[Finding]:
    signal = plan.options.signal
    if not signal or not plan.options.time or not plan.slurm:
        return
    if plan.restartable and plan.origin("options.signal").level > Level.DEFAULT:
        from signal import SIGUSR1

        from sbatchgen.sbatch.grammar import signal as read  # our own needs no reader

        found = read(signal, slurm=plan.profile.slurm or DEFAULT_SLURM)
        if found and ("B" not in found[0] or found[1] != SIGUSR1):
            what = f"the script waits for USR1 to the batch shell, not for '{signal}'"
            yield _warning(plan, "options.signal", what, f"write B:USR1@{found[2]}")
    if plan.options.requeue is False and plan.restartable:
        what = "requeue is off, so the job can't be started again before its time limit"
        yield _warning(plan, "options.requeue", what, "remove it, or set --max-restarts 0")


def _options_are_words(plan: Plan) -> Iterator[Finding]:
    for name in ("gpus", "gpus_per_node", "gpus_per_task"):
        value = getattr(plan.options, name)
        if value is not None and not re.fullmatch(r"(?:[\w.-]+:)?[1-9]\d*", value):
            what = f"{name} '{value}' is not [type:]count"
            yield error(plan, f"options.{name}", what, "write 4, or a100:4")
    if plan.options.open_mode not in (None, "append", "truncate"):
        what = f"open_mode '{plan.options.open_mode}' is not append or truncate"
        yield error(plan, "options.open_mode", what, "remove it: append is the default here")
    for name in NAMES:
        if str(getattr(plan.options, name)) == "":
            yield error(plan, f"options.{name}", f"{name} is empty", f"remove {name}")


def _values_are_taken(plan: Plan) -> Iterator[Finding]:
    """What sbatch says of the values that somebody wrote, as it would of those in a script."""
    for name in JUDGED_BY_SBATCH if plan.slurm else ():
        value, origin = getattr(plan.options, name), plan.origin(f"options.{name}")
        if value and origin.level > Level.DEFAULT:
            from sbatchgen.rules.values import refused

            found = refused(LONG_NAMES[name], str(value), plan.profile.slurm or DEFAULT_SLURM)
            if found:
                yield Finding("error", Problem(found[0], str(origin), found[1]), rule="SB126")


def _extra_options(plan: Plan) -> Iterator[Finding]:
    for name, value in plan.extra_options.items():
        key = f"extra_options.{name}"
        if not re.fullmatch(r"[a-z][a-z0-9-]*[a-z0-9]", name):
            yield error(plan, key, f"'{name}' is not the long name of an option", "write it without dashes")
        elif name in NOT_IN_A_SCRIPT:
            yield error(plan, key, f"--{name} has no place in a script", "give it to sbatch itself")
        elif name.replace("-", "_") in NAMES:
            yield error(plan, key, f"--{name} is an option that sbatchgen knows", f"set options.{name}")
        elif value == "":
            yield error(plan, key, f"--{name} has no value", "write true for an option that takes none")
        elif plan.slurm and (what := _read_otherwise(plan, name, value)):
            yield error(plan, key, what, f"write what sbatch(1) says of --{name}: a value, or true for none")


def _read_otherwise(plan: Plan, name: str, value: str) -> str:
    """What sbatch would make of an extra option that is not what was meant; "" if it is.

    An option that needs a value takes the next directive for it; one that takes none refuses any.
    """
    from sbatchgen.sbatch import read
    from sbatchgen.subject.vocabulary import of_plugins, releases

    known = releases(name)
    release = plan.profile.slurm or DEFAULT_SLURM
    if known and release not in known:
        release = known[-1]
    plugins = () if known else of_plugins((name if value == "true" else f"{name}=",))
    line = directive(name, "" if value == "true" else value)
    header = f"#SBATCH {line}\n#SBATCH --comment=next\n"
    script = read(f"#!/bin/bash\n{header}", slurm=release, plugin_options=plugins, folder="/")
    found, following = script.options.get(name), script.options.get("comment")
    if following is None and found is not None:
        return f"--{name} needs a value: Slurm would take the next directive for it"
    wrong = [message.text for message in script.messages if message.level in {"fatal", "error", ""}]
    if script.returncode is not None or wrong:
        return f"--{name} {value}: Slurm says: {wrong[0] if wrong else 'no'}"
    return ""


def _env_leaves_paths_alone(plan: Plan) -> Iterator[Finding]:
    """A variable that a path of the job holds may not change while the script runs."""
    paths = (plan.run_dir, plan.data, plan.image, plan.venv, plan.conda_env, plan.resume, *plan.binds)
    places = (plan.profile.paths.code, plan.profile.runtimes.enroot.workdir, plan.profile.runtimes.conda.root)
    for name in plan.env:
        holding = [path for path in (*paths, *places) if path and f"${{{name}}}" in path]
        if holding:
            what = f"{name} is set by the job, but a path of it holds ${{{name}}}: {holding[0]}"
            yield error(
                plan, f"env.{name}", what, f"write the path without ${{{name}}}, or set another variable"
            )


def _requeue_on_timeout(plan: Plan) -> Iterator[Finding]:
    if not plan.requeue_on_timeout:
        return
    key = "requeue_on_timeout"
    if plan.trainer is None:
        what = f"{key} is for trainers that resume by themselves: the bundled one asks for its restarts"
        yield error(plan, key, what, f"remove {key}")
    elif plan.slurm and not plan.restartable:
        what = f"{key} needs restarts, but " + (
            "resume is off" if not plan.stoppable else "max_restarts is 0"
        )
        yield error(plan, key, what, "remove one of the two")
    if plan.requeue_on_node_fail:
        what = f"{key} and requeue_on_node_fail exclude each other"
        yield error(plan, key, what, "remove one of them")


def _trainer_can_start(plan: Plan) -> Iterator[Finding]:
    trainer = plan.trainer
    if trainer is not None and (not trainer or trainer.startswith("-")):
        yield error(plan, "trainer", f"'{trainer}' can't be a trainer", "give a file, or a module's name")
    elif trainer is not None and not (
        "/" in trainer or trainer.endswith(".py") or _MODULE.fullmatch(trainer)
    ):
        yield error(plan, "trainer", f"'{trainer}' is neither a file nor a module", f"write ./{trainer}")
    if trainer is None:
        taken = [arg for arg in plan.args if arg.split("=")[0] in ("--run-dir", "--data-dir", "--resume")]
        for arg in taken:
            option = arg.split("=")[0]
            what = f"{option} of the trainer is set by sbatchgen, which has to know it too"
            yield error(plan, "args", what, f"give {option} to sbatchgen, before the --")


RULES: tuple[Callable[[Plan], Iterator[Finding]], ...] = (
    _counts,
    _mode_shape,
    _gpus_known,
    _shards,
    _runtime_ready,
    _launcher_possible,
    _signal_is_served,
    _options_are_words,
    _values_are_taken,
    _extra_options,
    _env_leaves_paths_alone,
    _requeue_on_timeout,
    _trainer_can_start,
)
