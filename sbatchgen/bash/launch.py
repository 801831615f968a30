"""What a command starts: tools that start each other, from srun to the trainer, each with its options.

    chain(command, body)    # for srun -n2 apptainer exec --nv x.sif torchrun --nnodes=2 train.py --lr 1:
    # srun {"ntasks": "2"}, apptainer exec {"nv": ""}, torchrun {"nnodes": "2"}, train.py

Arrays and variables are followed where the text tells what they hold; bash -c 'STRING' is read as a script,
and the chain goes on with the command that it ends in.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from sbatchgen.bash.body import Body, string_body
from sbatchgen.bash.command import ASSIGNED, Command
from sbatchgen.bash.tools import MODULES, SHELLS, SYNTAX, Syntax
from sbatchgen.bash.word import Piece, Word

DEPTH_MAX = 8  # of shells that shells start
TOOLS_MAX = 50
_NAME = re.compile(r"--?[\w-]+=|-\w")


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolOption:
    """An option of a tool.

    Attributes:
        name: Its long name without dashes, with - for _ where the tool takes both; or its letter.
        value: Its value; None where it is not told by the text, "" where it has none.
        word: The word that names it.
        value_word: The word that the value stands in; the same word where it is glued to the name.
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
        body: The script that rest stands in; of bash -c, that of the string.
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
        found: dict[str, str | list[str | None] | None] = {}
        for option in self.given:
            if option.name not in found:
                found[option.name] = option.value
            else:
                before = found[option.name]
                found[option.name] = [*(before if isinstance(before, list) else [before]), option.value]
        return found

    def option(self, name: str) -> ToolOption | None:
        """The last use of an option, which is the one that counts."""
        return next((option for option in reversed(self.given) if option.name == name), None)


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
        if tool.name in ("torchrun", "accelerate launch", "deepspeed", "python"):
            if tool.rest:
                yield _program(tool)
            return
        words = tool.rest


def _launcher(tool: Tool) -> Sequence[Word]:
    """The words of the launcher that a Python starts, a module or a file of the training package; or none."""
    name = (_value(tool.rest[:1], tool.body) or tool.rest[0].text.strip('"')) if tool.rest else ""
    if name.endswith("/training/torchrun.py") or (tool.module and name in MODULES):
        return tool.rest
    texts = [word.text for word in tool.rest]
    if name.endswith("/training/task.py") and "--" in texts:  # which starts a Python
        return (tool.words[0], *tool.rest[texts.index("--") + 1 :])
    return ()


def _program(tool: Tool) -> Tool:
    """The trainer that a launcher starts."""
    name = _value(tool.rest[:1], tool.body) or tool.rest[0].text
    return Tool(name=name, words=tool.rest, rest=tool.rest[1:], body=tool.body, module=tool.module)


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


def _with_parameters(words: Sequence[Word], passed: Sequence[Word]) -> Iterator[Word]:
    """The words, with those that bash -c is given for "$@" and $1."""
    for word in words:
        piece = word.pieces[0] if len(word.pieces) == 1 else None
        if piece and piece.kind == "variable" and piece.name in ("@", "*") and not piece.operator and passed:
            yield from passed[1:]
        elif piece and piece.kind == "variable" and piece.name.isdigit() and int(piece.name) < len(passed):
            yield passed[int(piece.name)]
        else:
            yield word


def _value(words: Sequence[Word], body: Body) -> str | None:
    return body.value(words[0]) if words else None


def _tool(words: tuple[Word, ...], body: Body) -> Tool:
    """The tool that words start, its options, and what is left for what it starts."""
    path = _value(words[:1], body)
    name = (body.text_of(words[0]) if path is None else path).rpartition("/")[2]  # of ~/venv/bin/python, too
    if name.startswith("python") and name.removeprefix("python").replace(".", "").isdigit():
        name = "python"
    name = "torchrun" if name == "torchrun.py" else MODULES.get(name, name)
    at = 1
    if name not in SYNTAX and len(words) > 1:
        name, at = _subcommand(name, words, body)
    syntax = SYNTAX.get("sh" if name in SHELLS else name)
    if syntax is None:
        return Tool(
            name=words[0].text if path is None else name or words[0].text,
            words=words,
            rest=words[1:],
            body=body,
        )
    given, at = _options(words, at, syntax, body)
    module = any(option.name in ("m", "module") for option in given)
    if name == "python":
        return _python(words, given, at, body)
    if name == "sh" or name in SHELLS:
        return _shell_tool(name, words, given, at, body)
    if name == "numactl" and at < len(words) and words[at].text == "--":
        at += 1
    operands = words[at : at + syntax.operands]
    return Tool(
        name=name,
        words=words,
        given=tuple(given),
        operands=operands,
        rest=words[at + syntax.operands :],
        body=body,
        module=module,
    )


