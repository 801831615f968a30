"""Finds profiles, templates and the project's sbatchgen.yaml.

Templates and the `setup` of profiles become part of a script that the user runs. So a file found by
searching is used only if nobody but the user and root can write it, or if the user trusts its folder
(SBATCHGEN_TRUST). A file that the user names is always used.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from os.path import isdir, isfile  # they take any name, and folders that this user can't see
from pathlib import Path

from sbatchgen.errors import DocumentError, Problem, did_you_mean

PROJECT_FILE = "sbatchgen.yaml"
SITES = "sbatchgen.sites"  # the entry points of installed packages that hold `profiles` and `templates`
TRUST = "SBATCHGEN_TRUST"


# Of the process: several parts of a command search, and each file or folder is told once.
_left_out: dict[Path, Problem] = {}


def left_out() -> list[Problem]:
    """The files and folders that were ignored since the last call, because others can write them."""
    found = [*_left_out.values()]
    _left_out.clear()
    return found


@functools.cache
def bundled(kind: str) -> Path:
    """The folder of bundled `templates`, `profiles` or `code`: in the package of a wheel, else beside it."""
    package = Path(__file__).parents[1]
    inside, checkout = package / kind, package.parent
    return inside if inside.is_dir() else checkout if kind == "code" else checkout / kind


def short(where: str, folder: Path) -> str:
    """A `file:line` relative to the current folder, or to that of the bundled files."""
    return where.removeprefix(f"{folder}/").removeprefix(f"{bundled('templates').parent}/")


def is_file_name(profile: str) -> bool:
    """Whether a profile is a file, not a name to search for."""
    return "/" in profile or profile.endswith((".yaml", ".yml"))


def beside(file: Path, profile: str) -> str:
    """A profile as the file that names it means it: a path is relative to that file's folder."""
    if not is_file_name(profile):
        return profile
    path = file.parent / profile
    return f"./{path}" if not path.is_absolute() and "/" not in str(path) else str(path)


