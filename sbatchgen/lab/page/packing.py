"""Packs Python and its files for a browser with Node.js, within a time limit, and shows the progress."""

import os
import select
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, NamedTuple

from sbatchgen.base.errors import DocumentError
from sbatchgen.base.machine import child
from sbatchgen.lab.page.site import FILES

SMALLER_S = 120.0  # seconds from the start, after which a complete page is not made smaller any more
# Seconds from the start, after which an incomplete page is an error. An idle machine needs 20 s.
GIVE_UP_S = 600.0
SILENT_S = 20.0  # seconds without a line of Node.js, after which a note tells that the work continues
_FAILURE = "Node.js could not make the page"

Note = Callable[[str], object]  # prints a line for the user


def pack(packing_list: Path, note: Note) -> None:
    """Write the files of a packing list, whose keys pack.mjs explains. `note` prints the progress.

    On a busy machine some files stay larger than they could be. The next call makes them smaller.
    Raises DocumentError if Node.js fails or is too slow.
    """
    errors = packing_list.with_name("errors")
    try:
        with errors.open("wb") as stderr:
            command = ["node", str(FILES / "pack.mjs"), str(packing_list)]
            node = child.begin(command, os.environ, stdout=child.PIPE, stderr=stderr.fileno())
    except OSError as error:
        raise DocumentError.of(f"{_FAILURE}: {error}", fix="install Node.js 18 or newer") from error
    with node:
        try:
            assert node.stdout is not None  # noqa: S101 - it is a pipe
            progress = _follow(node.stdout, note)
        except BaseException:
            node.kill()
            raise
        if progress.is_late:
            node.kill()
    if progress.is_late and progress.is_complete:
        note(
            "note: this machine is busy: the page is a tenth larger than it could be; "
            "the same command continues later"
        )
    elif progress.is_late:
        what = f"{_FAILURE} in {GIVE_UP_S / 60:.0f} minutes: it {progress.last_line}"
        raise DocumentError.of(what, fix="see how busy the machine is: uptime; and type the command again")
    elif node.returncode:
        messages = errors.read_text(errors="replace").splitlines()
        lines = [line for line in messages if line.strip() and len(line) < 400]
        raise DocumentError.of(f"{_FAILURE}: {' / '.join(lines[-8:])}")


class _Progress(NamedTuple):
    """The progress of Node.js when its output ended or its time was up."""

    is_late: bool  # whether its time was up
    is_complete: bool  # whether it had written all files
    last_line: str  # what it did last, such as "starts"


def _follow(output: IO[bytes], note: Note) -> _Progress:
    """Print each line of Node.js as a note, until its output ends or its time is up."""
    started = time.monotonic()
    is_complete, last_line = False, "starts"
    for line in _lines(output):
        seconds = time.monotonic() - started
        if line == "complete":  # all files are written, and Node.js now makes some of them smaller
            is_complete = True
        elif line:
            last_line = line
            note(f"note: packing the page: {line} ({seconds:.0f} s)")
        else:
            note(f"note: packing the page: {last_line}, still at work ({seconds:.0f} s)")
        if seconds > (SMALLER_S if is_complete else GIVE_UP_S):
            return _Progress(True, is_complete, last_line)
    return _Progress(False, is_complete, last_line)


def _lines(output: IO[bytes]) -> Iterator[str]:
    """Yield each line as soon as it is complete, and "" after each SILENT_S seconds without output."""
    rest = b""  # the beginning of a line that is not complete
    while True:
        if not select.select([output], [], [], SILENT_S)[0]:
            yield ""
            continue
        data = os.read(output.fileno(), 1 << 16)
        if not data:
            return
        *lines, rest = (rest + data).split(b"\n")
        yield from (line.decode("utf-8", "replace") for line in lines)
