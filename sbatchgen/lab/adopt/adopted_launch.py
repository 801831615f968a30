"""The conversion of the training's launch, from srun to the trainer, into keys of the job and the profile.

A launch is one command of the script, such as `srun apptainer exec IMAGE torchrun train.py --epochs 3`. Each
function here converts one part of the command. A part that no key expresses is noted as lost.

Sources: srun(1), INPUT ENVIRONMENT VARIABLES; torch/distributed/run.py.
"""

import posixpath
import re
from collections.abc import Sequence

from sbatchgen.base import quoting
from sbatchgen.check.bash import Body, Command, Word, string_body
from sbatchgen.check.bash.chain import Tool
from sbatchgen.check.executables.program import LAUNCHERS, PROGRAMS, SHELLS, programs
from sbatchgen.check.script.known_options import PYXIS_NAMES
from sbatchgen.check.script.launches import Launch
from sbatchgen.jobs.runtimes import RUNTIMES
from sbatchgen.jobs.runtimes.enroot import PYXIS_OPTIONS
from sbatchgen.lab.adopt import shape, training
from sbatchgen.lab.adopt.block import Block, blocks
from sbatchgen.lab.adopt.draft import SUBMIT_DIR, Draft, can_be_in_env
from sbatchgen.lab.adopt.simplified_script import SimplifiedScript
from sbatchgen.lab.adopt.trainer_arguments import job_arguments

# Options of srun that need no key: the rendered srun has them, or they change no process.
_IMPLIED_OPTIONS = (
    *shape.COUNT_OPTIONS,
    *("environment", "jobid", "job-name", "kill-on-bad-exit", "quiet", "verbose", "wait"),
)
# Values that srun has by default, so that the options change nothing.
_SRUN_DEFAULTS = {"export": "ALL", "distribution": "block", "gpu-bind": "none"}
_LOG_AND_MAIL_OPTIONS = ("error", "mail-type", "mail-user", "output")
# Options of srun that no key of a job or a profile expresses.
_NO_KEY_OPTIONS = ("nodelist", "exclude", "relative", "nodefile", "chdir", "input", "multi-prog", "het-group")
_GPU_OPTIONS = ("gpus", "gpus-per-node", "gres")
# Options of torchrun that the rendered script sets: the rendezvous, the counts, and the trainer's module.
_RENDERED_TORCHRUN_OPTIONS = """
m master-addr master-port module nnodes node-rank nproc-per-node rdzv-backend rdzv-conf rdzv-endpoint rdzv-id
standalone use-env
"""
# Programs that `_adopt_wrappers` skips: they do not change the job, or other functions convert them.
_HANDLED_ELSEWHERE = {"command", "exec", "nohup", "time", "srun", "python", "torchrun", *shape.MODULES}
# Programs around a trainer that a job can't have, with the advice for each.
_ALTERNATIVES = {
    "conda run": "write conda activate NAME before it",
    "numactl": "use --cpu-bind and --mem-bind of srun",
    "taskset": "use --cpu-bind of srun",
    "timeout": "--time ends the job",
}


