"""Wheel, wheel from sdist and editable install find everything, and nothing else gets installed."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from sbatchgen import __version__
from tests.conftest import REPOSITORY

FOLDERS = {
    "sbatchgen": "sbatchgen",
    "templates": "sbatchgen/templates",
    "profiles": "sbatchgen/profiles",
    "schemas": "sbatchgen/schemas",
    "training": "sbatchgen/code/training",
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
    expected |= {
        f"{info}/{name}" for name in ("METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE")
    }
    assert set(zipfile.ZipFile(wheels[source]).namelist()) == expected


def environment(folder: Path) -> Path:
    """The Python of a new environment that sees the libraries of this one, but not this sbatchgen."""
    run(sys.executable, "-m", "venv", "--without-pip", str(folder))
    libraries = folder / "libraries"
    libraries.mkdir()
    for name in ("click", "jinja2", "yaml", "markupsafe", "_yaml", "editables"):
        printed = run(
            sys.executable,
            "-c",
            f"import importlib.util as u; print(u.find_spec('{name}').submodule_search_locations[0])",
        ).strip()
        (libraries / name).symlink_to(printed)
    site = next((folder / "lib").glob("python*/site-packages"))
    (site / "libraries.pth").write_text(f"{libraries}\n")
    return folder / "bin" / "python"


def editable(folder: Path) -> Path:
    """The wheel that `pip install --editable` makes and installs."""
    build = f"import hatchling.build as b; print(b.build_editable({str(folder)!r}))"
    return folder / run(sys.executable, "-c", build).strip()


@pytest.mark.slow
@pytest.mark.parametrize("source", ["checkout", "sdist", "editable"])
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
    for profile in sorted(path.stem for path in (REPOSITORY / "profiles").glob("*.yaml")):
        script = run(command, "render", "ddp", "--profile", profile, cwd=empty)
        code = next(line for line in script.splitlines() if line.startswith("CODE_DIR=")).split('"')[1]
        assert (Path(code) / "training" / "__main__.py").is_file()
        if source != "editable":
            assert [path.name for path in Path(code).iterdir()] == ["training"]
    outside = "import importlib.util as u; assert u.find_spec('training') is None"
    run(str(python), "-c", outside, cwd=empty)
    assert list(empty.iterdir()) == []
