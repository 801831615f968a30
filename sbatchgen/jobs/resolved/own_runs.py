"""Where the runs of a user are, in a folder that several users share.

A run folder belongs to its user alone, and so does the folder `runs` that the first user's first job made.
"""

import os
from pathlib import Path

from sbatchgen.base.files import user_id
from sbatchgen.base.machine.trust import user_name

RUNS = "runs"


def own_runs(folder: Path, name: str) -> tuple[str, str]:
    """Return the folder of the user's runs below a folder, and why the folder is not `runs`; "" for `runs`.

    `runs` is the place, unless it belongs to another user: then runs/USER where this user can write there, as
    in a folder that the staff have made for all, else runs-USER. A run of this name that is there continues.
    """
    runs = folder / RUNS
    try:
        owner = runs.stat().st_uid
    except OSError:
        return RUNS, ""
    if owner == user_id():
        return RUNS, ""
    own = _name()
    why = f"{RUNS} belongs to {user_name(owner)}"
    places = f"{RUNS}/{own}", f"{RUNS}-{own}"
    for place in (RUNS, *places):
        if _is_mine(folder / place / name):
            return place, why if place != RUNS else ""
    inside = folder / places[0]
    is_free = _is_mine(inside) or not os.path.lexists(inside)
    return places[0] if is_free and os.access(runs, os.W_OK | os.X_OK) else places[1], why


def _name() -> str:
    """Return the name of this user as a part of a path; the user's number if there is no name."""
    name = user_name(user_id())
    return name if name.replace("-", "").replace("_", "").replace(".", "").isalnum() else str(user_id())


def _is_mine(folder: Path) -> bool:
    try:
        return folder.lstat().st_uid == user_id()
    except OSError:
        return False
