"""What sbatch reads in a script, and what it says about it, without an sbatch: `read` of `reader`.

Of the rest of sbatchgen it needs nothing, and it needs no other library.
"""

from sbatchgen.sbatch.reader import Component, Directive, Kind, Message, Option, Script, Token, read

__all__ = ["Component", "Directive", "Kind", "Message", "Option", "Script", "Token", "read"]
