"""Rules for the restarts, options, variables and arguments of a resolved job: SB025 to SB057, and SB126.

Other rules judge the job's request to Slurm, because scripts have such a request as well.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from sbatchgen.base.finding import Place
from sbatchgen.base.quoting import ALSO, directive
from sbatchgen.base.texts import Requeue
from sbatchgen.base.units import VARIABLE
from sbatchgen.check.rules.option_values import BAD_VALUE, sbatch_refusal
from sbatchgen.check.rules.rule import Hit, Rules
from sbatchgen.check.script.job import CONTAINER_EFFECT
from sbatchgen.jobs.inputs.layers import Level, Origin
from sbatchgen.jobs.inputs.options import LONG_NAMES
from sbatchgen.jobs.inputs.start_settings import NETWORK_VARIABLES
from sbatchgen.jobs.judge.job_check import JudgedJob
from sbatchgen.jobs.render.launch import needs_rendezvous, uses_data
from sbatchgen.jobs.resolved.resolved_job import BY_PROGRAMS, JobProgram, ResolvedJob
from sbatchgen.jobs.runtimes.base import NoFacts

RULES: Rules[JudgedJob] = Rules(source="docs/reference/job.md")

# Options whose values sbatchgen does not parse, so a rule asks sbatch's parser about them.
_UNPARSED_OPTIONS = "begin deadline distribution hint mail_type nodelist signal switches".split()  # noqa: SIM905
_EXPEDITE_SINCE = "25.11"  # the first release of Slurm with --requeue=expedite
# Each task has its own values of these variables. The batch script has those of its only task (sbatch(1),
# OUTPUT ENVIRONMENT VARIABLES).
_TASK_VARIABLES = ("SLURM_LOCALID", "SLURM_NODEID", "SLURM_PROCID", "SLURM_TASK_PID", "SLURM_STEP_GPUS")
_RANK_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
# "$HOME" or "$(hostname)": bash expands both, but in values of `env` a job expands only ${NAME}.
_UNEXPANDED = re.compile(r"\$(?:[A-Za-z_]\w*|\()")


@RULES.add("SB025", "warning", "a signal that the script does not handle")
def _signal_handled(job: JudgedJob) -> Iterator[Hit]:
    resolved, signal = job.resolved, job.resolved.options.signal
    is_written = resolved.origin("options.signal").level > Level.DEFAULT
    if signal and is_written and resolved.options.time and resolved.restartable:
        from signal import SIGUSR1

        from sbatchgen.check.sbatch.values import read_signal

        setting = read_signal(signal)
        if setting and ("B" not in setting.flags or setting.number != SIGUSR1):
            what = f"the script waits for USR1 to the batch shell, not for '{signal}'"
            yield Hit(job.at("options.signal"), what, f"set it to B:USR1@{setting.seconds}")


@RULES.add("SB026", "warning", "restarts without requeue")
def _requeue_allowed(job: JudgedJob) -> Iterator[Hit]:
    options = job.resolved.options
    restarts = job.resolved.restartable and not job.resolved.consecutive
    if options.requeue is False and restarts and options.signal and options.time:
        what = "requeue is off: the job can't be started again before its time limit"
        fix = "remove requeue, or continue in other jobs with --chain N, or set --max-restarts 0"
        yield Hit(job.at("options.requeue"), what, fix)


@RULES.add("SB055", "error", "an expedited requeue that can't work")
def _expedite(job: JudgedJob) -> Iterator[Hit]:
    resolved, at = job.resolved, job.at("options.requeue")
    if not (resolved.uses_slurm and isinstance(resolved.options.requeue, Requeue)):
        return  # a Requeue is the word "expedite"; other values are true or false
    if job.slurm < _EXPEDITE_SINCE:
        what = f"requeue: expedite came with Slurm {_EXPEDITE_SINCE}: sbatch {job.slurm} refuses the script"
        yield Hit(at, what, "write requeue: true")
    if resolved.consecutive:
        what = "Slurm holds an expedited job that ends with a status above 0: the next of the chain never "
        what += "starts"
        yield Hit(at, what, "write requeue: false, or remove the chain")


@RULES.add("SB056", "warning", "a hang after which the job can't do what was asked for")
def _hang_action(job: JudgedJob) -> Iterator[Hit]:
    resolved, at = job.resolved, job.at("hang")
    if resolved.hang not in ("stop", "requeue"):
        return
    if resolved.env.get("HANG_AFTER") == "off":
        yield Hit(
            job.at("env.HANG_AFTER"), "HANG_AFTER is off: no hang is looked for", "remove it, or remove hang"
        )
    elif resolved.launcher == "ft_launcher":
        what = "ft_launcher has heartbeats of its own: sbatchgen does not look for hangs of its ranks"
        yield Hit(at, what, "remove hang, or use launcher torchrun")
    elif resolved.hang == "requeue" and not resolved.uses_slurm:
        yield Hit(at, "without Slurm a hang ends the job: nothing starts it again", "write hang: stop")
    elif resolved.hang == "requeue" and not resolved.restartable:
        what = "a hang ends the job: it has no restarts"
        how = "set max_restarts to 1 or more" if resolved.stoppable else "set resume: auto"
        yield Hit(at, what, f"{how}, or write hang: stop")


@RULES.add(*BAD_VALUE)
def _option_values(job: JudgedJob) -> Iterator[Hit]:
    if not job.resolved.uses_slurm:
        return
    for name in _UNPARSED_OPTIONS:
        key = f"options.{name}"
        value = getattr(job.resolved.options, name)
        if value and job.resolved.origin(key).level > Level.DEFAULT:
            refusal = sbatch_refusal(LONG_NAMES[name], str(value), job.slurm)
            if refusal:
                yield Hit(job.at(key), *refusal)


@RULES.add("SB028", "error", "an extra option that does not work as a directive")
def _extra_options(job: JudgedJob) -> Iterator[Hit]:
    for name, value in job.resolved.extra_options.items():
        at = job.at(f"extra_options.{name}")
        if name == "environment":
            fix = f"write runtimes: {{edf: {{environment: {value}}}}} and runtime: edf in the profile"
            yield Hit(at, f"--{name} {CONTAINER_EFFECT}", fix, "warning")
        elif job.resolved.uses_slurm and _is_missing_here(job, name):
            what = f"sbatch has no option --{name} on cluster '{job.profile.name}': it refuses the script"
            yield Hit(at, what, f"remove {name}, or name it in the profile's plugin_options")
        elif job.resolved.uses_slurm and _is_from_command_line(job, name) and _is_in_no_release(job, name):
            what = (
                f"sbatch itself has no option --{name}: unless a plugin of the site adds it, sbatch refuses "
            )
            yield Hit(at, f"{what}the script", f"sbatch --help | grep -e --{name}, on the cluster", "warning")
        elif job.resolved.uses_slurm and (what := _misreading(job, name, value)):
            yield Hit(at, what, f"give --{name} a value as in sbatch(1), or true if it takes none")


def _is_missing_here(job: JudgedJob, name: str) -> bool:
    """Return whether the profile says that its cluster lacks an option of sbatch.

    That is so if the profile lists the options of plugins, and neither they nor sbatch have the option.
    """
    from sbatchgen.check.script.known_options import releases_with_option

    with_option, plugin_options = releases_with_option(name), job.profile.plugin_options
    # Without the cluster's release, an option of any release may be there.
    in_sbatch = bool(with_option) if job.is_release_assumed else job.slurm[:5] in with_option
    return plugin_options is not None and not in_sbatch and not {name, f"{name}="} & {*plugin_options}


def _is_from_command_line(job: JudgedJob, name: str) -> bool:
    """Return whether an extra option was given on the command line."""
    return job.resolved.origin(f"extra_options.{name}").level is Level.COMMAND_LINE


def _is_in_no_release(job: JudgedJob, name: str) -> bool:
    """Return whether no known release of sbatch has an option, and the profile says nothing of plugins."""
    from sbatchgen.check.script.known_options import releases_with_option

    return job.profile.plugin_options is None and not releases_with_option(name)


def _misreading(job: JudgedJob, name: str, value: str) -> str:
    """Return a message that sbatch refuses or misreads an extra option; "" if sbatch reads the option right.

    The function reads a script with the option and a second directive. If the option lacks its value, sbatch
    takes the second directive for the value. If the option takes no value, sbatch refuses a value.
    """
    from sbatchgen.check.sbatch.reader import read_script
    from sbatchgen.check.script.known_options import plugin_specs, releases_with_option

    with_option = releases_with_option(name)
    release = job.slurm if not with_option or job.slurm in with_option else with_option[-1]
    plugins = () if with_option else plugin_specs((name if value == "true" else f"{name}=",))
    line = directive(name, "" if value == "true" else value)
    # sbatch refuses options such as --cpus-per-gpu in a script without GPUs.
    gpus = "#SBATCH --gpus=1\n" if name.endswith("-per-gpu") and job.resources.gpu_option else ""
    header = f"{gpus}#SBATCH {line}\n#SBATCH --comment=next\n"
    script = read_script(f"#!/bin/bash\n{header}", slurm=release, plugin_options=plugins)
    if name in script.options and "comment" not in script.options:
        return f"--{name} needs a value: Slurm would take the next directive for it"
    return f"--{name} {value}: Slurm says: {script.refusal.text or 'no'}" if script.refusal else ""


@RULES.add("SB029", "error", "a variable of the job that changes its own paths")
def _env_leaves_paths_alone(job: JudgedJob) -> Iterator[Hit]:
    resolved = job.resolved
    profile = resolved.profile
    paths = (resolved.run_dir, resolved.data, resolved.resume, profile.paths.code)
    runtime_values = [*resolved.software.values(), *vars(resolved.facts or NoFacts()).values()]
    runtime_paths = [
        path for value in runtime_values for path in (value if isinstance(value, tuple) else (value,))
    ]
    all_paths = [path for path in (*paths, *runtime_paths) if isinstance(path, str)]
    variable_names = [name for name, value in resolved.env.items() if value is not None]
    for name in variable_names:
        if path := next((path for path in all_paths if f"${{{name}}}" in path), ""):
            what = f"the job sets {name}, so its path {path} changes while the script runs"
            fix = f"write the path without ${{{name}}}, or set another variable"
            yield Hit(job.at(f"env.{name}"), what, fix)


@RULES.add("SB036", "error", "a variable of tasks in a value of the whole job")
def _env_with_task_variables(job: JudgedJob) -> Iterator[Hit]:
    for name, value in job.resolved.env.items():
        for variable in sorted({*_TASK_VARIABLES, *_RANK_VARIABLES} & {*VARIABLE.findall(value or "")}):
            what = f"{name} is set before any task starts, so {variable} has no task's value there"
            fix = f"set it in each task: setup_per_task: ['export {name}=...'], in the profile"
            yield Hit(job.at(f"env.{name}"), what, fix)


@RULES.add("SB037", "warning", "a variable that the job does not expand")
def _env_literal(job: JudgedJob) -> Iterator[Hit]:
    for name, value in job.resolved.env.items():
        if match := _UNEXPANDED.search(VARIABLE.sub("", value or "")):
            what = f"{name} gets the text {match[0]}... as it is: the job expands only ${{NAME}}"
            yield Hit(job.at(f"env.{name}"), what, "write ${NAME}, or export it in the profile's setup")


@RULES.add("SB030", "error", "a requeue_on_timeout that can't work")
def _requeue_on_timeout(job: JudgedJob) -> Iterator[Hit]:
    resolved, key = job.resolved, "requeue_on_timeout"
    if not resolved.requeue_on_timeout:
        return
    if resolved.is_bundled:
        what = f"{key} is for other trainers: the bundled one asks for its restarts itself"
        yield Hit(job.at(key), what, f"remove {key}")
    elif resolved.uses_slurm and not resolved.restartable:
        reason = "max_restarts is 0" if resolved.stoppable else "resume is off"
        yield Hit(job.at(key), f"{key} needs restarts, but {reason}", f"remove {key}, or allow restarts")
    elif resolved.consecutive:
        what = f"{key} in a chain: the next job of the chain starts at the time limit anyway"
        is_flag = resolved.origin(key).level is Level.COMMAND_LINE
        yield Hit(job.at(key), what, "leave the option out" if is_flag else f"--set {key}=false")
    if resolved.requeue_on_node_fail:
        what = f"{key} and requeue_on_node_fail exclude each other"
        yield Hit(job.at(key), what, "remove one of them")


@RULES.add("SB032", "error", "an argument of the trainer that sbatchgen sets")
def _trainer_args(job: JudgedJob) -> Iterator[Hit]:
    if not job.resolved.is_bundled:
        return
    for arg in job.resolved.args:
        option = arg.split("=")[0]
        if option in ("--run-dir", "--data-dir", "--resume"):
            what = f"sbatchgen sets the trainer's {option} itself"
            yield Hit(job.at("args"), what, f"give {option} to sbatchgen, before the --")


@RULES.add("SB038", "error", "arguments for resuming that can't work")
def _resume_args(job: JudgedJob) -> Iterator[Hit]:
    resolved, at = job.resolved, job.at("resume_args" if job.resolved.resume_args else "checkpoint")
    if not resolved.resume_args and not resolved.checkpoint:
        return
    if resolved.is_bundled:
        what = "checkpoint and resume_args are for other trainers: the bundled one finds its checkpoints"
        yield Hit(at, f"{what} itself", "remove them")
    elif not resolved.checkpoint:
        what = "resume_args without checkpoint: the job can't know when the trainer needs them"
        yield Hit(at, what, "add the checkpoints' pattern, such as checkpoint: '{run_dir}/*/last.pt'")
    elif not resolved.resume_args:
        what = "checkpoint without resume_args: the trainer does not get it"
        fix = "name the option that takes it: resume_args: [--resume, '{checkpoint}']"
        yield Hit(at, what, f"{fix}{ALSO}remove checkpoint if the trainer finds its newest checkpoint itself")


@RULES.add("SB039", "warning", "an argument that looks like a placeholder and is not")
def _placeholders(job: JudgedJob) -> Iterator[Hit]:
    from sbatchgen.jobs.render import arguments

    resolved = job.resolved
    for key, program, texts in (
        ("args", "the trainer", resolved.args),
        ("resume_args", "the trainer", resolved.resume_args),
        ("checkpoint", "the trainer", [resolved.checkpoint]),
        ("launcher_args", "torchrun", resolved.launcher_args if resolved.launcher == "torchrun" else ()),
    ):
        for text in (text for text in texts if text and "{" in text):
            for word, meant in arguments.mistyped(text, resolved.sweep.names if resolved.sweep else ()):
                what = f"{word} is not a placeholder: {program} gets it as it is"
                yield Hit(job.at(key), what, f"write {meant}")
            if key == "resume_args":
                continue
            for name in arguments.CHECKPOINT_PLACEHOLDERS:
                if name in arguments.names(text):
                    what = f"{{{name}}} is known only in resume_args"
                    yield Hit(job.at(key), what, "write resume_args: [--resume, '{checkpoint}']", "error")


@RULES.add("SB033", "error", "a chain that can't work")
def _chain(job: JudgedJob) -> Iterator[Hit]:
    resolved, key = job.resolved, "chain"
    if resolved.chain == 1:
        return
    if not resolved.uses_slurm:
        what = f"a chain needs Slurm, which profile '{resolved.profile.name}' does not have"
        yield Hit(job.at(key), what, f"remove {key}")
    if not resolved.stoppable:
        what = "a chain with resume off: each of its jobs would start training from the beginning"
        yield Hit(job.at(key), what, "remove chain, or turn resume on")
    if resolved.options.array:
        what = "chain and array exclude each other"
        yield Hit(job.at(key), what, f"remove one of them; --array 1-{resolved.chain}%1 is a chain, too")
    if "${SLURM_" in resolved.run_dir:
        what = f"each job of the chain would have its own run folder: {resolved.run_dir}"
        yield Hit(job.at("run_dir"), what, "name a run folder without variables of Slurm")


@RULES.add("SB034", "error", "a variable that --export keeps from the job")
def _unexported_variables(job: JudgedJob) -> Iterator[Hit]:
    export = job.resolved.options.export or "ALL"
    exported = {item.partition("=")[0] for item in export.split(",")}
    for name in job.resolved.inherited:
        if name not in exported and "ALL" not in export.upper().split(","):
            what = f"the job does not get {name} from the shell that submits: --export={export} leaves it out"
            yield Hit(job.at("options.export"), what, f"add {name} to --export, or remove --export")


@RULES.add("SB035", "error", "a value with line breaks for Enroot")
def _line_breaks(job: JudgedJob) -> Iterator[Hit]:
    why_not = job.resolved.runtime.why_one_line_values
    if not why_not:
        return
    for name, value in job.resolved.env.items():
        if value and "\n" in value:
            what = f"{name} has line breaks: {why_not}"
            fix = "write it in one line, or into a file that the trainer reads"
            yield Hit(job.at(f"env.{name}"), what, fix)


@RULES.add("SB044", "info", "a save that the image's mount may not survive")
def _save_at_preemption(job: JudgedJob) -> Iterator[Hit]:
    resolved = job.resolved
    saves_at_preemption = resolved.uses_slurm and resolved.partition.preemption and resolved.asks_to_stop
    # The bundled trainer has loaded all modules that a save needs before the image's mount ends.
    if resolved.is_bundled or not saves_at_preemption:
        return
    if fault := resolved.runtime.fault_of_saving(resolved):
        what = f"jobs of other partitions may preempt this one, and {fault.what}"
        yield Hit(job.at(fault.key), what, fault.fix)


def _is_trainer(program: JobProgram) -> bool:
    """Return whether a program is a trainer, not a command."""
    return not program.job.is_command


def _is_parallel(program: JobProgram) -> bool:
    """Return whether a program is a trainer of several processes."""
    return _is_trainer(program) and program.job.mode.several_processes


def _has_srun_ranks(program: JobProgram) -> bool:
    """Return whether a program is a trainer whose processes are tasks of srun."""
    return _is_trainer(program) and program.job.launcher == "srun"


def _can_resume(program: JobProgram) -> bool:
    """Return whether a program may be resumed, which only a trainer that is the main program can be."""
    return program.share.is_main and _is_trainer(program)


# Keys of a job that only some programs use, each with a function that tells whether a program uses the key.
_IS_USED_BY: dict[str, Callable[[JobProgram], bool]] = {
    "mode": lambda program: _is_trainer(program) and program.spec.mode is None,
    "trainer": _is_trainer,
    "args": _is_trainer,
    "data": lambda program: uses_data(program.job),
    "nproc_per_node": _is_parallel,
    "resume": _can_resume,
    "max_restarts": _can_resume,
    "python": lambda program: _is_trainer(program) or bool(program.share.preset),
    "starter": _has_srun_ranks,
    "gpu_visibility": _has_srun_ranks,
    "master_addr": lambda program: needs_rendezvous(program.job) and not program.share.first_node,
    **{f"network.{name}": _is_parallel for name in NETWORK_VARIABLES},
    "options.cpus_per_task": lambda program: program.spec.cpus is None and not program.spec.beside,
    "options.gpus_per_node": lambda program: program.spec.gpus is None and not program.spec.beside,
}


# Keys of a program that have an effect only in the main program.
_RESUME_KEYS = ("checkpoint", "resume_args")
# Keys of a program that have an effect only if the program is a trainer.
_TRAINER_KEYS = ("launcher", "nproc_per_node", "launcher_args", *_RESUME_KEYS)


def _keys_without_effect(program: JobProgram) -> Iterator[tuple[str, str]]:
    """Yield the keys of a program that have no effect, each with the reason."""
    for key in _TRAINER_KEYS:
        if getattr(program.spec, key) is not None and not _is_trainer(program):
            yield key, "is a command"
    for key in _RESUME_KEYS:
        if getattr(program.spec, key) is not None and _is_trainer(program) and not program.share.is_main:
            yield key, "is not the main program, which alone is stopped and resumed"
    if program.spec.restarts and program.share.is_main:
        yield "restarts", "is the main program, whose end is that of the job"


def _user_origin(resolved: ResolvedJob, key: str) -> Origin | None:
    """Return where the user wrote a key of the job or of its programs; None if the user wrote no such key.

    Overridden values also count, but not an overridden `resume: off`, because most programs never resume.
    """
    for job in resolved.jobs:
        for overridden_value, origin in [(None, job.origin(key)), *job.overridden.get(key, ())]:
            is_of_user = origin.level >= Level.PROJECT and str(origin) not in ("", BY_PROGRAMS)
            if is_of_user and not (key == "resume" and overridden_value == "off"):
                return origin
    return None


@RULES.add("SB057", "warning", "a key that no program of the job uses")
def _unused_keys(job: JudgedJob) -> Iterator[Hit]:
    resolved = job.resolved
    if resolved.programs:
        for key, is_used_by in _IS_USED_BY.items():
            origin = _user_origin(resolved, key)
            runs_in_preflight = key == "python" and resolved.settings.preflight
            if origin is None or runs_in_preflight:
                continue
            programs = [program for program in resolved.programs if is_used_by(program)]
            if not any(program.job.origin(key) == origin for program in programs):
                name = key.rpartition(".")[2]
                what = f"no program of the job uses its key {name}: each sets its own, or needs none"
                yield Hit(Place(str(origin)), what, f"remove {name}, or set it in a program", "warning")
    for program in resolved.programs:
        for key, why in _keys_without_effect(program):
            what = f"{key} of {program.name} does nothing: {program.name} {why}"
            yield Hit(job.at(f"programs.{program.name}"), what, f"remove {key}", "warning")
