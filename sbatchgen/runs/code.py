"""The code that a job runs: its folder, and what git says of it."""

from __future__ import annotations

from pathlib import Path

from sbatchgen.git import git
from sbatchgen.runs.record import Code


def describe(folder: Path) -> Code:
    """Return what git says of the code in a folder; only the folder itself if git does not know it."""
    root, commit = git(folder, "rev-parse", "--show-toplevel"), git(folder, "rev-parse", "--verify", "HEAD")
    if not root or not commit:
        return Code(folder=str(folder))
    changed = git(folder, "status", "--porcelain", "--untracked-files=no")
    return Code(folder=root, commit=commit, dirty=changed != "")
