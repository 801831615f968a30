"""The programs of programs.txt, by name and by kind.

PROGRAMS["timeout"].operands  # 1: the duration, before the command that timeout starts
programs("shell")  # "bash", "sh", "dash" and others
"""

import re
from dataclasses import dataclass, field, replace

from sbatchgen.check.executables.word_table import rows

# The kinds of programs that start other programs. Only for these kinds, PROGRAMS has the options.
STARTING_KINDS = frozenset(("step", "launcher", "mpi", "interpreter", "shell", "container", "wrapper"))
_OPTION = re.compile(r"(?:(.),)?([^=?A-Z]+|[A-Z])(\??)(=*)(!?)([A-Z]*)")


@dataclass(kw_only=True)
class Program:
    """A program that starts other programs, and its options."""

    name: str  # the name, with the verb of a subcommand: "nice", "uv run"
    kinds: frozenset[str]  # the kinds of the program, as in programs.txt
    operands: int = 0  # the number of words between the options and the command, such as an image
    modules: tuple[str, ...] = ()  # the modules by which Python starts the program
    values: set[str] = field(default_factory=set)  # the long names of options with a value
    flags: set[str] = field(default_factory=set)  # the long names of options without a value
    optional: set[str] = field(default_factory=set)  # options whose value can only follow an =
    letters: dict[str, str] = field(default_factory=dict)  # letters -> long names
    # The number of values of an option that takes several.
    counts: dict[str, int] = field(default_factory=dict)
    # Options whose value is the last word that the program reads itself.
    last: set[str] = field(default_factory=set)
    # The role of an option -> the names of such options. A launcher has NODES, PROCESSES (of a node; for
    # accelerate of all nodes), RANK (of the node), PORT and HOST (of the rendezvous). MPI has PROCESSES (of
    # all nodes), EACH (processes of a node) and PLACE (other hosts or slots than Slurm's).
    roles: dict[str, list[str]] = field(default_factory=dict)

    def role(self, role: str) -> str:
        """Return the name of the first option with this role; "" without such an option."""
        return self.roles.get(role, [""])[0]

    def add_option(self, text: str) -> None:
        """Add an option as the table writes it; =PROGRAM adds all options of another program."""
        if text.startswith("="):
            other = PROGRAMS[text[1:].replace("/", " ")]
            for part in ("values", "flags", "optional", "letters", "counts", "roles"):
                getattr(self, part).update(getattr(other, part))
            return
        match = _OPTION.fullmatch(text)
        if match is None:
            raise ValueError(f"'{text}' is not an option of the table")
        letter, name, optional, equals, last, role = match.groups()
        if letter:
            self.letters[letter] = name
        (self.values if optional or equals else self.flags).add(name)
        if optional:
            self.optional.add(name)
        if len(equals) > 1:
            self.counts[name] = len(equals)
        if last:
            self.last.add(name)
        if role:
            self.roles.setdefault(role, []).append(name)


PROGRAMS: dict[str, Program] = {}
MODULES: dict[str, str] = {}  # the module that Python starts -> the name of the program
_NAMES: dict[str, set[str]] = {}  # kind -> names of programs


def programs(*kinds: str) -> frozenset[str]:
    """Return the names of all programs of these kinds, with their verbs."""
    return frozenset().union(*(_NAMES[kind] for kind in kinds))


def commands(*kinds: str) -> frozenset[str]:
    """Return the first words of commands that start programs of these kinds: uv for uv run."""
    return frozenset(name.partition(" ")[0] for name in programs(*kinds))


def _read_table() -> None:
    """Fill PROGRAMS, MODULES and _NAMES from programs.txt."""
    for heads, rest in rows(__file__, "programs.txt"):
        names, _, options = rest.partition(" | ")
        kinds = frozenset(word for word in heads.split() if not word.isdecimal())
        all_names = [name.replace("/", " ") for name in names.split()]
        called = [name for name in all_names if not name.startswith("-m ")]
        for kind in kinds:
            _NAMES.setdefault(kind, set()).update(called)
        modules = tuple(name[3:] for name in all_names if name.startswith("-m "))
        MODULES.update(dict.fromkeys(modules, called[0]))
        if not kinds & STARTING_KINDS:
            continue
        operands = next((int(word) for word in heads.split() if word.isdecimal()), 0)
        first = Program(name=called[0], kinds=kinds, operands=operands, modules=modules)
        for option in options.split():
            first.add_option(option)
        PROGRAMS.update({name: replace(first, name=name) for name in called})


_read_table()
SHELLS = programs("shell")
# Programs that start the processes of a training themselves. With srun, each task would start such a program.
RANK_STARTERS = programs("step", "mpi", "starter") | {
    name for name in programs("launcher") if " " not in name
}
LAUNCHERS = programs("launcher")
