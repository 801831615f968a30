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

APPTAINER_VARIABLES = ("APPTAINER_CONTAINER", "SINGULARITY_CONTAINER")  # each may hold the image's path
ENROOT_OVERLAY = re.compile(r"[ ,]lowerdir=[^,:]*/overlay/lower,")  # the root of an image that Enroot mounts
MADV_POPULATE_READ, MADV_WILLNEED = 22, 3  # advice for madvise(2); the first exists since Linux 5.14
CHUNK_BYTES = 4 << 20  # read by one call; calls are short, because mmap(2) of other threads waits for them


def keep_libraries() -> threading.Thread:
    """Start a thread that reads the image's libraries of this process into memory; return the thread.

    Pages that are already in memory cost nothing. If no process such as squashfuse mounts the image, the
    thread ends at once.
    """
    parts = [*library_mappings(_lines("maps"), _lines("mountinfo"))] if is_mounted() else []
    thread = threading.Thread(target=_load, args=(parts,), name="resident pages", daemon=True)
    thread.start()
    return thread


def is_mounted() -> bool:
    """Return whether a process such as squashfuse may mount the root folder of this process."""
    return is_root_mounted(os.environ, _lines("mountinfo"))


def is_root_mounted(environ: Mapping[str, str], mounts: list[str]) -> bool:
    """Return whether a process such as squashfuse may mount the root folder.

    `mounts` are the lines of /proc/PID/mountinfo. An overlay hides the mount below it. Apptainer and Enroot
    put an overlay over squashfuse, and other runtimes put an overlay over folders. No process mounts an image
    that is a folder.
    """
    images = [environ[name] for name in APPTAINER_VARIABLES if environ.get(name)]
    if any(Path(image).is_dir() for image in images):
        return False
    roots = [line for line in mounts if _mount(line)[1] == "/"]
    if not roots:
        return False
    kind = _mount(roots[-1])[2]
    return kind.startswith("fuse") or (kind == "overlay" and bool(images or ENROOT_OVERLAY.search(roots[-1])))


def library_mappings(maps: list[str], mounts: list[str]) -> Iterator[tuple[int, int]]:
    """Yield the address and the length of each mapping of the image's libraries.

    `maps` and `mounts` are the lines of the files in /proc/PID. Data files are excluded, because they may be
    too large to read. Files of other mounts are excluded by their device. A device that no mount has also
    belongs to the image: before Linux 6.8, a file in an overlay may have the device of the file below it.
    """
    devices = {mount_point: device for device, mount_point, _ in map(_mount, mounts)}
    # Enroot mounts parts of the image onto itself, so the device of the root also belongs to the image.
    other_devices = {*devices.values()} - {devices.get("/")}
    mappings = [line.split(maxsplit=5) for line in maps]
    libraries = {fields[5] for fields in mappings if len(fields) > 5 and "x" in fields[1]}
    for fields in mappings:
        if len(fields) < 6 or fields[5] not in libraries or not fields[5].startswith("/"):
            continue
        device = ":".join(str(int(number, 16)) for number in fields[3].split(":"))
        if fields[1].startswith("r") and device not in other_devices:
            start, end = (int(address, 16) for address in fields[0].split("-"))
            yield start, end - start


def _load(parts: list[tuple[int, int]]) -> None:
    """Load parts of the address space; skip a part that can't be read, such as after the end of a file."""
    if not parts:
        return
    advise = ctypes.CDLL(None, use_errno=True).madvise
    advise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    for start, length in parts:
        for offset in range(0, length, CHUNK_BYTES):
            part = start + offset, min(CHUNK_BYTES, length - offset)
            if advise(*part, MADV_POPULATE_READ) and ctypes.get_errno() == errno.EINVAL:  # an older Linux
                advise(*part, MADV_WILLNEED)


def _mount(line: str) -> tuple[str, str, str]:
    """Return the device, the mount point and the type in a line of mountinfo (proc_pid_mountinfo(5))."""
    fields, _, more = line.partition(" - ")
    return fields.split()[2], fields.split()[4], more.split()[0]


def _lines(name: str) -> list[str]:
    """Return the lines of a file of this process in /proc; empty if the file can't be read."""
    return proc.read(os.getpid(), name).splitlines()
