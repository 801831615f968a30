"""Reads the settings of a centre's page from a YAML file, and loads the page's packages with npm.

The packages are Pyodide, tree-sitter, its grammar of bash, and mvdan/sh.
"""

import hashlib
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from sbatchgen.base.errors import CommandLineError, DocumentError, did_you_mean
from sbatchgen.base.keys import described, record, required
from sbatchgen.base.machine import child, search_path
from sbatchgen.base.units import Text
from sbatchgen.jobs.inputs.document import read_document

FILES = Path(__file__).parent / "files"  # the sources of the page
PACKAGES = ("pyodide", "web-tree-sitter", "tree-sitter-bash", "sh-syntax")
_NPM_TIMEOUT_S = 300  # seconds in which npm must load the packages


@record
class Link:
    """A link at the top of the page."""

    text: Text = required("What it says.")
    url: Text = required("Where it leads.")


@record
class Site:
    """The settings of a centre's page."""

    title: Text | None = described("Name of the centre.")
    logo: Text | None = described("Picture, a file beside this one: .svg or .png.")
    language: Text = described("Language of the texts, for screen readers.", make=lambda: Text("en"))
    links: tuple[Link, ...] = described("Links at the top.", ())
    strings: Mapping[Text, Text] = described("Texts of the page that are replaced, by name.", make=dict)
    code: Text | None = described(
        "Folder at the centre that holds `training`, for jobs of the bundled trainer."
    )


def strings_of(site: Site, file: Path | None) -> dict[str, str]:
    """Return the texts of the page by name, some of them replaced by a centre.

    `file` is the file of the settings `site`. Raises DocumentError if the page has no text of such a name.
    """
    import yaml

    texts: dict[str, str] = yaml.safe_load((FILES / "strings.yaml").read_text())
    for name in site.strings:
        if name not in texts:
            fix = did_you_mean(name, texts)
            raise DocumentError.of(f"the page has no text '{name}'", at=f"{file}: strings", fix=fix)
    return texts | {str(name): str(text) for name, text in site.strings.items()}


def read_site(file: Path | None) -> Site:
    """Return the settings in a file, or the defaults without a file.

    Raises DocumentError if a value is wrong or the logo is missing.
    """
    site = read_document(file, Site).value if file else Site()
    if site.logo and file and not (file.parent / site.logo).is_file():
        raise DocumentError.of(f"there is no logo {file.parent / site.logo}", at=f"{file}: logo")
    for link in site.links:
        if not link.url.startswith(("https://", "http://", "/", "./", "../", "mailto:")):
            fix = "write https://..., or a path"
            raise DocumentError.of(f"'{link.url}' is not an address", at=f"{file}: links", fix=fix)
    return site


def packages_folder(named: Path | None, cache: Path | None, note: Callable[[str], object]) -> Path:
    """Return the folder of npm's packages: `named`, or a folder below `cache` that npm fills once.

    npm compares each package with the digest in package-lock.json, and runs no script of a package. `note`
    prints a line before npm loads packages. Raises CommandLineError if `named` lacks a package, and
    DocumentError if npm is not installed or fails.
    """
    if named:
        for name in PACKAGES:
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
    """Load the packages into a folder with npm; raise DocumentError if npm is not installed or fails."""
    if not (search_path.find("npm", os.environ) and search_path.find("node", os.environ)):
        what = "the page is made with Node.js, and there is no npm here"
        raise DocumentError.of(what, fix="install Node.js 18 or newer, or make the page on another machine")
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("package.json", "package-lock.json"):
        shutil.copyfile(FILES / name, folder / name)
    command = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--prefer-offline"]
    what = "npm could not load the packages of the page"
    try:
        done = child.run(command, os.environ, timeout=_NPM_TIMEOUT_S, folder=folder)
    except (OSError, child.LateError) as error:
        raise DocumentError.of(f"{what}: {error}") from error
    if done.returncode:
        last_lines = "; ".join(done.stderr.decode("utf-8", "replace").strip().splitlines()[-3:])
        fix = "see what npm says, or load them elsewhere and name the folder: --packages node_modules"
        raise DocumentError.of(f"{what}: {last_lines}", fix=fix)
