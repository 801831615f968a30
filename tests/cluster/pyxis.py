"""A stand-in for NVIDIA's pyxis, Slurm's plugin for Enroot: see pyxis.c, which is compiled here.

With PYXIS_BUILT, as pyxis.sh sets it, the real ones are used in its place.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable
from pathlib import Path

from . import enroot
from .slurm import Cluster

BUILT = os.environ.get("PYXIS_BUILT", "")  # the folder of the real ones
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


def build(
    folder: Path,
    *,
    contents: Iterable[Path],
    nvidia: Iterable[str],
    slurm: Path | None = None,
    squashfuse: bool = False,
) -> str:
    """The lines of plugstack.conf that load the plugin, which is compiled into an empty folder.

    In the folder, `store` holds the containers of each node.

    Args:
        folder: Must be in sight of all nodes.
        contents: Paths that every image holds, where they are on the nodes: an interpreter with torch.
        nvidia: The nodes that have NVIDIA's tools, which a container with GPUs needs.
        slurm: The folder of the system whose Slurm loads the plugin: it takes only one made for its release.
        squashfuse: Whether the real one is to mount images, not to unpack them.
    """
    plugin = folder / "pyxis.so"
    for name in ("root", "store", "nvidia"):
        (folder / name).mkdir()
    for node in nvidia:
        (folder / "nvidia" / node).touch()
    if BUILT:
        return enroot.settings(Path(BUILT), folder, contents=contents, squashfuse=squashfuse)
    compile_plugin(SOURCE, plugin, slurm)
    settings = [f"{name}={folder / name}" for name in ("root", "store", "nvidia")]
    settings += [f"contents={path}" for path in contents]
    return " ".join(["required", str(plugin), "home={site}/home", *settings]) + "\n"


def compile_plugin(source: Path, plugin: Path, slurm: Path | None = None) -> None:
    """Compile a plugin for this machine's Slurm, or for that of another system's folder."""
    headers = [f"-I{slurm}/usr/include"] if slurm else []
    subprocess.run([*COMPILER, *headers, "-shared", "-fPIC", "-o", str(plugin), str(source)], check=True)


def put_image(cluster: Cluster, name: str, environment: dict[str, str], more: str = "") -> None:
    """Make an image with these variables; `more` is what else pyxis.c reads of IMAGE.env."""
    if BUILT:
        workdir = more.partition("workdir ")[2].partition("\n")[0]
        enroot.put_image(cluster, name, environment, workdir or "/")
    else:
        cluster.put(name, "squashfs, to the end")
    variables = "".join(f"{key}={value}\n" for key, value in environment.items())
    cluster.put(f"{name}.env", variables + more)


def put_broken_images(cluster: Cluster, whole: str, *, truncated: str, damaged: str) -> None:
    """Make an image that ends too early, and an empty file."""
    cluster.put(truncated, "squashfs")
    cluster.put(damaged, "")
    if BUILT:
        content = (cluster.home / whole).read_bytes()
        (cluster.home / truncated).write_bytes(content[: len(content) // 2])
