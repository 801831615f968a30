"""A sandbox by Landlock, for kernels that allow no namespaces: one private folder holds all that may change.

It holds an empty home, an empty /tmp, the stand-ins, and links to what the folder of submission has. In the
script and its variables, the private folder's path is put before their paths; from all that the program
prints it is cut again.
Sources: landlock(7), capset(2), <linux/landlock.h>.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import signal
import struct
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from sbatchgen.dryrun import calls
from sbatchgen.dryrun.box import (
    DEVICES,
    OWN,
    PDEATHSIG,
    PLACE,
    Box,
    Ended,
    NoSandboxError,
    checked,
    libc,
    limit_processes,
    prctl,
    supervised,
    watched,
    write,
)

LACKS = (
    "commands that change existing files fail in it, chmod has no effect, and a path that the script puts"
    " together may be missing"
)
_LEAST = 3  # of its versions: older ones let files be cut (Linux 6.2)
_OWN_SIGNALS = 6  # the first version that keeps signals inside (Linux 6.12)
_IOCTL = 5  # the first that limits ioctl of devices
_CHILD_SUBREAPER = 36
_CREATE, _ADD, _RESTRICT = 444, 445, 446  # numbers of the system calls
_EXECUTE, _WRITE, _READ, _LIST, _CUT = 1, 2, 4, 8, 1 << 14
_MOST = 1000  # entries of a folder
_TEMPORARY = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108


def run(argv: Sequence[str], environment: Mapping[str, str], box: Box) -> Ended:
    """Run a program in a sandbox to its end.

    Raises:
        NoSandboxError: This machine allows none, or the box has what Landlock can't give.
    """
    version = libc.syscall(_CREATE, None, ctypes.c_size_t(0), 1)
    if version < _LEAST or not calls.is_known():
        raise NoSandboxError.of(
            "it needs Linux 6.2 on x86_64 or aarch64, and a kernel that has it switched on"
        )
    if not os.path.exists("/proc/thread-self/children"):
        raise NoSandboxError.of("this kernel does not say which processes a process has started")
    if box.kept or box.network != "none":
        raise NoSandboxError.of("it has no network of its own")
    prefix = "sbatchgen-plan-"
    with tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True) as place:
        root = os.path.realpath(place)
        moved = _mover(box, root)
        texts = {  # a path in a text is one of the private folder; other files have none
            name: (data if b"\0" in data else moved(data), mode) for name, (data, mode) in box.files.items()
        }
        own = replace(box, files=texts, folders=[*box.folders, *_TEMPORARY, box.home], covers=())
        write(own, root)
        _link(box, root)
        words = [moved(word.encode("utf-8", "surrogateescape")) for word in argv]
        variables = {name: moved(os.fsencode(value)) for name, value in environment.items()}

        def work(writing: int) -> None:
            signal.signal(signal.SIGTERM, lambda *_: sys.exit())  # so that it ends what it has started
            prctl(PDEATHSIG, signal.SIGTERM)
            prctl(_CHILD_SUBREAPER, 1)
            os.setsid()
            os.umask(0o022)
            checked(libc.capset(struct.pack("Ii", 0x20080522, 0), bytes(24)), "capset")
            limit_processes(box.limits.processes)
            rules = _ruleset(box, root, version)
            own = [os.fsdecode(word) for word in words]
            of = {name: os.fsdecode(value) for name, value in variables.items()}
            watched(own, of, box, writing, root=root, confine=lambda: _confine(rules, version))

        return supervised(work, box.limits)


def _mover(box: Box, root: str) -> Callable[[bytes], bytes]:
    """Return what puts the private folder in front of the paths that are in it."""
    there = {path for path in box.covers if os.path.exists(path)}
    paths = {str(PLACE), *_TEMPORARY, box.home, box.folder, *box.files, *box.folders, *there}
    names = [os.fsencode(path.rstrip("/")) for path in paths if path.strip("/")]
    names.sort(key=len, reverse=True)
    pattern = re.compile(rb"(?<![\w./})*?@%-])(?:" + b"|".join(map(re.escape, names)) + rb")(?![\w.-])")
    start = os.fsencode(root)
    return lambda text: pattern.sub(lambda match: start + match[0], text)


def _link(box: Box, root: str) -> None:
    """Link what the folder of submission and other folders have, and the stand-in in place of programs."""
    for path in box.covers:
        if os.path.exists(path):
            os.makedirs(os.path.dirname(f"{root}{path}"), exist_ok=True)
            os.symlink(f"{root}{box.cover}", f"{root}{path}")
    home = os.path.realpath(box.home or "/")
    for path in (*box.shown, box.folder):
        if os.path.isdir(path) and os.path.realpath(path) not in (home, "/"):
            _link_entries(path, f"{root}{path}")


def _link_entries(source: str, target: str) -> None:
    """Link each entry of a folder that the private one lacks; nothing may be written through these links."""
    os.makedirs(target, exist_ok=True)
    for name in _names(source):
        entry, own = f"{source}/{name}", f"{target}/{name}"
        if not os.path.lexists(own):
            os.symlink(os.path.realpath(entry), own)
        elif os.path.isdir(own) and not os.path.islink(own) and os.path.isdir(entry):
            _link_entries(entry, own)


def _ruleset(box: Box, root: str, version: int) -> int:
    """Return a file of rules: what may be read, and what may be written."""
    every = (1 << (16 if version >= _IOCTL else 15)) - 1
    attributes = struct.pack("QQQ", every, 0, 2) if version >= _OWN_SIGNALS else struct.pack("Q", every)
    rules = checked(libc.syscall(_CREATE, attributes, ctypes.c_size_t(len(attributes)), 0), "landlock")
    _allow(rules, root, every)
    for path in (*_readable("/", box.home.rstrip("/")), *box.shown, box.folder):
        _allow(rules, path, _EXECUTE | _READ | _LIST)
    _allow(rules, "/proc", _READ)
    for device in DEVICES:
        _allow(rules, f"/dev/{device}", _READ | _WRITE)
    return rules


def _readable(folder: str, home: str) -> Iterator[str]:
    """Yield the entries of a folder that hold nothing of the user's home."""
    for name in _names(folder):
        path = os.path.join(folder, name)
        if f"{home}/".startswith(f"{path}/"):
            if path != home:
                yield from _readable(path, home)
        elif folder != "/" or name not in OWN:
            yield path


def _names(folder: str) -> list[str]:
    """Return the names in a folder; of one that may be entered and not listed, as /home often is, no name."""
    with contextlib.suppress(PermissionError):
        return sorted(os.listdir(folder))[:_MOST]
    return []


def _allow(rules: int, path: str, rights: int) -> None:
    with contextlib.suppress(OSError):  # it is not there, or may not be entered
        number = os.open(path, os.O_PATH | os.O_CLOEXEC)
        if not os.path.isdir(path):
            rights &= _EXECUTE | _READ | _WRITE | _CUT
        rule = struct.pack("=Qi", rights, number)
        checked(libc.syscall(_ADD, rules, 1, rule, 0), f"landlock: {path}")
        os.close(number)


def _confine(rules: int, version: int) -> None:
    """Give up all rights but those of the rules."""
    checked(libc.syscall(_RESTRICT, rules, 0), "landlock")
    calls.refuse_all(signals=version < _OWN_SIGNALS)
