"""What sbatch reads in a script, and why it refuses it, without an sbatch: `read` of `reader`.

Of the rest of sbatchgen it needs nothing, and it needs no other library.
"""

from sbatchgen.sbatch.header import Directive, Kind, Message, Token
from sbatchgen.sbatch.options import Option
from sbatchgen.sbatch.reader import Component, Script, read

__all__ = ["Component", "Directive", "Kind", "Message", "Option", "Script", "Token", "read"]
