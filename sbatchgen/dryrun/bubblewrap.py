"""A sandbox by bubblewrap, which may use namespaces on systems where other programs may not.

Sources: bwrap(1). On such systems it is setuid, or has a profile of AppArmor.
"""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

from sbatchgen.dryrun import calls
from sbatchgen.dryrun.box import (
    DEVICES,
    OWN,
    Box,
    Ended,
    NoSandboxError,
    covered,
    hidden,
    limit_processes,
    supervised,
    watched,
    write,
)

LACKS = "commands that change existing files fail in it"
_PACKAGE = "/run/package"
_INSIDE = (
    f"import sys; sys.path.append({_PACKAGE!r}); from sbatchgen.dryrun.bubblewrap import inside; inside()"
)
_MOST = 1000  # entries of the folder that are shown one by one
_WITH_SIZES = (0, 7)  # the first release that limits folders in memory


def run(argv: Sequence[str], environment: Mapping[str, str], box: Box) -> Ended:
    """Run a program in a sandbox to its end.

    Raises:
        NoSandboxError: This machine allows none.
    """
    program = shutil.which("bwrap")
    if program is None:
        raise NoSandboxError.of("it is not installed")
    with tempfile.TemporaryDirectory(prefix="sbatchgen-plan-") as place:
        for number, data in enumerate([*box.over.values(), box.files.get(box.cover, (b"", 0))[0]]):
            Path(place, str(number)).write_bytes(data)
            Path(place, str(number)).chmod(0o755)
        words = [program, *_options(box, place, sized=_release(program) >= _WITH_SIZES)]
        task = pickle.dumps((list(argv), dict(environment), box))
        Path(place, "task").write_bytes(task)

        def work(writing: int) -> None:
            os.dup2(os.open(f"{place}/task", os.O_RDONLY), 0)
            os.dup2(writing, 1)  # the report
            os.dup2(writing, 2)  # why there is no report
            os.execve(program, words, {})  # noqa: S606 - no shell

        return supervised(work, box.limits)


def inside() -> None:
    """Run the program: the first process in the sandbox does this."""
    argv, environment, box = pickle.load(sys.stdin.buffer)  # noqa: S301 - `run` wrote it
    os.umask(0o022)
    write(box)
    limit_processes(box.limits.processes)
    refuse = calls.refuse_sockets if box.network == "none" else None
    watched(argv, environment, box, os.dup(1), confine=refuse)


@cache
def _release(program: str) -> tuple[int, ...]:
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=False).stdout
    return tuple(int(part) for part in said.strip().rpartition(" ")[2].split(".")[:2] if part.isdecimal())


def _options(box: Box, place: str, *, sized: bool) -> Iterator[str]:
    """Yield the options of bwrap: those that come later lie over those before."""
    empty = ("--size", str(box.limits.disk), "--tmpfs") if sized else ("--tmpfs",)
    yield from ("--unshare-user-try", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--cap-drop", "ALL")
    yield from ("--as-pid-1", "--die-with-parent", "--new-session", "--hostname", box.hostname)
    yield from ("--unshare-net",) * (box.network != "machine")
    yield from (*empty, "/")
    for name in sorted(set(os.listdir("/")) - OWN):
        yield from _shown(f"/{name}")
    yield from ("--proc", "/proc", *empty, "/dev", *_devices(box))
    has_home = box.home.strip("/") and os.path.isdir(box.home)
    for name in ("/tmp", "/var", "/run", *([box.home] if has_home else [])):  # noqa: S108
        yield from (*empty, name)
    yield from ("--dir", "/var/tmp")  # noqa: S108
    for path in hidden(box):
        yield from ("--ro-bind-try", path, path) if path != box.folder else ()
    yield from _of_folder(box, empty)
    for number, path in enumerate(box.over):
        yield from ("--ro-bind", f"{place}/{number}", path) if os.path.exists(path) else ()
    programs, interpreter = covered(box)
    python = os.path.realpath(sys.executable)
    if interpreter != box.interpreter:
        yield from ("--ro-bind", box.interpreter, interpreter)
        python = interpreter
    for path in sorted(programs):
        yield from ("--ro-bind", f"{place}/{len(box.over)}", path)
    for path, folder in box.kept.items():
        yield from ("--bind", folder, path)
    yield from ("--ro-bind", str(Path(__file__).parents[1]), f"{_PACKAGE}/sbatchgen")
    yield from ("--", python, "-I", "-S", "-c", _INSIDE)


def _devices(box: Box) -> Iterator[str]:
    yield from ("--dir", "/dev/shm")  # noqa: S108
    for device in (*DEVICES, *box.devices):
        yield from ("--dev-bind", f"/dev/{device}", f"/dev/{device}")
    yield from ("--symlink", "/proc/self/fd", "/dev/fd")
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        yield from ("--symlink", f"/proc/self/fd/{number}", f"/dev/{name}")


def _of_folder(box: Box, empty: Sequence[str]) -> Iterator[str]:
    """Show the folder of submission so that files can be made in it, and those that are there can be read."""
    names = os.listdir(box.folder) if os.path.isdir(box.folder) else []
    if os.path.realpath(box.folder) in (os.path.realpath(box.home or "/"), "/"):
        return
    if len(names) > _MOST:
        yield from ("--ro-bind", box.folder, box.folder)
        return
    yield from (*empty, box.folder)
    for name in names:
        yield from _shown(os.path.join(box.folder, name))


def _shown(path: str) -> Iterator[str]:
    if os.path.islink(path):
        yield from ("--symlink", os.readlink(path), path)
    elif os.path.isdir(path) or os.path.isfile(path):
        yield from ("--ro-bind-try", path, path)
