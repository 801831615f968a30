"""What `boxes.boxed` starts, hundreds of times: it imports nothing but the sandbox."""

from __future__ import annotations

import os
import pickle
import sys
from pathlib import Path

from sbatchgen.sandbox.box import Box, BoxLimits, run
from tests.trust.watched import tree


def main() -> None:
    """Run the command that stdin says; stdout gets how it ended, and what it changed."""
    command, folder, limits, more = pickle.load(sys.stdin.buffer)  # noqa: S301
    before = tree(Path(folder))
    number = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    box = Box(
        home="/home/someone",
        hostname="node1",
        folder=folder,
        shown={folder: [number]},
        limits=BoxLimits(**limits),
        **more,
    )
    ended = run(["/bin/bash", "-c", command], {"PATH": "/usr/bin:/bin"}, box)
    after = tree(Path(folder))
    changed = [name for name in sorted({*before, *after}) if before.get(name) != after.get(name)]
    sys.stdout.buffer.write(pickle.dumps((ended, changed)))


if __name__ == "__main__":
    main()
