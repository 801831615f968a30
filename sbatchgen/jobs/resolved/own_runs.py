"""The folder that holds a user's run folders, if several users submit jobs from one folder.

Jobs make the folder `runs`, which then belongs to the user whose job made it.
"""

import os
from pathlib import Path

from sbatchgen.base.files import user_id
from sbatchgen.base.machine.trust import user_name

RUNS = "runs"


def own_runs(folder: Path, name: str) -> tuple[str, str]:
    """Return the user's folder of runs, relative to `folder`, and why it is not `runs`; "" if it is `runs`.

    If `runs` belongs to another user, the folder is runs/USER if this user can write in `runs`, for example
    because the staff made it for all users. Otherwise it is runs-USER. A folder in which the user already has
    a run of this name is preferred, so that the run continues.
    """
    runs = folder / RUNS
    try:
        owner = runs.stat().st_uid
    except OSError:
        return RUNS, ""
    if owner == user_id():
        return RUNS, ""
    user = _user_in_path()
    why = f"{RUNS} belongs to {user_name(owner)}"
    inside, beside = f"{RUNS}/{user}", f"{RUNS}-{user}"
    for place in (RUNS, inside, beside):
        if _is_mine(folder / place / name):
            return place, why if place != RUNS else ""
    is_free = _is_mine(folder / inside) or not os.path.lexists(folder / inside)
    return inside if is_free and os.access(runs, os.W_OK | os.X_OK) else beside, why


def _user_in_path() -> str:
    """Return the user's name for a path; the user's number if the name has unusual characters."""
    name = user_name(user_id())
    return name if name.replace("-", "").replace("_", "").replace(".", "").isalnum() else str(user_id())


def _is_mine(folder: Path) -> bool:
    """Return whether a folder exists and belongs to this user."""
    try:
        return folder.lstat().st_uid == user_id()
    except OSError:
        return False
