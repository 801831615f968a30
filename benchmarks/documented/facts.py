"""What a script asks for and starts, as items that two scripts can have in common.

Not items: the job's own values (nodes, account, partition, time, name, logs, mail, the program, secrets), how
the processes meet (MASTER_ADDR, options of the rendezvous), and --label and --unbuffered, which change only
how a log looks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from sbatchgen.check.bash import Body, Word
from sbatchgen.check.bash.chain import Tool
from sbatchgen.check.script.launches import Launch
from sbatchgen.check.script.script import JobScript
from sbatchgen.lab.adopt.training import main_launch

KINDS = ("directive", "step", "variable", "module", "container", "program")
_COUNTS = """
nodes ntasks ntasks-per-node cpus-per-task cpus-per-gpu gpus gpus-per-node gpus-per-task gres
mem mem-per-gpu mem-per-cpu
"""
_OF_JOB = """
account begin comment error job-name mail-type mail-user nodelist open-mode output partition requeue
reservation signal time
"""
_OF_STEP = (
    "kill-on-bad-exit label overlap unbuffered verbose wait container-workdir container-env nodelist jobid"
)
_NOT_ITEMS = frozenset((_COUNTS + _OF_JOB).split())
MEETING = re.compile(
    r"MASTER_\w+|RDZV_\w+|(LOCAL_)?(WORLD_SIZE|RANK)|NODE_RANK|SLURM_\w+|SRUN_CPUS_PER_TASK|SBATCHGEN_\w+|PYTHON(UNBUFFERED|NOUSERSITE|PATH|HOME)"
    r"|\w*API_KEY|\w*TOKEN|SIF|\w*CONTAINER\w*|\w*IMAGE|\w*TORCHRUN\w*|TRAIN\w*|LAUNCH\w*|PROFILE_CMD|\w*MOUNT|DATA_PATH|RUN_DIR|VIRTUAL_ENV|PATH"
)
_RENDEZVOUS = re.compile(
    r"nnodes|nproc-per-node|node-rank|rdzv-\w+|master-\w+|standalone|m|module|num-\w+|machine-rank|main-process-\w+|config-file"
)
_LOADERS = ("module", "ml")
_VERBS = ("load", "add", "use", "purge", "reset", "unload", "restore", "list", "avail")


class Item(NamedTuple):
    """One thing that a script says: what kind of thing, its name and its value."""

    kind: str
    name: str
    value: str = ""

    def __str__(self) -> str:
        return f"[{self.kind}] {self.name}" + (f" {self.value}" if self.value else "")


def items(script: JobScript) -> list[Item]:
    """Return the items of a script that starts a training, those of modules in their order."""
    launch = main_launch(script)
    assert launch is not None  # noqa: S101 - it starts a training
    asked = [*_requests(script, launch), *_directives(script), *_step(launch), *_variables(script, launch)]
    return [*dict.fromkeys([*asked, *_modules(script), *_container(launch), *_program(script, launch)])]


def gpus(script: JobScript, launch: Launch) -> int:
    """Return the GPUs that the training has on a node; 0 if the script does not say."""
    if launch.step_gpus and launch.step_gpus.name == "gpus-per-task":
        return (launch.option_number(launch.step_gpus, launch.step or launch.program) or 0) * (
            launch.tasks_per_node or 1
        )
    return script.resources.gpu_count


def _requests(script: JobScript, launch: Launch) -> Iterator[Item]:
    """Yield what the training has on each node, however it is asked for."""
    asked = script.resources
    yield Item("directive", "tasks on a node", str(launch.tasks_per_node or 1))
    if count := gpus(script, launch):
        yield Item("directive", "GPUs of a node", str(count))
    for kind in asked.gpu_types:
        yield Item("directive", "type of the GPUs", kind)
    option = launch.step.option("cpus-per-task") if launch.step else None
    cpus = (option and launch.option_number(option, launch.program)) or asked.cpus_per_task
    if cpus or asked.cpus_per_gpu:
        yield Item(
            "directive", "CPUs of a task", str(cpus or asked.cpus_on_node // (launch.tasks_per_node or 1))
        )
    if (memory := asked.mem_on_node) is not None:
        yield Item("directive", "memory of a node", f"{memory // 1024}G")
    for name, kind, number in asked.gres:
        if name != "gpu":
            yield Item("directive", f"gres {name}", f"{kind}:{number}")


def _directives(script: JobScript) -> Iterator[Item]:
    for name, value in script.resources.options.items():
        if name not in _NOT_ITEMS:
            yield Item("directive", f"--{name}", value)


def _step(launch: Launch) -> Iterator[Item]:
    for option in launch.step.uses if launch.step else ():
        if (
            option.name in _NOT_ITEMS
            or option.name in _OF_STEP.split()
            or option.name.startswith(("container-", "no-c"))
        ):
            continue
        if option.name == "environment":
            word, body = option.value_as_word(launch.tools[0].body), launch.tools[0].body
            yield Item("container", "environment", _base(text_of(word, body) if word else ""))
        elif option.name != "distribution" and (option.name, option.value) != ("gpu-bind", "none"):
            yield Item("step", f"--{option.name}", _binding(option.value or "", launch))


def _binding(value: str, launch: Launch) -> str:
    """Return a value of --cpu-bind without "verbose", its masks as numbers."""
    body = launch.tools[0].body
    if match := re.search(r"\$\{?(\w+)", value):
        values = [
            text_of(each.word, body) for each in body.assignments if each.name == match[1] and each.word
        ]
        value = value.replace(match[0], values[-1] if values else "").replace("}", "")
    value = re.sub(r"^(v|verbose|q|quiet),", "", value).replace("mask_cpu=", "mask_cpu:")
    return re.sub(r"0x[0-9a-fA-F]+", lambda mask: hex(int(mask[0], 16)), value)


def _variables(script: JobScript, launch: Launch) -> Iterator[Item]:
    """Yield the variables that the program gets: of the script, of bash -c, and of a container's --env."""
    names = {each.name for each in script.body.assignments if each.is_exported}
    bodies = {id(tool.body): tool.body for tool in launch.tools}
    for body in (script.body, *(body for key, body in bodies.items() if key != id(script.body))):
        for each in body.assignments:
            if (each.is_exported or each.name in names) and each.word and not MEETING.fullmatch(each.name):
                yield Item("variable", each.name, text_of(each.word, body))
    for option in launch.container.uses if launch.container else ():
        name, equals, _ = (option.value or (option.value_word.text if option.value_word else "")).partition(
            "="
        )
        if option.name == "env" and equals and option.value_word and not MEETING.fullmatch(name):
            value = text_of(option.value_word, script.body).removeprefix(f"{name}=")
            if not re.search(r"SLURM_|RDZV", name):
                yield Item("variable", name, value)


