"""Rules about the rendezvous: the address and the port where the processes of a launch meet.

Sources: srun(1) and sbatch(1) of Slurm 22.05 and the release notes up to 26.05; torch/distributed/run.py of
torch 2.13; bash(1).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from sbatchgen.base.finding import Edit, Place
from sbatchgen.base.quoting import CODE, OR
from sbatchgen.check.bash import Assignment
from sbatchgen.check.bash.chain import Tool, ToolOption
from sbatchgen.check.executables.program import PROGRAMS
from sbatchgen.check.rules.rule import Hit, Rules
from sbatchgen.check.script.launches import LAUNCHER_WORDS, TRAINING_WORDS, Launch
from sbatchgen.check.script.script import JobScript

RULES: Rules[JobScript] = Rules()

MANY_GPUS = 4  # a job with this number of GPUs on a node usually has the node alone
LOOPBACK = re.compile(r"(?:localhost|0\.0\.0\.0|127\.\d+\.\d+\.\d+|\[?::1\]?)(?=:|$)")
FIRST_NODE = '$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)'
RDZV_OPTIONS = "--rdzv-backend=c10d --rdzv-endpoint=$MASTER_ADDR:$MASTER_PORT"
_OWN_PORT = "$((20000 + SLURM_JOB_ID % 10000))"  # a port that few other jobs have
_PORT_NAMES = ("MASTER_PORT", "MAIN_PROCESS_PORT", "RDZV_PORT")
# Variables with the address of the first node, such as MASTER_ADDR or HEAD_NODE_IP.
_ADDRESS_NAME = re.compile(
    r"(?:MASTER|HEAD|MAIN|MST|RDZV)_?(?:NODE_?)?(?:PROCESS_?)?(?:ADDR|IP|HOST|ENDPOINT)\w*", re.IGNORECASE
)
_ADDRESS_OPTIONS = frozenset(("-i", "-I", "--ip-address", "--all-ip-addresses"))  # of hostname


@RULES.add("SB306", "warning", "a port that is the same for every job", words=("PORT", *LAUNCHER_WORDS))
def _shared_port(script: JobScript) -> Iterator[Hit]:
    resources = script.resources
    if "exclusive" in resources or not script.trainings or _has_whole_nodes(script):
        return
    severity = None if 0 < resources.gpu_count < MANY_GPUS else "info"
    reported = set()
    for place, name, port in _ports(script):
        if re.fullmatch(r"[1-9]\d{3,4}", port, re.ASCII) and port not in reported:
            reported.add(port)
            what = f"port {port} is the same for every job: two jobs on one node collide, or join one group"
            yield Hit(place, what, f"{name}={_OWN_PORT}", severity)  # type: ignore[arg-type]


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
            yield Hit(place, what, f"{name}={_OWN_PORT}")
        if re.fullmatch(r"[1-9]\d{0,2}|10[01]\d|102[0-3]", port, re.ASCII):
            what = f"port {port} is below 1024, where only root may listen: no process gets it"
            yield Hit(place, what, f"{name}={_OWN_PORT}")
    for setting in script.body.sets:
        if setting.word is None:
            continue
        if setting.name.upper() in _PORT_NAMES and _RANDOM_FROM_LOW.search(setting.word.text):
            what = "this port may be below 1024, where only root may listen: now and then a job fails"
            yield Hit(script.at_start(setting), what, f"{setting.name}={_OWN_PORT}")
        elif _PORT_NAME.search(setting.name):
            highest = _highest_port(setting.word.text)
            if highest and highest > LAST_PORT:
                what = f"this port may be up to {highest}, and the last one is {LAST_PORT}: many a job fails"
                yield Hit(script.at_start(setting), what, f"{setting.name}={_OWN_PORT}")


LAST_PORT = 65535
_LARGEST_RANDOM = 32767  # the highest value of bash's RANDOM
_PORT_NAME = re.compile(r"(?i)(?:^|_)port(?:$|_|\d)")
_SUM = re.compile(r"\$\(\((.*)\)\)")  # $((20000 + SLURM_JOB_ID % 10000))
_SHUF = re.compile(r"\$\(\s*shuf (?:-n ?1 )?-i ?\d+-(\d+)(?: -n ?1)?\s*\)")  # $(shuf -i 20000-30000 -n 1)
# A term of a sum: 20000, $RANDOM or (SLURM_JOB_ID%10000).
_TERM = re.compile(r"\(?\$?\{?(?:(\d+)|(RANDOM)|SLURM_(?:ARRAY_)?(?:JOB|TASK)_?ID)\}?(?:%(\d+))?\)?")


def _highest_port(text: str) -> int | None:
    """Return the highest port that a sum of numbers, random numbers and job ids gives; None if unknown."""
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
        is_whole_job_id = not (number or random or modulo)  # how large the cluster's ids are is unknown
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
_RANDOM_FROM_LOW = re.compile(
    r"shuf\s+-i\s*\d{1,3}-|^\"?\$\{?RANDOM\}?\"?$|\$\(\(\s*\$?\{?RANDOM\}?\s*(?:%\s*\d+\s*)?\)\)"
)


@RULES.add("SB307", "warning", "a rendezvous address that differs on every node", words=TRAINING_WORDS)
def _useless_address(script: JobScript) -> Iterator[Hit]:
    for place, name, what in _fixed_addresses(script):
        yield Hit(place, what, f"{name or 'MASTER_ADDR'}={FIRST_NODE}, before srun")
    on_several_nodes = [launch for launch in script.trainings if launch.step and (launch.nodes or 0) > 1]
    if not on_several_nodes:
        return
    nodes, fix = script.resources.nodes, f"MASTER_ADDR={FIRST_NODE}, before srun"
    for launch, launcher in ((launch, launch.launcher) for launch in on_several_nodes if launch.launcher):
        if launch.launcher_nodes not in (None, 1) and _lacks_address(launch, launcher):
            what = "torchrun without --rdzv-endpoint meets at localhost: "
            what += f"the {launch.nodes} nodes never find each other"
            yield Hit(script.at_word(launcher.words[0]), what, RDZV_OPTIONS, "error")
        for option in filter(None, map(launcher.option, PROGRAMS[launcher.name].roles.get("HOST", ()))):
            value, source = launcher.text_of(option), option.word.source
            is_in_task_string = not (source is script.body.source or source.fixed)
            lost = f"the {launch.nodes} nodes never find each other"
            if LOOPBACK.match(value) and not (value.endswith(":0") and launch.launcher_nodes == 1):
                what = f"on each node {value} is the node itself: {lost}"
                yield Hit(script.at_option_of(option), what, fix, "error")
            elif "$(hostname" in value and is_in_task_string:
                # The string after bash -c is in single quotes, so the shell of each task expands it.
                yield Hit(script.at_option_of(option), f"each node takes its own hostname: {lost}", fix)
    for setting in _addresses(script):
        value = (script.body.value(setting.word) if setting.word else "") or ""
        if LOOPBACK.match(value) and not setting.context.branch:
            what = f"on each node {value} is the node itself: the {nodes} nodes never find each other"
            yield Hit(script.at_start(setting), what, f"{setting.name}={FIRST_NODE}")
    yield from (Hit(place, what, f"{name}={FIRST_NODE}") for place, name, what in _doubtful_addresses(script))


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
        has_computed_rank = rank and not (launcher.text_of(rank) or "$").isdecimal()
        is_for_one_node = (launch.launcher_nodes or 0) < 2
        if not call.has_static_ranks or is_for_one_node or has_computed_rank or _may_get_rank(launch):
            continue
        if not has_rendezvous_address(launcher) and not rank and launcher.name == "torchrun":
            continue  # SB307 reports the missing address
        severity = "warning" if launcher.name.startswith("accelerate") else None
        edits = rendezvous_edits(script, launcher)
        same_rank = f"{rank.name}={launcher.text_of(rank)}" if rank else ""
        what, fix = same_rank_texts(launcher.name, nodes, same_rank)
        yield Hit(script.at_option_of(rank) if rank else at, what, fix, severity, edits)  # type: ignore[arg-type]


TORCH_LAUNCHERS = ("torchrun", "ft_launcher")  # launchers with the rendezvous of torch
_TORCHRUN = f"torchrun --nnodes=$SLURM_NNODES --nproc-per-node=$SLURM_GPUS_ON_NODE {RDZV_OPTIONS} train.py"


def deepspeed_fix(before: str = "") -> str:
    """Return the fix for deepspeed on several nodes: torchrun in its place, with `before` in front of it."""
    return (
        "start the program with torchrun, whose variables deepspeed's initialize() reads"
        f"{CODE}{before}{_TORCHRUN}{OR}write a --hostfile, and start deepspeed without srun"
    )


def missing_hosts_message(nodes: int) -> str:
    """Return the message about a deepspeed that runs on each of several nodes without a list of hosts."""
    return (
        f"without --hostfile deepspeed knows its own node only: each of the {nodes} nodes trains the same "
        "model alone"
    )


def same_rank_texts(name: str, nodes: int, same_rank: str) -> tuple[str, str]:
    """Return the message and the fix for a launcher that has the same rank on each node.

    `same_rank` is the option in the command, such as node-rank=0; without an option ("") the rank is 0.
    """
    option = PROGRAMS[name].option_with_role("RANK")
    if name.startswith("accelerate"):  # older releases only know the option with an underscore
        option = option.replace("-", "_")
    fix = f"srun bash -c '{name} ... --{option}=$SLURM_NODEID ...', in single quotes"
    if name.startswith("accelerate"):
        what = f"without --{option} accelerate takes the rank of its own settings on all {nodes} nodes, or "
        what += "ends with a TypeError"
    else:
        what = f"without --{option} each of the {nodes} nodes has rank 0"
        fix = f"replace --master-addr and --master-port by these options{CODE}{RDZV_OPTIONS}{OR}{fix}"
    if same_rank:
        what = f"--{same_rank} gives all {nodes} nodes the same rank"
    awaited = "the others until the time limit" if same_rank[-2:] in ("", "=0") else "a node with rank 0"
    return f"{what}: they wait for {awaited}", fix


def has_rendezvous_address(launcher: Tool) -> bool:
    """Return whether the options of a launcher give the address where its nodes meet."""
    return any(map(launcher.option, PROGRAMS[launcher.name].roles.get("HOST", ())))


def rendezvous_edits(script: JobScript, launcher: Tool) -> tuple[Edit, ...]:
    """Return the edits that give a static torchrun the options of a rendezvous; () if an edit is not safe.

    The first option of the old address and rank is replaced, the others are removed.
    """
    host = launcher.option("rdzv-endpoint") or launcher.option("master-addr")
    if launcher.name not in TORCH_LAUNCHERS or not host or launcher.body.source is not script.body.source:
        return ()
    named = (
        launcher.option(name)
        for name in ("node-rank", "rdzv-backend", "rdzv-endpoint", "master-addr", "master-port")
    )
    options = sorted((option for option in named if option), key=lambda option: option.word.at)
    if not all(_is_in_one_line(script, option) for option in options):
        return ()
    port = launcher.option("master-port") if host.name == "master-addr" else None
    address = _value_as_written(host)
    if host.name == "master-addr":
        address += f":{_value_as_written(port) if port else _OWN_PORT}"
    first, *others = options
    return (
        _replacement(script, first, f"--rdzv-backend=c10d --rdzv-endpoint={address}"),
        *(_replacement(script, option, "") for option in others),
    )


def _is_in_one_line(script: JobScript, option: ToolOption) -> bool:
    """Return whether an option is in a single line of the script, so that an edit can replace it."""
    words = [option.word, option.value_word or option.word]
    is_in_script = all(word.source is script.body.source and word.text.strip() for word in words)
    lines = {line for word in words for line in (word.line, word.end_line)}
    return is_in_script and words[0].text.startswith("--") and len(lines) == 1


def _value_as_written(option: ToolOption) -> str:
    """Return the value of an option as written, with its quotes."""
    word = option.value_word
    return word.text if word and word is not option.word else option.word.text.partition("=")[2]


def _replacement(script: JobScript, option: ToolOption, text: str) -> Edit:
    """Return the edit that replaces an option and its value; an empty text also removes a blank."""
    start, end = option.word.column, (option.value_word or option.word).end_column
    line = script.lines[option.word.line - 1]
    if not text and line[start - 2 : start - 1] == " ":
        start -= 1
    return Edit(option.word.line, start, end, text)


def _may_get_rank(launch: Launch) -> bool:
    """Return whether the launcher may get its rank from options in a variable, or from PET_ variables."""
    program, text = launch.program.words[0].text, launch.launcher.body.source.text if launch.launcher else ""
    may_be_options = program.startswith("$") and "/" not in program  # torchrun $OPTIONS train.py
    return may_be_options or "PET_" in text


def _lacks_address(launch: Launch, launcher: Tool) -> bool:
    """Return whether neither options nor variables give a torchrun the address where its nodes meet."""
    backend = launcher.option("rdzv-backend")
    address_options = {"rdzv-endpoint", "standalone"} | ({"master-addr"} if backend is None else set())
    has_c10d = launcher.name == "torchrun" and (not backend or backend.value == "c10d")
    if not has_c10d or address_options & launcher.options.keys():
        return False
    # torchrun reads PET_RDZV_ENDPOINT, and the bundled torchrun.py finds the address itself.
    has_other_address = "PET_" in launcher.body.source.text or "torchrun.py" in launch.command.text
    return "$" not in launch.program.name and not has_other_address  # torchrun $OPTIONS train.py


@RULES.add(
    "SB345",
    "warning",
    "messages in the value of an address",
    source="docs/design/slurm.md",
    words=("2>&1", "&>"),
    report="https://github.com/ishandhanani/srt-slurm/pull/250",
)
def _messages_in_address(script: JobScript) -> Iterator[Hit]:
    """Find a 2>&1 of a step inside $( ), or of a function that $( ) calls."""
    addresses = [setting for setting in script.body.sets if setting.word and _HOST_NAME.search(setting.name)]
    for launch in script.steps:
        command = launch.command
        if not _STDERR_TOO.search(command.text) or command.pipe or not launch.is_helper:
            continue
        function = command.context.function
        calls = [command] if command.context.substitution or not function else script.named(function)
        inside = (call for call in calls if call.context.substitution)
        if any(setting.at < call.at < setting.end for call in inside for setting in addresses):
            what = "srun prints to stderr when a step has to wait (Step created for ...): with 2>&1 that "
            what += "becomes a part of the address"
            fix = "leave out 2>&1, or take the name: scontrol show hostnames"
            yield Hit(script.at_word(command), what, fix)


_STDERR_TOO = re.compile(r"2>&1|&>")
# Variables with an address or a name of a node, such as head_ip or SERVER_URL.
_HOST_NAME = re.compile(r"(?i)(?:^|_)(?:addr(?:ess)?|ip|host(?:name)?|node|endpoint|url|server)\d*$")


@RULES.add("SB331", "error", "a quoted list of nodes in an array", words=("hostname",))
def _quoted_nodes(script: JobScript) -> Iterator[Hit]:
    if script.resources.nodes < 2:
        return
    body = script.body
    lists = {setting.name for setting in body.sets if setting.word and _LISTS_NODES.search(setting.word.text)}
    for setting in body.sets:
        piece = setting.items[0].only_piece if setting.items and len(setting.items) == 1 else None
        if setting.items is None or piece is None or not piece.quoted or piece.subscript or piece.operator:
            continue
        word = setting.items[0]
        is_variable = piece.kind == "variable"
        if piece.name in lists if is_variable else _LISTS_NODES.search(piece.text):
            what = f"the quotes make all {script.resources.nodes} nodes one element of {setting.name}: "
            what += f"${{{setting.name}[1]}} is empty, and ${{{setting.name}[0]}} names no host"
            unquoted = word.text.replace('"', "") if is_variable else word.text[1:-1]
            edit = Edit(word.line, word.column, word.end_column, unquoted)
            edits = (edit,) if word.line == word.end_line else ()
            yield Hit(script.at_word(word), what, f"{setting.name}=({unquoted})", edits=edits)


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
    # The GPUs on a node of each partition; an unknown number counts as more than the job takes.
    sizes = [partition.gpus_per_node or gpus + 1 for partition in partitions.values()]
    return bool(sizes and gpus >= max(sizes)) and len(sizes) == len(set(script.resources.partitions))


def _ports(script: JobScript) -> Iterator[tuple[Place, str, str]]:
    """Yield the place, the variable's name and the text of each literal port."""
    trainings = script.trainings
    if all(launch.launcher and "standalone" in launch.launcher.options for launch in trainings):
        return  # --standalone takes a free port
    for setting in script.body.sets:
        if setting.word is not None and setting.name in _PORT_NAMES:
            yield script.at_start(setting), setting.name, setting.value or ""
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
    """Yield the place, the variable's name and the message of addresses that name a fixed node."""
    if not script.trainings or "nodelist" in script.options:  # --nodelist fixes the nodes
        return
    named = (setting for setting in _addresses(script) if "FILE" not in setting.name.upper())
    values = [(script.at_start(setting), setting.name, setting.value or "") for setting in named]
    for launcher in filter(None, (launch.launcher for launch in script.trainings)):
        names = {*PROGRAMS[launcher.name].roles.get("HOST", ()), "master-addr"}
        options = map(launcher.option, sorted(names))
        values += [
            (script.at_option_of(option), "", launcher.text_of(option)) for option in options if option
        ]
    for place, variable, value in values:
        if name := node_in_address(value):
            what = f"the script names {name} as the place to meet: the job may run on other nodes"
            yield place, variable, what


