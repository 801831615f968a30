"""The code that a job runs: its folder, and what git says of it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from sbatchgen.runs.record import Code

GIT_TIMEOUT_S = 20.0


def describe(folder: Path) -> Code:
    """Return what git says of the code in a folder; only the folder itself if git does not know it."""
    root, commit = git(folder, "rev-parse", "--show-toplevel"), git(folder, "rev-parse", "--verify", "HEAD")
    if not root or not commit:
        return Code(folder=str(folder))
    changed = git(folder, "status", "--porcelain", "--untracked-files=no")
    return Code(folder=root, commit=commit, dirty=changed != "")


def git(folder: Path, *arguments: str) -> str | None:
    """Return what git prints, without the last line break; None if it fails."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            env=environment | {"GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=GIT_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return None if done.returncode else os.fsdecode(done.stdout).removesuffix("\n")
