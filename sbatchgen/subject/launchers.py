"""What a launcher is told by its own options, and where that is written."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sbatchgen.finding import Place
from sbatchgen.subject.subject import Subject

if TYPE_CHECKING:
    from sbatchgen.bash import Command, Word
    from sbatchgen.bash.launch import Tool, ToolOption


def first_word(command: Command) -> Word | Command:
    """Where a command starts: its first word, or itself where that is an assignment."""
    return command.words[0] if command.words else command


def value_place(script: Subject, option: ToolOption) -> Place:
    """Where the value of an option stands."""
    return script.at_word(option.value_word or option.word)


def told_nodes(launcher: Tool | None, script: Subject) -> int | None:
    """How many nodes a launcher is told of; None where that can't be told."""
    from sbatchgen.subject.processes import number

    if launcher is None:
        return None
    names = {"torchrun": "nnodes", "accelerate launch": "num-machines", "deepspeed": "num-nodes"}
    option = launcher.option(names.get(launcher.name, ""))
    if option is None:
        return 1 if launcher.name != "deepspeed" else None
    return number(option, launcher, script.job)
