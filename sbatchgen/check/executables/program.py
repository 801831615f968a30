"""Reads programs.txt, the table of programs: PROGRAMS has them by name, `programs` by kind.

PROGRAMS["timeout"].operands  # 1: the duration, before the command that timeout starts
programs("shell")  # "bash", "sh", "dash" and others
"""

import re
from dataclasses import dataclass, field, replace

from sbatchgen.check.executables.word_table import rows

# The kinds of programs that start other programs. Only for these kinds, PROGRAMS has the options.
STARTING_KINDS = frozenset(("step", "launcher", "mpi", "interpreter", "shell", "container", "wrapper"))
# An option of the table, such as n,ntasks=PROCESSES: letter and comma, name, ?, one or more =, !, role.
_OPTION = re.compile(r"(?:(.),)?([^=?A-Z]+|[A-Z])(\??)(=*)(!?)([A-Z]*)")


@dataclass(kw_only=True)
class Program:
    """A program that starts other programs, and its options."""

    name: str  # the name, with the verb of a subcommand: "nice", "uv run"
    kinds: frozenset[str]  # the kinds of the program, as in programs.txt
    # The number of words between the program's options and the command that it starts: 1 for an image.
    operands: int = 0
    modules: tuple[str, ...] = ()  # the modules by which Python starts the program
    # The next attributes hold options by their long names.
    values: set[str] = field(default_factory=set)  # options with a value
    flags: set[str] = field(default_factory=set)  # options without a value
    # Options that take a value only after =, as in --nice=5.
    optional_values: set[str] = field(default_factory=set)
    name_of_letter: dict[str, str] = field(default_factory=dict)  # letter -> long name
    value_counts: dict[str, int] = field(default_factory=dict)  # option with several values -> their number
    # Options that end the program's options, such as -m of python. The words after them belong to the module.
    ending_options: set[str] = field(default_factory=set)
    # Role -> the options that have it. The roles of a launcher are NODES, PROCESSES (per node; for accelerate
    # on all nodes), RANK (of the node), PORT and HOST (of the rendezvous). The roles of MPI are PROCESSES (on
    # all nodes), EACH (the processes on a node) and PLACE (other hosts or slots than Slurm's).
    roles: dict[str, list[str]] = field(default_factory=dict)

    def option_with_role(self, role: str) -> str:
        """Return the long name of the first option with this role; "" without such an option."""
        return self.roles.get(role, [""])[0]

    def add_option(self, text: str) -> None:
        """Add an option as programs.txt writes it. The text =PROGRAM adds all options of another program."""
        if text.startswith("="):
            self._add_options_of(PROGRAMS[text[1:].replace("/", " ")])
            return
        match = _OPTION.fullmatch(text)
        if match is None:
            raise ValueError(f"'{text}' is not an option of the table")
        letter, name, question_mark, equals, exclamation_mark, role = match.groups()
        if letter:
            self.name_of_letter[letter] = name
        (self.values if question_mark or equals else self.flags).add(name)
        if question_mark:
            self.optional_values.add(name)
        if len(equals) > 1:
            self.value_counts[name] = len(equals)
        if exclamation_mark:
            self.ending_options.add(name)
        if role:
            self.roles.setdefault(role, []).append(name)

    def _add_options_of(self, other: "Program") -> None:
        """Add all options of another program, which itself stays as it is."""
        self.values |= other.values
        self.flags |= other.flags
        self.optional_values |= other.optional_values
        self.name_of_letter |= other.name_of_letter
        self.value_counts |= other.value_counts
        self.ending_options |= other.ending_options
        for role, names in other.roles.items():
            self.roles.setdefault(role, []).extend(names)


PROGRAMS: dict[str, Program] = {}  # the programs of STARTING_KINDS by name
MODULES: dict[str, str] = {}  # module of Python -> the name of the program that it is
_NAMES_OF_KIND: dict[str, set[str]] = {}  # kind -> names of programs


def programs(*kinds: str) -> frozenset[str]:
    """Return the names of all programs of these kinds, with verbs, such as "uv run"."""
    return frozenset().union(*(_NAMES_OF_KIND[kind] for kind in kinds))


def commands(*kinds: str) -> frozenset[str]:
    """Return the first words of commands that start programs of these kinds, such as "uv" for "uv run"."""
    return frozenset(name.partition(" ")[0] for name in programs(*kinds))


def _read_table() -> None:
    """Fill PROGRAMS, MODULES and _NAMES_OF_KIND from programs.txt."""
    for kinds_text, rest in rows(__file__, "programs.txt"):
        names_text, _, options = rest.partition(" | ")
        kinds = frozenset(word for word in kinds_text.split() if not word.isdecimal())
        names_and_modules = [name.replace("/", " ") for name in names_text.split()]
        names = [name for name in names_and_modules if not name.startswith("-m ")]
        for kind in kinds:
            _NAMES_OF_KIND.setdefault(kind, set()).update(names)
        modules = tuple(name[3:] for name in names_and_modules if name.startswith("-m "))
        MODULES.update(dict.fromkeys(modules, names[0]))
        if not kinds & STARTING_KINDS:
            continue
        operands = next((int(word) for word in kinds_text.split() if word.isdecimal()), 0)
        program = Program(name=names[0], kinds=kinds, operands=operands, modules=modules)
        for option in options.split():
            program.add_option(option)
        PROGRAMS.update({name: replace(program, name=name) for name in names})


_read_table()
SHELLS = programs("shell")
# Programs that start all processes of a training. If srun starts one, each task starts all of them.
RANK_STARTERS = programs("step", "mpi", "starter") | {
    name for name in programs("launcher") if " " not in name
}
LAUNCHERS = programs("launcher")