def text_of(word: Word, body: Body) -> str:
    """Return a value with the script's own variables followed; a folder in /tmp has a name of its own."""
    text = body.value(word)
    if text is None:
        text = re.sub(
            r"[\"']", "", "".join(piece.text for piece in body.resolve(word).pieces) or body.text_of(word)
        )
    text = re.sub(r"\$(\w+)", r"${\1}", text)
    text = re.sub(r"\$\{\w+:[-=]([^{}]*)\}", r"\1", text)
    return re.sub(r"\$\(mktemp -d\)|/tmp/[^/]+", "/tmp/...", text)  # noqa: S108


def _modules(script: JobScript) -> Iterator[Item]:
    for command in script.named(*_LOADERS):
        words = [word for word in command.arguments if not word.startswith("-")]
        verb = words[0] if words and words[0] in _VERBS else "load"
        words = words[1:] if words and words[0] == verb else words
        if verb in ("purge", "reset"):
            yield Item("module", verb)
        elif verb in ("load", "add", "use"):
            yield from (Item("module", "use" if verb == "use" else "load", word) for word in words)


def _container(launch: Launch) -> Iterator[Item]:
    """Yield the command, the image and the mounts of the container."""
    step, tool = launch.step, launch.container
    for option in step.uses if step else ():
        if option.name == "container-image":
            yield Item("container", "image")
        elif option.name == "container-mounts":
            yield Item("container", "mounts")
    if tool is None:
        return
    yield Item("container", "command", tool.name)
    if tool.operands:
        yield Item("container", "image")
    for option in tool.uses:
        if option.name in ("nv", "rocm"):
            yield Item("container", f"--{option.name}")
        elif option.name in ("bind", "B", "volume") and option.value_word:
            yield from (Item("container", "mount", target) for target in _mounts(option.value_word, tool))


def _mounts(word: Word, tool: Tool) -> Iterator[str]:
    """Yield the targets of mounts: where the host has a folder is its own matter."""
    given = next((option.value_word for option in tool.uses if option.name == "pwd"), None)
    working = text_of(given, tool.body) if given else "${PWD}"
    for mount in text_of(word, tool.body).split(","):
        target = mount.split(":")[1] if ":" in mount else mount
        if target == working:
            yield "the working folder"
        elif "$" not in target:
            yield target


def _program(script: JobScript, launch: Launch) -> Iterator[Item]:
    """Yield what starts the processes, its options, the environment, and the program."""
    launcher = launch.launcher
    alone = launch.step is None or launch.tasks == 1
    yield Item("program", "started by", launcher.name if launcher else "Python alone" if alone else "srun")
    for option in launcher.uses if launcher else ():
        if not _RENDEZVOUS.fullmatch(option.name):
            yield Item("program", f"{launcher.name if launcher else ''} --{option.name}", option.value or "")
    for command in script.commands:
        words = [text_of(word, script.body) for word in command.words[1:]]
        if command.name in ("source", ".") and words and words[0].endswith("/bin/activate"):
            yield Item("program", "virtual environment")
        elif command.name == "conda" and words[:1] == ["activate"]:
            yield Item("program", "conda environment")
    if any(each.name == "VIRTUAL_ENV" for each in script.body.assignments):
        yield Item("program", "virtual environment")


def _base(path: str) -> str:
    return path.strip('"').rpartition("/")[2]
