"""Writes the options of sbatch's command line into a script as directives, so that rules can judge both."""

from collections.abc import Sequence

from sbatchgen.base import quoting
from sbatchgen.check.sbatch.header import Kind, directives

_OLDEST = "20.11"  # the oldest release in the table of options; any release finds the same lines


def with_options(text: str, options: Sequence[str]) -> str:
    """Return the script with options of sbatch's command line, such as "--mem=64G", as directives.

    The options follow the last directive in its line, so that they win and all lines keep their numbers. In a
    script without directives they are a new second line.
    """
    if not options:
        return text
    pairs = (option.removeprefix("--").partition("=") for option in options)
    added = " ".join(quoting.directive(name, value) for name, _, value in pairs)
    lines = text.split("\n")
    # In a heterogeneous job, options of the command line belong to the first component.
    first_component = [
        directive
        for directive in directives(text, slurm=_OLDEST)
        if directive.component == 0 and directive.kind is Kind.SBATCH
    ]
    if not first_component:
        return "\n".join([*lines[:1], f"#SBATCH {added}", *lines[1:]])
    last = first_component[-1]
    end = last.words[-1].end - 1 if last.words else len("#SBATCH")
    lines[last.line - 1] = f"{last.text[:end]} {added}{last.text[end:]}"
    return "\n".join(lines)