def adopt_launch(draft: Draft, launch: Launch, simplified: SimplifiedScript) -> None:
    """Convert a launch into keys of the job and the profile."""
    if simplified.prefix_words:
        _set_prefix(draft, simplified.prefix_words)
    for word, options in simplified.optional_words:
        reason = f"{word.text} is empty unless a condition holds; it would be: {options}"
        draft.add((word.line,), "dropped", reason)
    _adopt_wrappers(draft, launch)
    shape.adopt_shape(draft, launch)
    if launch.step:
        _adopt_srun_options(draft, launch, launch.step)
    for name, runtime in RUNTIMES.items():
        if tool := runtime.tool(launch):
            keys = runtime.adopt(draft, launch, tool)
            draft.profile |= {"runtime": name, "runtimes": {name: keys}}
            first_value = next(iter(keys.values()), "")  # usually the image, or the name of the environment
            draft.add(draft.launch_lines, "understood", f"{name}: {first_value}")
            break  # a launch has one runtime
    if launch.launcher and not shape.launcher_module(launch):
        _adopt_torchrun_options(draft, launch.launcher)
    has_all_arguments = _adopt_trainer(draft, launch)
    _adopt_redirections(draft, launch.command)
    if launch.command.name == "eval":
        _adopt_eval(draft, launch.command)
    if "trainer" in draft.job:
        launcher_or_mode = draft.job.get("launcher") or draft.job["mode"]
        draft.add(draft.launch_lines, "understood", f"{launcher_or_mode}: {draft.job['trainer']}")
    # The values of the launch win over values that earlier lines of the script give these variables.
    draft.launch_names |= {*draft.env}
    # Without some of its arguments the job would train another model. `adopt` writes no job without `mode`.
    if not has_all_arguments:
        del draft.job["mode"]


def _adopt_wrappers(draft: Draft, launch: Launch) -> None:
    """Convert the programs that start the trainer, and the variables set in front of the launch."""
    _adopt_prefix_assignments(draft, launch)
    runtime_tools = [runtime.tool(launch) for runtime in RUNTIMES.values()]
    for tool in launch.tools[:-1]:
        if tool.name in SHELLS:
            _adopt_shell_string(draft, launch, tool)
        elif tool.name == "env" and not tool.uses:
            _, *assignments = _own_words(tool)  # `env` and words such as NAME=VALUE
            for assignment in assignments:
                text = tool.body.value(assignment)
                name = (text or assignment.text.lstrip("'\"")).partition("=")[0]
                _set_variable(draft, name, None if text is None else text.partition("=")[2])
        elif tool.name in _HANDLED_ELSEWHERE | programs("mpi") or tool in runtime_tools:
            continue
        # An unknown program becomes the runtime `prefix`, unless the job already has a runtime.
        elif tool.name not in {*_ALTERNATIVES, *LAUNCHERS} and "runtime" not in draft.profile:
            _adopt_prefix(draft, tool)
        else:
            advice = _ALTERNATIVES.get(tool.name, "start the trainer itself")
            draft.lose(f"{tool.name} around the trainer: {advice}")


def _adopt_prefix_assignments(draft: Draft, launch: Launch) -> None:
    """Convert the variables set in front of the launch, as in `A=1 B=$A python train.py`."""
    body = launch.tools[0].body
    earlier_values: dict[str, Word] = {}  # by name: the values of the variables to the left
    for variable in launch.command.prefix_assignments:
        # Bash expands the $A of B=$A to 1. So the setup must export A before it exports B.
        used_names = [name for name in earlier_values if variable.word and name in variable.word.variables]
        draft.step_setup += [f"export {name}={earlier_values[name].text}" for name in used_names]
        literal = body.value(variable.word) if variable.word and not used_names else None
        _set_variable(draft, variable.name, literal, variable.word)
        if variable.word:
            earlier_values[variable.name] = variable.word


def _own_words(tool: Tool) -> tuple[Word, ...]:
    """Return a tool's words without the command that it starts: [nice, -n, 5] of `nice -n 5 python x.py`."""
    return tool.words[: len(tool.words) - len(tool.next_words)]


def _set_prefix(draft: Draft, words: Sequence[str]) -> None:
    """Put the words before the trainer's Python, such as `poetry run`, into the profile."""
    draft.profile |= {"runtime": "prefix", "runtimes": {"prefix": {"command": [*words]}}}
    draft.add(draft.launch_lines, "understood", f"prefix: {words[0]}")


def _adopt_prefix(draft: Draft, tool: Tool) -> None:
    """Put a program that starts the trainer, such as `nsys profile`, into the profile as its prefix.

    A program with a word that only the running job knows is noted as lost.
    """
    words = [tool.body.value(word) for word in _own_words(tool)]
    if all(words):
        _set_prefix(draft, [word or "" for word in words])
    else:
        draft.lose(f"{tool.name} with options that only the job knows")


