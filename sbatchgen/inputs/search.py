"""Finds profiles, templates and the project's sbatchgen.yaml by name; knows where the bundled ones lie.

A template and a profile's `setup` end in a script that the user runs, and anybody can put files into /tmp. So
what is found by searching counts only if nobody but the user and root can write it, or if the user trusts its
folder (SBATCHGEN_TRUST). What the user names on the command line is taken as it is.
"""

from __future__ import annotations

import functools
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from sbatchgen.errors import DocumentError, Problem, did_you_mean
from sbatchgen.inputs.trust import can_mend, doubt

PROJECT_FILE = "sbatchgen.yaml"
TRUST = "SBATCHGEN_TRUST"


@dataclass(frozen=True)
class LeftOut:
    """Something that was found, and is not used because others can write it.

    Attributes:
        why: What it is and who can write it.
        at: Where it is.
        folder: The folder to trust.
        mend: What to use chmod on; empty where that does not help.
        besides: Whether the user trusts other folders already.
    """

    why: str
    at: Path
    folder: Path
    mend: str
    besides: bool


# Of this process, not of one `Places`: several parts of a command search, and it warns once.
_left_out: dict[Path, LeftOut] = {}
_SHOWN = 3


def left_out() -> Problem | None:
    """All that was left out since the last call, as one warning."""
    found = list(_left_out.values())
    _left_out.clear()
    if not found:
        return None
    from sbatchgen.quoting import word

    shown = found[:_SHOWN]
    more = f"; and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    chmod = " ".join(dict.fromkeys(word(one.mend) for one in shown if one.mend))
    folders = ":".join(dict.fromkeys(word(str(one.folder)) for one in found))
    before = f"${TRUST}:" if any(one.besides for one in found) else ""
    fix = f"to use {'it' if len(found) == 1 else 'them'} all the same, export {TRUST}={before}{folders}"
    return Problem(
        f"left out {'; '.join(one.why for one in shown)}{more}",
        ", ".join(str(one.at) for one in shown),
        f"chmod go-w {chmod}, or {fix}" if chmod else fix,
    )


@functools.cache
def bundled(kind: str) -> Path:
    """The folder of bundled `templates`, `profiles` or `code`: in the package of a wheel, else beside it."""
    package = Path(__file__).parents[1]
    inside, checkout = package / kind, package.parent
    return inside if inside.is_dir() else checkout if kind == "code" else checkout / kind


def short(where: str, folder: Path) -> str:
    """A `file:line` from the current folder, or from the one that the bundled files are in."""
    return where.removeprefix(f"{folder}/").removeprefix(f"{bundled('templates').parent}/")


def is_file_name(profile: str) -> bool:
    """Whether a profile is meant as a file, not as a name to be searched for."""
    return "/" in profile or profile.endswith((".yaml", ".yml"))


