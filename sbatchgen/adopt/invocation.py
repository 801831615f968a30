"""The launch of the training, from srun to the trainer.

Sources: srun(1), INPUT ENVIRONMENT VARIABLES; torch/distributed/run.py, whose options each have a variable
PET_NAME.
"""

from __future__ import annotations

import posixpath
import re

from sbatchgen import quoting
from sbatchgen.adopt import shape
from sbatchgen.adopt.draft import SUBMIT_DIR, Draft, is_variable
from sbatchgen.bash import Word
from sbatchgen.bash.body import string_body
from sbatchgen.bash.chain import Tool
from sbatchgen.bash.statement import Command
from sbatchgen.bash.tools import SHELLS
from sbatchgen.job.launches import LAUNCHERS, MPI, Launch
from sbatchgen.runtimes import RUNTIMES

# Options of srun that it takes from the environment as well.
_VARIABLES = {
    "cpu-bind": "SLURM_CPU_BIND",
    "error": "SLURM_STDERRMODE",
    "gpu-bind": "SLURM_GPU_BIND",
    "hint": "SLURM_HINT",
    "label": "SLURM_LABELIO",
    "mem-bind": "SLURM_MEM_BIND",
    "mpi": "SLURM_MPI_TYPE",
    "output": "SLURM_STDOUTMODE",
    "overlap": "SLURM_OVERLAP",
    "unbuffered": "SLURM_UNBUFFEREDIO",
}
# What the rendered srun does in any case, or what is the default.
_SAME = (
    *shape.COUNTS,
    "cpus-per-task",
    "environment",
    "jobid",
    "job-name",
    "kill-on-bad-exit",
    "quiet",
    "verbose",
    "wait",
)
_DEFAULTS = {"export": "ALL", "distribution": "block", "gpu-bind": "none"}
_GPUS = ("gpus", "gpus-per-node", "gres")
# Options of torchrun that the new script has itself: how the processes meet, and the name of a module.
_OWN = """
m master-addr master-port module nnodes node-rank nproc-per-node rdzv-backend rdzv-conf rdzv-endpoint rdzv-id
standalone use-env
"""
_WRAPPERS = frozenset(("command", "env", "exec", "nohup", "time"))
_INSTEAD = {
    "conda run": "write conda activate before it",
    "numactl": "srun binds, by --cpu-bind and --mem-bind",
    "taskset": "srun binds, by --cpu-bind",
    "timeout": "--time ends the job",
}
# Launchers that are programs of Python to a job, which start the processes of one node.
_MODULES = {"accelerate launch": "accelerate.commands.launch", "deepspeed": "deepspeed.launcher.runner"}


def adopt_launch(draft: Draft, launch: Launch) -> None:
    """Take over a launch."""
    _read_wrappers(draft, launch)
    shape.adopt_shape(draft, launch)
    if launch.step:
        _read_step(draft, launch.step)
    for name, runtime in RUNTIMES.items():
        if tool := runtime.tool(launch):
            keys = runtime.adopt(draft, launch, tool)
            draft.profile |= {"runtime": name, "runtimes": {name: keys}}
            draft.add(draft.lines, "understood", f"{name}: {' '.join(map(str, [*keys.values()][:1]))}")
            break
    if launch.launcher and launch.launcher.name == "torchrun":
        _read_torchrun(draft, launch, launch.launcher)
    _read_trainer(draft, launch)
    _read_redirections(draft, launch.command)
    if launch.command.name == "eval":
        _read_eval(draft, launch.command)
    if "trainer" in draft.job:
        starter = draft.job.get("launcher") or draft.job["mode"]
        draft.add(draft.lines, "understood", f"{starter}: {draft.job['trainer']}")


