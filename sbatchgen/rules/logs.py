"""Where a job writes: SB701 to SB711."""

from __future__ import annotations

from sbatchgen.rules.rule import Rules
from sbatchgen.rules.subject import Subject

RULES: Rules[Subject] = Rules()
