"""Chooses the folder for a user's run folders if several users submit jobs from the same folder.

The folder is `runs` by default. A job makes it, and it then belongs to the user of this job, so other users
need another folder.
"""

import os
from pathlib import Path

from sbatchgen.base.files import user_id
from sbatchgen.base.machine.trust import user_name

RUNS = "runs"


def own_runs(folder: Path, name: str) -> tuple[str, str]:
    """Return the folder for the user's runs, relative to `folder`, and the reason if it is not `runs`.

    If `runs` belongs to another user, the result is one of:

    - the folder in which the user already has a run with this `name`, so that the run continues
    - runs/USER, if this user can write into `runs`, for example because the staff made it for all users
    - runs-USER otherwise
    """
    shared_runs = folder / RUNS
    try:
        owner = shared_runs.stat().st_uid
    except OSError:
        return RUNS, ""
    if owner == user_id():
        return RUNS, ""
    user = _user_in_path()
    why = f"{RUNS} belongs to {user_name(owner)}"
    subfolder, sibling = f"{RUNS}/{user}", f"{RUNS}-{user}"
    for candidate in (RUNS, subfolder, sibling):
        if _is_own(folder / candidate / name):
            return candidate, why if candidate != RUNS else ""
    is_usable = _is_own(folder / subfolder) or not os.path.lexists(folder / subfolder)
    return subfolder if is_usable and os.access(shared_runs, os.W_OK | os.X_OK) else sibling, why


def _user_in_path() -> str:
    """Return the user's name as a part of a path; the user's id if the name has unusual characters."""
    name = user_name(user_id())
    return name if name.replace("-", "").replace("_", "").replace(".", "").isalnum() else str(user_id())


def _is_own(folder: Path) -> bool:
    """Return whether a folder exists and belongs to this user."""
    try:
        return folder.lstat().st_uid == user_id()
    except OSError:
        return False