def _read_wrappers(draft: Draft, launch: Launch) -> None:
    """Take over the variables of the launch, and check the programs around the trainer."""
    of_runtimes = [runtime.tool(launch) for runtime in RUNTIMES.values()]
    for tool in launch.tools[:-1]:
        if tool.name in SHELLS:
            _check_shell(draft, tool)
        elif tool.name == "env" and not tool.given:
            for word in tool.words[1 : len(tool.words) - len(tool.rest)]:
                name, equals, value = word.text.partition("=")
                _set(draft, name, value if equals and "$" not in value else None)
        elif tool.name in {"srun", "python"} | (_WRAPPERS - {"env"}) | LAUNCHERS | MPI or tool in of_runtimes:
            continue
        else:
            instead = _INSTEAD.get(tool.name, "start the trainer itself")
            draft.lose(f"{tool.name} around the trainer: {instead}")
    body = launch.tools[0].body
    for variable in launch.command.prefix:
        literal = body.value(variable.word) if variable.word else None
        _set(draft, variable.name, literal, variable.word)


def _set(draft: Draft, name: str, value: str | None, word: Word | None = None) -> None:
    """Take over a variable that is set for the launch alone."""
    if name in shape.RANKS:
        draft.add(draft.lines, "understood", f"{name} as the script has it")
    elif is_variable(name) and value is not None and "${" not in value:
        draft.env[name] = value
    elif is_variable(name) and word is not None and "PATH" not in name:
        draft.step_setup.append(f"export {name}={word.text}")
        draft.needed |= {*word.variables}
        draft.add(draft.lines, "kept", "in setup, by export", name)
    else:
        draft.lose("set for the launch alone, to a value that is known only when the job runs", name)


def _check_shell(draft: Draft, tool: Tool) -> None:
    """Check the string of bash -c: it may only hold the launch and rank variables."""
    option = tool.option("command")
    if option is None or option.value_word is None:
        draft.lose(f"{tool.name} starts another script, which is not read")
        return
    inner = string_body(tool.body, option.value_word)
    names = [command.name for command in inner.commands if not command.context.substitution]
    own = [name for name in names if name not in ("export", "exec")]
    others = len(own) > 1 or any(assignment.name not in shape.RANKS for assignment in inner.sets)
    if others or (not own and "exec" not in names):
        draft.lose(f"{tool.name} -c with more than the launch in it: put that before the launch")


def _read_step(draft: Draft, step: Tool) -> None:
    """Take over the options of srun."""
    for option in step.given:
        name, value = option.name, option.value
        usual = draft.script.option(name) if name in _GPUS else _DEFAULTS.get(name)
        if name in _SAME or name.startswith(("container-", "no-container-")):
            continue
        if value is not None and value == usual:
            continue
        if name in _VARIABLES and value is not None:
            line = f"export {_VARIABLES[name]}={quoting.word(value or '1')}"
            draft.step_setup.append(line)
            draft.add(draft.lines, "kept", f"--{name} of srun, as {line}")
        else:
            draft.lose(f"--{name} of srun")


def _read_torchrun(draft: Draft, launch: Launch, launcher: Tool) -> None:
    """Turn all options of torchrun but those of the rendezvous into PET_* variables."""
    python = any(tool.name == "python" for tool in launch.tools)
    if python and "distributed.launch" in draft.script.text and not launcher.option("use-env"):
        draft.lose(
            "torch.distributed.launch gives the program --local-rank; torchrun sets LOCAL_RANK instead"
        )
    for option in launcher.given:
        if option.name in _OWN.split():
            continue
        if option.name == "no-python" or option.value is None:
            draft.lose(f"--{option.name} of torchrun")
        else:
            draft.env[f"PET_{option.name.upper().replace('-', '_')}"] = option.value or "1"


