"""Reader of bash: `read_body` reads the body of a script, `chain.chain` the programs that a command starts.

The folder parses with tree-sitter's grammar, and holds no rules.
"""

from sbatchgen.check.bash.body import Body, read_body, string_body
from sbatchgen.check.bash.statement import Assignment, Command, VariableUse
from sbatchgen.check.bash.word import Piece, Word

__all__ = ["Assignment", "Body", "Command", "Piece", "VariableUse", "Word", "read_body", "string_body"]
