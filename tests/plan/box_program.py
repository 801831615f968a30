"""What `boxes.boxed` starts, hundreds of times: it imports nothing but the sandbox and what it shows."""

from __future__ import annotations

import pickle
import sys
from contextlib import ExitStack
from pathlib import Path

from sbatchgen.base.machine.mounts import mounts
from sbatchgen.lab.plan.visible_folders import VisibleFolders
from sbatchgen.lab.sandbox.box import Box, BoxLimits, run
from tests.trust.watched import tree


def main() -> None:
    """Run the command that stdin says; stdout gets how it ended, and what it changed."""
    command, folder, limits, more = pickle.load(sys.stdin.buffer)  # noqa: S301
    before = tree(Path(folder))
    box = Box(home="/home/someone", hostname="node1", folder=folder, limits=BoxLimits(**limits), **more)
    argv, environment = ["/bin/bash", "-c", command], {"PATH": "/usr/bin:/bin"}
    with ExitStack() as cleanup:
        visible = VisibleFolders({}, (folder,), cleanup, mounts=mounts())
        ended = visible.run(lambda shown: run(argv, environment, shown.in_box(box)))
    after = tree(Path(folder))
    changed = [name for name in sorted({*before, *after}) if before.get(name) != after.get(name)]
    sys.stdout.buffer.write(pickle.dumps((ended, changed)))


if __name__ == "__main__":
    main()
