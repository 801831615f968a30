"""What git says of a folder."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

TIMEOUT_S = 20.0


def git(folder: Path, *arguments: str) -> str | None:
    """Return what git prints, without the last line break; None if it fails."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            env=environment | {"GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return None if done.returncode else os.fsdecode(done.stdout).removesuffix("\n")
