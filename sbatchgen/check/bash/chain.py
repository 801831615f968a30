"""The chain of tools that a command starts one after the other, from srun to the trainer.

An example is this command:

    srun -n2 apptainer exec --nv x.sif torchrun --nnodes=2 train.py --lr 1

For it, `chain(command, body)` returns four tools with these names and options:

    srun {"ntasks": "2"}, apptainer exec {"nv": ""}, torchrun {"nnodes": "2"}, train.py {}

Variables and arrays in the command get their values, if the text shows them. The strings of bash -c 'STRING'
and of bash <<'END' are read as scripts, and the chain continues with their main command.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from sbatchgen.base.frozen import cached_property, frozen
from sbatchgen.check.bash.body import Body, input_body, string_body
from sbatchgen.check.bash.statement import Command
from sbatchgen.check.bash.word import ASSIGNMENT_START, Word
from sbatchgen.check.executables.command_options import ReadOption, program_name, read_options
from sbatchgen.check.executables.program import MODULES, PROGRAMS, SHELLS, commands, programs
from sbatchgen.check.executables.python_program import program_of_python

DEPTH_MAX = 8  # shells within shells
TOOLS_MAX = 50  # tools of a chain
# Programs that start a Python file or a module, which the command names after their options.
_PYTHON_STARTERS = programs("interpreter", "launcher")
# Among the commands of a bash -c string, one that starts such a program is the main command.
_MAIN_PROGRAMS = commands("step", "mpi", "launcher", "interpreter") | {"exec"}
_OPTION_NAME = re.compile(r"--?[\w-]+=|-\w")  # the part of --NAME=VALUE or -nVALUE before the value


@frozen(kw_only=True, slots=True)
class ToolOption:
    """An option that a command gives to a tool, such as --nnodes=2."""

    # The long name without dashes, with - for _ if the tool takes both; the letter if there is no long name.
    name: str
    value: str | None  # None if the text does not show the value; "" for an option without a value
    word: Word  # the word that names the option
    # The word that holds the value: `word` itself for --NAME=VALUE, else the next word. None without a value.
    value_word: Word | None = None

    def value_as_word(self, body: Body) -> Word | None:
        """Return a word that holds the value alone, without the --NAME= before it; None without a value.

        `body` is the body that holds the command. Its variables get their values.
        """
        if self.value_word is not self.word:
            return self.value_word
        first, *others = body.resolve(self.word).pieces
        name = _OPTION_NAME.match(first.text)
        text = first.text[name.end() :] if name else ""
        pieces = (*([first._replace(text=text)] if text else []), *others)
        return Word(pieces, self.word.at, self.word.end, self.word.source)


@frozen(kw_only=True)
class Tool:
    """A tool of a chain: a program that starts the next tool, or the program at the end of the chain."""

    name: str  # such as "srun", "apptainer exec" or "torchrun"; for the program at the end, its first word
    words: tuple[Word, ...]  # the words from the name on, with the values of arrays and variables
    uses: tuple[ToolOption, ...] = ()  # each use of an option of the tool, in order
    operands: tuple[Word, ...] = ()  # the words between the options and the next command, such as an image
    # The words after the operands: those of the next command, or the arguments of the last tool.
    rest: tuple[Word, ...] = ()
    body: Body  # the body that holds `words`: the script's, or that of a bash -c string
    starts_module: bool = False  # whether the next word names a Python module, as with python -m

    @property
    def next_words(self) -> tuple[Word, ...]:
        """The words of the next command, without the assignments NAME=VALUE between `env` and the command."""
        words = self.rest
        while self.name == "env" and words and ASSIGNMENT_START.match(words[0].text.lstrip("'\"")):
            words = words[1:]
        return words

    @cached_property
    def options(self) -> dict[str, str | list[str | None] | None]:
        """The value of each option, by its name; a list of values if the option is given several times."""
        values: dict[str, list[str | None]] = {}
        for option in self.uses:
            values.setdefault(option.name, []).append(option.value)
        return {name: several if len(several) > 1 else several[0] for name, several in values.items()}

    @cached_property
    def _last_uses(self) -> dict[str, ToolOption]:
        return {option.name: option for option in self.uses}

    def option(self, name: str) -> ToolOption | None:
        """Return the last use of an option, which wins over earlier ones; None if the option is not given."""
        return self._last_uses.get(name)

    def text_of(self, option: ToolOption) -> str:
        """Return the value of an option. Expansions with unknown values stay as written."""
        word = option.value_as_word(self.body) if option.value is None else None
        return self.body.text_of(word) if word else option.value or ""


def chain(command: Command, body: Body) -> tuple[Tool, ...]:
    """Return the tools that a command starts. Each starts the next one, and the last is often the trainer."""
    words = [word for written in command.words for word in body.expand(written)]
    tools = tuple(_follow(words, body, (), DEPTH_MAX))
    if tools and _reads_commands(tools[-1]) and (inner := input_body(command)):
        tools += tuple(_main_tools(inner, (), DEPTH_MAX - 1))
    return tools


def _reads_commands(tool: Tool) -> bool:
    """Return whether a tool is a shell that reads its commands from standard input, such as bash <<END."""
    runs_file = tool.rest and tool.rest[0].text != "-" and tool.option("s") is None
    return tool.name in SHELLS and tool.option("command") is None and not runs_file


def _follow(words: Sequence[Word], body: Body, parameters: Sequence[Word], depth: int) -> Iterator[Tool]:
    """Yield the tools that the words of a command start, one after the other.

    `parameters` are the words that stand for $0, $1 and so on in the command. `depth` is the number of shells
    that may start one another from here on.
    """
    words = tuple(_with_parameters(words, parameters))
    for _ in range(TOOLS_MAX):
        while words and ASSIGNMENT_START.match(words[0].text):  # NAME=VALUE before a command
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
        is_last = tool.name not in PROGRAMS or "describe" in tool.options  # as in command -v PROGRAM
        if is_last:
            return
        if tool.name == "python" and (launcher := _launcher_words(tool)):
            words = tuple(launcher)
            continue
        if tool.name in _PYTHON_STARTERS:
            if tool.rest:  # the trainer
                name = body.value(tool.rest[0]) or tool.rest[0].text
                starts_module = tool.starts_module
                yield Tool(
                    name=name, words=tool.rest, rest=tool.rest[1:], body=body, starts_module=starts_module
                )
            return
        words = tool.next_words


def _launcher_words(python: Tool) -> Sequence[Word]:
    """Return the words of a command that is written as a Python file or module, such as python -m torchrun.

    The result is () if Python runs any other file or module, such as the trainer.
    """
    words = python.rest
    name = (python.body.value(words[0]) or words[0].text.strip('"')) if words else ""
    texts = [word.text for word in words]
    if name and program_of_python([name, *texts[1:]], is_module=python.starts_module)[0] in PROGRAMS:
        return words
    if name.endswith("/training/task.py") and "--" in texts:  # the bundled task.py starts Python again
        return (python.words[0], *words[texts.index("--") + 1 :])
    return ()


def _shell_tools(shell: Tool, string: Word, depth: int) -> Iterator[Tool]:
    """Yield the tools that the main command of a bash -c string starts."""
    parameters = [shell.body.resolve(word) for word in shell.rest]
    yield from _main_tools(string_body(shell.body, string), parameters, depth - 1)


def _main_tools(inner: Body, parameters: Sequence[Word], depth: int) -> Iterator[Tool]:
    """Yield the tools that the main command of a shell's string or here-document starts.

    The main command is the last command with "$@". Without such a command it is the last one that starts a
    step, a launcher or an interpreter, and otherwise the last command.
    """
    commands = [
        command for command in inner.commands if not command.is_test and not command.context.in_substitution
    ]
    with_parameters = [
        command for command in commands if any("@" in word.variables for word in command.words)
    ]
    launching = [command for command in commands if command.name in _MAIN_PROGRAMS]
    for command in (with_parameters or launching or commands)[-1:]:
        words = [word for written in command.words for word in inner.expand(written)]
        yield from _follow(words, inner, parameters, depth)


def _with_parameters(words: Sequence[Word], parameters: Sequence[Word]) -> Iterator[Word]:
    """Yield the words, with the parameters in place of "$@", $1 and the like.

    In bash -c 'python "$@"' NAME A B, the parameters are NAME, which is $0, and A and B, which are "$@".
    """
    for word in words:
        piece = word.only_piece
        name = piece.name if piece and not piece.operator else ""
        if name in ("@", "*") and parameters:
            yield from parameters[1:]
        elif name.isdecimal() and int(name) < len(parameters):
            yield parameters[int(name)]
        else:
            yield word


def _read_tool(words: tuple[Word, ...], body: Body) -> Tool:
    """Return the tool whose name and options the words begin with."""
    name, at = program_name(words, PROGRAMS, body.text_of)  # `at` is the index of the word after the name
    if name.endswith(".py"):
        name = program_of_python([body.text_of(words[0])], is_module=False)[0] or name
    name = MODULES.get(name, name)
    program = PROGRAMS.get(name)
    if program is None:
        has_known_name = name and body.value(words[0]) is not None
        return Tool(name=name if has_known_name else words[0].text, words=words, rest=words[1:], body=body)
    read, at = read_options(words, at, program, body.text_of)  # `at` is now the index after the options
    uses = [_tool_option(words, body, option) for option in read]
    operands, rest = words[at : at + program.operands], words[at + program.operands :]
    if name == "python" and uses and uses[-1].name == "m" and (module := uses[-1].value_as_word(body)):
        rest = (module, *rest)  # the module of python -m is what Python starts next
    command = next((option for option in uses if option.name == "command"), None)
    if name in SHELLS and rest and command:
        uses.remove(command)  # the string of -c is the first word that is not an option
        uses.append(replace(command, value=body.value(rest[0]), value_word=rest[0]))
        rest = rest[1:]
    return Tool(
        name=name,
        words=words,
        uses=tuple(uses),
        operands=operands,
        rest=rest,
        body=body,
        starts_module=any(option.name in ("m", "module") for option in uses),
    )


def _tool_option(words: Sequence[Word], body: Body, option: ReadOption) -> ToolOption:
    """Return an option that `read_options` read from words, with the words that hold its name and value."""
    name, value, at, value_at = option  # two indices of words
    if value_at is None:
        return ToolOption(name=name, value="", word=words[at])
    word = words[value_at]
    # In --NAME=VALUE, the name may have the expansion, and the value none.
    is_shown = body.value(word) is not None or (at == value_at and not ("$" in value or "`" in value))
    return ToolOption(name=name, value=value if is_shown else None, word=words[at], value_word=word)
