"""The chain of programs that a command starts, from srun to the trainer, each with its options.

    chain(command, body)    # for srun -n2 apptainer exec --nv x.sif torchrun --nnodes=2 train.py --lr 1:
    # srun {"ntasks": "2"}, apptainer exec {"nv": ""}, torchrun {"nnodes": "2"}, train.py

Arrays and variables are followed if the text shows their values. The strings of bash -c 'STRING' and of
bash <<'END' are read as scripts, and the chain continues with their main command.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from sbatchgen.base.frozen import cached_property, frozen
from sbatchgen.check.bash.body import Body, input_body, string_body
from sbatchgen.check.bash.statement import Command
from sbatchgen.check.bash.word import ASSIGNED, Word
from sbatchgen.check.executables.command_options import ReadOption, program_name, read_options
from sbatchgen.check.executables.program import MODULES, PROGRAMS, SHELLS, commands, programs
from sbatchgen.check.executables.python_program import program_of_python

DEPTH_MAX = 8  # shells within shells
TOOLS_MAX = 50  # tools of a chain
# Programs that start a Python file or module, which follows their options.
_PYTHON_STARTERS = programs("interpreter", "launcher")
# In the string of bash -c, a command that starts such a program is the main command.
_MAIN_PROGRAMS = commands("step", "mpi", "launcher", "interpreter") | {"exec"}
_OPTION_NAME = re.compile(r"--?[\w-]+=|-\w")  # the part of --NAME=VALUE or -nVALUE before the value


@frozen(kw_only=True, slots=True)
class ToolOption:
    """An option of a tool."""

    # The long name without dashes, with - for _ if the tool takes both; the letter if there is no long name.
    name: str
    value: str | None  # the value; None if the text does not show the value, "" if the option has none
    word: Word  # the word that names the option
    value_word: Word | None = None  # the word that holds the value; `word` in --name=VALUE

    def own_word(self, body: Body) -> Word | None:
        """Return the value as a word of its own, also for --name=VALUE and -nVALUE."""
        if self.value_word is not self.word:
            return self.value_word
        first, *rest = body.resolve(self.word).pieces
        name = _OPTION_NAME.match(first.text)
        text = first.text[name.end() :] if name else ""
        pieces = (*([first._replace(text=text)] if text else []), *rest)
        return Word(pieces, self.word.at, self.word.end, self.word.source)


@frozen(kw_only=True)
class Tool:
    """A tool of a chain: a command that starts the next tool, or the program at the end."""

    name: str  # such as "srun", "apptainer exec" or "torchrun"; for the program at the end, its first word
    words: tuple[Word, ...]  # the words from the name on, with the values of arrays and variables
    uses: tuple[ToolOption, ...] = ()  # each use of an option of the tool, in order
    operands: tuple[Word, ...] = ()  # the words between the options and the next command, such as an image
    rest: tuple[Word, ...] = ()  # the words of the next command; for the last tool, its arguments
    body: Body  # the script that holds `rest`; for bash -c, the string as a script
    module: bool = False  # whether the next command is a module, as with python -m and torchrun -m

    @property
    def command(self) -> tuple[Word, ...]:
        """The words of the next command, without the variables that `env` sets, which may be quoted."""
        words = self.rest
        while self.name == "env" and words and ASSIGNED.match(words[0].text.lstrip("'\"")):
            words = words[1:]
        return words

    @cached_property
    def options(self) -> dict[str, str | list[str | None] | None]:
        """The options by name: the value, or a list of values if the option is given several times."""
        values: dict[str, list[str | None]] = {}
        for option in self.uses:
            values.setdefault(option.name, []).append(option.value)
        return {name: several if len(several) > 1 else several[0] for name, several in values.items()}

    @cached_property
    def _last_uses(self) -> dict[str, ToolOption]:
        return {option.name: option for option in self.uses}

    def option(self, name: str) -> ToolOption | None:
        """Return the last use of an option, which wins."""
        return self._last_uses.get(name)

    def text_of(self, option: ToolOption) -> str:
        """Return the value of an option; expansions with unknown values stay as written."""
        word = option.own_word(self.body) if option.value is None else None
        return self.body.text_of(word) if word else option.value or ""


def chain(command: Command, body: Body) -> tuple[Tool, ...]:
    """Return the tools that a command starts: each tool starts the next, and the last is the program."""
    words = [word for written in command.words for word in body.expand(written)]
    tools = tuple(_follow(words, body, (), DEPTH_MAX))
    if tools and _reads_input(tools[-1]) and (inner := input_body(command)):
        tools += tuple(_main_tools(inner, (), DEPTH_MAX - 1))
    return tools


def _reads_input(tool: Tool) -> bool:
    """Return whether a tool is a shell that reads commands from standard input."""
    runs_file = tool.rest and tool.rest[0].text != "-" and tool.option("s") is None
    return tool.name in SHELLS and tool.option("command") is None and not runs_file


def _follow(words: Sequence[Word], body: Body, passed: Sequence[Word], depth: int) -> Iterator[Tool]:
    """Yield the tools that words start.

    `passed` are the words for $0, $1 and so on. `depth` is how many shells within this one may follow.
    """
    words = tuple(_with_parameters(words, passed))
    for _ in range(TOOLS_MAX):
        while words and ASSIGNED.match(words[0].text):  # NAME=VALUE before a command
            words = words[1:]
        if not words:
            return
        tool = _read_tool(words, body)
        yield tool
        if tool.name in SHELLS:
            command = tool.option("command")
            if command and command.value_word is not None and depth:
                yield from _shell_tools(tool, command.value_word, depth)
            return
        if tool.name not in PROGRAMS or "describe" in tool.options:
            return
        if tool.name == "python" and (launcher := _launcher_words(tool)):
            words = tuple(launcher)
            continue
        if tool.name in _PYTHON_STARTERS:
            if tool.rest:  # the trainer
                name = body.value(tool.rest[0]) or tool.rest[0].text
                yield Tool(name=name, words=tool.rest, rest=tool.rest[1:], body=body, module=tool.module)
            return
        words = tool.command


def _launcher_words(tool: Tool) -> Sequence[Word]:
    """Return the words of the launcher that Python starts from a module or a file; () for other programs."""
    name = (tool.body.value(tool.rest[0]) or tool.rest[0].text.strip('"')) if tool.rest else ""
    texts = [word.text for word in tool.rest]
    if name and program_of_python([name, *texts[1:]], is_module=tool.module)[0] in PROGRAMS:
        return tool.rest
    if name.endswith("/training/task.py") and "--" in texts:  # task.py starts Python again
        return (tool.words[0], *tool.rest[texts.index("--") + 1 :])
    return ()


def _shell_tools(shell: Tool, string: Word, depth: int) -> Iterator[Tool]:
    """Yield the tools that the main command of a bash -c string starts."""
    passed = [shell.body.resolve(word) for word in shell.rest]
    yield from _main_tools(string_body(shell.body, string), passed, depth - 1)


def _main_tools(inner: Body, passed: Sequence[Word], depth: int) -> Iterator[Tool]:
    """Yield the tools that the main command of a text starts.

    The main command is the last command with "$@", or else the last launch, or else the last command.
    """
    commands = [
        command for command in inner.commands if not command.is_test and not command.context.substitution
    ]
    passing = [command for command in commands if any("@" in word.variables for word in command.words)]
    launching = [command for command in commands if command.name in _MAIN_PROGRAMS]
    for command in (passing or launching or commands)[-1:]:
        words = [word for written in command.words for word in inner.expand(written)]
        yield from _follow(words, inner, passed, depth)


def _with_parameters(words: Sequence[Word], passed: Sequence[Word]) -> Iterator[Word]:
    """Yield the words, with the parameters of bash -c in place of "$@" and $1."""
    for word in words:
        piece = word.only_piece
        name = piece.name if piece and not piece.operator else ""
        if name in ("@", "*") and passed:
            yield from passed[1:]
        elif name.isdecimal() and int(name) < len(passed):
            yield passed[int(name)]
        else:
            yield word


def _read_tool(words: tuple[Word, ...], body: Body) -> Tool:
    """Return the tool at the start of words."""
    name, at = program_name(words, PROGRAMS, body.text_of)
    if name.endswith(".py"):
        name = program_of_python([body.text_of(words[0])], is_module=False)[0] or name
    name = MODULES.get(name, name)
    program = PROGRAMS.get(name)
    if program is None:
        is_shown = body.value(words[0]) is not None
        name = name if is_shown and name else words[0].text
        return Tool(name=name, words=words, rest=words[1:], body=body)
    read, at = read_options(words, at, program, body.text_of)
    uses = [_tool_option(words, body, option) for option in read]
    operands, rest = words[at : at + program.operands], words[at + program.operands :]
    if name == "python" and uses and uses[-1].name == "m" and (module := uses[-1].own_word(body)):
        rest = (module, *rest)
    command = next((option for option in uses if option.name == "command"), None)
    if name in SHELLS and rest and command:
        uses.remove(command)  # the string of -c is the first word that is not an option
        uses.append(replace(command, value=body.value(rest[0]), value_word=rest[0]))
        rest = rest[1:]
    is_module = any(option.name in ("m", "module") for option in uses)
    return Tool(
        name=name, words=words, uses=tuple(uses), operands=operands, rest=rest, body=body, module=is_module
    )


def _tool_option(words: Sequence[Word], body: Body, read: ReadOption) -> ToolOption:
    """Return an option that was read from words, with these words."""
    name, value, at, value_at = read  # two indices of words
    if value_at is None:
        return ToolOption(name=name, value="", word=words[at])
    word = words[value_at]
    # In --NAME=VALUE, the expansion may be in the name.
    is_shown = body.value(word) is not None or (at == value_at and not ("$" in value or "`" in value))
    return ToolOption(name=name, value=value if is_shown else None, word=words[at], value_word=word)
