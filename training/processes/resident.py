"""What a process has mapped of its image, read into memory: the image's file system may end before it.

Without setuid, Apptainer mounts a .sif file by squashfuse, and so does pyxis with use_squashfuse=1: a process
of the step. Where Slurm signals all of them (proctrack/linuxproc, scancel --full), SIGTERM ends it at once.
Then a page of a library that was never touched is a bus error, in the middle of the last save for example.
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

APPTAINER = ("APPTAINER_CONTAINER", "SINGULARITY_CONTAINER")  # the image, in a container of Apptainer
ENROOT = re.compile(r"[ ,]lowerdir=[^,:]*/overlay/lower,")  # where it mounts an image that it does not unpack
POPULATE_READ, WILL_NEED = 22, 3  # of madvise(2); the first is there since Linux 5.14
CHUNK = 4 << 20  # bytes: an mmap of another thread waits so long


def keep() -> threading.Thread:
    """Begin to read all that this process has mapped of its image, and return the thread that does so.

    Pages that were read cost nothing. Where no process mounts the image, the thread ends at once.
    """
    parts = [*mapped(_lines("maps"), _lines("mountinfo"))] if is_mounted() else []
    thread = threading.Thread(target=_read, args=(parts,), name="resident pages", daemon=True)
    thread.start()
    return thread


def is_mounted() -> bool:
    """Return whether a process may mount the root folder of this one."""
    return in_image(os.environ, _lines("mountinfo"))


def in_image(environ: Mapping[str, str], mounts: list[str]) -> bool:
    """Return whether a process may mount the root folder.

    An overlay hides what is below it: Apptainer and Enroot put one over squashfuse, and other runtimes over
    folders. No process mounts an image that is a folder.
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
    """Yield address and length of what is mapped of the image's libraries: data may be too large to read.

    An overlay may show the device of the file below it (before Linux 6.8), which no mount here has. Enroot
    mounts parts of the image onto itself.
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
    """Read parts of the memory; one that can't be read, as after the end of a file, is left as it is."""
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
    """Return device, place and type of a line of mountinfo (proc_pid_mountinfo(5))."""
    fields, _, more = line.partition(" - ")
    return fields.split()[2], fields.split()[4], more.split()[0]


def _lines(name: str) -> list[str]:
    """Return the lines of a file of this process in /proc; none where it can't be read."""
    return proc.read(os.getpid(), name).splitlines()
