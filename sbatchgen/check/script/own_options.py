"""Finds the options of a Python program in its source, from the calls of argparse."""

import ast
import re
from collections.abc import Iterable, Sequence

from sbatchgen.check.script.saved_files import called_name

# With one of these names in the source, a parser may accept options that the source does not show.
_UNCERTAIN = re.compile(
    "prefix_chars|fromfile_prefix_chars|parents|parse_known_args|parse_intermixed_args|argv|REMAINDER"
    r"|BooleanOptionalAction|get_args_parser|\.\.\."
)


def accepted_options(trees: Iterable[ast.Module]) -> frozenset[str] | None:
    """Return all options that a program accepts, from its modules; None if it may accept other options."""
    options, parses_command_line = {"-h", "--help"}, False
    for node in (node for tree in trees for node in ast.walk(tree)):
        if _UNCERTAIN.fullmatch(_name(node)):
            return None
        if not isinstance(node, ast.Call):
            continue
        if called_name(node) == "parse_args":
            if node.args or node.keywords:  # the program does not parse its command line, but another list
                return None
            parses_command_line = True
        elif called_name(node) == "add_argument":
            names = [word.value for word in node.args if isinstance(word, ast.Constant)]
            if len(names) != len(node.args) or any(keyword.arg is None for keyword in node.keywords):
                return None  # the program computes an argument
            options.update(map(str, names))
    return frozenset(options) if parses_command_line else None


def _name(node: ast.AST) -> str:
    """Return the name or the text in a node; "" for other nodes."""
    values = (getattr(node, part, None) for part in ("attr", "arg", "id", "value"))
    return next((value for value in values if isinstance(value, str)), "")


def refused_options(args: Sequence[str], options: frozenset[str]) -> list[str]:
    """Return the long options among arguments that argparse refuses, if a parser has only `options`.

    argparse takes an option that is abbreviated, and takes no words after -- for options.
    """
    words = args[: args.index("--")] if "--" in args else args
    names = [word.partition("=")[0] for word in words if word.startswith("--")]
    return [name for name in names if not any(option.startswith(name) for option in options)]
