"""Images, mounts, and what gets into a container: SB501 to SB513."""

from __future__ import annotations

from sbatchgen.rules.rule import Rules
from sbatchgen.rules.subject import Subject

RULES: Rules[Subject] = Rules()
