"""A stand-in for NVIDIA's pyxis, Slurm's plugin for Enroot: see pyxis.c, which is compiled here."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from pathlib import Path

SOURCE = Path(__file__).with_suffix(".c")
COMPILER = ("gcc", "-std=gnu11", "-Wall", "-Wextra", "-Werror")


def why_not() -> str | None:
    """What this machine lacks to compile a plugin of Slurm, or None."""
    command = [*COMPILER, "-fsyntax-only", "-x", "c", "-"]
    include = "#include <stdlib.h>\n#include <slurm/spank.h>\n"
    try:
        done = subprocess.run(command, check=False, capture_output=True, text=True, input=include)
    except FileNotFoundError:
        return "needs gcc (the Debian packages gcc and libc6-dev)"
    said = done.stderr.strip().partition("\n")[0]
    return f"needs slurm/spank.h (the Debian packages libslurm-dev and libc6-dev): {said}" if said else None


def build(folder: Path, *, contents: Iterable[Path], nvidia: Iterable[str], slurm: Path | None = None) -> str:
    """The lines of plugstack.conf that load the plugin, which is compiled into an empty folder.

    In the folder, `store` holds the containers of each node.

    Args:
        folder: Must be in sight of all nodes.
        contents: Paths that every image holds, where they are on the nodes: an interpreter with torch.
        nvidia: The nodes that have NVIDIA's tools, which a container with GPUs needs.
        slurm: The folder of the system whose Slurm loads the plugin: it takes only one made for its release.
    """
    plugin = folder / "pyxis.so"
    for name in ("root", "store", "nvidia"):
        (folder / name).mkdir()
    for node in nvidia:
        (folder / "nvidia" / node).touch()
    compile_plugin(SOURCE, plugin, slurm)
    settings = [f"{name}={folder / name}" for name in ("root", "store", "nvidia")]
    settings += [f"contents={path}" for path in contents]
    return " ".join(["required", str(plugin), "home={site}/home", *settings]) + "\n"


def compile_plugin(source: Path, plugin: Path, slurm: Path | None = None) -> None:
    """Compile a plugin for this machine's Slurm, or for that of another system's folder."""
    headers = [f"-I{slurm}/usr/include"] if slurm else []
    subprocess.run([*COMPILER, *headers, "-shared", "-fPIC", "-o", str(plugin), str(source)], check=True)
