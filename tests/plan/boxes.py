"""Commands in a sandbox, started by root or an ordinary user, with layers over the folder or without."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from sbatchgen.lab.sandbox.box import RunResult
from tests.cluster import mounts
from tests.cluster.fixtures import VISIBLE
from tests.conftest import REPOSITORY

USER = 54321
# A third overlay over two others is refused, as one over some file systems of clusters.
STACKED = """
mount -t tmpfs none {stage}; mkdir {stage}/1 {stage}/2 {stage}/w1 {stage}/w2
mount -t overlay -o lowerdir={folder},upperdir={stage}/1,workdir={stage}/w1 none {folder}
mkdir {stage}/empty
mount -t overlay -o lowerdir={folder}:{stage}/empty none {folder}
"""


class Place(NamedTuple):
    """Who runs something, and whether a layer is possible over the folder."""

    uid: int
    layers: bool


PLACES = {
    "user": Place(USER, layers=True),
    "user without layers": Place(USER, layers=False),
    "root": Place(0, layers=True),
    "root without layers": Place(0, layers=False),
}


class Seen(NamedTuple):
    """How a command ended, and what of the folder was changed outside."""

    ended: RunResult
    changed: list[str]


@contextmanager
def home() -> Iterator[Path]:
    """A folder for a job, below a folder of root's."""
    with tempfile.TemporaryDirectory(prefix="box-", dir="/srv", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o755)
        for name in ("job", "stage"):
            Path(folder, name).mkdir()
        yield Path(folder, "job")


def boxed(
    command: str, folder: Path, place: Place, limits: Mapping[str, Any] | None = None, **more: Any
) -> Seen:
    """Run a command of bash in a sandbox in which a folder is seen."""
    stage = folder.parent / "stage"
    lines = mounts.reveal(VISIBLE, stage=stage)
    lines += [] if place.layers else [STACKED.format(folder=folder, stage=stage)]
    for path in (folder, *folder.rglob("*")):
        os.chown(path, place.uid, place.uid, follow_symlinks=False)
    enter = ["unshare", "--mount", "sh", "-ec", "\n".join([*lines, 'cd /; exec "$@"']), "sh"]
    identity = ["setpriv", f"--reuid={place.uid}", f"--regid={place.uid}", "--clear-groups"]
    task = pickle.dumps((command, str(folder), limits or {}, more))
    done = subprocess.run(
        [*enter, *identity, sys.executable, "-m", "tests.plan.box_program"],
        input=task, env={"PATH": os.environ["PATH"], "PYTHONPATH": str(REPOSITORY)}, capture_output=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr.decode()
    ended, changed = pickle.loads(done.stdout)  # noqa: S301
    return Seen(ended, changed)