@dataclass(eq=False, repr=False)
class Places:
    """Where to look, as the environment and the current folder say."""

    folder: Path
    environment: Mapping[str, str]

    @functools.cached_property
    def project(self) -> Path | None:
        """The sbatchgen.yaml of this folder or of the nearest parent."""
        for folder in (self.folder, *self.folder.parents):
            file = folder / PROJECT_FILE
            if isfile(file) and self._counts(file, folder, [("its folder", folder), ("it", file)]):  # noqa: PTH113
                return file
        return None

    def folders(self, kind: str) -> list[Path]:
        """Folders of `profiles` or `templates` in the order of the search, the bundled one last.

        Those of installed packages are not looked for; they are among them once something else has done that.
        """
        roots = {**self._roots, **{root: root for root in vars(self).get("sites", {}).values()}}
        found = (root / kind for root, trust in roots.items() if self._is_folder(root / kind, trust))
        return [*found, bundled(kind)]

    @functools.cached_property
    def sites(self) -> dict[str, Path]:
        """The folders of installed packages by the names of their entry points.

        No code of theirs is run: the folder of a package is found without an import.
        """
        from importlib.machinery import PathFinder
        from importlib.metadata import entry_points

        found: dict[str, Path] = {}
        for entry in sorted(entry_points(group=SITES)):
            top, *below = entry.value.split(".")
            spec = PathFinder.find_spec(top)
            for folder in (spec and spec.submodule_search_locations) or ():
                root = Path(folder, *below)
                if self._is_folder(root, root):
                    found.setdefault(entry.name, root)
        return found

    def _is_folder(self, folder: Path, trust: Path) -> bool:
        """Whether a folder may be used; of templates, all files must be safe."""
        inside = _inside(folder) if folder.name == "templates" else ()
        return isdir(folder) and self._counts(folder, trust, [("it", folder), *inside])  # noqa: PTH112

    @functools.cached_property
    def _roots(self) -> dict[Path, Path]:
        """The folders that may hold `profiles` and `templates`, each with the folder to trust for it."""
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
        """Whether something may be used: only the user can write its parts, or its folder is trusted."""
        from sbatchgen.inputs.trust import doubt  # most people have no files of their own

        for subject, part in parts:
            if told := doubt(part):
                if self._trusts(trust):
                    return True
                if what not in _left_out:
                    name = what if what == trust else what.relative_to(trust)
                    fix = self._fix(part, trust)
                    _left_out[what] = Problem(f"ignored {name}: {subject} {told}", str(what.absolute()), fix)
                return False
        return True

    def _fix(self, part: Path, trust: Path) -> str:
        """What to do so that something is used: take the right to write from others, or trust its folder."""
        from sbatchgen.inputs.trust import chmod_helps
        from sbatchgen.quoting import word

        before = f"${TRUST}:" if self.environment.get(TRUST) or _left_out else ""
        fix = f"to trust it, export {TRUST}={before}{word(str(trust.absolute()))}"
        return f"chmod go-w {word(str(part))}, or {fix}" if chmod_helps(part) else fix

    def _trusts(self, folder: Path) -> bool:
        """Whether SBATCHGEN_TRUST names this very folder, not one above it."""
        entries = [entry for entry in self.environment.get(TRUST, "").split(":") if entry]
        here = os.path.realpath(folder)
        return "*" in entries or any(os.path.realpath(self.folder / one) == here for one in entries)

    @functools.cached_property
    def cache(self) -> Path | None:
        """The folder for caches; None without a home."""
        home = self.environment.get("HOME", "")
        root = self.environment.get("XDG_CACHE_HOME") or (f"{home}/.cache" if home else "")
        return Path(root) / "sbatchgen" if root.startswith("/") else None

    def profiles(self) -> Iterator[tuple[str, Path]]:
        """Name and file of every profile; the first one of a name is used."""
        first = self.folders("profiles")
        rest = [folder for folder in self.folders("profiles") if folder not in first] if self.sites else []
        for folder in (*first, *rest):
            for file in sorted(folder.glob("*.yaml")):
                if self._is_profile(file):
                    yield file.stem, file

    def _is_profile(self, file: Path) -> bool:
        root = file.parents[1]
        trust = root if root in vars(self).get("sites", {}).values() else self._roots.get(root)
        return isfile(file) and (trust is None or self._counts(file, trust, [("it", file)]))  # noqa: PTH113

    def profile(self, name: str) -> Path:
        """The file of a profile, by name or by path.

        Raises:
            DocumentError: There is none.
        """
        if is_file_name(name):
            path = self.folder / name
            if not path.is_file():
                raise DocumentError.of(f"no profile at {path}", fix="give a profile's name or its file")
            return Path(name)
        if file := self._profile(name) or (self._profile(name) if name and self.sites else None):
            return file
        folders = ", ".join(map(str, self.folders("profiles")))
        what = f"no profile '{name}' in {folders}"
        for beside in (f"./{name}.yaml", f".sbatchgen/profiles/{name}.yaml"):
            if (self.folder / beside).is_file():
                raise DocumentError.of(what, fix=f"name its file: {beside}")
        raise DocumentError.of(what, fix=did_you_mean(name, dict(self.profiles())))

    def _profile(self, name: str) -> Path | None:
        """The file of a profile in the folders that are known so far."""
        files = (folder / f"{name}.yaml" for folder in self.folders("profiles") if name)
        return next((file for file in files if self._is_profile(file)), None)


def _inside(folder: Path) -> Iterator[tuple[str, Path]]:
    """Every file and folder in a folder, with what to call it."""
    seen: set[str] = set()
    for here, folders, files in os.walk(folder, followlinks=True):
        if (real := os.path.realpath(here)) in seen:  # links may lead in a circle
            folders.clear()
            continue
        seen.add(real)
        for name in (*folders, *files):
            path = Path(here) / name
            yield f"{path.relative_to(folder)} in it", path
