"""`__main__` of sbatchgen.pyz: unpack it once for each user and Python, then run the command from there.

Scripts name the folder of the training package, which has to exist until their jobs end. So it is in
XDG_DATA_HOME, not in a cache. An older Python must be able to read this file, to say that it is too old.
"""

import sys

if sys.version_info < (3, 10):  # noqa: UP036
    print(
        f"error: this is Python 3.{sys.version_info[1]}, and sbatchgen needs 3.10 or newer", file=sys.stderr
    )
    print("  fix: python3.12 sbatchgen.pyz; module avail python may list some", file=sys.stderr)
    sys.exit(3)

import os
import stat
from pathlib import Path

NAME = "@NAME@"  # the version and a checksum of the contents
PYTHON = f"cp3{sys.version_info.minor}"
MACHINE = os.uname().machine
WHEELS = "wheels/"
INSTALL = "install sbatchgen with pip"


def main() -> None:
    """Run the command from its folder."""
    folder = place()
    try:
        if not folder.is_dir():
            unpack(folder)
        reason = doubt_of(folder)
    except OSError as error:
        reason = f"{error.filename}: {error.strerror}"
    if reason:
        say(
            "error",
            f"can't run from {folder}: {reason}",
            "export XDG_DATA_HOME=FOLDER, which only you can write",
        )
        sys.exit(3)
    sys.path[0] = str(folder)
    if not (folder / "tree_sitter").is_dir():
        say("warning", f"no tree-sitter for {PYTHON} on {MACHINE}: most commands but render fail", INSTALL)
    from sbatchgen.__main__ import main as run

    run()


def place() -> Path:
    """Return the folder of this archive for this user, Python and machine."""
    root = os.environ.get("XDG_DATA_HOME", "")
    data = Path(root if root.startswith("/") else "~/.local/share").expanduser()
    return Path(os.path.realpath(data)) / "sbatchgen" / f"{NAME}-{PYTHON}-{MACHINE}"


def unpack(folder: Path) -> None:
    """Write the folder: all of it, or nothing."""
    import io
    import shutil
    import tempfile
    import zipfile

    umask = os.umask(0o077)
    folder.parent.mkdir(parents=True, exist_ok=True)
    new = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", dir=folder.parent))
    try:
        with zipfile.ZipFile(Path(__file__).parent) as archive:
            names = archive.namelist()
            archive.extractall(new, [name for name in names if not name.startswith(WHEELS)])
            for name in names:
                if name.startswith((f"{WHEELS}{PYTHON}-{MACHINE}/", f"{WHEELS}abi3-{MACHINE}/")):
                    with zipfile.ZipFile(io.BytesIO(archive.read(name))) as wheel:
                        wheel.extractall(new)
                        for entry in wheel.infolist():
                            if entry.external_attr >> 16 & stat.S_IXUSR:  # as bubblewrap
                                (new / entry.filename).chmod(0o700)
        new.rename(folder)
    except OSError:
        if not folder.is_dir():  # else another process was faster
            raise
    finally:
        shutil.rmtree(new, ignore_errors=True)
        os.umask(umask)


def doubt_of(folder: Path) -> str:
    """Return who else can write or replace a folder; empty if only this user and root can."""
    reason = None
    for status in (part.lstat() for part in (folder, *folder.parents)):
        if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) or status.st_uid not in (0, os.geteuid()):
            # from the archive: slower, and knows all cases
            from sbatchgen.base.machine.trust import other_writer

            reason = other_writer(folder)
            break
    for name in [name for name in sys.modules if name.partition(".")[0] == "sbatchgen"]:
        del sys.modules[name]
    return f"it {reason.why}" if reason else ""


def say(severity: str, what: str, fix: str) -> None:
    """Print a problem in the form that the command has."""
    print(f"{severity}: {what}\n  fix: {fix}", file=sys.stderr)


if __name__ == "__main__":
    main()
