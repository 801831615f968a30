"""The packages of npm that the page is made of: Pyodide, tree-sitter, its grammar of bash, and mvdan/sh."""

import hashlib
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from sbatchgen.errors import CommandLineError, DocumentError
from sbatchgen.extras.page.site import FILES

NAMES = ("pyodide", "web-tree-sitter", "tree-sitter-bash", "sh-syntax")
_SECONDS = 300


def installed(named: Path | None, cache: Path | None, note: Callable[[str], object]) -> Path:
    """Return the folder that holds the packages: the one that is named, or one that npm fills.

    npm compares each package with the digest in package-lock.json, and runs no script of a package. `note`
    shows that it takes long. Raises CommandLineError: a package is not there; DocumentError: npm is not
    installed, or failed.
    """
    if named:
        for name in NAMES:
            if not (named / name / "package.json").is_file():
                fix = f"npm ci --ignore-scripts in a copy of {FILES}, and name its node_modules"
                raise CommandLineError.of(f"there is no package {name} in {named}", at="--packages", fix=fix)
        return named
    if cache is None:
        what = "there is no folder of your own for npm's packages"
        raise DocumentError.of(what, fix="name a folder: --packages FOLDER")
    lock = (FILES / "package-lock.json").read_bytes()
    folder = cache / f"page-{hashlib.sha256(lock).hexdigest()[:16]}"
    if not (folder / "complete").exists():
        note("note: loading the packages of the page with npm, once")
        _install(folder)
        (folder / "complete").touch()
    return folder / "node_modules"


def _install(folder: Path) -> None:
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        what = "the page is made with Node.js, and there is no npm here"
        raise DocumentError.of(what, fix="install Node.js 18 or newer, or make the page on another machine")
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("package.json", "package-lock.json"):
        shutil.copyfile(FILES / name, folder / name)
    words = [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--prefer-offline"]
    what = "npm could not load the packages of the page"
    try:
        subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=_SECONDS, check=True)
    except subprocess.CalledProcessError as error:
        last = "; ".join(error.stderr.strip().splitlines()[-3:])
        fix = "see what npm says, or load them elsewhere and name the folder: --packages node_modules"
        raise DocumentError.of(f"{what}: {last}", fix=fix) from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise DocumentError.of(f"{what}: {error}") from error
