"""Secrets, quoting, and what others could abuse: SB801 to SB811."""

from __future__ import annotations

from sbatchgen.rules.rule import Rules
from sbatchgen.rules.subject import Subject

RULES: Rules[Subject] = Rules()
