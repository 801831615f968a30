"""What a command starts: tools that start each other, from srun to the trainer, each with its options.

    chain(command, body)    # for srun -n2 apptainer exec --nv x.sif torchrun --nnodes=2 train.py --lr 1:
    # srun {"ntasks": "2"}, apptainer exec {"nv": ""}, torchrun {"nnodes": "2"}, train.py

Arrays and variables are followed if the text says what they hold; bash -c 'STRING' is read as a script,
and the chain continues with the command that it ends in.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from sbatchgen.bash.body import Body, string_body
from sbatchgen.bash.statement import Command
from sbatchgen.bash.tools import MODULES, SHELLS, SYNTAX, Syntax
from sbatchgen.bash.word import ASSIGNED, Word

DEPTH_MAX = 8  # of shells that shells start
TOOLS_MAX = 50
_NAME = re.compile(r"--?[\w-]+=|-\w")


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolOption:
    """An option of a tool.

    Attributes:
        name: Its long name without dashes, with - for _ where the tool takes both; or its letter.
        value: Its value; None if the text does not say it, "" without one.
        word: The word that names it.
        value_word: The word that holds the value; the same word if it is glued to the name.
    """

    name: str
    value: str | None
    word: Word
    value_word: Word | None = None

    def own_word(self, body: Body) -> Word | None:
        """The word of its value alone, also of --name=VALUE and -nVALUE."""
        if self.value_word is not self.word:
            return self.value_word
        first, *rest = body.followed(self.word).pieces
        name = _NAME.match(first.text)
        text = first.text[name.end() :] if name else ""
        return replace(self.word, pieces=(*([first._replace(text=text)] if text else []), *rest))


@dataclass(frozen=True, kw_only=True)
class Tool:
    """A tool of a chain.

    Attributes:
        name: Its name, such as "srun", "apptainer exec" or "torchrun"; of the last, the program's.
        words: The words from its name on, arrays and variables followed.
        given: Its own options, in order.
        operands: The words between its options and what it starts, such as an image.
        rest: The words of what it starts; of the last tool, its arguments.
        body: The script that holds `rest`; of bash -c, that of the string.
        module: Whether what it starts is a module, as of python -m and torchrun -m.
    """

    name: str
    words: tuple[Word, ...]
    given: tuple[ToolOption, ...] = ()
    operands: tuple[Word, ...] = ()
    rest: tuple[Word, ...] = ()
    body: Body
    module: bool = False

    @cached_property
    def options(self) -> dict[str, str | list[str | None] | None]:
        """The options by name: the value, or the list of those of an option that is given several times."""
        values: dict[str, list[str | None]] = {}
        for option in self.given:
            values.setdefault(option.name, []).append(option.value)
        return {name: given if len(given) > 1 else given[0] for name, given in values.items()}

    def option(self, name: str) -> ToolOption | None:
        """The last use of an option, which is the one that counts."""
        return next((option for option in reversed(self.given) if option.name == name), None)

    def text_of(self, option: ToolOption) -> str:
        """The value of an option; expansions that can't be followed stay as they are written."""
        word = option.own_word(self.body) if option.value is None else None
        return self.body.text_of(word) if word else option.value or ""


def chain(command: Command, body: Body) -> tuple[Tool, ...]:
    """The tools that a command starts, each started by the one before; the last is the program."""
    words = [word for written in command.words for word in body.expand(written)]
    return tuple(_chain(words, body, (), DEPTH_MAX))


def _chain(words: Sequence[Word], body: Body, passed: Sequence[Word], depth: int) -> Iterator[Tool]:
    """The tools that words start; `passed` are the positional parameters."""
    words = tuple(_with_parameters(words, passed))
    for _ in range(TOOLS_MAX):
        while words and ASSIGNED.match(words[0].text):
            words = words[1:]
        if not words:
            return
        tool = _tool(words, body)
        yield tool
        if tool.name in SHELLS and (script := tool.option("command")):
            if script.value_word is not None and depth:
                yield from _shell(tool, script.value_word, depth)
            return
        if tool.name not in SYNTAX or "describe" in tool.options:
            return
        if tool.name == "python" and (launcher := _launcher(tool)):
            words = tuple(launcher)
            continue
        if tool.name in PYTHONS:
            if tool.rest:  # the trainer
                name = body.value(tool.rest[0]) or tool.rest[0].text
                yield Tool(name=name, words=tool.rest, rest=tool.rest[1:], body=body, module=tool.module)
            return
        words = tool.rest


def _launcher(tool: Tool) -> Sequence[Word]:
    """The words of the launcher that a Python starts, if any: a module or a file of the training package."""
    name = (tool.body.value(tool.rest[0]) or tool.rest[0].text.strip('"')) if tool.rest else ""
    if name.endswith("/training/torchrun.py") or (tool.module and name in MODULES):
        return tool.rest
    texts = [word.text for word in tool.rest]
    if name.endswith("/training/task.py") and "--" in texts:  # which starts a Python
        return (tool.words[0], *tool.rest[texts.index("--") + 1 :])
    return ()


def _shell(tool: Tool, script: Word, depth: int) -> Iterator[Tool]:
    """The tools that the string of bash -c starts at its end, or with the parameters that it is given."""
    inner = string_body(tool.body, script)
    own = [command for command in inner.commands if not command.test and not command.context.substitution]
    passing = [command for command in own if any("@" in word.variables for word in command.words)]
    launching = [command for command in own if command.name in LAUNCHERS]
    chosen = (passing or launching or own)[-1:]
    for command in chosen:
        words = [word for written in command.words for word in inner.expand(written)]
        yield from _chain(words, inner, [tool.body.followed(word) for word in tool.rest], depth - 1)


