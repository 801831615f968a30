"""What surrounds a submission: SB901 to SB909."""

from __future__ import annotations

from sbatchgen.rules.rule import Rules
from sbatchgen.rules.subject import Subject

RULES: Rules[Subject] = Rules()
