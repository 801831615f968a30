"""The launches of a script: the commands that start programs, each with its step, launcher and processes.

    for launch in script.launches:  # srun --nodes=2 torchrun --nproc-per-node=4 train.py
        launch.step.name, launch.launcher.name, launch.program.name  # "srun", "torchrun", "train.py"
        launch.nodes, launch.tasks_per_node, launch.workers  # 2, 1, 4

Sources: srun(1) and sbatch(1) of Slurm 22.05, OUTPUT ENVIRONMENT VARIABLES; torch/distributed/run.py.
"""

import re
from collections.abc import Collection, Iterable, Iterator

from sbatchgen.base.frozen import cached_property, frozen
from sbatchgen.check.bash import Body, Command, Piece, Word, string_body
from sbatchgen.check.bash.chain import Tool, ToolOption, chain
from sbatchgen.check.executables.launcher import LauncherCall
from sbatchgen.check.executables.program import LAUNCHERS, MODULES, SHELLS, STARTING_KINDS, commands, programs
from sbatchgen.check.script.resource_request import Amounts, ResourceRequest

# Programs that start processes on the job's nodes without srun. Their command lines are not followed.
OTHER_LAUNCHERS = programs("elsewhere")
CONTAINERS = programs("hpc-container")  # such as apptainer exec
CHAIN_STARTERS = commands(*STARTING_KINDS) | {"eval"}  # commands that start other programs
# A script that starts a launcher, a training or a program of MPI holds at least one word of the list below. A
# rule searches the text for these words first, which is faster than reading the script.
LAUNCHER_WORDS = (*sorted(commands("launcher") | {module.partition(".")[0] for module in MODULES}),)
TRAINING_WORDS = (*LAUNCHER_WORDS, "python", "uv")
MPI_WORDS = (*sorted(programs("mpi")),)
HELPERS = programs("helper")  # programs such as hostname, on which no training depends
# The end of the path of a program that rendered scripts start in their steps, and that is not a training.
STEP_WATCHER = "/training/step_end.py"
_LAUNCHER_NAME = re.compile(r"torchrun|deepspeed|accelerate")  # as in python $(which torchrun)
_PYTHON = re.compile(r"python[\d.]*")  # such as python and python3.11
_SHELL_SCRIPT = re.compile(r"\.(?:sh|bash|slurm|sbatch|job)$")  # the end of a name such as run.sh
# Names of files that only set up a shell, such as bin/activate of a virtual environment, and ~/.bashrc.
_SETUP_FILE = re.compile(
    r"(?:activ|conda|mamba|env|profile|modul|lmod|setvars|load_|init)[^/]*$|rc$|/init/\w+$|-release$"
    r"|\b(?:config|settings|params|vars)(?:\.sh)?$",
    re.IGNORECASE,
)