LAUNCHERS = frozenset(
    ("srun", "torchrun", "mpirun", "mpiexec", "accelerate", "deepspeed", "python", "python3", "exec")
)
# What starts Python programs: what follows their options is a file or a module.
PYTHONS = frozenset(
    ("torchrun", "accelerate launch", "deepspeed", "python", "fabric run", "lightning run", "tune run")
)


def _with_parameters(words: Sequence[Word], passed: Sequence[Word]) -> Iterator[Word]:
    """The words, with those that bash -c gets for "$@" and $1."""
    for word in words:
        piece = word.only_piece
        name = piece.name if piece and not piece.operator else ""
        if name in ("@", "*") and passed:
            yield from passed[1:]
        elif name.isdecimal() and int(name) < len(passed):
            yield passed[int(name)]
        else:
            yield word


def _tool(words: tuple[Word, ...], body: Body) -> Tool:
    """The tool that words start, its options, and what is left for what it starts."""
    path = body.value(words[0])
    name = (body.text_of(words[0]) if path is None else path).rpartition("/")[2]  # of ~/venv/bin/python, too
    if name.startswith("python") and name.removeprefix("python").replace(".", "").isdigit():
        name = "python"
    name, at = "torchrun" if name == "torchrun.py" else MODULES.get(name, name), 1
    if name not in SYNTAX:
        name, at = _subcommand(name, words, body)
    syntax = SYNTAX.get("sh" if name in SHELLS else name)
    if syntax is None:
        name = words[0].text if path is None else name or words[0].text
        return Tool(name=name, words=words, rest=words[1:], body=body)
    given, at = _options(words, at, syntax, body)
    operands, rest = words[at : at + syntax.operands], words[at + syntax.operands :]
    if name == "python" and given and given[-1].name == "m" and (module := given[-1].own_word(body)):
        rest = (module, *rest)
    if (
        name in SHELLS
        and rest
        and (command := next((each for each in given if each.name == "command"), None))
    ):
        given.remove(command)  # the string of -c is the first word that is not an option
        given.append(replace(command, value=body.value(rest[0]), value_word=rest[0]))
        rest = rest[1:]
    return Tool(
        name=name,
        words=words,
        given=tuple(given),
        operands=operands,
        rest=rest,
        body=body,
        module=any(option.name in ("m", "module") for option in given),
    )


def _subcommand(name: str, words: tuple[Word, ...], body: Body) -> tuple[str, int]:
    """The name with the verb after it, such as apptainer exec, and where its options start."""
    for at in range(1, min(len(words), 6)):
        value = body.value(words[at])
        if f"{name} {value}" in SYNTAX:
            return f"{name} {value}", at + 1
        if value is None or not value.startswith("-"):
            break
    return name, 1


def _options(words: tuple[Word, ...], at: int, syntax: Syntax, body: Body) -> tuple[list[ToolOption], int]:
    """The options from a word on, and where the first word is that is not an option."""
    given: list[ToolOption] = []
    while at < len(words):
        text = body.text_of(words[at])
        if text == "--":
            return given, at + 1
        at += 1
        if text[:1] == "+" and syntax is SYNTAX["sh"]:
            continue
        if len(text) < 2 or not text.startswith("-"):
            return given, at - 1
        is_long = text.startswith("--") or syntax.single
        for name, glued in _long(text, syntax) if is_long else _letters(text, syntax):
            option, at = _option(name, words, at, syntax, body, glued=glued)
            given.append(option)
        if syntax is SYNTAX["python"] and given[-1].name in ("m", "c"):  # which take the rest
            break
    return given, at


def _long(text: str, syntax: Syntax) -> Iterator[tuple[str, str | None]]:
    """Yield the option that a word with its long name is, and the value that is glued to it."""
    name, equals, value = text.lstrip("-").partition("=")
    name = name.replace("_", "-") if syntax.underscores else name
    name = syntax.shorts.get(name, name)
    is_glued = syntax.single and not text.startswith("--") and name not in syntax.values
    if is_glued and name[:1] in syntax.values:  # -W, -X and -m of python
        name, value, equals = name[0], text[2:], "="
    yield name, value if equals else None


def _letters(text: str, syntax: Syntax) -> Iterator[tuple[str, str | None]]:
    """Yield the options of a word of letters, and the value that is glued to the last."""
    for end, letter in enumerate(text[1:], 2):
        name = syntax.shorts.get(letter, letter)
        if name in syntax.values:  # what follows is its value
            yield name, text[end:] or None
            return
        yield name, None


def _option(
    name: str, words: tuple[Word, ...], at: int, syntax: Syntax, body: Body, *, glued: str | None
) -> tuple[ToolOption, int]:
    """An option with its value, glued to it or in the words from `at`, and where the next word is."""
    word = words[at - 1]
    if glued is not None:
        is_known = body.value(word) is not None or not ("$" in glued or "`" in glued)
        return ToolOption(name=name, value=glued if is_known else None, word=word, value_word=word), at
    if name not in syntax.values or name in syntax.optional or at >= len(words):
        return ToolOption(name=name, value="", word=word), at
    value = ToolOption(name=name, value=body.value(words[at]), word=word, value_word=words[at])
    return value, at + syntax.counts.get(name, 1)