@dataclass(frozen=True, eq=False)
class Places:
    """Where to look: what the environment and the current folder say, read once by `cli`."""

    folder: Path
    environment: Mapping[str, str]

    @functools.cached_property
    def project(self) -> Path | None:
        """The sbatchgen.yaml of this folder or of its nearest parent that has one which counts."""
        for folder in (self.folder, *self.folder.parents):
            file = folder / PROJECT_FILE
            if _is(stat.S_ISREG, file) and self._counts(file, folder, [("its folder", folder), ("it", file)]):
                return file
        return None

    def folders(self, kind: str) -> list[Path]:
        """Folders of `profiles` or `templates`, the first to look in first, the bundled one last."""
        if kind not in self._found:
            roots = self._roots.items()
            found = [root / kind for root, trust in roots if self._is_folder(root / kind, trust)]
            self._found[kind] = [*found, bundled(kind)]
        return self._found[kind]

    def _is_folder(self, folder: Path, trust: Path) -> bool:
        """Whether a folder is one to use. Templates belong together: it is all of them or none."""
        inside = _inside(folder) if folder.name == "templates" else ()
        return _is(stat.S_ISDIR, folder) and self._counts(folder, trust, [("it", folder), *inside])

    @functools.cached_property
    def _found(self) -> dict[str, list[Path]]:
        return {}

    @functools.cached_property
    def _roots(self) -> dict[Path, Path]:
        """The folders that `profiles` and `templates` may lie in, each with the folder to trust for it."""
        env, project = self.environment, self.project
        home = env.get("HOME", "")
        roots = {Path(entry): Path(entry) for entry in env.get("SBATCHGEN_PATH", "").split(":") if entry}
        if project:
            roots.setdefault(project.parent / ".sbatchgen", project.parent)
        config = env.get("XDG_CONFIG_HOME") or (f"{home}/.config" if home else "")
        shared = env.get("XDG_CONFIG_DIRS") or "/etc/xdg"
        for entry in (config, *shared.split(":")):
            if entry:
                roots.setdefault(Path(entry) / "sbatchgen", Path(entry) / "sbatchgen")
        return {root: trust for root, trust in roots.items() if self._is_folder(root, trust)}

    def _counts(self, what: Path, trust: Path, parts: Iterable[tuple[str, Path]]) -> bool:
        """Whether something found is to be used: only the user can write its parts, or trusts its folder."""
        for subject, part in parts:
            if told := doubt(part):
                if self._trusts(trust):
                    return True
                name = what if what == trust else what.relative_to(trust)
                mend = str(part) if can_mend(part) else ""
                besides = bool(self.environment.get(TRUST))
                why = f"{name}: {subject} {told}"
                _left_out[what] = LeftOut(why, what.absolute(), trust.absolute(), mend, besides)
                return False
        return True

    def _trusts(self, folder: Path) -> bool:
        """Whether SBATCHGEN_TRUST names this very folder; one above it does not count."""
        entries = [entry for entry in self.environment.get(TRUST, "").split(":") if entry]
        here = os.path.realpath(folder)
        return "*" in entries or any(os.path.realpath(self.folder / one) == here for one in entries)

    @functools.cached_property
    def cache(self) -> Path | None:
        """The folder of what may be kept between two commands; None where there is no home."""
        home = self.environment.get("HOME", "")
        root = self.environment.get("XDG_CACHE_HOME") or (f"{home}/.cache" if home else "")
        return Path(root) / "sbatchgen" if root.startswith("/") else None

    def profiles(self) -> Iterator[tuple[str, Path]]:
        """Every profile that can be found, name and file; the first of a name is the one that counts."""
        for folder in self.folders("profiles"):
            for file in sorted(folder.glob("*.yaml")):
                if self._is_profile(file):
                    yield file.stem, file

    def _is_profile(self, file: Path) -> bool:
        """Whether a file in one of the folders of profiles is one to use."""
        trust = self._roots.get(file.parents[1])  # none for a bundled one, which is part of the program
        return _is(stat.S_ISREG, file) and (trust is None or self._counts(file, trust, [("it", file)]))

    def profile(self, name: str) -> Path:
        """The file of a profile, by name or by path.

        Raises:
            DocumentError: There is none.
        """
        if is_file_name(name):
            path = self.folder / name
            if not path.is_file():
                raise DocumentError.of(f"no profile at {path}", fix="give a profile's name or its file")
            return Path(name) if not Path(name).is_absolute() else path
        for folder in self.folders("profiles") if name else ():
            if self._is_profile(file := folder / f"{name}.yaml"):
                return file
        folders = ", ".join(map(str, self.folders("profiles")))
        what = f"no profile '{name}' in {folders}"
        raise DocumentError.of(what, fix=did_you_mean(name, dict(self.profiles())))


def _is(kind: Callable[[int], bool], path: Path) -> bool:
    """Whether a file or folder, as one of `stat` asks, is there for this user."""
    try:
        return kind(path.stat().st_mode)
    except (OSError, ValueError):
        return False


def _inside(folder: Path) -> Iterator[tuple[str, Path]]:
    """Every file and folder in a folder, each with what to call it."""
    seen: set[str] = set()
    for here, folders, files in os.walk(folder, followlinks=True):
        if (real := os.path.realpath(here)) in seen:  # links may lead in a circle
            folders.clear()
            continue
        seen.add(real)
        for name in (*folders, *files):
            path = Path(here) / name
            yield f"{path.relative_to(folder)} in it", path
