"""Writes the folder of a page: static files that any web server can serve."""

import hashlib
import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from sbatchgen import __version__
from sbatchgen.base.errors import DocumentError, SbatchgenError
from sbatchgen.base.frozen import frozen
from sbatchgen.base.machine.temporary import temporary_folder
from sbatchgen.jobs.inputs.document import read_document
from sbatchgen.jobs.inputs.profile import Profile
from sbatchgen.jobs.inputs.search import bundled
from sbatchgen.lab.page.form import model
from sbatchgen.lab.page.packing import Note, pack
from sbatchgen.lab.page.site import FILES, Site, strings_of

MARK = ".sbatchgen-page"  # a file that marks a folder as a page, so that this module may replace the folder
PLACE = "/sbatchgen"  # the folder of the package in the browser, unless the centre names its own
_LIBRARIES = "/lib/python3.14/site-packages"  # the folder of libraries in the browser's Python
_STATIC_FILES = ("page.js", "page.css", "worker.js", "python.js")
# Folders of the package for commands that the page does not have.
_UNUSED_FOLDERS = {"editor", "page", "rehearsal", "discover", "prepare", "__pycache__"}
_WHEEL_FOLDERS = ("templates", "profiles", "schemas", "code")  # folders that the package has only in a wheel


class PackedFile(NamedTuple):
    """A file that Python needs in the browser."""

    path: str  # its path in the browser
    source: str  # its path on this machine
    keeps_docstrings: bool


@frozen(kw_only=True)
class PageInputs:
    """The inputs of a page."""

    profiles: Sequence[Path]  # the files of its profiles
    site: Site  # the settings of the centre
    site_file: Path | None  # the file of these settings; None without a file
    packages: Path  # the folder of npm's packages: see `site.packages_folder`
    cache: Path | None  # a folder for compressed files, which only this user can write
    quality: int = 11  # the quality of Brotli's compression; 11 is the slowest, and gives the smallest files
    note: Note = field(default=lambda _: None)  # prints a line about the progress


def write(page: PageInputs, to: Path) -> None:
    """Write a page into the folder `to`, in place of a page that this function wrote there earlier.

    Raises DocumentError if the folder holds other files, if a profile is wrong, or if Node.js fails.
    """
    if _is_foreign(to):
        raise _refusal(to)
    to.parent.mkdir(parents=True, exist_ok=True)
    with temporary_folder(".sbatchgen-page-", within=to.parent) as folder:
        new_page = folder / "page"
        new_page.mkdir()
        _pack_python(page, new_page)
        _write_texts(page, new_page)
        (new_page / MARK).write_text(f"{__version__}\n")
        new_page.chmod(0o755)
        if to.exists():
            # Another user may have put other files there since the first check. No other user can write into
            # `folder`, so the second check is final.
            old_page = folder / "old"
            to.rename(old_page)
            if _is_foreign(old_page):
                old_page.rename(to)
                raise _refusal(to)
        new_page.rename(to)


def _is_foreign(folder: Path) -> bool:
    """Return whether a path exists and is neither a page nor an empty folder."""
    is_page = (folder / MARK).is_file()
    return folder.exists() and not is_page and (not folder.is_dir() or any(folder.iterdir()))


def _refusal(to: Path) -> SbatchgenError:
    """Return the error for a folder that holds other files than a page."""
    what = f"{to} has files that are not those of a page"
    return DocumentError.of(what, at="--to", fix="name another folder, or empty this one")