def _set_variable(draft: Draft, name: str, value: str | None, word: Word | None = None) -> None:
    """Put a variable of the launch into `env` of the job, or into the profile's setup as an export.

    `value` is the literal value, or None if the script computes the value. `word` is the value as the script
    writes it.
    """
    if name in shape.RANK_VARIABLES:
        draft.add(draft.launch_lines, "understood", f"{name}: the new script sets it too")
    elif can_be_in_env(name) and value is not None and "${" not in value:  # `env` would expand ${NAME}
        draft.env[name] = value
        # setup_per_task comes after `env`. If it sets the variable too, it must set this value at its end.
        task_lines = draft.profile.get("setup_per_task", [])
        if any(re.search(rf"(?:^|[\s;]){name}\+?=", line) for line in task_lines):
            task_lines.append(f"export {name}={quoting.word(value)}")
    # An export of PATH or LD_LIBRARY_PATH would also change the commands before the launch.
    elif can_be_in_env(name) and word is not None and "PATH" not in name:
        draft.step_setup.append(f"export {name}={word.text}")
        draft.launch_names.add(name)
        draft.env.pop(name, None)  # `env` comes after the setup, so its value would replace this value
        draft.needed_names |= {*word.variables}
        draft.add(draft.launch_lines, "kept", "in setup, by export", name)
    else:
        draft.lose("the launch sets it to a value that is known only when the job runs", name)


def _adopt_shell_string(draft: Draft, launch: Launch, tool: Tool) -> None:
    """Keep the commands before the launch in the string of `bash -c`, as setup of each task.

    The commands after the launch are noted as dropped if they only print or end, and otherwise as lost.
    """
    option = tool.option("command")
    if option is None or option.value_word is None:
        draft.lose(f"{tool.name} starts another script, which is not read")
        return
    string = string_body(tool.body, option.value_word)
    # If the launch is in a string within this string, all commands count as after the launch.
    launch_at = launch.program.words[0].at if launch.program.body is string else -1
    for block in blocks(string):
        exports_variable = any(assignment.is_exported for assignment in block.assignments)
        if block.start <= launch_at < block.end:
            _adopt_chain(draft, tool, block, launch_at)
        elif block.only_assigns_names(shape.RANK_VARIABLES) or block.only_prints:
            draft.add(draft.launch_lines, "dropped", "ranks, and what is only printed in each task")
        elif block.start > launch_at and block.only_closes:
            draft.add(draft.launch_lines, "dropped", "what follows the training in each task")
        elif block.start > launch_at:
            names = [command.name for command in block.outer_commands]
            draft.lose(f"{tool.name} -c with a command after the launch: {' '.join(names)}")
        # A block that only sets variables is kept if it exports a variable. The values of other variables
        # are written where the launch uses them.
        elif exports_variable or not block.only_assigns_harmlessly:
            _keep_in_task(draft, block, block.text)


def _adopt_chain(draft: Draft, tool: Tool, block: Block, launch_at: int) -> None:
    """Keep the commands before the launch in its statement, such as `cd FOLDER && python train.py`.

    `block` is the statement, and `launch_at` the offset of the launch in the string of `bash -c`.
    """
    text = block.body.source.text
    commands = [*block.outer_commands]
    names = {command.name for command in commands}
    # `export` and `exec` change only how the launch starts. A `tee` after the launch writes a copy of the
    # output, which the log of the job holds.
    counted_commands = [
        command
        for command in commands
        if command.name not in ("export", "exec")
        and not (command.at > launch_at and command.pipe and command.name == "tee")
    ]
    earlier_commands = [command for command in counted_commands if command.end <= launch_at]
    launch_command = next((command for command in commands if command.at <= launch_at < command.end), None)
    has_later_commands = len(counted_commands) - len(earlier_commands) > 1  # 1 is the launch itself
    # `cd FOLDER && python train.py` has the same effect as `cd FOLDER || exit` and the launch. Commands
    # before another operator, such as "||" or ";", can't be kept in this way.
    is_chain = _is_and_chain(text, earlier_commands, launch_command.at if launch_command else launch_at)
    exports_variable = "export" in names and bool(block.assigned_names - shape.RANK_VARIABLES)
    has_launch = bool(counted_commands) or "exec" in names  # `exec python train.py` is not counted
    if has_later_commands or not is_chain or exports_variable or not has_launch:
        draft.lose(f"{tool.name} -c with other commands in the launch: put each on a line of its own")
    for command in earlier_commands:
        _keep_in_task(draft, block, f"{text[command.at : command.end]} || exit")
    if launch_command:
        _adopt_prefix_in_task(draft, block, launch_command)


