"""The reader of bash, which parses scripts with tree-sitter's grammar and never runs them.

`read_body` reads the body of a script. `chain.chain` finds the programs that a command starts. The rules of
`lint` and other commands judge what these functions return.
"""

from sbatchgen.check.bash.body import Body, read_body, string_body
from sbatchgen.check.bash.statement import Assignment, Command, VariableUse
from sbatchgen.check.bash.word import Piece, Word

__all__ = ["Assignment", "Body", "Command", "Piece", "VariableUse", "Word", "read_body", "string_body"]
