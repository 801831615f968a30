"""What bash finds in the body of a script: `read` of `body`, and what a command launches: `chain` of `launch`.

No rule of ours is in it. Of the rest of sbatchgen it needs nothing; its parser is tree-sitter's grammar of bash.
"""

from sbatchgen.shell.body import Body, read
from sbatchgen.shell.command import Assignment, Command, Context, Function, Pipe, Redirect, Setting, Use
from sbatchgen.shell.source import Fault
from sbatchgen.shell.word import Piece, Word

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
    "Setting",
    "Use",
    "Word",
    "read",
]
