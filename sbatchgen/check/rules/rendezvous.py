"""Rules about the rendezvous, which is the address and the port where the processes of a training meet.

Sources: srun(1) and sbatch(1) of Slurm 22.05 and the release notes up to 26.05; torch/distributed/run.py of
torch 2.13; bash(1).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from sbatchgen.base.finding import Edit, Place, Severity
from sbatchgen.check.bash import Assignment
from sbatchgen.check.bash.chain import Tool
from sbatchgen.check.executables.program import PROGRAMS
from sbatchgen.check.rules.rendezvous_fixes import (
    OWN_PORT,
    RDZV_OPTIONS,
    deepspeed_fix,
    missing_hosts_message,
    rendezvous_edits,
    same_rank_texts,
)
from sbatchgen.check.rules.rule import Hit, Rules
from sbatchgen.check.script.launches import LAUNCHER_WORDS, TRAINING_WORDS, Launch
from sbatchgen.check.script.script import JobScript

RULES: Rules[JobScript] = Rules()

MANY_GPUS = 4  # a job with this number of GPUs on a node or more usually has the node alone
# An address that means the node itself on each node, perhaps before a port.
LOOPBACK = re.compile(r"(?:localhost|0\.0\.0\.0|127\.\d+\.\d+\.\d+|\[?::1\]?)(?=:|$)")
# The value of MASTER_ADDR for the first node of the job.
FIRST_NODE = '$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)'
_PORT_NAMES = ("MASTER_PORT", "MAIN_PROCESS_PORT", "RDZV_PORT")
# Names of variables that hold the address of the first node, such as MASTER_ADDR or HEAD_NODE_IP.
_ADDRESS_NAME = re.compile(
    r"(?:MASTER|HEAD|MAIN|MST|RDZV)_?(?:NODE_?)?(?:PROCESS_?)?(?:ADDR|IP|HOST|ENDPOINT)\w*", re.IGNORECASE
)
_HOSTNAME_ADDRESS_OPTIONS = frozenset(("-i", "-I", "--ip-address", "--all-ip-addresses"))


@RULES.add("SB306", "warning", "a port that is the same for every job", words=("PORT", *LAUNCHER_WORDS))
def _shared_port(script: JobScript) -> Iterator[Hit]:
    resources = script.resources
    if "exclusive" in resources or not script.trainings or _has_whole_nodes(script):
        return
    may_share_node = 0 < resources.gpu_count < MANY_GPUS
    severity: Severity | None = None if may_share_node else "info"
    reported = set()
    for place, name, port in _ports(script):
        if re.fullmatch(r"[1-9]\d{3,4}", port, re.ASCII) and port not in reported:
            reported.add(port)
            what = f"port {port} is the same for every job: two jobs on one node collide, or join one group"
            yield Hit(place, what, f"{name}={OWN_PORT}", severity)


@RULES.add(
    "SB334",
    "warning",
    "a rendezvous port that no process gets",
    words=("PORT", "Port", "port", *LAUNCHER_WORDS),
)
def _port_out_of_range(script: JobScript) -> Iterator[Hit]:
    for place, name, port in _ports(script):
        if re.fullmatch(r"[1-9]\d{4,8}", port, re.ASCII) and int(port) > LAST_PORT:
            what = f"there is no port {port}: the last one is {LAST_PORT}"
            yield Hit(place, what, f"{name}={OWN_PORT}")
        if re.fullmatch(r"[1-9]\d{0,2}|10[01]\d|102[0-3]", port, re.ASCII):
            what = f"port {port} is below 1024, where only root may listen: no process gets it"
            yield Hit(place, what, f"{name}={OWN_PORT}")
    for assignment in script.body.assignments:
        if assignment.word is None:
            continue
        if assignment.name.upper() in _PORT_NAMES and _LOW_RANDOM_PORT.search(assignment.word.text):
            what = "this port may be below 1024, where only root may listen: some jobs fail"
            yield Hit(script.at_start(assignment), what, f"{assignment.name}={OWN_PORT}")
        elif _ANY_PORT_NAME.search(assignment.name):
            highest = _highest_port(assignment.word.text)
            if highest and highest > LAST_PORT:
                what = f"this port may be up to {highest}, and the last one is {LAST_PORT}: some jobs fail"
                yield Hit(script.at_start(assignment), what, f"{assignment.name}={OWN_PORT}")


LAST_PORT = 65535
_LARGEST_RANDOM = 32767  # the highest value of bash's RANDOM
_ANY_PORT_NAME = re.compile(r"(?i)(?:^|_)port(?:$|_|\d)")  # such as PORT, NCCL_PORT or port2
_SUM = re.compile(r"\$\(\((.*)\)\)")  # $((20000 + SLURM_JOB_ID % 10000))
_SHUF = re.compile(r"\$\(\s*shuf (?:-n ?1 )?-i ?\d+-(\d+)(?: -n ?1)?\s*\)")  # $(shuf -i 20000-30000 -n 1)
# A term of a sum: 20000, $RANDOM or (SLURM_JOB_ID%10000).
_TERM = re.compile(r"\(?\$?\{?(?:(\d+)|(RANDOM)|SLURM_(?:ARRAY_)?(?:JOB|TASK)_?ID)\}?(?:%(\d+))?\)?")


def _highest_port(text: str) -> int | None:
    """Return the highest port that an expression can give, such as $((20000 + RANDOM % 1000)).

    The result is None for an expression that is not a sum of numbers, random numbers and job ids.
    """
    text = text.strip('"')
    if shuf := _SHUF.fullmatch(text):
        return int(shuf[1])
    if not (expression := _SUM.fullmatch(text)):
        return None
    total = 0
    for part in re.sub(r"\s", "", expression[1]).split("+"):
        if not (term := _TERM.fullmatch(part)) or part.count("(") != part.count(")"):
            return None
        number, random, modulo = term.groups()
        is_whole_job_id = not (number or random or modulo)  # the highest id of a cluster is not known
        if is_whole_job_id or (number and modulo):
            return None
        if number:
            total += int(number)
        elif random:
            total += min(int(modulo) - 1 if modulo else _LARGEST_RANDOM, _LARGEST_RANDOM)
        else:
            total += int(modulo) - 1
    return total


# A random port that may be below 1024: $RANDOM, $((RANDOM % 60000)) or $(shuf -i 1-65535 -n 1).
_LOW_RANDOM_PORT = re.compile(
    r"shuf\s+-i\s*\d{1,3}-|^\"?\$\{?RANDOM\}?\"?$|\$\(\(\s*\$?\{?RANDOM\}?\s*(?:%\s*\d+\s*)?\)\)"
)


@RULES.add("SB307", "warning", "a rendezvous address that differs on every node", words=TRAINING_WORDS)
def _useless_address(script: JobScript) -> Iterator[Hit]:
    for place, name, what in _fixed_addresses(script):
        yield Hit(place, what, f"{name or 'MASTER_ADDR'}={FIRST_NODE}, before srun")
    on_several_nodes = [launch for launch in script.trainings if launch.step and (launch.nodes or 0) > 1]
    if not on_several_nodes:
        return
    for launch in on_several_nodes:
        if launch.launcher:
            yield from _addresses_of_own_node(script, launch, launch.launcher)
    nodes = script.resources.nodes
    for assignment in _address_assignments(script):
        value = (script.body.value(assignment.word) if assignment.word else "") or ""
        if LOOPBACK.match(value) and not assignment.context.in_branch:
            what = f"on each node {value} is the node itself: the {nodes} nodes never find each other"
            yield Hit(script.at_start(assignment), what, f"{assignment.name}={FIRST_NODE}")
    yield from (Hit(place, what, f"{name}={FIRST_NODE}") for place, name, what in _doubtful_addresses(script))


def _addresses_of_own_node(script: JobScript, launch: Launch, launcher: Tool) -> Iterator[Hit]:
    """Find options of a launcher, or a missing option, with which each node waits at its own address."""
    lost = f"the {launch.nodes} nodes never find each other"
    if launch.launcher_nodes not in (None, 1) and _lacks_address(launch, launcher):
        what = f"torchrun without --rdzv-endpoint meets at localhost: {lost}"
        yield Hit(script.at_word(launcher.words[0]), what, RDZV_OPTIONS, "error")
    fix = f"MASTER_ADDR={FIRST_NODE}, before srun"
    for option in filter(None, map(launcher.option, PROGRAMS[launcher.name].roles.get("HOST", ()))):
        value, source = launcher.text_of(option), option.word.source
        # The string after bash -c is in single quotes, so the shell of each task expands it.
        is_in_task_string = not (source is script.body.source or source.has_one_position)
        is_group_of_one_node = value.endswith(":0") and launch.launcher_nodes == 1
        if LOOPBACK.match(value) and not is_group_of_one_node:
            what = f"on each node {value} is the node itself: {lost}"
            yield Hit(script.at_option_of(option), what, fix, "error")
        elif "$(hostname" in value and is_in_task_string:
            yield Hit(script.at_option_of(option), f"each node takes its own hostname: {lost}", fix)


@RULES.add(
    "SB355",
    "error",
    "launchers that are all the first node",
    source="torch/distributed/run.py",
    words=LAUNCHER_WORDS,
)
def _launchers_of_rank_zero(script: JobScript) -> Iterator[Hit]:
    for launch in script.trainings:
        launcher, call, nodes = launch.launcher, launch.launcher_call, launch.nodes or 0
        if not launcher or not call or nodes < 2 or not launch.step or launch.runs_in_some_tasks:
            continue
        at = script.at_word(launcher.words[0])
        if not call.may_know_other_nodes:
            yield Hit(at, missing_hosts_message(nodes), deepspeed_fix(), "warning")
        rank = launcher.option(PROGRAMS[launcher.name].option_with_role("RANK"))
        has_computed_rank = rank and not (launcher.text_of(rank) or "$").isdecimal()  # such as $SLURM_NODEID
        is_for_one_node = (launch.launcher_nodes or 0) < 2
        if not call.has_static_ranks or is_for_one_node or has_computed_rank or _may_get_rank(launch):
            continue
        if not _has_rendezvous_address(launcher) and not rank and launcher.name == "torchrun":
            continue  # SB307 reports the missing address
        severity: Severity | None = "warning" if launcher.name.startswith("accelerate") else None
        edits = rendezvous_edits(script, launcher)
        same_rank = f"{rank.name}={launcher.text_of(rank)}" if rank else ""
        what, fix = same_rank_texts(launcher.name, nodes, same_rank)
        yield Hit(script.at_option_of(rank) if rank else at, what, fix, severity, edits)


def _has_rendezvous_address(launcher: Tool) -> bool:
    """Return whether an option of a launcher gives the address where its nodes meet."""
    return any(map(launcher.option, PROGRAMS[launcher.name].roles.get("HOST", ())))


def _may_get_rank(launch: Launch) -> bool:
    """Return whether a launcher may get its rank from options in a variable, or from PET_ variables.

    torchrun reads each option from a variable too, such as --node-rank from PET_NODE_RANK.
    """
    program, text = launch.program.words[0].text, launch.launcher.body.source.text if launch.launcher else ""
    may_be_options = program.startswith("$") and "/" not in program  # torchrun $OPTIONS train.py
    return may_be_options or "PET_" in text


def _lacks_address(launch: Launch, launcher: Tool) -> bool:
    """Return whether torchrun gets the address where its nodes meet from no option and from no variable."""
    backend = launcher.option("rdzv-backend")
    address_options = {"rdzv-endpoint", "standalone"} | ({"master-addr"} if backend is None else set())
    has_c10d = launcher.name == "torchrun" and (not backend or backend.value == "c10d")
    if not has_c10d or address_options & launcher.options.keys():
        return False
    # torchrun reads PET_RDZV_ENDPOINT, and the bundled torchrun.py finds the address itself.
    has_other_address = "PET_" in launcher.body.source.text or "torchrun.py" in launch.command.text
    may_have_options = "$" in launch.program.name  # torchrun $OPTIONS train.py
    return not may_have_options and not has_other_address


@RULES.add(
    "SB345",
    "warning",
    "messages in the value of an address",
    source="docs/design/slurm.md",
    words=("2>&1", "&>"),
    report="https://github.com/ishandhanani/srt-slurm/pull/250",
)
def _messages_in_address(script: JobScript) -> Iterator[Hit]:
    """Find a step with 2>&1 whose output becomes an address: in ADDR=$(srun ...), or in a function there."""
    addresses = [
        assignment
        for assignment in script.body.assignments
        if assignment.word and _HOST_NAME.search(assignment.name)
    ]
    for launch in script.steps:
        command = launch.command
        if not _STDERR_TO_STDOUT.search(command.text) or command.pipe or not launch.is_helper:
            continue
        function = command.context.function
        calls = [command] if command.context.in_substitution or not function else script.named(function)
        substituted = (call for call in calls if call.context.in_substitution)
        if any(address.at < call.at < address.end for call in substituted for address in addresses):
            what = "srun prints to stderr when a step has to wait (Step created for ...): with 2>&1 that "
            what += "becomes a part of the address"
            fix = "leave out 2>&1, or take the name: scontrol show hostnames"
            yield Hit(script.at_word(command), what, fix)


_STDERR_TO_STDOUT = re.compile(r"2>&1|&>")
# Names of variables that hold an address or a name of a node, such as head_ip or SERVER_URL.
_HOST_NAME = re.compile(r"(?i)(?:^|_)(?:addr(?:ess)?|ip|host(?:name)?|node|endpoint|url|server)\d*$")


@RULES.add("SB331", "error", "a quoted list of nodes in an array", words=("hostname",))
def _quoted_nodes(script: JobScript) -> Iterator[Hit]:
    if script.resources.nodes < 2:
        return
    assignments = script.body.assignments
    # The variables with a list of nodes, as in LIST=$(scontrol show hostnames).
    lists = {
        assignment.name
        for assignment in assignments
        if assignment.word and _LISTS_NODES.search(assignment.word.text)
    }
    for array in assignments:
        if array.items is None or len(array.items) != 1:
            continue
        element = array.items[0]
        piece = element.only_piece
        if piece is None or not piece.is_quoted or piece.subscript or piece.operator:
            continue
        is_variable = piece.kind == "variable"
        if piece.name in lists if is_variable else _LISTS_NODES.search(piece.text):
            what = f"the quotes make all {script.resources.nodes} nodes one element of {array.name}: "
            what += f"${{{array.name}[1]}} is empty, and ${{{array.name}[0]}} names no host"
            unquoted = element.text.replace('"', "") if is_variable else element.text[1:-1]
            edit = Edit(element.line, element.column, element.end_column, unquoted)
            edits = (edit,) if element.line == element.end_line else ()
            yield Hit(script.at_word(element), what, f"{array.name}=({unquoted})", edits=edits)


# $(scontrol show hostnames ...), but not in a pipe, which may choose one node.
_LISTS_NODES = re.compile(
    r"\$\(\s*scontrol\s+show\s+hostnames?\b[^|]*\)|`\s*scontrol\s+show\s+hostnames?\b[^|]*`"
)


@RULES.add(
    "SB324",
    "warning",
    "--standalone on several nodes",
    source="torch/distributed/run.py",
    words=("standalone",),
    report="https://github.com/DeepWave-KAUST/sweep/pull/68",
)
def _standalone_on_nodes(script: JobScript) -> Iterator[Hit]:
    for launch in script.trainings:
        option = launch.launcher.option("standalone") if launch.launcher else None
        nodes = launch.nodes
        if option and launch.step and nodes and nodes > 1 and not launch.runs_in_some_tasks:
            what = f"with --standalone each node is a group of its own: each of the {nodes} nodes trains the "
            what += "same model alone"
            yield Hit(script.at_word(option.word), what, f"--nnodes=$SLURM_NNODES {RDZV_OPTIONS}")


def _has_whole_nodes(script: JobScript) -> bool:
    """Return whether the job takes all GPUs of its nodes, so that no other training runs there."""
    partitions, gpus = script.partitions, script.resources.gpu_count
    # The GPUs of a node in each partition. An unknown number counts as more than the job takes.
    node_gpus = [partition.gpus_per_node or gpus + 1 for partition in partitions.values()]
    knows_all_partitions = len(node_gpus) == len(set(script.resources.partitions))
    return bool(node_gpus and gpus >= max(node_gpus)) and knows_all_partitions


def _ports(script: JobScript) -> Iterator[tuple[Place, str, str]]:
    """Yield the place, the variable and the text of each port that the script shows.

    For the port in an option, the variable is MASTER_PORT.
    """
    trainings = script.trainings
    if all(launch.launcher and "standalone" in launch.launcher.options for launch in trainings):
        return  # --standalone takes a free port
    for assignment in script.body.assignments:
        if assignment.word is not None and assignment.name in _PORT_NAMES:
            yield script.at_start(assignment), assignment.name, assignment.value or ""
    for launch in trainings:
        launcher = launch.launcher
        if launcher is None or "standalone" in launcher.options:
            continue
        for name in ("rdzv-endpoint", PROGRAMS[launcher.name].option_with_role("PORT")):
            option = launcher.option(name)
            pieces = option.value_word.pieces if option and option.value_word else ()
            if option and pieces and pieces[-1].kind == "text":
                port = launcher.text_of(option).rpartition(":")[2]
                yield script.at_option_of(option), "MASTER_PORT", port


def _fixed_addresses(script: JobScript) -> Iterator[tuple[Place, str, str]]:
    """Yield the place, the variable and the message for each address that names a fixed node.

    For the address in an option, the variable is "".
    """
    if not script.trainings or "nodelist" in script.options:  # --nodelist fixes the nodes
        return
    # Places of addresses, each with the variable and the address.
    addresses = [
        (script.at_start(assignment), assignment.name, assignment.value or "")
        for assignment in _address_assignments(script)
        if "FILE" not in assignment.name.upper()
    ]
    for launcher in filter(None, (launch.launcher for launch in script.trainings)):
        names = {*PROGRAMS[launcher.name].roles.get("HOST", ()), "master-addr"}
        options = map(launcher.option, sorted(names))
        addresses += [
            (script.at_option_of(option), "", launcher.text_of(option)) for option in options if option
        ]
    for place, variable, address in addresses:
        if node := node_in_address(address):
            what = f"the script names {node} as the place to meet: the job may run on other nodes"
            yield place, variable, what


def node_in_address(address: str) -> str:
    """Return the node that an address names; "" for localhost, and for a name that may not be a node's."""
    match = _NODE.match(address)
    return match[1] if match and not LOOPBACK.match(address) else ""


