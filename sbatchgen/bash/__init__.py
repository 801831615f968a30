"""What bash finds in the body of a script: `read` of `body`; what a command launches: `chain` of `launch`.

It holds no rules. It needs nothing of the rest of sbatchgen, and parses with tree-sitter's grammar.
"""

from sbatchgen.bash.body import Body, read
from sbatchgen.bash.command import (
    Assignment,
    Command,
    Context,
    Function,
    Pipe,
    Redirect,
    ShellOption,
    VariableUse,
)
from sbatchgen.bash.text import Fault
from sbatchgen.bash.word import Piece, Word

__all__ = [
    "Assignment",
    "Body",
    "Command",
    "Context",
    "Fault",
    "Function",
    "Piece",
    "Pipe",
    "Redirect",
    "ShellOption",
    "VariableUse",
    "Word",
    "read",
]
