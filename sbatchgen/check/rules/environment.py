"""Rules about what surrounds the programs of a script: variables, folders, the shell, CPUs and visible GPUs.

Sources: sbatch(1), srun(1) and the FAQ of Slurm; the environment variables of NCCL's and PyTorch's
documentation; bash(1) and execve(2).
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator
from itertools import zip_longest

from sbatchgen.base.finding import Edit, Severity
from sbatchgen.base.quoting import counted
from sbatchgen.check.bash import Assignment, Body, Command, Word
from sbatchgen.check.executables.program import programs
from sbatchgen.check.rules.edits import insert_line_before
from sbatchgen.check.rules.names import values_of
from sbatchgen.check.rules.rule import Applies, Hit, Rules
from sbatchgen.check.rules.software import PREPARING_PROGRAMS
from sbatchgen.check.sbatch.option_table import HasArgument, specs, variables
from sbatchgen.check.script.launches import Launch
from sbatchgen.check.script.script import JobScript

RULES: Rules[JobScript] = Rules()

_DISK_PAGE = "https://docs.computecanada.ca/wiki/Using_$SLURM_TMPDIR"
_GLOO_PAGE = "https://docs.pytorch.org/docs/stable/distributed.html"
_GLOO_IFNAME = "GLOO_SOCKET_IFNAME"
LONG_JOB_S = 3600  # people watch the log of a job with a time limit of this many seconds or more
_FOLDER_PROGRAMS = programs("folders")  # dirname, cd and others that compute or enter a folder
# Variables that Slurm sets only for some options, such as SLURM_GPUS_PER_NODE: ["gpus-per-node"].
_NEEDED_OPTIONS = values_of("needed")
_NEW_NAMES = {old: new for old, (new,) in values_of("old").items()}  # SLURM_NPROCS -> SLURM_NTASKS
_SLOW_VALUES = values_of("slow")  # the slow values of each variable, such as NCCL_DEBUG: ["TRACE"]
_GPU_MASKS = ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")  # both choose which GPUs a process sees
# The value $NAME, ${NAME}, $((NAME)) or $((NAME % NUMBER)) of a variable.
_ONE_VARIABLE = re.compile(r'"?\$(?:(\w+)|\{(\w+)\}|\(\( *\$?\{?(\w+)\}?(?: *% *[\w$]+)? *\)\))"?')
_BASH_BUILTINS = programs("bash-only")  # builtins of bash that sh may lack
_ARRAY_ON_COMMAND_LINE = re.compile(r"--array\b|sbatch .*-a\b")  # such as a comment: sbatch -a 0-9 job.sh
# A first line with bash or a misspelt bash, such as #!/bin/bahs and #!/usr/bin/env bash.
_BASH_SHEBANG = re.compile(r"#! *(?:/usr)?/bin/(?:env +)?[bash]{4,5}\b")
# Options for data loading workers, such as --num-workers, -j and data.num_workers.
_WORKERS_OPTION = re.compile(
    r"(?:--|(?:--|\+)?(?:\w+\.)+)(?:data-?loader[-_])?(?:num[-_])?workers|-j|\+?num_workers"
)
# Options that may give a task more CPUs than --cpus-per-task.
_CPU_OPTIONS = frozenset(("exclusive", "cpus-per-gpu", "mincpus", "extra-node-info", "cores-per-socket"))
_JOB_TEST = re.compile(r"-[nvz][ \t]+[\"${]*SLURM_JOB_?ID\b")  # such as [ -n "$SLURM_JOB_ID" ]
# Options for the folder of results, such as --output_dir and --save-path.
_SAVE_OPTION = re.compile(r"--(?:ckpt|checkpoint|checkpoints|output|save|results?)[-_]?(?:dir|path|folder)?")
_LOCAL_PATH = re.compile(r"/(?:tmp|dev/shm|var/tmp)(?:/|$)|\$\{?(?:SLURM_)?TMPDIR\b")  # on a node's disk
_COPY_PROGRAMS = programs("copies")  # cp, rsync and others that may save results from the node's own disk


@RULES.add(
    "SB401",
    "warning",
    "the folder of Slurm's copy of the script",
    applies=Applies.JOB_SCRIPTS,
    words=("$0", "${0", "BASH_SOURCE"),
)
def _folder_of_copy(script: JobScript) -> Iterator[Hit]:
    """Find a script that computes its own folder, such as cd "$(dirname "$0")" or "${0%/*}"."""
    what = "Slurm runs a copy of the script in its spool folder: this is not the folder of your script"
    fix = 'write "$SLURM_SUBMIT_DIR", the folder in which sbatch is called, or the full path'
    reported_lines = set()
    if script.submits:  # the script itself is not a job, so $0 is its real path
        return
    if any("SUBMIT_DIR" in test.text or _JOB_TEST.search(test.text) for test in script.body.tests):
        return  # the script tests whether it is a job, and then usually takes another folder
    for use in script.body.variable_uses:
        if use.name not in ("0", "BASH_SOURCE") or use.line in reported_lines:
            continue
        command = script.body.command_around(use.at)
        text = script.body.source.text
        # The line up to the use. At most 300 characters are searched, so that long lines take little time.
        line_start = text[max(0, text.rfind("\n", 0, use.at), use.at - 300) : use.at]
        is_default = re.search(r"\$\{\w+:?-[^}]*$", line_start)  # as in ${SLURM_SUBMIT_DIR:-$(dirname $0)}
        if command and is_default:
            continue
        # A branch may be for runs without Slurm.
        is_in_folder_program = command and command.name in _FOLDER_PROGRAMS and not command.context.in_branch
        if is_in_folder_program or use.operator in ("%", "%%"):
            reported_lines.add(use.line)
            yield Hit(script.at_start(use), what, fix)


@RULES.add("SB404", "warning", "the steps do not get the environment of the script", words=("exp",))
def _lost_environment(script: JobScript) -> Iterator[Hit]:
    yield from _lost_path(script)
    export = script.option("export")
    exports_all = "export" not in script.options or "ALL" in export.upper().split(",")
    if exports_all or "SLURM_EXPORT_ENV" in script.assigned_names:  # srun obeys this variable
        return
    exports = any(assignment.is_exported for assignment in script.body.assignments)
    sets_variables = exports or script.named(*PREPARING_PROGRAMS, "conda", "spack")
    if not sets_variables and export.upper() in ("NONE", "NIL"):
        return  # Slurm loads the user's environment, and the script has no variables to lose
    for launch in script.steps:
        if launch.step is None or launch.step.option("export"):
            continue
        what = f"srun inherits --export={export}: what the script sets, even PATH, does not reach the tasks"
        if not sets_variables:
            what = f"--export={export} leaves out PATH and all else: srun may not find the program"
        line = "export SLURM_EXPORT_ENV=ALL"
        edits = insert_line_before(script, launch.command, line)
        yield Hit(script.at_word(launch.step.words[0]), what, f"{line} on a line before it", edits=edits)
        return


def _lost_path(script: JobScript) -> Iterator[Hit]:
    """Find steps that start a program without its path although their own --export leaves no PATH.

    On Slurm 22.05 and 26.05 such steps fail: "execve(): bash: No such file or directory".
    """
    for launch in script.steps:
        option = launch.step.option("export") if launch.step else None
        program = launch.step_program
        if not option or not option.value or not program or "$" in program.words[0].text:
            continue
        exported_names = {item.partition("=")[0].upper() for item in option.value.split(",")}
        if not {"ALL", "PATH"} & exported_names and "/" not in program.words[0].text:
            what = f"srun --export={option.value} leaves no PATH: the tasks don't find {program.name}"
            yield Hit(script.at_option_of(option), what, f"--export=ALL, or the full path of {program.name}")


@RULES.add(
    "SB427",
    "warning",
    "two masks of GPUs",
    source="https://rocm.docs.amd.com/en/latest/conceptual/gpu-isolation.html",
    words=("HIP_VISIBLE_DEVICES",),
    report="https://github.com/lumi-ai-factory/laifs-container-recipes/issues/13",
)
def _two_masks(script: JobScript) -> Iterator[Hit]:
    masks = {}  # the last assignment of each mask, and its value
    for assignment in script.body.assignments:
        if assignment.name in _GPU_MASKS and assignment.word and not assignment.context.in_branch:
            masks[assignment.name] = assignment, script.body.text_of(assignment.word)
    if len(masks) == len(_GPU_MASKS):
        assignment, value = masks["HIP_VISIBLE_DEVICES"]
        if not value.startswith("0"):  # GPU 0 always exists
            what = "HIP_VISIBLE_DEVICES chooses, by new numbers from 0, among the GPUs that "
            what += f"ROCR_VISIBLE_DEVICES leaves: {value} may be no GPU"
            yield Hit(script.at_start(assignment), what, "keep ROCR_VISIBLE_DEVICES alone")


@RULES.add(
    "SB432",
    "warning",
    "two choices of a GPU for each task",
    source="https://docs.nvidia.com/cuda/cuda-c-programming-guide/index.html",
    words=("LOCAL_RANK",),
    report="https://github.com/deepspeedai/DeepSpeed/pull/3165",
)
def _two_choices_of_gpu(script: JobScript) -> Iterator[Hit]:
    """Find tasks that see one GPU, as number 0, by CUDA_VISIBLE_DEVICES, but have a LOCAL_RANK above 0."""
    for launch in script.trainings:
        tasks = launch.tasks_per_node or 0
        if not launch.runs_rank_per_task or tasks < 2:
            continue
        source = script.source_of(launch)
        if source and "device_count" in source.words:
            continue  # the trainer counts its GPUs: LOCAL_RANK % torch.cuda.device_count()
        for _, body in launch.shell_strings:
            values = _last_values(body)
            if all(_holds_local_id(name, values) for name in ("CUDA_VISIBLE_DEVICES", "LOCAL_RANK")):
                what = f"each task sees one GPU, as number 0, and LOCAL_RANK goes to {tasks - 1}: "
                what += f"{launch.program.name} finds no GPU of this number"
                fix = "leave CUDA_VISIBLE_DEVICES out, or LOCAL_RANK=0"
                yield Hit(script.at_command(launch.command), what, fix)


def _last_values(body: Body) -> dict[str, str]:
    """Return the last value of each variable as written, even in env NAME=VALUE; "" without a value."""
    values = {
        assignment.name: assignment.word.text if assignment.word else "" for assignment in body.assignments
    }
    for command in body.commands:
        pairs = (word.text.partition("=") for word in command.words[1:] if command.name == "env")
        values |= {name: value for name, equals, value in pairs if equals and name.isidentifier()}
    return values


def _holds_local_id(name: str, values: dict[str, str], depth: int = 4) -> bool:
    """Return whether a variable holds SLURM_LOCALID or SLURM_PROCID % N, also through `depth` variables."""
    match = _ONE_VARIABLE.fullmatch(values.get(name, ""))
    if match is None or not depth:
        return False
    source = next(filter(None, match.groups()))
    is_remainder = source == "SLURM_PROCID" and "%" in match[0]
    return source == "SLURM_LOCALID" or is_remainder or _holds_local_id(source, values, depth - 1)


_CPU_USERS = ("OMP_NUM_THREADS", "workers", "-j")  # words of scripts that set numbers of threads or workers


@RULES.add("SB407", "warning", "more threads or workers than a task has CPUs", words=_CPU_USERS)
def _too_few_cpus(script: JobScript) -> Iterator[Hit]:
    for launch in script.trainings:
        cpus = _cpus_of_task(launch, script)
        if cpus is None:
            yield from _workers_without_cpus(launch, script)
        if not cpus or (launch.step is None and script.resources.tasks_per_node > 1):
            continue  # the batch shell has the CPUs of all tasks on its node
        cpu_text = f"a task has {counted(cpus, 'CPU')}"
        processes, assignments = launch.workers or 1, script.body.assignments_of("OMP_NUM_THREADS")
        earlier = [assignment for assignment in assignments if assignment.at < launch.command.end]
        threads = _small_number((earlier[-1].value or "") if earlier else "")
        if threads * processes > cpus:
            thread_text = counted(threads, "thread")
            runs_text = f"{processes} processes with {thread_text} each" if processes > 1 else thread_text
            fewer_threads = f"OMP_NUM_THREADS={cpus // processes}, or " if processes <= cpus else ""
            fix = f"{fewer_threads}--cpus-per-task={threads * processes}"
            what = f"OMP_NUM_THREADS={threads}: {runs_text}, but {cpu_text}"
            yield Hit(script.at_start(earlier[-1]), what, fix)
        for word, workers in _worker_options(launch):
            if workers > cpus:
                what = f"{workers} data loading workers, but {cpu_text}"
                fix = f"--cpus-per-task={workers + 1}, or {counted(max(1, cpus - 1), 'worker')}"
                yield Hit(script.at_word(word), what, fix)


def _workers_without_cpus(launch: Launch, script: JobScript) -> Iterator[Hit]:
    """Find data loading workers in a job that asks for GPUs, but not for CPUs: a task may have one CPU."""
    resources = script.resources
    if not resources.gpu_count or resources.shards or resources.tasks_per_node != 1:
        return
    if script.has_own_nodes or _CPU_OPTIONS & resources.options.keys():
        return
    for word, workers in _worker_options(launch):
        if workers > 1 and not (launch.step and launch.step.option("cpus-per-task")):
            what = f"{workers} data loading workers, and the job asks for no CPUs: it has one, unless the "
            what += "partition gives each GPU some"
            yield Hit(script.at_word(word), what, f"--cpus-per-task={workers + 1}", "info")


def _worker_options(launch: Launch) -> Iterator[tuple[Word, int]]:
    """Yield each option of a program for data loading workers: the option's word, and the number."""
    for name, word, value in arguments(launch):
        if _WORKERS_OPTION.fullmatch(name):
            yield word, _small_number(value)


