"""Reads programs.txt, the table of programs and their kinds.

`programs` returns the names of the programs of a kind. PROGRAMS has the options of programs that start other
programs. For example:

    programs("shell")  # "bash", "sh", "dash" and others
    PROGRAMS["timeout"].operands  # 1: the duration, before the command that timeout starts
"""

import re
from dataclasses import dataclass, field, replace

from sbatchgen.check.executables.word_table import rows

# The kinds of programs that start other programs. PROGRAMS has only the programs of these kinds.
STARTING_KINDS = frozenset(("step", "launcher", "mpi", "interpreter", "shell", "container", "wrapper"))
# An option of the table, such as n,ntasks=PROCESSES. The groups are the letter n, the name ntasks, no ?, one
# =, no !, and the role PROCESSES. The head of programs.txt explains these signs.
_OPTION = re.compile(r"(?:(.),)?([^=?A-Z]+|[A-Z])(\??)(=*)(!?)([A-Z]*)")


@dataclass(kw_only=True)
class Program:
    """A program that starts other programs, and its options."""

    name: str  # the name, with the verb of a subcommand: "nice", "uv run"
    kinds: frozenset[str]  # the kinds of the program, as in programs.txt
    # The number of words between the program's options and the command that it starts. For example, it is 1
    # for a container, whose image comes before the command.
    operands: int = 0
    modules: tuple[str, ...] = ()  # modules that start the program with python -m
    # The next attributes hold the long names of options, or the letter of an option without a long name.
    values: set[str] = field(default_factory=set)  # options with a value
    flags: set[str] = field(default_factory=set)  # options without a value
    # Options that take a value only after =, as in --nice=5.
    optional_values: set[str] = field(default_factory=set)
    name_of_letter: dict[str, str] = field(default_factory=dict)  # letter -> long name
    value_counts: dict[str, int] = field(default_factory=dict)  # option with several values -> their number
    # Options that end the program's options, such as -m of python. Words after `-m NAME` belong to NAME.
    ending_options: set[str] = field(default_factory=set)
    # Role -> the options with this role. The roles of options of a launcher:
    #   NODES: the number of nodes; PROCESSES: the number of processes per node, for accelerate on all nodes;
    #   RANK: the rank of the node; HOST and PORT: the address of the rendezvous.
    # The roles of options of MPI:
    #   PROCESSES: the number of processes on all nodes; EACH: the number of processes per node;
    #   PLACE: other hosts or slots than Slurm's.
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
MODULES: dict[str, str] = {}  # module -> the name of the program that python -m starts with it
_NAMES_OF_KIND: dict[str, set[str]] = {}  # kind -> names of programs


def programs(*kinds: str) -> frozenset[str]:
    """Return the names of all programs of these kinds. A name may have a verb, as in "uv run"."""
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
# Programs that start all processes of a training. If srun starts such a program in several tasks, each task
# starts all the processes again.
RANK_STARTERS = programs("step", "mpi", "starter") | {
    name for name in programs("launcher") if " " not in name
}
LAUNCHERS = programs("launcher")
