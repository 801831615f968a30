"""An image for Apptainer, as a folder: some programs of this machine, and its Python with torch at /opt/python.

Apptainer starts a folder at once; a file it has to mount, or to unpack at each start.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Mapping
from pathlib import Path

from .slurm import Cluster

PROGRAMS = ("bash", "cat", "env", "hostname", "id", "ls", "sh", "sleep", "touch")
PACKAGES = """
    torch torchgen functorch numpy numpy.libs typing_extensions.py sympy mpmath networkx jinja2 markupsafe filelock
    fsspec
""".split()
PATH = "/opt/python/bin:/usr/bin:/bin"
HEAVY = {
    "__pycache__",
    "ensurepip",
    "idlelib",
    "lib2to3",
    "site-packages",
    "test",
    "tkinter",
}  # and of no use


def make(cluster: Cluster, place: Path, environment: Mapping[str, str], *, torch: bool = True) -> None:
    """Make an image; nothing in it may be changed, for its files may be this machine's own.

    Args:
        cluster: One with Apptainer, whose user can reach the place.
        place: Where no file is.
        environment: What the image sets, beside its PATH.
        torch: Whether there is torch in it, and what that needs.
    """
    python = place / "opt/python"
    stdlib, interpreter = Path(sysconfig.get_path("stdlib")), Path(sys.executable).resolve()
    packages = python / "lib" / stdlib.name / "site-packages"
    libraries = place / "usr/lib" / sysconfig.get_config_var("MULTIARCH")
    variables = place / ".singularity.d/env/90-environment.sh"  # of %environment
    empty = place.with_name(f"{place.name}.empty")
    empty.mkdir()
    build(cluster, "--sandbox", place, empty)  # its own scripts, which set variables
    for name in ("usr/bin", "usr/lib64"):
        (place / name).mkdir(parents=True)
    for name in ("bin", "lib", "lib64"):
        (place / name).symlink_to(f"usr/{name}")
    for folder in (python / "bin", python / "lib/python3", packages, libraries):
        folder.mkdir(parents=True)
    (python / "lib/python3/dist-packages").symlink_to(
        f"../{stdlib.name}/site-packages"
    )  # Debian's Python reads
    (place / "etc/passwd").write_text("root:x:0:0::/root:/bin/sh\n")
    (place / "etc/group").write_text("root:x:0:\n")
    programs = [Path(shutil.which(name) or name) for name in PROGRAMS]
    needing = [*programs, interpreter, *stdlib.glob("lib-dynload/*.so")]
    parts = [path for path in stdlib.iterdir() if path.name not in HEAVY and "config-" not in path.name]
    _copy(parts, python / "lib" / stdlib.name)
    if torch:
        site = Path(sysconfig.get_path("purelib"))
        _copy((site / name for name in PACKAGES if (site / name).exists()), packages)
        needing += (site / "torch/lib").glob("*.so")
    for program in programs:
        shutil.copy(program, place / "usr/bin")
    shutil.copy(interpreter, python / "bin/python3")
    said = subprocess.run(["ldd", *needing], capture_output=True, text=True, check=True).stdout
    for library in sorted(set(re.findall(r"=> (/\S+)", said))):
        if "site-packages" not in library:
            shutil.copy(library, libraries)
    loader = re.search(r"^\t(/lib64/\S+) ", said, re.MULTILINE)
    if loader:
        shutil.copy(loader[1], place / "usr/lib64")
    lines = (f"export {name}={shlex.quote(value)}\n" for name, value in {"PATH": PATH, **environment}.items())
    variables.write_text("".join(lines))


def build(cluster: Cluster, *arguments: str | Path) -> None:
    """Run `apptainer build`."""
    cluster.root(["env", "HOME=/root", "apptainer", "build", *arguments])


def _copy(sources: Iterable[Path], folder: Path) -> None:
    """Fill a folder, with links where it is on the same disk."""
    folder.mkdir(parents=True, exist_ok=True)
    words = [*map(str, sources), str(folder)]
    if subprocess.run(["cp", "--archive", "--link", *words], capture_output=True, check=False).returncode:
        subprocess.run(["cp", "--archive", *words], check=True)