def _is_and_chain(text: str, commands: Sequence[Command], launch_at: int) -> bool:
    """Return whether only `&&` joins the commands before a launch to each other and to the launch."""
    _, *next_starts = (*(command.at for command in commands), launch_at)
    gaps = zip(commands, next_starts, strict=True)
    operators = [text[command.end : next_start].strip(" \t\\\n") for command, next_start in gaps]
    return all(operator == "&&" for operator in operators)


def _adopt_prefix_in_task(draft: Draft, block: Block, command: Command) -> None:
    """Convert the variables set in front of the launch in the string of `bash -c`."""
    for variable in command.prefix_assignments:
        literal = block.body.value(variable.word) if variable.word else None
        needs_task_shell = literal is None and variable.name not in shape.RANK_VARIABLES
        if not needs_task_shell or variable.word is None or "PATH" in variable.name:
            _set_variable(draft, variable.name, literal)
        else:
            _keep_in_task(draft, block, f"export {variable.name}={variable.word.text}")


def _keep_in_task(draft: Draft, block: Block, text: str) -> None:
    """Keep `text`, which is a part of a block of `bash -c`, as setup of each task.

    The batch script exports its variables that the block uses, so that the shell of the task has them.
    """
    variables = sorted(block.used_names & draft.script.assigned_names)
    draft.needed_names |= {*variables}
    if variables:
        draft.step_setup.append(f"export {' '.join(variables)}")
    draft.profile.setdefault("setup_per_task", []).extend(map(str.strip, text.split("\n")))
    draft.add(draft.launch_lines, "kept", "in setup_per_task, unchanged")


def _adopt_srun_options(draft: Draft, launch: Launch, step: Tool) -> None:
    """Convert the options of `step`, the srun of the launch, except options that need no key."""
    for option in step.uses:
        name, value = option.name, option.value
        if name == "cpus-per-task":
            count = launch.option_number(option, step)
            if count is not None and count != (launch.resources.cpus_per_task or 1):
                _set_srun_option(draft, name, str(count))
            continue
        # srun takes the GPUs of the directive, so an option that repeats the directive changes nothing.
        default = draft.script.option(name) if name in _GPU_OPTIONS else _SRUN_DEFAULTS.get(name)
        if name in _LOG_AND_MAIL_OPTIONS:
            draft.add(draft.launch_lines, "dropped", f"--{name} of srun: the job has its own log and mail")
        elif name in _IMPLIED_OPTIONS or (name in PYXIS_NAMES and name not in PYXIS_OPTIONS):
            continue
        elif value is None or value != default:
            _set_srun_option(draft, name, value)


def _set_srun_option(draft: Draft, name: str, value: str | None) -> None:
    """Put an option of srun into the profile; note it as lost if no key expresses it.

    `value` is None if only the running job knows the value, and "" for an option without a value.
    """
    if value is None or name in _NO_KEY_OPTIONS:
        why = ": its value is known only when the job runs" if value is None else ""
        draft.lose(f"--{name} of srun{why}")
        return
    draft.profile.setdefault("step", {})[name] = value or "true"
    if name not in PROGRAMS["srun"].values | PROGRAMS["srun"].flags:  # an option of a SPANK plugin
        draft.profile.setdefault("plugin_options", []).append(f"{name}=" if value else name)
    if name == "gpu-bind":
        draft.profile["gpu_visibility"] = "task"
    draft.add(draft.launch_lines, "understood", "step", name)