def node_in_address(address: str) -> str:
    """Return the node that an address names; "" if the address may name no node, and for localhost."""
    match = _NODE.match(address)
    return match[1] if match and not LOOPBACK.match(address) else ""


# 10.0.0.5:29500 or node12.cluster.org
_NODE = re.compile(r"((?:\d{1,3}\.){3}\d{1,3}|[a-z][\w-]*\d(?:\.[\w.-]+)?)(?::\d+)?$")


def _addresses(script: JobScript) -> list[Assignment]:
    """Return the assignments of variables such as MASTER_ADDR."""
    return [
        setting
        for setting in script.body.sets
        if setting.word is not None and _ADDRESS_NAME.fullmatch(setting.name)
    ]


def _doubtful_addresses(script: JobScript) -> Iterator[tuple[Place, str, str]]:
    """Yield the place, the variable's name and the message of commands that may give a useless address."""
    addresses = _addresses(script)
    words_in_step = {id(launch.command): launch.program.words for launch in script.steps}
    for command in script.named("hostname", "echo", "srun"):
        is_substituted = command.context.substitution and not command.context.trap
        inside = [address.name for address in addresses if address.at <= command.at < address.end]
        if not is_substituted or not inside:
            continue
        words = words_in_step.get(id(command), command.words)
        name = words[0].text if words else ""
        values = [word.value or "" for word in words[1:]]
        if name == "echo" and values and LOOPBACK.match(values[0]):
            what = f"where the first node is not found, {values[0]} takes its place: every node then trains "
            what += "alone, without an error"
            yield script.at_word(words[0]), inside[0], what
        is_step = id(command) in words_in_step and not command.pipe  # a pipe may choose one address
        if name == "hostname" and is_step and _ADDRESS_OPTIONS & set(values):
            what = f"{' '.join(['hostname', *values])} may print 127.0.1.1 or several addresses: then the "
            what += "nodes never find each other"
            yield script.at_word(words[0]), inside[0], what
