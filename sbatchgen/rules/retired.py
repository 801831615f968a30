"""Rules that were removed: people may still name them in comments, settings and profiles."""

from __future__ import annotations

_IDS = """
SB103 SB109 SB116 SB118 SB120 SB121 SB123 SB124 SB128 SB134 SB139 SB141 SB211 SB217 SB219 SB221 SB228 SB235
SB236 SB313 SB320 SB323 SB325 SB326 SB409 SB413 SB415 SB416 SB418 SB420 SB501 SB503 SB509 SB510 SB512 SB514
SB516 SB517 SB607 SB613 SB616 SB618 SB703 SB706 SB707 SB708 SB801 SB807 SB808 SB809 SB811 SB816 SB902 SB910
"""
RETIRED = frozenset(_IDS.split())


def removal(rule: str) -> str:
    """Return what to say to those who name a rule that was removed."""
    return f"rule {rule} was removed"