def _adopt_torchrun_options(draft: Draft, launcher: Tool) -> None:
    """Convert the options of torchrun that the rendered script does not set itself."""
    for option in launcher.uses:
        if option.name in _RENDERED_TORCHRUN_OPTIONS.split():
            continue
        word, value = option.value_as_word(launcher.body), option.value
        if value is None and word:
            value = _argument_text(draft, word, launcher.body)
        is_array = value is not None and "[@]" in value  # an option takes a single word
        if option.name == "no-python" or value is None or is_array:
            draft.lose(f"--{option.name} of torchrun")
        else:
            argument = f"--{option.name}={value}" if value else f"--{option.name}"
            draft.job["launcher_args"] = [*draft.job.get("launcher_args", []), argument]


def _argument_text(draft: Draft, word: Word, body: Body) -> str | None:
    """Return the string that a job has for a word of the launch; None if no string expresses the word."""
    converted = job_arguments(draft, [word], body, in_task=body is not draft.body)
    return next((argument.text for argument in converted), None)


def _adopt_python_options(draft: Draft, launch: Launch) -> None:
    """Put -W of python into `env`; note the other options as lost, except -m and -u."""
    python = next((tool for tool in launch.tools if tool.name == "python"), None)
    if python is None:
        return
    for option in python.uses:
        if option.name == "W" and option.value and "PYTHONWARNINGS" not in draft.script.assigned_names:
            earlier = draft.env.get("PYTHONWARNINGS")
            draft.env["PYTHONWARNINGS"] = f"{earlier},{option.value}" if earlier else option.value
            draft.add(draft.launch_lines, "understood", "env", "PYTHONWARNINGS")
        elif option.name not in ("m", "u"):  # the job sets PYTHONUNBUFFERED for -u, and has -m for modules
            draft.lose(f"-{option.name} of python")


def _adopt_trainer(draft: Draft, launch: Launch) -> bool:
    """Convert the interpreter, the trainer and its arguments; return whether all arguments are known."""
    _adopt_interpreter(draft, launch)
    _adopt_python_options(draft, launch)
    launcher_module = shape.launcher_module(launch)
    program, body = launch.program, launch.program.body
    words = program.rest if program.name == "python" else program.words
    if launch.launcher and launcher_module:  # the job starts the launcher as its trainer
        words = launch.launcher.words
        name_length = 2 if words[0].text.endswith("accelerate") else 1  # `accelerate launch` has two words
        words = words[name_length:]
    if not words:
        draft.lose(training.NO_TRAINER_FILE)
        return False
    argument_words = words if launcher_module else words[1:]
    converted = [*job_arguments(draft, argument_words, body, in_task=body is not draft.body)]
    lost_words = [argument.word for argument in converted if argument.text is None]
    for word in lost_words:
        value = "a value that is known only when the job runs"
        if any(name.isdigit() or name in "@*" for name in body.resolve(word).variables):
            value = "the script's own arguments"
        shown = word.text if len(word.text) < 40 else f"{word.text[:36]}..."
        draft.lose(f"write out {value}", shown)
    if launcher_module:
        draft.job["trainer"] = launcher_module
    elif (name := _trainer_name(draft, words[0], body)) is None:
        draft.lose("the trainer's path is known only in the task", words[0].text)
    else:
        is_module = program.starts_module or any(tool.starts_module for tool in launch.tools)
        draft.job["trainer"] = name if is_module else _as_trainer_file(draft, name)
    draft.job["args"] = [argument.text for argument in converted if argument.text is not None]
    return len(draft.job["args"]) == len(converted)