def _subcommand(name: str, words: tuple[Word, ...], body: Body) -> tuple[str, int]:
    """The name with the verb after it, such as apptainer exec, and where its options start."""
    for at in range(1, min(len(words), 6)):
        value = body.value(words[at])
        if value is None or f"{name} {value}" in SYNTAX:
            return (f"{name} {value}", at + 1) if value is not None else (name, 1)
        if not value.startswith("-"):
            break
    return name, 1


def _python(words: tuple[Word, ...], given: list[ToolOption], at: int, body: Body) -> Tool:
    """Python's -m and -c take the rest of the words."""
    for index, option in enumerate(given):
        if option.name in ("m", "c"):
            start = words.index(option.word)
            target = option.value_word or option.word
            rest = words[words.index(target) :] if target is not option.word else words[start:]
            if target is option.word:  # -mNAME
                text = option.value or ""
                named = Word(
                    (Piece("text", text, quoted=False, at=target.at),), target.at, target.end, target.source
                )
                rest = (named, *words[start + 1 :])
            return Tool(
                name="python",
                words=words,
                given=tuple(given[: index + 1]),
                rest=rest if option.name == "m" else rest[1:],
                body=body,
                module=option.name == "m",
            )
    return Tool(name="python", words=words, given=tuple(given), rest=words[at:], body=body)


def _shell_tool(name: str, words: tuple[Word, ...], given: list[ToolOption], at: int, body: Body) -> Tool:
    """A shell; the string of -c is the first word that is not an option."""
    if any(option.name == "command" for option in given) and at < len(words):
        command = next(option for option in given if option.name == "command")
        made = ToolOption(
            name="command", value=body.value(words[at]), word=command.word, value_word=words[at]
        )
        given = [option for option in given if option is not command] + [made]
        at += 1
    return Tool(name=name, words=words, given=tuple(given), rest=words[at:], body=body)


def _options(words: tuple[Word, ...], at: int, syntax: Syntax, body: Body) -> tuple[list[ToolOption], int]:
    """The options from a word on, and where the first word is that is not an option."""
    given: list[ToolOption] = []
    while at < len(words):
        word = words[at]
        text = body.text_of(word)
        if text == "--":
            return given, at + 1
        if len(text) < 2 or not text.startswith("-"):
            if text[:1] == "+" and syntax is SYNTAX["sh"]:
                at += 1
                continue
            return given, at
        at += 1
        if text.startswith("--") or syntax.single:
            found, at = _long(words, at, syntax, body)
            given.append(found)
        else:
            found_all, at = _cluster(words, at, syntax, body)
            given += found_all
        if given and syntax is SYNTAX["python"] and given[-1].name in ("m", "c"):
            break
    return given, at


def _long(words: tuple[Word, ...], at: int, syntax: Syntax, body: Body) -> tuple[ToolOption, int]:
    """The option that a word with its long name is, and where the next word is; `at` is after it."""
    word = words[at - 1]
    text, is_known = body.text_of(word), body.value(word) is not None
    name, equals, value = text.lstrip("-").partition("=")
    name = name.replace("_", "-") if syntax.underscores else name
    name = syntax.shorts.get(name, name) if len(name) == 1 else name
    if (
        syntax.single
        and not text.startswith("--")
        and name not in syntax.values
        and name[:1] in syntax.values
    ):
        name, value, equals = name[0], text[2:], "="  # -W, -X and -m of python glued to their values
    if equals:
        return ToolOption(
            name=name, value=value if is_known else _partly(value), word=word, value_word=word
        ), at
    if name not in syntax.values or name in syntax.optional or at >= len(words):
        return ToolOption(name=name, value="", word=word), at
    count = syntax.counts.get(name, 1)
    return ToolOption(name=name, value=body.value(words[at]), word=word, value_word=words[at]), at + count


def _partly(value: str) -> str | None:
    """A value after an = in a word that is not told in whole; it is told if it has no expansion."""
    return None if "$" in value or "`" in value else value


def _cluster(words: tuple[Word, ...], at: int, syntax: Syntax, body: Body) -> tuple[list[ToolOption], int]:
    """The options of a word of letters, and where the next word is; `at` is after it."""
    word = words[at - 1]
    text = body.text_of(word)
    given: list[ToolOption] = []
    for index, letter in enumerate(text[1:], 2):
        name = syntax.shorts.get(letter, letter)
        if name not in syntax.values:
            given.append(ToolOption(name=name, value="", word=word))
            continue
        glued = text[index:]
        if glued:
            given.append(ToolOption(name=name, value=_partly(glued), word=word, value_word=word))
        elif name in syntax.optional or at >= len(words):
            given.append(ToolOption(name=name, value="", word=word))
        else:
            given.append(ToolOption(name=name, value=body.value(words[at]), word=word, value_word=words[at]))
            at += 1
        return given, at
    return given, at
