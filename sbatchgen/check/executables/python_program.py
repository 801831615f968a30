"""Finds the program of programs.txt that Python starts from a module or a file, such as torchrun."""

from collections.abc import Sequence

from sbatchgen.check.executables.command_options import program_name
from sbatchgen.check.executables.program import MODULES, PROGRAMS, commands


def program_of_python(words: Sequence[str], *, is_module: bool) -> tuple[str, int]:
    """Return the name of the program that Python starts, and the index of the word after the name.

    `words` begin with the module or the file. A file is known by the name of a program, such as
    .venv/bin/torchrun, or by the path of a module, such as torch/distributed/run.py. The name is "" for other
    modules and files.
    """
    name = words[0]
    if is_module:
        return MODULES.get(name, ""), 1
    if name.endswith("/training/torchrun.py"):
        return "torchrun", 1
    if "/" in name and name.rpartition("/")[2] in commands("launcher"):
        return program_name(words, PROGRAMS)
    if name.endswith(".py"):
        for module, program in MODULES.items():
            if name.endswith(f"/{module.replace('.', '/')}.py"):
                return program, 1
    return "", 1
