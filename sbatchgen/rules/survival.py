"""Signals, requeues and checkpoints: SB601 to SB612."""

from __future__ import annotations

from sbatchgen.rules.rule import Rules
from sbatchgen.rules.subject import Subject

RULES: Rules[Subject] = Rules()
