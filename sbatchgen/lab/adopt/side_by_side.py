"""The conversion of steps that run side by side, `srun ... &` and `wait`, into the programs of a job.

`find_steps` finds such steps, and `adopt_steps` puts them into the job. Steps become programs only if the
nodes of each step are certain, and if all steps together have all nodes of the job. All steps must run in the
background, except for a last step that ends the job.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from sbatchgen.base.texts import ProgramName
from sbatchgen.check.bash.chain import Tool
from sbatchgen.check.script.launches import Launch
from sbatchgen.jobs.resolved.program_faults import MAX_PROGRAMS
from sbatchgen.lab.adopt.block import Block
from sbatchgen.lab.adopt.draft import Draft
from sbatchgen.lab.adopt.trainer_arguments import job_arguments

# The key of a program for each option of srun that requests a share of a node.
_SHARE_KEYS = {"cpus-per-task": "cpus", "gpus": "gpus", "gpus-per-node": "gpus", "gres": "gpus"}
# Other options of srun that a step may have. The key `nodes` of a program replaces --nodes, --ntasks and
# --ntasks-per-node. The other options do not change the processes of the step.
_ALLOWED_OPTIONS = """
error exact exclusive job-name label mem mem-per-cpu nodelist nodes ntasks ntasks-per-node output overlap
unbuffered
"""
# Notes about differences of the new script: for a job with a main program, and for a job without one.
_BACKGROUND_FAILURE_NOTE = (
    "a program in the background that fails ends the job: the script ignored its failure"
)
_FAILURE_NOTE = (
    "a program that fails ends the job with its status: `wait` in the script waited for all, and ended with 0"
)
# A placeholder for a variable in a job's command, such as {env:HEAD} or {env:NODES[@]}.
_PLACEHOLDER = re.compile(r"\{env:(\w+)(?:\[@\])?\}")
_VARIABLE = re.compile(r"\$\{?([A-Za-z_]\w*)")  # $NAME or ${NAME
_SLEEP_SECONDS = re.compile(r"\d{1,5}")  # as in `sleep 30`, but not `sleep 2m`
_PORT_OPTIONS = ("--port", "-p", "--http-port", "--server-port")
_COUNT = re.compile(r"(?:gpu:)?(?:[a-z][\w.]*:)?(\d+)")  # the number in 4, a100:4 and gpu:a100:4


class ProgramStep(NamedTuple):
    """A step that becomes a program of the job, with the statement that starts the step."""

    launch: Launch
    block: Block
    program: dict[str, Any]  # the keys of the program in the job file


def find_steps(draft: Draft, statements: Sequence[Block]) -> list[ProgramStep]:
    """Return the steps of a script that become programs of the job.

    The result is empty if the script can't become a job with programs, for example because it has a single
    launch, or because the nodes of a step are not certain.
    """
    launches = [launch for launch in draft.script.launches if not launch.is_helper]
    if not 2 <= len(launches) <= MAX_PROGRAMS:
        return []
    steps = []
    for launch in launches:
        launch_at = launch.command.at
        block = next((block for block in statements if block.start <= launch_at < block.end), None)
        is_main = launch is launches[-1] and not launch.command.in_background
        is_plain = block is not None and _is_plain_step(launch, block, is_main=is_main)
        program = _program_keys(draft, launch) if is_plain else None
        if block is None or program is None:
            return []
        steps.append(ProgramStep(launch, block, program))
    node_count = sum(step.program["nodes"] for step in steps)
    resources = draft.script.resources
    uses_all_nodes = node_count == resources.nodes and resources.tasks_per_node == 1
    is_certain = uses_all_nodes and _needs_only_steps(steps, statements) and not any(draft.body.traps)
    return steps if is_certain and _replace_hosts(draft, steps) else []


def _needs_only_steps(steps: Sequence[ProgramStep], statements: Sequence[Block]) -> bool:
    """Return whether the statements after the first step do nothing that the job does not do itself.

    The job itself waits for its programs and ends them. So `wait`, `sleep` and `kill` can be left out.
    """
    last_step = steps[-1]
    others = _other_statements(steps, statements)
    if last_step.launch.command.in_background:
        waits = [command for block in others for command in block.commands if command.name == "wait"]
        # `wait PID` waits for a single step.
        waits_for_all = bool(waits) and all(len(command.words) == 1 for command in waits)
        return waits_for_all and all(block.only_closes for block in others)
    earlier_blocks = [block for block in others if block.start < last_step.block.start]
    later_blocks = [block for block in others if block.start > last_step.block.start]
    only_sleeps = all(_sleep_seconds(block) is not None or block.only_closes for block in earlier_blocks)
    return only_sleeps and all(block.only_closes or _only_kills(block) for block in later_blocks)


def _replace_hosts(draft: Draft, steps: Sequence[ProgramStep]) -> bool:
    """Replace the nodes in the commands of programs by placeholders; return whether this succeeded.

    The placeholder {NAME.host} is the node of the program NAME. A job may start the program on another node
    than the script does. So no command may keep a variable that holds a node, or the name of a node.
    """
    # By the text that the script has for a node: the placeholder. For example {$HEAD}: {server.host}.
    placeholders: dict[str, str] = {}
    host_variables: set[str] = set()  # the variables in the values of --nodelist
    for step, name in zip(steps, _program_names(steps), strict=True):
        nodelist = step.launch.step.option("nodelist") if step.launch.step else None
        word = nodelist.value_as_word(draft.body) if nodelist else None
        if word is None:
            continue
        host_variables |= {*_VARIABLE.findall(word.text)}
        for _, text in job_arguments(draft, [word], draft.body, in_task=False):
            if not text:
                continue
            # The first of several nodes, as in {env:FIRST},{env:SECOND}, is the program's host.
            first = _PLACEHOLDER.match(text) if "," in text else None
            placeholders[_script_text(draft, first[0] if first else text)] = f"{{{name}.host}}"
    # A text without braces is the name of a node, which the script writes out.
    node_names = [text for text in placeholders if not text.startswith("{")]
    for step in steps:
        new_words = []
        for text in step.program["command"]:
            replaced = _PLACEHOLDER.sub(
                lambda match: placeholders.get(_script_text(draft, match[0]), match[0]), text
            )
            remaining = " ".join(_script_text(draft, match[0]) for match in _PLACEHOLDER.finditer(replaced))
            has_node_name = any(node in text for node in node_names)
            if has_node_name or host_variables.intersection(_VARIABLE.findall(remaining)):
                return False
            new_words.append(replaced)
        step.program["command"] = new_words
    return True


def _script_text(draft: Draft, text: str) -> str:
    """Return the text that the script has for a placeholder, in braces; return other texts unchanged.

    For example, {env:HEAD} gives {$HEAD}. The result has no quotes and no inner braces, so that $HEAD,
    ${HEAD} and "$HEAD" give the same text.
    """
    match = _PLACEHOLDER.fullmatch(text)
    if match is None:
        return text
    name = match[1]
    values = {argument_name: value for value, argument_name in draft.argument_variables.items()}
    value = values.get(name, f"${name}")
    return "{" + value.strip('"').replace("{", "").replace("}", "") + "}"


def _sleep_seconds(block: Block) -> int | None:
    """Return the seconds of a statement that is `sleep SECONDS`; None for any other statement."""
    (command, *others) = block.commands or (None,)
    if command is None or others or command.name != "sleep" or len(command.words) != 2:
        return None
    text = command.words[1].text
    return int(text) if _SLEEP_SECONDS.fullmatch(text) else None


def _only_kills(block: Block) -> bool:
    """Return whether a statement has only `kill` and `wait`, which a job does not need."""
    return bool(block.commands) and all(command.name in ("kill", "wait") for command in block.commands)


def _delay_main_program(steps: Sequence[ProgramStep], statements: Sequence[Block]) -> list[str]:
    """Let the main program, which is the last step, start after the other programs, as in the script.

    If each other program has a port, the main program waits until all ports are open. Otherwise the main
    program first sleeps as long as the script. Returns notes about the differences from the script.
    """
    *others, main_step = steps
    *other_names, main_name = _program_names(steps)
    main_step.program["main"] = True
    others_before_main = [
        block for block in _other_statements(steps, statements) if block.start < main_step.block.start
    ]
    slept_s = sum(_sleep_seconds(block) or 0 for block in others_before_main)
    ports = [_port(step.program["command"]) for step in others]
    if all(ports):
        for step, port in zip(others, ports, strict=True):
            step.program["ready"] = {"port": port}
        main_step.program["needs"] = other_names
        note = f"{main_name} starts when the ports of the others are open, not after {slept_s} s"
        return [_BACKGROUND_FAILURE_NOTE, *([note] if slept_s else [])]
    if slept_s:
        delaying_code = f'sleep {slept_s}; exec "$@"'
        main_step.program["command"] = ["bash", "-c", delaying_code, main_name, *main_step.program["command"]]
    return [_BACKGROUND_FAILURE_NOTE]


def _port(words: Sequence[str]) -> str:
    """Return the port that a command names, as in `--port 8000` or `--port=8000`; "" without a port."""
    for word, next_word in zip(words, [*words[1:], ""], strict=True):
        name, _, value = word.partition("=")
        port = value or next_word
        if name in _PORT_OPTIONS and port.isdigit():
            return port
    return ""


def adopt_steps(draft: Draft, steps: Sequence[ProgramStep], statements: Sequence[Block]) -> None:
    """Put the steps that `find_steps` found into the job as its programs."""
    has_main = not steps[-1].launch.command.in_background
    notes = _delay_main_program(steps, statements) if has_main else [_FAILURE_NOTE]
    programs = draft.job["programs"] = {}
    for (launch, block, program), name in zip(steps, _program_names(steps), strict=True):
        programs[name] = program
        draft.add(block.lines, "understood", f"program {name}: {launch.program.words[0].text}")
    ending = "its main program" if has_main else "the last of its programs"
    for block in _other_statements(steps, statements):
        reason = f"the job ends with {ending}"
        if _sleep_seconds(block) is not None:
            reason = "the main program waits for the others"
        draft.add(block.lines, "dropped", reason)
    for option in ("nodes", "ntasks", "ntasks_per_node"):
        draft.options.pop(option, None)
    draft.changed_options |= {"ntasks", "ntasks-per-node"}
    for note in notes:
        draft.note(note)


def _other_statements(steps: Sequence[ProgramStep], statements: Sequence[Block]) -> list[Block]:
    """Return the statements after the first step that start no step."""
    step_blocks = [step.block for step in steps]
    first_start = step_blocks[0].start
    return [block for block in statements if block.start > first_start and block not in step_blocks]


def _is_plain_step(launch: Launch, block: Block, *, is_main: bool) -> bool:
    """Return whether a statement is a single step without pipe and input.

    The step must be in the background, unless it is the main step, which ends the job.
    """
    command = launch.command
    is_step = bool(launch.tools) and launch.tools[0] is launch.step
    is_plain = command.context.is_top_level and not command.pipe and not command.prefix_assignments
    has_no_input = all(redirect.operator.startswith((">", "&>")) for redirect in command.redirects)
    is_background_or_main = command.in_background or is_main
    is_only_command = [*block.commands] == [command]
    return is_step and is_background_or_main and is_plain and has_no_input and is_only_command


def _program_keys(draft: Draft, launch: Launch) -> dict[str, Any] | None:
    """Return the keys of a step's program in a job file; None if its nodes or its command are not certain."""
    step = launch.step
    if step is None or {option.name for option in step.uses} - {*_ALLOWED_OPTIONS.split(), *_SHARE_KEYS}:
        return None
    words = [text for _, text in job_arguments(draft, step.rest, draft.body, in_task=False)]
    nodes = launch.nodes
    has_one_task_per_node = launch.tasks == nodes  # a job starts a program once on each of its nodes
    if None in words or "nodes" not in step.options or nodes is None or not has_one_task_per_node:
        return None
    share = dict(_share_of_node(step))
    return None if None in share.values() else {"command": words, "nodes": nodes, **share}


