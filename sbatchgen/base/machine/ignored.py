"""Ignored files and folders: others can write them, and the user does not trust them."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path

from sbatchgen.base.errors import Problem
from sbatchgen.base.quoting import word

TRUST = "SBATCHGEN_TRUST"

# The problems of this process, by the path that others can write. Several parts of a command search for
# files, and each path is reported once.
_problems: dict[Path, Problem] = {}
_reported: set[Path] = set()  # programs of PATH, for which a command may search again and again


def take_problems() -> list[Problem]:
    """Return the problems of files and folders that were ignored since the last call, and forget them."""
    problems = [*_problems.values()]
    _problems.clear()
    return problems


def note_ignored(place: Path, problem: Problem) -> None:
    """Note that a place was ignored, with the problem to report; only its first problem counts."""
    _problems.setdefault(place, problem)


def note_ignored_program(program: Path, problem: Problem) -> None:
    """Note that a program was ignored, with the problem to report once in this process."""
    if program not in _reported:
        _reported.add(program)
        _problems[program] = problem


def why_ignored(
    file: Path,
    trust: Path,
    parts: Iterable[tuple[str, Path]],
    environment: Mapping[str, str],
    *,
    current_folder: Path,
    start: Path | None = None,
) -> tuple[Path, Problem] | None:
    """Return the part of a file that others can write, and why the file is ignored; None if it may be used.

    The file may be used if the user trusts the folder `trust`. Each part has a name for the message, such as
    "its folder". Relative paths in SBATCHGEN_TRUST refer to `current_folder`.
    For a part below the folder `start`, only the path below `start` is judged. Without `start`, the first
    part that no other user can write takes its place, so that no folder is judged twice.
    """
    from sbatchgen.base.machine.trust import other_writer  # few users have such files

    for subject, part in parts:
        if reason := other_writer(part, start if start and part.absolute().is_relative_to(start) else None):
            if is_trusted(trust, environment, current_folder):
                return None
            if _is_trusted_by_settings(current_folder / part, environment):
                continue
            fix = f"{reason.fix}, or " if reason.fix else ""
            fix += how_to_trust(trust, environment, reason.place)
            what = f"ignored {file if file == trust else file.relative_to(trust)}: {subject} {reason.why}"
            return reason.place, Problem(what, str(file.absolute()), fix)
        start = start or part.absolute()
    return None


def is_trusted(folder: Path, environment: Mapping[str, str], current_folder: Path | None = None) -> bool:
    """Return whether SBATCHGEN_TRUST names this folder; a folder above it does not count."""
    entries = [entry for entry in environment.get(TRUST, "").split(":") if entry]
    real = os.path.realpath(folder)
    return "*" in entries or any(
        os.path.realpath((current_folder or Path()) / entry) == real for entry in entries
    )


def _is_trusted_by_settings(part: Path, environment: Mapping[str, str]) -> bool:
    """Return whether a file or folder is in a folder that the user trusts by `sbatchgen trust`."""
    from sbatchgen.base.machine.trusted import covers, trusted_folders

    return covers(trusted_folders(environment), part)


def how_to_trust(folder: Path, environment: Mapping[str, str], place: Path | None = None) -> str:
    """Return the fix that adds a folder to the trusted folders.

    `place` is the path that others can write. `sbatchgen trust` does not cover a path that everybody can
    write, so the fix for such a path is SBATCHGEN_TRUST.
    """
    if place and not place.stat().st_mode & stat.S_IWOTH:
        return f"to trust it: sbatchgen trust {word(str(folder.absolute()))}"
    before = f"${TRUST}:" if environment.get(TRUST) or _problems.keys() - {place} else ""
    return f"to trust it, export {TRUST}={before}{word(str(folder.absolute()))}"