def _trainer_name(draft: Draft, word: Word, body: Body) -> str | None:
    """Return the trainer's file or module; None if only the running job knows it.

    A file below the working folder is relative to this folder.
    """
    path = draft.path(word, body) or ""
    name = path.removeprefix(f"{draft.folder}/")
    if name != path and "${" not in name:
        return name
    text = _argument_text(draft, word, body)
    is_array = text is not None and "[@]" in text  # several words can't name one trainer
    return draft.known_text(word, body) or (None if is_array else text)


def _adopt_interpreter(draft: Draft, launch: Launch) -> None:
    """Convert the path of the launch's Python or torchrun.

    A job starts the first python3 in PATH. So a virtual environment becomes the runtime, and another folder
    comes first in PATH.
    """
    tool = next(tool for tool in launch.tools if tool.name in ("python", "torchrun", *LAUNCHERS))
    path = draft.path(tool.words[0], tool.body) or ""
    if "/" in path:
        path = draft.file(tool.words[0], tool.body) or ""  # a path below the folder of the launch
    folder, slash, name = path.rpartition("/")
    if re.fullmatch(r"python3\.\d+", name) or not path:
        draft.lose(
            f"{tool.words[0].text}: a job starts python3; activate an environment that has this version"
        )
    elif slash and draft.profile.get("runtime"):
        draft.lose(f"{path}: a job starts python3 of the image")
    elif slash and folder.endswith("/bin") and "venv" in folder:
        environment = folder.removesuffix("/bin")
        draft.profile |= {"runtime": "venv", "runtimes": {"venv": {"path": environment}}}
        draft.add(draft.launch_lines, "understood", f"runtime venv: {environment}")
    elif slash:
        absolute = folder if folder.startswith(("/", "${")) else f"{SUBMIT_DIR}/{folder}"
        draft.profile["runtime"] = "host"
        draft.step_setup.append(f"PATH={quoting.path(absolute)}:$PATH")
        draft.add(draft.launch_lines, "understood", f"{absolute} comes first in PATH")


def _as_trainer_file(draft: Draft, name: str) -> str:
    """Return the trainer's file as a job names it.

    In a container with a working folder, the name is relative to this folder. A name without / and .py gets
    `./`, because a job would read the name as a module.
    """
    workdir = draft.profile.get("runtimes", {}).get("enroot", {}).get("workdir")
    is_in_container = name.startswith("/") and isinstance(workdir, str) and workdir.startswith("/")
    if is_in_container:
        name = posixpath.relpath(name, workdir)
    return name if "/" in name or (name.endswith(".py") and not is_in_container) else f"./{name}"


def _adopt_eval(draft: Draft, command: Command) -> None:
    """Convert the redirections in the string of `eval`; note other commands in the string as lost."""
    string = string_body(draft.script.body, command.words[1])
    first, *others = (inner for inner in string.commands if not inner.context.in_substitution)
    if string.assignments or any(other.pipe is None or other.pipe is not first.pipe for other in others):
        draft.lose("eval with more than the launch in it: write each command on a line of its own")
    _adopt_redirections(draft, first)


def _adopt_redirections(draft: Draft, command: Command) -> None:
    """Note the launch's output to files and to tee as dropped, and its input and other pipes as lost."""
    for redirect in command.redirects:
        if redirect.operator.startswith((">", "&>")):
            draft.add(draft.launch_lines, "dropped", "its output goes to the log of the job, not into a file")
        else:
            draft.lose(f"{redirect.operator} into the trainer: let the trainer open the file itself")
    if command.pipe and command.pipe.stages:
        others = [other for stage in command.pipe.stages for other in stage if other is not command]
        if command in command.pipe.stages[0] and all(other.name == "tee" for other in others):
            draft.add(draft.launch_lines, "dropped", "its output goes to the log of the job, without tee")
        else:
            draft.lose("a pipe at the trainer: a job starts the trainer without other programs")
