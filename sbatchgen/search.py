"""Finds profiles, templates and the project's sbatchgen.yaml by name; knows where the bundled ones lie."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from sbatchgen.errors import DocumentError, did_you_mean

PROJECT_FILE = "sbatchgen.yaml"


@functools.cache
def bundled(kind: str) -> Path:
    """The folder of bundled `templates`, `profiles` or `code`: in the package of a wheel, else beside it."""
    inside, checkout = Path(__file__).parent / kind, Path(__file__).parents[1]
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
        """The sbatchgen.yaml of this folder or of its nearest parent that has one."""
        for folder in (self.folder, *self.folder.parents):
            if (folder / PROJECT_FILE).is_file():
                return folder / PROJECT_FILE
        return None

    def folders(self, kind: str) -> list[Path]:
        """Folders of `profiles` or `templates`, the first to look in first, the bundled one last."""
        if kind not in self._found:
            self._found[kind] = [*(root / kind for root in self._roots), bundled(kind)]
        return self._found[kind]

    @functools.cached_property
    def _found(self) -> dict[str, list[Path]]:
        return {}

    @functools.cached_property
    def _roots(self) -> list[Path]:
        env, project = self.environment, self.project
        home = env.get("HOME", "")
        roots = [Path(entry) for entry in env.get("SBATCHGEN_PATH", "").split(":") if entry]
        if project:
            roots.append(project.parent / ".sbatchgen")
        config = env.get("XDG_CONFIG_HOME") or (f"{home}/.config" if home else "")
        shared = env.get("XDG_CONFIG_DIRS") or "/etc/xdg"
        return roots + [Path(entry) / "sbatchgen" for entry in (config, *shared.split(":")) if entry]

    @functools.cached_property
    def cache(self) -> Path | None:
        """The folder of what may be kept between two commands; None where there is no home."""
        home = self.environment.get("HOME", "")
        root = self.environment.get("XDG_CACHE_HOME") or (f"{home}/.cache" if home else "")
        return Path(root) / "sbatchgen" if root.startswith("/") else None

    def profiles(self) -> Iterator[tuple[str, Path]]:
        """Every profile that can be found, name and file; the first of a name is the one that counts."""
        for folder in self.folders("profiles"):
            for file in sorted(folder.glob("*.yaml")) if folder.is_dir() else ():
                yield file.stem, file

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
        found: dict[str, Path] = {}
        for known, file in self.profiles():
            found.setdefault(known, file)
        if name not in found:
            raise DocumentError.of(f"no profile '{name}'", fix=did_you_mean(name, found))
        return found[name]