# 10.0.0.5:29500 or node12.cluster.org
_NODE = re.compile(r"((?:\d{1,3}\.){3}\d{1,3}|[a-z][\w-]*\d(?:\.[\w.-]+)?)(?::\d+)?$")


def _address_assignments(script: JobScript) -> list[Assignment]:
    """Return the assignments of variables such as MASTER_ADDR."""
    return [
        assignment
        for assignment in script.body.assignments
        if assignment.word is not None and _ADDRESS_NAME.fullmatch(assignment.name)
    ]


def _doubtful_addresses(script: JobScript) -> Iterator[tuple[Place, str, str]]:
    """Yield the place, the variable and the message for commands that may give a variable no address."""
    assignments = _address_assignments(script)
    program_words = {id(launch.command): launch.program.words for launch in script.steps}  # without srun
    for command in script.named("hostname", "echo", "srun"):
        is_substituted = command.context.in_substitution and not command.context.trap_signals
        variables = [address.name for address in assignments if address.at <= command.at < address.end]
        if not is_substituted or not variables:
            continue
        words = program_words.get(id(command), command.words)
        name = words[0].text if words else ""
        arguments = [word.value or "" for word in words[1:]]
        if name == "echo" and arguments and LOOPBACK.match(arguments[0]):
            what = (
                f"where the first node is not found, {arguments[0]} takes its place: every node then trains "
            )
            what += "alone, without an error"
            yield script.at_word(words[0]), variables[0], what
        is_step = id(command) in program_words and not command.pipe  # a pipe may choose one address
        if name == "hostname" and is_step and _HOSTNAME_ADDRESS_OPTIONS & set(arguments):
            what = f"{' '.join(['hostname', *arguments])} may print 127.0.1.1 or several addresses: then the "
            what += "nodes never find each other"
            yield script.at_word(words[0]), variables[0], what
