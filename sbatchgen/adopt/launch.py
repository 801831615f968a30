"""The launch of the training, from srun to the trainer.

Sources: srun(1), INPUT ENVIRONMENT VARIABLES; torch/distributed/run.py, whose options each have a variable
PET_NAME.
"""

from __future__ import annotations

from sbatchgen import quoting
from sbatchgen.adopt import container, shape, trainer
from sbatchgen.adopt.draft import Draft, is_variable
from sbatchgen.bash import Word
from sbatchgen.bash.body import string_body
from sbatchgen.bash.command import Command
from sbatchgen.bash.launch import Tool
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
_SAME = frozenset(("cpus-per-task", "jobid", "job-name", "kill-on-bad-exit", "quiet", "verbose", "wait"))
_DEFAULTS = {"export": "ALL", "distribution": "block", "gpu-bind": "none"}
_GPUS = ("gpus", "gpus-per-node", "gres")
_OF_MEETING = """
master-addr master-port nnodes node-rank nproc-per-node rdzv-backend rdzv-conf rdzv-endpoint rdzv-id
standalone use-env
"""
_MEETING = frozenset(_OF_MEETING.split())
_WRAPPERS = frozenset(("command", "env", "exec", "nohup", "time"))
_INSTEAD = {
    "conda run": "write conda activate before it",
    "numactl": "srun binds, by --cpu-bind and --mem-bind",
    "taskset": "srun binds, by --cpu-bind",
    "timeout": "--time ends the job",
}


def read(draft: Draft, launch: Launch) -> None:
    """Take over a launch."""
    _wrappers(draft, launch)
    shape.read(draft, launch)
    if launch.step:
        _step(draft, launch.step)
    container.read(draft, launch)
    if launch.launcher and launch.launcher.name == "torchrun":
        _torchrun(draft, launch, launch.launcher)
    trainer.read(draft, launch)
    _around(draft, launch.command)
    if launch.command.name == "eval":
        _evaluated(draft, launch.command)
    if "trainer" in draft.job:
        how = draft.job.get("launcher") or draft.job["mode"]
        draft.add(draft.lines, "understood", f"{how}: {draft.job['trainer']}")


def _wrappers(draft: Draft, launch: Launch) -> None:
    """What stands between the tools that matter."""
    of_runtimes = [runtime.tool(launch) for runtime in RUNTIMES.values()]
    for tool in launch.tools[:-1]:
        if tool.name in ("srun", "python") or tool.name in LAUNCHERS | MPI or tool in of_runtimes:
            continue
        if tool.name in SHELLS:
            _shell(draft, tool)
        elif tool.name not in _WRAPPERS or (tool.name == "env" and tool.given):
            instead = _INSTEAD.get(tool.name, "start the trainer itself")
            draft.lose(f"{tool.name} around the trainer: {instead}")
    for tool in launch.tools:
        if tool.name == "env":
            for word in tool.words[1 : len(tool.words) - len(tool.rest)]:
                name, equals, value = word.text.partition("=")
                _set(draft, name, value if equals and "$" not in value else None)
    for one in launch.command.prefix:
        _set(draft, one.name, launch.tools[0].body.value(one.word) if one.word else None, one.word)


def _set(draft: Draft, name: str, value: str | None, word: Word | None = None) -> None:
    """A variable that is set for the launch alone."""
    if name in shape.RANKS:
        draft.add(draft.lines, "understood", f"{name} as the script has it")
    elif is_variable(name) and value is not None:
        draft.env[name] = value
    elif is_variable(name) and word is not None and "PATH" not in name:
        draft.step_setup.append(f"export {name}={word.text}")
        draft.needed |= {*word.variables}
        draft.add(draft.lines, "kept", "in setup, by export", name)
    else:
        draft.lose("set for the launch alone, to a value that the script does not tell", name)


def _shell(draft: Draft, tool: Tool) -> None:
    """Of bash -c: nothing may stand in it besides the launch and what every rank is given anyway."""
    command = tool.option("command")
    if command is None or command.value_word is None:
        draft.lose(f"{tool.name} starts another script, which is not read")
        return
    inner = string_body(tool.body, command.value_word)
    own = [
        one for one in inner.commands if not one.context.substitution and one.name not in ("export", "exec")
    ]
    others = len(own) > 1 or any(one.name not in shape.RANKS for one in inner.sets)
    if others or (not own and not any(one.name == "exec" for one in inner.commands)):
        draft.lose(f"{tool.name} -c with more than the launch in it: put that before the launch")


def _step(draft: Draft, step: Tool) -> None:
    """The options of srun."""
    for option in step.given:
        name, value = option.name, option.value
        if name in (*shape.COUNTS, *_SAME) or name.startswith(("container-", "no-container-")):
            continue
        if value is not None and value == _DEFAULTS.get(name):
            continue
        if name in _GPUS and value is not None and value == draft.script.option(name):
            continue
        if name in _VARIABLES and value is not None:
            line = f"export {_VARIABLES[name]}={quoting.word(value or '1')}"
            draft.step_setup.append(line)
            draft.add(draft.lines, "kept", f"--{name} of srun, as {line}")
        else:
            draft.lose(f"--{name} of srun")


def _torchrun(draft: Draft, launch: Launch, launcher: Tool) -> None:
    """Its options; those that are no meeting point are variables of its own."""
    python = any(tool.name == "python" for tool in launch.tools)
    if python and "distributed.launch" in draft.script.text and not launcher.option("use-env"):
        draft.lose(
            "torch.distributed.launch gives the program --local-rank; torchrun sets LOCAL_RANK instead"
        )
    for option in launcher.given:
        if option.name in _MEETING or option.name in ("module", "m"):
            continue
        if option.name == "no-python" or option.value is None:
            draft.lose(f"--{option.name} of torchrun")
        else:
            draft.env[f"PET_{option.name.upper().replace('-', '_')}"] = option.value or "1"


def _evaluated(draft: Draft, command: Command) -> None:
    """Of eval: nothing may stand in its string besides the launch and what its output is piped into."""
    inner = string_body(draft.script.body, command.words[1])
    first, *others = (one for one in inner.commands if not one.context.substitution)
    if inner.sets or any(one.pipe is None or one.pipe is not first.pipe for one in others):
        draft.lose("eval with more than the launch in it: write that out")
    _around(draft, first)


def _around(draft: Draft, command: Command) -> None:
    """Redirections, pipes and the background."""
    for one in command.redirects:
        if one.operator.startswith((">", "&>")):
            draft.add(draft.lines, "dropped", "the job's log has what it prints, not its redirection")
        else:
            draft.lose(f"{one.operator} into the trainer")
    if command.pipe and command.pipe.stages:
        first = command.pipe.stages[0]
        others = [one for stage in command.pipe.stages for one in stage if one is not command]
        if command in first and all(one.name == "tee" for one in others):
            draft.add(draft.lines, "dropped", "the job's log has what it prints, not tee")
        else:
            draft.lose("a pipe at the trainer")
