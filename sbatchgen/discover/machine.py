"""Programs and interfaces of this machine, most likely a login node; compute nodes may differ."""

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from sbatchgen.slurm.printed import count

_CONDA_ROOTS = ("/opt/conda", "/opt/miniconda3", "/opt/miniforge3", "/opt/anaconda3", "/usr/local/miniconda3")
_INFINIBAND = "32"  # ARPHRD_INFINIBAND of Linux
_FAST_MBIT = 25_000


def programs(environment: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield each program that runs containers, with its path; "" if it is not here."""
    for name in ("apptainer", "singularity", "enroot"):
        yield name, shutil.which(name, path=environment.get("PATH")) or ""


def conda_roots(environment: Mapping[str, str]) -> list[str]:
    """Return the installations of conda."""
    conda = environment.get("CONDA_EXE") or shutil.which("conda", path=environment.get("PATH"))
    named = [str(Path(conda).parent.parent)] if conda else []
    return [*dict.fromkeys([*named, *(root for root in _CONDA_ROOTS if Path(root, "bin/conda").exists())])]


def modules(environment: Mapping[str, str]) -> str:
    """Return the program that provides `module`; "" if there is no such program."""
    if version := environment.get("LMOD_VERSION"):
        return f"Lmod {version}"
    return "environment modules" if environment.get("MODULESHOME") or environment.get("LMOD_CMD") else ""


def fast_interfaces(folder: Path = Path("/sys/class/net")) -> list[str]:
    """Return interfaces for traffic between nodes: InfiniBand, Slingshot, or fast Ethernet that is up."""
    try:
        names = sorted(entry.name for entry in folder.iterdir())
    except OSError:
        return []
    return [name for name in names if _is_fast(folder / name)]


def _is_fast(interface: Path) -> bool:
    if interface.name.startswith(("docker", "veth", "br-", "lo", "virbr")):
        return False
    if _read(interface / "type") == _INFINIBAND or interface.name.startswith(("ib", "hsn")):
        return True
    speed = _read(interface / "speed")
    up = _read(interface / "operstate") == "up"
    return up and count(speed) >= _FAST_MBIT


def _read(file: Path) -> str:
    try:
        return file.read_text(errors="replace").strip()
    except OSError:  # an interface that is down has no speed
        return ""
