"""The search for profiles, templates and the project's sbatchgen.yaml.

Templates, and the `setup` of profiles and of sbatchgen.yaml, become part of a script that the user runs. So
the search ignores a file if other users can write it, unless the user trusts its folder (`sbatchgen trust`,
SBATCHGEN_TRUST). A file that the user names is always used.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from os.path import isdir, isfile  # Path's methods raise for a too long name, or a folder without permission
from pathlib import Path

from sbatchgen.base.errors import DocumentError, nearest
from sbatchgen.base.machine.ignored import note_ignored, why_ignored
from sbatchgen.base.quoting import word

PROJECT_FILE = "sbatchgen.yaml"
# The group of entry points of installed packages that hold `profiles` and `templates`.
SITES = "sbatchgen.sites"


@functools.cache
def bundled(kind: str) -> Path:
    """Return the folder of bundled `templates`, `profiles` or `code`.

    A wheel has the folder inside the package, and a checkout has it next to the package.
    """
    package = Path(__file__).parents[2]
    wheel_folder, checkout = package / kind, package.parent
    if wheel_folder.is_dir():
        return wheel_folder
    return checkout if kind == "code" else checkout / kind  # `training` is at the top of a checkout


def short_place(where: str, folder: Path) -> str:
    """Return a `file:line` without the start that is `folder`, or the folder of the bundled files."""
    return where.removeprefix(f"{folder}/").removeprefix(f"{bundled('templates').parent}/")


def is_file_name(profile: str) -> bool:
    """Return whether `profile` is the path of a file, not a name to search for."""
    return "/" in profile or profile.endswith((".yaml", ".yml"))


def profile_named_in(file: Path, profile: str) -> str:
    """Return a profile that `file` names, as a name, or as a path from the current folder.

    In `file` itself, a path is relative to the folder of `file`.
    """
    if not is_file_name(profile):
        return profile
    path = file.parent / profile
    # A file in the current folder needs ./, because a profile without a slash may be a name.
    return f"./{path}" if not path.is_absolute() and "/" not in str(path) else str(path)


_PLAIN_NAME = re.compile(r"[\w.-]{1,60}", re.ASCII)  # a profile's name that needs no quotes in a shell


class Places:
    """The search for files, in places that follow from the environment and the current folder."""

    def __init__(
        self, folder: Path, environment: Mapping[str, str], import_folders: dict[Path, Path] | None = None
    ) -> None:
        self.folder, self.environment = folder, environment
        # The folder of each installed package -> the folder from which Python imports the package.
        self._import_folders: dict[Path, Path] = {} if import_folders is None else import_folders

    @functools.cached_property
    def project(self) -> Path | None:
        """The sbatchgen.yaml of the current folder or of the nearest parent that has one; None without."""
        for folder in (self.folder, *self.folder.parents):
            file = folder / PROJECT_FILE
            if isfile(file) and self.is_safe(file, folder, [("its folder", folder), ("it", file)]):  # noqa: PTH113
                return file
        return None

    def folders(self, kind: str, sites: Mapping[str, Path] | None = None) -> list[Path]:
        """Return the folders of `profiles` or `templates` (`kind`) in the order of the search.

        `sites` are the folders of installed packages, by name. By default they are included only if the
        property `sites` has been read before, because it searches for packages, which is slow.
        """
        packages = vars(self).get("sites", {}) if sites is None else sites
        folders = self._usable_folders(kind, self._roots)
        of_packages = self._usable_folders(kind, {root: root for root in packages.values()})
        if kind == "profiles":
            return [*folders, bundled(kind), *of_packages]
        return [*folders, *of_packages, bundled(kind)]

    def _usable_folders(self, kind: str, roots: Mapping[Path, Path]) -> list[Path]:
        """Return the usable folders of a kind in `roots`, a mapping of folders to the folders to trust."""
        return [root / kind for root, trust in roots.items() if self._is_usable_folder(root / kind, trust)]

    def with_templates_of(self, profile: Path) -> Places:
        """Return places that search first in the folder `templates` next to a profile's folder `profiles`."""
        root = (self.folder / profile).absolute().parents[1]
        roots = (*self._roots, bundled("profiles").parent)
        if profile.parent.name != "profiles" or root in roots or not isdir(root / "templates"):  # noqa: PTH112
            return self
        path = f"{root}:{self.environment.get('SBATCHGEN_PATH', '')}"
        return Places(self.folder, {**self.environment, "SBATCHGEN_PATH": path}, self._import_folders)

    @functools.cached_property
    def sites(self) -> dict[str, Path]:
        """The folders of installed packages with profiles or templates, by the name of the entry point.

        No code of a package runs, because its folder is found without an import.
        """
        from importlib.machinery import PathFinder
        from importlib.metadata import entry_points

        sites: dict[str, Path] = {}
        for entry in sorted(entry_points(group=SITES)):
            top_package, *subpackages = entry.value.split(".")
            spec = PathFinder.find_spec(top_package)
            for folder in (spec and spec.submodule_search_locations) or ():
                root = Path(folder, *subpackages)
                self._import_folders[root] = Path(folder).absolute().parent
                if self._is_usable_folder(root, root):
                    sites.setdefault(entry.name, root)
        return sites

    def _is_usable_folder(self, folder: Path, trust: Path) -> bool:
        """Return whether a folder exists and is safe. In `templates`, each file must be safe as well."""
        contents = _contents(folder) if folder.name == "templates" else ()
        return isdir(folder) and self.is_safe(folder, trust, [("it", folder), *contents])  # noqa: PTH112

    @functools.cached_property
    def _roots(self) -> dict[Path, Path]:
        """The folders that may hold `profiles` and `templates`, each with the folder to trust."""
        entries = self.environment.get("SBATCHGEN_PATH", "").split(":")
        roots = {Path(entry): Path(entry) for entry in entries if entry}
        if self.project:
            roots.setdefault(self.project.parent / ".sbatchgen", self.project.parent)
        shared_folders = self.environment.get("XDG_CONFIG_DIRS") or "/etc/xdg"
        for entry in (self._user_folder("XDG_CONFIG_HOME", ".config"), *shared_folders.split(":")):
            if entry:
                roots.setdefault(Path(entry) / "sbatchgen", Path(entry) / "sbatchgen")
        return {root: trust for root, trust in roots.items() if self._is_usable_folder(root, trust)}

    def _user_folder(self, variable: str, default: str) -> str:
        """Return a folder of the user, such as ~/.config, or the folder in a variable; "" without a home."""
        from sbatchgen.base.files import user_folder  # not needed for --help

        return user_folder(self.environment, variable, default)

    def is_safe(self, file: Path, trust: Path, parts: Iterable[tuple[str, Path]]) -> bool:
        """Return whether a file may be used; if not, note the reason for a warning.

        A file may be used if only the user and root can write its `parts`, or if the user trusts the folder
        `trust`. Each part is a path, after its name in the warning.
        """
        start = self._import_folders.get(trust)
        reason = why_ignored(file, trust, parts, self.environment, current_folder=self.folder, start=start)
        if reason:
            note_ignored(*reason)
        return reason is None

    @functools.cached_property
    def cache(self) -> Path | None:
        """The folder for caches; None if the user has no home folder."""
        root = self._user_folder("XDG_CACHE_HOME", ".cache")
        return Path(root) / "sbatchgen" if root else None

    def profiles(self) -> Iterator[tuple[str, Path]]:
        """Yield the name and file of every profile; of several files with one name, the first is used."""
        for folder in self.folders("profiles", self.sites):
            for file in sorted(folder.glob("*.yaml")):
                if self._is_usable_profile(file):
                    yield file.stem, file

    def own_profiles(self) -> list[str]:
        """Return the profiles that are neither bundled nor from an installed package.

        A profile in ./profiles is given as its file, and any other profile as its name.
        """
        local_folder = self.folder / "profiles"
        has_local_folder = self._is_usable_folder(local_folder, self.folder)
        folders = [*self.folders("profiles"), *([local_folder] if has_local_folder else [])]
        words: dict[str, str] = {}  # name of a profile -> the word that names it on a command line
        for folder in (folder for folder in folders if folder.resolve() != bundled("profiles").resolve()):
            for file in sorted(folder.glob("*.yaml")):
                if self._is_usable_profile(file):
                    is_local = folder == local_folder
                    words.setdefault(file.stem, f"profiles/{file.name}" if is_local else file.stem)
        return [*words.values()]

    @property
    def new_profile(self) -> str:
        """The file to which the user's new profile is written."""
        root = self._user_folder("XDG_CONFIG_HOME", ".config") or "."
        return f"{root}/sbatchgen/profiles/mycluster.yaml"

    def own_copy(self, file: Path) -> Path:
        """Return the file in which the user can change the profile `file`.

        That is `file` itself. For a bundled profile or a profile of another user, it is the path for a copy.
        """
        is_bundled = file.parent.resolve() == bundled("profiles").resolve()
        is_of_other_user = file.stat().st_uid != os.getuid() and not os.access(file, os.W_OK)
        return Path(self.new_profile).with_name(file.name) if is_bundled or is_of_other_user else file

    def _is_usable_profile(self, file: Path) -> bool:
        """Return whether a file exists, and is safe to use as a profile."""
        root = file.parents[1]
        trust = self._roots.get(root, root)
        is_bundled = file.parent == bundled("profiles")
        return isfile(file) and (is_bundled or self.is_safe(file, trust, [("it", file)]))  # noqa: PTH113

    def profile(self, name: str) -> Path:
        """Return the file of a profile, by its name or path; raises DocumentError if there is no file."""
        if is_file_name(name):
            path = self.folder / name
            if not path.exists():
                raise DocumentError.of(f"no profile at {path}", fix="give a profile's name or its file")
            _refuse_other_kinds(name, self.folder)
            return Path(name)
        # Reading `self.sites` adds the folders of installed packages. It is slow, so it comes second.
        if file := self._file_of_profile(name) or (
            self._file_of_profile(name) if name and self.sites else None
        ):
            return file
        _refuse_other_kinds(name, self.folder)
        what = f"no profile '{name}' in {', '.join(map(str, self.folders('profiles')))}"
        for near in (f"./{name}.yaml", f".sbatchgen/profiles/{name}.yaml"):
            if (self.folder / near).is_file():
                raise DocumentError.of(what, fix=f"name its file: {near}")
        raise DocumentError.of(what, fix=self._fix_for_unknown_profile(name))

    def _fix_for_unknown_profile(self, name: str) -> str:
        """Return what to type for an unknown name: a similar name, or the command that makes a profile."""
        if near := nearest(name, [known for known, _ in self.profiles()], 0.66):
            return f"did you mean '{near}'?"
        file = Path(self.new_profile)
        new_name = name if _PLAIN_NAME.fullmatch(name) else file.stem
        new_file = word(str(file.with_name(f"{new_name}.yaml")))
        discover = f"sbatchgen profile discover --name {word(new_name)} --write {new_file}"
        return f"describe this cluster: {discover}; sbatchgen profile list shows the others"

    def _file_of_profile(self, name: str) -> Path | None:
        """Return the file of a profile in the folders that are known so far; None if no folder has it."""
        files = (folder / f"{name}.yaml" for folder in self.folders("profiles") if name)
        return next((file for file in files if self._is_usable_profile(file)), None)


def _refuse_other_kinds(name: str, folder: Path) -> None:
    """Raise DocumentError if a file with this name in a folder is not a profile, but for example a job."""
    from sbatchgen.base.wrong_file import wrong_kind

    if problem := wrong_kind(name, "profile", "profile", folder=folder):
        raise DocumentError([problem])


def _contents(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield every file and folder below a folder, each after its name in a warning: "job.sh.j2 in it"."""
    visited: set[str] = set()
    for parent, folders, files in os.walk(folder, followlinks=True):
        if (real := os.path.realpath(parent)) in visited:  # links may lead in a circle
            folders.clear()
            continue
        visited.add(real)
        for path in (Path(parent, name) for name in (*folders, *files)):
            yield f"{path.relative_to(folder)} in it", path