def _read_trainer(draft: Draft, launch: Launch) -> None:
    """Take over the interpreter, the trainer and its arguments."""
    _read_interpreter(draft, launch)
    python = next((tool for tool in launch.tools if tool.name == "python"), None)
    for option in python.given if python else ():
        if option.name not in ("m", "u"):
            draft.lose(f"-{option.name} of python")
    own_module = _MODULES.get(launch.launcher.name) if launch.launcher else None
    program, body = launch.program, launch.program.body
    words = program.rest if program.name == "python" else program.words
    if launch.launcher and own_module:  # the launcher is the trainer
        words = launch.launcher.words
        words = words[2 if words[0].text.endswith("accelerate") else 1 :]
    if not words:
        draft.lose("no trainer is started")
        return
    values = [draft.argument(word, body) for word in words]
    for word, value in zip(words, values, strict=True):
        if value is None:
            given = any(name.isdigit() or name in "@*" for name in body.followed(word).variables)
            what = "the script's own arguments" if given else "what is known only when the job runs"
            draft.lose(f"write out {what}", word.text if len(word.text) < 40 else f"{word.text[:36]}...")
    if own_module:
        draft.job["trainer"] = own_module
    elif (name := values.pop(0)) is not None:
        is_module = program.module or any(tool.module for tool in launch.tools)
        draft.job["trainer"] = name if is_module else _file(draft, name)
    draft.job["args"] = [value for value in values if value is not None]


def _read_interpreter(draft: Draft, launch: Launch) -> None:
    """Take over the folder of a Python, or a torchrun: here python3 is the first one on PATH."""
    tool = next(tool for tool in launch.tools if tool.name in ("python", "torchrun", *LAUNCHERS))
    path = draft.path(tool.words[0], tool.body) or ""
    if "/" in path:
        path = draft.file(tool.words[0], tool.body) or ""
    folder, slash, name = path.rpartition("/")
    if re.fullmatch(r"python3\.\d+", name) or not path:
        draft.lose(f"{tool.words[0].text}: python3 of an environment is started here")
    elif slash and draft.profile.get("runtime"):
        draft.lose(f"{path}: python3 of the image is started here")
    elif slash and folder.endswith("/bin") and "venv" in folder:
        environment = folder.removesuffix("/bin")
        draft.profile |= {"runtime": "venv", "runtimes": {"venv": {"path": environment}}}
        draft.add(draft.lines, "understood", f"runtime venv: {environment}")
    elif slash:
        absolute = folder if folder.startswith(("/", "${")) else f"{SUBMIT_DIR}/{folder}"
        draft.profile["runtime"] = "host"
        draft.step_setup.append(f"PATH={quoting.path(absolute)}:$PATH")
        draft.add(draft.lines, "understood", f"{absolute} comes first in PATH")


def _file(draft: Draft, name: str) -> str:
    """Return the trainer's file; in a container relative to where that starts."""
    workdir = draft.profile.get("runtimes", {}).get("enroot", {}).get("workdir")
    in_workdir = name.startswith("/") and isinstance(workdir, str) and workdir.startswith("/")
    if in_workdir:
        name = posixpath.relpath(name, workdir)
    return name if "/" in name or (name.endswith(".py") and not in_workdir) else f"./{name}"


def _read_eval(draft: Draft, command: Command) -> None:
    """Check the string of eval: it may only hold the launch and what its output is piped into."""
    inner = string_body(draft.script.body, command.words[1])
    first, *others = (command for command in inner.commands if not command.context.substitution)
    if inner.sets or any(other.pipe is None or other.pipe is not first.pipe for other in others):
        draft.lose("eval with more than the launch in it: write that out")
    _read_redirections(draft, first)


def _read_redirections(draft: Draft, command: Command) -> None:
    """Drop redirections and pipes of what the trainer prints."""
    for redirect in command.redirects:
        if redirect.operator.startswith((">", "&>")):
            draft.add(draft.lines, "dropped", "the job's log has what it prints, not its redirection")
        else:
            draft.lose(f"{redirect.operator} into the trainer")
    if command.pipe and command.pipe.stages:
        others = [other for stage in command.pipe.stages for other in stage if other is not command]
        if command in command.pipe.stages[0] and all(other.name == "tee" for other in others):
            draft.add(draft.lines, "dropped", "the job's log has what it prints, not tee")
        else:
            draft.lose("a pipe at the trainer")