def _share_of_node(step: Tool) -> Iterator[tuple[str, int | None]]:
    """Yield the keys `gpus` and `cpus` with the numbers that a step requests on each node.

    The number is None if only the running job knows it.
    """
    for option in step.uses:
        if key := _SHARE_KEYS.get(option.name):
            count = _COUNT.fullmatch(option.value or "")
            # --gpus counts the GPUs of all nodes together, which is the share of a node if there is one node.
            is_of_one_node = option.name != "gpus" or step.options["nodes"] == "1"
            yield key, int(count[1]) if count and is_of_one_node else None


def _program_names(steps: Sequence[ProgramStep]) -> list[str]:
    """Return a name for each program, made from the name of its file: serve_model.py gives serve-model.

    A number is added if an earlier program has the same name.
    """
    names: list[str] = []
    for launch, *_ in steps:
        words = launch.program.rest if launch.program.name == "python" else launch.program.words
        file = words[0].text.rpartition("/")[2].partition(".")[0] if words else ""
        stem = re.sub("[^a-z0-9]+", "-", file.lower()).strip("-0123456789") or "program"
        stem = stem[: ProgramName.MOST].rstrip("-")
        if stem in names or stem in ProgramName.TAKEN:
            number = f"-{len(names) + 1}"
            stem = stem[: ProgramName.MOST - len(number)].rstrip("-") + number
        names.append(stem)
    return names
