"""What bash finds in the body of a script: `read_body`; what a command launches: `chain.chain`.

It holds no rules. It needs nothing of the rest of sbatchgen, and parses with tree-sitter's grammar.
"""

from sbatchgen.bash.body import Body, read_body
from sbatchgen.bash.statement import Assignment, Command
from sbatchgen.bash.word import Word

__all__ = ["Assignment", "Body", "Command", "Word", "read_body"]
