"""What sbatch makes of the directives of a script: SB101 to SB134. Exact: the reader does as sbatch does."""

from __future__ import annotations

from collections.abc import Iterator

from sbatchgen.rules.rule import Hit, Rules
from sbatchgen.rules.subject import Subject
from sbatchgen.script import Kind

RULES: Rules[Subject] = Rules()


@RULES.add("SB104", "warning", "a directive after the first command is ignored")
def _late(script: Subject) -> Iterator[Hit]:
    for line in script.script.directives:
        if line.kind is Kind.LATE:
            what = "this directive comes after the first command: Slurm ignores it without a word"
            yield Hit(script.at(line.line), what, "move it above the first command")