@RULES.add("SB408", "warning", "a variable that Slurm does not set in this job", words=(*_NEEDED_OPTIONS,))
def _variables_without_option(script: JobScript) -> Iterator[Hit]:
    print_commands = script.named("echo", "printf")
    for use in script.first_uses(_NEEDED_OPTIONS.get):
        options = _NEEDED_OPTIONS[use.name]
        if script.sbatch.has_foreign or use.name in script.tested_words:
            continue
        if any(option in script.options or option in script.sbatch.options for option in options):
            continue
        is_fatal = script.body.is_option_on("nounset", use.line)  # set -u
        fate = "under set -u the job ends here without it" if is_fatal else "here it is empty"
        what = f"Slurm sets {use.name} only if --{options[0]} is given: {fate}"
        if options == ["array"] and (not is_fatal or _ARRAY_ON_COMMAND_LINE.search(script.text)):
            continue  # --array is usually on sbatch's command line
        gpus = script.resources.gpu_count if use.name == "SLURM_GPUS_PER_NODE" else 0
        replacement = "$SLURM_GPUS_ON_NODE" if gpus else f"${{{use.name}:-1}}"
        fix = f"add --{options[0]}={gpus or 'N'} to the directives, or write {replacement}"
        offsets = [other.at for other in script.body.variable_uses if other.name == use.name]
        is_only_printed = all(any(echo.at <= at < echo.end for echo in print_commands) for at in offsets)
        caller_may_add_option = script.is_submitted_by_script or not (script.has_size or options == ["array"])
        severity = "info" if is_only_printed or caller_may_add_option else None
        yield Hit(script.at_start(use), what, fix, severity)  # type: ignore[arg-type]


