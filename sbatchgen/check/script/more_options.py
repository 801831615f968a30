"""The options on sbatch's command line, written into the script as directives."""

from collections.abc import Sequence

from sbatchgen.base import quoting
from sbatchgen.check.sbatch.header import Kind, directives

_OLDEST = "20.11"  # the oldest release that the table of options knows


def with_options(text: str, options: Sequence[str]) -> str:
    """Return the script with options of sbatch's command line, such as "--mem=64G", as directives.

    The options are added to the last directive, so that they win and all lines keep their numbers. In a
    script without directives they form a new second line.
    """
    if not options:
        return text
    pairs = (option.removeprefix("--").partition("=") for option in options)
    added = " ".join(quoting.directive(name, value) for name, _, value in pairs)
    lines = text.split("\n")
    # In a heterogeneous job, options of the command line belong to the first component.
    of_first = (directive for directive in directives(text, slurm=_OLDEST) if not directive.component)
    read = [directive for directive in of_first if directive.kind is Kind.SBATCH]
    if not read:
        return "\n".join([*lines[:1], f"#SBATCH {added}", *lines[1:]])
    last = read[-1]
    at = last.words[-1].end - 1 if last.words else len("#SBATCH")
    lines[last.line - 1] = f"{last.text[:at]} {added}{last.text[at:]}"
    return "\n".join(lines)
