"""The loading of a container image's libraries into memory, because the image's file system may end early.

Without setuid, Apptainer mounts a .sif file by squashfuse, which is a process of the step. pyxis with
use_squashfuse=1 does the same. Slurm may signal all processes of a step (with proctrack/linuxproc, or by
scancel --full). Then SIGTERM ends squashfuse at once, and the next access to a page of a library that is not
in memory is a bus error, for example in the middle of the last save.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

from training.processes import proc

APPTAINER = ("APPTAINER_CONTAINER", "SINGULARITY_CONTAINER")  # variables with the image in Apptainer
ENROOT = re.compile(r"[ ,]lowerdir=[^,:]*/overlay/lower,")  # the place of an image that Enroot mounts
POPULATE_READ, WILL_NEED = 22, 3  # advice for madvise(2); Linux has POPULATE_READ since 5.14
CHUNK = 4 << 20  # bytes of one call, during which an mmap of another thread waits


def keep() -> threading.Thread:
    """Start a thread that reads the image's libraries of this process into memory; return the thread.

    Pages that are already in memory cost nothing. If no process such as squashfuse mounts the image, the
    thread ends at once.
    """
    parts = [*mapped(_lines("maps"), _lines("mountinfo"))] if is_mounted() else []
    thread = threading.Thread(target=_read, args=(parts,), name="resident pages", daemon=True)
    thread.start()
    return thread


def is_mounted() -> bool:
    """Return whether a process such as squashfuse may mount the root folder of this process."""
    return in_image(os.environ, _lines("mountinfo"))


def in_image(environ: Mapping[str, str], mounts: list[str]) -> bool:
    """Return whether a process may mount the root folder, by variables and by `mounts`, lines of mountinfo.

    An overlay hides the mount below it. Apptainer and Enroot put an overlay over squashfuse, and other
    runtimes put an overlay over folders. No process mounts an image that is a folder.
    """
    images = [environ[name] for name in APPTAINER if environ.get(name)]
    if any(Path(image).is_dir() for image in images):
        return False
    roots = [line for line in mounts if _mount(line)[1] == "/"]
    if not roots:
        return False
    kind = _mount(roots[-1])[2]
    return kind.startswith("fuse") or (kind == "overlay" and bool(images or ENROOT.search(roots[-1])))


def mapped(maps: list[str], mounts: list[str]) -> Iterator[tuple[int, int]]:
    """Yield the address and the length of each mapping of the image's libraries.

    `maps` and `mounts` are the lines of the files maps and mountinfo. Data files are excluded, because they
    may be too large to read. Before Linux 6.8, a file in an overlay may have the device of the file below it,
    which no mount here has. Enroot mounts parts of the image onto itself.
    """
    devices = {place: device for device, place, _ in map(_mount, mounts)}
    others = {*devices.values()} - {devices.get("/")}
    mappings = [line.split(maxsplit=5) for line in maps]
    libraries = {fields[5] for fields in mappings if len(fields) > 5 and "x" in fields[1]}
    for fields in mappings:
        if len(fields) < 6 or fields[5] not in libraries or not fields[5].startswith("/"):
            continue
        device = ":".join(str(int(number, 16)) for number in fields[3].split(":"))
        if fields[1].startswith("r") and device not in others:
            start, end = (int(address, 16) for address in fields[0].split("-"))
            yield start, end - start


def _read(parts: list[tuple[int, int]]) -> None:
    """Read parts of the memory; skip a part that can't be read, such as after the end of a file."""
    if not parts:
        return
    advise = ctypes.CDLL(None, use_errno=True).madvise
    advise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    for start, length in parts:
        for offset in range(0, length, CHUNK):
            part = start + offset, min(CHUNK, length - offset)
            if advise(*part, POPULATE_READ) and ctypes.get_errno() == errno.EINVAL:  # an older Linux
                advise(*part, WILL_NEED)


def _mount(line: str) -> tuple[str, str, str]:
    """Return the device, the mount point and the type in a line of mountinfo (proc_pid_mountinfo(5))."""
    fields, _, more = line.partition(" - ")
    return fields.split()[2], fields.split()[4], more.split()[0]


def _lines(name: str) -> list[str]:
    """Return the lines of a file of this process in /proc; empty if the file can't be read."""
    return proc.read(os.getpid(), name).splitlines()