@RULES.add("SB410", "warning", "a setting for debugging that makes training slow", words=(*_SLOW_VALUES,))
def _debug_settings(script: JobScript) -> Iterator[Hit]:
    is_aws = "FI_PROVIDER" in script.text or "efa" in script.text.lower()  # AWS has no InfiniBand
    for assignment, value in _known_assignments(script, _SLOW_VALUES):
        name = assignment.name
        reaches_programs = assignment.is_exported or assignment.is_prefix
        if not reaches_programs or (is_aws and name.startswith("NCCL_IB")):
            continue
        if value.upper() in _SLOW_VALUES[name] and (name, value) not in script.site_env:
            what = f"{name}={value} is for debugging and slows training down"
            severity: Severity | None = "info" if name.endswith("_DISABLE") else None  # some machines need it
            fix = "remove it when you have found the error"
            yield Hit(script.at_start(assignment), what, fix, severity)


@RULES.add("SB411", "warning", "a first line with a shell that can't read the script", pedantic=True)
def _unsuitable_shell(script: JobScript) -> Iterator[Hit]:
    first_line = script.lines[0].rstrip("\r")
    words = first_line.removeprefix("#!").split()
    has_arguments = first_line.startswith("#!") and len(words) > 2
    if has_arguments and words[0].endswith("/env") and not words[1].startswith("-"):
        what = f"env gets one argument, '{' '.join(words[1:])}', and finds no program of that name"
        start = f"/bin/{words[1]}" if words[1] in ("bash", "sh") else f"{words[0]} -S {words[1]}"
        line = " ".join([f"#!{start}", *words[2:]])
        yield Hit(script.at(1), what, line, "error", (Edit(1, 1, len(first_line) + 1, line),))
    language = script.body.language
    # A misspelt bash has the letters of bash, such as bahs. Other names, such as bash4 and bosh, may exist.
    if language != "bash" and {*language} == {*"bash"} and _BASH_SHEBANG.match(first_line):
        column = first_line.index(language) + 1
        what = f"there is no program {language}: the job fails at once, and its commands were not checked"
        edit = Edit(1, column, column + len(language), "bash")
        yield Hit(script.at(1), what, first_line.replace(language, "bash", 1), "error", (edit,))
    if language not in ("sh", "dash"):
        return
    for command in script.body.commands:
        if feature := _bash_feature(command):
            what = f"{feature} is a feature of bash: it fails where /bin/sh is dash, as in Debian and Ubuntu"
            line = " ".join(["#!/bin/bash", *words[1:]])
            edit = Edit(1, 1, len(first_line) + 1, line)
            edits = (edit,) if words[0] in ("/bin/sh", "/usr/bin/sh") else ()
            yield Hit(script.at_command(command), what, f"{line} as the first line", edits=edits)
            return