def _write_texts(page: PageInputs, new_page: Path) -> None:
    """Write the HTML, JavaScript and logo of a page into the folder `new_page`."""
    import jinja2

    profiles = {file.stem: read_document(file, Profile).value for file in page.profiles}
    strings = strings_of(page.site, page.site_file)
    logo = ""
    if page.site.logo and page.site_file:
        source = page.site_file.parent / page.site.logo
        logo = f"logo{source.suffix}"
        shutil.copyfile(source, new_page / logo)
    for name in _STATIC_FILES:
        shutil.copyfile(FILES / name, new_page / name)
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(FILES), autoescape=True, undefined=jinja2.StrictUndefined
    )
    values = {"site": page.site, "t": strings, "logo": logo}
    form = model(profiles, strings, has_code=page.site.code is not None)
    (new_page / "index.html").write_text(environment.get_template("index.html.j2").render(values, model=form))
    files = sorted(str(file.relative_to(new_page)) for file in new_page.rglob("*") if file.is_file())
    digest = hashlib.sha256(b"".join((new_page / name).read_bytes() for name in files)).hexdigest()[:16]
    # The digest gives each change of a file a new version, so that browsers load the files again.
    service_worker = environment.from_string((FILES / "sw.js").read_text())
    (new_page / "sw.js").write_text(service_worker.render(version=f"sbatchgen-{digest}", files=files))


def _pack_python(page: PageInputs, new_page: Path) -> None:
    """Write Python and its files into the folder `new_page`, in the form that a browser loads."""
    with temporary_folder("sbatchgen-page-") as folder:
        root = str(page.site.code or PLACE)
        root_file = folder / "place"
        root_file.write_text(root)
        packing_list: dict[str, Any] = {
            "packages": str(page.packages.absolute()),
            "cache": str(page.cache.absolute() if page.cache else folder / "compressed"),
            "to": str(new_page.absolute()),
            "quality": page.quality,
            "files": [("/place", str(root_file), False), *_files(page.profiles, root)],
        }
        file = folder / "packing.json"
        file.write_text(json.dumps(packing_list))
        pack(file, page.note)
    for unfinished in new_page.rglob("*.new"):  # files that Node.js was still writing when `pack` ended it
        unfinished.unlink()


def _files(profiles: Sequence[Path], root: str) -> Iterator[PackedFile]:
    """Yield the files that Python needs: the package, its data, its libraries, and the page's profiles.

    `root` is the folder of the package in the browser. Only the modules of `cli` keep their docstrings, which
    are the help texts.
    """
    package = Path(__file__).parents[2]
    for file in sorted(package.rglob("*")):
        parts = file.relative_to(package).parts
        if file.suffix in (".py", ".md", ".txt", ".yaml") and not _UNUSED_FOLDERS & {*parts}:
            below_package = "/".join(parts)
            if parts[0] not in _WHEEL_FOLDERS:
                yield PackedFile(f"{root}/sbatchgen/{below_package}", str(file), parts[0] == "cli")
    yield from _files_below(bundled("templates"), f"{root}/templates", ".j2")
    for file in profiles:
        is_bundled = file.resolve().parent == bundled("profiles").resolve()
        path = f"{root if is_bundled else '/site'}/profiles/{file.name}"
        yield PackedFile(path, str(file.absolute()), keeps_docstrings=False)
        site_templates = file.absolute().parents[1] / "templates"
        if not is_bundled and file.absolute().parent.name == "profiles" and site_templates.is_dir():
            yield from _files_below(site_templates, "/site/templates", ".j2")
    for name in ("click", "jinja2", "markupsafe", "yaml"):
        spec = find_spec(name)
        assert spec is not None  # noqa: S101 - sbatchgen needs them
        assert spec.origin is not None  # noqa: S101
        yield from _files_below(Path(spec.origin).parent, f"{_LIBRARIES}/{name}", ".py")
    for name in ("tree_sitter", "tree_sitter_bash", "sbatchgen_in_browser"):
        source = str(FILES / f"python/{name}.py")
        yield PackedFile(f"{_LIBRARIES}/{name}.py", source, keeps_docstrings=False)


def _files_below(folder: Path, to: str, suffix: str) -> Iterator[PackedFile]:
    """Yield the files below a folder whose names end with `suffix`, for the folder `to` in the browser."""
    for file in sorted(folder.rglob(f"*{suffix}")):
        path = f"{to}/{file.relative_to(folder)}"
        yield PackedFile(path, str(file.absolute()), keeps_docstrings=False)
