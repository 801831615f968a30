"""Options on the command line of sbatch, as a script would say them."""

from collections.abc import Sequence

from sbatchgen.base import quoting
from sbatchgen.check.sbatch.header import Kind, directives

_OLDEST = "20.11"  # release that is known here


def with_options(text: str, options: Sequence[str]) -> str:
    """Return a script that says what options on the command line of sbatch say, as "--mem=64G".

    They are the last words of its last directive, so that they count and its lines keep their numbers; of a
    script without directives they are the second line.
    """
    if not options:
        return text
    pairs = (option.removeprefix("--").partition("=") for option in options)
    added = " ".join(quoting.directive(name, value) for name, _, value in pairs)
    lines = text.split("\n")
    first = (each for each in directives(text, slurm=_OLDEST) if not each.component)
    read = [each for each in first if each.kind is Kind.SBATCH]
    if not read:
        return "\n".join([*lines[:1], f"#SBATCH {added}", *lines[1:]])
    last = read[-1]
    at = last.words[-1].end - 1 if last.words else len("#SBATCH")
    lines[last.line - 1] = f"{last.text[:at]} {added}{last.text[at:]}"
    return "\n".join(lines)