@RULES.add(
    "SB412", "warning", "results on a node's local disk", source=_DISK_PAGE, words=("tmp", "/shm", "TMPDIR")
)
def _results_on_local_disk(script: JobScript) -> Iterator[Hit]:
    copies = script.named(*_COPY_PROGRAMS)
    for launch in script.trainings:
        for name, word, value in arguments(launch):
            if not _SAVE_OPTION.fullmatch(name) or not _LOCAL_PATH.match(value):
                continue
            if script.body.traps or any(command.at > launch.command.at for command in copies):
                return  # the script may copy the results before it ends
            what = f"{name} {value} is on each node's own disk: it is lost when the job ends"
            yield Hit(script.at_word(word), what, f'{name} "$SLURM_SUBMIT_DIR/..." or a folder on scratch')


@RULES.add("SB414", "info", "the old name of a variable", words=(*_NEW_NAMES,))
def _old_names(script: JobScript) -> Iterator[Hit]:
    for use in script.body.variable_uses:
        new = _NEW_NAMES.get(use.name)
        if new is None or use.name in script.assigned_names:
            continue
        line = script.lines[use.line - 1] if use.line <= len(script.lines) else ""
        column = line.find(use.name, use.column - 1) + 1  # 0 if the line lacks the name
        span = (use.line, column, column + len(use.name))
        edits = (Edit(*span, new),) if column else ()
        place = script.at(*span) if column else script.at(use.line)
        yield Hit(place, f"{use.name} is the old name of {new}", new, edits=edits)