@frozen(kw_only=True)
class Launch:
    """A command that starts programs."""

    command: Command  # the command of the script
    tools: tuple[Tool, ...]  # the chain of tools that start each other; the last tool is the program
    resources: ResourceRequest  # the job's request of Slurm

    @cached_property
    def step(self) -> Tool | None:
        """The srun that starts a Slurm step; None if the batch script runs the program itself."""
        return self._first_tool(frozenset(("srun",)))

    @cached_property
    def step_program(self) -> Tool | None:
        """The tool that srun starts; None without srun."""
        names = [tool.name for tool in self.tools]
        return next(iter(self.tools[names.index("srun") + 1 :]), None) if self.step else None

    @cached_property
    def launcher(self) -> Tool | None:
        """The launcher, such as torchrun or accelerate launch; None without a launcher."""
        return self._first_tool(LAUNCHERS)

    @cached_property
    def mpi(self) -> Tool | None:
        """The mpirun or mpiexec; None if the launch has neither."""
        return self._first_tool(programs("mpi"))

    @cached_property
    def container(self) -> Tool | None:
        """The command that starts a container, such as apptainer exec; not srun --container-image."""
        return self._first_tool(CONTAINERS)

    @property
    def program(self) -> Tool:
        """The program at the end of the chain."""
        return self.tools[-1]

    @cached_property
    def is_helper(self) -> bool:
        """Whether the program is a small command such as hostname, on which no training depends."""
        name = self.program.name.rpartition("/")[2]
        words = (*self.program.rest, *(option.word for option in self.program.uses))
        asks_version = self.launcher is None and any(word.text in ("--version", "-V") for word in words)
        return asks_version or name in HELPERS or self.program.name.rstrip('"').endswith(STEP_WATCHER)

    @cached_property
    def is_training(self) -> bool:
        """Whether the launch starts a Python program that does the script's real work."""
        python = next((tool for tool in self.tools if tool.name == "python"), None)
        is_inline = python is not None and python.option("c") is not None  # python -c CODE
        computes_text = self.command.context.in_substitution  # a command in $( )
        starter = self.tools[-2].name if len(self.tools) > 1 else ""
        is_uv_script = starter == "uv run" and self.program.name.endswith(".py")
        is_python = python is not None or self.launcher is not None or is_uv_script
        return is_python and not (self.is_helper or is_inline or computes_text)

    @property
    def is_python_file(self) -> bool:
        """Whether the program is a file of Python, even with an unknown folder, as in $CODE/train.py."""
        return len(self.tools) > 1 and self.program.name.rstrip('"').endswith(".py")

    @cached_property
    def runs_rank_per_task(self) -> bool:
        """Whether each task of the step is one process of a training, without a launcher."""
        if self.step is None or self.launcher or self.mpi or not self.is_training:
            return False
        return not _LAUNCHER_NAME.search(self.program.words[0].text)

    @cached_property
    def shell_strings(self) -> tuple[tuple[Tool, Body], ...]:
        """Each shell with -c in the step, such as bash -c 'python x.py', and the string as a body."""
        pairs = zip(self.tools, self.tools[1:], strict=False) if self.step else ()
        return tuple((shell, tool.body) for shell, tool in pairs if shell.name in SHELLS)

    @cached_property
    def runs_in_some_tasks(self) -> bool:
        """Whether only some tasks may start the program, as bash -c starts it in an if or a case."""
        at = self.program.words[0].at  # the offset of the program's name
        inner = (command for _, body in self.shell_strings for command in body.commands)
        return any(command.context.in_branch and command.at <= at < command.end for command in inner)

    @property
    def step_gpus(self) -> ToolOption | None:
        """The option by which the step asks for GPUs itself; None if the step gets the job's GPUs."""
        names = ("gpus", "gpus-per-node", "gpus-per-task", "gres")
        return next((option for name in names if self.step and (option := self.step.option(name))), None)

    @cached_property
    def nodes(self) -> int | None:
        """The number of nodes of the step; 1 without srun, None if the script does not show the number."""
        if self.step is None:
            return 1
        option = self.step.option("nodes")
        return self.option_number(option, self.step) if option else fixed_nodes(self.resources)

    @cached_property
    def tasks(self) -> int | None:
        """The number of tasks of the step; 1 without srun, None if the script does not show the number."""
        if self.step is None:
            return 1
        if option := self.step.option("ntasks"):
            return self.option_number(option, self.step)
        resources = self.resources
        job_tasks = resources.ntasks or resources.nodes * (resources.ntasks_per_node or 0)
        if option := self.step.option("ntasks-per-node"):
            count = self.option_number(option, self.step)
            step_tasks = self.nodes * count if self.nodes is not None and count is not None else None
            if job_tasks in (0, step_tasks) or step_tasks is None:
                return step_tasks
            # srun ignores --ntasks-per-node if SLURM_NTASKS is set. With --nodes, 26.05 obeys the option and
            # 22.05 does not.
            return None if "nodes" in self.step.options else job_tasks
        if resources.ntasks or self.nodes is None:
            return resources.ntasks  # the step inherits the job's number
        per_gpu, per_node = self._tasks_per_gpu, resources.ntasks_per_node or 1
        return self.nodes * per_node if per_gpu is None else per_gpu * resources.gpus_in_all or None

    @property
    def _tasks_per_gpu(self) -> int | None:
        """The value of --ntasks-per-gpu; 0 if the script hides the number, None without the option."""
        option = self.step.option("ntasks-per-gpu") if self.step else None
        if option and self.step:
            # With GPUs of its own, the step has tasks for another number of GPUs than the job's.
            return 0 if self.step_gpus else self.option_number(option, self.step) or 0
        return self.resources.ntasks_per_gpu

    @cached_property
    def tasks_per_node(self) -> int | None:
        """The number of tasks on the node with the most; None if the script does not show the number."""
        if self.tasks is None or self.nodes is None:
            if self.step is None or self.resources.ntasks or self.resources.ntasks_per_node:
                return None
            return self.option_number(self.step.option("ntasks-per-node"), self.step)
        return -(-self.tasks // max(self.nodes, 1))

    @cached_property
    def launcher_call(self) -> LauncherCall | None:
        """The call of the launcher with its options; None without a launcher."""
        tool = self.launcher
        if tool is None:
            return None
        # A value such as $SLURM_NNODES is replaced by the number that Slurm gives the variable.
        numbers = {
            option.name: self.option_number(option, tool) for option in tool.uses if option.value is None
        }
        texts = {name: None if number is None else str(number) for name, number in numbers.items()}
        options = {option.name: option.value for option in tool.uses} | texts
        return LauncherCall(name=tool.name, options=options, job_nodes=fixed_nodes(self.resources))

    @property
    def workers(self) -> int | None:
        """The number of processes that the launcher starts on each node; None if the script hides it."""
        return (self.launcher_call.workers or None) if self.launcher_call else None

    @property
    def launcher_nodes(self) -> int | None:
        """The number of nodes in the launcher's options; None if the script does not show the number."""
        return (self.launcher_call.nodes or None) if self.launcher_call else None

    def option_number(self, option: ToolOption | None, tool: Tool) -> int | None:
        """Return the number in an option of a tool, such as 4 or $SLURM_NNODES; None if it is unknown."""
        if option is None:
            return None
        if option.value is not None:
            return int(option.value) if re.fullmatch(r"\d{1,9}", option.value, re.ASCII) else None
        word = option.value_as_word(tool.body)
        return _word_number(word, tool.body, self.resources) if word else None

    def _first_tool(self, names: Collection[str]) -> Tool | None:
        """Return the first tool of the chain with one of these names."""
        return next((tool for tool in self.tools if tool.name in names), None)


def launches(body: Body, resources: ResourceRequest) -> Iterator[Launch]:
    """Yield the commands that start Python or a program through another program, in the order of the text."""
    for command in body.commands:
        for tools in _tool_chains(command, body):
            yield Launch(command=command, tools=tools, resources=resources)


def sourcing_commands(body: Body) -> Iterator[Command]:
    """Yield the commands that source files, except files that only set up an environment."""
    for command in body.commands:
        file = command.words[1] if command.name in ("source", ".") and len(command.words) > 1 else None
        if file and not _SETUP_FILE.search(body.text_of(file).strip("\"'")):
            yield command


def may_start_hidden_programs(body: Body, launches: Iterable[Launch]) -> bool:
    """Return whether a script may start programs that it does not show: by other scripts or by variables."""
    if any(sourcing_commands(body)) or any(
        _starts_hidden_programs(command, body) for command in body.commands
    ):
        return True
    # A launch in $( ) only computes a text.
    started = (launch for launch in launches if not launch.command.context.in_substitution)
    return any(_hides_work(launch.program) and not launch.is_python_file for launch in started)


def _tool_chains(command: Command, body: Body) -> Iterator[tuple[Tool, ...]]:
    """Yield the chain of tools that a command starts. An eval may start several chains."""
    name = command.name
    if command.is_test or not (name in CHAIN_STARTERS or not name or _PYTHON.fullmatch(name)):
        return
    if name == "eval" and len(command.words) == 2:
        inner = string_body(body, command.words[1])
        for inner_command in inner.commands:
            if inner_command.name != "eval" and not inner_command.context.in_substitution:
                yield from _tool_chains(inner_command, inner)
        return
    tools = chain(command, body)
    if tools and _is_launch(tools):
        yield tools


def _is_launch(tools: tuple[Tool, ...]) -> bool:
    """Return whether a chain of tools is a launch: it starts Python, another program, or a hidden program."""
    first = tools[0]
    if "describe" in first.options:  # a command such as `conda list`, which starts nothing
        return False
    is_substitution = first.name.startswith(("$(", "`"))  # $( ) may give the name of any command
    return len(tools) > 1 or first.name == "python" or (_hides_work(first) and not is_substitution)


def _hides_work(program: Tool) -> bool:
    """Return whether the text hides the work of a program: a script of a shell, or a variable as the name."""
    name = program.name
    if name in SHELLS:
        return bool(program.rest) or program.option("command") is not None
    return name[:1] in '$`"' or "$" in name or bool(_SHELL_SCRIPT.search(name))


def _starts_hidden_programs(command: Command, body: Body) -> bool:
    """Return whether a command may start programs that the text does not show, such as sbatch or xargs."""
    name = command.name
    if name == "eval" and len(command.words) == 2:
        # eval $COMMAND hides a command, unless the text sets COMMAND. eval "$(conda shell hook)" hides none.
        written, resolved = command.words[1].pieces, body.resolve(command.words[1]).pieces
        has_unknown_variable = any(piece.kind == "variable" for piece in resolved)
        return has_unknown_variable and not any(piece.kind == "command" for piece in written)
    return name in ("make", "sbatch", "xargs", "parallel", "pdsh", "clush") or bool(
        _SHELL_SCRIPT.search(name)
    )


def fixed_nodes(resources: ResourceRequest) -> int | None:
    """Return the number of nodes of a job; None if --nodes is a range."""
    return resources.nodes if resources.nodes_max in (None, resources.nodes_min) else None


def _word_number(word: Word, body: Body, resources: ResourceRequest) -> int | None:
    """Return the number in a word: digits, a variable of Slurm, or a product such as $((2 * NODES)).

    None if the number is unknown.
    """
    piece = body.resolve(word).only_piece
    if piece is None or piece.subscript or piece.operator not in ("", ":-", ":?"):
        return None
    if piece.kind != "arithmetic":
        is_number = re.fullmatch(r"\d{1,9}", piece.text, re.ASCII) is not None
        return int(piece.text) if is_number else slurm_variable_number(piece.name, resources)
    product, operator = 1, "*"
    expression = re.sub(r"[ \t]|\$\{?|\}", "", piece.text[3:-2])  # "2*NODES" of $((2 * $NODES))
    for part in re.split(r"([*/])", expression):
        if part in ("*", "/"):
            operator = part
            continue
        is_name = part.isidentifier()
        inner = Piece("variable" if is_name else "text", part, False, piece.at, part if is_name else "")
        factor = _word_number(Word((inner,), piece.at, piece.at, body.source), body, resources)
        if not factor:
            return None
        product = product * factor if operator == "*" else product // factor
    return product


def slurm_variable_number(name: str, resources: ResourceRequest) -> int | None:
    """Return the number that Slurm gives a variable in the job; None without a known number."""
    nodes = fixed_nodes(resources)
    tasks = nodes * resources.ntasks_per_node if nodes is not None and resources.ntasks_per_node else None
    numbers = {
        "SLURM_NNODES": nodes,
        "SLURM_JOB_NUM_NODES": nodes,
        "SLURM_NTASKS": resources.ntasks or tasks,
        "SLURM_NPROCS": resources.ntasks or tasks,
        "SLURM_NTASKS_PER_NODE": resources.ntasks_per_node,
        "SLURM_CPUS_PER_TASK": resources.cpus_per_task,
        "SLURM_GPUS_ON_NODE": None if resources.splits_gpus() else resources.gpu_count or None,
        "SLURM_GPUS": _untyped_count(resources.gpus),
        "SLURM_GPUS_PER_NODE": _untyped_count(resources.gpus_per_node),
        "SLURM_GPUS_PER_TASK": _untyped_count(resources.gpus_per_task),
    }
    return numbers.get(name)


def _untyped_count(amounts: Amounts | None) -> int | None:
    """Return the number in a --gpus option; None with a type, as Slurm's variable is then a100:2."""
    if amounts is None or len(amounts) != 1:
        return None
    [(gpu_type, count)] = amounts
    return None if gpu_type else count
