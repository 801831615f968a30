"""Which pages of an image are read into memory, and that nothing else is touched."""

from __future__ import annotations

import mmap
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from training.processes.resident import is_root_mounted, library_mappings

from .trainers import ROOT

PAGES = 64
ROOTS = {
    "overlay": "21 1 0:162 / / rw,nodev - overlay overlay ro,lowerdir=/lower:/image",
    "docker": "21 1 0:162 / / rw - overlay overlay rw,lowerdir=/l/A:/l/B,upperdir=/o/a/diff,workdir=/o/a/work",
    # of Enroot 4.1.2, with use_squashfuse=1 of pyxis 0.24
    "enroot": "21 1 0:162 / / ro,nosuid - overlay overlay rw,lowerdir=/tmp/enroot-run-1/overlay/lower,"
    "upperdir=/tmp/enroot-run-1/overlay/upper,workdir=/tmp/enroot-run-1/overlay/work,uuid=null",
    "fuse": "21 1 0:40 / / ro,nosuid - fuse.squashfuse_ll squashfuse_ll ro",
    "disk": "21 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw",
    "kernel": "21 1 7:1 / / ro,nodev - squashfs /dev/loop1 ro",
}
DATA = "23 21 0:79 /data /data rw - fuse.gcsfuse bucket rw"
OWN = "24 21 0:162 /.lock /.lock ro,noexec - overlay overlay rw,lowerdir=/tmp/enroot-run-1/overlay/lower"
HOME = "22 21 254:0 /home /home rw - ext4 /dev/vda rw"
# of an overlay, of a file below one as Linux before 6.8 shows it, and what must not be read
IMAGE = """\
7f0000000000-7f0000002000 r-xp 00000000 00:a2 479                /opt/python/lib/libtorch_cpu.so
7f0000010000-7f0000011000 r-xp 00000000 00:2b 480                /usr/lib/libc.so.6"""
OTHERS = """\
7f0000100000-7f0000101000 r-xp 00000000 fe:00 481                /home/anna/venv/lib/libown.so
7f0000200000-7f0000201000 ---p 00000000 00:a2 479                /opt/python/lib/libtorch_cpu.so
7f0000300000-7f0000301000 rw-p 00000000 00:00 0
7f0000400000-7f0000401000 rw-p 00000000 00:00 0                  [heap]
7f0000480000-7f0000490000 r--s 00000000 00:a2 490                /opt/data/images.npy
7f0000490000-7f00004a0000 r--s 00000000 00:4f 491                /data/features.npy
7f0000500000-7f0000501000 rw-s 00000000 00:05 482                /dev/nvidia0
7f0000600000-7f0000601000 rw-s 00000000 00:01 483                /memfd:sbatchgen-stacks (deleted)"""


@pytest.mark.parametrize(
    ("root", "mounted"),
    {
        "overlay": False,
        "docker": False,
        "enroot": True,
        "fuse": True,
        "disk": False,
        "kernel": False,
    }.items(),
)
def test_a_process_may_mount_the_root_folder(root: str, *, mounted: bool) -> None:
    assert is_root_mounted({}, [ROOTS["disk"], ROOTS[root], HOME]) == mounted


def test_a_folder_as_image_needs_no_process(tmp_path: Path) -> None:
    file = tmp_path / "image.sif"
    file.touch()
    for name in ("APPTAINER_CONTAINER", "SINGULARITY_CONTAINER"):
        assert not is_root_mounted({name: str(tmp_path)}, [ROOTS["overlay"]])
        assert is_root_mounted({name: str(file)}, [ROOTS["overlay"]])


def test_only_what_the_image_has_is_read() -> None:
    maps = [*OTHERS.splitlines(), *IMAGE.splitlines()]
    assert [*library_mappings(maps, [ROOTS["overlay"], OWN, HOME, DATA])] == [
        (0x7F0000000000, 0x2000),
        (0x7F0000010000, 0x1000),
    ]


READS = f"""
import mmap, os, sys
sys.path.insert(0, {str(ROOT)!r})
from training.processes import resident
size = {PAGES} * mmap.PAGESIZE
maps = []
for name in sys.argv[1:]:
    with open(name, "r+b") as file:
        maps.append(mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ | mmap.PROT_EXEC))
        if "short" in name:
            file.truncate(mmap.PAGESIZE)
lines = resident._lines
device = os.stat(sys.argv[1]).st_dev
mounts = [f"21 1 {{os.major(device)}}:{{os.minor(device)}} / / ro - fuse.squashfuse image ro"]
resident._lines = lambda name: mounts if name == "mountinfo" else lines(name)
resident.keep_libraries().join()
print(open("/proc/self/smaps").read())
"""


def test_all_pages_are_in_memory_and_a_file_that_became_shorter_is_no_error(tmp_path: Path) -> None:
    """A page after the end of a file would be a bus error if it were touched."""
    files = [tmp_path / name for name in ("whole", "short")]
    for file in files:
        file.write_bytes(os.urandom(PAGES * mmap.PAGESIZE))
    environ = {name: value for name, value in os.environ.items() if not name.endswith("_CONTAINER")}
    done = subprocess.run(
        [sys.executable, "-c", READS, *files], capture_output=True, text=True, env=environ, check=True
    )
    kilobytes = [re.search(rf" {file}\n(?:.*\n)*?Rss: +(\d+) kB", done.stdout) for file in files]
    whole, short = (int(match[1]) * 1024 for match in kilobytes if match)
    assert whole == PAGES * mmap.PAGESIZE
    assert short <= whole