@RULES.add(
    "SB417", "warning", "a GLOO_SOCKET_IFNAME that gloo can't use", source=_GLOO_PAGE, words=(_GLOO_IFNAME,)
)
def _gloo_interface(script: JobScript) -> Iterator[Hit]:
    for assignment, value in _known_assignments(script, (_GLOO_IFNAME,)):
        if value[:1] in ("^", "="):  # as in NCCL_SOCKET_IFNAME=^lo
            what = f"gloo takes no ^ or =: it looks for an interface named '{value}'"
            fix = f"{_GLOO_IFNAME}=NAME, as ip -brief address shows it"
            yield Hit(script.at_start(assignment), what, fix)


@RULES.add("SB419", "info", "Python output that reaches the log late", words=("python",))
def _buffered_output(script: JobScript) -> Iterator[Hit]:
    variable = "PYTHONUNBUFFERED"
    set_variables = script.assigned_names | {name for name, _ in script.site_env}
    is_long = (script.resources.time or 0) >= LONG_JOB_S
    if not is_long or script.may_start_hidden_programs or variable in set_variables:
        return
    for launch in script.trainings:
        python = next((tool for tool in launch.tools if tool.name == "python"), None)
        if python is None or launch.launcher or variable in launch.command.text:
            continue
        if python.option("u") is None and not (launch.step and launch.step.option("unbuffered")):
            what = "Python buffers what it prints into a file: the log comes late, and a killed job's log "
            what += "misses its end"
            yield Hit(script.at_word(python.words[0]), what, "python -u, or export PYTHONUNBUFFERED=1")
            return


