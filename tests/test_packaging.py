"""Wheel, wheel from sdist and editable install find everything, and nothing else gets installed."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import zipfile
from importlib.metadata import distribution
from pathlib import Path

import pytest

from release import build, man
from sbatchgen import __version__
from sbatchgen.cli import guide
from tests.conftest import REPOSITORY
from tests.scripts import PROFILES

FOLDERS = {
    "sbatchgen": "sbatchgen",
    "templates": "sbatchgen/templates",
    "profiles": "sbatchgen/profiles",
    "schemas": "sbatchgen/schemas",
    "training": "sbatchgen/code/training",
    "docs/how-to": "sbatchgen/guide/how-to",
}


def tracked(folder: str) -> set[str]:
    """Files of a folder of the checkout that belong to the project."""
    files = (REPOSITORY / folder).rglob("*")
    return {
        str(path.relative_to(REPOSITORY / folder))
        for path in files
        if path.is_file() and path.suffix != ".pyc"
    }


def run(*command: str, cwd: Path = REPOSITORY) -> str:
    result = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The wheel of the checkout, and the wheel of its sdist."""
    direct, through = tmp_path_factory.mktemp("direct"), tmp_path_factory.mktemp("through")
    build = [sys.executable, "-m", "build", "--no-isolation", "-q", str(REPOSITORY)]
    run(*build, "--wheel", "--outdir", str(direct))
    run(*build, "--outdir", str(through))  # an sdist, and a wheel made of it
    return {"checkout": next(direct.glob("*.whl")), "sdist": next(through.glob("*.whl"))}


@pytest.mark.slow
@pytest.mark.parametrize("source", ["checkout", "sdist"])
def test_the_wheel_holds_exactly_this(wheels: dict[str, Path], source: str) -> None:
    info = f"sbatchgen-{__version__}.dist-info"
    expected = {f"{place}/{name}" for folder, place in FOLDERS.items() for name in tracked(folder)}
    expected |= {f"sbatchgen/guide/{page}.md" for page in guide.FIRST_PAGES}
    expected |= {
        f"{info}/{name}" for name in ("METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE")
    }
    expected |= {f"sbatchgen-{__version__}.data/data/share/man/man1/{page}" for page in man.pages()}
    assert set(zipfile.ZipFile(wheels[source]).namelist()) == expected


def environment(folder: Path) -> Path:
    """The Python of a new environment that sees the libraries of this one, but not this sbatchgen."""
    run(sys.executable, "-m", "venv", "--without-pip", str(folder))
    libraries = folder / "libraries"
    libraries.mkdir()
    for name in ("click", "jinja2", "yaml", "markupsafe", "_yaml", "editables"):
        place = run(
            sys.executable,
            "-c",
            f"import importlib.util as u; print(u.find_spec('{name}').submodule_search_locations[0])",
        ).strip()
        (libraries / name).symlink_to(place)
    site = next((folder / "lib").glob("python*/site-packages"))
    (site / "libraries.pth").write_text(f"{libraries}\n")
    return folder / "bin" / "python"


def editable(folder: Path) -> Path:
    """The wheel that `pip install --editable` makes and installs."""
    build = f"import hatchling.build as b; print(b.build_editable({str(folder)!r}))"
    return folder / run(sys.executable, "-c", build).strip()


@pytest.mark.slow
@pytest.mark.parametrize(
    "source", ["checkout", *(pytest.param(kind, marks=pytest.mark.proof) for kind in ("sdist", "editable"))]
)
def test_an_installed_command_renders_in_an_empty_folder(
    wheels: dict[str, Path], source: str, tmp_path: Path
) -> None:
    python = environment(tmp_path / "venv")
    wheel = wheels[source] if source in wheels else editable(tmp_path)
    install = [sys.executable, "-m", "pip", f"--python={python}", "install", "-q", "--no-deps", "--no-index"]
    run(*install, str(wheel))
    empty = tmp_path / "empty"
    empty.mkdir()
    command = str(python.parent / "sbatchgen")
    assert run(command, "--version", cwd=empty) == f"sbatchgen {__version__}\n"
    for profile in (*PROFILES, "lumi"):
        script = run(command, "render", "ddp", "--profile", profile, "--account", "a", cwd=empty)
        code = next(line for line in script.splitlines() if line.startswith("CODE_DIR=")).split('"')[1]
        assert (Path(code) / "training" / "__main__.py").is_file()
        if source != "editable":
            assert [path.name for path in Path(code).iterdir()] == ["training"]
    pages = {path.name for path in (tmp_path / "venv/share/man/man1").glob("*")}
    assert pages == ({*man.pages()} if source != "editable" else set())
    outside = "import importlib.util as u; assert u.find_spec('training') is None"
    run(str(python), "-c", outside, cwd=empty)
    assert list(empty.iterdir()) == []
    drawing = ("data", "mnist", "--to", "data", "--synthetic", "--train", "2", "--test", "1")
    assert "2 training and 1 test images" in run(command, *drawing, cwd=empty)


@pytest.fixture(scope="module")
def pyz(wheels: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The archive, with the compiled libraries of this environment."""
    folder = tmp_path_factory.mktemp("pyz")
    for name in build.COMPILED:
        with zipfile.ZipFile(folder / f"{name}.whl", "w") as wheel:
            for file in distribution(name).files or ():
                if ".." not in file.parts:
                    wheel.write(str(file.locate()), str(file))
    tag = f"cp3{sys.version_info.minor}-{os.uname().machine}"
    archive = folder / "sbatchgen.pyz"
    build.write_pyz(archive, wheels["checkout"], [(tag, wheel) for wheel in folder.glob("*.whl")])
    return archive


@pytest.mark.proof
@pytest.mark.slow
def test_the_archive_needs_nothing_but_python(pyz: Path, capsys: pytest.CaptureFixture[str]) -> None:
    build.try_pyz(sys.executable, pyz)
    assert capsys.readouterr().err == f"sbatchgen.pyz: used with {sys.executable}\n"


@pytest.mark.proof
@pytest.mark.slow
def test_the_archive_uses_no_folder_that_others_can_write(pyz: Path, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    environment = {"XDG_DATA_HOME": str(shared), "HOME": str(tmp_path)}
    command = [sys.executable, str(pyz), "--version"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (3, "")
    assert f": it is below {shared}, which can be written by everybody\n" in done.stderr
    shared.chmod(0o755)
    assert subprocess.check_output(command, env=environment, text=True) == f"sbatchgen {__version__}\n"
    assert [path.stat().st_mode & 0o777 for path in (shared / "sbatchgen").iterdir()] == [0o700]


def test_an_old_python_can_read_the_start_of_the_archive() -> None:
    text = (REPOSITORY / "release/start.py").read_text()
    assert ast.parse(text, feature_version=(3, 6))


def test_a_release_needs_an_entry_in_the_changelog() -> None:
    text = "# Changelog\n\n## [2.0] - 2026-01-02\n\n- b\n\n## [1.0] - 2026-01-01\n\n- a\n"
    assert build.changelog_entry(text, "2.0") == "## [2.0] - 2026-01-02\n\n- b\n"
    assert build.changelog_entry(text, "1.0").endswith("- a\n")
    with pytest.raises(SystemExit, match="no entry for 3"):
        build.changelog_entry(text, "3.0")
    assert build.changelog_entry((REPOSITORY / "CHANGELOG.md").read_text(), __version__)
