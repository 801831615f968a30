"""The options of a Python program, read from the calls of argparse in its source."""

import ast
import re
from collections.abc import Iterable, Sequence

from sbatchgen.check.script.saved_files import called

# With these names in the source, a parser may take other options than the source shows.
_UNCERTAIN = re.compile(
    "prefix_chars|fromfile_prefix_chars|parents|parse_known_args|parse_intermixed_args|argv|REMAINDER"
    r"|BooleanOptionalAction|get_args_parser|\.\.\."
)


def own_options(trees: Iterable[ast.Module]) -> frozenset[str] | None:
    """Return the options of a program in its modules; None if its parser may take other options."""
    options, parses = {"-h", "--help"}, False
    for node in (node for tree in trees for node in ast.walk(tree)):
        if _UNCERTAIN.fullmatch(_name(node)):
            return None
        if not isinstance(node, ast.Call):
            continue
        if called(node) == "parse_args":
            if node.args or node.keywords:  # arguments from elsewhere than the command line
                return None
            parses = True
        elif called(node) == "add_argument":
            names = [word.value for word in node.args if isinstance(word, ast.Constant)]
            if len(names) != len(node.args) or any(keyword.arg is None for keyword in node.keywords):
                return None  # the program computes an argument
            options.update(map(str, names))
    return frozenset(options) if parses else None


def _name(node: ast.AST) -> str:
    """Return the name or the text in a node."""
    named = (getattr(node, part, None) for part in ("attr", "arg", "id", "value"))
    return next((name for name in named if isinstance(name, str)), "")


def refused_options(args: Sequence[str], options: frozenset[str]) -> list[str]:
    """Return the long options among arguments that argparse refuses.

    argparse takes an abbreviated option, and no options after --.
    """
    before = args[: args.index("--")] if "--" in args else args
    names = [word.partition("=")[0] for word in before if word.startswith("--")]
    return [name for name in names if not any(option.startswith(name) for option in options)]