@RULES.add(
    "SB901",
    "warning",
    "a variable that overrides the script",
    source="sbatch(1)",
    report="https://github.com/aws-samples/aws-eda-slurm-cluster/issues/223",
)
def _overriding_variables(script: JobScript) -> Iterator[Hit]:
    option_specs, environment = specs(script.slurm), script.environment or {}
    for variable, option in variables(script.slurm):
        value = environment.get(variable)
        is_flag = option in option_specs and option_specs[option].argument is HasArgument.NONE
        if value is None or (is_flag and value not in ("", "1", "yes")):  # other values remove the flag
            continue
        if option not in script.options:
            what = f"{variable}={value} in the environment sets --{option}, which the script does not set"
            yield Hit(script.at(1), what, f"unset {variable}, or write it into the script", "info")
        elif not is_flag and (script_value := script.option(option)) != value:
            what = f"{variable} in the environment wins over the script: "
            what += f"--{option} is '{value}', not '{script_value}'"
            yield Hit(option, what, f"env -u {variable} sbatch {script.file}")


def _cpus_of_task(launch: Launch, script: JobScript) -> int | None:
    """Return the number of CPUs of a task; None if the script does not show the number."""
    resources = script.resources
    if launch.step and (option := launch.step.option("cpus-per-task")):
        return launch.option_number(option, launch.step)
    if resources.cpus_per_task:
        return resources.cpus_per_task
    may_have_all_cpus = launch.step is None or script.has_own_nodes  # of its job, or of its node
    has_gpus = resources.gpu_count or resources.shards  # a partition may give each GPU some CPUs
    # Of a script without numbers of nodes or tasks, the options are usually on sbatch's command line.
    may_have_cpu_options = _CPU_OPTIONS & resources.options.keys() or not script.has_size
    return None if may_have_all_cpus or has_gpus or may_have_cpu_options else 1


def arguments(launch: Launch) -> Iterator[tuple[str, Word, str]]:
    """Yield the name, word and value of the program's options: --name VALUE, --name=VALUE, name=VALUE."""
    program = launch.program
    for word, next_word in zip_longest(program.rest, program.rest[1:]):
        if not word.text.startswith("-") and "=" not in word.text:
            continue
        name, equals, value = (word.value or program.body.text_of(word)).partition("=")
        if not equals and next_word is not None:
            value = program.body.text_of(next_word)
        yield name, word, value


def _small_number(text: str) -> int:
    """Return the number in a text of up to four digits; 0 for other texts."""
    return int(text) if re.fullmatch(r"\d{1,4}", text, re.ASCII) else 0


def _known_assignments(script: JobScript, names: Container[str]) -> Iterator[tuple[Assignment, str]]:
    """Yield the assignments of these variables whose values are known, with the values."""
    for assignment in script.body.assignments:
        if assignment.name in names and assignment.word is not None and assignment.setter != "unset":
            value = script.body.value(assignment.word)
            if value:
                yield assignment, value


def _bash_feature(command: Command) -> str:
    """Return the part of a command that only bash understands, such as [[; "" without such a part."""
    if command.is_test:
        opening = command.words[0].text if command.words else ""
        return opening if opening in ("[[", "((") else ""
    if command.name in _BASH_BUILTINS:
        return command.name
    if command.name == "set" and any(word.value == "pipefail" for word in command.words):
        return "pipefail"
    for redirect in command.redirects:
        if redirect.operator in ("<<<", "&>", "&>>"):
            return redirect.operator
    if any(piece.kind == "process" for word in command.words for piece in word.pieces):
        return "<( )"
    return ""
