"""What bash finds in the body of a script: `read_body`; what a command launches: `chain.chain`.

It holds no rules. It needs nothing of the rest of sbatchgen, and parses with tree-sitter's grammar.
"""

from sbatchgen.check.bash.body import Body, read_body, string_body
from sbatchgen.check.bash.statement import Assignment, Command, VariableUse
from sbatchgen.check.bash.word import Piece, Word

__all__ = ["Assignment", "Body", "Command", "Piece", "VariableUse", "Word", "read_body", "string_body"]
